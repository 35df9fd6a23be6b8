"""The values that each type accepts from Debezium messages: by schema, by the collection's settings, never by a guess.

`docs/reference/types.md` is the prose of these tables, `test_decode_text_types` has the other formats.
"""

from __future__ import annotations

import base64
import json
import random
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from persist_core.schema import ERR_KIND, ERR_MESSAGE, TIME
from persist_spark.decode.exact import bits_text, signed_text
from persist_spark.decode.values import TWO_BYTES, TWO_NUMBERS
from persist_spark.frame import ORDER
from tests.sampling import sample
from tests.spark.decode_feed import Feed, Record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DECIMAL = {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal"}
BITS = {"type": "bytes", "name": "io.debezium.data.Bits", "parameters": {"length": "64"}}
STRING, BYTES, INT64 = {"type": "string"}, {"type": "bytes"}, {"type": "int64"}
READ_AS_BYTES = int.from_bytes(base64.b64decode("1234"), "big", signed=True)  # once the silent result of "1234"
UNSCALED = [
    0,
    1,
    -1,
    127,
    128,
    -128,
    -129,
    12345,
    -12345,
    2**63 - 1,
    -(2**63),
    2**63,
    10**37 + 7,
    10**38 - 1,
    1 - 10**38,
]


def base64_of(unscaled: int) -> str:
    size = max(1, ((unscaled if unscaled >= 0 else ~unscaled).bit_length() + 8) // 8)
    return base64.b64encode(unscaled.to_bytes(size, "big", signed=True)).decode()


def message(value: Any, schema: dict[str, Any] | None = None) -> dict[str, Any]:
    """An insert whose field `v` is `value`, in an envelope whose schema, if any, describes `v` so."""
    payload = {"before": None, "after": {"id": 1, "v": value}, "source": {"connector": "postgresql"}, "op": "c"}
    if schema is None:
        return payload
    fields = [{"type": "int32", "field": "id"}, {**schema, "field": "v"}]
    row = {"type": "struct", "fields": fields, "field": "after"}
    return {"schema": {"type": "struct", "fields": [row, {"type": "string", "field": "op"}]}, "payload": payload}


def values(feed: Feed, kind: Any, messages: list[Any], **source: Any) -> list[Record]:
    lines = [json.dumps(message) for message in messages]
    return feed.lines("debezium-json", lines, {"id": "int", "v": kind}, source=source)


def scaled(scale: int) -> dict[str, Any]:
    return {**DECIMAL, "parameters": {"scale": str(scale)}}


def test_integers_of_any_width_are_read_from_their_bytes(spark: SparkSession) -> None:
    rng, rows, last = random.Random(5), [], 10**38 - 1
    for size in range(1, 17):
        end = 2 ** (8 * size - 1)
        for number in (0, 1, -1, end - 1, -end, *(rng.randrange(-end, end) for _ in range(60))):
            rows.append((number, number.to_bytes(size, "big", signed=True)))
    for number in (last, last + 1, 10**37, 2**64, 2**64 - 1):
        rows += [(sign * number, (sign * number).to_bytes(16, "big", signed=True)) for sign in (1, -1)]
    texts = [(str(number) if abs(number) <= last else None, raw.hex().upper()) for number, raw in rows]
    found = spark.createDataFrame(texts, "expected string, digits string")
    found = found.select("*", signed_text(F.col("digits")).alias("found"))
    assert [row.found for row in found.collect()] == [expected for expected, _ in texts]


def test_bits_are_read_from_their_bytes(spark: SparkSession) -> None:
    raws = [random.Random(size).randbytes(size) for size in range(1, 9)]
    texts: list[tuple[str | None, str]] = [(str(int.from_bytes(raw, "little")), raw.hex().upper()) for raw in raws]
    texts += [(None, "00" * 9), (None, "")]
    found = spark.createDataFrame(texts, "expected string, digits string")
    found = found.select("*", bits_text(F.col("digits")).alias("found"))
    assert [row.found for row in found.collect()] == [expected for expected, _ in texts]


def test_precise_decimals_are_base64_to_the_last_digit(feed: Feed) -> None:
    rows = values(feed, "decimal(38,3)", [message(base64_of(n), scaled(3)) for n in UNSCALED])
    assert [row["v"] for row in rows] == [Decimal(f"{n}E-3") for n in UNSCALED]
    rows = values(feed, "decimal(38,3)", [message(base64_of(n)) for n in UNSCALED], decimals="precise")
    assert [row["v"] for row in rows] == [Decimal(f"{n}E-3") for n in UNSCALED]


VARIABLE = {"scale": 1, "value": base64_of(-15)}
# Value, schema; what it is with `decimals` left out, `precise`, `string`. None: an err.
DECIMALS: list[tuple[Any, dict[str, Any] | None, tuple[str | None, str | None, str | None]]] = [
    (12.50, None, ("12.50", "12.50", "12.50")),
    (1234, None, ("1234", "1234", "1234")),
    ("1234", None, (None, f"{READ_AS_BYTES}E-2", "1234")),
    ("1000", None, (None, "-2667212E-2", "1000")),
    ("1E23", None, (None, "-2863689E-2", None)),
    ("12.50", None, ("12.50", None, "12.50")),
    ("-3", None, ("-3", None, "-3")),
    (base64_of(1250), None, (None, "12.50", None)),  # not digits, but nothing says its scale
    (VARIABLE, None, ("-1.50", "-1.50", "-1.50")),
    (json.dumps(VARIABLE), None, ("-1.50", "-1.50", "-1.50")),
    (base64_of(1250), scaled(2), ("12.50", "12.50", "12.50")),
    (base64_of(1250000), scaled(5), ("12.50", "12.50", "12.50")),
    (base64_of(1250001), scaled(5), (None, None, None)),
    (base64_of(1250), DECIMAL, (None, None, None)),  # a Decimal that does not say its scale
    ("1234", scaled(2), (f"{READ_AS_BYTES}E-2",) * 3),
    (12.5, scaled(2), ("12.50", "12.50", "12.50")),
    ("1234", STRING, ("1234", "1234", "1234")),
    ("1234", BYTES, (None, None, None)),
    ("1234", INT64, ("1234", "1234", "1234")),
    (base64_of(10**20), None, (None, None, None)),
    (base64.b64encode(b"\x01" * 17).decode(), None, (None, None, None)),
    ({**VARIABLE, "scale": -(2**31)}, None, (None, None, None)),
    ("a lot", None, (None, None, None)),
    ("NaN", None, (None, None, None)),
    (True, None, (None, None, None)),
    ("", None, (None, None, None)),
]


@pytest.mark.parametrize(("at", "setting"), sample([(0, None), (1, "precise"), (2, "string")], 1, "decimals"))
def test_a_decimal_is_what_its_schema_or_the_collection_says(feed: Feed, at: int, setting: str | None) -> None:
    source = {} if setting is None else {"decimals": setting}
    rows = values(feed, "decimal(10,2)", [message(value, schema) for value, schema, _ in DECIMALS], **source)
    expected = [Decimal(text) if (text := found[at]) else None for _, _, found in DECIMALS]
    assert [row["v"] for row in rows] == expected
    assert [row[ERR_KIND] for row in rows] == [None if value is not None else "value" for value in expected]
    if setting is None:
        assert TWO_NUMBERS in rows[2][ERR_MESSAGE]
        assert "'v' is '1234'" in rows[2][ERR_MESSAGE]
        assert "source.decimals" in TWO_NUMBERS


@pytest.mark.family("decoders")
def test_a_column_says_what_its_source_does_not(feed: Feed) -> None:
    """As MariaDB's connector with `decimal.handling.mode: string`: decimals as digits, unsigned bigints as base64."""
    columns = {
        "id": {"type": "bigint", "decimals": "precise"},
        "amount": "decimal(10,2)",
        "huge": {"type": "decimal(20,0)", "decimals": "precise"},
        "bits": {"type": "binary", "binary": "base64"},
        "raw": "binary",
    }
    after = {"id": base64_of(7), "amount": "1234", "huge": base64_of(2**64 - 1), "bits": "beef", "raw": "beef"}
    rows = feed.lines("debezium-json", [json.dumps({"op": "c", "after": after})], columns,
                      source={"decimals": "string", "binary": "hex"})  # fmt: skip
    (row,) = [{name: row[name] for name in columns} for row in rows]
    assert row == {"id": 7, "amount": Decimal(1234), "huge": Decimal(2**64 - 1), "bits": base64.b64decode("beef"),
                   "raw": b"\xbe\xef"}  # fmt: skip


# Value, schema; what it is with `decimals` left out, and `precise`.
INTEGERS: list[tuple[Any, dict[str, Any] | None, int | None, int | None]] = [
    (5, None, 5, 5),
    (5.0, None, 5, 5),
    ("12345", None, 12345, None),
    ("1234", None, None, READ_AS_BYTES),
    (base64_of(-20_000_000_000), None, None, -20_000_000_000),
    (base64_of(-20_000_000_000), scaled(0), -20_000_000_000, -20_000_000_000),
    ("1234", scaled(0), READ_AS_BYTES, READ_AS_BYTES),
    (base64_of(500), scaled(2), 5, 5),
    (base64_of(501), scaled(2), None, None),
    ("xwcAAAAAAAA=", BITS, 1991, 1991),
    ("1234", STRING, 1234, 1234),
    (base64_of(2**64), None, None, None),
    (True, None, None, None),
]


@pytest.mark.parametrize("setting", sample([None, "precise"], 1, "integers"))
def test_an_integer_is_what_its_schema_or_the_collection_says(feed: Feed, setting: str | None) -> None:
    source = {} if setting is None else {"decimals": setting}
    rows = values(feed, "bigint", [message(value, schema) for value, schema, _, _ in INTEGERS], **source)
    expected = [unset if setting is None else precise for _, _, unset, precise in INTEGERS]
    assert [row["v"] for row in rows] == expected
    assert [row[ERR_KIND] for row in rows] == [None if value is not None else "value" for value in expected]
    if setting is None:
        assert "source.decimals" in rows[3][ERR_MESSAGE]


@pytest.mark.family("decoders")
def test_a_key_that_is_the_text_of_a_number_is_that_number(feed: Feed) -> None:
    lines = [f'{{"key":{key},"value":null}}' for key in ("1234", '"1234"', '"-5"')]
    for source in ({}, {"decimals": "precise"}):
        rows = feed.lines("debezium-json", lines, {"id": "bigint"}, source=source)
        assert [row["id"] for row in rows] == [1234, 1234, -5]
    rows = feed.lines("debezium-json", lines, {"id": "string"})
    assert [row["id"] for row in rows] == ["1234", "1234", "-5"]


TIMES: list[tuple[str | None, Any, str | None]] = [
    ("io.debezium.time.Timestamp", 1679581805123, "2023-03-23 14:30:05.123"),
    ("io.debezium.time.MicroTimestamp", 1679581805123456, "2023-03-23 14:30:05.123456"),
    ("io.debezium.time.NanoTimestamp", 1679581805123456000, "2023-03-23 14:30:05.123456"),
    ("io.debezium.time.NanoTimestamp", 1679581805123456001, None),
    ("org.apache.kafka.connect.data.Timestamp", 0, "1970-01-01 00:00:00"),
    ("io.debezium.time.ZonedTimestamp", "2023-03-23T15:30:05.123456+01:00", "2023-03-23 14:30:05.123456"),
    ("io.debezium.time.Date", 19439, "2023-03-23 00:00:00"),
    ("io.debezium.time.MicroTimestamp", 2**63 - 1, "+294247-01-10 04:00:54.775807"),
    ("io.debezium.time.Timestamp", 2**63 - 1, None),
    ("io.debezium.time.Year", 2023, None),
    ("io.debezium.time.Time", 36803000, None),
    (None, 1679581805123, None),
    (None, "2023-03-23T14:30:05Z", "2023-03-23 14:30:05"),
]


def test_times_as_the_schema_names_them(feed: Feed) -> None:
    messages = [message(value, {**INT64, "name": name} if name else None) for name, value, _ in TIMES]
    feed.write("1.jsonl", "\n".join(map(json.dumps, messages)))
    frame = feed.frame("debezium-json", {"id": "int", "v": "timestamp"}, order="position")
    rows = frame.orderBy(ORDER).selectExpr("cast(v as string) v", ERR_KIND, ERR_MESSAGE).collect()
    assert [row["v"] for row in rows] == [expected for _, _, expected in TIMES]
    assert [row[ERR_KIND] for row in rows] == [None if expected else "value" for _, _, expected in TIMES]
    assert "unit" in rows[11][ERR_MESSAGE]


DAYS = {"type": "int32", "name": "io.debezium.time.Date"}
YEAR = {"type": "int32", "name": "io.debezium.time.Year"}


def test_a_bare_integer_is_no_date_without_a_unit_or_a_schema(feed: Feed) -> None:
    cases: list[tuple[Any, dict[str, Any] | None, date | None, date | None]] = [
        (19439, None, None, date(2023, 3, 23)),  # days, or seconds, or a packed number: unknown which
        (2023, None, None, date(1975, 7, 17)),
        (0, None, None, date(1970, 1, 1)),
        (19439, DAYS, date(2023, 3, 23), date(2023, 3, 23)),
        (2023, YEAR, None, None),
        ("2023-03-23", None, date(2023, 3, 23), date(2023, 3, 23)),
        ("2023-03-23Z", None, date(2023, 3, 23), date(2023, 3, 23)),
        ("2023-03-23+01:00", None, None, None),
        ("0000-00-00", None, None, None),
    ]
    messages = [message(value, schema) for value, schema, _, _ in cases]
    rows = values(feed, "date", messages)
    assert [row["v"] for row in rows] == [unset for _, _, unset, _ in cases]
    assert "unit" in rows[0][ERR_MESSAGE]
    rows = values(feed, {"type": "date", "unit": "days"}, messages)
    assert [row["v"] for row in rows] == [days for _, _, _, days in cases]


def test_the_schema_says_the_unit_before_the_collection(feed: Feed) -> None:
    micros = {**INT64, "name": "io.debezium.time.MicroTimestamp"}
    own = {**INT64, "name": "com.example.Millis"}
    others = [
        "io.debezium.time.MicroTime",
        "io.debezium.time.MicroDuration",
        "io.debezium.time.Year",
        "org.apache.kafka.connect.data.Time",
    ]
    number = {**INT64, "name": "org.apache.kafka.connect.data.Decimal"}
    schemas = [None, INT64, own, number, micros, *({**INT64, "name": name} for name in others)]
    rows = values(feed, {"type": "timestamp", "unit": "ms"}, [message(2_000_000, schema) for schema in schemas])
    assert [row["v"].timestamp() for row in rows[:5]] == [2000.0, 2000.0, 2000.0, 2000.0, 2.0]
    for row, name in zip(rows[5:], others, strict=True):
        assert row[ERR_KIND] == "value"
        assert row[ERR_MESSAGE].endswith(f"; the message's schema says {name}")


def test_the_records_own_time_is_read_as_its_column_is(feed: Feed) -> None:
    micros = {**INT64, "name": "io.debezium.time.MicroTimestamp"}
    lines = [json.dumps(message(value, micros)) for value in (1_700_000_000_000_001, "2023-11-14T22:13:20Z", None)]
    rows = feed.lines("debezium-json", lines, {"id": "int", "v": "timestamp"}, time={"field": "v"})
    assert [(row[TIME], row[ERR_KIND]) for row in rows] == [
        (1_700_000_000_000, None), (1_700_000_000_000, None), (None, "time"),
    ]  # fmt: skip
    assert rows[0]["v"].astimezone(UTC) == datetime(2023, 11, 14, 22, 13, 20, 1, tzinfo=UTC)


# Value, schema; what it is with `binary` left out, `base64`, `hex`.
BINARIES: list[tuple[Any, dict[str, Any] | None, tuple[bytes | None, bytes | None, bytes | None]]] = [
    ("AP8=", None, (b"\x00\xff", b"\x00\xff", None)),
    ("deadbeef", None, (None, base64.b64decode("deadbeef"), b"\xde\xad\xbe\xef")),
    ("deadbeef", BYTES, (base64.b64decode("deadbeef"),) * 3),
    ("deadbeef", STRING, (None, base64.b64decode("deadbeef"), b"\xde\xad\xbe\xef")),
    ("0xBEEF", None, (None, None, b"\xbe\xef")),
    ("\\xbeef", None, (None, None, b"\xbe\xef")),
    ("abc", None, (None, None, None)),
    ("AP 8=", None, (None, None, None)),
    ("", None, (b"", b"", b"")),
    (1234, None, (None, None, None)),
    (True, None, (None, None, None)),
]


@pytest.mark.parametrize(("at", "setting"), sample([(0, None), (1, "base64"), (2, "hex")], 1, "binaries"))
def test_bytes_are_what_their_schema_or_the_collection_says(feed: Feed, at: int, setting: str | None) -> None:
    source = {} if setting is None else {"binary": setting}
    rows = values(feed, "binary", [message(value, schema) for value, schema, _ in BINARIES], **source)
    expected = [found[at] for _, _, found in BINARIES]
    assert [None if row["v"] is None else bytes(row["v"]) for row in rows] == expected
    assert [row[ERR_KIND] for row in rows] == [None if value is not None else "value" for value in expected]
    if setting is None:
        assert TWO_BYTES in rows[1][ERR_MESSAGE]
