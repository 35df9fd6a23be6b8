"""Restores, corrections and fills stay known when their commits are forgotten."""

from __future__ import annotations

from dataclasses import replace

import pytest

from persist_core.contents.derived import Correction, Restored
from persist_core.contents.stats import FILLED_COLUMN
from persist_core.errors import InvariantViolation
from persist_core.frontier import Frontier
from persist_core.shard.invariants import check_step
from persist_core.shard.origin import Swap
from persist_core.shard.past import MAX_UNDONE, Past, Undone
from persist_core.shard.receive import swap_in
from persist_core.shard.state import MAX_COMMITS_KEPT, ShardState
from tests.core.shard.test_state import append, manifest


def grown(state: ShardState, *, restored: Restored | None = None, fills: bool = False) -> ShardState:
    lower = state.upper.time or 0
    batch = replace(manifest(lower, lower + 10, f"at {lower}"), checkpoint_id=f"ckpt {lower + 10}", restored=restored)
    if fills:
        batch = replace(batch, is_change=True, stats={f"{FILLED_COLUMN}a": 1})
    after = append(state, batch)[0]
    check_step(state if state.commits else None, replace(after, seqno=state.seqno + 1))
    return replace(after, seqno=state.seqno + 1)


def test_the_past_outlives_commits() -> None:
    state = ShardState("s")
    for _ in range(4):
        state = grown(state)
    state = grown(state, restored=Restored("s", "ckpt 20", 15))  # the watermark of a restore's checkpoint
    state = grown(state, restored=Restored("s~reprocess", "other", 50, Correction(0, None, 30)))
    state = grown(state, fills=True)
    expected = Past((Undone(20, 50, is_correction=False), Undone(30, 60, is_correction=True)), 70)
    for _ in range(MAX_COMMITS_KEPT + 1):
        state = grown(state)
    assert state.commits[0].lower > 70
    assert state.past == expected
    assert [upper for upper in range(10, 90, 10) if state.past.has_undone(upper)] == [30, 40, 50]
    assert (state.past.restored, state.past.corrected) == (50, frozenset({60}))
    state = grown(state, restored=Restored("s", "ckpt 40", 35))  # its commit is forgotten
    assert state.past.undone[-1].back_to == 35
    for changed in (Past(), Past(state.past.undone)):
        with pytest.raises(InvariantViolation, match="the_past_outlives_commits"):
            check_step(state, replace(state, seqno=state.seqno + 1, past=changed))


def test_the_oldest_entries_become_one() -> None:
    state = grown(grown(grown(ShardState("s")), restored=Restored("s", "ckpt 10", 10)))
    for _ in range(MAX_UNDONE + 5):
        before = state.upper.time or 0
        state = grown(grown(state), restored=Restored("s~reprocess", "x", before, Correction(0, None, before)))
    undone, newest = state.past.undone, state.upper.time or 0
    assert len(undone) == MAX_UNDONE
    assert undone[-1] == Undone(newest - 20, newest, is_correction=True)
    assert undone[0].back_to == 10
    assert state.past.restored == undone[0].upper  # so that no replay from before the restore is gone on with


def test_a_new_generation_has_no_past() -> None:
    state = grown(grown(grown(ShardState("s")), fills=True), restored=Restored("s", "ckpt 10", 10))
    assert state.past != Past()
    batch = replace(manifest(30, 31, "swap"), restored=Restored("s~rebuild", "built", 30))
    after, _ = swap_in(
        state, batch, "key-swap", batches=state.batches, schemas=state.schemas, swap=Swap(30, 1, "s~g3", None)
    )
    check_step(state, replace(after, seqno=state.seqno + 1))
    assert (after.past, after.upper) == (Past(), Frontier(31))
