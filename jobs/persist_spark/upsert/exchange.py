"""The exchange of a batch; of a large first one by ranges of keys: its files are a run of files that share no key.

    a sample of the records ──cuts──> chain ──key_range: the number of cuts up to the key──> one task for each range

Spark's own exchange by ranges takes its sample from rows that it has computed whole, so it reads and decodes all twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame

from persist_core.contents.key_range import Scalar
from persist_core.schema import Column
from persist_spark.compat import REPARTITIONS_BY_ID
from persist_spark.frame import SCALARS, literal
from persist_spark.upsert.arguments import KEY_RANGE, Arguments

RANGE_BYTES = 32 << 20  # of the batch's input
_MAX_RANGES = 1024


def has_cuts(column: Column) -> bool:
    """True if a sample knows the values of this first key column, and Spark sends rows to a task by its number."""
    return REPARTITIONS_BY_ID and column.type in SCALARS


def cuts_of(sample: Mapping[Scalar | None, int], size_bytes: int) -> list[Scalar]:
    """Where the ranges of so much input begin, but for the first: about equally many records are in each. `sample`:
    values of the first key column, `None` for keys that are not known, each with its number of records.

    Empty if one has more records than a range, as ranges then begin at values of other key columns too.
    """
    share = sum(sample.values()) / min(max(2, size_bytes // RANGE_BYTES), _MAX_RANGES)
    if max(sample.values(), default=0) > share:
        return []
    cuts, below = list[Scalar](), sample.get(None, 0)
    for value, records in sorted((value, records) for value, records in sample.items() if value is not None):
        if below >= share * (len(cuts) + 1):
            cuts.append(value)
        below += records
    return cuts


def exchanged(chain: DataFrame, cuts: Sequence[Scalar] | None, arguments: Arguments, *, in_one_task: bool) -> DataFrame:
    """The rows of each slot in one task, if windows do not see to it. Arguments: as of `persistent_upsert`."""
    if cuts:
        return by_ranges(chain, arguments.keys[0], arguments.schema.key[0], cuts)
    if cuts is not None:
        return chain.repartitionByRange(*arguments.slot)
    if in_one_task:
        return chain.coalesce(1)
    # Spark's own exchange comes after the arguments of the first windows: copies of orders and values.
    return chain if arguments.seen is None else chain.repartition(*arguments.slot)


def by_ranges(rows: DataFrame, name: str, column: Column, cuts: Sequence[Scalar]) -> DataFrame:
    """The rows, with `KEY_RANGE`, exchanged by it: the range of the value of `name`, which has the type of `column`.
    Null is in the first."""
    number = _halved([f"{name} >= {literal(cut, column)}" for cut in cuts], 0)
    return rows.selectExpr("*", f"{number} AS {KEY_RANGE}").repartitionById(len(cuts) + 1, KEY_RANGE)


def _halved(is_above: Sequence[str], first: int) -> str:
    """SQL: how many of these ascending conditions are true, and `first` more."""
    if not is_above:
        return str(first)
    half = len(is_above) // 2
    above, below = _halved(is_above[half + 1 :], first + half + 1), _halved(is_above[:half], first)
    return f"CASE WHEN {is_above[half]} THEN {above} ELSE {below} END"
