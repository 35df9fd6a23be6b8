"""The engines that do the same work on the same events. Each runs in a process of its own (`turns`).

    airflow-persist         write stage + append: insertions, retractions, errs, stash, digests, counts, progress
    rewrite by anti-join    the floor for copy-on-write: new table = (old anti-join keys) + upserts; no changelog, no
                            history. A read of its table is "plain Parquet of the same rows"
    Iceberg merge-on-read   `MERGE INTO` with deletion vectors (`iceberg`)
    DuckDB, equal work      the ceiling: the same insertions and retractions, without errs, digests or a commit

Each gets one Parquet file of events per round, and Spark engines read it with the same explicit schema.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import duckdb
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from persist_core.compaction.merge import Merge, merge_here, replace_inputs
from persist_core.config.collection import FILE_POSITION
from persist_core.config.shard import RetentionConfig
from persist_core.contents.batch import BatchDescription
from persist_core.contents.operator_state import StateArtifact
from persist_core.gc.collect import collect
from persist_core.handles.client import PersistClient
from persist_core.keys import manifest_key
from persist_core.location.open import OpenLocation, open_location
from persist_core.location.settings import PersistLocation
from persist_core.maintenance.maintain import maintain
from persist_core.schema import CollectionSchema, Column
from persist_core.shard.replace import NotReplaced, Replaced
from persist_core.shard.state import Committed
from persist_spark import frame, snapshot
from persist_spark.merge import stage_merge
from persist_spark.upsert.batch import UpsertRequest, stage_upserts
from tests.benchmarks.sessions import as_of_jobs, consume, plain_session
from tests.benchmarks.workload import VALUE_COLUMNS, Workload

SHARD = "upl"
_MS_PER_ROUND = 1000
SNAPSHOT_EVERY = RetentionConfig().snapshot_every  # commits from one full operator state to the next
_GC_CALLS = 3  # an era begins, its list is stored, and is swept
_TYPES = ("string", "string", "string", "int", "bigint", "double", "decimal(12,2)", "date", "timestamp")


@dataclass(frozen=True)
class Setting:
    """The arguments that an engine starts with. `folder` is its own, and holds all that it stores."""

    folder: Path
    workload: Workload
    cores: int
    memory: str

    def stored(self) -> Path:
        """The folder that the engine stores its data in, made now."""
        folder = self.folder / "stored"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def location(self) -> OpenLocation:
        """The location of our own engines."""
        return open_location(PersistLocation(f"file://{self.stored()}", f"sqlite:///{self.folder}/consensus.db"))


class Engine(Protocol):
    """The operations that are timed. What lies in `stored` counts as written.

    Some engines also have `maintain()` (do all maintenance that is due) and `read_as_of(number)` (read the rows that
    were alive after round `number`).
    """

    stored: Path

    def commit(self, number: int, events: Path) -> None:
        """Apply the events of round `number` (0: the base)."""
        ...

    def read(self) -> None:
        """Decode every column of every live row."""
        ...

    def export(self, folder: Path) -> None:
        """Write the live rows as Parquet, for the comparison with what is expected. Not timed."""
        ...


def schema_of(workload: Workload) -> CollectionSchema:
    """The collection's schema: `id`, then the nine value columns."""
    values = tuple(Column(name, kind) for name, kind in zip(VALUE_COLUMNS, _TYPES, strict=True))
    return CollectionSchema(
        key=(Column("id", workload.key_column_type, nullable=False),), values=values, position=FILE_POSITION
    )


def read_events(spark: SparkSession, workload: Workload, events: Path) -> DataFrame:
    """The events of one file, with an explicit schema, as every Spark engine reads them."""
    names = {column.name: column.type for column in schema_of(workload).columns}
    schema = ", ".join(f"{name} {kind}" for name, kind in {**names, "op": "string"}.items())
    return spark.read.schema(schema).parquet(str(events))


def winners(spark: SparkSession, workload: Workload, events: Path) -> DataFrame:
    """The newest event of each key, for engines that do not order events themselves."""
    found = read_events(spark, workload, events).withColumn("place", F.monotonically_increasing_id())
    newest = F.row_number().over(Window.partitionBy("id").orderBy(F.desc("place")))
    return found.withColumn("rank", newest).where("rank = 1").drop("place", "rank")


