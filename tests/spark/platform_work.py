"""Work under a platform's settings: collections in both orders, a view and a merge; and what the oracle makes of it.

platform_work.py FOLDER    ->  the last line of output: what was found, of work in the server that SPARK_REMOTE names
"""

from __future__ import annotations

import datetime
import gzip
import json
import sys
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

import persist_spark
from persist_core.compaction.merge import Merge
from persist_core.config.collection import CollectionConfig
from persist_core.config.view import ViewConfig
from persist_core.handles.client import PersistClient
from persist_core.keys import manifest_key
from persist_core.location.open import open_location
from persist_core.location.settings import PersistLocation
from persist_core.protocol import stages
from persist_core.protocol.stages import Minted
from persist_core.shard.replace import Replaced
from persist_core.shard.state import Committed
from persist_core.spark_job.launch import Ended, merge_by_job
from persist_core.spark_job.spec import JobSpec
from persist_spark.merge import run_merge_job
from persist_spark.upsert.job import run_write_job
from persist_spark.view.refresh import run_view_job
from tests.oracle.consolidate import Err, UpsertDiff, Value, as_of
from tests.oracle.sequence import OrderMemory
from tests.oracle.upsert import Record, drain_sealed_input

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DAY_MS = 86_400_000
NAMES = {"log": ["at", "Name", "amount", "on", "extra"], "best": ["id", "on", "at"]}
# Each changed a result, or stopped every run, as long as jobs took it from the session that they were given.
CHANGED_RESULTS = {
    "spark.sql.session.timeZone": "Pacific/Auckland",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
    "spark.sql.legacy.timeParserPolicy": "LEGACY",
    "spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY",
    "spark.sql.parquet.outputTimestampType": "INT96",
    "spark.sql.parquet.int96RebaseModeInRead": "LEGACY",
    "spark.sql.sources.useV1SourceList": "",
    "spark.sql.files.ignoreCorruptFiles": "true",
    "spark.sql.files.ignoreMissingFiles": "true",
    "spark.sql.caseSensitive": "true",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.ansi.doubleQuotedIdentifiers": "true",
    "spark.sql.parser.quotedRegexColumnNames": "true",
    "spark.sql.function.concatBinaryAsString": "true",
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
    "spark.sql.jsonGenerator.ignoreNullFields": "false",
    "spark.sql.legacy.sizeOfNull": "true",
    "spark.sql.shuffle.partitions": "7",
    "spark.sql.adaptive.enabled": "false",
}
_ERR = ("kind", "key", "payload", "message")


class Work:
    """A location, and the work in it."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.location = open_location(PersistLocation(f"file://{folder}/blobs", f"sqlite:///{folder}/consensus.db"))
        self.client = PersistClient(self.location)

    def config(self, name: str, form: str, columns: Mapping[str, str], **fields: Any) -> CollectionConfig:
        body = {
            "name": name,
            "source": {"path": f"{name}/*", "format": form},
            "columns": dict(columns),
            "delete": "none",
            "base_dir": str(self.folder),
        }
        (self.folder / name).mkdir(exist_ok=True)
        return CollectionConfig.model_validate(body | fields)

    def run(self, config: CollectionConfig | ViewConfig, until: int) -> None:
        minted = stages.mint(self.client, config, until=until, writer="test")
        assert isinstance(minted, Minted)
        spec = JobSpec(minted.description, config, self.client.ids.uuid7())
        job: Any = run_view_job if isinstance(config, ViewConfig) else run_write_job
        job(self.spark, spec, self.location)
        key = manifest_key(config.name, spec.attempt)
        assert isinstance(stages.append(self.client, spec.description, key), Committed)
        stages.checkpoint(self.client, config)

    def all(self) -> None:
        """Two batches of each collection, then the view, then the merge."""
        log = self.config(
            "log", "json",
            {"at": "timestamp", "Name": "string", "amount": "decimal(9,2)", "on": "date", "extra": "json"},
            key="at", time={"field": "day"},
        )  # fmt: skip
        by = {"mode": "sequence", "by": ["at"]}
        best = self.config("best", "parquet", {"id": "int", "on": "date", "at": "timestamp"}, key="id", order=by)
        counts = ViewConfig.model_validate(
            {
                "name": "counts",
                "query": "SELECT Name, count(*) AS n, max(at) AS at FROM log GROUP BY 1",
                "inputs": ["log"],
            }
        )
        for day in range(2):
            until = (day + 1) * DAY_MS
            self.json_lines(log, day)
            self.parquet(best, day)
            self.run(log, until)
            self.run(best, until)
            self.run(counts, until)
        state = self.client.state("log")

        def start(items: Sequence[JobSpec], _: Sequence[str]) -> Ended:
            run_merge_job(self.spark, items[0], self.location)
            return Ended("")

        merged = merge_by_job(self.client, start, Merge.of(self.client, state, state.batches))
        assert isinstance(merged, Replaced)

    def json_lines(self, config: CollectionConfig, day: int) -> None:
        rows: list[Any] = [
            {"at": f"2024-06-30T12:00:0{number}.123456+05:30", "Name": "a.b", "amount": "1.10", "on": "1500-02-28",
             "extra": {"b": [1.0, None], "a": "ü"}, "day": day * DAY_MS + number}
            for number in range(day, 5)
        ]  # fmt: skip
        rows += [json.loads(bad_line(day))]
        rows += [{"at": "1400-01-01T00:00:00", "Name": None, "amount": -day, "day": day * DAY_MS}]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (self.folder / config.name / f"date={day}.json.gz").write_bytes(gzip.compress(text.encode()))

    def parquet(self, config: CollectionConfig, day: int) -> None:
        ids, dates, times = zip(*best_rows(day), strict=True)
        table = pa.table(
            {"id": pa.array(ids, pa.int32()), "on": dates, "at": pa.array(times, pa.timestamp("us", "UTC"))}
        )
        pq.write_table(table, self.folder / config.name / f"{day}.parquet")

    def contents(self) -> dict[str, Any]:
        """The plain reader's results, by shard: rows, and of collections errs and what each batch counted."""
        found = {}
        for name in ("log", "best", "counts"):
            reader = self.client.open_reader(name)
            stats = [commit.stats for commit in map(self.client.manifest, self.client.state(name).commits)]
            errs = [tuple(row[f"_persist_err_{part}"] for part in _ERR) for row in reader.errors().to_pylist()]
            rows = texts(reader.snapshot().to_pylist())
            found[name] = rows if name == "counts" else [rows, sorted(map(repr, errs)), stats]
        return found

    def read(self, spark: SparkSession) -> dict[str, list[str]]:
        """The rows as a session of a user has them."""
        return {
            name: self.rows(persist_spark.snapshot(spark, self.location, name)) for name in ("log", "best", "counts")
        }

    def rows(self, frame: DataFrame) -> list[str]:
        return texts(arrow_of(frame).to_pylist())


