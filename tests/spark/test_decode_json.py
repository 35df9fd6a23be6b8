"""Plain JSON lines: digits, kinds, broken lines and hostile names. Every line is a record, an err, or blank."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persist_core.schema import ERR_KEY, ERR_KIND, ERR_MESSAGE, ERR_PAYLOAD, TIME
from persist_spark.compat import SPARK_VERSION
from persist_spark.frame import BAD_KEY, DELETE, OP, ORDER, UPSERT
from tests.spark.decode_feed import Feed, Record


def kinds(rows: list[Record]) -> list[str | None]:
    return [row[ERR_KIND] for row in rows]


def test_numbers_keep_every_digit_and_nested_values_their_order(feed: Feed) -> None:
    columns = {"id": "bigint", "d": "decimal(38,18)", "s": "string", "j": "json", "f": "double"}
    lines = [
        '{"id":1,"d":12345678901234567890.123456789012345678,"s":1.10,"j":{"z": 1.10, "a":[1, 2.50e3]},"f":-0.0}',
        '{"id":2,"d":"0.10","s":"1.10","j":"{\\"z\\": 1.10}","f":NaN}',
        '{"id":9223372036854775807,"d":1E2,"s":true,"j":[],"f":1e308}',
        '{"id":-5,"d":0.100000000000000000000,"s":{"a":"x"},"j":12345678901234567890123,"f":"-Infinity"}',
        '{"id":5.0,"d":0e-30,"s":"\\u00e9\\u0000\\ud83d\\ude00","j":null,"f":7}',
    ]
    rows = feed.lines("json", lines, columns)
    assert kinds(rows) == [None] * 5, [row[ERR_MESSAGE] for row in rows]
    assert [row["id"] for row in rows] == [1, 2, 2**63 - 1, -5, 5]
    assert [row["d"] for row in rows] == [
        Decimal("12345678901234567890.123456789012345678"), Decimal("0.1"), Decimal(100), Decimal("0.1"), Decimal(0),
    ]  # fmt: skip
    assert [row["s"] for row in rows] == ["1.10", "1.10", "true", '{"a":"x"}', "\u00e9\0\U0001f600"]
    assert [row["j"] for row in rows] == [
        '{"z":1.10,"a":[1,2.50e3]}', '{"z": 1.10}', "[]", "12345678901234567890123", None,
    ]  # fmt: skip
    assert [str(row["f"]) for row in rows] == ["0.0", "nan", "1e+308", "-inf", "7.0"]


BAD_VALUES: list[tuple[str, str]] = [
    ("int", "2147483648"),
    ("int", "5.5"),
    ("int", '"5L"'),
    ("int", "true"),
    ("int", '""'),
    ("bigint", "9223372036854775808"),
    ("bigint", "1e30"),
    ("decimal(4,2)", "100"),
    ("decimal(4,2)", "1.005"),
    ("decimal(4,2)", "1.005e0"),
    ("decimal(4,2)", "1e-3"),
    ("decimal(4,2)", '"1,5"'),
    ("decimal(4,2)", "NaN"),
    ("double", "1e400"),
    ("double", '"1.0d"'),
    ("double", '"0x10"'),
    ("float", "1e39"),
    ("boolean", '"maybe"'),
    ("date", '"2026-02-30"'),
    ("date", '"2026-1-1"'),
    ("date", '"2026-01-01T10:00:00Z"'),
    ("date", "20454"),
    ("timestamp", '"2026-01-01 25:00:00"'),
    ("timestamp", '"2026-01-01T00:00:00.1234567Z"'),
    ("timestamp", '"today"'),
    ("timestamp", "1767225600000"),
    ("binary", '"not base64!"'),
    ("binary", "1234"),
]


def test_a_bad_value_is_an_err_that_names_it_and_never_null(feed: Feed) -> None:
    columns: dict[str, Any] = {"id": "int"}
    columns |= {f"c{index}": kind for index, (kind, _) in enumerate(BAD_VALUES)}
    lines = [f'{{"id":{index},"c{index}":{text}}}' for index, (_, text) in enumerate(BAD_VALUES)]
    rows = feed.lines("json", lines, columns)
    for index, (row, (kind, text)) in enumerate(zip(rows, BAD_VALUES, strict=True)):
        assert (row["id"], row[OP], row[ERR_KIND]) == (index, UPSERT, "value"), (kind, text, row)
        assert f"'c{index}' is '{text.strip(chr(34))}'" in row[ERR_MESSAGE]
        assert kind in row[ERR_MESSAGE] or kind in ("date", "timestamp")
        assert bytes(row[ERR_PAYLOAD]).decode() == lines[index]
        assert json.loads(bytes(row[ERR_KEY])) == [str(index)]
        assert row[BAD_KEY] is None
        assert all(row[name] is None for name in columns if name != "id")


GOOD_VALUES: list[tuple[Any, str, str]] = [
    ("timestamp", '"2026-01-01T01:00:00.5+01:00"', "2026-01-01 00:00:00.5"),
    ("timestamp", '"2026-01-01 00:00:00.123456000"', "2026-01-01 00:00:00.123456"),
    ("timestamp", '"2026-01-01T00:00Z"', "2026-01-01 00:00:00"),
    ("timestamp", '"2026-01-01"', "2026-01-01 00:00:00"),
    ({"type": "timestamp", "unit": "ms"}, "1767225600123", "2026-01-01 00:00:00.123"),
    ({"type": "timestamp", "unit": "s"}, "1767225600.25", "2026-01-01 00:00:00.25"),
    ({"type": "timestamp", "unit": "us"}, "-1", "1969-12-31 23:59:59.999999"),
    ({"type": "timestamp", "unit": "ns"}, "1767225600000001000", "2026-01-01 00:00:00.000001"),
    ({"type": "date", "unit": "days"}, "20454", "2026-01-01"),
    ({"type": "date", "unit": "ms"}, "1767225600000", "2026-01-01"),
    ("date", '"2026-01-01 00:00:00"', "2026-01-01"),
    ("boolean", "0", "false"),
    ("boolean", '"T"', "true"),
    ("bigint", "2.0E10", "20000000000"),
    ("int", '" 7 "', "7"),
    ("decimal(4,2)", "1.500", "1.50"),
    ("decimal(38,3)", "1.2345678987654322e+32", "123456789876543220000000000000000.000"),
    ("decimal(3,0)", "1.5e1", "15"),
    ("double", '".5"', "0.5"),
    ("float", "0.1", "0.1"),
]


def test_values_in_all_their_spellings(feed: Feed) -> None:
    columns: dict[str, Any] = {"id": "int"}
    columns |= {f"c{index}": kind for index, (kind, _, _) in enumerate(GOOD_VALUES)}
    feed.write("1.jsonl", "\n".join(f'{{"id":{i},"c{i}":{text}}}' for i, (_, text, _) in enumerate(GOOD_VALUES)))
    frame = feed.frame("json", columns)
    shown = frame.selectExpr(ERR_MESSAGE, "id", *[f"cast(c{i} as string) c{i}" for i in range(len(GOOD_VALUES))])
    rows = [row.asDict() for row in shown.orderBy("id").collect()]
    assert [row[ERR_MESSAGE] for row in rows] == [None] * len(rows)
    assert [row[f"c{row['id']}"] for row in rows] == [wanted for _, _, wanted in GOOD_VALUES]


BROKEN_LINES = [
    b'{"id":1,"a":"cut',
    b'{"id":1}{"id":2}',
    b'{"id":1} and more',
    b'{"id":1},{"id":2}',
    b'{"id":1}]}',
    b'[{"id":1}]',
    b"[]",
    b"5",
    b'"text"',
    b"null",
    b"true",
    b"{",
    b"}",
    b"\x00\x00\x00",
    b'{"id":01}',
    b'{"id":1,}',
    b"{id:1}",
    b"{'id':1}",
    b'{"id":1,"a":"tab\there"}',
    b'{1:2,"id":1}',
    b'{"id":1,"a":' + b"[" * 1200 + b"]" * 1200 + b"}",
    *([b'{"id":1,"' + b"k" * 60_000 + b'":1}'] if SPARK_VERSION >= (4, 0) else []),  # 3.5 takes names of any length
]


@pytest.mark.parametrize("infinite", ["NaN", "Infinity", "+Infinity", "-Infinity", "+INF", "-INF"])
def test_numbers_behind_an_infinite_one_keep_their_digits(feed: Feed, infinite: str) -> None:
    columns = {"id": "int", "f": "double", "d": "decimal(38,30)", "s": "string"}
    line = f'{{"x":{{"y":[{infinite}]}},"f":{infinite},"id":1,"d":0.1234567890123456789012,"s":1.10}}'
    (row,) = feed.lines("json", [line], columns)
    assert (row[ERR_KIND], row["d"], row["s"]) == (None, Decimal("0.1234567890123456789012"), "1.10")
    assert str(row["f"]) == str(float(infinite))


@pytest.mark.family("decoders")
def test_a_line_with_a_noncharacter_is_an_err(feed: Feed) -> None:
    """They are marks of the decoder. Escaped ones are characters, too; an escaped backslash is not."""
    texts = [chr(each) for each in range(0xFDD0, 0xFDD2)]
    texts += [form for text in texts for form in (f"\\u{ord(text):x}", f"\\u{ord(text):X}", f"\\\\\\u{ord(text):04x}")]
    lines = [f'{{"id":{at},"s":"a{text}1","j":[1.50,"{text}"]}}' for at, text in enumerate(texts)]
    lines += [f'{{"id":1,"j":{{"{text}end":"x"}}}},{{"{text}end":"x"}}],"junk":[{{"a":1}}' for text in texts]
    columns = {"id": "int", "s": "string", "j": "json", "rest": "json"}
    for kind in ("json", "debezium-json", "message"):
        made = lines
        if kind != "json":
            made = [f'{{"op":"c","after":{line}}}' for line in lines]
        if kind == "message":
            made = [json.dumps({"value": line}, ensure_ascii=False) for line in made]
        kept = "debezium-json" if kind == "message" else kind
        rows = feed.lines(kept, made, columns, source={"rest": "rest"})
        assert [row[ERR_KIND] for row in rows] == ["key"] * len(made)
        assert [bytes(row[ERR_PAYLOAD]).decode() for row in rows] == made
        assert all("noncharacter" in row[ERR_MESSAGE] for row in rows)
    for text in ("\\\\ufdd0", "\ufdcf", "\ufdd2", "\ufdd3", "\ufdfa", "\\ufdcf", "\\uFDFD"):
        (row,) = feed.lines("json", [f'{{"id":1,"s":"{text}"}}'], columns)
        assert (row[ERR_KIND], row["s"]) == (None, json.loads(f'"{text}"'))


def test_a_line_that_is_no_object_is_an_err_with_its_bytes(feed: Feed) -> None:
    feed.write("1.jsonl", b"\n".join(BROKEN_LINES))
    rows = feed.records("json", {"id": "int", "a": "string"})
    assert [row[ERR_PAYLOAD] and bytes(row[ERR_PAYLOAD]) for row in rows] == BROKEN_LINES
    assert set(kinds(rows)) == {"key"}
    assert all(row[BAD_KEY] == row[ERR_PAYLOAD] == row[ERR_KEY] for row in rows)
    assert all(row["id"] is None and row[OP] == UPSERT for row in rows)
    assert all("is not one JSON object" in row[ERR_MESSAGE] for row in rows)


def test_a_bad_key_is_its_own_slot(feed: Feed) -> None:
    lines = ['{"id":"x","n":1.50,"gone":0}', '{"id":null,"n":1,"a":2}', '{"n":1.50,"id":"x","gone":1}', '{"a":1}']
    rows = feed.lines(
        "json", lines, {"id": "int", "n": "decimal(3,1)"}, delete={"column": "gone", "values": ["1"]}, key=["id", "n"]
    )
    assert [(row[OP], row[ERR_KIND]) for row in rows] == [("u", "key"), ("u", "key"), ("d", None), ("u", "key")]
    assert bytes(rows[0][BAD_KEY]) == b'["x","1.50"]' == bytes(rows[2][BAD_KEY])
    assert bytes(rows[1][BAD_KEY]) == b'[null,"1"]'
    assert bytes(rows[3][BAD_KEY]) == lines[3].encode()
    assert "'id' is missing or null" in rows[1][ERR_MESSAGE]
    assert rows[2]["id"] is None
    assert rows[2]["n"] is None


def test_invalid_utf8_and_half_surrogates_stay_in_the_payload(feed: Feed) -> None:
    lines = [
        b'{"id":"a","v":"caf\xe9"}',
        b'{"id":"caf\xe9","v":"x"}',
        '{"id":"b","v":"\ufffd?"}'.encode(),
        b'{"id":"c","v":"\\ud83d"}',
        b'{"id":"d","v":"\\ude00\\ud83d x"}',
        b'{"id":"e","v":"\\ud83d\\ude00"}',
        b'{"id":"\\ud83d","v":"y"}',
        b'{"id":"f","v":"\\\\ud83d"}',
    ]
    feed.write("1.jsonl", b"\n".join(lines))
    rows = feed.records("json", {"id": "string", "v": "string"})
    assert kinds(rows) == ["value", "key", None, "value", "value", None, "key", None]
    assert [row["id"] for row in rows] == ["a", None, "b", "c", "d", "e", None, "f"]
    assert [bytes(rows[i][ERR_PAYLOAD]) for i in (0, 1, 3, 4, 6)] == [lines[i] for i in (0, 1, 3, 4, 6)]
    assert bytes(rows[1][BAD_KEY]) == lines[1]
    assert (rows[5]["v"], rows[7]["v"]) == ("\U0001f600", "\\ud83d")


def test_line_ends_blank_lines_and_a_byte_order_mark(feed: Feed) -> None:
    feed.write("1.jsonl", b'\xef\xbb\xbf{"id":1}\r\n\r\n   \n\t\n{"id":2}\r\n{"id":3')
    feed.write("2.jsonl", b"")
    feed.write("3.jsonl", b"\n\n")
    rows = feed.records("json", {"id": "int"})
    assert [(row["id"], row[ERR_KIND]) for row in rows] == [(1, None), (2, None), (None, "key")]
    assert bytes(rows[2][ERR_PAYLOAD]) == b'{"id":3'


def test_the_last_of_a_field_that_stands_twice_counts(feed: Feed) -> None:
    (row,) = feed.lines("json", ['{"id":1,"a":1,"id":2,"a":null}'], {"id": "int", "a": "int"})
    assert (row["id"], row["a"], row[ERR_KIND]) == (2, None, None)


def test_nested_fields_and_names_that_mean_something_elsewhere(feed: Feed) -> None:
    columns = {
        "id": {"type": "int", "field": "meta.key.id"},
        "whole": {"type": "json", "field": "meta.key"},
        "a.b": "string",
        "ID2": {"type": "int", "field": "n"},
        "upper": {"type": "int", "field": "N"},
        "`; DROP TABLE x; --": "string",
        'quo"te': "string",
        "_c0": "int",
        "line": "int",
    }
    record = {
        "meta": {"key": {"id": 7, "x": [1.50]}},
        "a.b": "dotted",
        "n": 1,
        "N": 2,
        "`; DROP TABLE x; --": "sql",
        'quo"te': "q",
        "_c0": 3,
        "line": 4,
    }
    lines = [json.dumps(record), '{"meta":5}', '{"meta":{"key":{"id":"x"}}}']
    rows = feed.lines("json", lines, columns)
    assert kinds(rows) == [None, "key", "key"], rows[0][ERR_MESSAGE]
    wanted = {"id": 7, "whole": '{"id":7,"x":[1.5]}', "a.b": "dotted", "ID2": 1, "upper": 2, "_c0": 3, "line": 4}
    assert {name: rows[0][name] for name in wanted} == wanted
    assert (rows[0]["`; DROP TABLE x; --"], rows[0]['quo"te']) == ("sql", "q")


def test_a_nested_field_of_another_kind_is_an_err_and_not_null(feed: Feed) -> None:
    columns = {"id": "int", "city": {"type": "string", "field": "address.city"}}
    lines = ['{"id":1,"address":"Rome"}', '{"id":2,"address":null}', '{"id":3,"address":{"city":"Rome"}}']
    rows = feed.lines("json", lines, columns)
    assert [(row["id"], row[ERR_KIND], row["city"]) for row in rows] == [
        (1, "value", None), (2, None, None), (3, None, "Rome"),
    ]  # fmt: skip


def test_deletes_by_marker_and_by_nulls(feed: Feed) -> None:
    lines = ['{"id":1,"a":1,"op":"D"}', '{"id":2,"a":"x","op":true}', '{"id":3,"op":null}', '{"id":4,"a":5}']
    columns = {"id": "int", "a": "int"}
    marked = feed.lines("json", lines, columns, delete={"column": "op", "values": ["D", True]})
    assert [(row[OP], row["id"], row["a"]) for row in marked] == [
        (DELETE, 1, None), (DELETE, 2, None), (UPSERT, 3, None), (UPSERT, 4, 5),
    ]  # fmt: skip
    nulls = feed.lines("json", lines, columns, delete={"null_value": True})
    assert [(row[OP], row[ERR_KIND]) for row in nulls] == [("u", None), ("u", "value"), ("d", None), ("u", None)]


MARKS = ["null", "1", "1.0", '"1"', "true", '"True"', '"T"', "0", "false", "2", '"D"', '"d "', '""']


@pytest.mark.family("decoders")
@pytest.mark.parametrize(
    ("values", "ops"), [([1], "uddddddu uueeu"), ([True], "uddddddu ueeeu"), (["D"], "uuuuuuuu uudeu")]
)
def test_a_marker_is_compared_by_value(feed: Feed, values: list[Any], ops: str) -> None:
    """The marks in JSON, and in Parquet by type: what may be a delete, and is not clearly one, is an err (`e`)."""
    lines = [f'{{"id":{at},"op":{mark}}}' for at, mark in enumerate(MARKS)]
    rows = feed.lines("json", lines, {"id": "int"}, delete={"column": "op", "values": values})
    assert "".join("e" if row[ERR_KIND] == "op" else row[OP] for row in rows) == ops.replace(" ", "")
    (feed.folder / "lines.jsonl").unlink()
    marks: list[list[Any]] = [[1, 0], [1.0, None], [True, False], [Decimal("1.00")], [b"D"]]
    types = [pa.int8(), pa.float64(), pa.bool_(), pa.decimal128(5, 2), pa.binary()]
    for at, (found, kind) in enumerate(zip(marks, types, strict=True)):
        table = pa.table({"id": range(len(found)), "op": pa.array(found, kind)})
        pq.write_table(table, feed.folder / f"{at}.parquet")
    rows = feed.records("parquet", {"id": "int"}, order="position", delete={"column": "op", "values": values})
    expected = "uuuuuuud" if values == ["D"] else "dududude"
    assert "".join("e" if row[ERR_KIND] == "op" else row[OP] for row in rows) == expected


def test_a_marker_is_a_number_of_any_length(feed: Feed) -> None:
    marks = ["0.3333333333333333", "1e300", "1e-20", "NaN", "-Infinity", f"1.{'0' * 40}1", f"1.{'0' * 40}", "10e-1"]
    lines = [f'{{"id":1,"op":{mark}}}' for mark in marks]
    rows = feed.lines("json", lines, {"id": "int"}, delete={"column": "op", "values": [1, "1.0"]})
    assert "".join(row[OP] for row in rows) == "uuuuuudd"


def test_a_column_that_may_not_be_null(feed: Feed) -> None:
    columns = {"id": "int", "a": {"type": "int", "nullable": False}}
    rows = feed.lines("json", ['{"id":1}', '{"id":2,"a":null}', '{"id":3,"a":0}'], columns)
    assert kinds(rows) == ["value", "value", None]
    assert "nullable: false" in rows[0][ERR_MESSAGE]


def test_time_from_a_field(feed: Feed) -> None:
    times = ["1767225600000", '"2026-01-01T00:00:00Z"', '"2026-01-01"', "-1", '"soon"', "null", "1e3"]
    lines = [f'{{"id":{index},"t":{{"at":{time}}}}}' for index, time in enumerate(times)]
    rows = feed.lines("json", lines, {"id": "int"}, time={"field": "t.at"})
    assert [row[TIME] for row in rows] == [1767225600000] * 3 + [None] * 4
    assert kinds(rows) == [None] * 3 + ["time"] * 4
    assert [row["id"] for row in rows] == list(range(7))
    assert "'soon'" in rows[4][ERR_MESSAGE]


def test_time_from_the_path_and_order_across_files(feed: Feed) -> None:
    for name in ("day=2026-01-01/part-10.jsonl", "day=2026-01-01/part-2.jsonl", "day=2025-12-31/part 1.jsonl"):
        feed.write(name, '{"id":1}\n{"id":2}\n')
    rows = feed.records("json", {"id": "int"}, source={"path": "day={date:%Y-%m-%d}/*"}, time="path")
    day = 86_400_000
    assert [row[TIME] for row in rows] == [1767225600000 - day] * 2 + [1767225600000] * 4
    files = [row[ORDER]["file"] for row in rows]
    assert files == sorted(files)
    assert len(set(files)) == 3
    assert [row["id"] for row in rows] == [1, 2] * 3


def test_order_by_fields_compares_numbers_and_missing_values(feed: Feed) -> None:
    orders = ["9", "10", '"10.5"', '"b"', '"a"', "null", "12345678901234567890"]
    lines = [f'{{"id":{index},"o":{order}}}' for index, order in enumerate(orders)]
    feed.write("1.jsonl", "\n".join(lines))
    rows = feed.records("json", {"id": "int"}, order={"mode": "log", "by": ["o"]})
    assert [row["id"] for row in rows] == [5, 4, 3, 0, 1, 2, 6]
    typed = feed.records("json", {"id": "int", "o": "string"}, order={"mode": "log", "by": ["o"]})
    assert [row["id"] for row in typed] == [5, 1, 2, 6, 0, 4, 3]


def test_order_by_fields_compares_all_digits(feed: Feed) -> None:
    """As decimals of Python do: more digits than a decimal of Spark has, and more after the point."""
    texts, rng = ["1" * 40, "1" * 39 + "2", "2" + "0" * 60, "0.5", "0.56", "7e30"], random.Random(5)
    whole = [f"{sign}{text}" for sign in ("", "-") for text in texts]
    drawn = [f"{rng.choice('-+ ')}{rng.getrandbits(80) >> rng.randrange(80)}.{rng.getrandbits(60)}" for _ in range(50)]
    orders = [*whole, *drawn, "2.0000000000002", "2.0000000000001", "-1e-400", "1e-400", "1E+400", "000", ".5e1"]
    lines = [json.dumps({"id": index, "o": order}) for index, order in enumerate(orders)]
    rows = feed.lines("json", lines, {"id": "int"}, order={"mode": "log", "by": ["o"]})
    assert [row["id"] for row in rows] == sorted(range(len(orders)), key=lambda index: (Decimal(orders[index]), index))


def test_one_format_takes_few_projections(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark analyzes the whole plan again for each, which is a quarter of the processor time of a small commit."""
    feed.write("a.jsonl", '{"id": 1, "d": 1.5, "s": "x"}\n')
    kind, steps = type(feed.spark.range(0)), list[str]()

    def counted(name: str, real: Any) -> Any:
        def ask(*given: Any, **named: Any) -> Any:
            steps.append(name)
            return real(*given, **named)

        return ask

    for name in ("select", "withColumns", "withColumn", "filter"):
        monkeypatch.setattr(kind, name, counted(name, getattr(kind, name)))
    frame = feed.frame("json", {"id": "bigint", "d": "double", "s": "string"}, order="position")
    monkeypatch.undo()
    assert [row["id"] for row in frame.collect()] == [1]
    assert len(steps) <= 12, steps
