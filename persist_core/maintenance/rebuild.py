"""`persist rebuild`: a new generation of a collection, by the definition in its file, beside the one that readers see.

    NAME~rebuild ─> turns of all input, up to the shard's upper ─> fsck, counts, differences ─> report ─> swap
        (a killed one goes on here)                  └ a lost race: what came meanwhile

For another key, type, time, order or time zone. To swap back is the same, but `NAME~rebuild` begins as a fork of the
earlier generation, and takes in what came since; the file has its definition again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from persist_core.checkpoint.publish import publish_and_retain
from persist_core.config.collection import FILES, CollectionConfig
from persist_core.contents.batch import SourceFrontier
from persist_core.contents.evolution import has_other_times
from persist_core.errors import ConfigError, InvalidInput, RunFailed, SchemaMismatch
from persist_core.handles.client import PersistClient
from persist_core.handles.read import check_as_of
from persist_core.maintenance.fill import CONFIRM, Wishes
from persist_core.maintenance.fsck import fsck
from persist_core.maintenance.hidden import (
    REBUILD,
    Kept,
    alive,
    begun_by,
    cleaned_up,
    definition_of,
    end,
    hidden_of,
    kept_generations,
)
from persist_core.protocol import stages
from persist_core.protocol.compare import Side, compare
from persist_core.protocol.delta import BEGINNING
from persist_core.protocol.difference import Differences
from persist_core.protocol.fork import fork
from persist_core.protocol.living import is_clipped, living
from persist_core.protocol.replay import Start, Turn, WriteOf, is_as_read, replay, replay_config, turns_of
from persist_core.protocol.restore_point import FIRST_UPPER
from persist_core.protocol.run import MAX_CONFLICTS
from persist_core.protocol.swap import kept_name, swap, swap_token
from persist_core.row_text import show_count, show_names
from persist_core.schema import BY_DESCRIPTION, CollectionSchema, show_times
from persist_core.shard.receive import check_not_pinned
from persist_core.shard.state import Commit, Committed, ShardState
from persist_core.sources.collection import CollectionSource
from persist_core.sources.files import InputsNow
from persist_core.time_text import MAX_TIME, show_time


@dataclass(frozen=True)
class Request(Wishes):
    """A rebuild. `back_to`: the number of the generation to swap back; -1 for the newest one that is kept; `None`:
    build a new one."""

    back_to: int | None = None


@dataclass(frozen=True)
class Contents:
    """How many rows and errs there are; `None` if nothing has counted them."""

    rows: int | None
    errs: int | None

    def __str__(self) -> str:
        return f"{show_count(self.rows)}, {self.errs or 0} errors"


@dataclass(frozen=True)
class Rebuilt:
    """The report. `generation`: the number of the one that was, or would be, swapped in. `built`: its hidden shard.

    `found`: the rows that differ; `None` if they cannot be compared, and `why` says why. `gone`: files whose records
    the new generation lacks. `commit` and `kept` (where the old one is) are set after the swap. `is_new` is False if an
    earlier call swapped it in.
    """

    shard: str
    generation: int
    built: str
    before: Contents
    after: Contents
    gone: tuple[str, ...]
    found: Differences | None
    why: str
    commit: Commit | None = None
    kept: str | None = None
    is_new: bool = True


def rebuild(
    client: PersistClient,
    config: CollectionConfig,
    request: Request,
    *,
    write: WriteOf,
    writer: str,
    say: Callable[[str], None],
    report: Callable[[Rebuilt], None] = lambda _: None,
) -> Rebuilt:
    """Build a generation, or bring an earlier one up to date, and swap it in. `report` gets the report before that.

    A kill at any point, or two that run concurrently, lose nothing: trying again goes on. Raises `InvalidInput` for
    files that are gone, for a change that is not confirmed, or if a generation does not fit the file; `RunFailed` if
    other writers keep winning, or fsck finds something; and what a run raises.
    """
    began = state = _checked(client, config)
    task = _Rebuild(client, config, request, say)
    ended = task.ended_before(state)
    if ended is not None:
        return ended
    state.origin.check_not_moved(config.name)
    if not request.is_dry_run:
        check_not_pinned(state)  # before the work, and again before the swap
    task = replace(task, known=task.kept(state))
    hidden, is_checked = task.hidden, False
    for _ in range(MAX_CONFLICTS):
        gone = task.gone(state)
        definition = task.definition(state)
        turns, beside = task.turns(state), replay_config(config, hidden)
        task.begin(definition, turns)
        say(f"building {hidden} up to {show_time(state.upper.time)}")
        replay(client, beside, turns, write=write, writer=definition, say=say, on_round=lambda: None)
        theirs, state = alive(client, hidden), client.state(config.name)
        if (state.origin.life, state.erased) != (began.origin.life, began.erased) or theirs is None:
            raise RunFailed(
                f"another rebuild or an erasure of {config.name} has ended this one; see `persist generations`"
            )
        if theirs.upper < state.upper:  # what came meanwhile
            continue
        stages.checkpoint(client, beside)  # which a killed call may have left undone
        is_checked = is_checked or _checks(client, hidden)
        found = task.reported(state, theirs, gone)
        report(found)
        if request.is_dry_run:
            return found
        _check_confirmed(found, request)
        keep_ms, digest = config.retention.keep_generations_ms, definition_of(config, REBUILD, task.begins_as)
        result = swap(client, state, theirs, keep_ms=keep_ms, writer=writer, definition=digest)
        if isinstance(result, Committed):
            task.clean_up()
            return replace(found, commit=result.commit, kept=kept_name(state))
        say(f"another writer was faster (upper {result.found}); taking in what came meanwhile")
        state = client.state(config.name)
    raise RunFailed(
        f"shard {config.name}: lost {MAX_CONFLICTS} swaps to other writers; it was not changed. Pause its DAG, then try"
        " again: what was built is kept"
    )


def _checked(client: PersistClient, config: CollectionConfig) -> ShardState:
    state = client.state(config.name)
    upper = state.upper.time
    if upper is None or upper == MAX_TIME or upper <= FIRST_UPPER or state.schema is None:
        raise InvalidInput(
            f"shard {config.name} is closed or empty (upper {state.upper}): there is nothing to rebuild. `persist run"
            f" {config.name}` begins an empty one by the file as it is"
        )
    wanted = config.collection_schema()
    other_times = state.schema.timed_by == BY_DESCRIPTION or has_other_times(state.schema, wanted)
    if state.erased is not None and state.schema.order is None and other_times:
        raise InvalidInput(
            f"keys were erased from {config.name}, which is in log order: only the times of records say which came"
            f" before. A rebuild gives them other times ({show_times(wanted)}; before: {show_times(state.schema)}), and"
            " so would bring the keys back. Delete these records in the source, and give the collection another name."
            " Nothing was changed"
        )
    if state.erased is not None and _recognized_by(state.schema) != _recognized_by(wanted):
        raise InvalidInput(
            f"keys were erased from {config.name}. They are recognized by key and order, so a rebuild with others"
            " would bring back what the source still has. Delete these records there, and give the collection another"
            " name. Nothing was changed"
        )
    return state


def _recognized_by(schema: CollectionSchema) -> list[list[tuple[str, str]]]:
    return [[(each.name, each.type) for each in columns] for columns in (schema.key, schema.order or ())]


@dataclass(frozen=True)
class _Rebuild:
    """One call. `known`: the generation to swap back; `None` to build a new one from the files alone."""

    client: PersistClient
    config: CollectionConfig
    request: Request
    say: Callable[[str], None]
    known: Kept | None = None

    @property
    def hidden(self) -> str:
        return hidden_of(self.config.name, REBUILD)

    @property
    def begins_as(self) -> str:
        """The shard that the new generation begins as; empty for the files alone."""
        return self.known.swap.kept if self.known else ""

    @property
    def _earlier(self) -> SourceFrontier | None:
        return self.known.state.sources.get(FILES) if self.known else None

    def _files_now(self, state: ShardState, earlier: SourceFrontier | None) -> InputsNow:
        return CollectionSource(self.client, self.config).files.inputs_now(state.sources.get(FILES), earlier)

    def kept(self, state: ShardState) -> Kept | None:
        """The generation to swap back. Raises `InvalidInput` if it does not exist, or does not fit the file.

        Says which of its files have changed since: a correction of them was made in a later generation alone.
        """
        number, name = self.request.back_to, self.config.name
        if number is None:
            return None
        kept = kept_generations(self.client, state)
        found = next((each for each in reversed(kept) if number in (-1, each.number)), None)
        if found is None:
            numbers = ", ".join(str(each.number) for each in kept) or "none"
            raise InvalidInput(
                f"{name} has no generation {'' if number < 0 else f'{number} '}to swap back; kept are: {numbers}"
                " (`persist generations`)"
            )
        try:
            found.state.schemas.placed(self.config.collection_schema())
        except SchemaMismatch as error:
            raise InvalidInput(
                f"the file of {name} does not fit generation {found.number}: write it as it was then, and try again."
                f" {error}"
            ) from None
        with suppress(ConfigError):  # other files
            replaced = self._files_now(found.state, None).replaced
            if replaced:
                self.say(
                    f"warning: {len(replaced)} files have changed since generation {found.number} consumed them:"
                    f" {show_names(sorted(replaced))}. It has their earlier records; `persist reprocess` corrects that"
                )
        return found

    def ended_before(self, state: ShardState) -> Rebuilt | None:
        """The newest swap, if that is what is asked for. Cleans up after a call that was killed after its swap.

        To swap back twice would undo the first; a rebuild is repeated if another commit or file has come since.
        """
        commit = next((each for each in state.commits if each.manifest_key == state.origin.life), None)
        if commit is None or not state.origin.swaps:
            return None
        back_to, checkpoint = self.request.back_to, commit.restored_from or ""
        theirs = alive(self.client, self.hidden, or_dropped=True)
        last = theirs.newest_commit if theirs else None
        is_left = last is not None and last.checkpoint_id == checkpoint
        if is_left or (theirs is not None and theirs.is_dropped):
            self.clean_up()
        is_same = back_to is not None or is_left or (commit == state.newest_commit and self._is_as_read(state))
        earlier = [each.kept for each in state.origin.swaps[:-1]]
        asked = [""] if back_to is None else earlier if back_to < 0 else earlier[back_to : back_to + 1]
        definitions = [definition_of(self.config, REBUILD, each) for each in asked]
        tokens = [swap_token(self.config.name, commit.lower, self.hidden, checkpoint, each) for each in definitions]
        if not is_same or commit.token not in tokens:
            return None
        now, number, kept = _contents(self.client, state), state.origin.generation, state.origin.swaps[-1].kept
        return Rebuilt(self.config.name, number, self.hidden, now, now, (), None, "", commit, kept, is_new=False)

    def definition(self, state: ShardState) -> str:
        """The writer of a rebuild: it begins again after an erasure, and after a restore, which has undone input."""
        life = f"{state.origin.life} {state.erased} {state.past.restored} {self.begins_as}"
        return definition_of(self.config, REBUILD, life)

    def begin(self, definition: str, turns: Sequence[Turn]) -> None:
        """Begin, or go on. Give up an earlier rebuild that does not fit: by another definition, or of files that have
        changed since."""
        client, hidden, known = self.client, self.hidden, self.known
        begun = alive(client, hidden, or_dropped=True)
        if begun is not None:
            if begun_by(client, begun, definition) and self._is_as_read(begun, turns):
                self.say(f"going on with the rebuild that reached {show_time(begun.upper.time)}")
                return
            self.say(
                "an earlier rebuild began with another definition or generation, or before an erasure or a restore, or"
                " its files have changed since: it is given up"
            )
            end(client, hidden)
        if known is not None and known.state.newest_commit is not None:
            fork(client, known.state.shard, known.state.newest_commit.checkpoint_id, hidden, writer=definition)

    def _is_as_read(self, state: ShardState, turns: Sequence[Turn] = ()) -> bool:
        try:
            return is_as_read(self.client, self.config, state, self._earlier, turns)
        except ConfigError:  # other files
            return False

    def gone(self, state: ShardState) -> tuple[str, ...]:
        """The consumed files that the generation cannot read. Raises `InvalidInput` unless that was asked for."""
        try:
            gone = self._files_now(state, self._earlier).gone
        except ConfigError:  # other files, which no run has consumed
            return ()
        if gone and not self.request.takes_back_gone:
            raise InvalidInput(
                f"{len(gone)} files that {self.config.name} has consumed are gone: {show_names(gone)}. The new"
                " generation would lack their records. Put them back; or, to do without them, add --take-back-gone (in"
                " the action: take_back_gone)."
                " Nothing was changed"
            )
        return tuple(sorted(gone))

    def turns(self, state: ShardState) -> list[Turn]:
        """The turns of a replay of all input, or since an earlier generation, as far as they are known."""
        start, known, name = Start(None, BEGINNING, None), self.known, self.config.name
        if known is not None:
            epoch = next(each.epoch for each in state.origin.branches if each.swap == known.swap) - 1
            start = Start(None, known.swap.upper - 1, self._earlier, epoch)
        try:
            return turns_of(self.client, self.config, state, start, warn=lambda: self.say(_UNKNOWN.format(name)))
        except ConfigError:
            self.say(f"warning: {name} reads other files than before: all are read")
            return [(state.upper.time or 0, lambda *_: False)]

    def reported(self, ours: ShardState, theirs: ShardState, gone: tuple[str, ...]) -> Rebuilt:
        found, why = None, ""
        try:
            sides = [Side(state, check_as_of(state, None)) for state in (ours, theirs)]
            found = compare(self.client, *sides, max_updates=self.request.max_updates)
        except InvalidInput as error:
            why = f"rows are not compared: {error}"
        before, after = (_contents(self.client, state) for state in (ours, theirs))
        return Rebuilt(ours.shard, ours.origin.generation + 1, theirs.shard, before, after, gone, found, why)

    def clean_up(self) -> None:
        cleaned_up(lambda: _clean_up(self.client, self.config, self.hidden), self.say)


_UNKNOWN = (
    "warning: {} is in log order, and the order in which it has consumed some of its files is no longer known: these"
    " are read in the order of their names"
)


def _checks(client: PersistClient, hidden: str) -> bool:
    """Raise `RunFailed` if fsck finds something."""
    found = fsck(client, hidden).violations
    if found:
        raise RunFailed(
            f"fsck found {len(found)} violations in {hidden}, for example {found[0].check}: {found[0].message}. Nothing"
            f" was swapped in. Give it up (`persist rebuild {hidden.partition('~')[0]} --give-up`), then try again"
        )
    return True


def _contents(client: PersistClient, state: ShardState) -> Contents:
    return Contents(None, None) if is_clipped(client, state) else Contents(*living(state.batches))


def _check_confirmed(found: Rebuilt, request: Request) -> None:
    look_at, kept = f"the report and at `persist snapshot {found.built}`", "; what was built is kept until then"
    if found.found is not None:
        what, total = f"the new generation changes {found.found.total} of {found.before}", found.found.total
        request.check(what, total, found.before.rows, look_at=look_at, kept=kept)
    elif not request.is_confirmed:
        raise InvalidInput(
            f"the new generation of {found.shard} has {found.after}; before {found.before}. Nothing was changed: look"
            f" at {look_at}, then {CONFIRM}{kept}"
        )


def _clean_up(client: PersistClient, config: CollectionConfig, hidden: str) -> None:
    publish_and_retain(client, config.name, config.retention)
    end(client, hidden)
