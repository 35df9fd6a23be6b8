"""CSV, Parquet and DMS files to records: headers, deletes, compression, broken lines, differing schemas."""

from __future__ import annotations

import gzip
from datetime import UTC, date, datetime, time
from decimal import Decimal
from threading import Barrier
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from persist_core.errors import UnreadableFiles
from persist_core.location.mem import MemBlob
from persist_core.schema import ERR_KIND, ERR_MESSAGE, ERR_PAYLOAD
from persist_core.sources.feed import LocalFeed
from persist_core.sources.files import FileSource
from persist_core.sources.input_file import InputFile
from persist_spark.decode.parquet import looked_at
from persist_spark.frame import BAD_KEY, OP
from tests.spark.decode_feed import Feed, Record

COLUMNS = {"id": "bigint", "name": "string", "price": "decimal(10,2)", "day": "date"}


def records(feed: Feed, kind: str, **changes: Any) -> list[Record]:
    return feed.records(kind, changes.pop("columns", COLUMNS), **changes)


def values(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(row[OP], row["id"], row["name"], row["price"], row["day"]) for row in rows]


def test_csv_files_with_headers_of_their_own(feed: Feed) -> None:
    feed.write("1.csv", "id,name,price,day\n1,a,1.50,2026-01-02\n2,,,\n")
    feed.write("2.csv", '\ufeffday,extra,"name",id\r\n2026-02-03,x,"b, ""c""",3\r\n,,"",4\r\n')
    feed.write("3.csv", "id,name,price,day\n")
    feed.write("4.csv", b"")
    feed.write("5.csv.gz", gzip.compress(b"id,name,price,day\n5,z,0.10,\nid,name,price,day\n6,y,,\n"))
    feed.write("6.csv.zst", zstandard.compress(b"id,name\n7,zstd\n"))
    assert values(records(feed, "csv")) == [
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
    marked = records(feed, "csv", delete={"column": "gone", "values": ["yes", "1"]})
    assert [(row[OP], row["id"], row["name"]) for row in marked] == [("u", 1, "a"), ("d", 2, None), ("u", 3, None)]
    nulls = records(feed, "csv", delete={"null_value": True})
    assert [(row[OP], row["id"]) for row in nulls] == [("u", 1), ("u", 2), ("d", 3)]


def test_broken_csv_lines_are_errs_with_their_bytes(feed: Feed) -> None:
    feed.write(
        "1.csv", b'id,name,price,day\n1,a\n2,b,1,2,3\nx,c,,\n4,d,1.999,\n5,e,,2026-13-01\n6,\xff\xfe,,\n7,"open,,\n'
    )
    rows = records(feed, "csv")
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
    assert bytes(rows[2][BAD_KEY]) == b'["x"]'
    assert "1.999" in rows[3][ERR_MESSAGE]
    assert "decimal(10,2)" in rows[3][ERR_MESSAGE]


def test_a_csv_field_that_goes_on_behind_its_quote_is_an_err(feed: Feed) -> None:
    good = ['1,"a ""b"" c"', '2,a"b"c', '3,"a"  ', '4,""""', '5,"a\\"', '6,"a;b"']
    bad = ['7,"a"b', '8,"say \\"hi\\""', '9,"a" "b"', '10,""a']
    feed.write("1.csv", "\n".join(["id,name", *good, *bad]))
    rows = records(feed, "csv")
    names = ['a "b" c', 'a"b"c', "a", '"', "a\\", "a;b"]
    assert [(row["id"], row["name"], row[ERR_KIND]) for row in rows[:6]] == [
        (number, name, None) for number, name in enumerate(names, start=1)
    ]
    assert [(row["id"], row[ERR_KIND]) for row in rows[6:]] == [(number, "value") for number in range(7, 11)]
    assert all("behind its closing quote" in row[ERR_MESSAGE] for row in rows[6:])
    feed.write("1.csv", "\n".join(["id,name,price", '"1"x,a,', '"1"x,a', '"1"x","a,']))
    rows = feed.records("csv", {"id": "string", "name": "string"})
    assert [row[ERR_KIND] for row in rows] == ["key"] * 3, "a key that no record has"


def test_a_name_that_is_twice_in_a_header_makes_errs(feed: Feed) -> None:
    feed.write("1.csv", "id,name,name\n1,a,b\n")
    (row,) = records(feed, "csv")
    assert row[ERR_KIND] == "value"
    assert "twice" in row[ERR_MESSAGE]


def test_csv_without_header_and_with_another_delimiter(feed: Feed) -> None:
    feed.write("1.csv", "1;a;1;2026-01-01\n")
    rows = records(feed, "csv", source={"header": False, "delimiter": ";"})
    assert values(rows) == [("u", 1, "a", Decimal("1.00"), date(2026, 1, 1))]


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
    rows = records(feed, "parquet")
    assert values(rows)[:4] == [
        ("u", 1, "a", Decimal("1.50"), date(2026, 1, 2)),
        ("u", 2, "b", None, None),
        ("u", 3, None, Decimal("0.25"), None),
        ("u", 4, None, Decimal("10.00"), None),
    ]
    assert (rows[4][ERR_KIND], bytes(rows[4][ERR_PAYLOAD])) == ("key", b'{"id":"x","price":"1"}')


def test_footers_are_read_once_and_side_by_side(feed: Feed) -> None:
    for number in range(2):
        pq.write_table(pa.table({"id": [number]}), feed.folder / f"{number}.parquet")
    config, both = feed.config("parquet", COLUMNS), Barrier(2)

    class Patient(LocalFeed):
        def opened(self, file: InputFile) -> IO[bytes]:
            both.wait(10)  # for the other file: one by one it fails
            return super().opened(file)

    files = FileSource(config, MemBlob()).freeze(None, until=None).frozen.files
    known, lost = looked_at(config, Patient(config.source_pattern()), files)
    assert ([schema.fields for schema in known.values()], lost) == ([["id"], ["id"]], {})


def test_small_parquet_files_share_a_task(feed: Feed) -> None:
    """Only lines need a task for each file, and for each 16 MB of it: a group of rows is one task's anyway."""
    for number in range(8):
        pq.write_table(pa.table({"id": [number]}), feed.folder / f"{number}.parquet")
    feed = Feed(feed.spark.newSession(), feed.folder)
    assert feed.frame("parquet", COLUMNS)._jdf.rdd().getNumPartitions() < 8


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
    (row,) = records(feed, "parquet", columns=columns)
    assert row[ERR_KIND] is None, row[ERR_MESSAGE]
    naive = moment.replace(tzinfo=None)
    assert {row["t"].astimezone(UTC).replace(tzinfo=None), row["n"].astimezone(UTC).replace(tzinfo=None)} == {naive}
    assert (bytes(row["b"]), row["f"], row["s"], str(row["z"])) == (b"\x00\xff", 0.1, '{"x":1,"y":null}', "0.0")
    assert row["big"] == Decimal("12345678901234567890123456789012345678")


def test_files_that_are_no_parquet_or_gzip_are_named(feed: Feed) -> None:
    feed.write("1.parquet", b"PAR1 and no more")
    with pytest.raises(UnreadableFiles, match=r"1\.parquet"):
        records(feed, "parquet")
    (feed.folder / "1.parquet").unlink()
    feed.write("1.csv.gz", gzip.compress(b"id,name\n" + b"1,a\n" * 100_000)[:50])
    with pytest.raises(UnreadableFiles, match=r"1\.csv\.gz"):
        records(feed, "csv")


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
    rows = records(feed, "dms-json", order="log")
    assert [(row[OP], row["id"], row[ERR_KIND]) for row in rows] == [
        ("u", 1, None),
        ("u", 1, None),
        ("s", None, None),
        ("d", 1, None),
        ("u", 2, "op"),
        ("u", 3, "value"),
        ("u", None, "key"),
    ]


def test_csv_null_and_empty_and_the_null_of_dms(feed: Feed) -> None:
    columns = {"id": "int", "s": "string", "n": "int"}
    feed.write("1.csv", 'id,s,n\n1,,\n2,"",""\n3,NULL,7\n4, a ,7\n')
    rows = records(feed, "csv", columns=columns)
    assert [(row["s"], row["n"], row[ERR_KIND]) for row in rows] == [
        (None, None, None), (None, None, "value"), ("NULL", 7, None), (" a ", 7, None),
    ]  # fmt: skip
    feed.write("1.csv", 'Op,id,s,n\nI,1,,\nI,2,NULL,NULL\nU,3,"NULL ",7\n')
    rows = records(feed, "dms-csv", columns=columns)
    assert [(row["s"], row["n"], row[ERR_KIND]) for row in rows] == [
        ("", None, None), (None, None, None), ("NULL ", 7, None),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["csv", "dms-csv"])
@pytest.mark.parametrize("null", ["\\N", "NULL", "(null)", ""])
def test_the_text_of_null_in_csv_can_be_set(feed: Feed, kind: str, null: str) -> None:
    feed.write("1.csv", f'id,s,n\n1,{null},{null}\n2,"{null}",7\n3,NULL.,7\n4,,7\n')
    columns = {"id": "int", "s": "string", "n": "int"}
    rows = records(feed, kind, columns=columns, source={"null_value": null})
    empty = "" if kind == "dms-csv" and null else None
    assert [(row["s"], row["n"], row[ERR_KIND]) for row in rows] == [
        (None, None, None), (None, 7, None), ("NULL.", 7, None), (empty, 7, None)
    ]  # fmt: skip


def test_a_csv_record_with_a_field_too_few_comes_apart_into_errs(feed: Feed) -> None:
    feed.write("1.csv", 'id,name,price,day\n1,"two\nlines",1\n2,"a ""b"", c",1,\n3,x,1,\n')
    rows = records(feed, "csv")
    assert [(row["id"], row[ERR_KIND], row["name"]) for row in rows] == [
        (1, "value", None), (None, "key", None), (2, None, 'a "b", c'), (3, None, "x"),
    ]  # fmt: skip
    assert bytes(rows[1][ERR_PAYLOAD]) == b'lines",1'
    assert "a field is not closed" in rows[0][ERR_MESSAGE]


def test_the_key_of_a_miscounted_line_must_be_whole_and_first(feed: Feed) -> None:
    feed.write("1.csv", "name,id,price,day\na, b,1,1.00,\na,12\n")
    assert [(row["id"], row[ERR_KIND]) for row in records(feed, "csv")] == [(None, "key"), (None, "key")]
    feed.write("1.csv", "id,name,price,day\n12\n12,\n12,a\n12,a,b,c,d,e,f\n")
    found = [(row["id"], row[ERR_KIND]) for row in records(feed, "csv")]
    assert found == [(None, "key"), (None, "key"), (12, "value"), (12, "value")]


def test_csv_fields_by_name_and_by_number(feed: Feed) -> None:
    feed.write("1.csv", "x y,k\n5,7\n")
    columns = {"id": {"type": "int", "field": "k"}, "v": {"type": "int", "field": "x y"}}
    assert [(row["id"], row["v"]) for row in records(feed, "csv", columns=columns)] == [(7, 5)]
    columns = {"id": {"type": "int", "field": "2"}, "v": {"type": "string", "field": "1"}}
    rows = records(feed, "csv", columns=columns, source={"header": False})
    assert [(row["id"], row["v"], row[ERR_KIND]) for row in rows] == [(None, None, "key"), (7, "5", None)]


def test_a_marker_that_is_not_in_the_file_is_an_err_and_no_guess(feed: Feed) -> None:
    feed.write("1.csv", "id,name\n1,a\n")
    (row,) = records(feed, "csv", delete={"column": "gone", "values": ["1"]})
    assert (row["id"], row[ERR_KIND]) == (1, "op")
    assert "'gone'" in row[ERR_MESSAGE]


def test_parquet_of_many_row_groups_keeps_its_order(feed: Feed) -> None:
    table = pa.table({"id": pa.array(range(5000), pa.int64())})
    pq.write_table(table, feed.folder / "1.parquet", row_group_size=100)
    frame = feed.frame("parquet", {"id": "bigint"})
    assert frame.selectExpr("count(*)", "sum(int(_persist_order.row = id))").first() == (5000, 5000)


def test_parquet_times_of_other_writers(feed: Feed) -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 678901)
    columns: dict[str, Any] = {"id": "int", "t": "timestamp", "d": "date"}
    table = pa.table({"id": pa.array([1], pa.int32()), "t": pa.array([moment], pa.timestamp("ns"))})
    pq.write_table(table, feed.folder / "1.parquet", use_deprecated_int96_timestamps=True)
    pq.write_table(table, feed.folder / "2.parquet", version="2.6")
    seconds = pa.table({"id": [3], "t": pa.array([1767323045], pa.int64()), "d": pa.array([20455], pa.int32())})
    pq.write_table(seconds, feed.folder / "3.parquet")
    columns |= {"t": {"type": "timestamp", "unit": "s"}, "d": {"type": "date", "unit": "days"}}
    rows = records(feed, "parquet", columns=columns)
    assert [row[ERR_MESSAGE] for row in rows] == [None] * 3
    found = [row["t"].astimezone(UTC).replace(tzinfo=None) for row in rows]
    assert found == [moment, moment, moment.replace(microsecond=0)]
    assert rows[2]["d"] == date(2026, 1, 2)


