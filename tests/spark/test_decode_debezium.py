"""Debezium messages: envelopes, schemas, message keys, tombstones, unwrapped and control records, encodings, order."""

from __future__ import annotations

import base64
import json
import random
from typing import Any

import pytest

from persist_core.schema import ERR_KIND, ERR_MESSAGE, ERR_PAYLOAD, TIME
from persist_spark.frame import BAD_KEY, OP
from tests.sampling import sample
from tests.spark.decode_feed import Feed, Record

COLUMNS = {"id": "int", "name": "string"}


def envelope(op: str, before: Any = None, after: Any = None, **source: Any) -> dict[str, Any]:
    return {"before": before, "after": after, "source": {"connector": "postgresql", **source}, "op": op, "ts_ms": 1}


def connect(fields: list[dict[str, Any]], payload: Any) -> dict[str, Any]:
    """A message with its schema: an envelope's row has `fields`."""
    rows = [{"type": "struct", "fields": fields, "field": name} for name in ("before", "after")]
    return {"schema": {"type": "struct", "fields": [*rows, {"type": "string", "field": "op"}]}, "payload": payload}


def read(feed: Feed, messages: list[Any], columns: dict[str, Any] | None = None, **changes: Any) -> list[Record]:
    lines = [message if isinstance(message, str) else json.dumps(message) for message in messages]
    return feed.lines("debezium-json", lines, COLUMNS if columns is None else columns, **changes)


def told(rows: list[Record]) -> list[tuple[Any, ...]]:
    return [(row[OP], row["id"], row["name"], row[ERR_KIND]) for row in rows]


