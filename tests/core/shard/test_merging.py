"""Adjacent empty batches are one: what a state then holds, and its size after many commits."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persist_core.contents.batch import BatchCounts, BatchManifest, HollowBatch, SourceFrontier
from persist_core.contents.derived import Restored
from persist_core.contents.schema_versions import SchemaVersions
from persist_core.frontier import Frontier
from persist_core.keys import manifest_key
from persist_core.schema import CollectionSchema, Column
from persist_core.shard.codec import StateVersion, encode_state
from persist_core.shard.invariants import check_step
from persist_core.shard.state import Committed, ShardState, compare_and_append
from tests.core.shard.test_state import SCHEMA, manifest

FILES = {"files": SourceFrontier("files", {"files": 1})}


def append(state: ShardState, upper: int, updates: int = 0, **changes: Any) -> tuple[ShardState, BatchManifest]:
    lower = state.upper.time or 0
    batch = replace(manifest(lower, upper, f"t{upper}"), counts=BatchCounts(updates))
    batch = replace(batch, **changes)
    after, result = compare_and_append(state, batch, manifest_key("s", f"a{upper}"), expected_upper=lower, now_ms=0)
    assert isinstance(result, Committed)
    after = replace(after, seqno=state.seqno + 1)
    check_step(state if state.seqno >= 0 else None, after)
    return after, batch


def bounds(state: ShardState) -> list[tuple[int, int | None]]:
    return [(batch.lower, batch.upper) for batch in state.batches]


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 1)), min_size=1, max_size=30))
def test_empty_batches_are_never_adjacent(appended: list[tuple[int, int]]) -> None:
    state, whole = ShardState("s"), list[HollowBatch]()
    for width, updates in appended:
        state, batch = append(state, (state.upper.time or 0) + width, updates)
        whole += [state.batches[-1]] if updates else []
        assert state.batches[-1].is_of(batch)
        assert state.batches[-1].manifest_sha256 == batch.sha256
    assert [batch for batch in state.batches if not batch.is_empty] == whole
    empty = [batch.is_empty for batch in state.batches]
    assert not any(left and right for left, right in itertools.pairwise(empty))
    assert (bounds(state)[0][0], state.upper) == (0, Frontier(bounds(state)[-1][1]))
    assert len(state.commits) == len(appended)


def test_every_manifest_that_a_commit_needs_stays_named() -> None:
    state, _ = append(append(ShardState("s"), 5)[0], 9)
    assert bounds(state) == [(0, 9)]
    assert state.manifest_keys == {manifest_key("s", "a5"), manifest_key("s", "a9")}


WIDER = (
    SchemaVersions()
    .with_batch_of(SCHEMA, seqno=0, lower=0)
    .placed(CollectionSchema(SCHEMA.key, (*SCHEMA.values, Column("more", "string"))))
)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param({"restored": Restored("s", "older", 1)}, {}, id="after a restore"),
        pytest.param({}, {"restored": Restored("s", "older", 1)}, id="a restore"),
        pytest.param({}, {"schema": WIDER}, id="a new column"),
        pytest.param({"sources": FILES}, {}, id="a writer that says no progress"),
        pytest.param({}, {"counts": BatchCounts(err_retractions=1)}, id="errs"),
    ],
)
def test_a_batch_that_says_more_stays_by_itself(first: dict[str, Any], second: dict[str, Any]) -> None:
    state, _ = append(append(ShardState("s"), 5, **first)[0], 9, **second)
    assert bounds(state) == [(0, 5), (5, 9)]


def test_seals_do_not_make_the_state_grow() -> None:
    """Beyond the commits that a state keeps, of which there are at most 192."""
    state, sizes = ShardState("s"), []
    for upper in range(1, 1000):
        state, _ = append(state, upper)
        sizes.append(len(encode_state(StateVersion("w", 0, state))))
    assert len(state.batches) == 1
    assert max(sizes[500:]) < 1.05 * max(sizes[:250])
