"""The keys of a small batch as a filter that Parquet applies to pages: pages without such a key are not read.

    records of a small batch ──collect──> key IN (...) OR key IN (...) ──page indexes──> pages with a key

Files are sorted by key, so a page holds few of them, however random the keys of the batch are. The filter only saves
work: it lets other rows of these pages through, and the join with the batch's slots leaves them out.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from persist_core.schema import CollectionSchema
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


def pays(records: int, stored: int) -> bool:
    """True if so many records, with a key each, meet clearly not all pages of so many stored rows."""
    return records <= MAX_KEYS and records * PAGE_ROWS <= stored


def filter_of(slots: DataFrame, schema: CollectionSchema) -> str | None:
    """The filter, as SQL on the key columns; `None` if no key column has a type for it. Runs a small job."""
    columns = [column for column in schema.key if column.type in SCALARS]
    if not columns:
        return None
    use(slots.sparkSession, _PUSHED)
    found = slots.selectExpr(*[SCALARS[column.type][0].format(quoted(column.name)) for column in columns]).collect()
    filters = []
    for place, column in enumerate(columns):
        texts = sorted({row[place] for row in found} - {None})
        keys = [literal(SCALARS[column.type][1](text), column) for text in texts]
        lists = [", ".join(keys[start : start + _LIST]) for start in range(0, len(keys), _LIST)]
        filters.append(" OR ".join(f"{quoted(column.name)} IN ({each})" for each in lists) or "false")
    return " AND ".join(f"({each})" for each in filters)
