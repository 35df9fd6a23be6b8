"""Plain reads of damaged or wrong bytes: an error that names the object, never data and never a decoder's exception."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest

from persist_core.contents.batch import BatchManifest
from persist_core.contents.parts import PartFormat
from persist_core.errors import CorruptArtifact, InvariantViolation
from persist_core.handles.load import load_manifest
from persist_core.handles.read import MAX_COPIES, ReadHandle
from persist_core.handles.write import stage_manifest
from persist_core.schema import CollectionSchema, Column
from tests.core.handles.test_read import Shard
from tests.core.world import all_updates

FLIPS = 400
KEYED = CollectionSchema((Column("id", "bigint", nullable=False),), (Column("name", "string"),))
MULTISET = CollectionSchema((), (Column("id", "bigint"), Column("name", "string")))


def part_keys(shard: Shard) -> list[str]:
    state = shard.machine.fetch("s")
    assert state is not None
    return [part.key for manifest in shard.client.manifests(state.batches) for part in manifest.parts]


def keyed() -> Shard:
    shard = Shard(KEYED)
    shard.append(0, 10, [(1, "a", 1, 1), (2, "b", 2, 1)], [(None, "value", "bad", b"k", b"payload", 3, 1)])
    return shard


def test_every_flip_in_a_part_is_found(persist_seed: int) -> None:
    shard, chance = keyed(), random.Random(persist_seed)
    keys = part_keys(shard)
    assert len(keys) == 2
    for _ in range(FLIPS):
        key = chance.choice(keys)
        whole = shard.blob.get(key)
        assert whole is not None
        damaged = bytearray(whole)
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        shard.blob.set(key, bytes(damaged))
        with pytest.raises(CorruptArtifact, match=f"part {key} .* has SHA-256"):
            all_updates(shard.reader, shard.reader.state())
        shard.blob.set(key, whole)
    assert shard.reader.snapshot().num_rows == 2


def test_a_part_that_is_cut_off_missing_or_replaced_is_named() -> None:
    shard = keyed()
    (key, _) = part_keys(shard)
    whole = shard.blob.get(key)
    assert whole is not None
    for data, said in ((whole[:-1], f"has {len(whole) - 1} bytes, expected {len(whole)}"), (None, "is missing")):
        shard.blob.delete(key) if data is None else shard.blob.set(key, data)
        with pytest.raises(CorruptArtifact, match=f"part {key} .*{said}"):
            shard.reader.snapshot()


class Raising(PartFormat):
    """A decoder that fails like a library."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def encode(self, table: pa.Table) -> bytes:
        raise AssertionError(f"only reads: {table}")

    def index(self, data: bytes) -> None:
        raise AssertionError(f"only reads: {len(data)} bytes")

    def decode(self, data: bytes, columns: list[str], written: CollectionSchema) -> pa.Table:
        self._error.add_note(f"{len(data)} bytes, columns {columns} of {written}")
        raise self._error

    def batches(
        self, data: bytes, columns: list[str], written: CollectionSchema, rows: int, *, is_packed: bool = False
    ) -> Iterator[pa.Table]:
        assert rows
        assert not is_packed
        yield self.decode(data, columns, written)


@pytest.mark.parametrize(
    "error",
    [
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"),
        pa.ArrowInvalid("thrift"),
        pa.ArrowNotImplementedError("codec"),
        pa.ArrowKeyError("column"),
        OSError("file"),
        ValueError("value"),
        OverflowError("number"),
        MemoryError("footer says 2**60 rows"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_a_decoder_raises_names_the_part(error: Exception) -> None:
    shard = keyed()
    shard.client.part_format = Raising(error)
    reader = ReadHandle(shard.client, "s")
    with pytest.raises(CorruptArtifact, match=f"part {part_keys(shard)[0]}"):
        reader.snapshot()


def test_a_truncated_missing_or_foreign_manifest_is_named() -> None:
    shard = keyed()
    (batch,) = shard.reader.state().batches
    whole = shard.blob.get(batch.manifest_key)
    assert whole is not None
    manifest = BatchManifest.decode(whole)
    other = replace(manifest, stats={"eligible": 9}).encode()
    for data in (whole[:-1], whole[:50], b"", b"{}", other):
        shard.blob.set(batch.manifest_key, data)
        with pytest.raises(CorruptArtifact, match=f"manifest {batch.manifest_key} .*(is damaged|so it was replaced)"):
            shard.reader.snapshot()
    shard.blob.delete(batch.manifest_key)
    with pytest.raises(CorruptArtifact, match=f"manifest {batch.manifest_key} is missing"):
        shard.reader.snapshot()
    key = stage_manifest(shard.blob, manifest, "again")
    assert load_manifest(shard.blob, key, sha256=batch.manifest_sha256) == manifest


@pytest.mark.parametrize(
    ("updates", "said"),
    [
        pytest.param([(1, "a", 1, -1)], "add up to -1, and 0", id="retracted but never there"),
        pytest.param([(1, "a", 1, 1), (1, "b", 2, 1)], "add up to 2, and 2", id="two values"),
        pytest.param([(1, "a", 1, 1), (1, "b", 2, 1), (1, "b", 3, -1)], "add up to 1, and 0", id="one is hidden"),
        pytest.param([(1, "a", 1, -1), (1, "b", 2, 1)], "add up to 0, and 1", id="one too many"),
        pytest.param(
            [(1, "a", 1, -1), (1, "b", 2, 1), (2, "a", 1, 1), (2, "b", 2, 1), (2, "b", 3, -1)],
            "add up to 0, and 1",
            id="two keys that make up for each other",
        ),
        pytest.param([(1, "a", 1, 2), (1, "a", 2, -1)], "a diff of 2 at 1", id="twice"),
        pytest.param([(1, "a", 1, 2**63 - 1)], "a diff of 9223372036854775807 at 1", id="huge"),
    ],
)
def test_a_keyed_snapshot_hides_no_broken_count(updates: list[tuple[object, ...]], said: str) -> None:
    shard = Shard(KEYED)
    shard.append(0, 10, [(5, "whole", 1, 1), *updates, (7, "whole", 1, 1)])
    with pytest.raises(InvariantViolation, match=rf"key id 1 has .*{said}"):
        shard.reader.snapshot()


@pytest.mark.parametrize(
    ("diffs", "said"),
    [([-1], "-1 times"), ([MAX_COPIES, 1], f"{MAX_COPIES + 1} times"), ([2**63 - 1], "9223372036854775807 times")],
    ids=["below zero", "one more than the bound", "huge"],
)
def test_a_multiset_s_snapshot_hides_no_broken_count(diffs: list[int], said: str) -> None:
    shard = Shard(MULTISET)
    shard.append(0, 10, [(5, "whole", 1, 1), *((1, "a", 1 + time, diff) for time, diff in enumerate(diffs))])
    with pytest.raises(InvariantViolation, match=rf"a row is there {said} as of 9, .*name 'a'"):
        shard.reader.snapshot()


def test_sums_that_overflow_are_refused() -> None:
    shard = Shard(MULTISET)
    shard.append(0, 10, [(1, "a", time, diff) for time, diff in ((1, 2**63 - 1), (2, 2**63 - 1), (3, 3))])
    with pytest.raises(InvariantViolation, match="9223372036854775807 times"):
        shard.reader.snapshot()


def test_errs_that_were_never_there_are_named() -> None:
    shard = Shard(KEYED)
    shard.append(0, 10, [], [(None, "value", "bad", b"k", b"payload", 3, -1)])
    with pytest.raises(InvariantViolation, match="-1 times as of 9"):
        shard.reader.errors()
