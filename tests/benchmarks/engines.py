"""The three engines that do the same work on the same events, and the reads that are compared.

    Ours       write stage + append: insertions, retractions, errs, stash, digests, counts, progress in one commit
    Rewrite    the floor for copy-on-write: the new table is (old anti-join keys) + upserts; no changelog, no history
    Duck       the ceiling: DuckDB writes the same insertions and retractions, without errs, digests or a commit

Each gets one Parquet file of events per round. Each `commit` returns the bytes it wrote.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import duckdb
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from persist_core.compaction.maintain import maintain
from persist_core.handles.client import PersistClient
from persist_core.location.open import OpenLocation
from persist_core.schema import CollectionSchema, Column
from persist_core.shard.batch import BatchDescription
from persist_core.shard.keys import manifest_key
from persist_core.shard.state import Committed
from persist_spark import frame, snapshot
from persist_spark.upsert.batch import UpsertRequest, stage_upserts
from tests.benchmarks.workload import VALUE_COLUMNS, KeyType

SHARD = "upl"
_MS_PER_ROUND = 1000
_TYPES = ("string", "string", "string", "int", "bigint", "double", "decimal(12,2)", "date", "timestamp")


class Engine(Protocol):
    """The operations that are timed."""

    name: str

    def commit(self, number: int, events: Path) -> int:
        """Apply the events of round `number` (0: the base). Returns bytes written."""
        ...

    def read(self) -> None:
        """Decode every column of every live row."""
        ...

    def rows(self) -> int:
        """Live rows."""
        ...


def schema_of(key_type: KeyType) -> CollectionSchema:
    """The collection's schema: `id`, then the nine value columns."""
    values = tuple(Column(name, kind) for name, kind in zip(VALUE_COLUMNS, _TYPES, strict=True))
    return CollectionSchema(key=(Column("id", key_type, nullable=False),), values=values)


def consume(rows: DataFrame) -> None:
    """Decode and drop every row."""
    rows.write.format("noop").mode("overwrite").save()


class Ours:
    """The write stage under test, warm, without the start-up of Spark."""

    name = "airflow-persist"
    shard = SHARD

    def __init__(self, spark: SparkSession, location: OpenLocation, key_type: KeyType) -> None:
        self._spark = spark
        self._location = location
        self._client = PersistClient(location)
        self._schema = schema_of(key_type)
        self._client.ensure_shard(self.shard)

    def commit(self, number: int, events: Path) -> int:
        lower = number * _MS_PER_ROUND
        description = BatchDescription(
            shard=self.shard,
            lower=lower,
            upper=lower + _MS_PER_ROUND,
            token=f"round-{number}",
            checkpoint_id=self._client.ids.uuid7(),
            epoch=number + 1,
            parent_id=None,
            writer="benchmark",
            input_bytes=events.stat().st_size,
        )
        attempt = self._client.ids.uuid7()
        request = UpsertRequest(description, self._schema, attempt, may_stash=False, is_columnar=True)
        manifest = stage_upserts(self._spark, self._client, request, self._records(events))
        appended = self._client.open_writer(self.shard).compare_and_append(manifest, manifest_key(self.shard, attempt))
        if not isinstance(appended, Committed):
            raise AssertionError(f"round {number} was not committed: {appended}")
        return manifest.size_bytes

    def _records(self, events: Path) -> DataFrame:
        found = self._spark.read.schema(self._events_schema()).parquet(str(events))
        err = [frame.err_null(name).alias(name) for name in frame.ERR_COLUMNS]
        order = F.struct(
            F.lit(events.name).alias("file"),
            F.lit(0).cast("bigint").alias("block"),
            F.monotonically_increasing_id().alias("row"),
        )
        return found.select(
            *[column.name for column in self._schema.columns],
            F.col("op").alias(frame.OP),
            F.lit(None).cast("bigint").alias("_persist_time"),
            order.alias(frame.ORDER),
            F.lit(None).cast("binary").alias(frame.BAD_KEY),
            *err,
        )

    def _events_schema(self) -> str:
        names = {column.name: column.type for column in self._schema.columns}
        return ", ".join(f"{name} {kind}" for name, kind in {**names, "op": "string"}.items())

    def read(self) -> None:
        consume(snapshot(self._spark, self._location, self.shard))

    def rows(self) -> int:
        return snapshot(self._spark, self._location, self.shard).count()


