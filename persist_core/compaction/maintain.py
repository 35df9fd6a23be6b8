"""Maintenance of one shard: expired leases end, and merges that are due are done, with a bound on both work and memory.

    maintain           all that is due, as `persist maintain` does it
    maintain_inline    after the checkpoint task: at most one merge, and only if the shard has many batches

Both may run at any time, beside runs of the shard and beside each other, and may die anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

from persist_core.compaction.merge import Merge, merge_here
from persist_core.compaction.plan import next_merge
from persist_core.errors import PersistError
from persist_core.handles.client import PersistClient
from persist_core.shard.replace import Replaced
from persist_core.shard.state import ShardState, expire_leases

MAX_ROWS = 5_000_000  # that one merge reads into memory: about 2 GB at 180 bytes a row
MAX_MERGES = 16  # of one call; a shard that was never merged catches up in several
INLINE_BATCHES = 24  # from here on the checkpoint task merges; `persist maintain` keeps fewer
INLINE_ROWS = 500_000  # about two seconds


@dataclass(frozen=True)
class Maintained:
    """What maintenance of one shard did, and what it still owes.

    `rows` were read by `merges` merges. `owed_rows` is the size of the merge that is due next, 0 if none is due.
    """

    shard: str
    expired_leases: tuple[str, ...]
    merges: int
    rows: int
    batches_before: int
    batches_after: int
    owed_rows: int

    def __str__(self) -> str:
        done = f"{self.shard}: {self.merges} merges of {self.rows} rows; {self.batches_before} batches before,"
        owed = f"; a merge of {self.owed_rows} rows is due" if self.owed_rows else ""
        return f"{done} {self.batches_after} after{owed}"


def maintain(
    client: PersistClient, shard: str, *, max_rows: int = MAX_ROWS, max_merges: int = MAX_MERGES
) -> Maintained:
    """Expire leases and do the merges that are due, as long as each reads at most `max_rows` rows.

    Raises `ShardNotFound`, and what `merge_here` raises; what was merged before stays merged.
    """
    expired: tuple[str, ...] = ()
    state = client.state(shard)
    if any(lease.has_expired(client.clock.now_ms()) for lease in state.leases.values()):
        state, expired = client.machine.apply(shard, lambda found: expire_leases(found, now_ms=client.clock.now_ms()))
    before, merges, rows, owed = len(state.batches), 0, 0, 0
    for _ in range(max_merges + 1):
        due = None if state.is_dropped else next_merge(state.batches)
        owed = sum(batch.counts.rows for batch in due) if due else 0
        if due is None or owed > max_rows or merges == max_merges:
            break
        result = merge_here(client, Merge.of(client, state, due), attempt=client.ids.uuid7())
        if isinstance(result, Replaced):
            merges, rows = merges + 1, rows + owed
        state = client.state(shard)
    return Maintained(shard, expired, merges, rows, before, len(state.batches), owed)


def maintain_inline(client: PersistClient, state: ShardState) -> str | None:
    """One merge, if the shard has many batches and the merge is small; what was done or went wrong, for logs.

    Never raises a `PersistError`: the commit that came before is not to fail for it.
    """
    if len(state.batches) < INLINE_BATCHES:
        return None
    try:
        done = maintain(client, state.shard, max_rows=INLINE_ROWS, max_merges=1)
    except PersistError as error:
        return f"{state.shard} was not merged: {error.kind}: {error}"
    return str(done) if done.merges or done.owed_rows else None
