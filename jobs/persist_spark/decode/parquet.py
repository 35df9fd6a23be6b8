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
from persist_core.sample.files import DMS_OP
from persist_core.schema import Column
from persist_core.sources.feed import Feed
from persist_core.sources.input_file import InputFile
from persist_spark.compat import HAS_TRY_CAST, READS_HALF_FLOATS
from persist_spark.decode.encoding import Encoding, Field
from persist_spark.decode.files import BLOCK, BROKEN, LINE, NO_LINES, ROW, ReadableFile, all_found, by_store, placed
from persist_spark.decode.json import MARK, Path
from persist_spark.decode.parquet_types import SHOWN, cell, has_bad_text, read_type, stored_type
from persist_spark.decode.plain import MARKER, before_paths, check_op, free_paths, named_path, order_of, row_op
from persist_spark.decode.records import (
    FAULT,
    FAULT_KIND,
    Fields,
    RawRecords,
    any_of,
    fields_of,
    record_path,
)
from persist_spark.decode.rest import cells_text, rest_of_cells
from persist_spark.decode.unread import TooLong, of_each
from persist_spark.frame import named, spark_type, struct_of

# Dates before 1582 are read as they were written, unless a file's own metadata says that an old Spark wrote it.
_READ_OPTIONS = {
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
    "mergeSchema": "false",
}
# What a cast keeps exactly, or makes null, beside equal types: from these Spark types to these of ours.
_LOSSLESS: dict[type[T.DataType], tuple[str, ...]] = {
    T.ByteType: ("int", "bigint"),
    T.ShortType: ("int", "bigint"),
    T.IntegerType: ("int", "bigint"),
    T.LongType: ("int", "bigint") if HAS_TRY_CAST else ("bigint",),  # on 3.5 what does not fit would wrap around
    T.FloatType: ("double",),
}
_SHOWN_CHARS = 200  # of a file's columns, in a message


@dataclass(frozen=True)
class FileSchema:
    """The columns of a file that Spark can read, by name with their type (`stored_type`), and the unreadable ones."""

    columns: tuple[tuple[str, pa.DataType], ...]
    unreadable: tuple[tuple[str, str], ...] = ()

    @property
    def fields(self) -> list[str]:
        return [name for name, _ in (*self.columns, *self.unreadable)]

    def has(self, path: Path) -> bool:
        """True if there is a column at `path`, or within one that is unreadable."""
        return path[0] in dict(self.unreadable) or _find(self, path) is not None


