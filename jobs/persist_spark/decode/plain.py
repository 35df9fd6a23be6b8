"""Records that are rows: plain JSON lines and AWS DMS's; which fields order records of any format beside their
position; and what marks a delete in plain and DMS rows.

DMS as JSON lines (a Kafka or Kinesis target) is `{"data": {...}, "metadata": {"operation": ..., ...}}`. load, insert
and update are upserts of the whole row in `data`; delete is a delete of its key. Control records are skipped. An update
may give its row's key before it, in `before-image` or, as in DMS's files, in fields `BI_*`. All metadata of a
transaction is equal, so position decides unless the collection's `order` says otherwise.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from decimal import Decimal

import pyarrow as pa
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from persist_core.config.collection import CollectionConfig, DeleteConfig
from persist_core.sample.fields import BEFORE, named_fields
from persist_core.sample.files import DMS_OP, DMS_OPS
from persist_core.schema import Column
from persist_spark.decode.encoding import Encoding, Field
from persist_spark.decode.exact import bounded, exact_decimal, is_number, number_order
from persist_spark.decode.files import BROKEN, LINE, file_name, is_full_load, is_of_dms
from persist_spark.decode.json import (
    Path,
    Shape,
    envelope,
    has_escaped_noncharacters,
    has_half_surrogates,
    has_noncharacters,
    parsed,
    unmarked,
)
from persist_spark.decode.records import (
    FAULT,
    FAULT_KIND,
    NO_PLACE,
    RAW_OP,
    RAW_TIME,
    Fields,
    OrderField,
    RawRecords,
    all_of,
    fields_of,
    first_fault,
    is_sequence,
    line_columns,
    record_path,
    shown_text,
)
from persist_spark.decode.rest import all_marked, read_paths, rest_of_json
from persist_spark.decode.unsent import ROW_FIELDS, fields_in, unsent
from persist_spark.frame import DELETE, SKIP, UPSERT

_OR_DEEP = ", or is nested too deeply"
NOT_JSON = f"the line is not one JSON object{_OR_DEEP}"
NONCHARACTER = "the line holds a noncharacter, U+FDD0 or U+FDD1, as it is or escaped"
ODD_JSON = f"a field holds another kind of JSON value than the object expected{_OR_DEEP}"
MARKER = "marker"  # text of the field that marks a row as an upsert or a delete
LOAD_OPS = ("I",)  # of the rows of a full load, which may have none
_BITS = {"true": "1", "false": "0"}
_USUAL = {"0", "1", *_BITS}
_NO_NUMBERS = ("nan", "infinity", "-infinity", "inf", "-inf")  # of doubles: equal to no value that is configured
_YES, _NO = ("true", "t", "yes", "y"), ("false", "f", "no", "n")  # as the type `boolean` reads them
NOT_DMS = "the line has no metadata with a record-type or an operation: not a DMS record"
_DMS_UPSERTS = ("load", "insert", "update")
_OPERATION: Path = ("metadata", "operation")
_RECORD_TYPE: Path = ("metadata", "record-type")
_TIMESTAMP: Path = ("metadata", "timestamp")
_AUTO = Field(Column("timestamp", "timestamp"), "o0")  # what `auto` is in `sequence` order, before the position


def named_path(config: CollectionConfig, name: str) -> Path:
    """The path of a configured column, or of any other field, dots meaning nesting."""
    column = next((column for column in config.collection_schema().columns if column.name == name), None)
    return record_path(config, column) if column else tuple(name.split("."))


def json_records(config: CollectionConfig, lines: DataFrame) -> RawRecords:
    """`json`: each line an object that is the row itself."""
    fields = fields_of(config)
    paths = read_paths(config, fields)
    free = free_paths(config)
    if config.delete.column is not None:
        free[MARKER] = named_path(config, config.delete.column)
    shape = Shape()
    shape.need_all([*paths.values(), *free.values()])
    is_lost = F.col("row").isNull()
    frame = parsed_lines(config, lines, shape).select(
        *line_columns(config),
        *_texts(config, fields, shape, paths, free, all_marked(F.col(LINE))),
        F.when(is_lost, F.lit("key")).when(F.col("odd"), F.lit("value")).alias(FAULT_KIND),
        F.when(is_lost, not_read()).when(F.col("odd"), F.lit(ODD_JSON)).alias(FAULT),
    )
    lacking = unsent(config, fields.values, paths)
    op = row_op(config, fields, has_marker=MARKER in free, lacking=lacking)
    encoding = Encoding.of(config, marked=True)
    return RawRecords(frame, fields, F.col(LINE), encoding, order_of(config, fields), op, unsent=lacking)


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
    before = {f"b{key.raw}": [("before-image", *paths[key.raw][1:])] for key in fields.keys}
    for key, path in before_paths(config, fields).items():
        before[f"b{key.raw}"].append(("data", *path))
    shape = Shape()
    shape.need_all([*paths.values(), *free.values(), _OPERATION, _RECORD_TYPE, *itertools.chain(*before.values())])

    rows, row = parsed_lines(config, lines, shape), F.col("row")
    texts = rows.select(
        *line_columns(config),
        "odd",
        row.isNull().alias("lost"),
        unmarked(shape.get(row, _OPERATION)).alias("operation"),
        unmarked(shape.get(row, _RECORD_TYPE)).alias("record_type"),
        *_texts(config, fields, shape, paths, free, fields_in(all_marked(F.col(LINE)))["data"]),
        *[F.coalesce(*[shape.get(row, path) for path in either]).alias(raw) for raw, either in before.items()],
    )
    operation, record_type = F.col("operation"), F.col("record_type")
    is_control = record_type.isNotNull() & (record_type != "data")
    is_strange = ~operation.isin(*_DMS_UPSERTS, "delete") & ~is_control
    faults = (
        (F.col("lost"), F.lit("key"), not_read()),
        (operation.isNull() & record_type.isNull(), F.lit("value"), F.lit(NOT_DMS)),
        (
            F.coalesce(is_strange, ~F.coalesce(is_control, F.lit(False))),
            F.lit("op"),
            F.concat(
                F.lit("operation is '"),
                F.coalesce(F.substring(operation, 1, 80), F.lit("missing")),
                F.lit(f"'; expected one of {', '.join(_DMS_UPSERTS)}, delete"),
            ),
        ),
        (F.col("odd"), F.lit("value"), F.lit(ODD_JSON)),
    )
    kind, message = first_fault(faults)
    op = F.when(is_control, SKIP).when(operation == "delete", DELETE).when(operation.isin(*_DMS_UPSERTS), UPSERT)
    frame = texts.withColumns({RAW_OP: op, FAULT_KIND: kind, FAULT: message})
    order = (OrderField(_AUTO.column.name, F.col(_AUTO.value)),) if is_auto else field_orders(config, fields)
    unordered = F.when(F.col(_AUTO.value).isNull(), NO_PLACE) if is_auto else None
    encoding, lacking = Encoding.of(config, marked=True), unsent(config, fields.values, paths)
    return RawRecords(
        *(frame, fields, F.col(LINE), encoding, order),
        unordered=unordered,
        unsent=lacking,
        is_update=operation == "update",
    )


def before_paths(config: CollectionConfig, fields: Fields) -> dict[Field, Path]:
    """The paths of the key before an update, as DMS's `add-before-image-columns` makes them.

    Empty if the collection names one of them: then it is a column of the table.
    """
    paths = {key: record_path(config, key.column) for key in fields.keys}
    found = {key: (*outer, f"{BEFORE}{name}") for key, (*outer, name) in paths.items()}
    named = named_fields(config) | {".".join(record_path(config, each)) for each in config.collection_schema().columns}
    return {} if named & {".".join(path) for path in found.values()} else found


def _placed(config: CollectionConfig, name: str) -> Path:
    path = named_path(config, name)
    return path if path[0] in ("data", "metadata") and name not in config.columns else ("data", *path)


def _texts(
    config: CollectionConfig,
    fields: Fields,
    shape: Shape,
    paths: Mapping[str, Path],
    free: Mapping[str, Path],
    marked: SparkColumn,
) -> list[SparkColumn]:
    """The texts of a row in `row`, by raw names. `marked`: the row as JSON text of `all_marked`."""
    texts = {name: shape.get(F.col("row"), path) for name, path in paths.items()}
    texts |= {name: free_text(config, name, shape.get(F.col("row"), path)) for name, path in free.items()}
    if config.source.missing_field == "unchanged":
        texts[ROW_FIELDS] = fields_in(F.col(LINE))
    texts |= rest_of_json(config, fields, marked)
    return [text.alias(name) for name, text in texts.items()]


def parsed_lines(config: CollectionConfig, lines: DataFrame, shape: Shape) -> DataFrame:
    """Lines with the struct of the JSON object in `row`, null if the line is not one, and `odd` (see `parsed`).

    A line with half a surrogate pair is `BROKEN` too.
    """
    others = [name for name in line_columns(config) if name != BROKEN]
    broken = (F.col(BROKEN) | has_half_surrogates(F.col(LINE))).alias(BROKEN)
    found = F.when(~has_noncharacters(F.col(LINE)), envelope(F.col(LINE), shape))
    opened = lines.select(*others, broken, found.alias("envelope"))
    row, is_odd = parsed(F.col("envelope"), shape)
    return opened.select(*line_columns(config), row.alias("row"), is_odd.alias("odd"))


def not_read(inner: str = LINE) -> SparkColumn:
    """The fault of a line that is not read, or of a text within it, which is JSON too."""
    is_marked = has_noncharacters(F.col(LINE)) | has_escaped_noncharacters(F.col(inner))
    return F.when(is_marked, NONCHARACTER).otherwise(NOT_JSON)


def check_op(config: CollectionConfig, names: Collection[str]) -> None:
    """Raise `ArrowInvalid` for the fields of a DMS file whose `Op` may be there in another case.

    Without `Op` a file is a full load, whose rows are all there: deletes would bring rows back.
    """
    if not config.source.format.startswith("dms-") or DMS_OP in names:
        return
    odd = next((name for name in names if name.lower() == DMS_OP.lower() and name not in named_fields(config)), None)
    if odd is not None:
        raise pa.ArrowInvalid(
            f"it has a column {odd!r}, and no {DMS_OP!r}: rename it if it is the operation; if it is a column of the"
            f" table, write source.ignored: [{odd}]"
        )


def free_paths(
    config: CollectionConfig, path_of: Callable[[CollectionConfig, str], Path] = named_path
) -> dict[str, Path]:
    """The fields needed besides the columns, by their raw name: for `order` and `time`."""
    found = {f"o{index}": path_of(config, config.order_name(name)) for index, name in enumerate(config.order.fields)}
    return {**found, RAW_TIME: path_of(config, config.time.field)} if config.time.field else found


def free_text(config: CollectionConfig, name: str, text: SparkColumn) -> SparkColumn:
    """The text of one of `free_paths`; `RAW_TIME` keeps its mark, as the columns and typed orders do."""
    is_typed = name == RAW_TIME or (is_sequence(config) and name != MARKER)
    return text if is_typed else unmarked(text)


def order_of(config: CollectionConfig, fields: Fields) -> tuple[OrderField, ...]:
    """The order of rows: with `auto`, DMS's changes by the names of their files, which are times, in whatever folders
    they lie; before them its full load, which has none."""
    if config.order.by == "auto" and is_of_dms(config):
        return (OrderField("change", F.when(~is_full_load(), file_name())),)
    return field_orders(config, fields)


def field_orders(config: CollectionConfig, fields: Fields) -> tuple[OrderField, ...]:
    """The order struct's fields for `order: [...]`: of a configured column its typed value, else the text in `o..`.

    A missing value is null: the lowest. In `sequence` order all of them are typed.
    """
    found: list[OrderField] = []
    own = {field.column.name: field for field in fields.orders}
    for index, name in enumerate(config.order.fields):
        field = fields.named(name) or own.get(name)
        if field is not None:
            found.append(OrderField(f"by{index}", F.col(field.value), raw=field.raw))
        else:
            raw = F.col(f"o{index}")  # numbers in numeric order, below them any other text in text order
            number = number_order(raw)
            found.append(OrderField(f"by{index}_number", number))
            found.append(OrderField(f"by{index}_text", F.when(number.isNull(), raw)))
    return tuple(found)


def row_op(
    config: CollectionConfig, fields: Fields, *, has_marker: bool, lacking: Mapping[str, SparkColumn] | None = None
) -> dict[str, SparkColumn]:
    """`RAW_OP` for a frame that has `FAULT_KIND` and `FAULT`, and both with the marker's error if it has one.

    By the text in `MARKER` (if `has_marker`) or by the row's values being null, unless something worse is wrong.

    `lacking`: a value that the record does not carry is not null.
    """
    op, fault = _op_and_fault(config, fields, has_marker, lacking or {})
    is_lost, is_key = F.col(FAULT_KIND).isNotNull(), F.col(FAULT_KIND).eqNullSafe("key")
    return {
        RAW_OP: F.when(~is_key, op),
        FAULT_KIND: F.when(is_lost, F.col(FAULT_KIND)).when(fault.isNotNull(), F.lit("op")),
        FAULT: F.coalesce(F.col(FAULT), fault),
    }


def _op_and_fault(
    config: CollectionConfig, fields: Fields, has_marker: bool, lacking: Mapping[str, SparkColumn]
) -> tuple[SparkColumn, SparkColumn]:
    marker = F.col(MARKER) if has_marker else F.lit(None).cast("string")
    none = F.lit(None).cast("string")
    if is_of_dms(config):
        expected = F.when(is_full_load(), "I, as the file's name is one of a full load").otherwise("I, U or D")
        wrong = F.concat(F.lit(f"{DMS_OP} is '"), F.coalesce(marker, F.lit("")), F.lit("'; expected "), expected)
        known = marker.isin(*LOAD_OPS) | (marker.isin(*DMS_OPS) & ~is_full_load())
        known = F.coalesce(known, F.lit(not has_marker))  # without the column the file is a full load
        return F.when(known, F.when(marker == "D", DELETE).otherwise(UPSERT)), F.when(~known, wrong)
    if config.delete.column is not None:
        if not has_marker:
            return none, F.lit(f"there is no column {config.delete.column!r}, which marks deletes")
        return _marked_op(config.delete)
    if config.delete.null_value and fields.values:
        is_empty = all_of([F.col(f.raw).isNull() & ~lacking.get(f.raw, F.lit(False)) for f in fields.values])
        return F.when(is_empty, DELETE).otherwise(UPSERT), none
    return F.lit(UPSERT), none


def _marked_op(delete: DeleteConfig) -> tuple[SparkColumn, SparkColumn]:
    """The effects of rows by the value in `MARKER`: writers change the spelling of a flag, to a double 1.0 for a 1.

    Numbers are compared as numbers, true being 1. An unclear marker is an err: a text if all of `delete.values` are
    numbers, and one that differs from a text of them in case or blanks alone.
    """
    marker, values = F.col(MARKER), list(delete.values)
    plain = F.lower(F.trim(marker))
    bits = [_BITS.get(text.lower(), text) for text in values]
    texts = [text for text in bits if re.fullmatch(r"[+-]?[0-9]{1,29}(\.[0-9]{1,9})?", text)]
    numbers = {Decimal(text) for text in texts}
    usual = {text for text in _USUAL if Decimal(_BITS.get(text, text)) in numbers}  # looked up, as numbers cost more
    op = F.when(marker.isin([*values, *sorted(usual)]), DELETE).when(marker.isNull(), UPSERT)
    is_unclear = plain.isin([text.strip().lower() for text in values])
    expected = f"the spelling of delete.values ({', '.join(values)}); if it marks deletes too, add it there"
    if numbers:
        number = F.when(plain.isin(*_YES), 1).when(plain.isin(*_NO), 0).otherwise(exact_decimal(bounded(marker), 38, 9))
        op = op.when(marker.isin(sorted(_USUAL - usual)), UPSERT)
        op = op.when(number.isin([F.lit(f"{each:f}").cast("decimal(38,9)") for each in sorted(numbers)]), DELETE)
        if len(texts) == len(bits):
            is_flag = not set(map(str.lower, values)) - set(_BITS)
            expected = "a boolean" if is_flag else "a number or a boolean"
            is_known = number.isin(0, 1) if is_flag else is_number(plain) | plain.isin(*_YES, *_NO, *_NO_NUMBERS)
            is_unclear = (plain != "") & ~F.coalesce(is_known, F.lit(False))
    op = op.when(is_unclear, None).otherwise(UPSERT)
    said = F.concat(F.lit(f"column {delete.column!r}, which marks deletes, is "), shown_text(MARKER))
    return op, F.when(op.isNull(), F.concat(said, F.lit(f"; expected {expected}")))
