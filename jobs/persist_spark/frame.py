"""The records frame and the part frame: names, types and encodings that decode, upsert, stage and read agree on.

    decode --records frame--> upsert --updates frame--> stage --part files--> state_reader, read

`docs/architecture.md` describes both frames in prose. Everything here is a pure function of a schema; only the column
expressions need a session, when they are called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from persist_core import schema as core
from persist_core.contents.key_range import Key, Scalar, value_at
from persist_core.keys import PART
from persist_core.schema import (
    DIFF,
    ERR_KEY,
    ERR_KIND,
    ERR_MESSAGE,
    ERR_PAYLOAD,
    ERR_POSITION,
    INHERITED,
    TIME,
    CollectionSchema,
    Column,
    decimal_of,
)
from persist_core.time_text import DAY_MS, LAST_ISO_MS

OP, ORDER, BAD_KEY = core.OP, core.ORDER, core.BAD_KEY

UPSERT, DELETE, TRUNCATE, SKIP = "u", "d", "t", "s"  # what `OP` may hold

_PLACE = "_persist_place"
_LIVING = "persist.living"  # of `INHERITED` that is read: the ids of the columns that the shard still has
# Of `from_json`: a text of more than 20 million characters makes it null otherwise. The length of records has a limit.
ANY_LENGTH = {"maxStringLen": str((1 << 31) - 1)}
FIELD_ID = "parquet.field.id"  # of a column's metadata: Spark writes it as the field id of the Parquet column

_ERR_TYPES: dict[str, T.DataType] = {
    ERR_KIND: T.StringType(),
    ERR_MESSAGE: T.StringType(),
    ERR_KEY: T.BinaryType(),
    ERR_PAYLOAD: T.BinaryType(),
    ERR_POSITION: T.StringType(),
}
ERR_COLUMNS = tuple(_ERR_TYPES)
_SIMPLE: dict[str, T.DataType] = {
    "boolean": T.BooleanType(),
    "int": T.IntegerType(),
    "bigint": T.LongType(),
    "float": T.FloatType(),
    "double": T.DoubleType(),
    "string": T.StringType(),
    "binary": T.BinaryType(),
    "date": T.DateType(),
    "timestamp": T.TimestampType(),
    "json": T.StringType(),
}
_TIMESTAMP_FORMAT = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'"
_PLAIN_SCALE = 6  # of decimals whose text never has an exponent


def spark_type(type_name: str) -> T.DataType:
    """The Spark type of one of `persist_core.schema.SIMPLE_TYPES` or `decimal(p,s)`."""
    decimal = decimal_of(type_name)
    return T.DecimalType(*decimal) if decimal else _SIMPLE[type_name]


def struct_of(kinds: Mapping[str, T.DataType]) -> T.StructType:
    """Columns, all nullable, by their names."""
    return T.StructType([T.StructField(name, kind) for name, kind in kinds.items()])


def sql_type(type_name: str) -> str:
    """`spark_type` by its name in SQL: to cast to a type as such takes six messages more to the JVM."""
    return spark_type(type_name).simpleString()


def quoted(name: str) -> str:
    """`name` as an SQL identifier: dots and backticks in it have no meaning to Spark."""
    return "`" + name.replace("`", "``") + "`"


def at_or_after(bound: Key, key: Sequence[core.Column]) -> str:
    """SQL that is true for the keys that are not before a bound, which may have fewer scalars than the key."""
    found = "true"
    for scalar, column in reversed(list(zip(bound, key, strict=False))):
        name, value = quoted(column.name), literal(scalar, column)
        found = f"({name} > {value} OR ({name} = {value} AND {found}))"
    return found


# For types of key columns whose values Spark gives as text: SQL for the text, and what makes a scalar of it.
SCALARS: Mapping[str, tuple[str, Callable[[str], Scalar]]] = {
    "int": ("CAST({} AS STRING)", int),
    "bigint": ("CAST({} AS STRING)", int),
    "date": ("CAST(unix_date({}) AS STRING)", int),
    "timestamp": ("CAST(unix_micros({}) AS STRING)", int),
    "string": ("{}", str),
}


def literal(scalar: Scalar, column: core.Column) -> str:
    """SQL for the value of a key column that a scalar stands for."""
    match column.type:
        case "date":
            return f"date_from_unix_date({scalar})"
        case "timestamp":
            return f"timestamp_micros(CAST('{scalar}' AS BIGINT))"
        case "string":
            return text_literal(str(scalar))
        case "binary":
            return f"X'{scalar}'"
        case other:  # a number or a boolean
            return f"CAST('{value_at(scalar, column)!s}' AS {other})"


def text_literal(text: str) -> str:
    """SQL for a text, whatever characters it has."""
    return f"CAST(X'{text.encode().hex()}' AS STRING)"


def passed(*numbers: int) -> list[str]:
    """SQL texts for bigints that change from batch to batch.

    Spark writes plain numbers into the code that it generates. So each batch would run new code, which it has to
    compile and the JVM has to optimize again: that costs more than all else in a small batch. An array is passed to
    the code; and an index that is known only in the task keeps Spark from replacing its elements by numbers.
    """
    array = f"array({', '.join(f'{number}L' for number in numbers)})"
    return [f"{array}[pmod(spark_partition_id(), 1) + {place}]" for place in range(len(numbers))]


def named(name: str) -> SparkColumn:
    """The column called exactly `name`."""
    return F.col(quoted(name))


def user_fields(schema: CollectionSchema) -> list[T.StructField]:
    """The user's columns, all nullable, as every frame starts; a shard's have their ids."""
    return list(map(_user_field, schema.columns))


def _user_field(column: Column) -> T.StructField:
    ids = {} if column.id is None else {FIELD_ID: column.id}
    return T.StructField(column.name, spark_type(column.type), nullable=True, metadata=ids)


def with_field_ids(rows: DataFrame, columns: Sequence[str], schema: CollectionSchema) -> DataFrame:
    """Rows for files, with the field ids of `schema`; `PART` is a folder's name and has none.

    By aliases: of the metadata that `DataFrame.to` gives, the optimizer loses what the columns did not have before.
    """
    ids = schema.field_ids
    return rows.select(
        *[F.col(PART) if name == PART else named(name).alias(name, metadata={FIELD_ID: ids[name]}) for name in columns]
    )


def as_written(wanted: T.StructType, written: CollectionSchema) -> tuple[T.StructType, list[str]]:
    """The columns to read of a file of schema version `written`, and SQL texts that make the `wanted` columns of these
    columns, renamed to `places`: in a user's session, a name in backticks may be a pattern.

    A user's column is found by its id, read with its name and type as they were written, then renamed and cast: Spark's
    readers widen no types on 3.5, and read names only. A column that the version does not have is null.
    """
    columns = {column.id: _user_field(column) for column in written.columns}
    fields, cells = [], []
    for field in wanted.fields:
        found = columns.get(field.metadata[FIELD_ID]) if FIELD_ID in field.metadata else field
        if found is not None:
            fields.append(found)
        source = "NULL" if found is None else f"{_PLACE}{len(fields) - 1}"
        is_same = found is not None and found.dataType == field.dataType
        # `timestamp` is another type in some sessions.
        kind = "timestamp_ltz" if isinstance(field.dataType, T.TimestampType) else field.dataType.simpleString()
        value = source if is_same else f"CAST({source} AS {kind})"
        if _LIVING in field.metadata:  # what was inherited by a column that is gone says nothing
            kept = f"filter({value}, e -> e.id IN ({', '.join(map(str, field.metadata[_LIVING]))}))"
            value = f"IF(size({kept}) > 0, {kept}, NULL)"
        cells.append(f"{value} AS {quoted(field.name)}")
    return T.StructType(fields), cells


def places(fields: T.StructType) -> list[str]:
    """Names for columns by their places. They need no backticks in SQL."""
    return [f"{_PLACE}{place}" for place in range(len(fields))]


def part_type(schema: CollectionSchema) -> T.StructType:
    """The columns that a reader sees of any part: the user's columns, time, diff, and the err columns."""
    return T.StructType([*user_fields(schema), *struct_of({TIME: T.LongType(), DIFF: T.LongType(), **_ERR_TYPES})])


