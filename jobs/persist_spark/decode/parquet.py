"""Parquet files of any mix of schemas: `parquet` with a delete marker, `dms-parquet` with `Op`.

Files are grouped by the schema in their footers (read by the driver, without a Spark job), so that each group is read
under its own schema and every record is cast to the collection's types. A cast that loses nothing is done directly; any
other goes through text, by the same strict rules as for text formats: what does not fit is an err, never null. A column
that a file does not have is null; without a key column every record of the file is an err.

The payload of an err is the row as JSON. Columns of types that Spark cannot read (times of day, 256-bit decimals) are
left out of it, and are an err if the collection names them.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from persist_core.config.collection import CollectionConfig
from persist_core.schema import Column
from persist_core.sources.feed import Feed
from persist_core.sources.input_file import InputFile
from persist_spark.compat import HAS_TRY_CAST, is_valid_utf8
from persist_spark.decode.encoding import Encoding, Field
from persist_spark.decode.files import BLOCK, BROKEN, LINE, NO_LINES, ROW, ReadableFile, by_store, placed
from persist_spark.decode.json import MARK, Path
from persist_spark.decode.long_records import TooLong
from persist_spark.decode.plain import DMS_OP, MARKER, free_paths, named_path, order_of, row_op
from persist_spark.decode.records import (
    FAULT,
    FAULT_KIND,
    RAW_TIME,
    Fields,
    RawRecords,
    any_of,
    fields_of,
    record_path,
)
from persist_spark.decode.rest import cells_text, rest_of_cells
from persist_spark.decode.unreadable import of_each
from persist_spark.frame import named, spark_type

# Dates before 1582 are read as they were written, unless a file's own metadata says that an old Spark wrote it.
_READ_OPTIONS = {
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
    "mergeSchema": "false",
}
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
    pa.float32(): T.FloatType(),
    pa.float64(): T.DoubleType(),
    pa.string(): T.StringType(),
    pa.large_string(): T.StringType(),
    pa.string_view(): T.StringType(),
    pa.binary(): T.BinaryType(),
    pa.binary_view(): T.BinaryType(),
    pa.large_binary(): T.BinaryType(),
    pa.date32(): T.DateType(),
    pa.null(): T.IntegerType(),  # a column without a single value
}
# What a cast keeps exactly, or makes null, beside equal types: from these Spark types to these of ours.
_LOSSLESS: dict[type[T.DataType], tuple[str, ...]] = {
    T.ByteType: ("int", "bigint"),
    T.ShortType: ("int", "bigint"),
    T.IntegerType: ("int", "bigint"),
    T.LongType: ("int", "bigint") if HAS_TRY_CAST else ("bigint",),  # on 3.5 what does not fit would wrap around
    T.FloatType: ("double",),
    T.DateType: ("timestamp",),
    T.TimestampNTZType: ("timestamp",),
}
_NESTED = T.StructType | T.ArrayType | T.MapType
_SHOWN_CHARS = 200  # of a file's columns, in a message


@dataclass(frozen=True)
class FileSchema:
    """The columns of a file that Spark can read, which of them count nanoseconds, and the unreadable ones.

    `nanos`: whether the time is local, by name of the column.
    """

    columns: tuple[tuple[str, T.DataType], ...]
    nanos: tuple[tuple[str, bool], ...] = ()
    unreadable: tuple[tuple[str, str], ...] = ()

    @property
    def fields(self) -> list[str]:
        """The names of all columns."""
        return [name for name, _ in (*self.columns, *self.unreadable)]


def looked_at(
    feed: Feed, files: Sequence[InputFile], limit: int
) -> tuple[dict[InputFile, FileSchema], dict[InputFile, list[TooLong]]]:
    """The schema of each file, and the files that certainly hold a value above `limit` bytes, which are lost whole.

    Reads each footer once. Raises `UnreadableFiles` for files without one, and for names that Spark cannot distinguish.
    """

    def look(file: InputFile) -> tuple[FileSchema, TooLong | None]:
        with feed.opened(file) as source:
            footer = pq.read_metadata(source)
        return file_schema(footer), _too_long(file, footer, limit)

    read = [file for file in files if file.size_bytes]
    found = dict(zip(read, of_each(look, read), strict=True))
    known = {file: schema for file, (schema, _) in found.items()}
    return known, {file: [lost] for file, (_, lost) in found.items() if lost is not None}


def alike(
    known: Mapping[InputFile, FileSchema], files: Sequence[ReadableFile]
) -> list[tuple[FileSchema, list[ReadableFile]]]:
    """Files of equal schema together, at least one group."""
    found: dict[str, tuple[FileSchema, list[ReadableFile]]] = {}
    for file in files:
        schema = known[file.file]
        found.setdefault(repr(schema), (schema, []))[1].append(file)
    return list(found.values()) or [(FileSchema(()), [])]


def _too_long(file: InputFile, footer: pq.FileMetaData, limit: int) -> TooLong | None:
    """The file, if a value in it has more than `limit` bytes for certain.

    A footer says how many bytes the values of a column have together, decompressed, in a group of rows: what one of
    them has is known only if all are long.
    """
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    chunks = [
        group.column(place) for group in groups if group.total_byte_size > limit for place in range(group.num_columns)
    ]
    long = [each for each in chunks if each.total_uncompressed_size > limit * max(each.num_values, 1)]
    if not long:
        return None
    worst = max(long, key=lambda each: each.total_uncompressed_size)
    return TooLong(
        file,
        f"file {file.relative!r}: {worst.num_values} values of column {worst.path_in_schema!r} have"
        f" {worst.total_uncompressed_size} bytes; expected at most {limit} each (limits.max_record_bytes). No"
        " row of the file was read",
    )


def file_schema(footer: pq.FileMetaData) -> FileSchema:
    """Spark's columns of a file with this footer. Raises `ValueError` for names that it cannot distinguish."""
    arrow = footer.schema.to_arrow_schema()
    lowered = [name.lower() for name in arrow.names]
    twice = next((name for name in arrow.names if lowered.count(name.lower()) > 1), None)
    if twice is not None:
        raise pa.ArrowInvalid(
            f"it has the column {twice!r} twice (case does not count); give its columns different names"
        )
    if "_metadata" in lowered:
        raise pa.ArrowInvalid("it has a column '_metadata', a name that Spark keeps for itself; rename it")
    leaves = [footer.schema.column(index) for index in range(len(footer.schema))]
    int96 = {leaf.path for leaf in leaves if leaf.physical_type == "INT96"}
    columns: list[tuple[str, T.DataType]] = []
    nanos, unreadable = [], []
    for each in arrow:
        is_nanos = pa.types.is_timestamp(each.type) and each.type.unit == "ns"
        if each.name in int96:
            columns.append((each.name, T.TimestampType()))
        elif is_nanos:
            columns.append((each.name, T.LongType()))
            nanos.append((each.name, each.type.tz is None))
        elif (known := _spark_type(each.type)) is not None:
            columns.append((each.name, known))
        else:
            unreadable.append((each.name, str(each.type)))
    return FileSchema(tuple(columns), tuple(nanos), tuple(unreadable))


