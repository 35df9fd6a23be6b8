"""A shard in a folder or another blob store, written batch by batch with the write stage; shared by its tests."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from persist_core.checkpoint.recovery import recover_newest
from persist_core.contents.batch import STASH_OPERATOR, BatchDescription, BatchManifest, SourceFrontier
from persist_core.contents.operator_state import StateArtifact
from persist_core.handles.client import PersistClient
from persist_core.keys import attempt_prefix, manifest_key
from persist_core.location.blob import Blob
from persist_core.location.file.blob import FileBlob
from persist_core.location.mem import MemConsensus
from persist_core.location.open import OpenLocation
from persist_core.schema import CollectionSchema
from persist_core.shard.state import Committed
from persist_spark.upsert.batch import UpsertRequest, stage_upserts
from tests.oracle.upsert import Record
from tests.spark.upsert_cases import to_records
from tests.virtual import ManualClock, SeededIds

SHARD = "things"


class StagedShard:
    """`write` stages a batch, `append` commits it, `commit` does both, and the next call continues from its upper."""

    def __init__(self, spark: SparkSession, where: Path | Blob, schema: CollectionSchema) -> None:
        self.spark, self.schema = spark, schema
        self.blob: Blob = FileBlob(where) if isinstance(where, Path) else where
        self.location = OpenLocation(self.blob, MemConsensus())
        clock = ManualClock(1)
        self.client = PersistClient(self.location, clock, SeededIds(3, clock))
        self.client.ensure_shard(SHARD)
        self.upper, self.epoch = 0, 1
        self.chains: dict[str, tuple[StateArtifact, ...]] = {}
        self.stash_rows: int | None = None
        self.attempt = ""
        self.parent: str | None = None
        self.sources: dict[str, SourceFrontier] = {}  # what each batch says that it has consumed

    @property
    def stash(self) -> tuple[StateArtifact, ...]:
        return self.chains.get(STASH_OPERATOR, ())

    def description(self, upper: int | None, *, is_delta: bool = False, input_bytes: int = 0) -> BatchDescription:
        """The next batch, up to `upper`."""
        return BatchDescription(
            shard=SHARD,
            lower=self.upper,
            upper=upper,
            token=f"up to {upper}",
            checkpoint_id=self.client.ids.uuid7(),
            epoch=self.epoch,
            parent_id=self.parent,
            writer="test",
            sources=self.sources,
            operators=dict(self.chains),
            era=self.client.state(SHARD).era,
            saves_deltas=is_delta,
            stash_rows=self.stash_rows,
            input_bytes=input_bytes,
        )

    def write(
        self, records: Iterable[Record] | DataFrame, description: BatchDescription, **options: Any
    ) -> BatchManifest:
        """Stage a batch under a new attempt, or the one in `options`."""
        self.attempt = options.pop("attempt", None) or self.client.ids.uuid7()
        schema = options.pop("schema", self.schema)
        frame = records if isinstance(records, DataFrame) else to_records(self.spark, schema, records)
        request = UpsertRequest(description, schema, self.attempt, **options)
        return stage_upserts(self.spark, self.client, self.client.state(SHARD), request, frame)

    def append(self, manifest: BatchManifest) -> None:
        result = self.client.open_writer(SHARD).compare_and_append(manifest, manifest_key(SHARD, self.attempt))
        assert isinstance(result, Committed)

    def commit(
        self, records: Iterable[Record] | DataFrame, upper: int | None, *, is_delta: bool = False, **options: Any
    ) -> BatchManifest:
        manifest = self.write(records, self.description(upper, is_delta=is_delta), **options)
        self.append(manifest)
        self.upper, self.epoch = -1 if upper is None else upper, self.epoch + 1
        self.parent = manifest.checkpoint_id
        before, self.stash_rows = self.chains, manifest.stats["stashed"]
        self.chains = {
            name: (*(before[name] if state.is_delta else ()), *state.artifacts)
            for name, state in manifest.operators.items()
        }
        return manifest

    def go_on(self) -> None:
        """After a change that a command has committed, the next batch continues from it."""
        state = self.client.state(SHARD)
        commit, upper = state.newest_commit, state.upper.time
        assert commit is not None
        assert upper is not None
        self.upper, self.epoch, self.parent, self.stash_rows = upper, commit.epoch + 1, commit.checkpoint_id, None
        self.chains = dict(recover_newest(self.client, state).operators)

    def staged_keys(self) -> list[str]:
        """The names under the newest attempt, without its prefix, and without Hadoop's checksum files."""
        prefix = f"{attempt_prefix(SHARD, self.attempt)}/"
        keys = [metadata.key.removeprefix(prefix) for metadata in self.blob.list_keys_and_metadata(prefix)]
        return [key for key in keys if not key.endswith(".crc")]

    def snapshot(self, as_of: int | None = None) -> list[dict[str, Any]]:
        return sorted(self.client.open_reader(SHARD).snapshot(as_of).to_pylist(), key=repr)
