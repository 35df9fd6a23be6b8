"""CSV, Parquet and DMS files to records: headers, deletes, compression, broken lines, differing schemas."""

from __future__ import annotations

import gzip
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from persist_core.config import CollectionConfig
from persist_core.errors import SourceChanged
from persist_core.location.mem import MemBlob
from persist_core.schema import ERR_KIND, ERR_MESSAGE, ERR_PAYLOAD
from persist_core.sources.files import FileSource
from persist_spark.decode import decode
from persist_spark.frame import BAD_KEY, OP, ORDER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = {"id": "bigint", "name": "string", "price": "decimal(10,2)", "day": "date"}


class Feed:
    """A folder, a collection over it, and the records that are decoded from it in their order."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder

    def records(self, kind: str, **changes: Any) -> list[dict[str, Any]]:
        source = {"path": "*", "format": kind, **changes.pop("source", {})}
        plain = {"delete": "none"} if kind in ("csv", "parquet", "json") else {}
        body = {"name": "t", "source": source, "key": "id", "columns": COLUMNS, "base_dir": str(self.folder)}
        config = CollectionConfig.model_validate(body | plain | changes)
        frozen = FileSource(config, MemBlob()).freeze(None, until=None).frozen
        scratch = self.folder.parent / "scratch"
        rows = decode(self.spark, config, frozen.files, scratch=scratch).orderBy(ORDER).collect()
        return [row.asDict() for row in rows]

    def write(self, name: str, text: str | bytes) -> None:
        (self.folder / name).write_bytes(text.encode() if isinstance(text, str) else text)


@pytest.fixture
def feed(spark: SparkSession, tmp_path: Path) -> Feed:
    folder = tmp_path / "in"
    folder.mkdir()
    return Feed(spark, folder)


def values(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(row[OP], row["id"], row["name"], row["price"], row["day"]) for row in rows]


def test_csv_files_with_headers_of_their_own(feed: Feed) -> None:
    feed.write("1.csv", "id,name,price,day\n1,a,1.50,2026-01-02\n2,,,\n")
    feed.write("2.csv", '\ufeffday,extra,"name",id\r\n2026-02-03,x,"b, ""c""",3\r\n,,"",4\r\n')
    feed.write("3.csv", "id,name,price,day\n")
    feed.write("4.csv", b"")
    feed.write("5.csv.gz", gzip.compress(b"id,name,price,day\n5,z,0.10,\nid,name,price,day\n6,y,,\n"))
    feed.write("6.csv.zst", zstandard.compress(b"id,name\n7,zstd\n"))
    assert values(feed.records("csv")) == [
        ("u", 1, "a", Decimal("1.50"), date(2026, 1, 2)),
        ("u", 2, None, None, None),
        ("u", 3, 'b, "c"', None, date(2026, 2, 3)),
        ("u", 4, "", None, None),
        ("u", 5, "z", Decimal("0.10"), None),
        ("u", 6, "y", None, None),
        ("u", 7, "zstd", None, None),
    ]


def test_csv_deletes_by_marker_and_by_nulls(feed: Feed) -> None:
    feed.write("1.csv", "id,name,gone\n1,a,no\n2,b,yes\n3,,\n")
    marked = feed.records("csv", delete={"column": "gone", "values": ["yes", "1"]})
    assert [(row[OP], row["id"], row["name"]) for row in marked] == [("u", 1, "a"), ("d", 2, None), ("u", 3, None)]
    nulls = feed.records("csv", delete={"null_value": True})
    assert [(row[OP], row["id"]) for row in nulls] == [("u", 1), ("u", 2), ("d", 3)]


def test_broken_csv_lines_are_errs_with_their_bytes(feed: Feed) -> None:
    feed.write(
        "1.csv", b'id,name,price,day\n1,a\n2,b,1,2,3\nx,c,,\n4,d,1.999,\n5,e,,2026-13-01\n6,\xff\xfe,,\n7,"open,,\n'
    )
    rows = feed.records("csv")
    assert [(row["id"], row[ERR_KIND]) for row in rows] == [
        (1, "value"),
        (2, "value"),
        (None, "key"),
        (4, "value"),
        (5, "value"),
        (6, "value"),
        (7, "value"),
    ]
    assert bytes(rows[5][ERR_PAYLOAD]) == b"6,\xff\xfe,,"
    assert bytes(rows[2][BAD_KEY]) == b'{"id":"x"}'
    assert "1.999" in rows[3][ERR_MESSAGE]
    assert "decimal(10,2)" in rows[3][ERR_MESSAGE]


def test_a_header_without_the_key_or_with_a_column_twice_makes_errs_not_guesses(feed: Feed) -> None:
    feed.write("1.csv", "name,price\na,1\n")
    feed.write("2.csv", "id,name,name\n1,a,b\n")
    rows = feed.records("csv")
    assert [row[ERR_KIND] for row in rows] == ["key", "value"]
    assert "twice" in rows[1][ERR_MESSAGE]


def test_csv_without_header_and_with_another_delimiter(feed: Feed) -> None:
    feed.write("1.csv", "1;a;1;2026-01-01\n")
    rows = feed.records("csv", source={"header": False, "delimiter": ";"})
    assert values(rows) == [("u", 1, "a", Decimal("1.00"), date(2026, 1, 1))]