def order_type(schema: CollectionSchema) -> T.StructType:
    """The type of `ORDER` in a shard in `sequence` order, as `persist_core.schema.order_type` has it."""
    return struct_of({name: spark_type(column.type) for name, column in core.order_cells(schema).items()})


def inherited_fields(schema: CollectionSchema) -> list[T.StructField]:
    """`INHERITED`, as `persist_core.schema.inherited_type` has it, if a column inherits."""
    ordered = {} if schema.order is None else {"ord": order_type(schema)}
    entry = struct_of({"id": T.IntegerType(), "known": T.BooleanType(), **ordered})
    living = {} if schema.version <= 1 else {_LIVING: [column.id for column in schema.values]}
    return [T.StructField(INHERITED, T.ArrayType(entry), metadata=living)] if schema.inherits else []


def beside_fields(schema: CollectionSchema) -> list[T.StructField]:
    """The columns of a part of oks that `part_type` does not have: the order of a row, and what it has inherited."""
    ordered = [] if schema.order is None else [T.StructField(ORDER, order_type(schema))]
    return [*ordered, *inherited_fields(schema)]


def entries_sql(schema: CollectionSchema, wanted: Mapping[int | None, tuple[str, str, str]]) -> str:
    """SQL: `INHERITED` with the entries of some columns, by id: if the first SQL is true, an entry that is `known` and
    has the order that the others say. Without lambdas, of which Spark generates no code."""
    (field,) = inherited_fields(schema)
    entry = cast(T.StructType, cast(T.ArrayType, field.dataType).elementType)
    pieces = []
    for number, (is_there, *cells) in wanted.items():
        given = [
            f"'{each.name}', CAST({sql} AS {each.dataType.simpleString()})"
            for each, sql in zip(entry.fields, (str(number), *cells), strict=False)
        ]
        none = f"CAST(array() AS {field.dataType.simpleString()})"
        pieces.append(f"IF({is_there}, array(named_struct({', '.join(given)})), {none})")
    return f"concat({', '.join(pieces)})"


