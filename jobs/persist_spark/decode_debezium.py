"""Debezium JSON: envelopes with or without schema, message keys, tombstones, unwrapped records, control records.

A line is one of

    {"before": .., "after": .., "source": .., "op": ..}            the envelope; inside {"schema", "payload"} as well
    {"key": <key>, "value": <envelope>, null or text of one}       a message: null is a tombstone
    {"id": .., "name": .., "__op": "u", "__deleted": "false"}      unwrapped (ExtractNewRecordState)

1. op c, r, u: upsert of `after`; d: delete; t: truncate; m, transaction marks, heartbeats, schema changes: skip.
2. The key is the message key's, else the key columns of `after`, else of `before`.
3. Order `auto` is Postgres `lsn`, MySQL (number of the binlog file, `pos`, `row`), SQL Server (`commit_lsn`,
   `change_lsn`, `event_serial_no`), else the position; `gtid` and `ts_ms` are not looked at. Missing is lowest: a
   tombstone, which has no source, never beats the delete before it.
4. With `time: {field: ..}` a tombstone is skipped: it has no time, and the delete event before it says the same. A
   topic whose deletes are tombstones only needs `order: position` and another `time`.
5. Paths in `order` and `time` start at the envelope (`source.ts_ms`, `after.version`), or are names of columns.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from persist_core.config import CollectionConfig
from persist_core.errors import InvalidInput
from persist_core.schema import Column, decimal_of
from persist_spark.compat import try_cast
from persist_spark.decode_files import LINE
from persist_spark.decode_json import MARK, Path, Shape, envelope, parse_text, parsed, unmarked
from persist_spark.decode_plain import FILE_COLUMNS, NOT_JSON, ODD_JSON
from persist_spark.decode_records import (
    FAULT,
    FAULT_KIND,
    RAW_OP,
    RAW_TIME,
    Field,
    OrderField,
    RawRecords,
    field_orders,
    fields_of,
    record_path,
)
from persist_spark.decode_values import Encoding
from persist_spark.frame import DELETE, SKIP, TRUNCATE, UPSERT

_STRUCTURE = ("before", "after", "source", "payload", "schema")  # objects of the format itself
_BODY_OBJECTS = ("payload", "before", "after")
_CONTROL = ("status", "ddl", "tableChanges", "databaseName", "ts_ms")
_AUTO = ("lsn", "file", "pos", "row", "commit_lsn", "change_lsn", "event_serial_no")  # of `source`
_AUTO_FLAT = tuple(f"__{start}{name}" for name in ("lsn", "file", "pos", "row") for start in ("", "source_"))
_UNWRAPPED = ("__op", "__deleted")
_UPSERTS = ("c", "r", "u")
_OPS = (*_UPSERTS, "d", "t", "m")
_NULL_VALUE = r'^\s*(?:null|\{\s*"schema"\s*:\s*null\s*,\s*"payload"\s*:\s*null\s*\})\s*$'
_HEARTBEAT = rf'^\s*\{{\s*(?:"payload"\s*:\s*\{{\s*)?"ts_ms"\s*:\s*"?{MARK}?\d+"?\s*\}}'
_CONNECT_FIELD = [
    T.StructField("field", T.StringType()),
    T.StructField("type", T.StringType()),
    T.StructField("name", T.StringType()),
    T.StructField("parameters", T.StructType([T.StructField("scale", T.StringType())])),
]
# A Connect schema, two levels deep: of an envelope the fields of `after`, of a flat record its own.
_SCHEMA = T.StructType(
    [
        T.StructField(
            "fields",
            T.ArrayType(
                T.StructType(
                    [*_CONNECT_FIELD, T.StructField("fields", T.ArrayType(T.StructType(list(_CONNECT_FIELD))))]
                )
            ),
        )
    ]
)
NOT_DEBEZIUM = (
    "neither a Debezium envelope (op) nor an unwrapped record (__op, __deleted); for plain rows set format: json"
)


@dataclass(frozen=True)
class _Wanted:
    """What is wanted of a message, worked out once from the collection."""

    config: CollectionConfig
    keys: list[Field]
    values: list[Field]
    paths: dict[str, Path]  # by raw name, within `after`
    flat: frozenset[str]  # raw names of those columns that an unwrapped record can hold without a clash
    free: list[Path | None]  # for each order field: its path from the envelope, or none for a column
    time: Path | None
    time_column: str | None  # the raw name, where the time field is a column
    hinted: frozenset[str]
    body: Shape
    document: Shape
    key_document: Shape
    key_payload: Shape

    @property
    def is_auto(self) -> bool:
        return self.config.order.by == "auto"


def _needs_hint(config: CollectionConfig, column: Column) -> bool:
    """True where the message's schema could say what the JSON value does not."""
    if decimal_of(column.type) or column.type in ("int", "bigint"):
        return config.source.decimals == "precise"
    return column.type in ("date", "timestamp") and config.columns[column.name].unit is None


