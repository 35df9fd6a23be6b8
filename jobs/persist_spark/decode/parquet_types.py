"""The types of Parquet columns: how Spark reads them, and the texts of values that it has no type for.

What Spark reads wrongly or refuses is read as the bytes or the count that is stored: nanoseconds, milliseconds (a large
one stops Spark), half floats, UUIDs and intervals.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as F
from pyspark.sql import types as T

from persist_spark.compat import is_valid_utf8
from persist_spark.decode.records import any_of
from persist_spark.decode.times import floor_ns
from persist_spark.frame import struct_of

_SIMPLE: dict[pa.DataType, T.DataType] = {
    pa.bool_(): T.BooleanType(),
    pa.int8(): T.ByteType(),
    pa.int16(): T.ShortType(),
    pa.int32(): T.IntegerType(),
    pa.int64(): T.LongType(),
    pa.uint8(): T.ShortType(),
    pa.uint16(): T.IntegerType(),
    pa.uint32(): T.LongType(),
    pa.uint64(): T.DecimalType(20, 0),
    pa.float16(): T.BinaryType(),
    pa.float32(): T.FloatType(),
    pa.float64(): T.DoubleType(),
    pa.string(): T.StringType(),
    pa.large_string(): T.StringType(),
    pa.string_view(): T.StringType(),
    pa.binary(): T.BinaryType(),
    pa.binary_view(): T.BinaryType(),
    pa.large_binary(): T.BinaryType(),
    pa.date32(): T.DateType(),
    pa.uuid(): T.BinaryType(),
    pa.month_day_nano_interval(): T.BinaryType(),
    pa.null(): T.IntegerType(),  # a column without a single value
}
_LIST = pa.ListType | pa.LargeListType | pa.FixedSizeListType | pa.ListViewType | pa.LargeListViewType
SHOWN = (pa.float16(), pa.month_day_nano_interval())  # read as bytes, which no user means


def stored_type(arrow: pa.DataType, leaves: Iterator[pq.ColumnSchema]) -> pa.DataType | None:
    """The type of a column as it is stored, or `None` if Spark cannot read it. Takes the column's leaves."""
    if isinstance(arrow, pa.BaseExtensionType):  # JSON and others
        arrow = arrow.storage_type
    if pa.types.is_struct(arrow):
        inner = [(child.name, stored_type(child.type, leaves)) for child in arrow]
        is_clear = len({_folded(name) for name, _ in inner}) == len(inner)
        return pa.struct(inner) if inner and is_clear and all(kind is not None for _, kind in inner) else None
    if isinstance(arrow, _LIST):
        item = stored_type(arrow.value_type, leaves)
        return None if item is None else pa.list_(item)
    if pa.types.is_map(arrow):
        key, item = stored_type(arrow.key_type, leaves), stored_type(arrow.item_type, leaves)
        if key is None or item is None or pa.types.is_nested(key) or read_type(key) == T.BinaryType():
            return None  # of such a key Spark's JSON has Java's name of an object, another one in each read
        return pa.map_(key, item)
    if pa.types.is_dictionary(arrow):
        return stored_type(arrow.value_type, leaves)
    leaf = next(leaves)
    if leaf.physical_type == "INT96":
        return pa.timestamp("us", "UTC")
    if leaf.logical_type.type == "UUID":
        return pa.uuid()
    if leaf.converted_type == "INTERVAL":
        return pa.month_day_nano_interval()
    if pa.types.is_duration(arrow):
        return pa.int64()
    if pa.types.is_timestamp(arrow):  # Parquet has no seconds, and no zones
        return pa.timestamp("ms" if arrow.unit == "s" else arrow.unit, "UTC" if arrow.tz else None)
    is_short = pa.types.is_decimal(arrow) and arrow.precision <= 38
    return arrow if is_short or arrow in _SIMPLE or pa.types.is_fixed_size_binary(arrow) else None


def _folded(name: str) -> str:
    """The name of a struct's field as Spark compares it: as `equalsIgnoreCase` of Java, one character by another."""
    return "".join((char.upper() if len(char.upper()) == 1 else char).lower()[0] for char in name)


def read_type(stored: pa.DataType) -> T.DataType:
    if pa.types.is_fixed_size_binary(stored):
        return T.BinaryType()
    if pa.types.is_decimal(stored):
        return T.DecimalType(stored.precision, stored.scale)
    if pa.types.is_timestamp(stored) and stored.unit != "us":
        return T.LongType()
    if pa.types.is_timestamp(stored):
        return T.TimestampType() if stored.tz else T.TimestampNTZType()
    if pa.types.is_struct(stored):
        return struct_of({child.name: read_type(child.type) for child in stored})
    if pa.types.is_list(stored):
        return T.ArrayType(read_type(stored.value_type))
    if pa.types.is_map(stored):
        return T.MapType(read_type(stored.key_type), read_type(stored.item_type))
    return _SIMPLE[stored]