class NeverMaintained:
    """The write stage under test, warm, without the start-up of Spark, and without any maintenance."""

    def __init__(self, setting: Setting) -> None:
        self._setting, self.stored = setting, setting.stored()
        self._spark = plain_session(setting.cores, setting.memory)
        self._own = as_of_jobs(self._spark.newSession())  # a job's: readers have sessions of their own
        self._location = setting.location()
        self._client = PersistClient(self._location)
        self._schema = schema_of(setting.workload)
        self._chains: dict[str, tuple[StateArtifact, ...]] = {}
        self._client.ensure_shard(SHARD)

    def commit(self, number: int, events: Path) -> None:
        lower = number * _MS_PER_ROUND
        description = BatchDescription(
            shard=SHARD,
            lower=lower,
            upper=lower + _MS_PER_ROUND,
            token=f"round-{number}",
            checkpoint_id=self._client.ids.uuid7(),
            epoch=number + 1,
            parent_id=None,
            writer="benchmark",
            input_bytes=events.stat().st_size,
            operators=self._chains,
            saves_deltas=bool(self._chains) and number % SNAPSHOT_EVERY != 0,
            era=self._client.state(SHARD).era,
        )
        attempt = self._client.ids.uuid7()
        request = UpsertRequest(description, self._schema, attempt, may_stash=False, is_columnar=True)
        manifest = stage_upserts(self._own, self._client, self._client.state(SHARD), request, self._records(events))
        appended = self._client.open_writer(SHARD).compare_and_append(manifest, manifest_key(SHARD, attempt))
        if not isinstance(appended, Committed):
            raise AssertionError(f"round {number} was not committed: {appended}")
        before = self._chains
        self._chains = {
            name: (*(before[name] if state.is_delta else ()), *state.artifacts)
            for name, state in manifest.operators.items()
        }

    def _records(self, events: Path) -> DataFrame:
        err = [F.expr(sql) for sql in frame.no_err()]
        order = F.struct(
            F.lit(events.name).alias("file"),
            F.lit(0).cast("bigint").alias("block"),
            F.monotonically_increasing_id().alias("row"),
        )
        return read_events(self._own, self._setting.workload, events).select(
            *[column.name for column in self._schema.columns],
            F.col("op").alias(frame.OP),
            F.lit(None).cast("bigint").alias("_persist_time"),
            order.alias(frame.ORDER),
            F.lit(None).cast("binary").alias(frame.BAD_KEY),
            *err,
        )

    def read(self) -> None:
        consume(snapshot(self._spark, self._location, SHARD))

    def export(self, folder: Path) -> None:
        snapshot(self._spark, self._location, SHARD).write.parquet(str(folder))


class _Maintained(NeverMaintained):
    """Our engine with all maintenance that is due: large merges by Spark, as in the DAG `persist_maintenance`."""

    def maintain(self) -> None:
        maintain(self._client, SHARD, merge_elsewhere=self._merge_by_spark)

    def _merge_by_spark(self, merge: Merge) -> Replaced | NotReplaced:
        attempt = self._client.ids.uuid7()
        manifest = stage_merge(self._own, self._client, merge, attempt)
        return replace_inputs(self._client, manifest, manifest_key(SHARD, attempt))


class Ours(_Maintained):
    """The engine under test. It keeps all history."""

    def read_as_of(self, number: int) -> None:
        consume(snapshot(self._spark, self._location, SHARD, as_of=(number + 1) * _MS_PER_ROUND - 1))


class InSequence(Ours):
    """Our engine in `sequence` order, by position: it remembers each deleted key."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._schema = replace(self._schema, order=())


class WithoutHistory(_Maintained):
    """Our engine with `history: 0`, and GC that waits for no reader: what it keeps is what the newest rows need."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._client.set_history(SHARD, 0)

    def maintain(self) -> None:
        super().maintain()
        for _ in range(_GC_CALLS):
            collect(self._client, SHARD, grace_ms=0, intent_ms=0)


class Compaction:
    """No Spark: merges all batches of a shard that is there into one run, as the largest merge of a shard does."""

    def __init__(self, setting: Setting) -> None:
        self.stored = setting.stored()
        self._client = PersistClient(setting.location())

    def maintain(self) -> None:
        state = self._client.state(SHARD)
        merge_here(self._client, Merge.of(self._client, state, state.batches), attempt=self._client.ids.uuid7())