def records_type(schema: CollectionSchema, order: T.DataType) -> T.StructType:
    """The records frame whose order struct has the type `order`."""
    system = {OP: T.StringType(), TIME: T.LongType(), ORDER: order, BAD_KEY: T.BinaryType(), **_ERR_TYPES}
    return T.StructType([*user_fields(schema), *struct_of(system), *inherited_fields(schema)])


def known_records(
    spark: SparkSession, schema: CollectionSchema, order: T.DataType, rows: Sequence[Mapping[str, Any]]
) -> DataFrame:
    """The records frame of rows that are known here, by the names of its columns; what they leave out is null.

    `ORDER` is by the names of the fields of `order`, its type. Here any may be null.
    """
    of_order = struct_of({each.name: each.dataType for each in cast(T.StructType, order)})
    of_frame = records_type(schema, of_order)
    cells = [{**row, ORDER: tuple(row[ORDER].get(name) for name in of_order.names)} for row in rows]
    return spark.createDataFrame([tuple(row.get(field.name) for field in of_frame.fields) for row in cells], of_frame)


def with_texts(fields: T.StructType) -> T.StructType:
    """These fields, dates and timestamps as texts, to be cast: Python has no years before 1 or after 9999."""
    is_text = (T.DateType, T.TimestampType)
    return struct_of(
        {each.name: T.StringType() if isinstance(each.dataType, is_text) else each.dataType for each in fields}
    )


def no_err() -> list[str]:
    return [f"CAST(NULL AS {kind.simpleString()}) AS {name}" for name, kind in _ERR_TYPES.items()]


def _text(column: Column, value: SparkColumn) -> SparkColumn:
    """One value as canonical text: decimals at scale, dates and timestamps ISO in UTC, binary as lower-case hex."""
    if column.type == "binary":
        return F.lower(F.hex(value))
    if column.type == "timestamp":
        return F.date_format(value, _TIMESTAMP_FORMAT)
    _, scale = decimal_of(column.type) or (0, 0)
    if scale > _PLAIN_SCALE:  # outside of the ANSI mode a cast gives 1E-7
        return F.call_function("format_number", value, F.lit(f"0.{'0' * scale}"))
    return value.cast("string")


def canonical_json(columns: Sequence[Column], found: Sequence[SparkColumn]) -> SparkColumn:
    """Canonical bytes of some columns of a row: UTF-8 of a JSON object, in their order, every value a string or null.

    `found`: where they are in this frame. Timestamps are printed in the session's time zone, which
    `persist_spark.session` sets to UTC.
    """
    if not columns:
        return F.lit(b"{}")
    fields = [_text(column, value).alias(column.name) for column, value in zip(columns, found, strict=True)]
    return F.to_json(F.struct(*fields), {"ignoreNullFields": "false"}).cast("binary")


