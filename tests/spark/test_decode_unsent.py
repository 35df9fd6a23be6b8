"""Values that a record does not carry: Debezium's placeholders, and missing fields that mean unchanged."""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from persist_core.config.collection import UNAVAILABLE_VALUE
from persist_core.schema import ERR_KIND, INHERITED
from persist_spark.frame import OP
from tests.spark.decode_feed import Feed, Record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = {"id": "int", "t": "string", "j": "json", "b": "binary", "n": "int"}
PLACE = base64.b64encode(bytes.fromhex("0101000020E6100000000000FC83D797C1000000FC83D797C1")).decode()


@pytest.fixture
def feed(spark: SparkSession, tmp_path: Path) -> Feed:
    return Feed(spark, tmp_path / "feed")


def unsent(rows: list[Record]) -> list[tuple[str | None, list[int] | None]]:
    """The kind of each record's err, and the places of the values that it does not carry."""
    found = [[entry["id"] for entry in row[INHERITED]] if row[INHERITED] is not None else None for row in rows]
    return [(row[ERR_KIND], places) for row, places in zip(rows, found, strict=True)]


def update(**after: Any) -> str:
    return json.dumps({"op": "u", "before": None, "after": {"id": 1, **after}})


def test_each_placeholder_means_that_a_value_was_not_sent(feed: Feed) -> None:
    data = UNAVAILABLE_VALUE.encode()
    encoded = base64.b64encode(data).decode()
    unsent_uuid = str(uuid.UUID(bytes=hashlib.md5(data, usedforsecurity=False).digest(), version=3))
    forms: list[Any] = [
        UNAVAILABLE_VALUE,
        [UNAVAILABLE_VALUE],
        [encoded],
        [unsent_uuid],
        list(data),
        {UNAVAILABLE_VALUE: UNAVAILABLE_VALUE},
        json.dumps({UNAVAILABLE_VALUE: UNAVAILABLE_VALUE}, separators=(",", ":")),
        {"wkb": PLACE, "srid": 4326},
    ]
    lines = [update(t=form, j=form, b="AP8=", n=1) for form in forms]
    lines += [update(t="x", j="{}", b=form, n=1) for form in (encoded, data.hex(), data.hex().upper())]
    rows = feed.lines("debezium-json", lines, COLUMNS)
    assert unsent(rows) == [(None, [0, 1])] * len(forms) + [(None, [2])] * 3
    assert all(row["t"] is row["j"] is None and bytes(row["b"]) == b"\x00\xff" for row in rows[: len(forms)])


def test_what_only_looks_like_the_placeholder_is_a_value(feed: Feed) -> None:
    values = [f"{UNAVAILABLE_VALUE}!", f"[{UNAVAILABLE_VALUE}]", [UNAVAILABLE_VALUE, "x"], [95, 95], None]
    rows = feed.lines("debezium-json", [update(t=value, j=value, b="AP8=", n=1) for value in values], COLUMNS)
    assert unsent(rows) == [(None, None)] * len(values)
    assert rows[0]["t"] == values[0]
    assert rows[-1]["t"] is None


def test_a_column_that_is_never_left_out_shows_an_err(feed: Feed) -> None:
    (row,) = feed.lines("debezium-json", [update(n=UNAVAILABLE_VALUE, t="x", j="{}", b="")], COLUMNS)
    assert row[ERR_KIND] == "value"


@pytest.mark.parametrize("written", ["gone", "hex:676f6e65"])
def test_the_placeholder_is_the_connectors(feed: Feed, written: str) -> None:
    lines = [update(t="gone", j="{}", b="Z29uZQ==", n=1), update(t=UNAVAILABLE_VALUE, j="{}", b="AP8=", n=1)]
    rows = feed.lines("debezium-json", lines, COLUMNS, source={"unavailable_value": written})
    assert unsent(rows) == [(None, [0, 2]), (None, None)]


