"""Parquet files of writers that note Arrow's types in the footer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persist_core.schema import ERR_KEY, ERR_KIND, ERR_MESSAGE, ERR_PAYLOAD
from persist_spark.compat import READS_HALF_FLOATS
from persist_spark.decode import parquet
from persist_spark.decode.parquet import file_schema
from tests.sampling import sample
from tests.spark.decode_feed import Feed, Record


def records(feed: Feed, table: pa.Table, columns: dict[str, Any], **changes: Any) -> list[Record]:
    """The records of a file with this table and an `id`."""
    table = table.append_column("id", pa.array(range(len(table)), pa.int64()))
    pq.write_table(table, feed.folder / "1.parquet", **changes.pop("writer", {}))
    return feed.records("parquet", {"id": "bigint", **columns}, **changes)


def test_parquet_of_arrow_types_with_known_storage(feed: Feed) -> None:
    """Writers note Arrow's own types beside Parquet's: views of texts, JSON, UUID and others."""
    table = {
        "id": [1],
        "name": pa.array(["a"], pa.string_view()),
        "raw": pa.array([b"\xff"], pa.binary_view()),
        "body": pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a": 1}'])),
        "uuid": pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"\xfe" * 16], pa.binary(16))),
        "flag": pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1], pa.int8())),
    }
    pq.write_table(pa.table(table), feed.folder / "1.parquet")
    columns = {"id": "bigint", "name": "string", "raw": "binary", "body": "json", "uuid": "binary", "flag": "boolean"}
    (row,) = feed.records("parquet", columns)
    assert [row[name] for name in columns] == [1, "a", b"\xff", '{"a": 1}', b"\xfe" * 16, True]


@pytest.mark.parametrize("unit", ["ms", "us"])
@pytest.mark.family("decoders")
def test_a_parquet_time_beyond_the_range_is_one_err(feed: Feed, unit: str) -> None:
    """Milliseconds would overflow in Spark; the last microseconds are DuckDB's infinity, as the last days are."""
    counts = pa.array([1_767_323_045_678, 2**63 - 1, 1 - 2**63, None], pa.int64())
    days = pa.array([20_455, 2**31 - 1, 1 - 2**31, None], pa.int32()).cast(pa.date32())
    for zone in (None, "UTC"):
        times = counts.cast(pa.timestamp(unit, zone))
        inner = pa.StructArray.from_arrays([times], ["t"])
        for column in ("timestamp", {"type": "timestamp", "field": "o.t"}):
            rows = records(feed, pa.table({"t": times, "o": inner}), {"t": column})
            assert [(row["t"] is None, row[ERR_KIND]) for row in rows] == [
                (False, None), (True, "value"), (True, "value"), (True, None),
            ]  # fmt: skip
            assert "expected an ISO timestamp" in rows[1][ERR_MESSAGE]
            assert rows[1][ERR_PAYLOAD] != rows[2][ERR_PAYLOAD]
    far = pa.array([20_455, 110_000_000, -110_000_000, None], pa.int32()).cast(pa.date32())
    for stored, kind in ((days, "date"), (days, "timestamp"), (far, "timestamp")):
        rows = records(feed, pa.table({"d": stored}), {"d": kind})
        assert [(row["d"] is None, row[ERR_KIND]) for row in rows] == [
            (False, None), (True, "value"), (True, "value"), (True, None),
        ]  # fmt: skip


