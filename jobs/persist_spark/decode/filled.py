"""Stored rows whose `rest` holds fields of columns: the columns get their values, as if a record were decoded now.

    rows --`rest`--> texts of fields --typed_values--> values --> rows as they will be, or what is wrong with them

A column that has a value keeps it, and so does `rest`. A field of which a column takes a part stays in `rest`, with its
other parts. A row with a value that makes a record an err, or that fails a check, stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from persist_core.config.collection import CollectionConfig, TimeConfig
from persist_core.schema import RESERVED_PREFIX
from persist_spark.compat import failing
from persist_spark.decode.encoding import Encoding, Field
from persist_spark.decode.json import Path, Shape, envelope, parsed
from persist_spark.decode.plain import ODD_JSON
from persist_spark.decode.records import (
    Fields,
    RawRecords,
    all_of,
    any_of,
    fields_of,
    first_fault_in,
    is_bad,
    record_path,
    shown_text,
    typed_values,
)
from persist_spark.decode.rest import all_marked, rest_field, rest_text
from persist_spark.decode.row_checks import first_failed, is_strict
from persist_spark.decode.unsent import fields_in, unsent
from persist_spark.frame import named

FILLED, BAD = "filled_", "bad_"  # before a raw name: the column gets a value; the text of a bad one, which becomes null
WAS = "was_"  # before a raw name: the column as it is stored
FAULT, IS_CHANGED = "fault", "is_changed"
IN_REST = f"{RESERVED_PREFIX}in_rest"
_ROW, _REST = f"{RESERVED_PREFIX}row", f"{RESERVED_PREFIX}rest"


def filled(config: CollectionConfig, rows: DataFrame, more: Sequence[str]) -> tuple[DataFrame, Fields]:
    """`rows` under raw names: each column as it was (`WAS`) and as it will be, and the columns `more`.

    With `IS_CHANGED`, never true with a `FAULT`, which says why a row that could be filled is not; and of each column
    that can be filled `FILLED` and `BAD`. Rows that certainly hold no such field are left out.
    """
    fields = fields_of(config)
    rest = _rest(config, fields)
    taken = tuple(field for field in fields.values if field is not rest and _is_exact(config, field))
    paths = {field.raw: _path(config, field) for field in taken}
    stored = named(rest.column.name)
    was = {field.raw: F.col(f"{WAS}{field.raw}") for field in fields.all}
    cells = [named(field.column.name).alias(f"{WAS}{field.raw}") for field in fields.all]
    kept = rows.where(_may_hold(stored, paths))
    opened = kept.select(*cells, *map(F.col, more), stored.alias(_REST), fields_in(all_marked(stored)).alias("found"))
    typed, raw, is_open = _typed(config, opened, taken, paths)
    lenient = [field for field in taken if not is_strict(config, field.column)]
    tops: dict[str, list[SparkColumn]] = {}
    for name, path in paths.items():
        if len(path) == 1:
            tops.setdefault(path[0], []).append(is_open[name])
    gone = F.array_compact(F.array(*[F.when(all_of(each), F.lit(top)) for top, each in tops.items()]))
    marked = typed.withColumns(
        {
            "gone": F.array_intersect(gone, F.map_keys(F.col("found"))),
            FAULT: F.when(F.col("is_odd"), F.lit(ODD_JSON)).otherwise(first_fault_in(config, raw, taken)),
            **{f"{FILLED}{field.raw}": F.col(field.value).isNotNull() for field in taken},
            **{f"{BAD}{field.raw}": F.when(is_bad(field), shown_text(field.raw)) for field in lenient},
        }
    )
    left = rest_text(F.col("found"), "NOT array_contains(gone, name)")
    after = {field.raw: was[field.raw] for field in fields.all}
    after |= {field.raw: F.coalesce(was[field.raw], F.col(field.value)) for field in taken}
    after |= {rest.raw: F.when(F.size("gone") > 0, left).otherwise(was[rest.raw])}
    is_changed = any_of([F.size("gone") > 0, *[F.col(f"{FILLED}{field.raw}") for field in taken]])
    return _checked(config, marked.withColumns(after), fields).withColumn(
        IS_CHANGED, F.col(FAULT).isNull() & is_changed
    ), fields


def with_in_rest(config: CollectionConfig, rows: DataFrame) -> DataFrame:
    """`rows`, committed or stashed, with `IN_REST`: for each column that can be left out and is null, by raw name, the
    value that `rest` still holds, or null. So a later record inherits it, though `persist fill` has not run yet."""
    fields = fields_of(config)
    rest = _rest(config, fields)
    taken = tuple(field for field in fields.values if field is not rest and field.column.inherits)
    paths = {field.raw: _path(config, field) for field in taken}
    stored = named(rest.column.name)
    cells = [named(field.column.name).alias(f"{WAS}{field.raw}") for field in taken]
    text = F.when(_may_hold(stored, paths), stored).alias(_REST)
    typed, _, is_open = _typed(config, rows.select(F.struct("*").alias(_ROW), *cells, text), taken, paths)
    found = {f.raw: F.when(is_open[f.raw] & ~F.col("is_odd"), F.col(f.value)) for f in taken}
    found[rest.raw] = F.lit(None)
    inheriting = [found[field.raw].alias(field.raw) for field in fields.values if field.column.inherits]
    return typed.select(f"{_ROW}.*", F.struct(*inheriting).alias(IN_REST))


def _typed(
    config: CollectionConfig, rows: DataFrame, taken: tuple[Field, ...], paths: Mapping[str, Path]
) -> tuple[DataFrame, RawRecords, dict[str, SparkColumn]]:
    """`rows` with the typed values that `_REST` holds, and whether each may get one: its column (`WAS`) is null."""
    shape = Shape()
    shape.need_all(paths.values())
    row, is_odd = parsed(F.col("opened"), shape)
    opened = rows.withColumn("opened", envelope(F.col(_REST), shape)).withColumns({"row": row, "is_odd": is_odd})
    texts = opened.withColumns({field.raw: shape.get(F.col("row"), paths[field.raw]) for field in taken})
    is_unsent = {field.raw: F.lit(False) for field in taken} | unsent(config, taken, paths)
    is_open = {raw: F.col(f"{WAS}{raw}").isNull() & ~absent for raw, absent in is_unsent.items()}
    raw = RawRecords(
        texts.withColumns({name: F.when(is_open[name], F.col(name)) for name in paths}),
        Fields((), taken),
        F.lit(None),
        Encoding.of(config, marked=True),
    )
    return typed_values(config.model_copy(update={"time": TimeConfig()}), raw), raw, is_open


def _rest(config: CollectionConfig, fields: Fields) -> Field:
    found = rest_field(config, fields)
    assert found is not None
    return found


def _may_hold(stored: SparkColumn, paths: Mapping[str, Path]) -> SparkColumn:
    return any_of([stored.contains(_plain(path[0])) for path in paths.values()])


def _checked(config: CollectionConfig, rows: DataFrame, fields: Fields) -> DataFrame:
    """With a `FAULT` for each row that fails a check which does more than warn."""
    checks = {name: check for name, check in config.checks.items() if check.on_fail != "warn"}
    if not checks:
        return rows
    named_rows = rows.select(
        F.struct("*").alias(_ROW), *[F.col(field.raw).alias(field.column.name) for field in fields.all]
    )
    with failing(rows.sparkSession):
        judged = named_rows.selectExpr(f"{_ROW}.*", f"{first_failed(checks)} AS failed_check")
    said = F.concat(F.lit("check '"), F.col("failed_check"), F.lit("' is not true"))
    return judged.withColumn(FAULT, F.coalesce(F.col(FAULT), said))


def _is_exact(config: CollectionConfig, field: Field) -> bool:
    """False for bytes from Parquet: their text in `rest` may be their base64, or a text of the file."""
    return not (config.source.format.endswith("parquet") and field.column.type == "binary")


def _path(config: CollectionConfig, field: Field) -> Path:
    """The place of a column's value in `rest`: CSV has no objects, and dots in the names of its fields."""
    path = record_path(config, field.column)
    return (".".join(path),) if config.source.format.endswith("csv") else path


def _plain(name: str) -> str:
    """The longest part of a name that JSON writes as it is."""
    return max(re.split(r'[\x00-\x1f\x7f"\\/]', name), key=len)
