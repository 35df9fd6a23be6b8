"""Debezium JSON: envelopes with or without schema, message keys, tombstones, unwrapped records, control records.

A line is one of

    {"before": .., "after": .., "source": .., "op": ..}            the envelope; inside {"schema", "payload"} as well
    {"key": <key>, "value": <envelope>, null or text of one}       a message: null is a tombstone
    null, {"payload": null}, {"schema": null, "payload": null}     a tombstone without its key
    {"id": .., "name": .., "__op": "u", "__deleted": "false"}      unwrapped (ExtractNewRecordState)

1. op c, r, u: upsert of `after`; d: delete; t: truncate; m, transaction marks, heartbeats, schema changes: skip.
2. A key column is the message key's, else the row's: of a delete `before`, of others `after`. An update in which these
   two have different keys is a delete and an upsert, as Debezium itself sends a change of the message key. With
   `missing_field: unchanged` a key column that `after` does not have is unchanged too: the key is before's.
3. Order `auto`: see `persist_spark.decode.debezium_order`. A missing field is the lowest: a tombstone, which has no
   source, never wins over the delete before it. In `sequence` order a tombstone is skipped, unless the order is the
   position. One without a key says nothing, and is always skipped.
4. With `time: {field: ..}` a tombstone is skipped: it has no time, and repeats the delete event before it. A topic
   that deletes only by tombstones needs `order: position` and another `time`.
5. Paths in `order` and `time` start at the envelope (`source.ts_ms`, `after.version`), or are names of columns.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from persist_core.config.collection import CollectionConfig
from persist_core.config.order import AUTO_ORDERS, BESIDE
from persist_core.sample.files import DOCUMENT
from persist_core.schema import Column, decimal_of
from persist_spark.decode.debezium_order import FLAT_FIELDS, SOURCE_FIELDS, UNORDERED, auto_order, with_order_texts
from persist_spark.decode.encoding import Encoding, Field
from persist_spark.decode.files import LINE
from persist_spark.decode.json import (
    MARK,
    Path,
    Shape,
    document_text,
    envelope,
    exact_numbers,
    has_escaped_noncharacters,
    parse_text,
    parsed,
)
from persist_spark.decode.plain import ODD_JSON, field_orders, free_paths, free_text, not_read, parsed_lines
from persist_spark.decode.records import (
    FAULT,
    FAULT_KIND,
    RAW_OP,
    RAW_TIME,
    Fields,
    OrderField,
    RawRecords,
    fields_of,
    first_fault,
    is_sequence,
    line_columns,
    record_path,
    shown_text,
)
from persist_spark.decode.rest import all_marked, read_paths, rest_of_json
from persist_spark.decode.unsent import ROW_FIELDS, fields_in, is_absent, unsent
from persist_spark.frame import ANY_LENGTH, DELETE, SKIP, TRUNCATE, UPSERT, struct_of

_BODY_OBJECTS = ("payload", "before", "after")
_CONTROL = ("status", "ddl", "tableChanges", "databaseName", "ts_ms")
_UNWRAPPED = ("__op", "__deleted")
_UPSERTS = ("c", "r", "u")
_OPS = (*_UPSERTS, "d", "t", "m")
_NULL = r'"\s*+:\s*+null\s*+'
# What sinks write beside the key and the value of a message.
_FACT = r'"(?:topic|partition|offset|timestamp(?:Type)?|headers)"\s*+:\s*+(?:"[^"]*+"|\[[^\]]*+\]|[^",\[\]{}]++)\s*+'
_NO_MESSAGE = rf'(?:{_FACT},\s*+)*+"(?:key|value){_NULL},\s*+(?:{_FACT},\s*+)*+"(?:key|value){_NULL}(?:,\s*+{_FACT})*+'
_TOMBSTONE = rf'^\s*+(?:null|\{{\s*+(?:(?:"schema{_NULL},\s*+)?+"payload{_NULL}|{_NO_MESSAGE})\}})\s*+$'
_HEARTBEAT = rf'(?:^|"payload"\s*+:)\s*+\{{\s*+"ts_ms"\s*+:\s*+"?{MARK}?\d++"?\s*+\}}\s*+\}}?\s*+$'
_TEXT_AFTER = r'"after"\s*:\s*"'
_NO_ROW = "' but after holds no row; in unwrapped records leave add.fields.prefix at its default, __"
NOT_DEBEZIUM = (
    "neither a Debezium envelope (op) nor an unwrapped record (__op, __deleted); for plain rows set format: json"
)
_TEXT = T.StringType()
_CONNECT_FIELD = {"field": _TEXT, "type": _TEXT, "name": _TEXT, "parameters": struct_of({"scale": _TEXT})}
# A Connect schema, two levels deep: of an envelope the fields of `after`, of a flat record its own.
_FIELDS = T.ArrayType(struct_of(_CONNECT_FIELD))
_SCHEMA = struct_of({"fields": T.ArrayType(struct_of({**_CONNECT_FIELD, "fields": _FIELDS}))})
_KEY_SCHEMA = struct_of({**_CONNECT_FIELD, "fields": _FIELDS})  # of a key that is one value it has no fields


@dataclass(frozen=True)
class _Wanted:
    config: CollectionConfig
    fields: Fields
    paths: dict[str, Path]  # of each raw field, within a row
    free: dict[str, Path]  # other texts needed, by their raw name: paths from the envelope
    row: Shape
    flat: Shape  # an unwrapped record: a row, and fields beside it
    key_row: Shape
    source: Shape
    body: Shape
    document: Shape
    key_document: Shape

    @property
    def is_hinted(self) -> bool:
        return any(field.is_hinted for field in self.fields.all)

    @property
    def leaves_out(self) -> bool:
        """True if a field that a row does not have is unchanged."""
        return self.config.source.missing_field == "unchanged"


def _wanted(config: CollectionConfig) -> _Wanted:
    fields = fields_of(config, lambda column: _needs_hint(config, column))
    paths = read_paths(config, fields)
    free = free_paths(config, lambda _, name: tuple(name.split(".")))
    free = {raw: path for raw, path in free.items() if fields.named(".".join(path)) is None}

    row, flat, key_row, source, body = Shape(), Shape(), Shape(), Shape(), Shape()
    row.need_all(paths.values())
    key_row.need_all([paths[key.raw] for key in fields.keys])
    is_auto = config.order.by == "auto"
    flat.need_all([*paths.values(), *free.values(), *[(name,) for name in FLAT_FIELDS if is_auto]])
    source.need_all([(name,) for name in (SOURCE_FIELDS if is_auto else ("connector",))])
    body.put("before", key_row)
    body.put("after", row)
    body.put("source", source)
    body.need_all([(name,) for name in ("op", *_CONTROL, *_UNWRAPPED)])
    body.need_all(list(free.values()))

    document = Shape(dict(body.fields))
    document.put("payload", body)
    document.need_all([("key",), ("value",)])
    key_document = Shape()  # columns of a key may be called as its parts
    key_document.need_all([("schema",), ("payload",), *[paths[key.raw] for key in fields.keys]])
    wanted = _Wanted(config, fields, paths, free, row, flat, key_row, source, body, document, key_document)
    if wanted.is_hinted:
        document.put("schema", _SCHEMA)
    return wanted


def _needs_hint(config: CollectionConfig, column: Column) -> bool:
    """True if the message's schema may say what the JSON value does not."""
    if len(record_path(config, column)) > 1:
        return False
    return decimal_of(column.type) is not None or column.type in ("int", "bigint", "date", "timestamp", "binary")