def looked_at(
    config: CollectionConfig, feed: Feed, files: Sequence[InputFile]
) -> tuple[dict[InputFile, FileSchema], dict[InputFile, list[TooLong]]]:
    """The schema of each file, and the files that certainly hold a value above the limit, which are lost whole.

    Reads each footer once. Raises `UnreadableFiles` for files without one, and for names that Spark cannot distinguish.
    """

    def look(file: InputFile) -> tuple[FileSchema, TooLong | None]:
        with feed.opened(file) as source:
            footer = pq.read_metadata(source)
        schema = file_schema(footer)
        check_op(config, schema.fields)
        return schema, _too_long(file, footer, config.limits.max_record_bytes)

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
    """Spark's columns of a file with this footer. Raises `ValueError` for names that it cannot distinguish, and for a
    type with which it cannot open the file."""
    arrow = footer.schema.to_arrow_schema()
    lowered = [name.lower() for name in arrow.names]
    twice = next((name for name in arrow.names if lowered.count(name.lower()) > 1), None)
    if twice is not None:
        raise pa.ArrowInvalid(
            f"it has the column {twice!r} twice (case does not count); give its columns different names"
        )
    if "_metadata" in lowered:
        raise pa.ArrowInvalid("it has a column '_metadata', a name that Spark keeps for itself; rename it")
    columns = [footer.schema.column(index) for index in range(len(footer.schema))]
    if not READS_HALF_FLOATS and any(column.logical_type.type == "FLOAT16" for column in columns):
        raise pa.ArrowInvalid("it has half floats, with which Spark 3.5 opens no file; write floats, or use Spark 4")
    leaves = iter(columns)
    found = [(each, stored_type(each.type, leaves)) for each in arrow]
    return FileSchema(
        tuple((each.name, kind) for each, kind in found if kind is not None),
        tuple((each.name, str(each.type)) for each, kind in found if kind is None),
    )


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
    before = before_paths(config, fields) if marker == (DMS_OP,) and has_marker else {}
    if not all(_is_alike(config, schema, *each) for each in before.items()):
        before = {}
    kind, message = _fault(config, schema, fields, [*free.values(), *([marker] if marker else [])])
    cells = {name: cell(F.col(f"c{index}"), kind) for index, (name, kind) in enumerate(schema.columns)}
    payload = [shown.alias(name) for name, shown in cells.items()]
    nested = {name for name, kind in schema.columns if pa.types.is_nested(kind)}
    rest = rest_of_cells(config, fields, cells, nested)
    frame = _rows(spark, schema, files, options).select(
        "*",
        *[rest.get(field.raw, _raw(config, schema, field)).alias(field.raw) for field in fields.all],
        *[_text(schema, path).alias(name) for name, path in free.items() if name not in typed],
        *[_raw(config, schema, field).alias(field.raw) for field in fields.orders],
        *[_raw(config, schema, key, path).alias(f"b{key.raw}") for key, path in before.items()],
        kind.alias(FAULT_KIND),
        message.alias(FAULT),
    )
    return RawRecords(
        frame,
        fields,
        cells_text(F.struct(*payload)) if payload else F.lit("{}"),
        Encoding.of(config, marked=False),
        order_of(config, fields),
        {BROKEN: _is_broken(config, schema, fields), **row_op(config, fields, has_marker=has_marker)},
        is_update=F.col(MARKER) == "U" if before else None,
    )


def _rows(
    spark: SparkSession, schema: FileSchema, files: Sequence[ReadableFile], options: Mapping[str, str]
) -> DataFrame:
    if not files or not schema.fields:
        return spark.createDataFrame([], NO_LINES)
    wanted = struct_of({name: read_type(kind) for name, kind in schema.columns})
    frames = [
        all_found(spark.read.schema(wanted).options(**how, **_READ_OPTIONS).parquet(*paths), paths)
        for paths, how in by_store(files, options)
    ]
    wanted_columns = [named(name).alias(f"c{index}") for index, (name, _) in enumerate(schema.columns)]
    place = F.col("_metadata.file_path").alias("path"), F.col("_metadata.row_index").alias(ROW)
    rows = functools.reduce(DataFrame.union, [frame.select(*wanted_columns, *place) for frame in frames])
    facts = {BLOCK: F.lit(0).cast("bigint"), LINE: F.lit(None).cast("string")}
    return placed(spark, rows, files).withColumns(facts)


def _find(schema: FileSchema, path: Path) -> tuple[SparkColumn, pa.DataType] | None:
    """The column at `path` (further names are a struct's fields) and its type, or `None`."""
    names = [name for name, _ in schema.columns]
    if path[0] not in names:
        return None
    index = names.index(path[0])
    found, kind = F.col(f"c{index}"), schema.columns[index][1]
    for name in path[1:]:
        if not pa.types.is_struct(kind) or kind.get_field_index(name) < 0:
            return None
        found, kind = found.getField(name), kind.field(name).type
    return found, kind


def _is_alike(config: CollectionConfig, schema: FileSchema, field: Field, path: Path) -> bool:
    """True if there is a column at `path`, of the type that the field's own one has."""
    own, found = _find(schema, record_path(config, field.column)), _find(schema, path)
    return own is not None and found is not None and own[1] == found[1]


def _fitted(config: CollectionConfig, schema: FileSchema, field: Field) -> Field:
    """`field`, typed if a plain cast loses nothing, and in the unit that the file counts in."""
    found = _find(schema, record_path(config, field.column))
    if found is None or field.column.name == config.source.rest:
        return field
    source, wanted = found[1], field.column.type
    is_local = wanted == "timestamp" and pa.types.is_timestamp(source) and not source.tz
    if _is_count(source, field):
        return replace(field, unit=source.unit, is_local=is_local)
    return replace(field, is_typed=_is_lossless(source, field.column), is_local=is_local)