def texts(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(repr({name: plain(value) for name, value in row.items()}) for row in rows)


def plain(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return value.astimezone(datetime.UTC).isoformat()
    return bytes(value) if isinstance(value, bytearray) else str(value) if isinstance(value, Decimal) else value


def arrow_of(frame: DataFrame) -> pa.Table:
    """All rows. Spark 3.5 has no public way."""
    to_arrow: Any = getattr(frame, "toArrow", None)
    return to_arrow() if to_arrow else pa.Table.from_batches(frame._collect_as_arrow())  # type: ignore[operator] # - private


def utc(*parts: int) -> datetime.datetime:
    return datetime.datetime(*parts, tzinfo=datetime.UTC)  # type: ignore[misc,arg-type] # - up to seven, no time zone


def bad_line(day: int) -> str:
    """A record of `log` that is an err."""
    return json.dumps({"at": "2024-01-01 00:00:00", "amount": "too much", "day": day * DAY_MS})


def best_rows(day: int) -> list[tuple[int, datetime.date, datetime.datetime]]:
    """The input of `best` on a day."""
    on = datetime.date(1500, 2, 28 - day)
    return [(number + 1, on, utc(1400 + 600 * number, 1, 1 + day, 3)) for number in range(2)]


def log_records(day: int) -> list[Record]:
    """The input of `log` on a day, decoded by hand."""
    file, found = f"date={day}.json.gz", []
    for row, number in enumerate(range(day, 5)):
        value: Value = ("a.b", Decimal("1.10"), datetime.date(1500, 2, 28), '{"b":[1.0,null],"a":"ü"}')
        at = utc(2024, 6, 30, 6, 30, number, 123456)
        found.append(Record((at,), value, day * DAY_MS + number, (file, 0, row)))
    key, message = (
        b'["2024-01-01T00:00:00.000000Z"]',
        "column 'amount' is 'too much'; expected decimal(9,2), without rounding",
    )
    err = Err("value", key, bad_line(day).encode(), message)
    found.append(Record((utc(2024, 1, 1),), err, day * DAY_MS, (file, 0, 5 - day)))
    old: Value = (None, Decimal(-day).quantize(Decimal("0.01")), None, None)
    return [*found, Record((utc(1400, 1, 1),), old, day * DAY_MS, (file, 0, 6 - day))]


def rows_of(contents: Mapping[str, Any]) -> dict[str, list[str]]:
    """The part of `Work.contents` that `Work.read` must find."""
    return {name: found if name == "counts" else found[0] for name, found in contents.items()}


def oracle() -> dict[str, Any]:
    """The expected result of `Work.contents`, by plain Python."""
    found: dict[str, Any] = {}
    for name, columns in NAMES.items():
        updates: list[UpsertDiff] = []
        stats, orders = [], OrderMemory() if name == "best" else None
        for day in range(2):
            records = log_records(day)
            if name == "best":
                file, given = f"{day}.parquet", enumerate(best_rows(day))
                records = [Record((id_,), (on, at), None, (at, file, 0, row)) for row, (id_, on, at) in given]
            drained = drain_sealed_input(
                records, state=updates, lower=day * DAY_MS, upper=(day + 1) * DAY_MS, orders=orders
            )
            updates, orders = [*updates, *drained.updates], drained.orders
            stats.append(drained.stats.to_json())
        alive = as_of(updates, 2 * DAY_MS)
        rows = [
            dict(zip(columns, (*slot, *value), strict=True))
            for slot, value in alive.items()
            if isinstance(value, tuple)
        ]
        errs = [
            (value.kind, value.key_bytes, value.payload, value.message)
            for value in alive.values()
            if isinstance(value, Err)
        ]
        found[name] = [texts(rows), sorted(map(repr, errs)), stats]
        if name == "log":
            groups = {key: [row["at"] for row in rows if row["Name"] == key] for key in (None, "a.b")}
            found["counts"] = texts([{"Name": key, "n": len(times), "at": max(times)} for key, times in groups.items()])
    return found


def main(folder: str) -> None:
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    work = Work(spark, Path(folder))
    work.all()
    found = {"contents": work.contents(), "read": work.read(spark)}
    spark.stop()
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