def base64_of(unscaled: int) -> str:
    size = max(1, ((unscaled if unscaled >= 0 else ~unscaled).bit_length() + 8) // 8)
    return base64.b64encode(unscaled.to_bytes(size, "big", signed=True)).decode()


def test_every_op_with_and_without_a_schema_wrapper(feed: Feed) -> None:
    row = {"id": 1, "name": "a"}
    plain = [
        envelope("c", None, row),
        envelope("r", None, row),
        envelope("u", {"id": 1}, row),
        envelope("d", row, None),
        envelope("t"),
        envelope("m"),
    ]
    wrapped = [{"schema": None, "payload": message} for message in plain]
    with_schema = [connect([{"type": "int32", "field": "id"}], message) for message in plain]
    wanted = [
        ("u", 1, "a", None),
        ("u", 1, "a", None),
        ("u", 1, "a", None),
        ("d", 1, None, None),
        ("t", None, None, None),
        ("s", None, None, None),
    ]
    assert told(read(feed, plain + wrapped + with_schema)) == wanted * 3


@pytest.mark.family("decoders")
def test_control_records_are_skipped_and_lookalikes_are_not(feed: Feed) -> None:
    control = [
        {"status": "BEGIN", "id": "571:53195829", "ts_ms": 1, "event_count": None, "data_collections": None},
        {"status": "END", "id": "571:53195832", "ts_ms": 1, "event_count": 2, "data_collections": []},
        {"ts_ms": 1768000000000},
        {"schema": {}, "payload": {"ts_ms": 1768000000000}},
        {
            "source": {"file": "x"},
            "ts_ms": 1,
            "databaseName": "inventory",
            "schemaName": None,
            "ddl": "CREATE TABLE t()",
        },
        {"schema": {}, "payload": {"databaseName": "inventory", "tableChanges": []}},
        {"key": {"serverName": "x"}, "value": {"ts_ms": 1768000000000}},
    ]
    assert [row[OP] for row in read(feed, control)] == ["s"] * len(control)
    lookalikes = [
        {"ts_ms": 1, "id": 1},
        {"status": "DONE", "id": 1},
        {"id": 1, "name": "a"},
        {"after": {"id": 1}},
        {},
        '{"payload":null,"id":1}',
        '{"key":null,"value":null,"id":1}',
        "[]",
        '{"op":"c","after":{"id":1',
    ]
    rows = read(feed, lookalikes)
    assert [row[ERR_KIND] for row in rows] == ["key"] * len(lookalikes)
    assert [bytes(row[ERR_PAYLOAD]).decode() for row in rows] == [
        text if isinstance(text, str) else json.dumps(text) for text in lookalikes
    ]


def test_the_key_is_the_messages_then_afters_then_befores(feed: Feed) -> None:
    delete = envelope("d")
    messages = [
        {"key": {"id": 7}, "value": envelope("u", {"id": 8}, {"id": 9, "name": "a"})},
        {"key": {"schema": None, "payload": {"id": 7}}, "value": {"schema": None, "payload": delete}},
        {"key": json.dumps({"id": 7}), "value": json.dumps(delete)},
        {"key": json.dumps({"schema": {"type": "struct", "fields": []}, "payload": {"id": 7}}), "value": None},
        {"key": 7, "value": None},
        {"key": "7", "value": "null"},
        {"key": {"id": 7}, "value": {"schema": None, "payload": None}},
        {"key": {"other": 1}, "value": envelope("c", None, {"id": 7, "name": "b"})},
        envelope("d", {"id": 7}, None),
        {"key": {"id": 7}},
        {"key": None, "value": envelope("d", {"id": 7})},
    ]
    assert told(read(feed, messages)) == [
        ("u", 7, "a", None),
        *[("d", 7, None, None)] * 6,
        ("u", 7, "b", None),
        *[("d", 7, None, None)] * 3,
    ]


def test_an_update_of_a_key_that_no_message_has_is_two(feed: Feed) -> None:
    """A table without a primary key has such updates. Debezium itself sends two records if a message's key changes."""
    row = {"id": 7, "name": "a"}
    messages = [
        {"key": None, "value": envelope("u", row, {**row, "id": 8})},
        {"key": {"other": 1}, "value": envelope("u", {**row, "id": 0}, {**row, "id": None})},
        connect([{"type": "int64", "field": "id"}], envelope("u", row, {**row, "name": "b"})),
        {"key": {"id": 7}, "value": envelope("u", row, {**row, "id": 8})},
        envelope("u", None, row),
        envelope("u", {"id": None}, row),
    ]
    moved = [("d", 7, None, None), ("u", 8, "a", None), ("d", 0, None, None), ("u", None, None, "key")]
    kept = [("u", 7, "b", None), *[("u", 7, "a", None)] * 3]
    assert sorted(told(read(feed, messages)), key=repr) == sorted([*moved, *kept], key=repr)


@pytest.mark.family("decoders")
@pytest.mark.parametrize("order", sample(["auto", "position", "log"], 1, "order"))
def test_a_tombstone_without_a_key_is_skipped(feed: Feed, order: str) -> None:
    forms = [
        "null",
        " null\t",
        '{"payload":null}',
        ' { "schema" : null, "payload" : null } ',
        '{"schema":null,"payload":null}\r',
        '{"key":null,"value":null}',
        '{"value": null, "key": null}',
        '{"topic":"t","offset":5,"key":null,"headers":[],"value":null,"timestamp":"2026-01-01T00:00:00Z"}',
        '{"value":null,"headers":null,"key":"null","offset":7}',
    ]
    flat = {"id": 1, "name": "a", "__op": "u", "__deleted": "false", "__lsn": 5}
    whole = envelope("c", None, {"id": 1, "name": "a"}, lsn=5)
    for record in (whole, connect([{"type": "int32", "field": "id"}], whole), flat):
        rows = read(feed, [record, *forms], order=order)
        assert sorted(told(rows), key=repr) == [("s", None, None, None)] * len(forms) + [("u", 1, "a", None)]


def test_no_key_and_bad_keys(feed: Feed) -> None:
    messages = [
        envelope("d"),
        {"key": None, "value": None},
        {"key": {"id": None}, "value": None},
        {"key": {"id": "x"}, "value": envelope("c", None, {"id": "x", "name": "a"})},
        {"key": {"id": "x"}, "value": None},
        {"key": {"id": 3}, "value": "garbage"},
        {"key": {"id": 4}, "value": {"no": "envelope"}},
        {"key": {"id": 5}, "value": '{"op":"c"} and more'},
        {"key": {"id": "x"}, "value": "garbage"},
    ]
    rows = read(feed, messages)
    assert told(rows) == [
        ("u", None, None, "key"),
        ("s", None, None, None),
        ("u", None, None, "key"),
        ("u", None, None, "key"),
        ("d", None, None, None),
        ("u", 3, None, "value"),
        ("u", 4, None, "value"),
        ("u", 5, None, "value"),
        ("u", None, None, "key"),
    ]
    assert bytes(rows[3][BAD_KEY]) == bytes(rows[4][BAD_KEY]) == b'["x"]'
    assert bytes(rows[0][BAD_KEY]) == bytes(rows[0][ERR_PAYLOAD]) == json.dumps(messages[0]).encode()


@pytest.mark.family("decoders")
def test_composite_keys_and_a_field_in_place_of_the_name(feed: Feed) -> None:
    columns = {"a": "int", "b": "string", "v": {"type": "string", "field": "value"}}
    messages = [
        envelope("c", None, {"a": 1, "b": "x", "value": "v"}),
        envelope("d", {"a": 1, "b": "x"}),
        {"key": {"b": "x", "a": 1}, "value": None},
        envelope("d", {"a": 1}),
    ]
    rows = read(feed, messages, columns, key=["a", "b"])
    assert [(row[OP], row["a"], row["b"], row["v"], row[ERR_KIND]) for row in rows] == [
        ("u", 1, "x", "v", None),
        ("d", 1, "x", None, None),
        ("d", 1, "x", None, None),
        ("d", None, None, None, None),
    ]
    assert bytes(rows[3][BAD_KEY]) == b'["1",null]'


def test_a_key_of_more_columns_than_the_message_has(feed: Feed) -> None:
    """An update without an image before it, as of `REPLICA IDENTITY DEFAULT`, leaves no row."""
    first, moved = {"id": 1, "name": "a"}, {"id": 1, "name": "b"}
    values = [envelope("c", None, first), envelope("u", first, moved), envelope("u", None, moved), envelope("d", moved)]
    rows = read(feed, [{"key": {"id": 1}, "value": each} for each in values], key=["id", "name"])
    kept = [("u", 1, "a", None), *[("u", 1, "b", None)] * 2]
    assert sorted(told(rows)) == [("d", 1, "a", None), ("d", 1, "b", None), *kept]


def test_unwrapped_records(feed: Feed) -> None:
    messages = [
        {"id": 1, "name": "a", "__op": "c", "__deleted": "false"},
        {"id": 1, "name": "a", "__deleted": "true"},
        {"id": 1, "name": None, "__op": "d"},
        {"schema": None, "payload": {"id": 2, "name": "b", "__op": "r"}},
        {"key": {"id": 3}, "value": {"id": 3, "name": "c", "__op": "u"}},
        {"__op": "t"},
        {"id": 4, "name": "d", "__op": "x"},
        {"id": 5, "name": "e", "__deleted": True},
        {"id": 6, "name": "f", "__deleted": "True"},
        {"id": 7, "name": "g", "__deleted": 1},
    ]
    assert told(read(feed, messages)) == [
        ("u", 1, "a", None),
        ("d", 1, None, None),
        ("d", 1, None, None),
        ("u", 2, "b", None),
        ("u", 3, "c", None),
        ("t", None, None, None),
        ("u", 4, None, "op"),
        ("d", 5, None, None),
        ("u", 6, None, "op"),
        ("u", 7, None, "op"),
    ]


PARTS = ("op", "before", "after", "source", "payload", "schema", "key", "value", "status", "ddl")
VALUES = ("t", "d", "m", "BEGIN", {"a": 1.50}, [1], None, {"op": "d", "before": {"id": 9}}, {"id": 9})


@pytest.mark.family("decoders")
@pytest.mark.parametrize("seed", sample(range(40), 3, "unwrapped"))
def test_a_row_may_have_columns_named_as_an_envelopes_parts(feed: Feed, seed: int) -> None:
    """An unwrapped record is a row: none of its columns is read as the format's."""
    rng = random.Random(seed)
    order = rng.choice(["auto", "position", "log"])
    rows = [{name: rng.choice(VALUES) for name in rng.sample(PARTS, len(PARTS))} for _ in range(30)]
    marks = [rng.choice([{"__op": "u"}, {"__deleted": "false"}, {"__op": "c", "__deleted": "false"}]) for _ in rows]
    flat = [{**row, "id": at, **mark, "__lsn": at} for at, (row, mark) in enumerate(zip(rows, marks, strict=True))]
    lines: list[Any] = [
        rng.choice([row, {"schema": None, "payload": row}, {"key": None, "value": row}]) for row in flat
    ]
    columns = {"id": "int", **dict.fromkeys(PARTS, "json")}
    found = read(feed, lines, columns, order=order, source={"missing_field": "unchanged"})
    assert [(row[OP], row[ERR_KIND], row["id"]) for row in found] == [("u", None, at) for at in range(len(rows))]
    compact = [{name: _text_of(value) for name, value in row.items()} for row in rows]
    assert [{name: row[name] for name in PARTS} for row in found] == compact
    without = read(feed, lines, {"id": "int", "rest": "json"}, order=order, source={"rest": "rest"})
    assert [json.loads(row["rest"]) for row in without] == rows


def _text_of(value: Any) -> str | None:
    """The text of a JSON value in a column."""
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, separators=(",", ":"))