def _spark_type(arrow: pa.DataType) -> T.DataType | None:
    """The type that Spark reads this column as, or `None`."""
    if arrow in _SIMPLE:
        return _SIMPLE[arrow]
    if isinstance(arrow, pa.BaseExtensionType) and not pa.types.is_nested(arrow.storage_type):  # JSON, UUID
        return _spark_type(arrow.storage_type)
    if pa.types.is_dictionary(arrow):
        return _spark_type(arrow.value_type)
    if pa.types.is_fixed_size_binary(arrow):
        return T.BinaryType()
    if pa.types.is_decimal(arrow) and arrow.precision <= 38:
        return T.DecimalType(arrow.precision, arrow.scale)
    if pa.types.is_timestamp(arrow) and arrow.unit != "ns":
        return T.TimestampType() if arrow.tz else T.TimestampNTZType()
    if pa.types.is_struct(arrow):
        inner = [(child.name, _spark_type(child.type)) for child in arrow]
        known = [T.StructField(name, found) for name, found in inner if found is not None]
        return T.StructType(known) if known and len(known) == len(inner) else None
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        item = _spark_type(arrow.value_type)
        return T.ArrayType(item) if item else None
    if pa.types.is_map(arrow):
        key, item = _spark_type(arrow.key_type), _spark_type(arrow.item_type)
        return T.MapType(key, item) if key and item else None
    return None


