"""Settings of a platform change no result: jobs and reads under the settings that a platform may have for everyone.

The same work is done under Spark's defaults and under other settings: collections in both orders, from JSON and
Parquet, errs included, a view and a merge. What the plain reader finds must be the same, and so must what a user's
session reads, which keeps its own settings.
"""

from __future__ import annotations

import datetime
import gzip
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import persist_spark
from persist_core.compaction.merge import Merge
from persist_core.config.collection import CollectionConfig
from persist_core.config.view import ViewConfig
from persist_core.errors import SourceChanged
from persist_core.handles.client import PersistClient
from persist_core.location.open import open_location
from persist_core.location.settings import PersistLocation
from persist_core.protocol import stages
from persist_core.protocol.stages import Minted
from persist_core.shard.keys import manifest_key
from persist_core.shard.replace import Replaced
from persist_core.shard.state import Committed
from persist_core.spark_job.merging import merge_by_job
from persist_core.spark_job.spec import JobSpec
from persist_spark.compat import ENGINE_ERRORS
from persist_spark.merge.job import run_merge_job
from persist_spark.upsert.job import run_write_job
from persist_spark.view.job import run_view_job
from tests.sampling import is_long

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DAY_MS = 86_400_000
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
        merged = merge_by_job(
            self.client,
            Merge.of(self.client, state, state.batches),
            lambda spec, _: run_merge_job(self.spark, spec, self.location),
        )
        assert isinstance(merged, Replaced)

    def json_lines(self, config: CollectionConfig, day: int) -> None:
        rows: list[Any] = [
            {"at": f"2024-06-30T12:00:0{number}.123456+05:30", "Name": "a.b", "amount": "1.10", "on": "1500-02-28",
             "extra": {"b": [1.0, None], "a": "ü"}, "day": day * DAY_MS + number}
            for number in range(day, 5)
        ]  # fmt: skip
        rows += [{"at": "2024-01-01 00:00:00", "amount": "too much", "day": day * DAY_MS}]
        rows += [{"at": "1400-01-01T00:00:00", "Name": None, "amount": -day, "day": day * DAY_MS}]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (self.folder / config.name / f"date={day}.json.gz").write_bytes(gzip.compress(text.encode()))

    def parquet(self, config: CollectionConfig, day: int) -> None:
        old, utc = datetime.date(1500, 2, 28 - day), datetime.UTC
        times = [datetime.datetime(1400 + 600 * number, 1, 1 + day, 3, tzinfo=utc) for number in range(2)]
        table = pa.table(
            {"id": pa.array([1, 2], pa.int32()), "on": [old, old], "at": pa.array(times, pa.timestamp("us", "UTC"))}
        )
        pq.write_table(table, self.folder / config.name / f"{day}.parquet")

    def contents(self) -> dict[str, Any]:
        """What the plain reader finds: rows, errs, changes and what was counted, by shard."""
        found = {}
        for name in ("log", "best", "counts"):
            reader = self.client.open_reader(name)
            stats = [commit.stats for commit in map(self.client.manifest, self.client.state(name).commits)]
            errs = [{key: row[key] for key in row if key != "_persist_time"} for row in reader.errors().to_pylist()]
            found[name] = (texts(reader.snapshot().to_pylist()), texts(errs), stats)
        return found

    def read(self, spark: SparkSession) -> dict[str, list[str]]:
        """The rows as a session of a user has them."""
        return {
            name: self.rows(persist_spark.snapshot(spark, self.location, name)) for name in ("log", "best", "counts")
        }

    def rows(self, frame: DataFrame) -> list[str]:
        return texts(frame.toArrow().to_pylist())


