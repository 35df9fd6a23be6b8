"""Input files under any name and compression, their positions, and that decoding is lazy and parses each line once."""

from __future__ import annotations

import bz2
import gzip
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from persist_core.errors import InvalidInput
from persist_core.location.file.blob import FileBlob
from persist_core.location.mem import MemBlob
from persist_core.schema import ERR_POSITION, TIME
from persist_core.sources.input_file import InputFile
from persist_core.sources.natural_order import natural_key
from persist_core.time_text import parse_time
from persist_spark.compat import SPARK_VERSION
from persist_spark.decode.files import Copies, copies_in, readable
from persist_spark.frame import ORDER
from persist_spark.session import FASTER, stage_settings, use
from tests.sampling import sample
from tests.spark.decode_feed import Feed, access_to

COLUMNS: dict[str, Any] = {"id": "int"}
HOSTILE_NAMES = [
    "a b.json",
    "a%20b.json",
    "a#b=é.json",
    "q[1].json",
    "c{a,b}.json",
    "st*r?.json",
    "back\\slash.json",
    "co:lon.json",
    "plus+&;$,@!'().json",
    'quo"te.json',
    "\u00a0nbsp.json",
    "emoji\U0001f600.json",
    "u\u0301.json",
    "ls\u2028.json",
    "pi|pe^`<>.json",
    "-dash.json",
    "~tilde.json",
    "k=v/x=1/y.json",
    "at 00:00:00/co:lon.json.gz.json",
    "tab\t.json",
    "no suffix",
]


