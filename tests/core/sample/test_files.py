"""A sample of files: whole lines from their start, whatever their compression, and a copy that Spark reads alike."""

from __future__ import annotations

import bz2
import gzip
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from persist_core.config.collection import CollectionConfig
from persist_core.errors import Determinate
from persist_core.location.mem import MemBlob
from persist_core.sample.files import SampledFile, copied, raw_rows, take
from persist_core.sample.guess import guess
from persist_core.sources.feed import LocalFeed
from persist_core.sources.files import FileSource

LINES = tuple(f'{{"id": {number}}}\n'.encode() for number in range(10))
TEXT = b"".join(LINES)


def config_of(folder: Path, path: str, format: str = "json") -> CollectionConfig:
    body = {"name": "things", "source": {"path": path, "format": format}, "key": "id", "columns": {"id": "bigint"}}
    return CollectionConfig.model_validate({**body, "delete": "none", "base_dir": str(folder)})


def sample(config: CollectionConfig, limit: int) -> tuple[SampledFile, ...]:
    files = FileSource(config, MemBlob()).freeze(None, until=None).frozen.files
    return take(LocalFeed(config.source_pattern()), files, limit, config.source)


@pytest.mark.parametrize(
    ("name", "compress"),
    [
        ("a.jsonl", bytes),
        ("a.jsonl.gz", gzip.compress),
        ("a.jsonl.gz", lambda text: gzip.compress(text[:20]) + gzip.compress(text[20:])),
        ("a.jsonl.bz2", bz2.compress),
        ("a.jsonl.zst", zstandard.compress),
    ],
    ids=["plain", "gzip", "gzip of two members", "bzip2", "zstd"],
)
def test_lines_and_their_copy_are_those_of_the_file(
    name: str, compress: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    (tmp_path / "in" / "2026-01-01").mkdir(parents=True)
    (tmp_path / "in" / "2026-01-01" / name).write_bytes(compress(TEXT))
    config = config_of(tmp_path, "in/{date:%Y-%m-%d}/*")
    (some,) = sample(config, 3)
    assert (some.lines, some.is_whole, some.problem) == (LINES[:3], False, None)
    (found,) = sample(config, 10)
    assert (found.lines, found.is_whole, found.records) == (LINES, True, 10)
    again = sample(copied(config, [found], tmp_path / "copy"), 100)
    assert [(each.lines, each.file.relative, each.file.date_ms, each.file.order) for each in again] == [
        (LINES, found.file.relative, found.file.date_ms, found.file.order)
    ]


def test_the_oldest_and_the_newest_files_share_the_limit(tmp_path: Path) -> None:
    for number in range(12):
        (tmp_path / f"part-{number}.jsonl").write_bytes(TEXT)
    found = sample(config_of(tmp_path, "*.jsonl"), 16)
    assert [(each.file.relative, each.records) for each in found] == [("part-0.jsonl", 8), ("part-11.jsonl", 8)]
    found = sample(config_of(tmp_path, "*.jsonl"), 36)
    assert [each.file.relative for each in found] == [f"part-{number}.jsonl" for number in (0, 1, 10, 11)]


def test_a_header_is_no_record(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id\n1\n2\n3\n")
    (found,) = sample(config_of(tmp_path, "*.csv", "csv"), 2)
    assert (found.lines, found.records) == ((b"id\n", b"1\n", b"2\n"), 2)


def test_a_record_of_several_lines_is_one(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'id,text\n1,"a\nb"\n2,c\n3,"d\r\ne"\n4,f')
    config = config_of(tmp_path, "*.csv", "csv")
    (found,) = sample(config, 3)
    assert (found.lines[1:], found.records) == ((b'1,"a\nb"\n', b"2,c\n", b'3,"d\r\ne"\n'), 3)
    assert [each.row["text"] for each in raw_rows([found], "csv")] == ["a\nb", "c", "d \ne"]
    (whole,) = sample(config, 9)
    assert (whole.lines[-1], whole.is_whole) == (b"4,f", True)


def test_odd_fields_of_csv_are_fields(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"id,name\n1,a\rb\n2," + b"x" * 200_000 + b"\n")
    rows = raw_rows(sample(config_of(tmp_path, "*.csv", "csv"), 2), "csv")
    assert [(each.row["id"], len(each.row["name"])) for each in rows] == [("1", 3), ("2", 200_000)]


@pytest.mark.parametrize(
    ("text", "lines", "is_whole"),
    [(b"", (), True), (b"1\n2", (b"1\n", b"2"), True), (b"1\r\n\n2\n", (b"1\r\n", b"\n", b"2\n"), True)],
    ids=["empty", "no line end", "blank line"],
)
def test_odd_ends(text: bytes, lines: tuple[bytes, ...], is_whole: bool, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(text)
    (found,) = sample(config_of(tmp_path, "*"), 9)
    assert (found.lines, found.is_whole) == (lines, is_whole)


def test_a_truncated_file_gives_its_whole_lines_and_says_so(tmp_path: Path) -> None:
    whole = b"".join(f'{{"id": {number * 7919 % 10007}}}\n'.encode() for number in range(20_000))
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(whole)[:-2_000])
    (found,) = sample(config_of(tmp_path, "*"), 10_000_000)
    assert whole.startswith(b"".join(found.lines))
    assert not found.is_whole
    (tmp_path / "a.jsonl.gz").write_bytes(b"no gzip")
    (found,) = sample(config_of(tmp_path, "*"), 10)
    assert found.lines == ()
    assert found.problem is not None
    assert "damaged or incomplete" in found.problem


def test_parquet_gives_its_first_rows(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": list(range(100))}), tmp_path / "a.parquet", row_group_size=7)
    config = config_of(tmp_path, "*.parquet", "parquet")
    (found,) = sample(config, 5)
    assert (found.records, found.is_whole) == (5, False)
    assert pq.read_table(next(Path(tmp_path / "c").rglob("*.parquet"), tmp_path / "a.parquet")).num_rows == 100
    copied(config, [found], tmp_path / "c")
    assert pq.read_table(tmp_path / "c" / "a.parquet")["id"].to_pylist() == [0, 1, 2, 3, 4]
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and nothing else")
    (found,) = sample(config, 5)
    assert found.problem is not None
    assert "cannot be read" in found.problem


def test_a_sample_of_large_rows_is_small(tmp_path: Path) -> None:
    large = pa.table({"id": list(range(300)), "text": ["x" * (1 << 20)] * 300})
    pq.write_table(large, tmp_path / "a.parquet", row_group_size=50)
    (found,) = sample(config_of(tmp_path, "*.parquet", "parquet"), 200)
    assert (0 < found.records < 100, found.is_whole) == (True, False)


@pytest.mark.parametrize("others", [["a/b"], ["n" * 300]], ids=["a folder's name", "too long"])
def test_names_that_only_objects_can_have(others: list[str], tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(TEXT)
    (found,) = sample(config := config_of(tmp_path, "*"), 5)
    named = [replace(found, file=replace(found.file, path=f"{tmp_path}/{name}")) for name in others]
    with pytest.raises(Determinate, match=f"{others[0]} cannot be copied"):
        copied(config, [found, *named], tmp_path / "c")


def test_the_text_of_null_in_csv(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,text\n1,NULL\n2,\\N\n3,\n")
    found = sample(config_of(tmp_path, "*.csv", "csv"), 9)
    wanted = {
        ("csv", None): ["NULL", "\\N", None],
        ("dms-csv", None): [None, "\\N", None],
        ("dms-csv", "\\N"): ["NULL", None, None],
    }
    for (kind, null), texts in wanted.items():
        assert [each.row["text"] for each in raw_rows(found, kind, null_value=null)] == texts


def test_times_of_parquet_are_guessed_and_copied_as_stored(tmp_path: Path) -> None:
    """Python has no type for nanoseconds; INT96, the form of Spark, holds years that nanoseconds cannot hold."""
    table = pa.table({"id": pa.array([1_767_225_600_000_000_000], pa.timestamp("ns"))})
    pq.write_table(table, tmp_path / "a.parquet")
    late = pa.table({"id": pa.array([253_402_214_400_000], pa.timestamp("ms"))})  # 9999-12-31
    pq.write_table(late, tmp_path / "b.parquet", use_deprecated_int96_timestamps=True, store_schema=False)
    found = sample(config_of(tmp_path, "*.parquet", "parquet"), 10)
    rows = [row.row["id"] for row in raw_rows(found, "parquet")]
    assert rows == ["2026-01-01T00:00:00.000000000Z", datetime(9999, 12, 31, tzinfo=UTC)]
    assert [str(guess("id", [row])).split("'")[1] for row in rows] == ["timestamp", "timestamp"]


def test_times_of_int96_are_utc_in_the_copy(tmp_path: Path) -> None:
    """As Spark reads them, whatever the collection's time zone is; other times of the file stay local."""
    time = pa.timestamp("us")
    nested = [pa.struct([("a", time), ("b", pa.int64())]), pa.map_(pa.string(), pa.list_(time)), pa.large_list(time)]
    values = [
        [datetime(2026, 1, 1)],
        [{"a": None, "b": 1}],
        [[("x", [datetime(2026, 1, 2)])]],
        [[datetime(2026, 1, 3)]],
    ]
    table = pa.table([pa.array(*each) for each in zip(values, [time, *nested], strict=True)], [*"tsml"])
    for name, is_int96 in (("a", True), ("b", False)):
        pq.write_table(table, tmp_path / f"{name}.parquet", use_deprecated_int96_timestamps=is_int96)
    config = config_of(tmp_path, "*.parquet", "parquet")
    copied(config, sample(config, 10), tmp_path / "c")
    found, local = (pq.read_table(tmp_path / "c" / f"{name}.parquet") for name in "ab")
    assert [str(each.type).count("timestamp[us, tz=UTC]") for each in found.schema] == [1, 1, 1, 1]
    assert found["m"].to_pylist() == [[("x", [datetime(2026, 1, 2, tzinfo=UTC)])]]
    assert local.schema == table.schema