class Maintained(Ours):
    """The same with the merges that are due after each commit; they count as part of it, in time and in bytes."""

    name = "airflow-persist, maintained"
    shard = f"{SHARD}-maintained"

    def commit(self, number: int, events: Path) -> int:
        written, before = super().commit(number, events), self._parts()
        maintain(self._client, self.shard)
        return written + sum(size for key, size in self._parts().items() if key not in before)

    def _parts(self) -> dict[str, int]:
        batches = self._client.state(self.shard).batches
        return {part.key: part.size_bytes for batch in batches for part in self._client.manifest(batch).parts}


class Rewrite:
    """The whole table is rewritten each round; only the newest event of a key counts."""

    name = "rewrite by anti-join"

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder
        self._table = folder / "0"

    def commit(self, number: int, events: Path) -> int:
        found = self._spark.read.parquet(str(events)).withColumn("place", F.monotonically_increasing_id())
        newest = F.row_number().over(Window.partitionBy("id").orderBy(F.desc("place")))
        winners = found.withColumn("rank", newest).where("rank = 1")
        table = winners.where("op = 'u'").drop("op", "place", "rank")
        if number:
            old = self._spark.read.parquet(str(self._table))
            table = old.join(F.broadcast(found.select("id")), "id", "left_anti").unionByName(table)
        self._table = self._folder / str(number)
        table.write.option("compression", "zstd").parquet(str(self._table))
        return sum(path.stat().st_size for path in self._table.glob("*.parquet"))

    def read(self) -> None:
        consume(self._spark.read.parquet(str(self._table)))

    def rows(self) -> int:
        return self._spark.read.parquet(str(self._table)).count()


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
    """The same insertions and retractions by DuckDB, on two threads."""

    name = "DuckDB, equal work"

    def __init__(self, folder: Path, threads: int) -> None:
        self._folder = folder
        self._db = duckdb.connect(config={"threads": threads})
        self._db.execute("SET TimeZone = 'UTC'")

    def _files(self, prefix: str) -> str:
        return f"read_parquet('{self._folder}/{prefix}*.parquet')"

    def commit(self, number: int, events: Path) -> int:
        columns = ", ".join(VALUE_COLUMNS)
        if number == 0:
            self._db.execute(
                f"COPY (SELECT id, {columns}, 0 AS time FROM '{events}') TO '{self._folder}/i0.parquet'"
                " (FORMAT parquet, COMPRESSION zstd);"
                f"COPY (SELECT id, {columns}, 0 AS time FROM '{events}' LIMIT 0) TO '{self._folder}/r0.parquet'"
                " (FORMAT parquet, COMPRESSION zstd)"
            )
        else:
            self._db.execute(
                _DUCK_ROUND.format(
                    events=events,
                    insertions=self._files("i"),
                    retractions=self._files("r"),
                    folder=self._folder,
                    number=number,
                    time=number * _MS_PER_ROUND,
                    columns=", ".join(f"w.{name}" for name in VALUE_COLUMNS),
                    old_columns=", ".join(f"b.{name}" for name in VALUE_COLUMNS),
                    new=", ".join(f"w.{name}" for name in VALUE_COLUMNS),
                    old=", ".join(f"b.{name}" for name in VALUE_COLUMNS),
                )
            )
        return sum((self._folder / f"{kind}{number}.parquet").stat().st_size for kind in "ir")

    def _live(self) -> str:
        return (
            f"{self._files('i')} i LEFT JOIN (SELECT id, max(time) AS ended FROM {self._files('r')} GROUP BY id) r"
            " ON i.id = r.id WHERE r.id IS NULL OR i.time >= r.ended"
        )

    def read(self) -> None:
        hashed = ", ".join(f"i.{name}" for name in ("id", *VALUE_COLUMNS))
        self._db.execute(f"SELECT max(hash({hashed})) FROM {self._live()}").fetchall()

    def rows(self) -> int:
        found = self._db.execute(f"SELECT count(*) FROM {self._live()}").fetchone()
        return int(found[0]) if found else 0