@pytest.mark.family("decoders")
def test_parquet_times_are_one_text_in_every_unit(feed: Feed) -> None:
    """In columns of text, in JSON and in payloads; local ones without `Z`."""
    for unit, more in (("s", "000000"), ("ms", "000000"), ("us", "000000"), ("ns", "000000000")):
        for zone, end in ((None, ""), ("Europe/Berlin", "Z")):
            times = pa.array([1_767_323_045], pa.int64()).cast(pa.timestamp("s")).cast(pa.timestamp(unit, zone))
            nested = pa.StructArray.from_arrays([times], ["t"])
            listed = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), times)
            table = pa.table({"t": times, "o": nested, "l": listed, "bad": ["x"]})
            text = f"2026-01-02T03:04:05.{more}{end}"
            (row,) = records(feed, table, {"t": "string", "o": "json", "l": "json"})
            assert [row["t"], row["o"], row["l"]] == [text, f'{{"t":"{text}"}}', f'["{text}"]']
            (row,) = records(feed, table, {"bad": "int"})
            shown = f'{{"t":"{text}","o":{{"t":"{text}"}},"l":["{text}"],"bad":"x","id":0}}'
            assert bytes(row[ERR_PAYLOAD]).decode() == shown
    nested = pa.array([{"t": 5_000}, None], pa.struct([("t", pa.timestamp("ns"))]))
    columns = {"o": "json", "t": {"type": "timestamp", "field": "o.t"}}
    rows = records(feed, pa.table({"o": nested}), columns, writer={"use_deprecated_int96_timestamps": True})
    assert [row["o"] for row in rows] == ['{"t":"1970-01-01T00:00:00.000005Z"}', None]
    assert [row["t"] and row["t"].microsecond for row in rows] == [5, None]


def test_what_spark_has_no_type_for_is_its_text(feed: Feed) -> None:
    table = pa.table(
        {
            "took": pa.array(range(7), pa.duration("us")),
            "uuid": pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes(range(16))] * 7, pa.binary(16))),
            "pair": pa.array([[1.0, 2.0]] * 7, pa.list_(pa.float32(), 2)),
        }
    )
    rows = records(feed, table, {"took": "bigint", "uuid": "string", "pair": "json"})
    assert [row[ERR_MESSAGE] for row in rows] == [None] * 7
    assert [row["took"] for row in rows] == list(range(7))
    assert {(row["uuid"], row["pair"]) for row in rows} == {("00010203-0405-0607-0809-0a0b0c0d0e0f", "[1.0,2.0]")}


@pytest.mark.skipif(not READS_HALF_FLOATS, reason="this Spark opens no file that has half floats")
def test_half_floats_are_numbers(feed: Feed) -> None:
    halves = [1.0, -2.5, 65_504.0, 6e-8, 0.1, float("inf"), float("-inf"), None]
    table = pa.table({"half": pa.array(halves, pa.float16())})
    rows = records(feed, table, {"half": "double"})
    assert [row[ERR_MESSAGE] for row in rows] == [None] * 8
    assert [row["half"] for row in rows] == table["half"].cast(pa.float64()).to_pylist()
    rows = records(feed, table, {"half": "binary"})
    assert [row[ERR_KIND] for row in rows] == [*["value"] * 7, None], "a number is not bytes"
    assert bytes(rows[1][ERR_PAYLOAD]).decode() == '{"half":-2.5,"id":1}'


PAIR = pa.struct([("a", pa.int64()), ("A", pa.int64())])
UNCLEAR = [PAIR, pa.list_(PAIR), pa.map_(pa.string(), PAIR), pa.struct([("i", pa.int8()), ("\u0131", pa.int8())])]
POINT = pa.struct([("x", pa.int32())])
TEXTLESS = [pa.map_(key, pa.int8()) for key in (pa.binary(), pa.binary(16), pa.uuid(), pa.list_(pa.int8()), POINT)]
TEXTLESS += [pa.list_(TEXTLESS[0]), pa.map_(pa.string(), TEXTLESS[-1])]


