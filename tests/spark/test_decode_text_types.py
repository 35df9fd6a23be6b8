"""The texts that each type accepts from plain JSON, CSV, DMS and Parquet: beside `test_decode_json`, `_tabular`."""

from __future__ import annotations

import base64
import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persist_core.schema import ERR_KIND, ERR_MESSAGE, ERR_PAYLOAD
from persist_spark.decode.records import BROKEN_TEXT
from persist_spark.frame import BAD_KEY
from tests.sampling import sample
from tests.spark.decode_feed import Feed

# Type, the field's text; what it is in CSV, and in JSON as a quoted text. None: an err.
TEXTS: list[tuple[str, str, str | None]] = [
    ("int", "007", "7"),
    ("int", "+7", "7"),
    ("int", "7.0", "7"),
    ("int", "7e2", "700"),
    ("int", "7.5", None),
    ("int", "1,000", None),
    ("int", "0x10", None),
    ("int", "-2147483649", None),
    ("bigint", "9223372036854775807", "9223372036854775807"),
    ("decimal(10,2)", "1234", "1234.00"),
    ("decimal(10,2)", "1000", "1000.00"),
    ("decimal(10,2)", "BOI=", None),
    ("decimal(10,2)", "-0.00", "0.00"),
    ("decimal(10,2)", "NaN", None),
    ("decimal(10,2)", "Infinity", None),
    ("double", "-0.0", "0.0"),
    ("double", "nan", "NaN"),
    ("double", "-inf", "-Infinity"),
    ("double", "1e309", None),
    ("double", "1f", None),
    ("float", "16777217", "1.6777216E7"),
    ("boolean", "0", "false"),
    ("boolean", "1", "true"),
    ("boolean", "t", "true"),
    ("boolean", "No", "false"),
    ("boolean", "2", None),
    ("boolean", "1.0", None),
    ("boolean", "on", None),
    ("date", "2026-01-02", "2026-01-02"),
    ("date", "20260102", None),
    ("date", "02026-01-02", None),
    ("date", "10000-01-02", "+10000-01-02"),
    ("date", "20454", None),
    ("date", "01/02/2026", None),
    ("date", "2026-01-02 03:00:00", None),
    ("timestamp", "2026-01-02T03:04:05", "2026-01-02 03:04:05"),
    ("timestamp", "2026-01-02T03:04:05+02:00", "2026-01-02 01:04:05"),
    ("timestamp", "2026-01-02T03:04", "2026-01-02 03:04:00"),
    ("timestamp", "02026-01-02T03:04", None),
    ("timestamp", "02026-01-02T03:04:05", None),
    ("timestamp", "+010000-01-02T03:04:05Z", "+10000-01-02 03:04:05"),
    ("timestamp", "20260102", None),
    ("timestamp", "1767225600", None),
    ("timestamp", "01/02/2026 03:04", None),
    ("binary", "AP8=", "00FF"),
    ("binary", "deadbeef", None),
    ("binary", "0xBEEF", None),
    ("string", " NULL ", " NULL "),
    ("string", "1.10", "1.10"),
]


@pytest.mark.parametrize("kind", sample(["csv", "json"], 1, "text types"))
def test_each_type_takes_what_has_one_reading(feed: Feed, kind: str) -> None:
    columns: dict[str, Any] = {"id": "int", **{f"c{i}": type_name for i, (type_name, _, _) in enumerate(TEXTS)}}
    if kind == "json":
        lines = [f'{{"id":{i},"c{i}":"{text}"}}' for i, (_, text, _) in enumerate(TEXTS)]
    else:
        blank = [""] * len(TEXTS)
        rows_of_text = [[str(i), *blank[:i], f'"{text}"', *blank[i + 1 :]] for i, (_, text, _) in enumerate(TEXTS)]
        lines = [",".join(columns), *[",".join(cells) for cells in rows_of_text]]
    feed.write("1.txt", "\n".join(lines))
    frame = feed.frame(kind, columns)
    shown = [f"hex(c{i}) c{i}" if t == "binary" else f"cast(c{i} as string) c{i}" for i, (t, _, _) in enumerate(TEXTS)]
    rows = [row.asDict() for row in frame.selectExpr("id", ERR_KIND, *shown).orderBy("id").collect()]
    assert [row[f"c{row['id']}"] for row in rows] == [expected for _, _, expected in TEXTS]
    assert [row[ERR_KIND] for row in rows] == [None if expected else "value" for _, _, expected in TEXTS]


@pytest.mark.family("decoders")
@pytest.mark.parametrize("kind", ["csv", "json"])
@pytest.mark.parametrize("at", sample(["\0{}", "{}\0", " {}\x01", "\x1f{}", "{}\x7f", "{}\x08 "], 2, "controls"))
def test_a_control_character_beside_a_value_is_an_err(feed: Feed, kind: str, at: str) -> None:
    values = {
        "int": "1",
        "bigint": "-5",
        "decimal(9,2)": "1.5",
        "double": "1.5",
        "boolean": "true",
        "date": "2026-01-02",
    }
    values |= {"timestamp": "2026-01-02T03:04:05"}
    columns = {"id": "int"} | {f"c{place}": type_name for place, type_name in enumerate(values)}
    counts = {"n": {"type": "timestamp", "unit": "us"}, "m": {"type": "date", "unit": "days"}}
    texts = dict(zip([*list(columns)[1:], *counts], [*values.values(), "5", "5"], strict=True))
    for is_bad in (True, False):
        form = at if is_bad else " {}\t"
        rows = [{"id": str(place), name: form.format(text)} for place, (name, text) in enumerate(texts.items())]
        rows += [{"id": form.format(9)}]
        lines = [json.dumps(row) for row in rows]
        if kind == "csv":
            lines = [
                ",".join(columns | counts),
                *[",".join(row.get(name, "") for name in columns | counts) for row in rows],
            ]
        feed.write("1.txt", "\n".join(lines))
        found = {row["id"]: row[ERR_KIND] for row in feed.records(kind, columns | counts)}
        dates = {place for place, type_name in enumerate(values) if type_name in ("date", "timestamp")}
        bad = range(len(texts)) if is_bad else dates
        assert found == {place: "value" if place in bad else None for place in range(len(texts))} | (
            {None: "key"} if is_bad else {9: None}
        )