def _wanted(config: CollectionConfig) -> _Wanted:
    keys, values = fields_of(config)
    fields = keys + values
    by_name = {field.column.name: field.raw for field in fields}
    paths = {field.raw: record_path(config, field.column) for field in fields}
    flat = frozenset(raw for raw, path in paths.items() if path[0] not in _STRUCTURE)
    free: list[Path | None] = [None if n in by_name else tuple(n.split(".")) for n in config.order.fields]
    objects = [name for name in (*config.order.fields, config.time.field) if name in _STRUCTURE and name not in by_name]
    if objects:
        raise InvalidInput(
            f"field {objects[0]!r} of order or time is an object; name a field in it: {objects[0]}.ts_ms"
        )
    time_field = config.time.field
    own_time = tuple(time_field.split(".")) if time_field and time_field not in by_name else None

    after, before, source, body = Shape(), Shape(), Shape(), Shape()
    after.need_all(paths.values())
    before.need_all([paths[key.raw] for key in keys])
    source.need_all([(name,) for name in ("connector", *_AUTO)] if config.order.by == "auto" else [("connector",)])
    body.put("before", before)
    body.put("after", after)
    body.put("source", source)
    body.need_all([("op",), *[(name,) for name in (*_CONTROL, *_UNWRAPPED)]])
    if config.order.by == "auto":
        body.need_all([(name,) for name in _AUTO_FLAT])
    body.need_all([paths[raw] for raw in sorted(flat)])
    body.need_all([path for path in free if path] + ([own_time] if own_time else []))

    hinted = frozenset(field.hint for field in fields if _needs_hint(config, field.column))
    document = Shape(dict(body.fields))
    document.put("payload", body)
    document.need_all([("key",), ("value",)])
    key_payload = Shape()
    key_payload.need_all([paths[key.raw] for key in keys])
    key_document = Shape(dict(key_payload.fields))
    key_document.put("payload", key_payload)
    if hinted:
        document.put("schema", _SCHEMA)
        key_document.put("schema", _SCHEMA)
    return _Wanted(
        config, keys, values, paths, flat, free, own_time, by_name.get(time_field or ""), hinted, body, document,
        key_document, key_payload,
    )  # fmt: skip


def debezium_records(config: CollectionConfig, lines: DataFrame) -> RawRecords:
    """`debezium-json`: see the module's docstring."""
    wanted = _wanted(config)
    frame = _fields(wanted, _tell(wanted, _open(wanted, lines)))
    encoding = Encoding(decimals="precise" if config.source.decimals == "precise" else "text", bare_days=True)
    order = tuple(_auto_order(wanted)) if wanted.is_auto else ()
    if config.order.by == "fields":
        order = field_orders(config, [F.col(f"o{i}") for i in range(len(config.order.fields))])
    return RawRecords(frame, F.col(LINE), encoding, order)


