"""Versions of rows, in Arrow tables: updates resolved into versions, and versions turned back into updates.

    updates of a keyed batch ──resolve──> insertions   versions that are alive at the end of the batch
                                          retractions  ends of versions that began before the batch
                                          history      versions that began and ended within it, with both times
    history ──updates_of──> its updates
            ──alive_at────> insertions of the versions that are alive at a time

A version is a row with the time of its insertion and, if it ended, the time of its retraction. A key has at most one
version at a time, so its updates alternate; whatever does not alternate is refused, never repaired.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from persist_core.errors import InvariantViolation
from persist_core.exact import exact_rows
from persist_core.schema import DIFF, ENDED, TIME


@dataclass(frozen=True)
class Versions:
    """Resolved updates, each table sorted by key. `history` has the column `ENDED` after the others."""

    insertions: pa.Table
    retractions: pa.Table
    history: pa.Table


def resolve(updates: pa.Table, keys: Sequence[str]) -> Versions:
    """Resolve the oks of neighboring keyed batches: their columns, time and diff; diffs are 1 or -1, in any order.

    Raises `InvariantViolation` if the updates of a key do not alternate.
    """
    order = [*((key, "ascending") for key in keys), (TIME, "ascending"), (DIFF, "ascending")]
    table = updates.sort_by(order).combine_chunks()
    if not len(table):
        return Versions(table, table, table.append_column(ENDED, table[TIME]))
    diffs, times = table[DIFF].combine_chunks(), table[TIME].combine_chunks()
    same_key = same_as_before(table.select(keys))  # row i has the key of row i - 1
    alternates = pc.or_(pc.invert(same_key), pc.equal(diffs, pc.negate(shifted(diffs, -1))))
    is_unit = pc.equal(pc.abs(diffs), 1)
    _check(table, pc.and_(alternates, is_unit), keys)
    inserted = pc.greater(diffs, 0)
    is_last = pc.invert(shifted(same_key, 1))
    ends_here = pc.and_(inserted, pc.invert(is_last))
    history = table.append_column(ENDED, shifted(times, 1)).filter(ends_here)
    below = pc.and_(pc.invert(inserted), pc.invert(same_key))
    return Versions(table.filter(pc.and_(inserted, is_last)), table.filter(below), history)


def updates_of(history: pa.Table) -> pa.Table:
    """Both updates of each version of `history`: its insertion and its retraction."""
    inserted = history.drop_columns([ENDED])
    retracted = _with(_with(inserted, TIME, history[ENDED]), DIFF, pa.repeat(pa.scalar(-1, pa.int64()), len(history)))
    return pa.concat_tables([inserted, retracted])


def alive_at(history: pa.Table, time: int) -> pa.Table:
    """The insertions of the versions of `history` that are alive at `time`."""
    is_alive = pc.and_(pc.less_equal(history[TIME], time), pc.greater(history[ENDED], time))
    return history.filter(is_alive).drop_columns([ENDED])


def negated(updates: pa.Table) -> pa.Table:
    return _with(updates, DIFF, pc.negate(updates[DIFF]))


def at_time(updates: pa.Table, time: int) -> pa.Table:
    return _with(updates, TIME, pa.repeat(pa.scalar(time, pa.int64()), len(updates)))


def not_before(updates: pa.Table, time: int) -> pa.Table:
    """The updates; those before `time` are at `time`."""
    return _with(updates, TIME, pc.max_element_wise(updates[TIME], pa.scalar(time, pa.int64())))


def sum_diffs(updates: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Consolidate by `columns`: diffs summed, zeros dropped; of the other columns the newest insertion's are kept."""
    if TIME not in columns:
        rank = pc.if_else(pc.greater(updates[DIFF], 0), 1, 0)
        ordered = updates.append_column("_persist_rank", rank)
        ordered = ordered.sort_by([("_persist_rank", "ascending"), (TIME, "ascending")]).drop_columns("_persist_rank")
    else:
        ordered = updates
    # Only row numbers are aggregated, so that any type of column is carried along by `take`.
    numbered = ordered.append_column("_persist_row", pa.array(range(len(ordered)), pa.int64()))
    grouped = numbered.group_by(list(columns), use_threads=False).aggregate([(DIFF, "sum"), ("_persist_row", "max")])
    kept = grouped.filter(pc.not_equal(grouped[f"{DIFF}_sum"], 0))
    return _with(ordered.take(kept["_persist_row_max"]), DIFF, kept[f"{DIFF}_sum"])


def fold_errs(errs: pa.Table, columns: Sequence[str], since: int) -> pa.Table:
    """The errs of a bottom batch without what no reader at or after `since` can tell apart.

    Of the updates of equal errs up to `since`, one is left: the newest insertion, with the sum of their diffs; none if
    they cancel out. If the sum is negative, which is a defect for fsck to report, they are left as they are.
    """
    is_old = pc.less_equal(errs[TIME], since)
    old, new = errs.filter(is_old), errs.filter(pc.invert(is_old))
    summed = sum_diffs(old, columns)
    if pc.any(pc.less(summed[DIFF], 0)).as_py():
        return errs
    return pa.concat_tables([summed.select(errs.column_names), new])


def _with(table: pa.Table, name: str, values: pa.Array | pa.ChunkedArray) -> pa.Table:
    return table.set_column(table.column_names.index(name), table.schema.field(name), values)


def shifted(values: pa.Array, by: int) -> pa.Array:
    """Each place holds its neighbor's value: `by` is 1 for the next, -1 for the one before. False or 0 at the end."""
    edge = pa.array([False if pa.types.is_boolean(values.type) else 0], values.type)
    pieces = [values.slice(1), edge] if by > 0 else [edge, values.slice(0, len(values) - 1)]
    return pa.concat_arrays(pieces)


def same_as_before(table: pa.Table) -> pa.Array:
    """For each row, whether it is equal to the row before it; False for the first. Null equals null; NaN equals NaN."""
    columns = [column.combine_chunks() for column in table.columns]
    same = [equal_or_null(column.slice(0, len(column) - 1), column.slice(1)) for column in columns]
    return pa.concat_arrays([pa.array([False]), functools.reduce(pc.and_, same)])


def equal_or_null(left: pa.Array, right: pa.Array) -> pa.Array:
    """True if both are equal, null, or NaN."""
    same = pc.equal(left, right)
    if pa.types.is_floating(left.type):
        same = pc.or_kleene(same, pc.and_(pc.is_nan(left), pc.is_nan(right)))
    both_null = pc.and_(pc.is_null(left), pc.is_null(right))
    return pc.or_(both_null, pc.fill_null(same, False))


def _check(table: pa.Table, holds: pa.Array, keys: Sequence[str]) -> None:
    if pc.all(holds).as_py():
        return
    row = pc.index(holds, False).as_py()
    names = [*keys, TIME, DIFF]
    before = list(exact_rows(table.slice(row - 1, 1).select(names))) if row else "nothing"
    found = list(exact_rows(table.slice(row, 1).select(names)))
    raise InvariantViolation(
        f"the updates of a key do not alternate between insertion and retraction: found {found}"
        f" after {before}. Run `persist fsck`"
    )
