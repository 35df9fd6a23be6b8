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
FILE_COLUMNS = (LINE, FILE, DATE_MS, BLOCK, BROKEN)


def free_paths(config: CollectionConfig) -> list[Path]:
    """Paths of the order fields, dots meaning nesting; a configured column's own path where one is named."""
    return [_named_path(config, name) for name in config.order.fields]


def time_path(config: CollectionConfig) -> Path | None:
    """The path of the record's own time."""
    return _named_path(config, config.time.field) if config.time.field else None


def _named_path(config: CollectionConfig, name: str) -> Path:
    column = next((column for column in config.collection_schema().columns if column.name == name), None)
    return record_path(config, column) if column else tuple(name.split("."))


def json_records(config: CollectionConfig, lines: DataFrame) -> RawRecords:
    """`json`: each line an object that is the row itself."""
    keys, values = fields_of(config)
    shape = Shape()
    paths = {field.raw: record_path(config, field.column) for field in keys + values}
    orders = free_paths(config)
    own_time = time_path(config)
    marker = _named_path(config, config.delete.column) if config.delete.column else None
    shape.need_all([*paths.values(), *orders, *([own_time] if own_time else []), *([marker] if marker else [])])

    parsed_lines = lines.select(*FILE_COLUMNS, envelope(F.col(LINE), shape).alias("envelope"))
    found = parsed(F.col("envelope"), shape)
    rows = parsed_lines.select(*FILE_COLUMNS, found.row.alias("row"), found.is_odd.alias("odd"))
    row = F.col("row")
    is_row = row.isNotNull()
    texts = {name: shape.get(row, path) for name, path in paths.items()}
    deleted = deletes(config, [F.col(f.raw) for f in values], F.col("marker"))
    frame = rows.select(
        *FILE_COLUMNS,
        *[text.alias(name) for name, text in texts.items()],
        *[unmarked(shape.get(row, path)).alias(f"o{i}") for i, path in enumerate(orders)],
        *([shape.get(row, own_time).alias(RAW_TIME)] if own_time else []),
        (unmarked(shape.get(row, marker)) if marker else F.lit(None).cast("string")).alias("marker"),
        F.when(~is_row, F.lit("key")).when(F.col("odd"), F.lit("value")).alias(FAULT_KIND),
        F.when(~is_row, F.lit(NOT_JSON)).when(F.col("odd"), F.lit(ODD_JSON)).alias(FAULT),
    ).withColumn(RAW_OP, F.when(F.col(FAULT_KIND).eqNullSafe("key"), None).when(deleted, DELETE).otherwise(UPSERT))
    order = field_orders(config, [F.col(f"o{i}") for i in range(len(orders))])
    return RawRecords(frame, F.col(LINE), Encoding(), order)


def deletes(config: CollectionConfig, values: list[SparkColumn], marker: SparkColumn) -> SparkColumn:
    """True where a plain record is a delete, as `delete:` says."""
    if config.delete.column is not None:
        return F.coalesce(marker.isin(list(config.delete.values)), F.lit(False))
    if config.delete.null_value and values:
        absent = F.lit(True)
        for value in values:
            absent = absent & value.isNull()
        return absent
    return F.lit(False)