def test_dms_csv_changes_and_full_load(feed: Feed) -> None:
    feed.write("LOAD00000001.csv", "1,a,1.00,2026-01-01\n2,b,,\n")
    feed.write("change-1.csv", "U,1,a2,2.00,\nI,3,c,,\nD,2,b,,\nX,4,d,,\n")
    rows = feed.records("dms-csv", source={"header": False})
    assert [(row[OP], row["id"], row["name"], row[ERR_KIND]) for row in rows] == [
        ("u", 1, "a", None),
        ("u", 2, "b", None),
        ("u", 1, "a2", None),
        ("u", 3, "c", None),
        ("d", 2, None, None),
        ("u", 4, None, "op"),
    ]


def test_dms_csv_with_header(feed: Feed) -> None:
    feed.write("1.csv", "Op,id,name\nI,1,a\nD,1,a\n")
    assert [(row[OP], row["id"]) for row in feed.records("dms-csv")] == [("u", 1), ("d", 1)]


def test_parquet_files_of_differing_schemas(feed: Feed) -> None:
    wide = pa.table(
        {
            "id": pa.array([1, 2], pa.int32()),
            "name": pa.array(["a", "b"]).dictionary_encode(),
            "price": pa.array([Decimal("1.5"), None], pa.decimal128(5, 1)),
            "day": pa.array([date(2026, 1, 2), None]),
            "extra": [[1], []],
        }
    )
    pq.write_table(wide, feed.folder / "1.parquet")
    pq.write_table(pa.table({"id": pa.array([3], pa.uint64()), "price": [0.25]}), feed.folder / "2.parquet")
    pq.write_table(pa.table({"id": ["4", "x"], "price": ["1e1", "1"]}), feed.folder / "3.parquet")
    rows = feed.records("parquet")
    assert values(rows)[:4] == [
        ("u", 1, "a", Decimal("1.50"), date(2026, 1, 2)),
        ("u", 2, "b", None, None),
        ("u", 3, None, Decimal("0.25"), None),
        ("u", 4, None, Decimal("10.00"), None),
    ]
    assert (rows[4][ERR_KIND], bytes(rows[4][ERR_PAYLOAD])) == ("key", b'{"id":"x","price":"1"}')


def test_parquet_values_keep_their_type(feed: Feed) -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    table = pa.table(
        {
            "id": ["k"],
            "t": pa.array([moment], pa.timestamp("us", tz="UTC")),
            "n": pa.array([moment.replace(tzinfo=None)], pa.timestamp("us")),
            "b": pa.array([b"\x00\xff"]),
            "f": [0.1],
            "s": [{"x": 1, "y": None}],
            "z": [-0.0],
            "big": pa.array([Decimal("12345678901234567890123456789012345678")]),
        }
    )
    pq.write_table(table, feed.folder / "1.parquet")
    columns = {
        "id": "string",
        "t": "timestamp",
        "n": "timestamp",
        "b": "binary",
        "f": "double",
        "s": "json",
        "z": "double",
        "big": "decimal(38,0)",
    }
    (row,) = feed.records("parquet", columns=columns)
    assert row[ERR_KIND] is None, row[ERR_MESSAGE]
    naive = moment.replace(tzinfo=None)
    assert {row["t"].astimezone(UTC).replace(tzinfo=None), row["n"].astimezone(UTC).replace(tzinfo=None)} == {naive}
    assert (bytes(row["b"]), row["f"], row["s"], str(row["z"])) == (b"\x00\xff", 0.1, '{"x":1,"y":null}', "0.0")
    assert row["big"] == Decimal("12345678901234567890123456789012345678")


def test_dms_parquet(feed: Feed) -> None:
    pq.write_table(pa.table({"Op": ["I", "D"], "id": [1, 1], "name": ["a", "a"]}), feed.folder / "2.parquet")
    pq.write_table(pa.table({"id": [1], "name": ["0"]}), feed.folder / "1.parquet")
    assert [(row[OP], row["name"]) for row in feed.records("dms-parquet")] == [("u", "0"), ("u", "a"), ("d", None)]


def test_files_that_are_no_parquet_or_no_gzip_stop_the_run_by_name(feed: Feed) -> None:
    feed.write("1.parquet", b"PAR1 and no more")
    with pytest.raises(SourceChanged, match=r"1\.parquet"):
        feed.records("parquet")
    (feed.folder / "1.parquet").unlink()
    feed.write("1.csv.gz", gzip.compress(b"id,name\n" + b"1,a\n" * 100_000)[:50])
    with pytest.raises(SourceChanged, match=r"1\.csv\.gz"):
        feed.records("csv")


def test_dms_json(feed: Feed) -> None:
    lines = [
        '{"data":{"id":1,"name":"a","BI_id":9},"metadata":{"record-type":"data","operation":"load"}}',
        '{"data":{"id":1,"name":"b"},"metadata":{"record-type":"data","operation":"update"}}',
        '{"metadata":{"record-type":"control","operation":"create-table"}}',
        '{"data":{"id":1},"metadata":{"record-type":"data","operation":"delete"}}',
        '{"data":{"id":2},"metadata":{"record-type":"data","operation":"merge"}}',
        '{"data":{"id":3}}',
        '{"data":{"id":4',
    ]
    feed.write("1.jsonl", "\n".join(lines))
    rows = feed.records("dms-json")
    assert [(row[OP], row["id"], row[ERR_KIND]) for row in rows] == [
        ("u", 1, None),
        ("u", 1, None),
        ("s", None, None),
        ("d", 1, None),
        ("u", 2, "op"),
        ("u", 3, "value"),
        ("u", None, "key"),
    ]
