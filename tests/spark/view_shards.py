"""Views over shards, refreshed with the real write stage; the shards are written by plain Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from persist_core.config.view import ViewConfig
from persist_core.contents.batch import BatchDescription, BatchManifest
from persist_core.contents.stats import DryRun
from persist_core.handles.client import PersistClient
from persist_core.keys import dry_run_key, manifest_key
from persist_core.location.file.blob import FileBlob
from persist_core.location.mem import MemConsensus
from persist_core.location.open import OpenLocation
from persist_core.protocol import describe, stages
from persist_core.protocol.stages import Minted, NothingToDo
from persist_core.schema import CollectionSchema, Column
from persist_core.shard.state import Committed
from persist_core.spark_job.spec import JobSpec
from persist_spark.view.refresh import run_view_job
from tests.oracle.consolidate import canonical_bytes
from tests.plain_commit import ErrUpdate, Update, commit
from tests.virtual import ManualClock, SeededIds


class ViewShards:
    """A location, the shards in it, and the stages of a refresh."""

    def __init__(self, spark: SparkSession, where: Path | OpenLocation) -> None:
        self.spark = spark
        self.location = OpenLocation(FileBlob(where), MemConsensus()) if isinstance(where, Path) else where
        clock = ManualClock(1)
        self.client = PersistClient(self.location, clock, SeededIds(7, clock))

    def commit(
        self,
        shard: str,
        schema: CollectionSchema,
        upper: int | None,
        updates: Iterable[Update] = (),
        errs: Iterable[ErrUpdate] = (),
    ) -> None:
        """Append a batch as any writer could, a rogue one too."""
        commit(self.client, shard, schema, upper, updates, errs)

    def mint(self, view: ViewConfig, until: int | None = None, writer: str = "test") -> BatchDescription | NothingToDo:
        minted = stages.mint(self.client, view, until=until, writer=writer)
        return minted.description if isinstance(minted, Minted) else minted

    def write(self, view: ViewConfig, description: BatchDescription) -> str:
        """Stage the description's batch; the manifest's key."""
        key = stages.write_without_input(self.client, view, description)
        if key is not None:
            return key
        spec = JobSpec(description, view, self.client.ids.uuid7())
        assert run_view_job(self.spark, spec, self.location) is not None
        return manifest_key(view.name, spec.attempt)

    def refresh(self, view: ViewConfig, until: int | None = None) -> BatchManifest:
        """Mint, write, append, checkpoint; the manifest that was appended."""
        description = self.mint(view, until)
        assert isinstance(description, BatchDescription), description
        key = self.write(view, description)
        assert isinstance(stages.append(self.client, description, key), Committed)
        stages.checkpoint(self.client, view)
        return self.client.staged_manifest(key)

    def dry_run(self, view: ViewConfig, as_of: int) -> DryRun:
        """The rows that a refresh at that time would write."""
        description = describe.dry_run_description(self.client, view, as_of)
        spec = JobSpec(description, view, self.client.ids.uuid7(), dry_run_as_of=as_of)
        assert run_view_job(self.spark, spec, self.location) is None
        found = self.client.blob.get(dry_run_key(view.name, spec.attempt))
        assert found is not None
        return DryRun.decode(found)

    def rows(self, shard: str, as_of: int | None = None) -> Counter[str]:
        """The rows as of a time, as comparable texts, each as often as it is there."""
        return texts(self.client.open_reader(shard).snapshot(as_of).to_pylist())

    def errs(self, shard: str, as_of: int | None = None) -> Counter[tuple[Any, ...]]:
        """The errs as of a time: kind, key, payload."""
        table = self.client.open_reader(shard).errors(as_of)
        names = ("_persist_err_kind", "_persist_err_key", "_persist_err_payload")
        return Counter(tuple(row[name] for name in names) for row in table.to_pylist())

    def changes(self, shard: str, after: int, through: int) -> Counter[str]:
        """The changes between two times, as texts with their summed diffs."""
        counts: Counter[str] = Counter()
        for row in self.client.open_reader(shard).changes(after, through).to_pylist():
            diff = row.pop("_persist_diff")
            row.pop("_persist_time")
            counts[text(row)] += diff
        return counts


def view(name: str, query: str, inputs: Sequence[str], **fields: Any) -> ViewConfig:
    """A view, as its file would make it."""
    return ViewConfig.model_validate({"name": name, "query": query, "inputs": list(inputs), **fields})


ITEMS = CollectionSchema(
    key=(Column("id", "int", nullable=False),), values=(Column("colour", "string"), Column("n", "int"))
)
COLOURS = CollectionSchema(key=(), values=(Column("colour", "string"), Column("total", "bigint")))
BY_COLOUR = view("by_colour", "SELECT colour, sum(n) AS total FROM items GROUP BY colour", ["items"])


def text(row: dict[str, Any]) -> str:
    """A row as canonical text: NaN equals NaN, -0.0 is 0.0."""
    cells = [bytes(cell) if isinstance(cell, bytearray) else cell for cell in row.values()]
    return canonical_bytes(cells, list(row)).decode()


def texts(rows: Iterable[dict[str, Any]]) -> Counter[str]:
    return Counter(text(row) for row in rows)
