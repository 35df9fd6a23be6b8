"""Rows with columns: CSV and Parquet, plain or as AWS DMS writes them (first column `Op`: I, U, D).

    CSV      header of each file (read by the driver) --> one from_csv per distinct header --> texts
    Parquet  schema of each file (read by the driver) --> one scan per distinct schema     --> texts

Both end in texts, so that one place types them and says what is wrong (`decode_records`). A line end inside a quoted
CSV field is not supported: such a record comes apart into errs, whole and visible, never into wrong rows.

1. A file's header names its columns, in any order; columns that the collection doesn't want are ignored.
2. A line equal to its file's header is a header (files that were joined have several), never a record.
3. Without a header (`header: false`) columns come as in the collection's file, with DMS `Op` before them; a DMS line
   that has one field less is a full-load row, which is an insert.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from persist_core.config import CollectionConfig
from persist_core.errors import SourceChanged
from persist_spark.decode_files import BLOCK, BROKEN, DATE_MS, FILE, LINE, ReadableFile, placed, text_lines
from persist_spark.decode_plain import FILE_COLUMNS, MARKER, deletes
from persist_spark.decode_records import FAULT, FAULT_KIND, RAW_OP, RAW_TIME, RawRecords, field_orders, fields_of
from persist_spark.decode_values import Encoding
from persist_spark.frame import DELETE, UPSERT, quoted

DMS_OP = "Op"
_DMS_UPSERTS, _DMS_DELETE = ("I", "U"), "D"
_OP_TEXT = "op_text"
_CELLS = "cells"
_ODD = "odd"
_MAX_HEADER_BYTES = 1 << 20  # a longer first line is no header
_EMPTY = "\ufdd2"  # a quoted empty field, meanwhile: Spark takes "" and nothing for the same
_WRONG_WIDTH = "the line has another number of fields than its file's header, or a quote that does not end"
_COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".zstd": "zstd"}


@dataclass(frozen=True)
class _Wanted:
    """The texts that a collection wants of a row, by the name of the column that holds them."""

    config: CollectionConfig
    is_dms: bool

    @property
    def names(self) -> dict[str, str]:
        """Raw name to the name of the column in the file."""
        config, fields = self.config, fields_of(self.config)
        found = {field.raw: config.columns[field.column.name].field or field.column.name for field in fields.all}
        found |= {f"o{i}": self._named(name) for i, name in enumerate(config.order.fields)}
        if config.delete.column is not None:
            found[MARKER] = self._named(config.delete.column)
        if config.time.field:
            found[RAW_TIME] = self._named(config.time.field)
        return found | ({_OP_TEXT: DMS_OP} if self.is_dms else {})

    def _named(self, name: str) -> str:
        column = self.config.columns.get(name)
        return (column.field or name) if column else name

    def records(self, frame: DataFrame, payload: SparkColumn, binary: str) -> RawRecords:
        """`frame` has the files' columns, the texts and `FAULT_KIND`, `FAULT`; here the operation is added."""
        fields = fields_of(self.config)
        if self.is_dms:
            op_text = F.col(_OP_TEXT)
            op = F.when(op_text == _DMS_DELETE, DELETE).when(op_text.isNull() | op_text.isin(*_DMS_UPSERTS), UPSERT)
            strange = op_text.isNotNull() & ~op_text.isin(*_DMS_UPSERTS, _DMS_DELETE) & F.col(FAULT_KIND).isNull()
            told = F.concat(F.lit("Op is '"), F.substring(op_text, 1, 80), F.lit("'; wanted I, U or D"))
            frame = frame.withColumns(
                {
                    RAW_OP: F.when(F.col(FAULT_KIND).isNull(), op),
                    FAULT: F.when(strange, told).otherwise(F.col(FAULT)),
                    FAULT_KIND: F.when(strange, F.lit("op")).otherwise(F.col(FAULT_KIND)),
                }
            )
        else:
            is_delete = deletes(self.config, [F.col(field.raw) for field in fields.values])
            op = F.when(is_delete, DELETE).otherwise(UPSERT)
            frame = frame.withColumn(RAW_OP, F.when(F.col(FAULT_KIND).isNull(), op))
        encoding = Encoding(marked=False, decimals="text", binary="hex" if binary == "hex" else "base64")
        return RawRecords(frame, fields, payload, encoding, field_orders(self.config, fields))


