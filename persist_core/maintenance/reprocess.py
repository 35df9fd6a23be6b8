"""`persist reprocess`: inputs that a collection has consumed are replayed as they are now; the difference is committed.

    start_for ─> fork in secret ─> replay ─> plan_correction ─> report ─> correct ─> the fork is given up
                     (a killed one goes on here)                   └ a lost race: replay what came meanwhile

The report comes before the commit, and a person confirms what changes more rows than `limits.max_changed`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from persist_core.checkpoint.publish import publish_missing
from persist_core.config.collection import FILES, CollectionConfig
from persist_core.contents.derived import Correction
from persist_core.errors import InvalidInput, PersistError, RunFailed
from persist_core.frontier import Frontier
from persist_core.handles.client import PersistClient
from persist_core.maintenance.fill import Wishes, fill
from persist_core.maintenance.hidden import alive, begun_by, cleaned_up, definition_of, end, hidden_of
from persist_core.protocol.correct import CorrectionPlan, correct, plan_correction
from persist_core.protocol.delta import BEGINNING, check_size
from persist_core.protocol.difference import Differences, differences
from persist_core.protocol.fork import fork, fork_token
from persist_core.protocol.replay import (
    Start,
    Turn,
    WriteOf,
    is_as_read,
    replay,
    replay_config,
    start_for,
    starts,
    turns_of,
)
from persist_core.protocol.run import MAX_CONFLICTS
from persist_core.row_text import show_count, show_names
from persist_core.shard.state import Commit, Committed, ShardState
from persist_core.sources.collection import CollectionSource
from persist_core.sources.files import FileSource
from persist_core.time_text import DAY_MS, LAST_DAY, day_of, parse_time, show_time

LEASE_MS = DAY_MS  # on the shard's history from the start on; a replay that was killed holds it no longer


@dataclass(frozen=True)
class Request(Wishes):
    """A correction that a user asks for: inputs from `from_ms` on. `end_ms`: none of a later date may differ."""

    from_ms: int
    end_ms: int | None = None
    reason: str = ""


def request_of(config: CollectionConfig, *, begin: str, through: str | None, now_ms: int, **options: Any) -> Request:
    """A request in a user's words: days as text, in the collection's time zone. `options`: fields of the request."""
    read = partial(parse_time, zone=config.timezone, now_ms=now_ms, counters=False)
    first = read(begin, what="from")
    last = None if through is None else read(through, what="through")
    end_ms = None if last is None else day_of(min(last, LAST_DAY), config.timezone, moved_by=1)
    if end_ms is not None and end_ms <= first:
        raise InvalidInput(f"--through {through} ends before --from {begin}; expected the same day or a later one")
    return Request(**{"from_ms": first, "end_ms": end_ms, "max_changed": config.limits.max_changed, **options})


@dataclass(frozen=True)
class Reprocessed:
    """The report: which files differ from what was consumed, and which of the shard's `rows` rows (see
    `CorrectionPlan`). `commit` is `None` if there was nothing to correct, or only looked at (`is_needed`: if there is,
    orders of rows included)."""

    shard: str
    start: Start
    replaced: tuple[str, ...]
    gone: tuple[str, ...]
    new: tuple[str, ...]
    found: Differences
    rows: int | None
    is_needed: bool
    commit: Commit | None = None


def reprocess(
    client: PersistClient,
    config: CollectionConfig,
    request: Request,
    *,
    write: WriteOf,
    writer: str,
    say: Callable[[str], None],
    report: Callable[[Reprocessed], None] = lambda _: None,
) -> Reprocessed:
    """Correct the collection's shard. `report` gets the report before anything is committed.

    A kill at any point, or two that run concurrently, lose nothing: trying again goes on. Raises `InvalidInput` for
    files that are gone or dated later than the request says, or for more changes than it allows, unless confirmed;
    `RunFailed` if other writers keep winning; and what a run raises.
    """
    state = client.state(config.name)
    state.origin.check_not_moved(config.name)
    state.schemas.placed(config.collection_schema())
    start = start_for(client, config, state, request.from_ms)
    task = _Reprocess(client, config, request, start, say)
    where = "the beginning" if start.checkpoint_id is None else f"checkpoint {start.checkpoint_id}"
    say(f"replaying {config.name} from {where} (upper {show_time(start.upper)}) up to {show_time(state.upper.time)}")
    hidden = replay_config(config)
    with task.history_held() as keep:
        for _ in range(MAX_CONFLICTS):
            keep()
            began, state = state, client.state(config.name)
            if state.origin.life != began.origin.life or state.past.restored > began.past.restored:
                raise RunFailed(
                    f"{config.name} was rebuilt, restored or dropped in the meantime; nothing was corrected. Try again"
                )
            task.check_inputs(state)
            turns = turns_of(client, config, state, start)
            # Not by a replay from before a restore: it may have consumed what this has undone.
            definition = definition_of(config, "reprocess", f"{state.origin.life} {state.past.restored}")
            life = task.fork_of(definition, turns)
            with task.alone(life):
                replay(client, hidden, turns, write=write, writer=writer, say=say, on_round=keep)
                if start.after != BEGINNING and state.past.filled > start.upper:  # no file says that
                    fill(client, hidden, Wishes(is_confirmed=True), write=write, writer=writer, say=say)
            ours, theirs = client.state(config.name), client.state(hidden.name)
            if ours.origin.life != state.origin.life:
                continue
            if theirs.origin.life != life:
                raise task.ended()
            if ours.newest_commit != state.newest_commit:  # what came meanwhile, a restore or any other change too
                continue
            plan = plan_correction(client, ours, theirs, start, max_updates=request.max_updates)
            found = task.reported(plan)
            report(found)
            if request.is_dry_run:
                return found
            if not found.is_needed:
                publish_missing(client, ours)  # of a call that was killed after its commit
                cleaned_up(lambda: end(client, hidden.name), say)
                return found
            _check_confirmed(found, request)
            correction = Correction(request.from_ms, request.end_ms, start.upper, request.reason)
            result = correct(client, plan, correction, writer=writer)
            if isinstance(result, Committed):
                cleaned_up(lambda: end(client, hidden.name), say)
                return replace(found, commit=result.commit)
            say(f"{result.record}; replaying what came meanwhile")
    raise RunFailed(
        f"shard {config.name}: lost {MAX_CONFLICTS} appends to other writers; nothing was corrected. Pause its DAG,"
        " then try again: what was replayed is kept"
    )


@dataclass(frozen=True)
class _Reprocess:
    client: PersistClient
    config: CollectionConfig
    request: Request
    start: Start
    say: Callable[[str], None]

    @property
    def _files(self) -> FileSource:
        return CollectionSource(self.client, self.config).files

    @contextmanager
    def history_held(self) -> Iterator[Callable[[], object]]:
        """Keep the shard's history since the start, for `LEASE_MS` after each call of what this yields.

        A lease, because a process that is killed ends no hold.
        """
        if self.start.after == BEGINNING:  # needs what the shard holds now, and nothing before
            yield lambda: None
            return
        lease = self.client.open_leased_reader(self.config.name, lease_ms=LEASE_MS)
        try:
            lease.heartbeat(Frontier(self.start.after))
            yield lease.heartbeat
        finally:
            cleaned_up(lease.expire, self.say)

    def fork_of(self, definition: str, turns: Sequence[Turn]) -> str:
        """The life of the fork that the replay goes on in, made if need be; one that does not fit is given up."""
        shard, hidden = self.config.name, hidden_of(self.config.name)
        known = self.client.machine.fetch(hidden)
        if known is not None and (known.commits or known.is_dropped):
            if self._goes_on(known, definition, turns):
                self.say(f"going on with the replay that reached {show_time(known.upper.time)}")
                return known.origin.life or ""
            self.say("an earlier replay began elsewhere, or its files have changed since: it is given up")
            end(self.client, hidden)
        try:
            fork(self.client, shard, self.start.checkpoint_id, hidden, writer=definition)
        except InvalidInput as error:
            if alive(self.client, hidden) is None:
                raise
            raise RunFailed(f"another reprocess of {shard} has just begun; try again when it has ended") from error
        return self.client.state(hidden).origin.life or ""

    @contextmanager
    def alone(self, life: str) -> Iterator[None]:
        """An error of the body is that the fork of this life was given up, if it was."""
        try:
            yield
        except PersistError as error:
            theirs = alive(self.client, hidden_of(self.config.name))
            if theirs is None or theirs.origin.life != life:
                raise self.ended() from error
            raise

    def ended(self) -> RunFailed:
        name = self.config.name
        return RunFailed(
            f"another reprocess of {name} has ended this one, or it was given up; try again if {name} is not corrected"
        )

    def _goes_on(self, known: ShardState, definition: str, turns: Sequence[Turn]) -> bool:
        """True if the fork began at this start, by this file, and has consumed the files that there are, as they
        are."""
        first, shard = begun_by(self.client, known, definition), self.config.name
        if first is None or first.token != fork_token(shard, self.start.checkpoint_id, known.shard):
            return False
        ours = [each.schema.to_json() for each in self.client.state(shard).schemas.versions]
        theirs = [each.schema.to_json() for each in known.schemas.versions]
        is_of_shard = theirs[: len(ours)] == ours
        return is_of_shard and is_as_read(self.client, self.config, known, self.start.progress, turns)

    def check_inputs(self, state: ShardState) -> None:
        """Raise `InvalidInput` for files that are gone or dated later than the request says, and for more changes since
        the start than `plan_correction` will read: before the replay, not after it."""
        reader = self.client.open_reader(state.shard)
        check_size(reader, state, self.start.after, self.request.max_updates, show_time(self.start.upper))
        now = self._files.inputs_now(state.sources.get(FILES), self.start.progress)
        self._check_end({**now.replaced, **now.gone})
        if now.gone and not self.request.takes_back_gone:
            raise InvalidInput(
                f"{len(now.gone)} files that {self.config.name} has consumed since {show_time(self.start.upper)} are"
                f" gone: {show_names(now.gone)}. Put them back; or, if their records are to be undone, add"
                f" --take-back-gone (in the action: take_back_gone){self._oldest_without(now.gone, state)}. Nothing was"
                " changed"
            )

    def _oldest_without(self, gone: Iterable[str], state: ShardState) -> str:
        files = self._files
        whole = None
        for each in starts(self.client, state):
            if not set(gone) <= files.consumed(each.progress, like=state.sources.get(FILES)).keys():
                break
            whole = each
        if whole is None or whole.upper >= (state.upper.time or 0):
            return ""  # no later point is kept, or a correction went back behind it
        return f"; or begin later: from {show_time(whole.upper)} on no file is gone"

    def _check_end(self, differing: Mapping[str, int | None]) -> None:
        end_ms = self.request.end_ms
        if end_ms is None:
            return
        later = [name for name, date_ms in differing.items() if date_ms is None or date_ms >= end_ms]
        if later:
            raise InvalidInput(
                f"{len(later)} files that differ from what was consumed are not dated before {show_time(end_ms)}:"
                f" {show_names(later)}. The replay reads them too: leave out --through, or give a later day. Nothing"
                " was changed"
            )

    def reported(self, plan: CorrectionPlan) -> Reprocessed:
        files = self._files
        began, replayed = (state.sources.get(FILES) for state in (plan.began, plan.fork))
        ours, theirs = (files.consumed(each, like=replayed) for each in (began, replayed))
        new = {name: theirs[name][2] for name in theirs.keys() - ours.keys()}
        self._check_end(new)
        replaced = files.replaced(began, replayed)
        gone = sorted(ours.keys() - theirs.keys())
        if gone and not self.request.takes_back_gone:  # they were there before the replay
            raise RunFailed(
                f"the replay of {self.config.name} has not found {len(gone)} files that were there when it began:"
                f" {show_names(gone)}. Nothing was changed. Try again"
            )
        return Reprocessed(
            self.config.name,
            self.start,
            replaced=tuple(replaced),
            gone=tuple(gone),
            new=tuple(sorted(new)),
            is_needed=bool(len(plan.updates.oks) or len(plan.updates.errs) or replaced or gone or new),
            found=differences(plan.updates, plan.schema),
            rows=plan.rows,
        )


def _check_confirmed(found: Reprocessed, request: Request) -> None:
    total, errs = found.found.total, max(found.found.errs_added, found.found.errs_removed)
    also = f" and {errs} errors" if errs else ""
    what = f"the correction changes {total - errs} of {show_count(found.rows)}{also} of {found.shard}"
    request.check(what, total, found.rows, kept="; what was replayed is kept until then")
