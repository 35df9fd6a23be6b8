"""The column `source.rest`: all fields of a record that have no column, as one JSON object, names in order.

    text of the row --strings marked too--> map of texts --without the fields that have a column--> JSON text

Numbers keep their digits. `persist_spark.decode.json` gives each leaf as text, "{}" and {} alike, so each string
gets a mark of its own first.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Set

from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as F

from persist_core.config.collection import CollectionConfig
from persist_core.sample.fields import known_fields
from persist_spark.decode.encoding import Field
from persist_spark.decode.json import MARK, Path, exact_numbers
from persist_spark.decode.records import Fields, record_path
from persist_spark.decode.unsent import fields_in
from persist_spark.frame import text_literal

_TEXT = "\ufdd3"  # before a string: a noncharacter, as `MARK` is
# What stands between two values that are strings: anything else, and names, which a colon follows.
_BETWEEN = r'\G((?:[^"]++|"(?:[^"\\]++|\\.)*+"\s*+:)*+)'
_STRING = _BETWEEN + r'"((?:[^"\\]++|\\.)*+)"'
_NUMBER = f'"{_TEXT}{MARK}([^"]*)"'
# A quote within a string has a backslash before it. A name, which a colon follows, may start so itself.
_MARKED = rf'(?<!\\)"{_TEXT}(?=(?:[^"\\]++|\\.)*+"(?!:))'
# All digits of a time, in UTC: two values must not become one text.
_EXACT = {
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


def rest_field(config: CollectionConfig, fields: Fields) -> Field | None:
    return fields.named(config.source.rest) if config.source.rest else None


def read_paths(config: CollectionConfig, fields: Fields) -> dict[str, Path]:
    """The path in a record of each column but `rest`, by raw name."""
    return {each.raw: record_path(config, each.column) for each in fields.all if each.column.name != config.source.rest}


def rest_of_json(config: CollectionConfig, fields: Fields, row: SparkColumn) -> dict[str, SparkColumn]:
    """The raw text of `rest`, if the collection has one, for a row that is JSON text of `all_marked`."""
    field = rest_field(config, fields)
    if field is None:
        return {}
    known = ", ".join(map(text_literal, sorted(known_fields(config))))
    is_rest = f"NOT array_contains(array({known}), name)"
    if config.source.format == "debezium-json":  # unwrapped records: __op, __deleted, ...
        is_rest = f"{is_rest} AND NOT startswith(name, '__')"
    return {field.raw: rest_text(fields_in(row), is_rest)}


def rest_text(found: SparkColumn, is_rest: str) -> SparkColumn:
    """JSON of the fields (of `fields_in`, in text of `all_marked`) for which the SQL `is_rest` over their `name` is
    true; null without any.

    The arguments of Python's lambdas would get other names in each batch, and Spark writes these into generated code.
    """
    kept = F.call_function("map_filter", found, F.expr(f"(name, leaf) -> {is_rest}"))
    # Of a field that occurs twice the last one stays the last.
    entry = F.expr("(each, place) -> named_struct('key', each.key, 'place', place, 'value', each.value)")
    placed = F.call_function("transform", F.map_entries(kept), entry)
    text = F.expr(f"each -> concat({_quoted('each.key')}, ':', {_value('each.value')})")
    cells = F.call_function("transform", F.array_sort(placed), text)
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
    names = sorted(cells.keys() - known_fields(config))
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


def _value(leaf: str) -> str:
    """SQL: a leaf of `all_marked` as the JSON that it was."""
    nested = f"regexp_replace({leaf}, {text_literal(_NUMBER)}, {text_literal('$1')})"
    nested = f"regexp_replace({nested}, {text_literal(_MARKED)}, {text_literal(chr(34))})"
    is_number, is_text = (f"startswith({leaf}, {text_literal(mark)})" for mark in (_TEXT + MARK, _TEXT))
    quoted = _quoted(f"substring({leaf}, 2)")
    return f"""coalesce(CASE WHEN {is_number} THEN substring({leaf}, 3) WHEN {is_text} THEN {quoted} ELSE {nested} END,
        'null')"""


def _quoted(text: str) -> str:
    """SQL: a text as JSON."""
    array = f"to_json(array({text}))"
    return f"substring({array}, 2, length({array}) - 2)"
