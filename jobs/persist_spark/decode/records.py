"""Make the records frame of what a format found (`RawRecords`): types, errs, order. One place for all formats.

    a format --RawRecords--> typed values --> what is wrong, and with which slot --> the records frame

A record is an err of kind

    key     its key cannot be read: the slot is the raw key, a JSON array of the key columns' texts, if any of them is
            there, else the whole record. A delete with a raw key is not an err: it is a tombstone for the err in that
            slot
    value   its key is good, but a value is not, or the record as a whole is damaged
    op      its key is good, but its operation is unknown
    time    its key and values are good, but its own time is missing or bad; it takes the description's time

    missing_order   only in `sequence` order, whatever else is wrong: a field of its order is missing or bad. The slot
            is the record's position
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from persist_core.config.collection import CollectionConfig
from persist_core.config.order import order_fields
from persist_core.schema import ERR_KEY, ERR_KIND, ERR_MESSAGE, ERR_PAYLOAD, ERR_POSITION, MISSING_ORDER, TIME, Column
from persist_core.time_text import UTC_ZONE
from persist_spark.compat import fenced
from persist_spark.decode.encoding import Encoding, Field
from persist_spark.decode.files import BROKEN, DATE_MS, LINE, NAME, is_full_load, is_of_dms
from persist_spark.decode.json import MARK
from persist_spark.decode.row_checks import check_message, is_strict, marks_of, with_failed_checks
from persist_spark.decode.times import midnight_ms, time_ms
from persist_spark.decode.unsent import inherited_column, is_sent
from persist_spark.decode.values import numbers, remedy, texts, value
from persist_spark.frame import BAD_KEY, DELETE, OP, ORDER, SKIP, UPSERT, canonical_key, key_bytes, order_type, sql_type

_PLACE = "place"  # in `sequence` order: the order struct
_IS_GONE = "is_gone"  # true for the delete of a key that an update has changed
FAULT_KIND, FAULT = "fault_kind", "fault"  # what is wrong with the record as a whole, or null
RAW_OP = "raw_op"  # `u`, `d`, `t`, `s`; null if the operation is unknown
RAW_TIME = "raw_time"  # text of the record's own time; present only with `time: field`
_SHOWN_CHARS = 80  # of a bad value, in a message
_SET_UNIT = "for integers set the column's unit"
BROKEN_TEXT = "the record is not well-formed UTF-8, or holds half a surrogate pair; correct its encoding"
ORDER_AUTO = "order: auto"  # in the reasons of records without the format's own order
NO_PLACE = f"the record does not say its place in the log ({ORDER_AUTO})"
_TEXT_DAMAGE = "[\ufffd?]"  # what undecodable bytes and lone surrogates become


@dataclass(frozen=True)
class OrderField:
    """One field of the order struct: a typed column expression over the raw frame. It may stand beside the order.

    `raw`: the column of its text, of a field that the collection names.
    """

    name: str
    value: SparkColumn
    decides: bool = True
    raw: str = ""


@dataclass(frozen=True)
class RawRecords:
    """The records of a format: one row per record.

    `frame` has `RAW_OP`, `FAULT_KIND`, `FAULT`, `line_columns`, `RAW_TIME` if needed, and the texts of the fields:
    `k0..` for the key columns, `v0..` for the value columns; `hk0..`, `hv0..` (structs with type, name and
    parameters.scale) for hinted fields. `payload` is the raw record, string or binary. `more`: columns to add,
    which need the others. They join the first step, since Spark analyzes the whole plan again for each projection.
    `is_update`: a condition; the frame then has the key before an update too, in `bk0..`, or null.
    """

    frame: DataFrame
    fields: Fields
    payload: SparkColumn
    encoding: Encoding
    order: tuple[OrderField, ...] = ()
    more: Mapping[str, SparkColumn] | None = None
    unordered: SparkColumn | None = None  # why the record does not have the format's own order, or null
    unsent: Mapping[str, SparkColumn] | None = None  # booleans by raw name: the record does not carry this value
    is_update: SparkColumn | None = None


@dataclass(frozen=True)
class Fields:
    """The collection's columns and their places in the raw frame."""

    keys: tuple[Field, ...]
    values: tuple[Field, ...]
    orders: tuple[Field, ...] = ()  # in `sequence` order: its fields that are not columns

    @property
    def all(self) -> tuple[Field, ...]:
        return self.keys + self.values

    def named(self, name: str) -> Field | None:
        return next((field for field in self.all if field.column.name == name), None)