def input_file(path: Path) -> InputFile:
    facts = path.stat()
    times = (facts.st_mtime_ns // 10**6, facts.st_ctime_ns)
    return InputFile(str(path), path.name, facts.st_size, *times, None, natural_key(path.name))


@pytest.mark.parametrize("kind", ["json", "json with rest", "debezium-json", "csv"])
def test_each_day_runs_the_same_generated_code(feed: Feed, kind: str) -> None:
    """A date in the code, or a fresh name, would make the JVM compile and optimize it again for each batch."""
    form, _, rest = kind.partition(" with ")
    record = {"csv": "id\n1\n", "debezium-json": '{"op": "c", "after": {"id": 1}}'}.get(form, '{"id": 1, "more": "a"}')

    metrics: Any = feed.spark._jvm
    compiled = metrics.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME()

    def classes(day: str) -> int:
        before = compiled.getCount()
        feed.write(f"date={day}/a.txt", record)
        files = [input_file(feed.folder / f"date={day}" / "a.txt")]
        files = [replace(file, date_ms=parse_time(day)) for file in files]
        source = {"path": "date={date:%Y-%m-%d}/*.txt"} | ({"rest": rest} if rest else {})
        columns = COLUMNS | ({rest: "json"} if rest else {})
        frame = feed.frame(form, columns, files, time="path", order="log", source=source)
        assert [row[TIME] for row in frame.collect()] == [parse_time(day)]
        return int(compiled.getCount() - before)

    classes("2026-01-01")  # some of it another test may have compiled
    assert compiled.getCount() > 0
    assert classes("2026-02-03") == 0


@pytest.mark.parametrize("count", sample([1, 3, len(HOSTILE_NAMES)], 1, "names"))
@pytest.mark.family("decoders")
def test_files_of_any_name_are_read_and_know_their_place(feed: Feed, count: int) -> None:
    odd = feed.folder / "dir x%20#[1]{a,b}*?=é"
    feed.folder = odd
    names = HOSTILE_NAMES[-count:]
    for index, name in enumerate(names):
        feed.write(name, f'{{"id":{index}}}\n')
    files = [input_file(odd / name) for name in names]
    frame = feed.frame("json", COLUMNS, files)
    found = sorted((row["id"], row[ORDER]["file"]) for row in frame.collect())
    assert found == [(index, file.order) for index, file in enumerate(files)], "each file is read once"


def test_compressed_files_are_read_by_their_suffix(feed: Feed) -> None:
    def text(index: int) -> bytes:
        return f'{{"id":{index}}}\n{{"id":{index + 1}}}'.encode()

    feed.write("0.json", text(0))
    feed.write("1.json.gz", gzip.compress(text(10)) + gzip.compress(b"\n" + text(20)))
    feed.write("2.json.bz2", bz2.compress(text(30)))
    feed.write("3.json.zst", zstandard.compress(text(40)) + zstandard.compress(b"\n" + text(50)))
    feed.write("4.json.gz", gzip.compress(b""))
    feed.write("5:6.json.gz", gzip.compress(text(60)))
    for suffix in ("gz", "bz2", "zst"):
        feed.write(f"7.json.{suffix}", b"")
    rows = feed.records("json", COLUMNS)
    assert [row["id"] for row in rows] == [0, 1, 10, 11, 20, 21, 30, 31, 40, 41, 50, 51, 60, 61]


@pytest.mark.parametrize("is_packed", [False, True])
def test_small_files_share_a_task_and_keep_their_lines(feed: Feed, is_packed: bool) -> None:
    suffix = ".gz" if is_packed else ""
    padding = os.urandom(600_000 if is_packed else 1_500_000).hex()  # which gzip makes half as long
    for index in range(6):
        data = f'{{"id":{10 * index}}}\n\n{{"id":{10 * index + 1},"pad":"{padding}"}}\nodd\n'.encode()
        feed.write(f"{index}.json{suffix}", gzip.compress(data) if is_packed else data)
    frame = feed.frame("json", COLUMNS)
    assert frame._jdf.rdd().getNumPartitions() == (4 if is_packed else 3), "18 MB of text, 29 of packed text"
    rows = frame.collect()
    ids = sorted((row["id"], row[ORDER]["file"], row[ORDER]["row"]) for row in rows if row["id"] is not None)
    files = sorted({row[ORDER]["file"] for row in rows})
    assert ids == [(10 * index + row // 2, file, row) for index, file in enumerate(files) for row in (0, 2)]
    errs = sorted(row[ERR_POSITION] for row in rows if row["id"] is None)
    assert errs == [f"{index}.json{suffix}, line 4" for index in range(6)]


def test_many_tiny_files_are_read_by_several_tasks(feed: Feed) -> None:
    for index in range(300):
        feed.write(f"{index}.json", f'{{"id":{index}}}\n')
    frame = feed.frame("json", COLUMNS)
    assert frame._jdf.rdd().getNumPartitions() == 2, "256 files a task"
    assert sorted(row["id"] for row in frame.collect()) == list(range(300))


def test_many_files_are_listed_by_few_tasks(feed: Feed) -> None:
    for index in range(300):
        feed.write(f"{index}.json", '{"id":1}\n')
    context = feed.spark.sparkContext
    feed = Feed(feed.spark.newSession(), feed.folder)
    use(feed.spark, {**FASTER, "spark.sql.sources.parallelPartitionDiscovery.threshold": "1"})
    context.setJobGroup("listing", "files are listed")
    feed.frame("json", COLUMNS)
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(number) for number in tracker.getJobIdsForGroup("listing")]
    stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
    assert [stage and stage.numTasks for stage in stages] == [256]


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_a_file_in_anothers_place_is_not_read_from_a_cache(feed: Feed, kind: str) -> None:
    """All jobs of an application share Spark's cache, in which a job keeps its records."""

    def write(name: str) -> None:
        if kind == "json":
            feed.write("a", json.dumps({"id": 1, "name": name}))
        else:
            pq.write_table(pa.table({"id": [1], "name": [name]}), feed.folder / "a")

    columns = COLUMNS | {"name": "string"}
    write("before")
    kept = feed.frame(kind, columns).persist()
    try:
        assert [row["name"] for row in kept.collect()] == ["before"]
        write("beside")
        assert [row["name"] for row in feed.frame(kind, columns).collect()] == ["beside"]
    finally:
        kept.unpersist()


def test_a_line_length_of_the_platform_drops_no_record(feed: Feed) -> None:
    feed.write("1.json", f'{{"id":1,"pad":"{"x" * 100}"}}\n{{"id":2}}\n')
    feed.write("2.json.gz", gzip.compress((feed.folder / "1.json").read_bytes().replace(b":1,", b":3,")))
    feed = Feed(feed.spark.newSession(), feed.folder)
    feed.spark.conf.set("mapreduce.input.linerecordreader.line.maxlength", "20")
    assert [row["id"] for row in feed.records("json", COLUMNS)] == [1, 2, 3, 2]


def test_a_path_is_local_if_the_platforms_default_is_not(feed: Feed) -> None:
    feed.write("1.json", '{"id":1}')
    feed = Feed(feed.spark.newSession(), feed.folder)
    feed.spark.conf.set("fs.defaultFS", "hdfs://nowhere.invalid:8020")
    assert [row["id"] for row in feed.records("json", COLUMNS)] == [1]


def test_zstd_is_unpacked_for_a_spark_that_can_not(feed: Feed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("persist_spark.decode.files.READS_ZSTD_TEXT", False)
    feed.write("1.json.zst", zstandard.compress(b'{"id":1}\n') + zstandard.compress(b'{"id":2}\n'))
    file = input_file(feed.folder / "1.json.zst")
    with pytest.raises(InvalidInput, match=r"takes no files: Spark needs a copy of file '1\.json\.zst'"):
        readable([file], Copies(MemBlob(), "t/{}".format, access_to(feed.folder)), {}, keeps_header=False)
    with copies_in(FileBlob(tmp_path / "blobs"), "t/{}".format, access_to(feed.folder)) as copies:
        (found,) = readable([file], copies, {}, keeps_header=False)
        assert found.path == str(tmp_path / "blobs/t/input-000000.gz")
        assert gzip.decompress(Path(found.path).read_bytes()) == b'{"id":1}\n{"id":2}\n'
    assert list(copies.blob.list_keys_and_metadata("")) == []
    assert [row["id"] for row in feed.records("json", COLUMNS)] == [1, 2]


def test_a_gzip_file_that_is_cut_off_fails_the_job_by_name(feed: Feed) -> None:
    feed.write("whole.json", '{"id":1}\n')
    feed.write("cut.json.gz", gzip.compress(os.urandom(4000))[:-100])
    # 3.5 names the file only in the executor's log
    with pytest.raises(Exception, match=r"cut\.json\.gz" if SPARK_VERSION >= (4, 0) else "Unexpected end of input"):
        feed.records("json", COLUMNS)


@pytest.mark.family("decoders")
def test_blocks_of_a_large_file_keep_their_order(feed: Feed) -> None:
    count = 20_000
    feed.write("1.json", "".join(json.dumps({"id": index, "pad": "x" * 50}) + "\n" for index in range(count)))
    feed = Feed(feed.spark.newSession(), feed.folder)
    use(feed.spark, {"spark.sql.files.maxPartitionBytes": "64k", "spark.sql.files.openCostInBytes": "1k"})
    rows = feed.frame("json", COLUMNS).orderBy(ORDER).select("id", f"{ORDER}.block").collect()
    assert [row["id"] for row in rows] == list(range(count))
    assert len({row["block"] for row in rows}) > 10


@pytest.mark.family("decoders")
def test_orders_compare_alike_by_operator_sort_and_aggregate(feed: Feed) -> None:
    sources = [{"lsn": 5}, {}, {"lsn": 7}, {"lsn": None}, {"lsn": 6}]
    messages = [{"op": "c", "after": {"id": i}, "source": source} for i, source in enumerate(sources)]
    feed.write("1.json", "\n".join(map(json.dumps, messages)))
    frame = feed.frame("debezium-json", COLUMNS, order="log")
    ascending = [row["id"] for row in frame.orderBy(ORDER).collect()]
    assert ascending == [1, 3, 0, 4, 2]
    assert frame.selectExpr(f"max_by(id, {ORDER})", f"min_by(id, {ORDER})").first() == (2, 1)
    pairs = frame.select(frame.id.alias("a"), frame[ORDER].alias("x")).crossJoin(
        frame.select(frame.id.alias("b"), frame[ORDER].alias("y"))
    )
    less = {(row["a"], row["b"]) for row in pairs.where("x < y").collect()}
    assert less == {(a, b) for i, a in enumerate(ascending) for b in ascending[i + 1 :]}


def test_decoding_runs_no_job_and_parses_a_line_once(feed: Feed) -> None:
    for index in range(40):
        feed.write(f"{index}.json", '{"id":1,"a":"x","d":1.5,"t":"2026-01-01"}\n')
    columns = {"id": "int", "a": "string", "d": "decimal(9,2)", "t": "timestamp"}
    context = feed.spark.sparkContext
    context.setJobGroup("decode", "nothing should run")
    feed = Feed(feed.spark.newSession(), feed.folder)
    use(feed.spark, {**FASTER, **stage_settings(0)})
    frame = feed.frame("json", columns, time={"field": "t"})
    assert list(context.statusTracker().getJobIdsForGroup("decode")) == []
    context.setJobGroup("after", "anything may run")
    plan = frame.where("_persist_op = 'u' and id > 0 and _persist_err_kind is null")._jdf.queryExecution()
    assert str(plan.executedPlan()).count("from_json(") == 1


def test_a_session_in_another_time_zone_is_refused(feed: Feed) -> None:
    feed = Feed(feed.spark.newSession(), feed.folder)
    feed.spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    with pytest.raises(InvalidInput, match="Europe/Berlin"):
        feed.frame("json", COLUMNS)
