"""Files whose bytes are not what their format says: the rest of the batch commits, or one clear line stops the run."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from persist_core.alerts.health import healths
from persist_core.config.thresholds import ERRORS
from persist_core.contents.err_groups import lines_of
from persist_core.errors import SourceChanged, UnclearOrder, UnreadableFiles
from persist_core.inspection.inspector import Inspector
from persist_core.keys import attempt_prefix
from persist_core.schema import ERR_KIND, ERR_MESSAGE, ERR_PAYLOAD
from persist_spark.upsert import job, set_aside
from persist_spark.upsert.job import run_write_job
from tests.sampling import is_long, sample
from tests.spark.test_long_records import PACKERS
from tests.spark.test_set_aside import UNTIL, Dying, persist_run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def lines(first: int, count: int = 2) -> bytes:
    return b"".join(b'{"id": %d, "name": "n%d"}\n' % (number, number) for number in range(first, first + count))


def noisy(size: int) -> bytes:
    """A line that no compression shortens."""
    return b'{"id": 99, "name": "' + os.urandom(size).hex().encode() + b'"}\n'


def parquet(path: Path, *, is_damaged: bool = False) -> None:
    pq.write_table(pa.table({"id": [1, 2], "name": ["x" * 100, "y" * 100]}), path, compression="none")
    if is_damaged:
        data = bytearray(path.read_bytes())
        data[4:40] = b"\xff" * 36  # the first page's header
        path.write_bytes(bytes(data))


BAD: dict[str, Callable[[], bytes]] = {
    "cut, found by Spark.json.gz": lambda: gzip.compress(noisy(2_000))[:-100],
    "cut, found by the job.json.gz": lambda: gzip.compress(noisy(100_000))[:-100],
    "no gzip.json.gz": lambda: lines(50),
    "damaged inside.json.gz": lambda: (data := gzip.compress(lines(50, 500)))[:900] + b"\0" * 50 + data[950:],
    "no bzip2.json.bz2": lambda: lines(50),
    "cut.json.bz2": lambda: bz2.compress(lines(50, 500))[:-20],
    "no zstd.json.zst": lambda: lines(50),
    "cut.json.zst": lambda: zstandard.compress(lines(50, 500))[:-20],
    "cut, too short to be packed.json.zst": lambda: zstandard.compress(noisy(16))[:-30],
    "gzip without its suffix.json": lambda: gzip.compress(lines(50)),
    "gzip twice.json.gz": lambda: gzip.compress(gzip.compress(lines(50))),
    "zstd twice.json.gz": lambda: gzip.compress(zstandard.compress(lines(50))),
    "in UTF-16.json": lambda: lines(50).decode().encode("utf-16"),
    "in UTF-16 without its mark.json": lambda: lines(50).decode().encode("utf-16-le"),
    "in an array.json": lambda: b"\n[\n" + b",\n".join(lines(50).splitlines()) + b"\n]\n",
    "in an array.json.gz": lambda: gzip.compress(b"[" + lines(50)),
}


@pytest.mark.family("decoders")
def test_one_commit_without_bad_files_of_each_kind_and_they_heal(spark: SparkSession, tmp_path: Path) -> None:
    things = Dying(tmp_path)
    for number in range(30):
        (tmp_path / "in" / f"{number}.json.gz").write_bytes(gzip.compress(lines(1_000 + 2 * number)))
    for name, data in BAD.items():
        (tmp_path / "in" / name).write_bytes(data())
    stats = things.commit(spark, things.mint(UNTIL))
    assert (stats["inserts"], stats["errors"], stats["records_read"]) == (60 + len(BAD), len(BAD), 60 + len(BAD))
    assert len(things.names()) == 60, "no record of a bad file is taken"
    errs = {json.loads(err[ERR_PAYLOAD])["file"]: err for err in things.errors()}
    assert errs.keys() == BAD.keys()
    for name, err in errs.items():
        facts, path = json.loads(err[ERR_PAYLOAD]), tmp_path / "in" / name
        assert (err[ERR_KIND], facts["size_bytes"]) == ("file", path.stat().st_size)
        assert facts["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
        assert facts["reason"] in err[ERR_MESSAGE]
        assert "None of its records is taken. Put a corrected file of this name in its place" in err[ERR_MESSAGE]
    reasons = {name: json.loads(err[ERR_PAYLOAD])["reason"] for name, err in errs.items()}
    ended = "Compressed file ended before the end-of-stream marker was reached"
    assert reasons["cut, found by Spark.json.gz"] == reasons["cut, found by the job.json.gz"] == ended
    assert reasons["no gzip.json.gz"].startswith("Not a gzipped file")
    assert reasons["cut.json.zst"] == reasons["cut, too short to be packed.json.zst"] == "Truncated compressed stream"
    assert reasons["gzip without its suffix.json"].startswith(
        "it holds gzip where text is expected; give it the suffix"
    )
    assert reasons["zstd twice.json.gz"].startswith("it holds zstd where text is expected")
    for name in ("in UTF-16.json", "in UTF-16 without its mark.json"):
        assert reasons[name].startswith("it holds UTF-16 where text is expected")
    assert reasons["in an array.json"] == "it holds a JSON array; expected one object a line (JSON lines)"
    (health,) = healths(Inspector(things.client), ["things"]).values()
    assert health.notes is not None
    assert health.notes[ERRORS] == f"file 'cut, found by Spark.json.gz' could not be read; {len(BAD)} such files"
    assert things.mint(2 * UNTIL).input_key is None, "they are not read again as they are"
    for number, name in enumerate(BAD):
        (tmp_path / "in" / name).unlink()
        (tmp_path / "in" / name).write_bytes(_packed(name, lines(2_000 + 2 * number)))
    things.commit(spark, things.mint(2 * UNTIL))
    assert (len(things.names()), things.errors()) == (60 + 2 * len(BAD), [])
    assert healths(Inspector(things.client), ["things"])["things"].notes is None


def _packed(name: str, data: bytes) -> bytes:
    return PACKERS.get(Path(name).suffix, bytes)(data)


@pytest.mark.family("decoders")
def test_a_bad_file_does_not_answer_the_question(spark: SparkSession, tmp_path: Path) -> None:
    """No record of the feed says its place: the err of a file has no order either."""
    source = {"path": "in/*", "format": "debezium-json"}
    things = Dying(tmp_path, source=source, delete={}, limits={"max_errors": None})
    (tmp_path / "in" / "no gzip.json.gz").write_bytes(lines(50))
    things.drop("a.json", {"op": "u", "after": {"id": 1}, "source": {"connector": "vitess", "vgtid": "[]"}})
    with pytest.raises(UnclearOrder, match="no record of the feed says its place"):
        things.write(spark, things.mint(UNTIL))


@pytest.mark.family("decoders")
def test_what_a_user_sees_of_one_bad_file_among_500(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    things = Dying(tmp_path)
    for number in range(500):
        (tmp_path / "in" / f"{number}.json").write_bytes(lines(number, 1))
    (tmp_path / "in" / "77.json").unlink()
    (tmp_path / "in" / "77.json.gz").write_bytes(gzip.compress(noisy(2_000))[:-100])
    stats = things.commit(spark, things.mint(UNTIL))
    assert (stats["inserts"], stats["errors"], len(things.names())) == (500, 1, 499)
    commit = things.client.state("things").newest_commit
    assert commit is not None
    (line,) = lines_of(things.client.manifest(commit).err_groups)
    said = "Compressed file ended before the end-of-stream marker was reached"
    assert line.startswith("1 file: ")
    assert said in line
    assert "77.json.gz" in line
    assert [said in text and "77.json.gz" in text for text in caplog.messages if "set aside" in text] == [True]


@pytest.mark.parametrize("format_name", ["parquet", "csv"])
@pytest.mark.family("decoders")
def test_files_of_other_formats(spark: SparkSession, tmp_path: Path, format_name: str) -> None:
    things = Dying(tmp_path, source={"path": "in/*", "format": format_name})
    folder = tmp_path / "in"
    if format_name == "parquet":
        parquet(folder / "a.parquet")
        parquet(folder / "b.parquet", is_damaged=True)
        (folder / "c.parquet").write_bytes(b"PAR1 and no more")
    else:
        (folder / "a.csv.gz").write_bytes(gzip.compress(b"id,name\n1,a\n2,b\n"))
        (folder / "b.csv.gz").write_bytes(gzip.compress(b"id,name\n3," + os.urandom(3_000).hex().encode())[:-100])
        (folder / "c.csv.gz").write_bytes(b"id,name\n4,a\n")
    stats = things.commit(spark, things.mint(UNTIL))
    assert (stats["inserts"], stats["errors"]) == (4, 2)
    assert sorted(json.loads(err[ERR_PAYLOAD])["file"][0] for err in things.errors()) == ["b", "c"]


def packed_table(table: pa.Table) -> bytes:
    """A Parquet file."""
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def good_file(kind: str, first: int) -> bytes:
    """Two records, whose order by `seq` is known."""
    rows = [{"id": number, "name": f"n{number}", "seq": number} for number in (first, first + 1)]
    if kind.endswith("csv"):
        return b"id,name,seq\n" + b"".join(f"{row['id']},{row['name']},{row['seq']}\n".encode() for row in rows)
    if kind.endswith("parquet"):
        return packed_table(pa.Table.from_pylist(rows))
    if kind == "dms-json":
        metadata = {"timestamp": "2026-01-01T00:00:00Z", "operation": "insert", "record-type": "data"}
        records = [{"data": row, "metadata": metadata} for row in rows]
    else:
        place = {"connector": "postgresql", "ts_ms": 1, "lsn": 1}
        envelopes = [{"after": row, "op": "c", "source": place, "ts_ms": 1, "seq": row["seq"]} for row in rows]
        records = rows if kind == "json" else envelopes
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def damaged_file(kind: str, damage: str) -> tuple[str, bytes]:
    """A file that cannot be read, or a line of which is too long, and its suffix."""
    if damage == "long line":
        return "", good_file(kind, 50) + b"x" * (2 << 20) + b"\n"
    if damage == "cut" and not kind.endswith("parquet"):
        return ".gz", gzip.compress(good_file(kind, 50) + noisy(2_000))[:-100]
    if damage == "cut":
        return "", good_file(kind, 50)[:-20]
    return "", packed_table(pa.table([[7], ["a"], [1], [2]], ["id", "name", "Zip", "ZIP"]))


OWN_ORDERS: list[Any] = ["auto", {"by": "auto", "mode": "log"}]  # of the formats that have one
ORDERS: list[Any] = [
    "position",
    {"by": "position", "mode": "log"},
    {"by": {"seq": "bigint"}},
    {"by": ["seq"], "mode": "log"},
    {"by": ["id"], "mode": "log"},
]
PLAIN = ("csv", "json", "parquet")
DAMAGES = [
    (kind, order, damage)
    for kind in (*PLAIN, "dms-csv", "dms-parquet", "dms-json", "debezium-json")
    for order in (ORDERS if kind in PLAIN else OWN_ORDERS + ORDERS)
    for damage in (("cut", "two names") if kind.endswith("parquet") else ("cut", "long line"))
]


@pytest.mark.parametrize(("kind", "order", "damage"), sample(DAMAGES, 4, "damages by order"))
def test_a_bad_file_beside_a_good_one_in_any_order(
    spark: SparkSession, tmp_path: Path, kind: str, order: Any, damage: str
) -> None:
    deletes: Any = "none" if kind in PLAIN else {}
    limits = {"max_record_bytes": 1 << 20, "max_errors": 5}
    source = {"path": "in/*", "format": kind}
    things = Dying(tmp_path, source=source, order=order, limits=limits, delete=deletes)
    suffix, data = damaged_file(kind, damage)
    bad = tmp_path / "in" / f"bad{suffix}"
    bad.write_bytes(data)
    (tmp_path / "in" / "good").write_bytes(good_file(kind, 1))
    stats = things.commit(spark, things.mint(UNTIL))
    read = 2 if damage == "long line" else 0  # of the bad file
    assert (stats["inserts"], stats["errors"]) == (3 + read, 1)
    (err,) = things.errors()
    if damage == "long line":
        return
    assert err[ERR_KIND] == "file"
    bad.write_bytes(_packed(bad.name, good_file(kind, 3)))
    things.commit(spark, things.mint(2 * UNTIL))
    assert (things.names(), things.errors()) == (["n1", "n2", "n3", "n4"], [])


@pytest.mark.family("decoders")
def test_bad_files_of_three_kinds_cost_three_stagings(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    things = Dying(tmp_path, source={"path": "in/*", "format": "parquet"})
    for name in "abcd":
        parquet(tmp_path / "in" / f"{name}.parquet", is_damaged=name in "bc")
    (tmp_path / "in" / "e.parquet").write_bytes(b"PAR1 and no more")
    pq.write_table(pa.table({"id": [9]}), tmp_path / "in" / "f.parquet", compression="brotli")
    stagings: list[object] = []
    whole: Any = set_aside.stage_without_bad_files

    def counted(*arguments: Any) -> Any:
        def stage(aside: Any) -> Any:
            stagings.append(aside)
            return arguments[-1](aside)

        return whole(*arguments[:-1], stage)

    monkeypatch.setattr(job, "stage_without_bad_files", counted)
    stats = things.commit(spark, things.mint(UNTIL))
    assert (stats["eligible"], stats["errors"]) == (6, 4)
    assert len(stagings) == 3, "the footers stop the first one before Spark reads, Brotli the second one"
    reasons = {facts["file"]: facts["reason"] for facts in (json.loads(err[ERR_PAYLOAD]) for err in things.errors())}
    assert reasons.keys() == {"b.parquet", "c.parquet", "e.parquet", "f.parquet"}
    said = "this Spark has no Brotli, with which it is compressed; write it with zstd, snappy or gzip"
    assert reasons["f.parquet"] == said


def test_what_a_user_sees_of_a_bad_file_that_stops_the_run(spark: SparkSession, tmp_path: Path) -> None:
    things = Dying(tmp_path, source={"path": "in/*", "format": "json", "on_bad_file": "fail"})
    things.drop("a.json", {"id": 1, "name": "a"})
    bad = tmp_path / "in" / "b.json.gz"
    bad.write_bytes(gzip.compress(noisy(2_000))[:-100])
    message = (
        f"an input file cannot be read: {bad}: Compressed file ended before the end-of-stream marker was"
        " reached. Nothing was committed: put a complete file in its place, or remove it; with source.on_bad_file:"
        " quarantine the run goes on without it"
    )
    with pytest.raises(UnreadableFiles) as stopped:
        things.write(spark, things.mint(UNTIL))
    assert str(stopped.value) == message
    if is_long():  # a Spark of its own; tests/core/cli/test_run.py prints a job's message too
        status, output = persist_run(things)
        assert status != 0
        assert [line for line in output.splitlines() if "b.json.gz" in line] == [f"persist: {message}"]
        assert "\tat " not in output
    assert things.client.state("things").newest_commit is None


def test_too_many_bad_files_stop_the_run_and_are_named(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(set_aside, "MAX_BAD_FILES", 3)
    things = Dying(tmp_path)
    things.drop("good.json", {"id": 1, "name": "a"})
    for number in range(8):
        (tmp_path / "in" / f"{number}.json.gz").write_bytes(lines(number))
    spec = things.spec(things.mint(UNTIL))
    with pytest.raises(UnreadableFiles) as stopped:
        run_write_job(spark, spec, things.location)
    assert "8 input files cannot be read" in str(stopped.value)
    assert "At most 3 files of a batch are set aside" in str(stopped.value)
    staged = things.client.blob.list_keys_and_metadata(attempt_prefix("things", spec.attempt))
    assert list(staged) == []


def test_a_failure_not_repeated_alone_sets_nothing_aside(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    things = Dying(tmp_path)
    for name in "ab":
        (tmp_path / "in" / f"{name}.json.gz").write_bytes(gzip.compress(noisy(2_000))[:-100])
    description = things.mint(UNTIL)
    monkeypatch.setattr(set_aside, "read_files", lambda *_: None)  # as after an executor was lost, or a store was away
    with pytest.raises(Exception, match=r"EOFException|end of input"):
        things.write(spark, description)


def test_a_file_that_changes_while_it_is_read_is_not_bad(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    things = Dying(tmp_path)
    path = tmp_path / "in" / "a.json.gz"
    path.write_bytes(gzip.compress(noisy(2_000))[:-100])
    description = things.mint(UNTIL)
    whole = gzip.compress(lines(1))

    def changed(*arguments: Any, **options: Any) -> Any:
        path.write_bytes(whole)
        return found(*arguments, **options)

    found = set_aside._bad_files
    monkeypatch.setattr(set_aside, "_bad_files", changed)
    with pytest.raises(SourceChanged, match=r"a\.json\.gz"):
        things.write(spark, description)