def csv_records(spark: SparkSession, config: CollectionConfig, files: Sequence[ReadableFile]) -> RawRecords:
    """`csv` and `dms-csv`. Headers are read here, by the driver; a file that can't be opened is `SourceChanged`."""
    wanted = _Wanted(config, is_dms=config.source.format == "dms-csv")
    groups: dict[str | None, list[ReadableFile]] = {}
    for file in files:
        header = _first_line(file) if config.source.header else None
        groups.setdefault(header, []).append(file)
    frames = [_csv_texts(spark, wanted, header, group) for header, group in groups.items()]
    frame = functools.reduce(DataFrame.unionByName, frames) if frames else _csv_texts(spark, wanted, None, [])
    return wanted.records(frame, F.col(LINE), "hex" if wanted.is_dms else "base64")


def _first_line(file: ReadableFile) -> str:
    """The first line, without its end and a byte order mark."""
    compression = _COMPRESSIONS.get(Path(file.path).suffix.lower())
    try:
        with pa.input_stream(file.path, compression=compression) as opened:
            start: bytes = opened.read(_MAX_HEADER_BYTES)
    except (OSError, pa.ArrowException) as error:
        raise SourceChanged(
            f"input file {file.file.path} can't be read: {error}; nothing was committed: put a whole file in its place"
        ) from error
    line, _, _ = start.partition(b"\n")
    return line.rstrip(b"\r").decode("utf-8", errors="replace").removeprefix("\ufeff")


def _csv_texts(spark: SparkSession, wanted: _Wanted, header: str | None, files: Sequence[ReadableFile]) -> DataFrame:
    delimiter = wanted.config.source.delimiter
    lines = text_lines(spark, files)
    bare = F.ltrim(F.col(LINE), F.lit("\ufeff")) if header is not None else F.col(LINE)
    if header is None:
        names = [*([DMS_OP] if wanted.is_dms else []), *wanted.config.columns]
    else:
        names = _split(header, delimiter)
        lines = lines.where(bare != header)
    parsed = lines.withColumn(_CELLS, _cells(bare, len(names), delimiter))
    if header is None and wanted.is_dms:  # a full-load row has no Op: read it again with a delimiter before it
        loaded = _cells(F.concat(F.lit(delimiter), bare), len(names), delimiter)
        is_loaded = F.col(_CELLS).getField(_ODD).isNotNull() & loaded.getField(_ODD).isNull()
        parsed = parsed.withColumn(_CELLS, F.when(is_loaded, loaded).otherwise(F.col(_CELLS)))
    cells = F.col(_CELLS)
    texts = {
        raw: _cell(cells.getField(f"c{names.index(name)}")) if name in names else F.lit(None).cast("string")
        for raw, name in wanted.names.items()
    }
    twice = sorted({name for name in wanted.names.values() if names.count(name) > 1})
    is_odd = cells.getField(_ODD).isNotNull()
    fault = F.when(is_odd, F.lit(_WRONG_WIDTH))
    if twice:
        fault = F.lit(f"the file's header names column {twice[0]!r} twice; which one counts can't be told")
    return parsed.select(
        *FILE_COLUMNS,
        *[text.alias(raw) for raw, text in texts.items()],
        (F.lit("value") if twice else F.when(is_odd, F.lit("value"))).alias(FAULT_KIND),
        fault.alias(FAULT),
    )


def _split(header: str, delimiter: str) -> list[str]:
    """The names of a header; quotes around them are taken off, blanks around them too."""
    names = [name.strip() for name in header.split(delimiter)]
    return [name[1:-1].replace('""', '"') if len(name) > 1 and name[0] == name[-1] == '"' else name for name in names]


def _cells(line: SparkColumn, width: int, delimiter: str) -> SparkColumn:
    """The fields of a line as `c0..`, and in `odd` the line itself where it has another number of them.

    An empty field is null, a quoted empty field is the empty string. Quotes are doubled within quotes (RFC 4180).
    """
    cells = T.StructType([*[T.StructField(f"c{i}", T.StringType()) for i in range(width)]])
    schema = cells.add(T.StructField(_ODD, T.StringType()))
    options = {
        "sep": delimiter,
        "escape": '"',
        "mode": "PERMISSIVE",
        "columnNameOfCorruptRecord": _ODD,
        "maxCharsPerColumn": "-1",
        "emptyValue": _EMPTY,
    }
    return F.from_csv(line, F.lit(_ddl(schema)), options)


def _cell(text: SparkColumn) -> SparkColumn:
    return F.when(text == _EMPTY, F.lit("")).otherwise(text)


def _ddl(schema: T.StructType) -> str:
    return ", ".join(f"{field.name} STRING" for field in schema.fields)