def _open(wanted: _Wanted, lines: DataFrame) -> DataFrame:
    """The document of each line (the line itself, or the value of a message), the message's key, the text it was."""
    document = wanted.document
    outer = lines.select(*FILE_COLUMNS, envelope(F.col(LINE), document).alias("outer"))
    found = parsed(F.col("outer"), document)
    rows = outer.select(*FILE_COLUMNS, found.row.alias("row"), found.is_odd.alias("odd"))
    row = F.col("row")
    own = ("op", *_UNWRAPPED)
    is_bare = _all_null([*[document.get(row, (n,)) for n in own], *[document.object(row, n) for n in _BODY_OBJECTS]])
    value, key = document.get(row, ("value",)), document.get(row, ("key",))
    is_message = is_bare & (key.isNotNull() | value.isNotNull())
    split = rows.select(
        *FILE_COLUMNS,
        "row",
        "odd",
        F.when(is_message, F.coalesce(value, F.lit("null"))).alias("value"),
        F.when(is_message, key).alias("key"),
    )
    has_value = F.col("value").isNotNull() & ~F.col("value").rlike(_NULL_VALUE)
    inner = split.withColumns(
        {
            "inner": F.when(has_value, envelope(F.col("value"), document)),
            "message_key": F.when(F.col("key").startswith("{"), parse_text(F.col("key"), wanted.key_document)),
        }
    )
    nested = parsed(F.col("inner"), document)
    is_outer = F.col("value").isNull()
    return inner.select(
        *FILE_COLUMNS,
        F.when(is_outer, F.col("row")).otherwise(nested.row).alias("document"),
        (F.when(is_outer, F.col("odd")).otherwise(nested.is_odd)).alias("odd"),
        (~is_outer & ~has_value).alias("is_tombstone"),
        F.coalesce(F.col("value"), F.col(LINE)).alias("text"),
        "key",
        "message_key",
    )


def _all_null(columns: list[SparkColumn]) -> SparkColumn:
    found = F.lit(True)
    for column in columns:
        found = found & column.isNull()
    return found


def _body(wanted: _Wanted, path: Path) -> SparkColumn:
    """The text at `path` of the envelope or the unwrapped record, in a `payload` or not."""
    document = F.col("document")
    inner = wanted.body.get(wanted.document.object(document, "payload"), path)
    return F.when(F.col("in_payload"), inner).otherwise(wanted.document.get(document, path))


def _tell(wanted: _Wanted, opened: DataFrame) -> DataFrame:
    """Which kind of message each one is: `RAW_OP`, its faults, and the structs that the fields are read from."""
    document = F.col("document")
    payload = wanted.document.object(document, "payload")
    placed = opened.withColumn("in_payload", payload.isNotNull())

    def part(name: str) -> SparkColumn:
        inner = wanted.body.object(payload, name)
        return F.when(F.col("in_payload"), inner).otherwise(wanted.document.object(document, name)).alias(name)

    kept = [*FILE_COLUMNS, "document", "odd", "is_tombstone", "text", "key", "message_key", "in_payload"]
    names = ("op", *_UNWRAPPED, *_CONTROL)
    parts = placed.select(
        *kept, *[_body(wanted, (n,)).alias(n) for n in names], *[part(n) for n in ("before", "after", "source")]
    )
    flags = parts.withColumns(
        {
            "is_envelope": F.col("op").isNotNull(),
            "is_flat": F.col("op").isNull() & (F.col("__op").isNotNull() | F.col("__deleted").isNotNull()),
        }
    )
    kind, fault = _faults()
    judged = flags.withColumns({RAW_OP: _op(wanted), FAULT_KIND: kind, FAULT: fault})
    return judged.withColumns(_schema_fields(wanted)) if wanted.hinted else judged


def _op(wanted: _Wanted) -> SparkColumn:
    op, flat_op, deleted = F.col("op"), F.col("__op"), F.col("__deleted")
    return (
        F.when(F.col("is_tombstone"), F.lit(SKIP if wanted.config.time.source == "field" else DELETE))
        .when(op.isin(*_UPSERTS), UPSERT)
        .when(op == "d", DELETE)
        .when(op == "t", TRUNCATE)
        .when(op == "m", SKIP)
        .when(F.col("is_flat") & ((deleted == "true") | (flat_op == "d")), DELETE)
        .when(F.col("is_flat") & (flat_op == "t"), TRUNCATE)
        .when(F.col("is_flat") & (flat_op.isNull() | flat_op.isin(*_UPSERTS)), UPSERT)
        .when(_is_control(), SKIP)
    )


