"""Bytes of a state: golden bytes, unknown versions, damage, and batches as rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persist_core.config.collection import FILE_POSITION
from persist_core.contents.batch import BatchCounts, HollowBatch, SourceFrontier
from persist_core.contents.schema_versions import SchemaVersions
from persist_core.errors import CorruptArtifact, Corruption, InvariantViolation, UnknownVersion
from persist_core.frontier import CLOSED, Frontier
from persist_core.schema import CollectionSchema, Column
from persist_core.sealed import seal
from persist_core.shard.codec import StateVersion, decode_state, encode_state
from persist_core.shard.origin import Branch, Origin, Swap
from persist_core.shard.past import Past, Undone
from persist_core.shard.state import Commit, Hold, Lease, Released, ShardState

GOLDEN = Path(__file__).parents[1] / "golden"
KEY = "customers/batches/a/manifest.json"

FULL = StateVersion(
    write_id="0193",
    written_ms=1_700_000_000_000,
    state=ShardState(
        shard="customers",
        seqno=7,
        since=Frontier(5),
        upper=Frontier(30),
        schemas=SchemaVersions().with_version(
            CollectionSchema(
                (Column("id", "bigint", nullable=False, id=1),),
                (Column("näme", "string", id=2),),
                (Column("lsn", "bigint"),),
                1,
                FILE_POSITION,
                timed_by="path",
                zone="Europe/Berlin",
            ),
            seqno=6,
            lower=5,
        ),
        batches=(
            HollowBatch(0, 20, KEY, "aa", BatchCounts(1, 2, 3, 4), 99),
            HollowBatch(20, 30, "orders/batches/b/manifest.json", "bb", BatchCounts(5, history=2), 100, 27, True),
        ),
        commits=(
            Commit("t", "c", 0, 20, KEY, "aa", "id", 1, "dag/run", 3, 6, 0, 99),
            Commit(
                "u",
                "d",
                20,
                30,
                "orders/batches/b/manifest.json",
                "bb",
                "id2",
                2,
                "cli/me",
                4,
                7,
                None,
                199,
                "older",
                True,
            ),
        ),
        leases={"r": Lease(Frontier(6), 1, 2)},
        holds={"h": Hold(CLOSED, "o")},
        sources={"files": SourceFrontier("files", {"segments": [], "files": 0})},
        operators={"upsert-stash": "cc"},
        history_ms=86_400_000,
        released=(Released("q", 4, 5, "me@host", "its program is gone"),),
        era=3,
        oldest_era=2,
        origin=Origin(
            (Branch(KEY, 1), Branch("customers/batches/b/manifest.json", 2, Swap(20, 4, "customers~g1", 5))),
            6,
            "blob s3://new",
        ),
        erased="customers/erased/ee.json",
        past=Past((Undone(10, 20, is_correction=True),), 30),
    ),
)


def test_golden_bytes() -> None:
    golden = (GOLDEN / "shard-state-v1.json").read_bytes().rstrip(b"\n")
    assert decode_state(golden) == FULL
    assert encode_state(FULL) == golden


def test_an_unknown_version_is_refused() -> None:
    with pytest.raises(UnknownVersion, match="state of s has version 2; this release reads version 1"):
        decode_state(seal("shard_state", 2, {}), what="state of s")


@pytest.mark.parametrize("body", [{}, {"write_id": "", "written_ms": 0, "state": {}}], ids=["empty", "no state"])
def test_a_sealed_object_that_is_no_state_is_corruption(body: dict[str, object]) -> None:
    with pytest.raises(Corruption, match="state of s is malformed"):
        decode_state(seal("shard_state", 1, body), what="state of s")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"\xff", b'{"version":1}', encode_state(FULL)[:-1]])
def test_damaged_bytes_are_corruption(data: bytes) -> None:
    with pytest.raises(CorruptArtifact, match="state of s is damaged"):
        decode_state(data, what="state of s")


def test_a_state_that_breaks_an_invariant_is_not_decoded() -> None:
    with pytest.raises(InvariantViolation, match="upper_is_the_last_batch"):
        decode_state(encode_state(replace(FULL, state=replace(FULL.state, upper=Frontier(31)))))


BATCHES = st.lists(
    st.tuples(
        st.integers(1, 50),
        st.sampled_from(["customers/batches/{}/manifest.json", "orders/batches/{}/manifest.json", "customers/x/{}"]),
        st.tuples(*[st.integers(0, 3)] * 5),
    ),
    min_size=1,
    max_size=8,
)


@given(BATCHES, st.booleans())
def test_any_batches_come_back_as_they_were(made: list[tuple[int, str, tuple[int, ...]]], is_closed: bool) -> None:
    batches, lower = [], 3
    for number, (width, key, (size_bytes, *counts)) in enumerate(made):
        upper = None if is_closed and number == len(made) - 1 else lower + width
        digest = f"digest-{number}"
        batches.append(HollowBatch(lower, upper, key.format(number), digest, BatchCounts(*counts), size_bytes))
        lower = upper or 0
    state = ShardState("customers", seqno=0, upper=Frontier(batches[-1].upper), batches=tuple(batches))
    assert decode_state(encode_state(StateVersion("w", 1, state))).state == state