def cell(value: SparkColumn, kind: pa.DataType) -> SparkColumn:
    """A stored value, or the text of one that Spark has no type for. Of a broken text all bytes are kept."""
    if pa.types.is_struct(kind):
        inner = F.struct(*[cell(value.getField(child.name), child.type).alias(child.name) for child in kind])
        return F.when(value.isNotNull(), inner)
    if pa.types.is_list(kind):
        return F.transform(value, lambda item: cell(item, kind.value_type))
    if pa.types.is_map(kind):
        return F.transform_values(value, lambda _, item: cell(item, kind.item_type))
    if pa.types.is_timestamp(kind):
        return _time_text(value, kind)
    if kind == pa.float32():
        return value.cast("double")  # all its digits, as a column of type double has them
    if kind == pa.float16():
        bits = _unsigned(value, 0, 2)
        size, digits = F.shiftright(bits, 10).bitwiseAND(F.lit(31)), bits.bitwiseAND(F.lit(1023))
        finite = (digits + F.when(size > 0, 1024).otherwise(0)) * F.pow(F.lit(2.0), F.greatest(size, F.lit(1)) - 25)
        number = F.when(size < 31, finite).when(digits > 0, F.lit(float("nan")))
        number = number.when(bits.isNotNull(), F.lit(float("inf")))
        return F.when(bits < 1 << 15, number).otherwise(-number)
    if kind == pa.uuid():
        return F.regexp_replace(F.lower(F.hex(value)), "(.{8})(.{4})(.{4})(.{4})(.{12})", "$1-$2-$3-$4-$5")
    if kind == pa.month_day_nano_interval():
        months, days, ms = (_unsigned(value, at, 4) for at in (0, 4, 8))
        seconds = (ms.cast("decimal(10,0)") / F.lit(1000).cast("decimal(4,0)")).cast("decimal(10,3)")
        return F.concat(F.lit("P"), months, F.lit("M"), days, F.lit("DT"), seconds.cast("string"), F.lit("S"))
    if read_type(kind) == T.StringType():
        return F.when(~is_valid_utf8(value), F.concat(F.lit("\\x"), F.hex(value))).otherwise(value)
    return value


def _time_text(value: SparkColumn, kind: pa.TimestampType) -> SparkColumn:
    """ISO text of a timestamp with all its digits, with `Z` unless it is local; beyond Spark's range its count."""
    micros, more, count = value, F.lit(""), F.lit(None).cast("string")
    if kind.unit == "ns":
        micros = F.timestamp_micros(floor_ns(value.cast("string"), 1000))
        more = F.lpad(F.pmod(value, F.lit(1000)).cast("string"), 3, "0")
    elif kind.unit == "ms":
        micros = F.timestamp_micros(F.try_multiply(value, F.lit(1000).cast("bigint")))
        count = F.concat(value.cast("string"), F.lit(" ms"))
    text = F.date_format(micros, "yyyy-MM-dd'T'HH:mm:ss.SSSSSS")
    return F.coalesce(F.concat(text, more, F.lit("Z" if kind.tz else "")), count)


def _unsigned(value: SparkColumn, at: int, size: int) -> SparkColumn:
    """An unsigned integer in bytes, the lowest first."""
    digits = F.concat(*[F.hex(F.substring(value, place + 1, 1)) for place in reversed(range(at, at + size))])
    return F.conv(digits, 16, 10).cast("bigint")


def has_bad_text(value: SparkColumn, kind: pa.DataType) -> SparkColumn:
    """True if a text within a value is not well-formed; false or null if not."""
    if pa.types.is_struct(kind):
        return any_of([has_bad_text(value.getField(child.name), child.type) for child in kind])
    if pa.types.is_list(kind):
        return F.exists(value, lambda item: has_bad_text(item, kind.value_type))
    if pa.types.is_map(kind):
        in_keys = F.exists(F.map_keys(value), lambda key: has_bad_text(key, kind.key_type))
        return in_keys | F.exists(F.map_values(value), lambda item: has_bad_text(item, kind.item_type))
    return ~is_valid_utf8(value) if read_type(kind) == T.StringType() else F.lit(False)