def parquet_records(
    spark: SparkSession,
    config: CollectionConfig,
    schema: FileSchema,
    files: Sequence[ReadableFile],
    options: Mapping[str, str],
) -> RawRecords:
    """The rows of files of one schema. `options` lead to paths on S3."""
    marker: Path | None = (DMS_OP,) if config.source.format == "dms-parquet" else None
    if config.delete.column is not None:
        marker = named_path(config, config.delete.column)
    has_marker = marker is not None and _find(schema, marker) is not None
    free = free_paths(config)
    if marker is not None and has_marker:
        free[MARKER] = marker
    wanted = fields_of(config)
    fields = Fields(
        tuple(_fitted(config, schema, field) for field in wanted.keys),
        tuple(_fitted(config, schema, field) for field in wanted.values),
        tuple(_fitted(config, schema, field) for field in wanted.orders),
    )
    typed = {field.raw for field in fields.orders}
    kind, message = _fault(config, schema, fields)
    payload = [F.col(f"c{index}").alias(name) for index, (name, _) in enumerate(schema.columns)]
    nested = {name for name, kind in schema.columns if isinstance(kind, _NESTED)}
    rest = rest_of_cells(config, fields, _cells(schema), nested)
    frame = _rows(spark, schema, files, options).select(
        "*",
        *[rest.get(field.raw, _raw(config, schema, field)).alias(field.raw) for field in fields.all],
        *[_free_text(schema, name, path).alias(name) for name, path in free.items() if name not in typed],
        *[_raw(config, schema, field).alias(field.raw) for field in fields.orders],
        F.lit(kind).cast("string").alias(FAULT_KIND),
        F.lit(message).cast("string").alias(FAULT),
    )
    return RawRecords(
        frame,
        fields,
        cells_text(F.struct(*payload)) if payload else F.lit("{}"),
        Encoding.of(config, marked=False),
        order_of(config, fields),
        {BROKEN: _is_broken(config, schema, fields), **row_op(config, fields, has_marker=has_marker).columns},
    )


def _cells(schema: FileSchema) -> dict[str, SparkColumn]:
    """The cell of each column; nanoseconds as a text with all their digits, with `Z` unless the time is local."""
    found, nanos = {}, dict(schema.nanos)
    for index, (name, kind) in enumerate(schema.columns):
        found[name] = F.col(f"c{index}")
        if kind == T.FloatType():
            found[name] = found[name].cast("double")  # all its digits, as a column of type double has them
        if name in nanos:
            micros = F.timestamp_micros(F.expr(f"(c{index} - pmod(c{index}, 1000)) div 1000"))
            digits = F.lpad(F.pmod(found[name], F.lit(1000)).cast("string"), 3, "0")
            local = F.date_format(micros, "yyyy-MM-dd'T'HH:mm:ss.SSSSSS")
            found[name] = F.concat(local, digits, F.lit("" if nanos[name] else "Z"))
    return found


def _rows(
    spark: SparkSession, schema: FileSchema, files: Sequence[ReadableFile], options: Mapping[str, str]
) -> DataFrame:
    if not files:
        return spark.createDataFrame([], NO_LINES)
    wanted = T.StructType([T.StructField(name, kind) for name, kind in schema.columns])
    frames = [
        spark.read.schema(wanted).options(**how, **_READ_OPTIONS).parquet(*paths)
        for paths, how in by_store(files, options)
    ]
    wanted_columns = [named(name).alias(f"c{index}") for index, (name, _) in enumerate(schema.columns)]
    place = F.col("_metadata.file_path").alias("path"), F.col("_metadata.row_index").alias(ROW)
    rows = functools.reduce(DataFrame.union, [frame.select(*wanted_columns, *place) for frame in frames])
    facts = {BLOCK: F.lit(0).cast("bigint"), LINE: F.lit(None).cast("string")}
    return placed(spark, rows, files).withColumns(facts)