def test_parquet_values_that_do_not_fit_are_errs(feed: Feed) -> None:
    table = pa.table(
        {
            "id": [1, 2, 3, 4, 5],
            "i": pa.array([2**31, 1, 1, 1, 1], pa.int64()),
            "d": pa.array([Decimal("1.005")] * 2 + [Decimal("1.500")] * 3, pa.decimal128(10, 3)),
            "f": [0.5, 0.5, 1e300, 0.5, 0.25],
            "t": pa.array([time(1, 2)] * 5),
        }
    )
    pq.write_table(table, feed.folder / "1.parquet")
    columns = {"id": "int", "i": "int", "d": "decimal(10,2)", "f": "float"}
    rows = records(feed, "parquet", columns=columns)
    assert [(row["id"], row[ERR_KIND]) for row in rows] == [
        (1, "value"),
        (2, "value"),
        (3, "value"),
        (4, None),
        (5, None),
    ]
    assert (rows[3]["d"], rows[4]["f"]) == (Decimal("1.50"), 0.25)
    assert bytes(rows[0][ERR_PAYLOAD]) == b'{"id":1,"i":2147483648,"d":1.005,"f":0.5}'
    rows = records(feed, "parquet", columns={"id": "int", "t": "string"})
    assert {row[ERR_KIND] for row in rows} == {"value"}
    assert "time64" in rows[0][ERR_MESSAGE]