def test_a_bad_value_in_a_row_with_such_columns_is_an_err(feed: Feed) -> None:
    columns = {"id": "int", "op": "int", "deep": {"type": "int", "field": "after.x"}}
    lines = [
        {"id": 1, "op": "t", "__op": "u"},
        {"id": 2, "after": "text", "__op": "u"},
        {"id": 3, "op": 4, "__op": "x"},
    ]
    rows = read(feed, lines, columns)
    assert [(row["id"], row[ERR_KIND]) for row in rows] == [(1, "value"), (2, "value"), (3, "op")]
    assert "MongoDB" not in rows[1][ERR_MESSAGE]


def test_a_message_key_that_is_the_text_null_is_none(feed: Feed) -> None:
    lines = [
        {"key": "null", "value": envelope("d", {"id": 4})},
        {"key": "null", "value": envelope("c", None, {"id": 5})},
    ]
    assert told(read(feed, lines)) == [("d", 4, None, None), ("u", 5, None, None)]


@pytest.mark.family("decoders")
@pytest.mark.parametrize("escaped", [r"\ufdd0", r"\ufDD1", r"\\\uFDD0"])
def test_a_message_key_with_an_escaped_mark_is_an_err(feed: Feed, escaped: str) -> None:
    keys = [f'{{"id":"{escaped}5"}}', f'{{"schema":null,"payload":{{"id":"{escaped}5"}}}}', f'{{"id":5,"{escaped}":1}}']
    row = {"id": 5, "name": "a"}
    values = (None, "null", envelope("c", None, row), json.dumps(envelope("d", row)))
    lines = [{"key": key, "value": value} for key in keys for value in values]
    rows = read(feed, lines)
    assert told(rows) == [("u", None, None, "key")] * len(lines)
    assert all("noncharacter" in row[ERR_MESSAGE] for row in rows)
    (whole,) = read(feed, [{"key": escaped, "value": None}], {"id": "string", "name": "string"})
    assert told([whole]) == [("d", escaped, None, None)], "a text that is no JSON has no escapes"


