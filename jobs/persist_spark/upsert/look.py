"""A look at a batch before it is planned, by one small job: its result decides what the plan reads, and how.

    records, stash ──> how many keys, how wide │ does a truncate fall due? │ ranges that hold all keys

Every aggregate is of bounded size, however many keys there are. Ranges are cut where files of the shard begin: from one
cut to the next there is one range, from the least to the greatest key. So a far key opens a file, and none between.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from persist_core.contents.key_range import KeyRange, Scalar
from persist_core.schema import INHERITED, TIME, CollectionSchema, Column
from persist_spark.frame import OP, SCALARS, TRUNCATE, fits, literal, passed, quoted, slot_names, text_bytes

# Above this the keys of a batch rarely fit a broadcast: the whole state goes through the exchange, without a look at
# them.
MAX_LOOK_BYTES = 128 << 20
MAX_CUTS = 63  # each file is compared with each range
_PLACE, _CUTS, _EMPTIES = "_persist_place", "_persist_cuts", "_persist_empties"
_TRUNCATES = f"count(CASE WHEN {_EMPTIES} THEN 1 END)"


@dataclass(frozen=True)
class Look:
    """The findings. `ranges`: of the first key column; `None` if they were not asked for, or any file may hold the
    keys. `rows`: how many there are, `keyless` of them without a first key column. `has_unsent`: one lacks a value."""

    fits_a_broadcast: bool
    has_truncates: bool
    ranges: Sequence[KeyRange] | None
    rows: int
    keyless: int
    has_unsent: bool


def cuts_of(files: Iterable[KeyRange]) -> list[Scalar]:
    """Where files begin, by their first key column: at most `MAX_CUTS` of these places, evenly chosen."""
    places = sorted({keys.first[0] for keys in files if keys.first is not None})
    return places[:: math.ceil(len(places) / MAX_CUTS) or 1]


def look_at(waiting: DataFrame, schema: CollectionSchema, upper: int | None, cuts: Sequence[Scalar] | None) -> Look:
    """Look at records and stash: `OP`, `TIME`, perhaps `INHERITED`, the columns of slots. `cuts` asks for ranges."""
    column = schema.key[0]
    keys = [waiting.schema[name] for name in slot_names(schema)]
    waiting = _with_empties(waiting, upper)
    counts = {
        "rows": "count(1)",
        "text_bytes": f"sum({text_bytes(keys) or '0L'})",
        "keyless": f"count(CASE WHEN {quoted(column.name)} IS NULL THEN 1 END)",
        "truncates": _TRUNCATES,
        "unsent": _unsent(waiting),
    }
    grouped = waiting.groupBy()
    if cuts is not None and column.type in SCALARS:
        as_text = SCALARS[column.type][0]
        counts |= {name: as_text.format(f"{name}({quoted(column.name)})") for name in ("min", "max")}
        grouped = _placed(waiting, column, cuts).groupBy(_PLACE)
    found = grouped.agg(*[F.expr(sql).alias(name) for name, sql in counts.items()]).collect()
    named = ("rows", "text_bytes", "keyless", "truncates", "unsent")
    rows, texts, keyless, truncates, unsent = (sum(row[name] or 0 for row in found) for name in named)
    ranges = _ranges(found, column) if "min" in counts else None
    return Look(fits(rows, keys, texts), truncates > 0, ranges, rows, keyless, unsent > 0)


def look_for_truncates(waiting: DataFrame, upper: int | None) -> Look:
    """Look at all but the keys of records and stash, because there are too many of them."""
    counts = _with_empties(waiting, upper).selectExpr(_TRUNCATES, _unsent(waiting)).collect()
    has_truncates, has_unsent = (count > 0 for count in counts[0])
    return Look(False, has_truncates, ranges=None, rows=0, keyless=0, has_unsent=has_unsent)


def _unsent(waiting: DataFrame) -> str:
    return f"count({INHERITED if INHERITED in waiting.columns else 'NULL'})"


def _with_empties(waiting: DataFrame, upper: int | None) -> DataFrame:
    """With a column more: is the record a truncate that is due?"""
    is_due = "true" if upper is None else f"coalesce({TIME} < {passed(upper)[0]}, true)"
    return waiting.selectExpr("*", f"{OP} = '{TRUNCATE}' AND {is_due} AS {_EMPTIES}")


def _placed(waiting: DataFrame, column: Column, cuts: Sequence[Scalar]) -> DataFrame:
    """Each row with the number of cuts up to its key, found by halving. An array is passed to the code that Spark
    generates, so it is the same for each batch (`frame.passed`)."""
    steps = len(cuts).bit_length()
    null = f"CAST(NULL AS {column.type.upper()})"
    cells = [literal(cut, column) for cut in cuts] + [null] * ((1 << steps) - 1 - len(cuts))
    placed = waiting.selectExpr(
        "*", "pmod(spark_partition_id(), 1) AS " + _PLACE, f"array({', '.join(cells)}) AS {_CUTS}"
    )
    for step in reversed(range(steps)):
        is_above = f"{quoted(column.name)} >= {_CUTS}[{_PLACE} + {(1 << step) - 1}]"
        further = f"{_PLACE} + CASE WHEN {is_above} THEN {1 << step} ELSE 0 END AS {_PLACE}"
        placed = placed.selectExpr(*map(quoted, waiting.columns), further, _CUTS)
    return placed


def _ranges(found: Sequence[Row], column: Column) -> list[KeyRange]:
    scalar = SCALARS[column.type][1]
    bounds = sorted((scalar(row["min"]), scalar(row["max"])) for row in found if row["min"] is not None)
    return [KeyRange((low,), (high,)) for low, high in bounds]