def debezium_records(config: CollectionConfig, lines: DataFrame) -> RawRecords:
    wanted = _wanted(config)
    frame = _raw(wanted, _with_body(wanted, _opened(wanted, lines)))
    encoding = Encoding.of(config, marked=True)
    order = field_orders(config, wanted.fields)
    unordered = None
    if config.order.by == "auto":
        cells = (*AUTO_ORDERS["debezium-json"], *BESIDE)
        order = tuple(OrderField(f"by{i}", F.col(each.name), each not in BESIDE) for i, each in enumerate(cells))
        unordered = F.col(UNORDERED) if is_sequence(config) else None
    lacking = unsent(config, wanted.fields.values, wanted.paths)
    is_update = F.col(RAW_OP) == UPSERT
    return RawRecords(
        frame, wanted.fields, F.col(LINE), encoding, order, unordered=unordered, unsent=lacking, is_update=is_update
    )


def _opened(wanted: _Wanted, lines: DataFrame) -> DataFrame:
    """The document of each line (the line itself, or the value of a message), the message's key, the text it was."""
    document = wanted.document
    rows, row = parsed_lines(wanted.config, lines, document), F.col("row")
    value, key = document.get(row, ("value",)), document.get(row, ("key",))
    is_message = key.isNotNull() | value.isNotNull()
    for name in ("op", *_UNWRAPPED, *_BODY_OBJECTS):
        is_message = is_message & document.get(row, (name,)).isNull()
    is_odd = key.startswith("{") & has_escaped_noncharacters(key)  # then the key stands for the value: it is not read
    split = rows.select(
        *line_columns(wanted.config),
        "row",
        "odd",
        F.when(is_message, F.when(is_odd, key).otherwise(F.coalesce(value, F.lit("null")))).alias("value"),
        F.when(is_message & (key != "null") & ~is_odd, key).alias("key"),
    )
    text = F.coalesce(F.col("value"), F.col(LINE))
    is_tombstone = text.rlike(_TOMBSTONE)
    is_read = F.col("value").isNotNull() & ~is_tombstone & ~has_escaped_noncharacters(F.col("value"))
    inner = split.select(
        "*",
        F.when(is_read, envelope(F.col("value"), document)).alias("inner"),
        F.when(F.col("key").startswith("{"), parse_text(F.col("key"), wanted.key_document)).alias("message_key"),
    )
    nested, nested_is_odd = parsed(F.col("inner"), document)
    is_outer = F.col("value").isNull()

    def key_part(name: str) -> SparkColumn:
        return wanted.key_document.get(F.col("message_key"), (name,))

    return inner.select(
        *line_columns(wanted.config),
        F.when(is_outer, F.col("row")).otherwise(nested).alias("document"),
        F.when(is_outer, F.col("odd")).otherwise(nested_is_odd).alias("odd"),
        is_tombstone.alias("is_tombstone"),
        text.alias("text"),
        "key",
        "message_key",
        parse_text(key_part("payload"), wanted.key_row).alias("key_row"),
        F.from_json(key_part("schema"), _KEY_SCHEMA, ANY_LENGTH).alias("key_schema"),
    )