def test_a_parquet_integer_that_does_not_fit_never_wraps(feed: Feed) -> None:
    values = [7, 2**31, 2**40, -(2**31) - 1, 2**63 - 1]
    nested = pa.array([{"n": value} for value in values], pa.struct([("n", pa.int64())]))
    table = pa.table({"id": range(5), "i": pa.array(values, pa.int64()), "o": nested})
    pq.write_table(table, feed.folder / "1.parquet")
    for column in ("int", {"type": "int", "field": "o.n"}):
        rows = records(feed, "parquet", columns={"id": "bigint", "i": column})
        assert [row["i"] for row in rows] == [7, None, None, None, None]
        assert [row[ERR_KIND] for row in rows] == [None] + ["value"] * 4
    rows = records(feed, "parquet", columns={"i": "int"}, key="i")
    assert [row[ERR_KIND] for row in rows] == [None] + ["key"] * 4


def test_parquet_without_the_key_or_with_names_that_clash(feed: Feed) -> None:
    pq.write_table(pa.table({"ID": [1], "name": ["a"]}), feed.folder / "1.parquet")
    (row,) = records(feed, "parquet")
    assert row[ERR_KIND] == "key"
    assert "'id'" in row[ERR_MESSAGE]
    assert "ID, name" in row[ERR_MESSAGE]
    assert bytes(row[BAD_KEY]) == b'{"ID":1,"name":"a"}'
    pq.write_table(pa.table({"id": [1], "ID": [2]}), feed.folder / "1.parquet")
    with pytest.raises(UnreadableFiles, match="twice"):
        records(feed, "parquet")


@pytest.mark.family("decoders")
def test_no_files_and_files_without_rows_give_the_same_columns(feed: Feed) -> None:
    for kind in ("json", "csv", "dms-csv", "parquet", "dms-parquet", "dms-json", "debezium-json"):
        empty = feed.frame(kind, COLUMNS)
        assert empty.collect() == []
        assert empty.columns[: len(COLUMNS)] == list(COLUMNS)
    pq.write_table(pa.table({"id": pa.array([], pa.int64())}), feed.folder / "1.parquet")
    assert records(feed, "parquet") == []
