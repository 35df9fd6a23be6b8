"""Golden bytes of every stored object: what this release writes and later ones must read (the state's: test_codec)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import zstandard

from persist_core.checkpoint.manifest import (
    CheckpointManifest,
    PartitionState,
    SavedOperator,
    ShardPin,
    SourceOffsets,
)
from persist_core.config.collection import FILE_POSITION
from persist_core.contents.batch import (
    STASH_OPERATOR,
    BatchCounts,
    BatchManifest,
    Part,
    PartKind,
    SourceFrontier,
)
from persist_core.contents.derived import Correction, Restored, Run
from persist_core.contents.erased import ErasedKey, ErasedList, Erasure
from persist_core.contents.err_groups import ErrGroup
from persist_core.contents.operator_state import OperatorState, StateArtifact
from persist_core.contents.part_lists import PartList, UnreadParts
from persist_core.contents.stats import DryRun
from persist_core.errors import CorruptArtifact
from persist_core.gc.sweep import Garbage, GarbageList
from persist_core.keys import manifest_key, part_key
from persist_core.location.mem import MemBlob
from persist_core.protocol.conflicts import ConflictRecord
from persist_core.protocol.fork_records import ForkRecord
from persist_core.schema import CollectionSchema, Column
from persist_core.sources.input_file import FrozenInput, InputFile
from persist_core.sources.ledger import Ledger
from persist_core.sources.natural_order import natural_key
from persist_core.sources.root import Place
from persist_core.sources.shards import FrozenShards

GOLDEN = Path(__file__).parent / "golden"
A, B = "01900000-0000-7000-8000-00000000000a", "01900000-0000-7000-8000-00000000000b"


@dataclass(frozen=True)
class Stored:
    """One kind of stored object: an example with every field set, and how it becomes bytes and back."""

    value: Any
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


OLDER = CollectionSchema(
    (Column("id", "bigint", nullable=False, id=1),),
    (Column("näme", "string", id=2),),
    (Column("lsn", "bigint"),),
    1,
    FILE_POSITION,
    (Column("server", "string"),),
    timed_by="path",
    zone="Europe/Berlin",
)
NEWEST = replace(OLDER, values=(Column("name", "string", id=2), Column("age", "int", id=3)), version=2)
MANIFEST = BatchManifest(
    shard="orders",
    lower=10,
    upper=None,
    token="t",
    contents_digest="c" * 64,
    schema=NEWEST,
    parts=(
        Part(
            part_key("orders", A, "insertions", 0), PartKind.INSERTIONS, 7, "c" * 64, OLDER, 2, 10, (-1,), (2**63 - 1,)
        ),
        replace(
            Part(part_key("orders", A, "errs", 0), PartKind.ERRS, 7, "d" * 64, NEWEST, 2, inherits=True),
            index=(5, "e" * 64),
        ),
    ),
    counts=BatchCounts(1, 2, 3, 4),
    checkpoint_id=B,
    epoch=5,
    parent_id=A,
    writer="dag/run",
    sources={"files": SourceFrontier("files", {"base": "/in", "files": 1, "segments": []})},
    operators={
        STASH_OPERATOR: OperatorState(False, (StateArtifact(0, part_key("orders", A, "stash", 0), 8, "e" * 64),))
    },
    read_operators={STASH_OPERATOR: "f" * 64},
    stats={"eligible": 1},
    err_groups=(ErrGroup("value", "column 'n' is '...'; expected int", 2, "", "a.jsonl, line 1", "{}"),),
    restored=Restored("orders", A, 9, Correction(7, None, 5, "prices in cents")),
    run=Run(("a" * 64,), 9, 10, (7, "é")),
    era=3,
    is_change=True,
    in_time_from=8,
)
CHECKPOINT = CheckpointManifest(
    checkpoint_id=B,
    epoch=5,
    timestamp_ms=6,
    operators={
        STASH_OPERATOR: SavedOperator((PartitionState(0, True, "operators/x/partition-0.delta", 8, "e" * 64),), 8, True)
    },
    source_offsets={"files": SourceOffsets("files", {"files": 1}, 5)},
    parent_id=A,
    watermark=9,
    total_size_bytes=8,
    shard=ShardPin("orders", 4, 0, None, manifest_key("orders", A)),
    restored_from=A,
    in_time_from=8,
)
FROZEN = FrozenInput(
    (
        InputFile("/in/a é.jsonl", "a é.jsonl", 3, 4, 5, 6, natural_key("a é.jsonl"), is_corrected=True),
        InputFile("/other/b.jsonl", "../other/b.jsonl", 3, 4, 5, None, natural_key("../other/b.jsonl")),
        InputFile(
            "s3://b/c.jsonl", "s3://b/c.jsonl", 3, 4, 0, None, natural_key("s3://b/c.jsonl"), etag="e", version_id="v"
        ),
    ),
    "/in",
)
STORED = {
    "batch-manifest-v1": Stored(MANIFEST, BatchManifest.encode, BatchManifest.decode),
    "batch-manifest-with-lists-v1": Stored(
        replace(
            MANIFEST,
            parts=UnreadParts(
                (PartList("insertions", 1500, 7, None, 9, (-1,), (2**63 - 1,), True, "a" * 64),),
                {1: OLDER, 2: NEWEST},
            ),
        ),
        BatchManifest.encode,
        BatchManifest.decode,
    ),
    "checkpoint-manifest-v2": Stored(CHECKPOINT, CheckpointManifest.encode, CheckpointManifest.decode),
    "frozen-files-v1": Stored(FROZEN, FrozenInput.encode, FrozenInput.decode),
    "frozen-shards-v1": Stored(
        FrozenShards("select 1", 9, {"a": 10, "b": None}, {"a": 1, "b": 2}, {"a": "one", "b": None}),
        FrozenShards.encode,
        FrozenShards.decode,
    ),
    "fork-record-v1": Stored(
        ForkRecord("orders", "twin", A, 7, 2, (manifest_key("orders", A),)), ForkRecord.encode, ForkRecord.decode
    ),
    "garbage-list-v1": Stored(
        GarbageList("orders", 3, 4, 5, (Garbage(manifest_key("orders", A), 6),)),
        GarbageList.encode,
        lambda data: GarbageList.decode(data, what="a list"),
    ),
    "conflict-v1": Stored(
        ConflictRecord("id", "orders", 10, None, 20, "loser", "winner", 3, "t", 4),
        ConflictRecord.encode,
        ConflictRecord.decode,
    ),
    "erased-list-v1": Stored(
        ErasedList(
            "ab" * 32,
            (Erasure("me", "asked", 5, (ErasedKey("cd" * 32, 10, ((3, None),)),), 1, 2, ("k",), 4, 6, upper=9),),
            7,
        ),
        ErasedList.encode,
        lambda data: ErasedList.decode(data, what="a list"),
    ),
    "dry-run-v1": Stored(DryRun(9, {"rows": 1}, ({"id": 1, "name": "é"},)), DryRun.encode, DryRun.decode),
}


@pytest.mark.parametrize("name", STORED)
def test_golden_bytes(name: str) -> None:
    stored = STORED[name]
    golden = (GOLDEN / f"{name}.json").read_bytes().rstrip(b"\n")
    assert stored.decode(golden) == stored.value
    assert stored.encode(stored.value) == golden


@pytest.mark.parametrize("name", STORED)
def test_every_flipped_bit_is_found(name: str) -> None:
    stored = STORED[name]
    data = stored.encode(stored.value)
    for position in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[position // 8] ^= 1 << position % 8
        with pytest.raises(CorruptArtifact):
            stored.decode(bytes(damaged))


def test_golden_bytes_of_a_ledger_segment() -> None:
    """Its bytes are zstd's, which releases of zstd may write in another way: they are read, not compared."""
    golden = (GOLDEN / "ledger-segment-v1.json").read_bytes().rstrip(b"\n")
    data = zstandard.ZstdCompressor().compress(golden)
    digest = hashlib.sha256(data).hexdigest()
    blob = MemBlob()
    blob.set("s/any", data)
    segment = {"key": "s/any", "files": 2, "sha256": digest, "size_bytes": len(data)}
    files = {"a é.jsonl": (1, 2, 86_400_000, True), "b.jsonl": (3, 4, None, False)}
    assert Ledger(blob, "s").consumed(SourceFrontier("files", {"segments": [segment]})) == files
    frontier = Ledger(blob, "s").extend(None, files, place=Place("/in", "/in"), era=0)
    written = blob.get(frontier.offsets["segments"][0]["key"])
    assert written is not None
    assert zstandard.ZstdDecompressor().decompress(written) == golden