def fields_of(config: CollectionConfig, is_hinted: Callable[[Column], bool] = lambda _: False) -> Fields:
    schema = config.collection_schema()

    def field(raw: str, column: Column) -> Field:
        given = config.columns[column.name]
        return Field(column, raw, given.unit, is_hinted(column), given.decimals, given.binary)

    return Fields(
        tuple(field(f"k{i}", column) for i, column in enumerate(schema.key)),
        tuple(field(f"v{i}", column) for i, column in enumerate(schema.values)),
        tuple(
            Field(Column(name, given.type), f"o{i}", given.unit)
            for i, (name, given) in enumerate(order_fields(config.order, config.columns).items())
            if name not in config.columns
        ),
    )


def line_columns(config: CollectionConfig) -> list[str]:
    """The columns that the source gives each record: text, date, file's name, damage, and `p0..`, its position."""
    return [LINE, DATE_MS, NAME, BROKEN, *(f"p{place}" for place in range(len(config.source.position)))]


def is_sequence(config: CollectionConfig) -> bool:
    """True if the orders of records are compared across batches, so that each field must be of one type."""
    return config.order.mode == "sequence"


def record_path(config: CollectionConfig, column: Column) -> tuple[str, ...]:
    """The path of a column's value in a record: its `field`, dots meaning nesting; else its own name, literally."""
    if column.name not in config.columns:
        return tuple(config.order_name(column.name).split("."))
    field = config.columns[column.name].field
    return tuple(field.split(".")) if field else (column.name,)


def decoded(config: CollectionConfig, raw: RawRecords, position: SparkColumn) -> DataFrame:
    """The records frame (docs/architecture.md). `position`: the text of a record's place in its source."""
    raw = raw if raw.is_update is None else _with_deletes(raw, raw.is_update)
    keys, values = raw.fields.keys, raw.fields.values
    key = canonical_key([field.column for field in keys], [F.col(field.value) for field in keys])
    judged = _judge(config, raw, typed_values(config, raw))
    order = _order(config, raw)
    if is_sequence(config):
        judged = _ordered(config, raw, judged, order)
        order = [F.col(f"{_PLACE}.{field.name}") for field in order_type(config.collection_schema())]
    # Under exactly the columns' Spark types, so that frames of several formats can be united.
    final = {f.column.name: f"CAST({f.value} AS {sql_type(f.column.type)})" for f in raw.fields.all}
    judged = with_failed_checks(config, judged, final, RAW_OP)
    is_good = F.col(ERR_KIND).isNull()
    is_kept = is_good & (F.col(OP) == UPSERT)
    may_be_err = F.lit(True) if config.time.late == "error" else ~is_good
    is_row = F.col(BAD_KEY).isNull() & F.col(OP).isin(UPSERT, DELETE)
    return judged.select(
        *[F.when(is_row, F.expr(final[field.column.name])).alias(field.column.name) for field in keys],
        *[
            F.when(is_kept & is_sent(field), F.expr(final[field.column.name])).alias(field.column.name)
            for field in values
        ],
        fenced(F.col(OP)).alias(OP),
        _time(config).alias(TIME),
        F.struct(*order).alias(ORDER),
        BAD_KEY,
        ERR_KIND,
        F.when(~is_good, F.expr(check_message(config, final, FAULT))).alias(ERR_MESSAGE),
        F.when(~is_good, F.coalesce(BAD_KEY, key)).alias(ERR_KEY),
        F.when(may_be_err, raw.payload.cast("binary")).alias(ERR_PAYLOAD),
        F.when(may_be_err, position).alias(ERR_POSITION),
        *inherited_column(config.collection_schema(), raw.fields.values, is_kept),
        *marks_of(config, [(field.column, is_bad(field), shown_text(field.raw)) for field in values], is_kept),
    )