def _is_control() -> SparkColumn:
    """Transaction marks, schema changes, heartbeats."""
    mark = F.col("status").isin("BEGIN", "END")
    change = F.col("databaseName").isNotNull() & (F.col("ddl").isNotNull() | F.col("tableChanges").isNotNull())
    heartbeat = F.col("ts_ms").isNotNull() & F.col("text").rlike(_HEARTBEAT)
    return F.col("op").isNull() & ~F.col("is_flat") & (mark | change | heartbeat)


def _faults() -> tuple[SparkColumn, SparkColumn]:
    """The kind and the message of what is wrong with a message as a whole, or nulls."""
    op = F.coalesce("op", "__op")
    strange = F.col("is_envelope") & ~F.col("op").isin(*_OPS)
    strange = strange | (F.col("is_flat") & ~F.col("__op").isin(*_OPS))
    is_lost = ~F.col("is_tombstone") & F.col("document").isNull()
    is_other = ~F.col("is_tombstone") & ~F.col("is_envelope") & ~F.col("is_flat") & ~_is_control()
    is_empty = F.col("op").isin(*_UPSERTS) & F.col("after").isNull()
    faults = [
        (is_lost, F.when(F.col("key").isNull(), F.lit("key")).otherwise(F.lit("value")), F.lit(NOT_JSON)),
        (is_other, F.when(F.col("key").isNull(), F.lit("key")).otherwise(F.lit("value")), F.lit(NOT_DEBEZIUM)),
        (strange, F.lit("op"), F.concat(F.lit("op is '"), op, F.lit(f"'; wanted one of {', '.join(_OPS)}"))),
        (F.coalesce("odd", F.lit(False)), F.lit("value"), F.lit(ODD_JSON)),
        (is_empty, F.lit("value"), F.concat(F.lit("op is '"), op, F.lit("' and there is no row in after"))),
    ]
    kind, message = F.lit(None).cast("string"), F.lit(None).cast("string")
    for condition, its_kind, its_message in reversed(faults):
        kind = F.when(condition, its_kind).otherwise(kind)
        message = F.when(condition, its_message).otherwise(message)
    return kind, message


def _schema_fields(wanted: _Wanted) -> dict[str, SparkColumn]:
    """What the message's schema says of its row's fields (`row_schema`) and of its key's (`key_schema`)."""
    fields = wanted.document.object(F.col("document"), "schema").getField("fields")
    of_key = wanted.key_document.object(F.col("message_key"), "schema").getField("fields")
    return {"flat_schema": fields, "row_schema": _pick(fields, "after").getField("fields"), "key_schema": of_key}


def _pick(fields: SparkColumn, name: str) -> SparkColumn:
    """The element called `name`, or null."""
    at = F.array_position(fields.getField("field"), F.lit(name))
    return F.get(fields, (at - 1).cast("int"))


def _fields(wanted: _Wanted, told: DataFrame) -> DataFrame:
    """The raw frame: the texts of all fields, hints, order and time."""
    config = wanted.config
    keys = {key.raw: _key_text(wanted, key.raw) for key in wanted.keys}
    values = {field.raw: _row_text(wanted, field.raw, "after") for field in wanted.values}
    orders = [F.lit(None).cast("string") if path is None else unmarked(_body(wanted, path)) for path in wanted.free]
    hints = {f.hint: _hint(wanted, f) for f in wanted.keys + wanted.values if f.hint in wanted.hinted}
    own_time = None
    if wanted.time_column is not None:
        own_time = {**keys, **values}[wanted.time_column]
    elif wanted.time is not None:
        own_time = _body(wanted, wanted.time)
    return told.select(
        *FILE_COLUMNS,
        RAW_OP,
        FAULT_KIND,
        FAULT,
        *[text.alias(name) for name, text in {**keys, **values, **hints}.items()],
        *[text.alias(f"o{index}") for index, text in enumerate(orders)],
        *([own_time.alias(RAW_TIME)] if own_time is not None else []),
        *([value.alias(name) for name, value in _auto_values(wanted).items()] if config.order.by == "auto" else []),
    )