@pytest.mark.parametrize("kind", sample(UNCLEAR, 2, "unclear structs") + sample(TEXTLESS, 2, "keys"), ids=str)
def test_a_column_without_a_json_text_is_an_err(feed: Feed, kind: pa.DataType) -> None:
    """Only if the collection names it. Spark reads no batch with fields that differ in case, and keys of maps that
    are bytes, lists or structs have no text."""
    table = pa.table({"o": pa.nulls(1, kind), "z": [5]})
    (row,) = records(feed, table, {"z": "int", "rest": "json"}, source={"rest": "rest"})
    assert (row[ERR_KIND], row["z"], row["rest"]) == (None, 5, None)
    for columns, more in (({"o": "json"}, {}), ({"z": "int"}, {"order": {"mode": "log", "by": ["o.a"]}})):
        (row,) = records(feed, table, columns, **more)
        assert (row[ERR_KIND], bytes(row[ERR_PAYLOAD])) == ("value", b'{"z":5,"id":0}')
        assert "column 'o' of the file has the type" in row[ERR_MESSAGE]


def test_a_file_that_spark_cannot_open_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(parquet, "READS_HALF_FLOATS", False)
    nested = pa.array([[{"half": 1.5}]], pa.list_(pa.struct([("half", pa.float16())])))
    pq.write_table(pa.table({"id": [1], "list": nested}), tmp_path / "1.parquet")
    with pytest.raises(pa.ArrowInvalid, match="it has half floats"):
        file_schema(pq.read_metadata(tmp_path / "1.parquet"))


def test_an_interval_and_a_uuid_of_duckdb(feed: Feed) -> None:
    """DuckDB notes no types of Arrow."""
    query = (
        f"SELECT 1 AS id, INTERVAL '1 month 2 days 3.5 seconds' AS i, UUID '{'0' * 8}-1111-2222-3333-{'4' * 12}' AS u"
    )
    duckdb.sql(f"COPY ({query}) TO '{feed.folder}/1.parquet' (FORMAT parquet)")
    (row,) = feed.records("parquet", {"id": "bigint", "i": "string", "u": "string"})
    assert (row["i"], row["u"]) == ("P1M2DT3.500S", "00000000-1111-2222-3333-444444444444")


def test_a_broken_parquet_text_keeps_its_bytes_in_its_err(feed: Feed) -> None:
    """Two broken texts are two errs, wherever they stand; JSON would have the same character for both."""
    stored = pa.array([b"\xff", b"\xfe", b"good"])
    texts = pa.Array.from_buffers(pa.string(), 3, stored.buffers())
    at = pa.array([0, 1, 2, 3], pa.int32())
    found = {
        "t": texts,
        "o": pa.StructArray.from_arrays([texts], ["t"]),
        "l": pa.ListArray.from_arrays(at, texts),
        "m": pa.MapArray.from_arrays(at, pa.array(["k"] * 3), texts),
    }
    for name, values in found.items():
        rows = records(feed, pa.table({name: values}), {name: "json"})
        assert [row[ERR_KIND] for row in rows] == ["value", "value", None]
        assert ["\\\\xFF" in str(row[ERR_PAYLOAD], "utf8") for row in rows[:2]] == [True, False]
        assert all("not well-formed UTF-8" in row[ERR_MESSAGE] for row in rows[:2])
    rows = records(feed, pa.table({"t": texts}), {"t": "string"}, key="t")
    assert [row[ERR_KIND] for row in rows] == ["key", "key", None]
    assert rows[0][ERR_KEY] != rows[1][ERR_KEY]
    assert all("not well-formed UTF-8" in row[ERR_MESSAGE] for row in rows[:2])


@pytest.mark.parametrize("odd", ['{"x":1}', [{"x": 1}], 7])
def test_a_value_in_place_of_a_struct_is_an_err(feed: Feed, odd: object) -> None:
    """The records without a value there are good, as in JSON."""
    rows = records(feed, pa.table({"o": [odd, None]}), {"x": {"type": "bigint", "field": "o.x"}})
    assert [(row[ERR_KIND], row["x"]) for row in rows] == [("value", None), (None, None)]
    assert "'o' is of type" in rows[0][ERR_MESSAGE]
    (row,) = records(feed, pa.table({"o": pa.nulls(1)}), {"x": {"type": "bigint", "field": "o.x"}})
    assert row[ERR_KIND] is None
