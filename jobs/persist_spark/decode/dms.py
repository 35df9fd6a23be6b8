"""AWS DMS as JSON lines (a Kafka or Kinesis target): `{"data": {...}, "metadata": {"operation": ..., ...}}`.

load, insert and update are upserts of the whole row in `data`; delete is a delete of its key. Control records are
skipped. Fields `BI_*` (the before-image) are not columns, unless the collection names them. All metadata of a
transaction is equal, so position decides unless the collection's `order` says otherwise.
"""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from persist_core.config.collection import CollectionConfig
from persist_core.schema import Column
from persist_spark.decode.encoding import Encoding, Field
from persist_spark.decode.files import LINE
from persist_spark.decode.json import Path, Shape, unmarked
from persist_spark.decode.plain import ODD_JSON, field_orders, free_paths, free_text, named_path, not_read, parsed_lines
from persist_spark.decode.records import (
    FAULT,
    FAULT_KIND,
    NO_PLACE,
    RAW_OP,
    OrderField,
    RawRecords,
    fields_of,
    first_fault,
    is_sequence,
    line_columns,
)
from persist_spark.decode.rest import all_marked, read_paths, rest_of_json
from persist_spark.decode.unsent import ROW_FIELDS, fields_in, unsent
from persist_spark.frame import DELETE, SKIP, UPSERT

NOT_DMS = "the line has no metadata with a record-type or an operation: not a DMS record"
_UPSERTS = ("load", "insert", "update")
_OPERATION: Path = ("metadata", "operation")
_RECORD_TYPE: Path = ("metadata", "record-type")
_TIMESTAMP: Path = ("metadata", "timestamp")
_AUTO = Field(Column("timestamp", "timestamp"), "o0")  # what `auto` is in `sequence` order, before the position


def dms_json_records(config: CollectionConfig, lines: DataFrame) -> RawRecords:
    """`dms-json`: see the module's docstring. Names in order and time are fields of `data`, or start with
    `metadata.`."""
    fields = fields_of(config)
    paths = {raw: ("data", *path) for raw, path in read_paths(config, fields).items()}
    free = free_paths(config, _placed)
    is_auto = is_sequence(config) and config.order.by == "auto"
    if is_auto:
        free[_AUTO.raw] = _TIMESTAMP
        fields = replace(fields, orders=(_AUTO,))
    shape = Shape()
    shape.need_all([*paths.values(), *free.values(), _OPERATION, _RECORD_TYPE])

    rows, row = parsed_lines(config, lines, shape), F.col("row")
    texts = rows.select(
        *line_columns(config),
        "odd",
        row.isNull().alias("lost"),
        unmarked(shape.get(row, _OPERATION)).alias("operation"),
        unmarked(shape.get(row, _RECORD_TYPE)).alias("record_type"),
        *[shape.get(row, path).alias(name) for name, path in paths.items()],
        *[free_text(config, name, shape.get(row, path)).alias(name) for name, path in free.items()],
        *([fields_in(F.col(LINE)).alias(ROW_FIELDS)] if config.source.missing_field == "unchanged" else []),
        *[
            text.alias(name)
            for name, text in rest_of_json(config, fields, fields_in(all_marked(F.col(LINE)))["data"]).items()
        ],
    )
    operation, record_type = F.col("operation"), F.col("record_type")
    is_control = record_type.isNotNull() & (record_type != "data")
    is_strange = ~operation.isin(*_UPSERTS, "delete") & ~is_control
    faults = (
        (F.col("lost"), F.lit("key"), not_read()),
        (operation.isNull() & record_type.isNull(), F.lit("value"), F.lit(NOT_DMS)),
        (
            F.coalesce(is_strange, ~F.coalesce(is_control, F.lit(False))),
            F.lit("op"),
            F.concat(
                F.lit("operation is '"),
                F.coalesce(F.substring(operation, 1, 80), F.lit("missing")),
                F.lit(f"'; expected one of {', '.join(_UPSERTS)}, delete"),
            ),
        ),
        (F.col("odd"), F.lit("value"), F.lit(ODD_JSON)),
    )
    kind, message = first_fault(faults)
    op = F.when(is_control, SKIP).when(operation == "delete", DELETE).when(operation.isin(*_UPSERTS), UPSERT)
    frame = texts.withColumns({RAW_OP: op, FAULT_KIND: kind, FAULT: message})
    order = (OrderField(_AUTO.column.name, F.col(_AUTO.value)),) if is_auto else field_orders(config, fields)
    unordered = F.when(F.col(_AUTO.value).isNull(), NO_PLACE) if is_auto else None
    encoding = Encoding.of(config, marked=True)
    lacking = unsent(config, fields.values, paths)
    return RawRecords(frame, fields, F.col(LINE), encoding, order, unordered=unordered, unsent=lacking)


def _placed(config: CollectionConfig, name: str) -> Path:
    path = named_path(config, name)
    return path if path[0] in ("data", "metadata") and name not in config.columns else ("data", *path)
