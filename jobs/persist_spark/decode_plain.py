"""Plain JSON lines: one row a line, a delete by marker column or by null values."""

from __future__ import annotations

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from persist_core.config import CollectionConfig
from persist_spark.decode_files import BLOCK, BROKEN, DATE_MS, FILE, LINE
from persist_spark.decode_json import Path, Shape, envelope, parsed, unmarked
from persist_spark.decode_records import (
    FAULT,
    FAULT_KIND,
    RAW_OP,
    RAW_TIME,
    RawRecords,
    field_orders,
    fields_of,
    record_path,
)
from persist_spark.decode_values import Encoding
from persist_spark.frame import DELETE, UPSERT

NOT_JSON = "the line is not one JSON object"
ODD_JSON = "a field holds another kind of JSON value than the object that was looked for"
MARKER = "marker"
FILE_COLUMNS = (LINE, FILE, DATE_MS, BLOCK, BROKEN)


def named_path(config: CollectionConfig, name: str) -> Path:
    """The path of a configured column, or of any other field, dots meaning nesting."""
    column = next((column for column in config.collection_schema().columns if column.name == name), None)
    return record_path(config, column) if column else tuple(name.split("."))


def json_records(config: CollectionConfig, lines: DataFrame) -> RawRecords:
    """`json`: each line an object that is the row itself."""
    fields = fields_of(config)
    paths = {field.raw: record_path(config, field.column) for field in fields.all}
    free = {f"o{i}": named_path(config, name) for i, name in enumerate(config.order.fields)}
    if config.delete.column is not None:
        free[MARKER] = named_path(config, config.delete.column)
    own_time = {RAW_TIME: named_path(config, config.time.field)} if config.time.field else {}
    shape = Shape()
    shape.need_all([*paths.values(), *free.values(), *own_time.values()])

    opened = lines.select(*FILE_COLUMNS, envelope(F.col(LINE), shape).alias("envelope"))
    found = parsed(F.col("envelope"), shape)
    rows = opened.select(*FILE_COLUMNS, found.row.alias("row"), found.is_odd.alias("odd"))
    row = F.col("row")
    frame = rows.select(
        *FILE_COLUMNS,
        *[shape.get(row, path).alias(name) for name, path in {**paths, **own_time}.items()],
        *[unmarked(shape.get(row, path)).alias(name) for name, path in free.items()],
        F.when(row.isNull(), F.lit("key")).when(F.col("odd"), F.lit("value")).alias(FAULT_KIND),
        F.when(row.isNull(), F.lit(NOT_JSON)).when(F.col("odd"), F.lit(ODD_JSON)).alias(FAULT),
    )
    op = F.when(deletes(config, [F.col(field.raw) for field in fields.values]), DELETE).otherwise(UPSERT)
    frame = frame.withColumn(RAW_OP, F.when(F.col(FAULT_KIND).eqNullSafe("key"), None).otherwise(op))
    return RawRecords(frame, fields, F.col(LINE), Encoding(), field_orders(config, fields))


def deletes(config: CollectionConfig, values: list[SparkColumn]) -> SparkColumn:
    """True where a plain record is a delete, as `delete:` says: by the text in `MARKER`, or with all values null."""
    if config.delete.column is not None:
        return F.coalesce(F.col(MARKER).isin(list(config.delete.values)), F.lit(False))
    if config.delete.null_value and values:
        absent = F.lit(True)
        for value in values:
            absent = absent & value.isNull()
        return absent
    return F.lit(False)