def _row_text(wanted: _Wanted, raw: str, part: str) -> SparkColumn:
    shape = wanted.document.fields[part]
    assert isinstance(shape, Shape)
    text = F.when(F.col("is_envelope"), shape.get(F.col(part), wanted.paths[raw]))
    return text.when(F.col("is_flat"), _body(wanted, wanted.paths[raw])) if raw in wanted.flat else text


def _key_text(wanted: _Wanted, raw: str) -> SparkColumn:
    """Of the message key where it has any of the key columns, else of `after`, else of `before`."""
    shape, payload = wanted.key_document, wanted.key_document.object(F.col("message_key"), "payload")
    paths = [wanted.paths[key.raw] for key in wanted.keys]
    inner = [wanted.key_payload.get(payload, path) for path in paths]
    outer = [shape.get(F.col("message_key"), path) for path in paths]
    after = wanted.document.fields["after"]
    assert isinstance(after, Shape)
    in_after = [after.get(F.col("after"), path) for path in paths]
    index = [key.raw for key in wanted.keys].index(raw)
    text = F.when(F.coalesce(*inner).isNotNull(), inner[index]).when(F.coalesce(*outer).isNotNull(), outer[index])
    if len(paths) == 1:  # a key that is no struct: the value itself
        text = text.when(F.col("message_key").isNull() & ~F.col("key").startswith("{"), F.col("key"))
    return text.when(F.col("is_envelope") & F.coalesce(*in_after).isNull(), _row_text(wanted, raw, "before")).otherwise(
        _row_text(wanted, raw, "after")
    )


def _hint(wanted: _Wanted, field: Field) -> SparkColumn:
    """A struct of type, name and scale: of the row's schema, or of the message key's for a key column."""
    path = wanted.paths[field.raw]
    if len(path) > 1:
        return F.lit(None).cast("struct<type:string,name:string,scale:string>")

    def facts(found: SparkColumn) -> SparkColumn:
        return F.struct(
            found.getField("type").alias("type"),
            found.getField("name").alias("name"),
            found.getField("parameters").getField("scale").alias("scale"),
        )

    of_row = F.when(F.col("is_envelope"), facts(_pick(F.col("row_schema"), path[0]))).otherwise(
        facts(_pick(F.col("flat_schema"), path[0]))
    )
    if not field.raw.startswith("k"):
        return of_row
    return F.when(F.col("key_schema").isNotNull(), facts(_pick(F.col("key_schema"), path[0]))).otherwise(of_row)


def _auto_values(wanted: _Wanted) -> dict[str, SparkColumn]:
    """The order `auto`, field by field, most significant first."""
    source = wanted.document.fields["source"]
    assert isinstance(source, Shape)

    def text(name: str) -> SparkColumn:
        found = unmarked(source.get(F.col("source"), (name,)))
        if f"__{name}" not in _AUTO_FLAT:
            return found
        flat = [unmarked(_body(wanted, (f"__{start}{name}",))) for start in ("", "source_")]
        return F.when(F.col("is_flat"), F.coalesce(*flat)).otherwise(found)

    binlog = try_cast(F.regexp_extract(text("file"), r"(\d{1,18})$", 1), "bigint")
    return {
        "commit_lsn": text("commit_lsn"),
        "change_lsn": text("change_lsn"),
        "event_serial_no": try_cast(text("event_serial_no"), "bigint"),
        "lsn_or_file": F.coalesce(try_cast(text("lsn"), "bigint"), binlog),
        "pos": try_cast(text("pos"), "bigint"),
        "binlog_row": try_cast(text("row"), "bigint"),
    }


def _auto_order(wanted: _Wanted) -> list[OrderField]:
    return [OrderField(name, F.col(name)) for name in _auto_values(wanted)]
