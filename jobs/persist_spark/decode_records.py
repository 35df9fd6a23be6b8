"""From what a format found in its records (`RawRecords`) to the records frame: types, errs, order. One place for all.

    a format --RawRecords--> typed values --> what is wrong, and with which slot --> the records frame

A record is an err of kind

    key     its key can't be had: the slot is the raw key, as JSON of the key columns' texts, where any of them was
            there, else the whole record. A delete with a raw key is no err: it is a tombstone for the err in that slot
    value   its key is good and a value is not, or the record as a whole is damaged
    op      its key is good and what it does is not known
    time    its key and values are good, its own time is missing or bad; it stands at the description's time
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from persist_core.config import CollectionConfig
from persist_core.schema import ERR_KEY, ERR_KIND, ERR_MESSAGE, ERR_PAYLOAD, TIME, Column, decimal_of
from persist_spark.compat import try_cast
from persist_spark.decode_files import BROKEN, DATE_MS, position
from persist_spark.decode_values import Encoding, Hint, same_type, time_ms, typed
from persist_spark.frame import BAD_KEY, DELETE, OP, ORDER, SKIP, TRUNCATE, UPSERT, canonical_json

FAULT_KIND, FAULT = "fault_kind", "fault"  # what is wrong with the record as a whole, or null
RAW_OP = "raw_op"  # `u`, `d`, `t`, `s`; null where the fault says that it could not be told
RAW_TIME = "raw_time"  # text of the record's own time; present only with `time: field`
_SHOWN_CHARS = 80  # of a bad value, in a message
_SET_UNIT = "for integers set the column's unit"
_TEXT_DAMAGE = "[\ufffd?]"  # what undecodable bytes and lone surrogates become


@dataclass(frozen=True)
class OrderField:
    """One field of the order struct: a typed column expression over the raw frame."""

    name: str
    value: SparkColumn


@dataclass(frozen=True)
class RawRecords:
    """What a format found: one row per record.

    `frame` has `RAW_OP`, `FAULT_KIND`, `FAULT`, `BROKEN`, the files' columns, `RAW_TIME` where wanted, and the texts of
    the fields: `k0..` for the key columns, `v0..` for the value columns; `hk0..`, `hv0..` (structs of type, name,
    scale) for those columns that `hinted` names. `payload` is the raw record, string or binary.
    """

    frame: DataFrame
    payload: SparkColumn
    encoding: Encoding
    order: tuple[OrderField, ...] = ()
    hinted: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Field:
    """A column of the collection and where it lives in the raw frame: `raw`, typed as `value`, hint in `hint`."""

    column: Column
    raw: str
    value: str
    hint: str


def fields_of(config: CollectionConfig) -> tuple[list[Field], list[Field]]:
    """Key fields and value fields."""
    schema = config.collection_schema()
    keys = [Field(column, f"k{i}", f"tk{i}", f"hk{i}") for i, column in enumerate(schema.key)]
    values = [Field(column, f"v{i}", f"tv{i}", f"hv{i}") for i, column in enumerate(schema.values)]
    return keys, values


def record_path(config: CollectionConfig, column: Column) -> tuple[str, ...]:
    """Where a column's value is found in a record: its `field`, dots meaning nesting; else its own name, literally."""
    field = config.columns[column.name].field
    return tuple(field.split(".")) if field else (column.name,)


