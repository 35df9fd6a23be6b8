"""Settings of a platform change no result: jobs and reads under the settings that a platform may have for everyone.

The same work is done under other settings: collections in both orders, from JSON and Parquet, errs included, a view
and a merge. What the plain reader finds must be the oracle's answer, and so must what a user's session reads, which
keeps its own settings.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import persist_spark
from persist_core.errors import CorruptArtifact, SourceChanged, UnreadableFiles
from persist_spark.compat import ANSI, ENGINE_ERRORS, HAS_TRY_CAST, java_sessions
from persist_spark.frame import part_type
from persist_spark.read.parts import scan
from persist_spark.view import refresh
from persist_spark.view.difference import install_desired_into_persist
from tests.core.world import SCHEMA
from tests.sampling import is_long
from tests.spark.platform_work import CHANGED_RESULTS, DAY_MS, Work, oracle, rows_of
from tests.spark.view_shards import ViewShards, view

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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


@pytest.mark.parametrize("form", ["json", "parquet"])
def test_a_path_filter_of_the_platform_hides_nothing(spark: SparkSession, tmp_path: Path, form: str) -> None:
    """Spark applies it to every file that it lists, and does not say which it leaves out."""
    work = Work(spark, tmp_path)
    log = work.config("log", form, {"id": "int", "pad": "string"}, key="id", order="log")
    rows = [{"id": number, "pad": "x" * 100} for number in range(20)]
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    for name in ("a.x", "b.x"):  # the filter lets names without a suffix through
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "log" / name)
        if form == "json":
            (tmp_path / "log" / name).write_bytes(text)
    work.run(log, DAY_MS)
    (tmp_path / "log" / "c.x").write_bytes((tmp_path / "log" / "a.x").read_bytes())
    key = work.client.manifests(work.client.state("log").batches)[0].parts[0].key
    schema = work.client.state("log").schemas.placed(log.collection_schema())
    filtered = {"mapreduce.input.pathFilter.class": "org.apache.spark.ml.image.SamplePathFilter", "sampleRatio": "0.0"}
    with platform(spark, filtered) as odd:
        work.spark = odd
        with pytest.raises(SourceChanged, match=r"Spark found 0 of 1 input files.*pathFilter"):
            work.run(log, 2 * DAY_MS)
        with pytest.raises(CorruptArtifact, match=rf"{key}: .*pathFilter"):
            scan(odd, work.location.blob, [(key, schema)], part_type(schema))


def test_a_view_notices_another_result_of_work_done_again(spark: SparkSession, tmp_path: Path) -> None:
    """Without these checksums a lost executor may take rows from a sum of doubles, or give them twice."""
    checked = [
        f"spark.sql.shuffle.orderIndependentChecksum.{each}" for each in ("enabled", "enableFullRetryOnMismatch")
    ]
    found: list[str | None] = []

    def install(rows: DataFrame, *arguments: Any, **more: Any) -> Any:
        found.extend(rows.sparkSession.conf.get(name, None) for name in checked)
        return install_desired_into_persist(rows, *arguments, **more)

    with (
        platform(spark, dict.fromkeys(checked, "false")) as odd,
        patch.object(refresh, "install_desired_into_persist", install),
    ):
        shards = ViewShards(odd, tmp_path)
        shards.commit("t", SCHEMA, 10, [((1, "a"), 5, 1)])
        shards.refresh(view("v", "SELECT name FROM t", ["t"]))
    assert found == ["true", "true"]


@pytest.mark.family("Sparks")
def test_settings_that_changed_results_do_not(spark: SparkSession, tmp_path: Path) -> None:
    with platform(spark, CHANGED_RESULTS) as odd:
        work = done(odd, tmp_path / "odd")
        assert work.contents() == oracle()
        assert work.read(odd) == rows_of(oracle())


@pytest.mark.family("Sparks")
def test_settings_of_the_active_session_change_no_result(spark: SparkSession, tmp_path: Path) -> None:
    """It is the process's own, which has the platform's settings. Spark asks it for the types in casts, and 3.5 for
    whether a cast fails."""
    settings = {**CHANGED_RESULTS, ANSI: str(not HAS_TRY_CAST).lower()}
    before = {name: spark.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        assert done(spark, tmp_path / "odd").contents() == oracle()
        active = java_sessions(spark).getActiveSession()
        assert active.isDefined()
        assert active.get().equals(spark._jsparkSession)
    finally:
        for name, old in before.items():
            spark.conf.unset(name) if old is None else spark.conf.set(name, old)


@pytest.mark.family("Sparks")
def test_a_platforms_parquet_writer_changes_no_file(spark: SparkSession, tmp_path: Path) -> None:
    def shapes(session: SparkSession, folder: Path) -> tuple[list[Any], int]:
        """The rows and encodings of each file by row group; and all bytes, which differ a little by times and ids."""
        done(session, folder)
        files = sorted(folder.rglob("part-*.parquet"))
        found = []
        for footer in map(pq.read_metadata, files):
            groups = [footer.row_group(place) for place in range(footer.num_row_groups)]
            columns = [[group.column(place) for place in range(group.num_columns)] for group in groups]
            found.append([[(each.num_values, each.path_in_schema, each.encodings) for each in row] for row in columns])
        return sorted(found), sum(file.stat().st_size for file in files)

    settings = {
        "parquet.bloom.filter.enabled": "true",
        "parquet.enable.dictionary": "false",
        "parquet.writer.version": "v2",
        "parquet.block.size": "1024",
        "parquet.page.size": "64",
    }
    expected, size = shapes(spark, tmp_path / "usual")
    assert expected
    with platform(spark, settings) as odd:
        found, found_size = shapes(odd, tmp_path / "odd")
    assert found == expected
    assert abs(found_size - size) < size / 20


def test_half_of_a_file_is_an_error_whatever_the_settings(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors of a source that was cut off, and of a part with a flipped byte."""
    with platform(spark, CHANGED_RESULTS) as odd:
        work = Work(odd, tmp_path)
        log = work.config("log", "json", {"id": "int", "name": "string"}, key="id")
        lines = "".join(json.dumps({"id": number, "name": f"{number * number}"}) + "\n" for number in range(20_000))
        packed, source = gzip.compress(lines.encode()), tmp_path / "log" / "1.json.gz"
        source.write_bytes(packed[: len(packed) // 2])
        stopping = log.model_copy(update={"source": log.source.model_copy(update={"on_bad_file": "fail"})})
        with pytest.raises(UnreadableFiles, match=r"1\.json\.gz: Compressed file ended"):  # before Spark opens it
            work.run(stopping, DAY_MS)
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
    """Spark's own table: each setting of a session that has a few values, with its values other than the default."""
    found: dict[str, list[str]] = {}
    scratch = spark.newSession()
    internal: Any = spark._jvm.org.apache.spark.sql.internal  # type: ignore[union-attr] # - there, in classic
    entries = getattr(getattr(internal, "SQLConf$"), "MODULE$").getConfigEntries().iterator()
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
            values = re.findall(r"[\w-]+", listed["values"]) if listed else []
            found[name] = [value for value in values if value.lower() != default.lower()]
            for value in found[name]:
                scratch.conf.set(name, value)
    return {name: values for name, values in found.items() if values}


@pytest.mark.skipif(not is_long(), reason="a run for each group of settings (PERSIST_PROFILE=nightly)")
def test_no_setting_of_spark_changes_a_result(spark: SparkSession, tmp_path: Path) -> None:
    """All together; if that changes a result, halves of them, down to the ones that do."""
    expected = oracle()
    table = table_of_settings(spark)
    assert len(table) > 200
    guilty: list[str] = []
    number = 0

    def search(settings: dict[str, str]) -> None:
        nonlocal guilty, number
        number += 1
        with platform(spark, settings) as odd:
            try:
                same = done(odd, tmp_path / str(number)).contents() == expected
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