def _with_body(wanted: _Wanted, opened: DataFrame) -> DataFrame:
    """The envelope of each document, in a `payload` or not, and what its schema says of the row's fields.

    A row may have columns called as the parts of an envelope. So an unwrapped record is read once more, as a row.
    """
    document, text = F.col("document"), F.col("text")
    names = ("op", "before", "after", "source", *_CONTROL, *_UNWRAPPED)
    own = F.coalesce(*[wanted.document.get(document, (name,)) for name in _UNWRAPPED])
    is_wrapped = own.isNull() & wanted.document.get(document, ("payload",)).isNotNull()
    found = opened.withColumn("is_wrapped", is_wrapped)
    found = found.select("*", *[_body(wanted, (name,)).alias(name) for name in names])
    row = F.when(F.col("is_wrapped"), _member(exact_numbers(text), "payload")).otherwise(text)
    found = found.withColumns(
        {"op": F.when(~_is_flat(), F.col("op")), "flat": F.when(_is_flat(), envelope(row, wanted.flat))}
    )
    flat, is_odd = parsed(F.col("flat"), wanted.flat)
    found = found.withColumns({"flat": flat, "odd": F.when(_is_flat(), is_odd).otherwise(F.col("odd"))})
    if wanted.config.order.by == "auto":
        found = with_order_texts(found, wanted.source, wanted.flat, is_flat=_is_flat())
    if wanted.leaves_out:
        found = found.withColumn(ROW_FIELDS, fields_in(_row_json(F.col("text"))))
    if not wanted.is_hinted:
        return found
    fields = wanted.document.get(document, ("schema",)).getField("fields")
    fields = F.when(~_is_flat() | F.col("is_wrapped"), fields)  # else it is a column of the row
    return found.select(
        "*",
        F.when(_is_envelope(), _pick(fields, "after").getField("fields"))
        .otherwise(_shallow(fields))
        .alias("row_schema"),
    )