def records_frame(config: CollectionConfig, raw: RawRecords) -> DataFrame:
    """The records frame (docs/architecture.md)."""
    keys, values = fields_of(config)
    typed_frame = raw.frame.select(
        "*",
        *[_typed(config, raw, field).alias(field.value) for field in keys + values],
        *([_own_time(config, raw)] if _has_own_time(config) else []),
    )
    judged = _judge(config, raw, typed_frame)
    is_good = F.col(ERR_KIND).isNull()
    is_slot = F.col(BAD_KEY).isNull()
    is_kept = is_good & (F.col(OP) == UPSERT)
    order = [field.value.alias(field.name) for field in raw.order]
    return judged.select(
        *[F.when(is_slot & ~F.col(OP).isin(TRUNCATE, SKIP), _final(f)).alias(f.column.name) for f in keys],
        *[F.when(is_kept, _final(f)).alias(f.column.name) for f in values],
        F.coalesce(OP, F.lit(UPSERT)).alias(OP),
        _time(config).alias(TIME),
        F.struct(*order, *position()).alias(ORDER),
        BAD_KEY,
        ERR_KIND,
        F.when(~is_good, F.col(FAULT)).alias(ERR_MESSAGE),
        F.when(~is_good, F.coalesce(BAD_KEY, _canonical(keys))).alias(ERR_KEY),
        F.when(~is_good, raw.payload.cast("binary")).alias(ERR_PAYLOAD),
    )


def _typed(config: CollectionConfig, raw: RawRecords, field: Field) -> SparkColumn:
    found = F.col(field.hint)
    hint = Hint(found.getField("type"), found.getField("name"), found.getField("scale"))
    unit = config.columns[field.column.name].unit
    return typed(F.col(field.raw), field.column, raw.encoding, unit, hint if field.hint in raw.hinted else None)


def _own_time(config: CollectionConfig, raw: RawRecords) -> SparkColumn:
    return time_ms(raw.encoding.plain(F.col(RAW_TIME)), config.time.unit).alias(TIME)


def _final(field: Field) -> SparkColumn:
    return same_type(F.col(field.value), field.column)


def _canonical(keys: Sequence[Field]) -> SparkColumn:
    return canonical_json([field.column for field in keys], [field.value for field in keys])


def _has_own_time(config: CollectionConfig) -> bool:
    return config.time.source == "field"


def _time(config: CollectionConfig) -> SparkColumn:
    if config.time.source == "path":
        return F.col(DATE_MS)
    if config.time.source == "field":
        return F.when(F.col(ERR_KIND).isNull() | (F.col(ERR_KIND) != "time"), F.col(TIME))
    return F.lit(None).cast("bigint")


def _judge(config: CollectionConfig, raw: RawRecords, frame: DataFrame) -> DataFrame:
    """Add `OP`, `BAD_KEY`, `ERR_KIND`, and the message in place of `FAULT`."""
    keys, values = fields_of(config)
    op, fault_kind, broken = F.col(RAW_OP), F.col(FAULT_KIND), F.col(BROKEN)
    is_row = op.isNull() | op.isin(UPSERT, DELETE)
    damaged = broken & F.concat_ws("", *[F.col(key.raw) for key in keys]).rlike(_TEXT_DAMAGE)
    has_key = _all([F.col(key.value).isNotNull() for key in keys]) & ~damaged
    has_raw_key = _any([F.col(key.raw).isNotNull() for key in keys]) & ~damaged
    raw_key = F.to_json(
        F.struct(*[raw.encoding.plain(F.col(key.raw)).alias(key.column.name) for key in keys]),
        {"ignoreNullFields": "false"},
    )
    is_tombstone = (op == DELETE) & has_raw_key
    value_fault = _first_fault(config, raw, values)
    whole = F.when(fault_kind.isNotNull(), fault_kind).when(broken, F.lit("value"))
    kind = (
        F.when(~is_row, None)
        .when(~has_key, F.when(~is_tombstone, F.lit("key")))
        .when(op == DELETE, _time_kind(config))
        .when(whole.isNotNull(), whole)
        .when(value_fault.isNotNull(), F.lit("value"))
        .otherwise(_time_kind(config))
    )
    message = (
        F.when(fault_kind.isNotNull(), F.col(FAULT))
        .when(F.col(ERR_KIND) == "key", _first_fault(config, raw, keys))
        .when(F.col(ERR_KIND) == "time", _time_message(config, raw))
        .when(broken, F.lit("the record is not well-formed UTF-8 or holds half a surrogate pair; mend its encoding"))
        .otherwise(value_fault)
    )
    slot = F.when(is_row & ~has_key, F.when(has_raw_key, raw_key.cast("binary")).otherwise(raw.payload.cast("binary")))
    kept = frame.withColumns({ERR_KIND: kind.cast("string"), BAD_KEY: slot})
    return kept.withColumns({OP: F.when(F.col(ERR_KIND).isNull(), op).otherwise(F.lit(UPSERT)), FAULT: message})