def _is_count(source: pa.DataType, field: Field) -> bool:
    """True if a time is read as the count that is stored."""
    return pa.types.is_timestamp(source) and source.unit != "us" and field.column.type in ("date", "timestamp")


def _is_lossless(source: pa.DataType, column: Column) -> bool:
    read, wanted = read_type(source), spark_type(column.type)
    if isinstance(read, T.DecimalType) and isinstance(wanted, T.DecimalType):
        return bool(read.scale <= wanted.scale)
    if source in SHOWN or pa.types.is_timestamp(source):
        return source not in SHOWN and source.unit == "us" and column.type == "timestamp"
    return read == wanted or column.type in _LOSSLESS.get(type(read), ())


def _raw(config: CollectionConfig, schema: FileSchema, field: Field, path: Path | None = None) -> SparkColumn:
    """The value of a field, or at a path of the same type, typed or as its text."""
    path = path or record_path(config, field.column)
    found = _find(schema, path)
    if found is not None and field.is_typed:
        return found[0]
    if found is not None and _is_count(found[1], field):
        return found[0].cast("string")
    text = _text(schema, path)
    if found is None or field.column.type != "binary" or read_type(found[1]) == T.StringType():
        return text
    return F.concat(F.lit(MARK), text)  # a number is not bytes, even if its digits look like base64 or hex


def _is_broken(config: CollectionConfig, schema: FileSchema, fields: Fields) -> SparkColumn:
    """True if a text is not well-formed UTF-8: Spark hands the bytes of any text column over unchecked."""
    texts = []
    if config.source.rest is not None:
        texts = [(F.col(f"c{index}"), kind) for index, (_, kind) in enumerate(schema.columns)]
    for field in fields.all:
        found = _find(schema, record_path(config, field.column))
        if found is not None and not (field.is_typed and field.column.type == "binary"):
            is_text = read_type(found[1]) == T.BinaryType() and found[1] not in (*SHOWN, pa.uuid())
            texts.append((found[0].cast("string"), pa.string()) if is_text else found)
    return any_of([F.coalesce(has_bad_text(*text), F.lit(False)) for text in texts])


def _text(schema: FileSchema, path: Path) -> SparkColumn:
    found = _find(schema, path)
    if found is None:
        return F.lit(None).cast("string")
    shown = cell(*found)
    return cells_text(shown) if pa.types.is_nested(found[1]) else shown.cast("string")


def _fault(
    config: CollectionConfig, schema: FileSchema, fields: Fields, others: Sequence[Path]
) -> tuple[SparkColumn, SparkColumn]:
    """The fault of a record in a file of this schema: the err's kind and message, or nulls. `others`: paths that are
    needed beside the columns."""
    unreadable = dict(schema.unreadable)
    kind = message = F.lit(None).cast("string")
    keys, values = ([record_path(config, field.column) for field in each] for each in (fields.keys, fields.values))
    for path in (*keys, *values, *others):
        is_key = path in keys
        if path[0] in unreadable:
            reason = f"column {path[0]!r} of the file has the type {unreadable[path[0]]}, which Spark cannot read"
            return F.lit("key" if is_key else "value"), F.lit(reason)
        if is_key and _find(schema, path) is None:
            shown = ", ".join(name for name, _ in schema.columns)[:_SHOWN_CHARS]
            reason = f"the file has no column {'.'.join(path)!r} for the key; its columns are {shown}"
            return F.lit("key"), F.lit(reason)
        for depth in range(1, len(path)):
            outer = _find(schema, path[:depth])
            if outer is not None and not (pa.types.is_struct(outer[1]) or pa.types.is_null(outer[1])):
                reason = f"{'.'.join(path[:depth])!r} is of type {outer[1]} in the file, expected a struct"
                kind = F.when(outer[0].isNotNull(), F.lit("value")).otherwise(kind)
                message = F.when(outer[0].isNotNull(), F.lit(reason)).otherwise(message)
    return kind, message