def test_a_column_named_schema_says_no_types(feed: Feed) -> None:
    fields = [{"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "field": "n"}]
    fields.append({"type": "int64", "name": "io.debezium.time.Timestamp", "field": "t"})
    row = {"id": 1, "n": "1234", "t": 5, "__op": "u"}
    columns = {"id": "int", "n": "decimal(10,2)", "t": {"type": "timestamp", "unit": "us"}}
    lines = [{**row, "schema": {"fields": fields}}, {"schema": {"fields": fields}, "payload": row}, row]
    own, described, plain = read(feed, lines, columns, source={"decimals": "string"})
    assert [own[name] for name in columns] == [plain[name] for name in columns], own[ERR_MESSAGE]
    assert described["t"] != plain["t"]


def test_damaged_envelopes_are_errs_of_their_key(feed: Feed) -> None:
    messages = [
        {"op": "c", "before": {"id": 1}, "after": None},
        {"op": "c", "after": {"id": 2, "name": {"deep": [1]}}, "source": "text"},
        {"op": "x", "after": {"id": 3, "name": "a"}},
        {"op": "c", "after": "text"},
        {"op": 5, "after": {"id": 4}},
    ]
    rows = read(feed, messages)
    assert [(row["id"], row[ERR_KIND]) for row in rows] == [
        (1, "value"), (2, "value"), (3, "op"), (None, "key"), (4, "op"),
    ]  # fmt: skip
    assert "op is 'c' but after holds no row" in rows[0][ERR_MESSAGE]
    assert "after is a text, not an object" in rows[3][ERR_MESSAGE], "a document of MongoDB"
    assert "'x'" in rows[2][ERR_MESSAGE]


@pytest.mark.family("decoders")
def test_source_time_skips_tombstones_and_keeps_truncates(feed: Feed) -> None:
    messages = [
        envelope("c", None, {"id": 1}, ts_ms=1000),
        envelope("d", {"id": 1}, None, ts_ms=2000),
        {"key": {"id": 1}, "value": None},
        envelope("t", ts_ms=3000),
        envelope("c", None, {"id": 1}),
    ]
    rows = read(feed, messages, time={"field": "source.ts_ms"})
    assert [(row[OP], row[TIME], row[ERR_KIND]) for row in rows] == [
        ("u", 1000, None), ("d", 2000, None), ("s", None, None), ("t", 3000, None), ("u", None, "time"),
    ]  # fmt: skip
    assert rows[4]["id"] == 1


@pytest.mark.family("decoders")
def test_paths_of_order_and_time_start_at_the_envelope(feed: Feed) -> None:
    messages = [envelope("c", None, {"id": i, "version": v}, ts_ms=v) for i, v in ((0, 10), (1, 9), (2, None))]
    rows = read(feed, messages, order={"mode": "log", "by": ["after.version"]}, time={"field": "source.ts_ms"})
    assert [row["id"] for row in rows] == [2, 1, 0]


def test_columns_named_like_parts_of_the_format(feed: Feed) -> None:
    columns = dict.fromkeys(("id", "op", "source", "payload", "schema", "KEY", "Value", "ts_ms", "status"), "string")
    row = {name: f"{name}!" for name in columns}
    (enveloped,) = read(feed, [envelope("c", None, row)], columns)
    assert {name: enveloped[name] for name in columns} == row, enveloped[ERR_MESSAGE]
    flat = {"id": "1", "KEY": "k", "Value": "v", "status": "BEGIN", "__op": "c"}
    (unwrapped,) = read(feed, [flat], {"id": "string", "KEY": "string", "Value": "string", "status": "string"})
    assert (unwrapped[OP], unwrapped["KEY"], unwrapped["Value"], unwrapped["status"]) == ("u", "k", "v", "BEGIN")