def _with_deletes(raw: RawRecords, is_update: SparkColumn) -> RawRecords:
    """Two records of an update that changes its key: a delete, of the key before it, and itself."""
    keys = [field.raw for field in raw.fields.keys]
    before = [F.col(f"b{key}") for key in keys]
    is_moved = is_update & any_of([key.isNotNull() for key in before])
    more = dict(raw.more or {})
    op = more.get(RAW_OP, F.col(RAW_OP))
    is_moved &= ~F.struct(*before).eqNullSafe(F.struct(*[F.col(key).alias(f"b{key}") for key in keys]))
    is_moved &= op == UPSERT  # not of a record whose operation is wrong where it stands, or of a control record
    both, one = F.array(F.lit(True), F.lit(False)), F.array(F.lit(False))
    frame = raw.frame.withColumn(_IS_GONE, F.explode(F.when(is_moved, both).otherwise(one)))
    own = {key: F.when(F.col(_IS_GONE), F.col(f"b{key}")).otherwise(F.col(key)) for key in keys}
    more[RAW_OP] = F.when(F.col(_IS_GONE), DELETE).otherwise(op)
    return replace(raw, frame=frame.withColumns(own), more=more)


def _order(config: CollectionConfig, raw: RawRecords) -> list[SparkColumn]:
    """The fields of the order struct. In `sequence` order as `persist_spark.frame.order_type`."""
    place = [F.col(f"p{i}").cast(sql_type(c.type)).alias(c.name) for i, c in enumerate(config.source.position)]
    schema = config.collection_schema()
    named = [field.value.alias(field.name) for field in raw.order]
    if schema.order is not None:
        types = [sql_type(column.type) for column in (*schema.order, *schema.beside)]
        named = [f.value.cast(types[i]).alias(f"by{i}") for i, f in enumerate(raw.order)]
    count = sum(field.decides for field in raw.order)
    return [*named[:count], *place, *named[count:]]


def _ordered(config: CollectionConfig, raw: RawRecords, judged: DataFrame, order: Sequence[SparkColumn]) -> DataFrame:
    """Add the order struct, and make each record without an order an err of its own slot, which is its position.

    So it changes nothing of what its key holds, and is not lost.
    """
    placed = judged.withColumn(_PLACE, F.struct(*order))
    is_missing = F.lit(False) if raw.unordered is None else raw.unordered.isNotNull()
    if config.order.by == "fields":
        is_missing = any_of([_lacks_value(config, field) for field in raw.order])
    is_missing = F.coalesce(~F.col(OP).eqNullSafe(SKIP) & is_missing, F.lit(False))
    where = F.to_json(F.struct(*[F.col(f"{_PLACE}.{column.name}") for column in config.source.position]))
    changed = {
        BAD_KEY: F.concat(F.lit(f"{MISSING_ORDER} "), where).cast("binary"),
        FAULT: F.coalesce(F.col(FAULT), _order_message(config, raw)),
        ERR_KIND: F.lit(MISSING_ORDER),
        OP: F.lit(UPSERT),
    }
    return placed.withColumns({name: F.when(is_missing, new).otherwise(F.col(name)) for name, new in changed.items()})


def _order_message(config: CollectionConfig, raw: RawRecords) -> SparkColumn:
    message = F.lit(None).cast("string")
    if config.order.by != "fields":
        return message if raw.unordered is None else raw.unordered
    fields = zip(raw.order, config.order.fields, config.collection_schema().order or (), strict=True)
    for field, name, column in reversed([*fields]):
        text = F.coalesce(shown_text(field.raw), F.lit("missing or null"))
        wrong = F.concat(F.lit(f"order field {name!r} is "), text, F.lit(f"; expected {column.type}"))
        message = F.when(_lacks_value(config, field), wrong).otherwise(message)
    return message


def _lacks_value(config: CollectionConfig, field: OrderField) -> SparkColumn:
    """True if a field of the order is null and must not be.

    A full load of DMS has no values in fields that only changes have (`AR_H_CHANGE_SEQ`). Null is the lowest, so its
    records come first.
    """
    is_null = field.value.isNull()
    if not is_of_dms(config):
        return is_null
    return is_null & ~(is_full_load() & (F.coalesce(F.trim(F.col(field.raw).cast("string")), F.lit("")) == ""))


