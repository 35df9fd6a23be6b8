"""Keys of Debezium messages: columns called as parts of a key, and keys that are one value."""

from __future__ import annotations

import json
from typing import Any

import pytest

from persist_core.schema import ERR_KIND, ERR_MESSAGE
from persist_spark.frame import OP
from tests.sampling import sample
from tests.spark.decode_feed import Feed, Record

_DECIMAL = "org.apache.kafka.connect.data.Decimal"


def described(kind: str, payload: Any) -> dict[str, Any]:
    """A key with its schema."""
    fields = [{"field": name, "type": "int32"} for name in payload] if isinstance(payload, dict) else None
    return {"schema": {"type": kind, "fields": fields, "optional": False}, "payload": payload}


def read(feed: Feed, keys: list[Any], row: dict[str, Any], columns: dict[str, str], **changes: Any) -> list[Record]:
    """The records of an insertion, a delete whose row is not sent, and a tombstone, with each of these message keys."""
    values = [{"op": "c", "after": row}, {"op": "d", "before": None}, None]
    lines = [json.dumps({"key": key, "value": each}) for key in keys for each in values]
    return feed.lines("debezium-json", lines, columns, **changes)


@pytest.mark.family("decoders")
@pytest.mark.parametrize("name", sample(["schema", "payload", "odd", "key", "value", "Schema"], 2, "names"))
@pytest.mark.parametrize("kind", sample(["int", "string"], 1, "types"))
def test_key_columns_named_as_parts_of_a_key(feed: Feed, name: str, kind: str) -> None:
    key = {name: 5 if kind == "int" else "x", "n": 1}
    forms = [key, described("struct", key), described("map", key), {"schema": None, "payload": key}]
    rows = read(feed, forms, {**key, "v": "a"}, {name: kind, "n": "bigint", "v": "string"}, key=[name, "n"])
    assert [row[OP] for row in rows] == ["u", "d", "d"] * 4, [row[ERR_MESSAGE] for row in rows]
    assert [{part: row[part] for part in key} for row in rows] == [key] * 12
    alone = {name: key[name]}
    rows = read(feed, [alone, described("struct", alone)], alone, {name: kind, "v": "string"}, key=name)
    assert [row[name] for row in rows] == [key[name]] * 6, [row[ERR_MESSAGE] for row in rows]


def test_a_key_that_is_one_value_with_its_schema(feed: Feed) -> None:
    """As of the transformation ExtractField, with `schemas.enable: true`."""
    for value, kind, column in ((7, "int32", "int"), ("{x", "string", "string")):
        key = described(kind, value)
        rows = read(feed, [key, json.dumps(key)], {"id": value, "v": "a"}, {"id": column, "v": "string"})
        assert [(row[OP], row["id"], row[ERR_KIND]) for row in rows] == [(op, value, None) for op in "udd"] * 2


def test_the_schema_of_a_key_that_is_one_value_is_its_type(feed: Feed) -> None:
    """A tombstone has no row, whose schema would say the same."""
    times = "io.debezium.time."
    for kind, value, more, text in (
        ("date", 19000, {"type": "int32", "name": f"{times}Date"}, "2022-01-08"),
        ("timestamp", 1_500_000, {"type": "int64", "name": f"{times}MicroTimestamp"}, "1970-01-01 00:00:01.500000"),
        ("timestamp", 1_500, {"type": "int64", "name": f"{times}Timestamp"}, "1970-01-01 00:00:01.500000"),
        ("decimal(5,2)", "MDk=", {"type": "bytes", "name": _DECIMAL, "parameters": {"scale": "2"}}, "123.45"),
        ("bigint", "MDk=", {"type": "bytes", "name": _DECIMAL, "parameters": {"scale": "0"}}, "12345"),
    ):
        key = {"schema": {**more, "optional": False}, "payload": value}
        lines = [json.dumps({"key": each, "value": None}) for each in (key, json.dumps(key))]
        rows = feed.lines("debezium-json", lines, {"id": kind, "v": "string"})
        assert [(row[OP], str(row["id"])) for row in rows] == [("d", text)] * 2, [row[ERR_MESSAGE] for row in rows]


def test_a_nested_field_may_have_any_name(feed: Feed) -> None:
    columns = {"id": "int", "whole": "json", "odd": {"type": "int", "field": "whole.odd"}}
    (row,) = feed.lines("json", ['{"id":1,"whole":{"odd":5}}'], columns)
    assert (row["odd"], row["whole"]) == (5, '{"odd":5}')
