"""Bytes of a state: golden files are read for ever; unknown versions and broken bytes are refused by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from persist_core.errors import Corruption, InvariantViolation, UnknownVersion
from persist_core.frontier import CLOSED, Frontier
from persist_core.schema import CollectionSchema, Column
from persist_core.shard.batch import BatchCounts, HollowBatch, SourceFrontier
from persist_core.shard.codec import StateVersion, decode_state, encode_state
from persist_core.shard.state import Commit, Hold, Lease, ShardState

GOLDEN = Path(__file__).parents[1] / "golden"

FULL = StateVersion(
    write_id="0193",
    written_ms=1_700_000_000_000,
    state=ShardState(
        shard="customers",
        seqno=7,
        since=Frontier(5),
        upper=Frontier(20),
        schema=CollectionSchema((Column("id", "bigint", nullable=False),), (Column("näme", "string"),)),
        batches=(HollowBatch(0, 20, "customers/batches/a/manifest.json", BatchCounts(1, 2, 3, 4), 99),),
        commits=(Commit("t", "c", 0, 20, "customers/batches/a/manifest.json", "id", 1, "dag/run", 3, 6, 0),),
        leases={"r": Lease(Frontier(6), 1, 2)},
        holds={"h": Hold(CLOSED, "o")},
        sources={"files": SourceFrontier("files", {"segments": [], "files": 0})},
    ),
)


def test_golden_bytes_of_version_1() -> None:
    golden = (GOLDEN / "state-v1.json").read_bytes().rstrip(b"\n")
    assert decode_state(golden) == FULL
    assert encode_state(FULL) == golden


def test_golden_bytes_of_version_2_which_only_restores_need() -> None:
    commits = (replace(FULL.state.commits[0], restored_from="older"),)
    restored = replace(FULL, state=replace(FULL.state, commits=commits))
    golden = (GOLDEN / "state-v2.json").read_bytes().rstrip(b"\n")
    assert decode_state(golden) == restored
    assert encode_state(restored) == golden


def test_an_unknown_version_is_refused() -> None:
    body = json.loads(encode_state(FULL)) | {"version": 3}
    with pytest.raises(UnknownVersion, match="version 3; this release reads up to 2"):
        decode_state(json.dumps(body).encode())


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"\xff", b'{"version":1}', b'{"version":1,"state":{}}'])
def test_broken_bytes_are_corruption(data: bytes) -> None:
    with pytest.raises(Corruption):
        decode_state(data)


def test_a_state_that_breaks_an_invariant_is_not_decoded() -> None:
    body = json.loads(encode_state(FULL))
    body["state"]["upper"] = 21
    with pytest.raises(InvariantViolation, match="upper_is_the_last_batch"):
        decode_state(json.dumps(body).encode())