def json_without(columns: Sequence[Column], found: Sequence[SparkColumn], left_out: Mapping[str, str]) -> SparkColumn:
    """As `canonical_json`, without each column, by name, for which the SQL in `left_out` is true."""
    pieces = []
    for column, value in zip(columns, found, strict=True):
        pair = F.array(F.struct(F.lit(column.name).alias("key"), _text(column, value).alias("value")))
        if column.name in left_out:
            none = F.array().cast("array<struct<key: string, value: string>>")
            pair = F.when(F.expr(left_out[column.name]), none).otherwise(pair)
        pieces.append(pair)
    return F.to_json(F.map_from_entries(F.concat(*pieces))).cast("binary")


def canonical_key(columns: Sequence[Column], found: Sequence[SparkColumn] | None = None) -> SparkColumn:
    """Canonical bytes of a row's key: UTF-8 of a JSON array of texts; meaningless if the key could not be decoded.

    Without names, so that the bytes stay the same if a key column is renamed. `found`: where they are in this
    frame, if not under their own names.
    """
    values = [named(column.name) for column in columns] if found is None else found
    return key_bytes([_text(column, value) for column, value in zip(columns, values, strict=True)])


def shown_json(cells: Mapping[str, str]) -> str:
    """SQL: some cells, SQL by name, as a JSON object for people; times with all digits: an erasure looks for them."""
    struct = ", ".join(f"{sql} AS {quoted(name)}" for name, sql in cells.items())
    return f"to_json(struct({struct}), map('timestampFormat', {text_literal(_TIMESTAMP_FORMAT)}))"


def key_bytes(texts: Sequence[SparkColumn]) -> SparkColumn:
    """UTF-8 of a JSON array: of a key, or of a raw key, some texts of which may be null."""
    return F.to_json(F.array(*texts)).cast("binary")


def key_text(schema: CollectionSchema) -> SparkColumn:
    """The bytes of a row's key that `persist_core.contents.erased` digests: each text after its length in bytes."""
    texts = [_text(column, named(column.name)).cast("binary") for column in schema.key]
    return F.concat(
        *[part for text in texts for part in (F.octet_length(text).cast("string").cast("binary"), F.lit(b":"), text)]
    )


def slot_names(schema: CollectionSchema) -> list[str]:
    """The columns that name a record's slot, compared null-safe: the key columns, then `BAD_KEY`."""
    return [*schema.key_names, BAD_KEY]


def shown_time(time: str) -> str:
    """SQL for the text of a time, a bigint, as `persist_core.time_text.show_time` makes it."""
    iso = (
        f"concat(date_format(timestamp_millis({time}), 'yyyy-MM-dd'), 'T', date_format(timestamp_millis({time}),"
        f" 'HH:mm:ss'), CASE WHEN {time} % 1000 != 0 THEN concat('.', lpad({time} % 1000, 3, '0')) ELSE '' END, 'Z"
        f" (', {time}, ')')"
    )
    return f"CASE WHEN {time} BETWEEN {DAY_MS}L AND {LAST_ISO_MS}L THEN {iso} ELSE string({time}) END"


# Memory decides which keys may be broadcast; compressed bytes say nothing about it. The driver collects them, builds a
# hash table, and sends it to each executor. By default a driver has 1 GB; 20 million keys, 14 MB in Parquet, ended it.
# This is the limit of one hash table. Up to three are built of the same keys, and the driver holds a copy of each.
MAX_BROADCAST_BYTES = 192 << 20
_ROW_BYTES, _CELL_BYTES = 64, 16  # of a row, and of each of its columns, once as a key and once as a value
_LONG_DECIMAL = 18  # digits; one with more takes two cells


def fits(rows: int, columns: Sequence[T.StructField], text_bytes: int) -> bool:
    """True if so many rows of these columns may be broadcast; `text_bytes`: of all that has no fixed width."""
    types = [column.dataType for column in columns]
    cells = len(types) + sum(isinstance(each, T.DecimalType) and each.precision > _LONG_DECIMAL for each in types)
    return rows * (_ROW_BYTES + _CELL_BYTES * cells) + 2 * text_bytes <= MAX_BROADCAST_BYTES


def text_bytes(columns: Sequence[T.StructField]) -> str | None:
    """SQL: the bytes of what has no fixed width in a row's columns; `None` if all have one."""
    texts = [column.name for column in columns if isinstance(column.dataType, T.StringType | T.BinaryType)]
    return " + ".join(f"CAST(coalesce(octet_length({quoted(name)}), 0) AS BIGINT)" for name in texts) or None