def _all(conditions: Sequence[SparkColumn]) -> SparkColumn:
    found = F.lit(True)
    for condition in conditions:
        found = found & condition
    return found


def _any(conditions: Sequence[SparkColumn]) -> SparkColumn:
    found = F.lit(False)
    for condition in conditions:
        found = found | condition
    return found


def _first_fault(config: CollectionConfig, raw: RawRecords, fields: Sequence[Field]) -> SparkColumn:
    """What is wrong with the first bad field, or null."""
    faults = []
    for field in fields:
        shown = F.substring(raw.encoding.plain(F.col(field.raw)), 1, _SHOWN_CHARS)
        start = f"column {field.column.name!r} is "
        bad = F.concat(F.lit(start + "'"), shown, F.lit(f"'; wanted {_wanted(config, field.column)}"))
        fault = F.when(F.col(field.raw).isNotNull() & F.col(field.value).isNull(), bad)
        if not field.column.nullable:
            is_key = field.raw.startswith("k")
            reason = "a key needs a value" if is_key else "wanted a value, since it is nullable: false"
            fault = fault.when(F.col(field.value).isNull(), F.lit(f"{start}missing or null; {reason}"))
        faults.append(fault)
    return F.coalesce(*faults, F.lit(None).cast("string"))


def _wanted(config: CollectionConfig, column: Column) -> str:
    """What a column takes, for messages."""
    unit = config.columns[column.name].unit
    if decimal_of(column.type):
        return f"{column.type}, without rounding"
    if column.type == "timestamp":
        return (
            f"an ISO timestamp or {unit} since 1970" if unit else "an ISO timestamp; for integers set the column's unit"
        )
    if column.type == "date":
        return f"an ISO date or {unit} since 1970" if unit else f"an ISO date; {_SET_UNIT}"
    if column.type in ("int", "bigint") and config.source.decimals == "precise":
        return f"{column.type}; where numbers are quoted set source.decimals: string"
    return column.type


def _time_kind(config: CollectionConfig) -> SparkColumn:
    if not _has_own_time(config):
        return F.lit(None).cast("string")
    return F.when(F.col(TIME).isNull(), F.lit("time"))


def _time_message(config: CollectionConfig, raw: RawRecords) -> SparkColumn:
    if not _has_own_time(config):
        return F.lit(None).cast("string")
    shown = F.coalesce(F.substring(raw.encoding.plain(F.col(RAW_TIME)), 1, _SHOWN_CHARS), F.lit("missing"))
    wanted = f"; wanted {config.time.unit} since 1970 or an ISO timestamp, from 1970 on"
    return F.concat(F.lit(f"time field {config.time.field!r} is "), shown, F.lit(wanted))


def free_order(name: str, raw: SparkColumn) -> list[OrderField]:
    """A field that is no column: numbers in the order of numbers, below them any other text in its own order."""
    number = try_cast(raw, "decimal(38,9)")
    return [OrderField(f"{name}_number", number), OrderField(f"{name}_text", F.when(number.isNull(), raw))]


def field_orders(config: CollectionConfig, free: Sequence[SparkColumn]) -> tuple[OrderField, ...]:
    """The order struct's fields for `order: [...]`: a configured column by its typed value, else by `free`'s text.

    `free` holds the raw text for each of `config.order.fields`, in their order. A missing value is null: the lowest.
    """
    keys, values = fields_of(config)
    by_name = {field.column.name: field for field in keys + values}
    found: list[OrderField] = []
    for index, name in enumerate(config.order.fields):
        field = by_name.get(name)
        if field is not None:
            found.append(OrderField(f"by{index}", F.col(field.value)))
        else:
            found += free_order(f"by{index}", free[index])
    return tuple(found)