class Rewrite:
    """The whole table is rewritten each round; only the newest event of a key counts."""

    def __init__(self, setting: Setting) -> None:
        self._setting, self.stored = setting, setting.stored()
        self._spark = plain_session(setting.cores, setting.memory)
        self._table = self.stored / "none"

    def commit(self, number: int, events: Path) -> None:
        found = winners(self._spark, self._setting.workload, events)
        table = found.where("op = 'u'").drop("op")
        old_table = self._table
        if number:
            keys = F.broadcast(read_events(self._spark, self._setting.workload, events).select("id"))
            table = self._rows().join(keys, "id", "left_anti").unionByName(table)
        self._table = self.stored / str(number)
        table.write.option("compression", "zstd").parquet(str(self._table))
        for path in old_table.glob("*"):
            path.unlink()

    def _rows(self) -> DataFrame:
        columns = ", ".join(f"{column.name} {column.type}" for column in schema_of(self._setting.workload).columns)
        return self._spark.read.schema(columns).parquet(str(self._table))

    def read(self) -> None:
        consume(self._rows())

    def export(self, folder: Path) -> None:
        self._rows().write.parquet(str(folder))


_DUCK_ROUND = """
    CREATE OR REPLACE TEMP TABLE winners AS
        SELECT * FROM (SELECT *, file_row_number AS place FROM read_parquet('{events}', file_row_number = true))
        QUALIFY row_number() OVER (PARTITION BY id ORDER BY place DESC) = 1;
    CREATE OR REPLACE TEMP TABLE before AS
        SELECT i.* FROM {insertions} i SEMI JOIN winners w ON i.id = w.id
        QUALIFY row_number() OVER (PARTITION BY i.id ORDER BY i.time DESC) = 1;
    CREATE OR REPLACE TEMP TABLE ended AS
        SELECT r.id, max(r.time) AS time FROM {retractions} r SEMI JOIN winners w ON r.id = w.id GROUP BY r.id;
    CREATE OR REPLACE TEMP TABLE live AS
        SELECT b.* EXCLUDE (time) FROM before b LEFT JOIN ended e ON b.id = e.id AND e.time > b.time WHERE e.id IS NULL;
    COPY (SELECT w.id, {columns}, {time} AS time FROM winners w LEFT JOIN live b USING (id)
          WHERE w.op = 'u' AND (b.id IS NULL OR ({new}) IS DISTINCT FROM ({old})))
        TO '{folder}/i{number}.parquet' (FORMAT parquet, COMPRESSION zstd);
    COPY (SELECT b.id, {old_columns}, {time} AS time FROM winners w JOIN live b USING (id)
          WHERE w.op = 'd' OR ({new}) IS DISTINCT FROM ({old}))
        TO '{folder}/r{number}.parquet' (FORMAT parquet, COMPRESSION zstd);
"""


class Duck:
    """Equal insertions and retractions by DuckDB, on as many threads as Spark has cores."""

    def __init__(self, setting: Setting) -> None:
        self.stored = setting.stored()
        self._db = duckdb.connect(config={"threads": setting.cores, "memory_limit": "3GB"})
        self._db.execute("SET TimeZone = 'UTC'")

    def _files(self, prefix: str) -> str:
        return f"read_parquet('{self.stored}/{prefix}*.parquet')"

    def commit(self, number: int, events: Path) -> None:
        columns = ", ".join(VALUE_COLUMNS)
        if number == 0:
            self._db.execute(
                f"COPY (SELECT id, {columns}, 0 AS time FROM '{events}') TO '{self.stored}/i0.parquet'"
                " (FORMAT parquet, COMPRESSION zstd);"
                f"COPY (SELECT id, {columns}, 0 AS time FROM '{events}' LIMIT 0) TO '{self.stored}/r0.parquet'"
                " (FORMAT parquet, COMPRESSION zstd)"
            )
            return
        self._db.execute(
            _DUCK_ROUND.format(
                events=events,
                insertions=self._files("i"),
                retractions=self._files("r"),
                folder=self.stored,
                number=number,
                time=number * _MS_PER_ROUND,
                columns=", ".join(f"w.{name}" for name in VALUE_COLUMNS),
                old_columns=", ".join(f"b.{name}" for name in VALUE_COLUMNS),
                new=", ".join(f"w.{name}" for name in VALUE_COLUMNS),
                old=", ".join(f"b.{name}" for name in VALUE_COLUMNS),
            )
        )

    def _live(self) -> str:
        return (
            f"{self._files('i')} i LEFT JOIN (SELECT id, max(time) AS ended FROM {self._files('r')} GROUP BY id) r"
            " ON i.id = r.id WHERE r.id IS NULL OR i.time >= r.ended"
        )

    def read(self) -> None:
        hashed = ", ".join(f"i.{name}" for name in ("id", *VALUE_COLUMNS))
        self._db.execute(f"SELECT max(hash({hashed})) FROM {self._live()}").fetchall()

    def export(self, folder: Path) -> None:
        folder.mkdir()
        self._db.execute(f"COPY (SELECT i.* EXCLUDE (time) FROM {self._live()}) TO '{folder}/rows.parquet'")
