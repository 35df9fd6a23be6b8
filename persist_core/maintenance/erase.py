"""`persist erase`: remove keys from every stored object of a shard, history included (docs/erasing.md).

    list of erasures, by digest; batches described before are refused
      └─> retraction: living rows, errors, operator state ──one commit──> the newest contents do not hold the keys
            └─> files, manifests, operator state without the keys ──one compare-and-set──> no state names the old ones
                  └─> checkpoints of them ──> old files and garbage deleted, at the latest when leases end ──> record

Each step looks for what is left to do, so the same command goes on after a kill, and a second one changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from persist_core.checkpoint.checkpointer import load_verified
from persist_core.checkpoint.publish import publish_missing
from persist_core.checkpoint.recovery import recover_newest
from persist_core.contents import pieces
from persist_core.contents.batch import STASH_OPERATOR, BatchManifest, HollowBatch
from persist_core.contents.erased import ErasedKey, ErasedList, Erasure, highest
from persist_core.contents.key_range import Key
from persist_core.contents.operator_state import OperatorState, StateArtifact
from persist_core.contents.parts import errs_schema, updates_schema
from persist_core.errors import CorruptArtifact, InvalidInput, ReadTooSlow, RunFailed
from persist_core.frontier import Frontier
from persist_core.handles.client import PersistClient
from persist_core.handles.erased import erased_list
from persist_core.handles.load import load_manifest
from persist_core.handles.write import stage_manifest
from persist_core.keys import is_shard_name, owner_of, part_key
from persist_core.maintenance.erase_files import Rewriting, orders_of, rewrite_checkpoints
from persist_core.maintenance.erase_objects import (
    MAX_ROUNDS,
    delete,
    forks_of,
    hidden_shards,
    new_secret,
    schema_to_erase,
    store,
)
from persist_core.maintenance.hidden import alive
from persist_core.maintenance.sought import Sought
from persist_core.protocol.describe import describe_change
from persist_core.protocol.resolve import check_nothing_is_due, retractions
from persist_core.protocol.restore_point import restore_token
from persist_core.protocol.stages import append
from persist_core.schema import TIME
from persist_core.shard.eras import refuse_earlier
from persist_core.shard.history import VIEW
from persist_core.shard.replace import Replacements
from persist_core.shard.state import Commit, Committed, ShardState
from persist_core.sources.collection import in_time_from
from persist_core.time_text import MAX_TIME


@dataclass(frozen=True)
class Erased:
    """The result. `rows`: versions and errors removed from history; `files`: files that were rewritten without them;
    `deleted`: objects deleted. `waiting`: objects that a reader with a lease may still read; `readers`: these readers.

    `beyond`: what may hold the keys and is not reached, in words. `unread`: errors without a key that can be read.
    """

    shard: str
    status: str  # `erased`, `waiting`, `up_to_date`, `dry_run`
    digests: tuple[str, ...]
    rows: int
    files: int
    deleted: int
    waiting: int
    readers: tuple[str, ...]
    beyond: tuple[str, ...]
    unread: int


def look(client: PersistClient, shard: str, keys: Sequence[Key]) -> Erased:
    """Say how much an erasure would remove; writes nothing. Raises as `erase`."""
    task = _Erasing(client, shard, keys, "", "", "")
    state = client.state(shard)
    task.check(state)
    rewriting = task.rewriting(state, is_dry_run=True)
    task.rewritten(state, rewriting, state.upper.time)
    secret = ErasedList("") if state.erased is None else erased_list(client, state)
    digests = tuple(secret.digest(key, task.schema.key) for key in keys) if secret.secret else ()
    return Erased(shard, "dry_run", digests, rewriting.rows, rewriting.files, 0, 0, (), *task.beyond(state))


def erase(
    client: PersistClient, shard: str, keys: Sequence[Key], *, by: str, reason: str, writer: str = "erase"
) -> Erased:
    """Erase whole keys. Safe to repeat after any error.

    Raises `InvalidInput` for a view, a closed or moved shard, and if a fork shares files that hold a key; `RunFailed`
    if a record in the stash is due first, or other writers were faster all the time.
    """
    task = _Erasing(client, shard, keys, by, reason, writer)
    for _ in range(2):
        began = client.state(shard)
        try:
            return task.erase()
        except (CorruptArtifact, ReadTooSlow):
            if client.state(shard).erased == began.erased:  # else another erasure may have deleted what this one reads
                raise
    return task.erase()


class _Erasing:
    def __init__(
        self, client: PersistClient, shard: str, keys: Sequence[Key], by: str, reason: str, writer: str
    ) -> None:
        self._client, self._shard, self._by, self._reason, self._writer = client, shard, by, reason, writer
        self.schema = schema_to_erase(client.state(shard))
        if any(len(key) != len(self.schema.key) for key in keys) or not keys:
            names = ", ".join(self.schema.key_names)
            raise InvalidInput(f"found keys {keys}; expected at least one, each with a value for {names}")
        self.sought = Sought.of(keys, self.schema.key)
        self._keys = tuple(keys)
        self.replaced: set[str] = set()  # manifests
        owners = {owner_of(batch.manifest_key) for batch in client.state(shard).batches}
        self._origins = {each for each in owners - {shard} if is_shard_name(each)}  # of a fork

    def erase(self) -> Erased:
        """Do what is left."""
        self.check(self._client.state(self._shard))
        self.retract()
        for name in hidden_shards(self._client, self._shard):  # what is written without the list is not accepted
            self._client.machine.apply(name, refuse_earlier, create=True)
        self.check(self._client.state(self._shard))  # a fork that was made meanwhile; from here on none can be
        self.rewrite()
        rewrite_checkpoints(self._client, self.rewriting(self._client.state(self._shard)))
        return self.end(*delete(self._client, self._shard, self.sought, self.replaced))

    def check(self, state: ShardState) -> None:
        """Raise `InvalidInput` for a shard that is closed or was moved, and for forks that share files with a key."""
        if state.upper.time is None or state.upper.time == MAX_TIME:
            raise InvalidInput(
                f"shard {self._shard} is closed (upper {state.upper}): it accepts no commits, so nothing was erased."
                f" Drop it (`persist drop {self._shard}`); then, if it is needed, remove the key's records from the"
                f" source, and load it again (`persist run --recreate {self._shard}`)"
            )
        state.origin.check_not_moved(self._shard)
        hidden = hidden_shards(self._client, self._shard)
        for name in hidden:
            if alive(self._client, name):
                raise InvalidInput(
                    f"{name} holds contents of {self._shard}: a reprocess that has not ended, or another generation."
                    f" End it or give it up (`persist reprocess` or `persist rebuild {self._shard} --give-up`;"
                    " `--generation N` for an earlier one), then erase"
                )
        looking = self.rewriting(state, is_dry_run=True)
        for fork in forks_of(self._client, self._shard):
            for batch in fork.batches:
                if owner_of(batch.manifest_key) not in (self._shard, *hidden):
                    continue
                manifest = load_manifest(self._client.blob, batch.manifest_key)
                if looking.manifest(manifest, batch, is_commit=False) is not None:
                    raise InvalidInput(
                        f"fork {fork.shard} shares files of {self._shard} that hold a key. Erase it there first"
                        f" (`persist erase {fork.shard} ...`), or drop the fork; nothing of {self._shard} was deleted"
                    )

    def rewriting(self, state: ShardState, *, is_dry_run: bool = False) -> Rewriting:
        attempt = self._client.ids.uuid7()
        return Rewriting(self._client, self._shard, attempt, state.era, self.sought, is_dry_run)

    def retract(self) -> None:
        """Record the erasure, then commit that the keys are gone, if anything of the newest contents says otherwise."""
        for state in self._rounds():
            looking = self.rewriting(state, is_dry_run=True)
            oks, errs, history = self._living(state)
            chains = recover_newest(self._client, state, verified_bytes=None).operators
            for name, chain in chains.items():
                self._operator(looking, name, chain)
            is_living = len(oks) + len(errs) + len(looking.removed) > 0
            if is_living:
                check_nothing_is_due(self._client, state, chains.get(STASH_OPERATOR, ()))
            if self._record(state, history, looking.removed, is_living) and (
                not is_living or self._commit(state, oks, errs, chains)
            ):
                publish_missing(self._client, self._client.state(self._shard))
                return

    def _living(self, state: ShardState) -> tuple[pa.Table, pa.Table, list[pa.Table]]:
        """Retractions of the rows and errors of the keys; and their history, if it has orders."""
        assert state.upper.time is not None
        reader, ranges, time = self._client.open_reader(self._shard), self.sought.ranges, state.upper.time
        if not state.batches:
            return updates_schema(self.schema).empty_table(), errs_schema(self.schema).empty_table(), []
        rows = reader.snapshot_of(state, keys=ranges)
        errs = reader.errors()
        errs = errs.filter(self.sought.rows_of(errs))
        history = [
            reader.read(
                state.batches,
                updates_schema(self.schema),
                lambda batch, manifest: pieces.within(pieces.all_oks(batch, manifest), ranges),
            ),
            reader.read(state.batches, errs_schema(self.schema), pieces.all_errs),
        ]
        known = [table.filter(self.sought.rows_of(table)) for table in history] if self.schema.order else []
        return (
            retractions(rows, updates_schema(self.schema), time),
            retractions(errs, errs_schema(self.schema), time),
            known,
        )

    def _operator(self, rewriting: Rewriting, name: str, chain: Sequence[StateArtifact]) -> OperatorState | None:
        """The whole state without the keys; a delta without files if it has none of them, `None` if nothing is left."""
        found = [(each, rewriting.artifact(name, each)) for each in chain]
        if all(new is None for _, new in found):
            return OperatorState(is_delta=True, artifacts=())
        kept: list[StateArtifact] = []
        for old, new in found:
            if new is None and old.attempt is None and not rewriting.is_dry_run:  # a checkpoint's, which may be deleted
                data = load_verified(self._client.blob, old.key, old.sha256)
                key = part_key(self._shard, rewriting.attempt, f"{name}-copy", len(kept))
                self._client.blob.set(key, data)
                new = replace(old, key=key)
            each = replace(old, is_carried=True) if new is None else replace(new, is_carried=False)
            if each.rows != 0:
                kept.append(replace(each, partition_id=len(kept)))
        return OperatorState(is_delta=False, artifacts=tuple(kept)) if kept else None

    def _record(
        self, state: ShardState, history: Sequence[pa.Table], waiting: Sequence[pa.Table], is_living: bool
    ) -> bool:
        """Put the keys on the list, and refuse what was described before. False if another was faster.

        `history` and `waiting`: the removed rows, and the removed records of operator state.
        """
        known = erased_list(self._client, state) if state.erased else ErasedList(new_secret(self._client))
        place, is_said = self._place(known), self.sought.is_said
        is_silent = not is_said([*(each.reason for each in state.released), *(each.reason for each in known.erasures)])
        if place is not None and not is_living and is_silent and self._is_covered(state, known.erasures[place]):
            return True
        silent = tuple(replace(each, reason="") if is_said(each.reason) else each for each in known.erasures)
        known = replace(known, erasures=silent)
        assert state.upper.time is not None
        upper, begun = state.upper.time, in_time_from(self._client, state)
        keys = []
        for key in self._keys:
            one = Sought.of([key], self.schema.key)
            rows, later = _rows_of(history, one), _rows_of(waiting, one)
            orders = highest(orders_of([*rows, *later], self.schema), self.schema)
            time = None if orders else max(upper if begun is None else begun, _until(later))
            keys.append(ErasedKey(known.digest(key, self.schema.key), time, orders))
        if place is not None and known.erasures[place].ended_ms is not None:
            place = None  # of new records since: another request
        if place is None:
            types = tuple(column.type for column in self.schema.order or ())
            now_ms = self._client.clock.now_ms()
            erasure = Erasure(self._by, self._reason, now_ms, tuple(keys), upper=upper, order_types=types)
        else:
            before = {each.digest: each for each in known.erasures[place].keys}
            merged = tuple(key.later(before.get(key.digest)) for key in keys)
            erasure = replace(known.erasures[place], keys=merged, upper=upper)
        return store(self._client, state, known.changed(erasure, place), refuses=True, is_unsaid=is_said)

    def _is_covered(self, state: ShardState, erasure: Erasure) -> bool:
        """True if nothing of the keys has come since. What came and was deleted may come again, so it is erased too."""
        if erasure.ended_ms is None and state.upper <= Frontier(erasure.upper + 1):  # killed, perhaps after its commit
            return True
        return not self.rewritten(state, self.rewriting(state, is_dry_run=True), None)

    def _place(self, known: ErasedList) -> int | None:
        digests = {known.digest(key, self.schema.key) for key in self._keys}
        found = [place for place, each in enumerate(known.erasures) if each.digests == digests]
        return found[-1] if found else None

    def _commit(
        self, began: ShardState, oks: pa.Table, errs: pa.Table, chains: Mapping[str, tuple[StateArtifact, ...]]
    ) -> bool:
        state = self._client.state(self._shard)  # whose era has begun since: nothing was staged before
        if state.upper != began.upper or state.upper.time is None:
            return False
        rewriting = self.rewriting(state)
        attempt = rewriting.attempt
        found = {name: self._operator(rewriting, name, chain) for name, chain in chains.items()}
        left = {name: each for name, each in found.items() if each is not None}
        token = restore_token("erase", self._shard, state.upper.time, attempt)
        description = describe_change(self._client, state, token, writer=self._writer, operators=chains)
        writer = self._client.open_writer(self._shard)
        key = writer.stage(description, self.schema, attempt, oks, errs, operators=left)
        return isinstance(append(self._client, description, key), Committed)

    def rewrite(self) -> None:
        """Put manifests without the keys in place of all that hold one, until none does."""
        for state in self._rounds():
            rewriting = self.rewriting(state)
            known = erased_list(self._client, state)
            place = self._place(known)
            assert place is not None
            erasure = known.erasures[place]
            replaced = self.rewritten(state, rewriting, erasure.upper)
            if not replaced:
                return
            erasure = replace(erasure, rows=erasure.rows + rewriting.rows, files=erasure.files + rewriting.files)
            if store(self._client, state, known.changed(erasure, place), replaced=replaced):
                self.replaced |= set(replaced)

    def rewritten(self, state: ShardState, rewriting: Rewriting, upper: int | None) -> Replacements:
        """Stage what is to replace manifests of the state. Counts no file of the erasure's own commit, at `upper`."""
        batches: dict[str, HollowBatch] = {each.manifest_key: each for each in state.batches}
        named: dict[str, HollowBatch | Commit] = {**batches}
        named.update({each.manifest_key: each for each in state.commits if each.manifest_key not in batches})
        found: dict[str, tuple[str, BatchManifest]] = {}
        commits = {each.manifest_key for each in state.commits}
        for key, each in named.items():  # batches first: they say whether there were errs
            batch = batches.get(key)
            manifest = self._client.manifest(each) if batch is None else self._client.manifests([batch])[0]
            files = rewriting.files
            new = rewriting.manifest(manifest, batch, is_commit=key in commits)
            if each.lower == upper:
                rewriting.files = files
            if new is not None:
                attempt = self._client.ids.uuid7()
                stored = "" if rewriting.is_dry_run else stage_manifest(self._client.blob, new, attempt)
                found[key] = stored, new
        return found

    def end(self, deleted: int, waiting: tuple[str, ...], readers: tuple[str, ...]) -> Erased:
        """Write the record, and say what was done."""
        for state in self._rounds():
            known = erased_list(self._client, state)
            place = self._place(known)
            assert place is not None
            before = known.erasures[place]
            is_new = before.ended_ms is None or bool(deleted) or set(before.waiting) != set(waiting)
            era = state.era if waiting else 0
            after = replace(before, waiting=waiting, era=era, ended_ms=before.ended_ms or self._client.clock.now_ms())
            if not is_new or store(self._client, state, known.changed(after, place)):
                break
        status = "waiting" if waiting else "erased" if is_new else "up_to_date"
        digests = tuple(each.digest for each in after.keys)
        counts = (after.rows, after.files, deleted, len(waiting))
        return Erased(self._shard, status, digests, *counts, readers, *self.beyond(state))

    def beyond(self, state: ShardState) -> tuple[tuple[str, ...], int]:
        """Name the places that may hold the keys and are not reached; and count the errors without a readable key."""
        forks = {fork.shard for fork in forks_of(self._client, self._shard) if is_shard_name(fork.shard)}
        related = sorted(forks | self._origins)
        unread = self._client.open_reader(self._shard).errors() if state.batches else None
        is_unread = None if unread is None else pc.is_null(unread[self.schema.key_names[0]])
        count = 0 if is_unread is None else pc.sum(is_unread).as_py() or 0
        named = (
            *(
                f"view {each}: its history holds what came from the keys. Build it again: `persist drop {each} --yes"
                f" --force`, then `persist run {each} --recreate`"
                for each in _views_of(self._client, state)
            ),
            *(f"{each}, which shares a past with {self._shard}: {self._remedy(each)}" for each in related),
            *([f"{count} errors whose keys could not be decoded: `persist errors {self._shard}`"] if count else []),
            "attempts that still run: GC deletes what they stage; look again with --verify",
            "names of input files, which are kept: a name must not hold personal data",
            "the source, backups, old versions in a bucket, copies of the location, exports, logs, notices",
        )
        return named, count

    def _remedy(self, related: str) -> str:
        state = self._client.machine.fetch(related)
        if state is None or state.schema is not None:
            return "erase there too"
        return f"it has no data, and GC deletes its files once merges of {self._shard} have replaced them"

    def _rounds(self) -> Iterator[ShardState]:
        """The newest state, for each try. Raises `RunFailed` after the last one."""
        for _ in range(MAX_ROUNDS):
            yield self._client.state(self._shard)
        raise RunFailed(f"other writers of {self._shard} were faster {MAX_ROUNDS} times; run the command again")


def _views_of(client: PersistClient, state: ShardState) -> list[str]:
    """The views that read the shard, and the views that read these: each after the views that it reads."""
    ended: list[str] = []
    seen: set[str] = set()

    def visit(state: ShardState | None) -> None:
        holders = sorted(each.removeprefix(VIEW) for each in state.holds if each.startswith(VIEW)) if state else []
        for view in reversed(holders):
            if view not in seen:
                seen.add(view)
                visit(client.machine.fetch(view))
                ended.append(view)

    visit(state)
    return ended[::-1]


def _rows_of(tables: Sequence[pa.Table], sought: Sought) -> list[pa.Table]:
    return [table.filter(sought.rows_of(table)) for table in tables]


def _until(removed: Sequence[pa.Table]) -> int:
    """The time before which all removed records were, whether they had acted or still waited for it."""
    newest = [pc.max(table[TIME]).as_py() for table in removed if TIME in table.column_names]
    return max((time + 1 for time in newest if time is not None), default=0)
