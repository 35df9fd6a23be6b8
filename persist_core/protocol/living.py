"""How many rows and errs a keyed shard holds, by the counts in its state."""

from __future__ import annotations

from collections.abc import Iterable

from persist_core.contents.batch import HollowBatch
from persist_core.handles.client import PersistClient
from persist_core.keys import owner_of
from persist_core.shard.state import ShardState


def living(batches: Iterable[HollowBatch]) -> tuple[int, int]:
    """Rows and errs that the batches hold. Wrong for a state that `is_clipped`."""
    counts = [batch.counts for batch in batches]
    rows = sum(each.insertions - each.retractions for each in counts)
    return rows, sum(each.err_insertions - each.err_retractions for each in counts)


def is_clipped(client: PersistClient, state: ShardState) -> bool:
    """True if the fork shares only a part of a run: its counts are then the whole run's."""
    shared = [batch for batch in state.batches if owner_of(batch.manifest_key) != state.shard]
    return bool(shared) and client.manifest(shared[-1]).last_time > shared[-1].last_time