def test_a_required_column_may_be_left_out(feed: Feed) -> None:
    columns = {"id": "int", "t": {"type": "string", "nullable": False}}
    rows = feed.lines("debezium-json", [update(t=UNAVAILABLE_VALUE), update(t=None)], columns)
    assert unsent(rows) == [(None, [0]), ("value", None)]


NESTED = {"id": "int", "a": "int", "b": {"type": "string", "field": "o.b"}}
UNCHANGED = {"missing_field": "unchanged"}


def test_a_missing_field_is_unchanged_and_null_is_null(feed: Feed) -> None:
    lines = ['{"id":1}', '{"id":1,"a":null,"o":{}}', '{"id":1,"a":2,"o":null}', '{"id":1,"o":{"b":null},"a":"x"}']
    rows = feed.lines("json", lines, NESTED, source=UNCHANGED)
    assert unsent(rows) == [(None, [0, 1]), (None, [1]), (None, None), ("value", None)]
    assert [row["a"] for row in rows[1:3]] == [None, 2]
    rows = feed.lines("json", lines, NESTED)
    assert INHERITED not in rows[0]


def test_the_last_field_of_a_name_says_what_is_missing(feed: Feed) -> None:
    nested = '"o":{},"a":1,"o":{"b":"x"}'
    lines = [f'{{"id":1,{nested}}}', '{"id":1,"o":{"b":"x"},"o":{},"a":1}', '{"id":1,"o":{"b":"x"},"o":null,"a":1}']
    assert unsent(feed.lines("json", lines, NESTED, source=UNCHANGED)) == [(None, None), (None, [1]), (None, None)]
    for envelope in ('{"op":"u","after":{"id":1},"after":ROW}', '{"payload":{},"payload":{"op":"u","after":ROW}}'):
        rows = feed.lines("debezium-json", [envelope.replace("ROW", line) for line in lines], NESTED, source=UNCHANGED)
        assert unsent(rows) == [(None, None), (None, [1]), (None, None)]
        assert [(row["a"], row["b"]) for row in rows] == [(1, "x"), (1, None), (1, None)]


def test_only_null_deletes_if_a_missing_field_is_unchanged(feed: Feed) -> None:
    lines = ['{"id":1}', '{"id":1,"a":null}', '{"id":1,"a":null,"o":{"b":null}}']
    rows = feed.lines("json", lines, NESTED, source=UNCHANGED, delete={"null_value": True})
    assert [row[OP] for row in rows] == ["u", "u", "d"]


def test_a_missing_field_is_unchanged_in_debezium_and_dms(feed: Feed) -> None:
    row = {"id": 1, "a": None}
    dms = json.dumps({"data": row, "metadata": {"record-type": "data", "operation": "update"}})
    assert unsent(feed.lines("dms-json", [dms], NESTED, source=UNCHANGED)) == [(None, [1])]
    envelope = {"op": "u", "before": None, "after": row}
    lines = [envelope, {"schema": None, "payload": envelope}, {"__op": "u", **row}, {"payload": {"__op": "u", **row}}]
    lines.append({"key": {"id": 1}, "value": envelope})
    rows = feed.lines("debezium-json", [json.dumps(line) for line in lines], NESTED, source=UNCHANGED)
    assert unsent(rows) == [(None, [1])] * len(lines)


def test_a_key_that_an_update_leaves_out_is_unchanged(feed: Feed) -> None:
    """It is the key before the update, which deletes nothing; null is another key."""
    before = {"id": 1, "a": 1, "o": {"b": "x"}}
    lines = [{"op": "u", "before": before, "after": {**after, "a": 2}} for after in ({}, {"id": None}, {"id": 2})]
    rows = feed.lines("debezium-json", [json.dumps(line) for line in lines], NESTED, source=UNCHANGED)
    moved = [("d", 1, None), ("u", None, "key"), ("d", 1, None), ("u", 2, None)]
    assert [(row[OP], row["id"], row[ERR_KIND]) for row in rows] == [("u", 1, None), *moved]
