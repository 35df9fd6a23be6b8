"""The column `source.rest`: all fields of a record that have no column, as one JSON object, names in order.

    text of the row --strings marked too--> map of texts --without the fields that have a column--> JSON text

Numbers keep their digits. `persist_spark.decode.json` gives each leaf as text, "{}" and {} alike, so each string
gets a mark of its own first.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Set

from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as F

from persist_core.config.collection import CollectionConfig
from persist_core.sample.fields import named_fields
from persist_spark.decode.encoding import Field
from persist_spark.decode.json import MARK, Path, exact_numbers
from persist_spark.decode.records import Fields, record_path
from persist_spark.decode.unsent import fields_in

_TEXT = "\ufdd3"  # before a string: a noncharacter, as `MARK` is
# What stands between two values that are strings: anything else, and names, which a colon follows.
_BETWEEN = r'\G((?:[^"]++|"(?:[^"\\]++|\\.)*+"\s*+:)*+)'
_STRING = _BETWEEN + r'"((?:[^"\\]++|\\.)*+)"'
_NUMBER = f'"{_TEXT}{MARK}([^"]*)"'
_MARKED = rf'(?<!\\)"{_TEXT}'  # a quote within a string has a backslash before it
# All digits of a time, in UTC: two values must not become one text.
_EXACT = {
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


def rest_field(config: CollectionConfig, fields: Fields) -> Field | None:
    """The field of the column `rest`."""
    return fields.named(config.source.rest) if config.source.rest else None


def read_paths(config: CollectionConfig, fields: Fields) -> dict[str, Path]:
    """The path in a record of each column but `rest`, by raw name."""
    return {each.raw: record_path(config, each.column) for each in fields.all if each.column.name != config.source.rest}


def rest_of_json(config: CollectionConfig, fields: Fields, row: SparkColumn) -> dict[str, SparkColumn]:
    """The raw text of `rest`, if the collection has one, for a row that is JSON text of `all_marked`."""
    field = rest_field(config, fields)
    if field is None:
        return {}
    known = F.array(*[F.lit(name) for name in sorted(named_fields(config))])
    is_debezium = config.source.format == "debezium-json"  # unwrapped records: __op, __deleted, ...

    def is_rest(name: SparkColumn, _: SparkColumn) -> SparkColumn:
        is_new = ~F.array_contains(known, name)
        return is_new & ~name.startswith("__") if is_debezium else is_new

    return {field.raw: rest_text(fields_in(row), is_rest)}


def rest_text(found: SparkColumn, is_rest: Callable[[SparkColumn, SparkColumn], SparkColumn]) -> SparkColumn:
    """JSON of the fields (of `fields_in`, in text of `all_marked`) for which `is_rest` is true; null without any."""
    entries = F.map_entries(F.map_filter(found, is_rest))
    # Of a field that occurs twice the last one stays the last.
    placed = F.transform(
        entries, lambda each, place: F.struct(each["key"].alias("key"), place, each["value"].alias("value"))
    )
    cells = F.transform(
        F.array_sort(placed), lambda each: F.concat(_quoted(each["key"]), F.lit(":"), _value(each["value"]))
    )
    return F.when(F.size(cells) > 0, F.concat(F.lit("{"), F.array_join(cells, ","), F.lit("}")))


def rest_of_cells(
    config: CollectionConfig, fields: Fields, cells: Mapping[str, SparkColumn], nested: Set[str] = frozenset()
) -> dict[str, SparkColumn]:
    """The raw text of `rest`, if the collection has one, for a row with these cells. Nulls are left out, but not those
    within the cells `nested`."""
    field = rest_field(config, fields)
    if field is None:
        return {}
    pieces = []
    names = sorted(cells.keys() - named_fields(config))
    # One call for all flat cells beside each other, and one for each nested cell.
    for alone, run in itertools.groupby(names, lambda name: name if name in nested else None):
        text = cells_text(F.struct(*[cells[name].alias(name) for name in run]), keeps_null=alone is not None)
        is_there = text != "{}" if alone is None else cells[alone].isNotNull()
        pieces.append(F.when(is_there, text.substr(F.lit(2), F.length(text) - 2)))
    text = F.concat_ws(",", *pieces)
    return {field.raw: F.when(text != "", F.concat(F.lit("{"), text, F.lit("}")))}


def cells_text(value: SparkColumn, *, keeps_null: bool = True) -> SparkColumn:
    """JSON of a nested value; without the fields that are null, at every level, unless it `keeps_null`."""
    return F.to_json(value, {**_EXACT, "ignoreNullFields": "false" if keeps_null else "true"})


def all_marked(text: SparkColumn) -> SparkColumn:
    """JSON text whose numbers and strings are marked."""
    return F.regexp_replace(exact_numbers(text), _STRING, f'$1"{_TEXT}$2"')


def _value(leaf: SparkColumn) -> SparkColumn:
    """A leaf of `all_marked` as the JSON that it was."""
    nested = F.regexp_replace(F.regexp_replace(leaf, _NUMBER, "$1"), _MARKED, '"')
    number, text = leaf.substr(F.lit(3), F.length(leaf)), leaf.substr(F.lit(2), F.length(leaf))
    marked = F.when(leaf.startswith(_TEXT + MARK), number).when(leaf.startswith(_TEXT), _quoted(text))
    return F.coalesce(marked.otherwise(nested), F.lit("null"))


def _quoted(text: SparkColumn) -> SparkColumn:
    """A text as JSON."""
    array = F.to_json(F.array(text))
    return array.substr(F.lit(2), F.length(array) - 2)