def typed_values(config: CollectionConfig, raw: RawRecords) -> DataFrame:
    """The raw frame with the typed value of each field, and the record's own time: one projection a step."""
    frame, encoding, found = raw.frame, raw.encoding, dict(raw.more or {})
    for step in (texts, numbers):
        typed = (*raw.fields.all, *raw.fields.orders)
        found |= {name: column for field in typed for name, column in step(field, encoding.of_field(field)).items()}
        frame, found = frame.withColumns(found) if found else frame, {}
    final = {field.value: value(field, encoding.of_field(field)) for field in (*raw.fields.all, *raw.fields.orders)}
    for field in raw.fields.values:
        is_unsent = (raw.unsent or {}).get(field.raw, F.lit(False))
        if field.column.inherits:
            final[field.unsent] = is_unsent
        elif raw.unsent and field.raw in raw.unsent:  # a bad value: it is null, and its text is not
            final[field.value] = F.when(~is_unsent, final[field.value])
    if config.time.source == "field":
        final[TIME] = _own_time(config, raw)
    return frame.withColumns(final)


def _own_time(config: CollectionConfig, raw: RawRecords) -> SparkColumn:
    """The record's own time in ms. A column of a time type needs no unit; `time.unit` is for all others."""
    field = raw.fields.named(config.time.field or "")
    if field is None or field.column.type not in ("timestamp", "date"):
        return time_ms(raw.encoding.plain(F.col(RAW_TIME)), config.time.unit, config.timezone)
    found = value(field, raw.encoding)
    found = midnight_ms(found, config.timezone) if field.column.type == "date" else F.unix_millis(found)
    return F.when(found >= 0, found)


def _time(config: CollectionConfig) -> SparkColumn:
    if config.time.source == "path":
        return F.col(DATE_MS)
    if config.time.source == "field":
        return F.when(F.col(ERR_KIND).isNull() | (F.col(ERR_KIND) != "time"), F.col(TIME))
    return F.lit(None).cast("bigint")


def _judge(config: CollectionConfig, raw: RawRecords, frame: DataFrame) -> DataFrame:
    """Add `OP`, `BAD_KEY`, `ERR_KIND`, and the message in place of `FAULT`."""
    keys, values = raw.fields.keys, raw.fields.values
    op, fault_kind, broken = F.col(RAW_OP), F.col(FAULT_KIND), F.col(BROKEN)
    is_row = op.isNull() | op.isin(UPSERT, DELETE)
    damaged = broken & F.concat_ws("", *[F.col(key.raw).cast("string") for key in keys]).rlike(_TEXT_DAMAGE)
    has_key = all_of([F.col(key.value).isNotNull() for key in keys]) & ~damaged
    has_raw_key = any_of([F.col(key.raw).isNotNull() for key in keys]) & ~damaged
    raw_key = key_bytes([raw.encoding.plain(F.col(key.raw).cast("string")) for key in keys])
    kind = (
        F.when(~is_row, None)
        .when(~has_key, F.when(~(op.eqNullSafe(DELETE) & has_raw_key), F.lit("key")))
        .when(op == DELETE, _time_kind(config))
        .when(fault_kind.isNotNull() | op.isNull(), F.coalesce(fault_kind, F.lit("op")))
        .when(broken | any_of([is_bad(field) for field in values if is_strict(config, field.column)]), F.lit("value"))
        .otherwise(_time_kind(config))
    )
    payload = raw.payload.cast("binary")
    slot = F.when(is_row & ~has_key, F.when(has_raw_key, raw_key).otherwise(payload))
    judged = frame.withColumns({ERR_KIND: kind.cast("string"), BAD_KEY: slot})
    message = (
        F.when(F.col(ERR_KIND).isNull(), None)
        .when(fault_kind.isNotNull(), F.col(FAULT))
        .when(F.col(ERR_KIND) == "key", F.coalesce(first_fault_in(config, raw, keys), F.lit(BROKEN_TEXT)))
        .when(F.col(ERR_KIND) == "time", _time_message(config) if config.time.source == "field" else None)
        .when(op.isNull(), F.lit("unrecognized operation"))
        .when(broken, F.lit(BROKEN_TEXT))
        .otherwise(first_fault_in(config, raw, values))
    )
    return judged.withColumns({OP: F.when(F.col(ERR_KIND).isNull(), op).otherwise(F.lit(UPSERT)), FAULT: message})


