"""The keys of a small batch as a filter that Parquet applies to pages: pages without such a key are not read.

    records of a small batch ──collect──> key IN (...) OR key IN (...) ──page indexes──> pages with a key

Files are sorted by key, so a page holds few of them, however random the keys of the batch are. The filter only saves
work: it lets other rows of these pages through, and the join with the batch's slots leaves them out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pyspark.sql import DataFrame, Row

from persist_core.schema import CollectionSchema, Column
from persist_spark.frame import SCALARS, literal, quoted
from persist_spark.session import use
from persist_spark.stage import PAGE_ROWS

MAX_KEYS = 1024
_LIST = 128  # keys of an IN list: it becomes a chain of comparisons as deep
_PUSHED = {
    # A longer list is pushed as its least and its greatest key, which no page of random keys is outside of.
    "spark.sql.parquet.pushdown.inFilterThreshold": str(_LIST),
    "spark.sql.optimizer.inSetSwitchThreshold": "0",  # else the keys are part of the code that Spark generates
}


def most(stored: int) -> int:
    """The most records, with a key each, that meet clearly not all pages of so many stored rows, and make a filter."""
    return min(MAX_KEYS, stored // PAGE_ROWS)


def met(records: int, stored: int) -> float:
    """The share of the pages of so many stored rows that so many random keys meet."""
    return 1 - math.exp(-records * PAGE_ROWS / max(1, stored))


def key_texts(slots: DataFrame, schema: CollectionSchema) -> DataFrame:
    """The values, as texts, of the key columns that a filter may have."""
    use(slots.sparkSession, _PUSHED)
    found = [SCALARS[column.type][0].format(quoted(column.name)) for column in _filtered(schema)]
    return slots.selectExpr(*found or ["1"])


def filter_of(texts: Sequence[Row], schema: CollectionSchema) -> str | None:
    """The filter, as SQL on the key columns, of `key_texts`; `None` if no key column has a type for it."""
    filters = []
    for place, column in enumerate(_filtered(schema)):
        keys = [
            literal(SCALARS[column.type][1](text), column) for text in sorted({row[place] for row in texts} - {None})
        ]
        lists = [", ".join(keys[start : start + _LIST]) for start in range(0, len(keys), _LIST)]
        filters.append(" OR ".join(f"{quoted(column.name)} IN ({each})" for each in lists) or "false")
    return " AND ".join(f"({each})" for each in filters) or None


def _filtered(schema: CollectionSchema) -> list[Column]:
    return [column for column in schema.key if column.type in SCALARS]