def test_dms_writes_bytes_in_hex(feed: Feed) -> None:
    columns = {"id": "int", "b": "binary"}
    feed.write("1.csv", "Op,id,b\nI,1,deadbeef\nI,2,0xBEEF\nI,3,AP8=\nI,4,abc\nI,5,\n")
    assert [row["b"] and bytes(row["b"]) for row in feed.records("dms-csv", columns)] == [
        b"\xde\xad\xbe\xef", b"\xbe\xef", None, None, None,
    ]  # fmt: skip
    (feed.folder / "1.csv").unlink()
    start, end = '{"data":{"id":1,"b":', '},"metadata":{"record-type":"data","operation":"insert"}}'
    rows = feed.lines("dms-json", [f"{start}{text}{end}" for text in ('"deadbeef"', '"AP8="', "12", "null")], columns)
    assert [(row["b"] and bytes(row["b"]), row[ERR_KIND]) for row in rows] == [
        (b"\xde\xad\xbe\xef", None), (None, "value"), (None, "value"), (None, None),
    ]  # fmt: skip
    rows = feed.lines("dms-json", [f'{start}"AP8="{end}'], columns, source={"binary": "base64"})
    assert bytes(rows[0]["b"]) == b"\x00\xff"


def test_parquet_bytes_that_are_no_utf8_are_no_text(feed: Feed) -> None:
    latin = "café".encode("latin-1")
    broken_text = pa.array([b"ok", latin, None], pa.binary()).view(pa.string())
    table = pa.table({"id": [1, 2, 3], "b": [b"caf\xc3\xa9", b"ok", latin], "s": broken_text})
    pq.write_table(table, feed.folder / "1.parquet")
    rows = feed.records("parquet", {"id": "int", "b": "string", "s": "string"})
    assert [(row["b"], row["s"], row[ERR_KIND]) for row in rows] == [
        ("café", "ok", None), (None, None, "value"), (None, None, "value"),
    ]  # fmt: skip
    assert rows[1][ERR_MESSAGE] == BROKEN_TEXT
    rows = feed.records("parquet", {"id": "int", "b": "binary"})
    assert [bytes(row["b"]) for row in rows] == [b"caf\xc3\xa9", b"ok", latin]


def test_two_parquet_keys_that_are_no_utf8_are_two_slots(feed: Feed) -> None:
    table = pa.table({"id": pa.array([b"\xe9", b"\xea", b"a"], pa.binary()), "n": [1, 2, 3]})
    pq.write_table(table, feed.folder / "1.parquet")
    rows = feed.records("parquet", {"id": "string", "n": "int"})
    assert [(row["id"], row[ERR_KIND]) for row in rows] == [(None, "key"), (None, "key"), ("a", None)]
    assert bytes(rows[0][BAD_KEY]) == bytes(rows[0][ERR_PAYLOAD]) != bytes(rows[1][BAD_KEY])


# Column of the file, type, `source.binary`; what it is, and whether it is an err.
OTHER_TYPES: list[tuple[str, str, str | None, Any, str | None]] = [
    ("number", "binary", "base64", None, "value"),
    ("text", "binary", None, None, "value"),
    ("text", "binary", "base64", bytearray(base64.b64decode("deadbeef")), None),
    ("flag", "int", None, None, "value"),
    ("flag", "binary", "base64", None, "value"),
    ("flag", "string", None, "true", None),
    ("day", "date", None, None, "value"),
    ("number", "timestamp", None, None, "value"),
]


def test_parquet_values_of_another_type_are_read_by_text(feed: Feed) -> None:
    """Each case is a row: its own column is read from a field that is null in all other rows."""
    values = {"number": 12345678, "text": "deadbeef", "flag": True, "day": 20454}
    types = {"number": pa.int64(), "text": pa.string(), "flag": pa.bool_(), "day": pa.int32()}
    for binary in (None, "base64"):
        cases = [case for case in OTHER_TYPES if case[2] == binary]
        fields = {
            f"c{at}": pa.array([values[case[0]] if at == row else None for row in range(len(cases))], types[case[0]])
            for at, case in enumerate(cases)
        }
        pq.write_table(pa.table({"id": range(len(cases)), **fields}), feed.folder / "1.parquet")
        columns: dict[str, Any] = {"id": "int", **{f"c{at}": case[1] for at, case in enumerate(cases)}}
        rows = feed.records("parquet", columns, source={} if binary is None else {"binary": binary})
        for at, (row, case) in enumerate(zip(rows, cases, strict=True)):
            assert (row[f"c{at}"], row[ERR_KIND]) == case[3:], case
