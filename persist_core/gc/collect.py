"""One call of GC for one shard: begin an era if it is time, mark in it, sweep the lists of eras that are over.

    era   1 mark ──> 2 mark ──> 3 mark ──> 4 mark ──> 5 mark ──> sweep the list of 1, 6 mark     (──> is a grace)
          └──── batches described in era 1 are accepted ─┘└ grace ┘

Only the store's own clock is read, by the times of the lists themselves: an era ends a grace after its list was stored.
Each era has a list, if only an empty one. Lists are swept only a grace after an era began in which batches of theirs
were refused from its beginning. So there is a grace for readers of the last such batch, however that era was begun: an
erasure may begin one at any time, and so may GC of another shard, to give up a fork (`gc.needs`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from persist_core.checkpoint.publish import VERSIONS_KEPT
from persist_core.checkpoint.recovery import check_not_undone
from persist_core.errors import CorruptArtifact, InvalidInput
from persist_core.gc.needs import Needs
from persist_core.gc.sweep import Garbage, GarbageList, Swept, abort_uploads, delete_all, find_garbage, store, sweep
from persist_core.handles.client import PersistClient
from persist_core.keys import collectable_prefixes, gc_clock_key, gc_era_prefix, gc_prefix
from persist_core.location.blob import Blob
from persist_core.shard.eras import begin_era
from persist_core.shard.state import ShardState

GRACE_MS = 24 * 3_600_000  # an era: the least time that garbage stays for readers without a lease
INTENT_MS = 3 * GRACE_MS  # a description older than this may be refused: longer than the longest dag run
MAX_TRIES = 3  # each but the first because the shard was dropped, or collected by another process, in the meantime
MAX_KEYS = 100_000  # deleted by one call: some minutes on S3


@dataclass(frozen=True)
class Collected:
    """The result of one call for a shard. Sizes are in bytes.

    `marked` keys were found to be garbage in `era`; `waiting` keys are on lists whose eras are not over. `kept` keys
    were on a list that was swept, and are needed. `is_done` is False if `max_keys` left some of them.
    `aborted_uploads` were begun longer than the staging intent ago, and never completed.
    """

    shard: str
    era: int
    marked: int
    marked_bytes: int
    deleted: int
    deleted_bytes: int
    kept: int
    waiting: int
    waiting_bytes: int
    is_done: bool
    aborted_uploads: int = 0

    @property
    def did(self) -> str:
        """The result in words; empty if nothing was done."""
        marked = f"found {self.marked} unneeded files ({self.marked_bytes} bytes)" if self.marked else ""
        deleted = f"deleted {self.deleted} files ({self.deleted_bytes} bytes)" if self.deleted else ""
        aborted = f"aborted {self.aborted_uploads} unfinished uploads" if self.aborted_uploads else ""
        return "; ".join(filter(None, (marked, deleted, aborted)))


@dataclass(frozen=True)
class _Stored:
    key: str
    listed: GarbageList
    stored_ms: int = 0


def collect(
    client: PersistClient,
    shard: str,
    *,
    grace_ms: int = GRACE_MS,
    intent_ms: int = INTENT_MS,
    max_keys: int = MAX_KEYS,
    needs: Needs | None = None,
) -> Collected:
    """Do what is due. Safe at any time, beside anything else, and to repeat after a crash at any point.

    `needs` decides what is needed. Raises `ShardNotFound`; `Corruption` if an object that decides this is damaged, or
    if the state has lost commits: nothing is deleted then; `InvalidInput` for a grace that is longer than the intent,
    and for two stores that are not of one location.
    """
    client.pair.check()
    for _ in range(MAX_TRIES - 1):
        began = client.state(shard)
        try:
            return _collect(client, shard, grace_ms, intent_ms, max_keys, needs)
        except CorruptArtifact:  # what that state names may be gone if an era was given up since: another GC, a drop
            if client.state(shard).oldest_era == began.oldest_era:
                raise
    return _collect(client, shard, grace_ms, intent_ms, max_keys, needs)


def _collect(
    client: PersistClient, shard: str, grace_ms: int, intent_ms: int, max_keys: int, needs: Needs | None
) -> Collected:
    kept_eras = _eras_of(intent_ms, grace_ms)
    needs = needs or Needs(client, shard)
    state, lists, now_ms = client.state(shard), *_lists(client.blob, shard)
    check_not_undone(client, state)
    is_marked = any(each.listed.era == state.era for each in lists)
    aged = max((each.listed.era for each in lists if now_ms - each.stored_ms >= grace_ms), default=-1)
    swept, lists, is_done = _sweep(client, state, lists, needs, max_keys, kept_eras, aged)
    if is_done and aged == state.era:  # it is over
        state, _ = client.machine.apply(shard, lambda found: begin_era(found, after=aged, kept=kept_eras))
        client.machine.forget(state, kept=1 if state.is_dropped else VERSIONS_KEPT)  # no reader needs the others
        is_marked = False
    marked = [] if is_marked else _mark(client, state, needs, lists)
    aborted = 0
    if marked:  # once an era
        lists, _ = _lists(client.blob, shard)
        aborted = len(list(abort_uploads(client.blob, shard, begun_before_ms=now_ms - intent_ms)))
    waiting = [each for stored in lists for each in stored.listed.garbage]
    found = [each for stored in marked for each in stored.listed.garbage]
    collected = Collected(
        shard,
        state.era,
        marked=len(found),
        marked_bytes=sum(each.size_bytes for each in found),
        deleted=swept.deleted,
        deleted_bytes=swept.size_bytes,
        kept=swept.kept,
        waiting=len(waiting),
        waiting_bytes=sum(each.size_bytes for each in waiting),
        is_done=is_done,
        aborted_uploads=aborted,
    )
    if state.is_dropped and not collected.waiting and collected.is_done:  # nothing is left but empty lists
        delete_all(client, [entry.key for entry in client.blob.list_keys_and_metadata(gc_prefix(shard))])
    return collected


def due_since_ms(client: PersistClient, state: ShardState, *, grace_ms: int) -> int | None:
    """How long `collect` has been due, by this process's clock; negative before that, `None` if nothing was committed.

    Costs one listing of the era's lists, or of a dropped shard's files.
    """
    if state.is_dropped:
        listings = (client.blob.list_keys_and_metadata(prefix) for prefix in collectable_prefixes(state.shard))
        return 0 if any(next(iter(each), None) for each in listings) else None
    lists = client.blob.list_keys_and_metadata(gc_era_prefix(state.shard, state.era))
    begun = [entry.modified_ms for entry in lists] or [commit.committed_ms for commit in state.commits[:1]]
    return client.clock.now_ms() - min(begun) - grace_ms if begun else None


def garbage(client: PersistClient, shard: str) -> Iterator[Garbage]:
    """The keys that a list would name now. Changes nothing."""
    for listed in find_garbage(client, shard, Needs(client, shard), known=()):
        yield from listed.garbage


def _eras_of(intent_ms: int, grace_ms: int) -> int:
    """How many eras before the newest one last at least as long as the intent."""
    if not 0 <= grace_ms <= intent_ms or (grace_ms == 0 and intent_ms > 0):
        raise InvalidInput(
            f"grace {grace_ms} ms and staging intent {intent_ms} ms; expected 0 < grace <= intent, or both 0"
        )
    return -(-intent_ms // grace_ms) if grace_ms else 0


def _lists(blob: Blob, shard: str) -> tuple[list[_Stored], int]:
    clock = gc_clock_key(shard)
    blob.set(clock, b"")
    lists, now_ms = [], 0
    for entry in list(blob.list_keys_and_metadata(gc_prefix(shard))):
        if entry.key == clock:
            now_ms = entry.modified_ms
        elif (listed := _read(blob, entry.key)) is not None:
            lists.append(_Stored(entry.key, listed, entry.modified_ms))
    return lists, now_ms


def _mark(client: PersistClient, state: ShardState, needs: Needs, lists: list[_Stored]) -> list[_Stored]:
    """Store lists of what is garbage now and on no list yet, at least one. Of a dropped shard nothing is to be left.

    First, what is needed again leaves the older lists: an attempt may be appended after it was listed, and its files
    are then to stay for readers as long as any others. So a list of this era means that the older ones are up to date.
    """
    needed = needs.of(client.state(state.shard))
    lists = [_without(client, each, needed) for each in lists]
    known = {each.key for stored in lists for each in stored.listed.garbage}
    marked = [_Stored(store(client, listed), listed) for listed in find_garbage(client, state.shard, needs, known)]
    if not marked and (lists or not state.is_dropped):
        empty = GarbageList(state.shard, state.era, state.seqno, client.clock.now_ms(), ())
        marked = [_Stored(store(client, empty), empty)]
    return marked


def _without(client: PersistClient, stored: _Stored, needed: Collection[str]) -> _Stored:
    """The list without keys that are needed. It is stored under another key: stored bytes are never replaced."""
    garbage = tuple(each for each in stored.listed.garbage if each.key not in needed)
    if garbage == stored.listed.garbage:
        return stored
    listed = replace(stored.listed, garbage=garbage)
    key = store(client, listed)
    client.blob.delete(stored.key)
    return _Stored(key, listed)


def _sweep(
    client: PersistClient,
    state: ShardState,
    lists: list[_Stored],
    needs: Needs,
    max_keys: int,
    kept_eras: int,
    aged: int,
) -> tuple[Swept, list[_Stored], bool]:
    """Sweep the lists of eras that were refused from the beginning of era `aged`, the newest that began a grace ago,
    and that are over for readers with a lease. Returns the lists that are left, and whether none was to be swept.

    What was listed in era `e` could be appended, and so be read, until era `e + kept_eras` was over.
    """
    refused = state.oldest_era if aged == state.era else min(state.oldest_era, aged - kept_eras)
    over = min([refused, *(lease.era - kept_eras for lease in state.leases.values())])
    due = [stored for stored in lists if stored.listed.era < over]
    if not due:
        return Swept(0, 0, 0, 0), lists, True
    swept = sweep(client, state.shard, [stored.listed for stored in due], needs, max_keys=max_keys)
    gone = due[: swept.lists]
    for stored in gone:
        client.blob.delete(stored.key)
    return swept, [stored for stored in lists if stored not in gone], len(gone) == len(due)


def _read(blob: Blob, key: str) -> GarbageList | None:
    """A list, `None` if another process has swept it. A damaged one is deleted: the next era lists its keys again."""
    data = blob.get(key)
    if data is None:
        return None
    try:
        return GarbageList.read(data, key)
    except CorruptArtifact:
        blob.delete(key)
        return None