def parquet_records(spark: SparkSession, config: CollectionConfig, files: Sequence[ReadableFile]) -> RawRecords:
    """`parquet` and `dms-parquet`. Schemas are read here, by the driver; a broken footer is `SourceChanged`."""
    wanted = _Wanted(config, is_dms=config.source.format == "dms-parquet")
    groups: dict[str, tuple[T.StructType, list[ReadableFile]]] = {}
    for file in files:
        schema = _spark_schema(file)
        groups.setdefault(schema.json(), (schema, []))[1].append(file)
    frames = [_parquet_texts(spark, wanted, schema, group) for schema, group in groups.values()]
    frame = functools.reduce(DataFrame.unionByName, frames) if frames else _csv_texts(spark, wanted, None, [])
    return wanted.records(frame, F.col(LINE), "base64")


def _spark_schema(file: ReadableFile) -> T.StructType:
    try:
        found = pq.read_schema(file.path)
    except (OSError, pa.ArrowInvalid) as error:
        raise SourceChanged(
            f"input file {file.file.path} is no whole Parquet file: {error}; nothing was committed: put a whole file"
            " in its place"
        ) from error
    return T.StructType([T.StructField(field.name, _spark_type(field.type)) for field in found])


def _spark_type(found: pa.DataType) -> T.DataType:
    """As Spark reads it: unsigned integers are widened, times of day are text-like and not supported."""
    if pa.types.is_dictionary(found):
        return _spark_type(found.value_type)
    if pa.types.is_decimal(found):
        return T.DecimalType(found.precision, found.scale)
    if pa.types.is_timestamp(found):
        return T.TimestampType() if found.tz else T.TimestampNTZType()
    if pa.types.is_list(found) or pa.types.is_large_list(found):
        return T.ArrayType(_spark_type(found.value_type))
    if pa.types.is_map(found):
        return T.MapType(_spark_type(found.key_type), _spark_type(found.item_type))
    if pa.types.is_struct(found):
        return T.StructType([T.StructField(field.name, _spark_type(field.type)) for field in found])
    for is_kind, kind in _KINDS:
        if is_kind(found):
            return kind
    return T.BinaryType()


_KINDS: tuple[tuple[Callable[[pa.DataType], bool], T.DataType], ...] = (
    (pa.types.is_boolean, T.BooleanType()),
    (pa.types.is_int8, T.ByteType()),
    (pa.types.is_int16, T.ShortType()),
    (pa.types.is_uint8, T.ShortType()),
    (pa.types.is_int32, T.IntegerType()),
    (pa.types.is_null, T.IntegerType()),  # how a column without a single value is stored
    (pa.types.is_uint16, T.IntegerType()),
    (pa.types.is_int64, T.LongType()),
    (pa.types.is_uint32, T.LongType()),
    (pa.types.is_uint64, T.DecimalType(20, 0)),
    (pa.types.is_float32, T.FloatType()),
    (pa.types.is_float64, T.DoubleType()),
    (pa.types.is_date, T.DateType()),
    (pa.types.is_string, T.StringType()),
    (pa.types.is_large_string, T.StringType()),
)


def _parquet_texts(
    spark: SparkSession, wanted: _Wanted, schema: T.StructType, files: Sequence[ReadableFile]
) -> DataFrame:
    rows = spark.read.schema(schema).option("__globPaths__", "false").parquet(*[file.path for file in files])
    payload = F.to_json(F.struct(*[F.col(quoted(name)) for name in schema.names]), {"ignoreNullFields": "false"})
    by_name = {field.name: field for field in schema.fields}
    texts = {
        raw: _text(by_name[name]) if name in by_name else F.lit(None).cast("string")
        for raw, name in wanted.names.items()
    }
    located = rows.select(
        *[text.alias(raw) for raw, text in texts.items()],
        payload.alias(LINE),
        F.col("_metadata.file_path").alias("path"),
        F.col("_metadata.file_block_start").alias(BLOCK),
    )
    return placed(spark, located, files).select(
        LINE,
        FILE,
        DATE_MS,
        BLOCK,
        F.lit(False).alias(BROKEN),
        *texts,
        F.lit(None).cast("string").alias(FAULT_KIND),
        F.lit(None).cast("string").alias(FAULT),
    )


def _text(field: T.StructField) -> SparkColumn:
    """A typed value as text that types back to the same value."""
    column = F.col(quoted(field.name))
    if isinstance(field.dataType, T.BinaryType):
        return F.base64(column)
    if isinstance(field.dataType, T.TimestampType | T.TimestampNTZType):
        return F.date_format(column, "yyyy-MM-dd'T'HH:mm:ss.SSSSSS")
    if isinstance(field.dataType, T.StructType | T.ArrayType | T.MapType):
        return F.to_json(column, {"ignoreNullFields": "false"})
    return column.cast("string")