def texts(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(repr({name: plain(value) for name, value in row.items()}) for row in rows)


def plain(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return value.astimezone(datetime.UTC).isoformat()
    return bytes(value) if isinstance(value, bytearray) else str(value) if isinstance(value, Decimal) else value


@contextmanager
def platform(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """A user's session in a context whose every new session has these settings, as from `spark-defaults.conf`."""
    conf = spark.sparkContext._jsc.sc().conf()
    before = {name: conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            conf.set(name, value)
        yield spark.newSession()
    finally:
        for name, old in before.items():
            conf.remove(name) if old is None else conf.set(name, old)


def done(spark: SparkSession, folder: Path) -> Work:
    folder.mkdir()
    work = Work(spark, folder)
    work.all()
    return work


def test_settings_that_changed_results_do_not(spark: SparkSession, tmp_path: Path) -> None:
    usual = done(spark.newSession(), tmp_path / "usual").contents()
    assert len(usual["log"][0]) == 6
    assert len(usual["log"][1]) == 1
    with platform(spark, CHANGED_RESULTS) as odd:
        work = done(odd, tmp_path / "odd")
        assert work.contents() == usual
        assert {name: rows for name, (rows, *_) in usual.items()} == work.read(odd)


def test_half_of_a_file_is_an_error_whatever_the_settings(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a source that was cut off, and of a part in which a byte was flipped."""
    with platform(spark, CHANGED_RESULTS) as odd:
        work = Work(odd, tmp_path)
        log = work.config("log", "json", {"id": "int", "name": "string"}, key="id")
        lines = "".join(json.dumps({"id": number, "name": f"{number * number}"}) + "\n" for number in range(20_000))
        packed, source = gzip.compress(lines.encode()), tmp_path / "log" / "1.json.gz"
        source.write_bytes(packed[: len(packed) // 2])
        with pytest.raises(SourceChanged, match=r"1\.json\.gz cannot be read"):  # found before Spark opens it
            work.run(log, DAY_MS)
        source.write_bytes(packed)
        work.run(log, DAY_MS)
        (part,) = (tmp_path / "blobs").rglob("part-*.parquet")
        damaged = bytearray(part.read_bytes())
        damaged[len(damaged) // 3] ^= 1
        part.write_bytes(damaged)
        monkeypatch.setattr("persist_spark.read.frames.MAX_LOCAL_BYTES", 0)
        with pytest.raises(ENGINE_ERRORS, match=part.name):
            persist_spark.snapshot(odd, work.location, "log").collect()


_ONE_OF = re.compile(r"one of (?:\[|\{)?(?P<values>[^.}\]]*)")
# Not of a query, or of the machine.
_NOT_TRIED = re.compile(r"\.(hive|streaming|thriftServer|catalog|warehouse|pyspark|metastore|connect|artifact)\b")


def table_of_settings(spark: SparkSession) -> dict[str, list[str]]:
    """Spark's own table: each setting of a session that has a few values, with those that are not its default."""
    found: dict[str, list[str]] = {}
    scratch = spark.newSession()
    entries = spark._jvm.org.apache.spark.sql.internal.SQLConf.getConfigEntries().iterator()  # type: ignore[union-attr] # - there, in classic
    while entries.hasNext():
        entry = entries.next()
        name, default = entry.key(), entry.defaultValueString()
        if _NOT_TRIED.search(name) or not scratch.conf.isModifiable(name):
            continue
        if default in ("true", "false"):
            found[name] = ["false" if default == "true" else "true"]
            continue
        try:
            scratch.conf.set(name, "no such value")
        except Exception as error:  # noqa: BLE001 - of whatever kind: its message names the values
            listed = _ONE_OF.search(str(error))
            values = re.findall(r"[A-Za-z0-9_]+", listed["values"]) if listed else []
            found[name] = [value for value in values if value.lower() != default.lower()]
    return {name: values for name, values in found.items() if values}


@pytest.mark.skipif(not is_long(), reason="a run for each group of settings (PERSIST_PROFILE=nightly)")
def test_no_setting_of_spark_changes_a_result(spark: SparkSession, tmp_path: Path) -> None:
    """All together; if that changes a result, halves of them, down to the ones that do."""
    usual = done(spark.newSession(), tmp_path / "usual").contents()
    table = table_of_settings(spark)
    assert len(table) > 200
    guilty: list[str] = []
    number = 0

    def search(settings: dict[str, str]) -> None:
        nonlocal guilty, number
        number += 1
        with platform(spark, settings) as odd:
            try:
                same = done(odd, tmp_path / str(number)).contents() == usual
            except ENGINE_ERRORS as error:
                same = len(settings) == 1
                guilty += [f"{settings}: {error}"[:300]] if same else []
        if same:
            return
        if len(settings) == 1:
            guilty.append(str(settings))
            return
        names = sorted(settings)
        for half in (names[::2], names[1::2]):
            search({name: settings[name] for name in half})

    for place in range(max(map(len, table.values()))):
        search({name: values[place] for name, values in table.items() if place < len(values)})
    assert guilty == []