def _find(schema: FileSchema, path: Path) -> tuple[SparkColumn, T.DataType] | None:
    """The column at `path` (further names are a struct's fields) and its type, or `None`."""
    names = [name for name, _ in schema.columns]
    if path[0] not in names:
        return None
    index = names.index(path[0])
    found, kind = F.col(f"c{index}"), schema.columns[index][1]
    for name in path[1:]:
        if not isinstance(kind, T.StructType) or name not in kind.names:
            return None
        found, kind = found.getField(name), kind[name].dataType
    return found, kind


def _fitted(config: CollectionConfig, schema: FileSchema, field: Field) -> Field:
    """`field`, typed if a plain cast loses nothing, and in nanoseconds if the file counts in them."""
    path = record_path(config, field.column)
    found = _find(schema, path)
    if found is None or field.column.name == config.source.rest:
        return field
    nanos = dict(schema.nanos)
    if path[0] in nanos and field.column.type in ("date", "timestamp"):
        return replace(field, unit="ns", is_local=nanos[path[0]] and field.column.type == "timestamp")
    is_local = isinstance(found[1], T.TimestampNTZType | T.DateType) and field.column.type == "timestamp"
    return replace(field, is_typed=_is_lossless(found[1], field.column), is_local=is_local)


def _is_lossless(source: T.DataType, column: Column) -> bool:
    wanted = spark_type(column.type)
    if isinstance(source, T.DecimalType) and isinstance(wanted, T.DecimalType):
        return bool(source.scale <= wanted.scale)
    return source == wanted or column.type in _LOSSLESS.get(type(source), ())


def _raw(config: CollectionConfig, schema: FileSchema, field: Field) -> SparkColumn:
    path = record_path(config, field.column)
    found = _find(schema, path)
    if found is not None and field.is_typed:
        return found[0]
    text = _text(schema, path)
    if found is None or field.column.type != "binary" or isinstance(found[1], T.StringType):
        return text
    return F.concat(F.lit(MARK), text)  # a number is not bytes, even if its digits look like base64 or hex


def _is_broken(config: CollectionConfig, schema: FileSchema, fields: Fields) -> SparkColumn:
    """True if a text is not well-formed UTF-8: Spark hands the bytes of any text column over unchecked."""
    texts = []
    if config.source.rest is not None:
        texts = [F.col(f"c{index}") for index, (_, kind) in enumerate(schema.columns) if kind == T.StringType()]
    for field in fields.all:
        found = _find(schema, record_path(config, field.column))
        is_typed_bytes = field.is_typed and field.column.type == "binary"
        if found is not None and isinstance(found[1], T.StringType | T.BinaryType) and not is_typed_bytes:
            texts.append(found[0].cast("string"))
    return any_of([~F.coalesce(is_valid_utf8(text), F.lit(True)) for text in texts])


def _text(schema: FileSchema, path: Path) -> SparkColumn:
    found = _find(schema, path)
    if found is None:
        return F.lit(None).cast("string")
    value, kind = found
    return cells_text(value) if isinstance(kind, _NESTED) else value.cast("string")


def _free_text(schema: FileSchema, name: str, path: Path) -> SparkColumn:
    """A record's own time says that it is in UTC if it is."""
    text, found = _text(schema, path), _find(schema, path)
    is_instant = name == RAW_TIME and found is not None and isinstance(found[1], T.TimestampType)
    return F.concat(text, F.lit("Z")) if is_instant else text


def _fault(config: CollectionConfig, schema: FileSchema, fields: Fields) -> tuple[str | None, str | None]:
    """The fault of all records of a file of this schema: the err's kind and message."""
    unreadable = dict(schema.unreadable)
    for field in fields.all:
        path = record_path(config, field.column)
        is_key = field in fields.keys
        if path[0] in unreadable:
            reason = f"column {path[0]!r} of the file has the type {unreadable[path[0]]}, which Spark cannot read"
            return "key" if is_key else "value", reason
        if is_key and _find(schema, path) is None:
            shown = ", ".join(name for name, _ in schema.columns)[:_SHOWN_CHARS]
            return "key", f"the file has no column {'.'.join(path)!r} for the key; its columns are {shown}"
    return None, None