def _body(wanted: _Wanted, path: Path) -> SparkColumn:
    document = F.col("document")
    inner = F.when(F.col("is_wrapped"), wanted.body.get(wanted.document.get(document, ("payload",)), path))
    return inner.otherwise(wanted.document.get(document, path))


def _member(text: SparkColumn, name: str) -> SparkColumn:
    """The text of a field of an object in JSON text; the last one of those with this name."""
    return F.from_json(text, struct_of({name: _TEXT}), ANY_LENGTH).getField(name)


def _is_envelope() -> SparkColumn:
    return F.col("op").isNotNull()


def _is_flat() -> SparkColumn:
    """True for an unwrapped record, which may have a column `op`: no envelope has one of these fields beside `op`."""
    return F.coalesce("__op", "__deleted").isNotNull()


def _is_control() -> SparkColumn:
    mark = F.col("status").isin("BEGIN", "END")
    change = F.col("databaseName").isNotNull() & (F.col("ddl").isNotNull() | F.col("tableChanges").isNotNull())
    heartbeat = F.col("ts_ms").isNotNull() & F.col("text").rlike(_HEARTBEAT)
    return F.coalesce(mark, F.lit(False)) | change | F.coalesce(heartbeat, F.lit(False))


def _pick(fields: SparkColumn, name: str) -> SparkColumn:
    at = F.array_position(fields.getField("field"), name)
    return F.get(fields, (at - 1).cast("int"))


def _shallow(fields: SparkColumn) -> SparkColumn:
    """A schema's own fields without the fields within them."""
    return F.arrays_zip(*map(fields.getField, _CONNECT_FIELD)).cast(_FIELDS)


def _raw(wanted: _Wanted, opened: DataFrame) -> DataFrame:
    texts = {
        field.raw: _row_text(wanted, field.raw, "after") for field in wanted.fields.values if field.raw in wanted.paths
    }
    texts |= _key_texts(wanted, _is_envelope() & ((F.col("op") == "d") | F.col("after").isNull()))
    has_before = F.coalesce(*[_row_text(wanted, field.raw, "before") for field in wanted.fields.keys]).isNotNull()
    texts |= {f"b{raw}": F.when(has_before, text) for raw, text in _key_texts(wanted, F.lit(True)).items()}
    for raw, path in wanted.free.items():
        text = F.when(_is_flat(), wanted.flat.get(F.col("flat"), path)).otherwise(_body(wanted, path))
        texts[raw] = free_text(wanted.config, raw, text)
    time_field = wanted.fields.named(wanted.config.time.field or "")
    if time_field is not None:
        texts[RAW_TIME] = texts[time_field.raw]
    texts |= {f"h{field.raw}": _hint(wanted, field) for field in wanted.fields.all if field.is_hinted}
    if wanted.config.order.by == "auto":
        texts |= auto_order()
    if wanted.leaves_out:
        texts[ROW_FIELDS] = F.col(ROW_FIELDS)
    texts |= rest_of_json(wanted.config, wanted.fields, _row_json(all_marked(F.col("text"))))
    kind, fault = _faults()
    return opened.select(
        *line_columns(wanted.config),
        _op(wanted.config).alias(RAW_OP),
        kind.alias(FAULT_KIND),
        fault.alias(FAULT),
        *[text.alias(name) for name, text in texts.items()],
    )


def _row_json(text: SparkColumn) -> SparkColumn:
    body = F.when(F.col("is_wrapped"), _member(text, "payload")).otherwise(text)
    return F.when(_is_envelope(), _member(body, "after")).otherwise(body)


def _op(config: CollectionConfig) -> SparkColumn:
    op, flat_op = F.col("op"), F.col("__op")
    # A tombstone has neither a time nor an order of its own, and repeats the delete event before it.
    repeats = config.time.source == "field" or (is_sequence(config) and config.order.by != "position")
    return (
        F.when(F.col("is_tombstone"), F.lit(SKIP) if repeats else F.when(F.col("key").isNull(), SKIP).otherwise(DELETE))
        .when(op.isin(*_UPSERTS), UPSERT)
        .when(op == "d", DELETE)
        .when(op == "t", TRUNCATE)
        .when(op == "m", SKIP)
        .when(_is_flat() & ((F.col("__deleted") == "true") | (flat_op == "d")), DELETE)
        .when(_is_flat() & (flat_op == "t"), TRUNCATE)
        .when(_is_flat() & (flat_op.isNull() | flat_op.isin(*_UPSERTS)), UPSERT)
        .when(~_is_flat() & op.isNull() & _is_control(), SKIP)
    )