def is_bad(field: Field) -> SparkColumn:
    bad = F.col(field.value).isNull()
    if field.column.inherits:
        bad = bad & is_sent(field)
    return bad & F.col(field.raw).isNotNull() if field.column.nullable else bad


def all_of(conditions: Sequence[SparkColumn]) -> SparkColumn:
    """True if all hold; true without any."""
    return _joined(operator.and_, conditions) if conditions else F.lit(True)


def any_of(conditions: Sequence[SparkColumn]) -> SparkColumn:
    """True if one of them holds; false without any."""
    return _joined(operator.or_, conditions) if conditions else F.lit(False)


def _joined(join: Callable[[SparkColumn, SparkColumn], SparkColumn], found: Sequence[SparkColumn]) -> SparkColumn:
    """One condition, joined in halves: Spark walks expressions by recursion, and one level for each of some hundred
    columns would overflow its stack."""
    half = len(found) // 2
    return join(_joined(join, found[:half]), _joined(join, found[half:])) if half else found[0]


def first_fault(faults: Sequence[tuple[SparkColumn, SparkColumn, SparkColumn]]) -> tuple[SparkColumn, SparkColumn]:
    """The kind and the message of the first fault that holds, or nulls. A fault is a condition, a kind, a message."""
    kind = message = F.lit(None).cast("string")
    for condition, its_kind, its_message in reversed(faults):
        kind = F.when(condition, its_kind).otherwise(kind)
        message = F.when(condition, its_message).otherwise(message)
    return kind, message


def first_fault_in(config: CollectionConfig, raw: RawRecords, fields: Sequence[Field]) -> SparkColumn:
    fault = F.when(F.lit(False), F.lit(None).cast("string"))
    for field in fields:
        start = f"column {field.column.name!r} is "
        missing = "a key needs a value" if field.raw.startswith("k") else "expected a value (nullable: false)"
        absent = F.lit(f"{start}missing or null; {missing}")
        expected = F.lit(f"; expected {_expected(field)}")
        wrong = F.concat(F.lit(start), shown_text(field.raw), expected, remedy(field, raw.encoding.of_field(field)))
        if is_strict(config, field.column):
            fault = fault.when(is_bad(field), F.coalesce(wrong, absent))
    return fault


def shown_text(name: str) -> SparkColumn:
    return F.concat(
        F.lit("'"), F.substring(F.translate(F.col(name).cast("string"), MARK, ""), 1, _SHOWN_CHARS), F.lit("'")
    )


def _expected(field: Field) -> str:
    column, unit = field.column, field.unit
    if column.type.startswith("decimal"):
        return f"{column.type}, without rounding"
    if column.type == "timestamp":
        return f"an ISO timestamp or {unit} since 1970" if unit else f"an ISO timestamp; {_SET_UNIT}"
    if column.type == "date":
        return f"an ISO date or {unit} since 1970" if unit else f"an ISO date; {_SET_UNIT}"
    return column.type


def _time_kind(config: CollectionConfig) -> SparkColumn:
    if config.time.source != "field":
        return F.lit(None).cast("string")
    return F.when(F.col(TIME).isNull(), F.lit("time"))


def _time_message(config: CollectionConfig) -> SparkColumn:
    expected = f"; expected {config.time.unit} since 1970 or an ISO timestamp, from 1970 on"
    if config.timezone != UTC_ZONE:
        expected += f"; with an offset if the clocks of {config.timezone} skip or repeat it"
    shown = F.coalesce(shown_text(RAW_TIME), F.lit("missing or null"))
    return F.concat(F.lit(f"time field {config.time.field!r} is "), shown, F.lit(expected))