def _faults() -> tuple[SparkColumn, SparkColumn]:
    """The kind and the message of what is wrong with a message as a whole, or nulls."""
    op = F.coalesce("op", "__op")
    without_key = F.when(F.col("key").isNull(), F.lit("key")).otherwise(F.lit("value"))
    is_value = ~F.col("is_tombstone")
    faults = [
        (is_value & F.col("document").isNull(), without_key, not_read("text")),
        (is_value & op.isNull() & F.col("__deleted").isNull() & ~_is_control(), without_key, F.lit(NOT_DEBEZIUM)),
        (~op.isin(*_OPS), F.lit("op"), F.concat(F.lit("op is '"), op, F.lit(f"'; expected one of {', '.join(_OPS)}"))),
        (
            _is_flat() & ~F.col("__deleted").isin("true", "false"),
            F.lit("op"),
            F.concat(F.lit("__deleted is "), shown_text("__deleted"), F.lit("; expected true or false")),
        ),
        (_is_envelope() & F.col("odd") & F.col("text").rlike(_TEXT_AFTER), F.lit("value"), F.lit(DOCUMENT)),
        (F.col("odd"), F.lit("value"), F.lit(ODD_JSON)),
        (
            F.col("op").isin(*_UPSERTS) & F.col("after").isNull(),
            F.lit("value"),
            F.concat(F.lit("op is '"), op, F.lit(_NO_ROW)),
        ),
    ]
    return first_fault(faults)


def _row_text(wanted: _Wanted, raw: str, part: str) -> SparkColumn:
    shape = wanted.row if part == "after" else wanted.key_row
    path = wanted.paths[raw]
    return F.when(_is_envelope(), shape.get(F.col(part), path)).when(_is_flat(), wanted.flat.get(F.col("flat"), path))


def _key_texts(wanted: _Wanted, is_before: SparkColumn) -> dict[str, SparkColumn]:
    """The key: what the message key does not have of it is from `after`, or from `before`."""
    key, message_key = F.col("key"), F.col("message_key")
    paths = {field.raw: wanted.paths[field.raw] for field in wanted.fields.keys}
    payload = wanted.key_document.get(message_key, ("payload",))
    alone = F.when(~key.startswith("{"), document_text(key))  # of a key that is not a struct: the value itself
    alone = alone.when(_is_one_value(), payload)
    found = {}
    for raw, path in paths.items():
        inner, outer = wanted.key_row.get(F.col("key_row"), path), wanted.key_document.get(message_key, path)
        stated = F.when(payload.startswith("{"), inner).otherwise(outer)
        stated = F.coalesce(alone, stated) if len(paths) == 1 else stated
        text = F.when(stated.isNotNull(), stated)
        before, after = _row_text(wanted, raw, "before"), _row_text(wanted, raw, "after")
        if wanted.leaves_out:
            after = F.when(is_absent(F.col(ROW_FIELDS), path), before).otherwise(after)
        found[raw] = text.when(is_before, before).otherwise(after)
    return found


def _is_one_value() -> SparkColumn:
    """True for a message key with a schema, of one value: its schema is the value's own."""
    return ~F.col("key_schema").getField("type").isin("struct", "map")


def _hint(wanted: _Wanted, field: Field) -> SparkColumn:
    """The row's schema of a field, or the message key's of a key column."""
    name = wanted.paths[field.raw][0]
    of_row, of_key = _pick(F.col("row_schema"), name), F.col("key_schema")
    if field not in wanted.fields.keys:
        return of_row
    found = _pick(of_key.getField("fields"), name)
    if len(wanted.fields.keys) == 1:
        found = F.when(_is_one_value(), F.struct(*map(of_key.getField, _CONNECT_FIELD))).otherwise(found)
    return F.coalesce(found, of_row)
