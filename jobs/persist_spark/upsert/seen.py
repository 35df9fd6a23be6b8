"""What a shard in `sequence` order has seen before a batch: the order index, and what of it counts.

    order index ─┬─ entries of the batch's slots ───────────> rows of the chain (`INDEXED`)
                 └─ floor, the highest order forgotten ──> columns of the batch's records

The index is a chain of entries. A slot's newest entry, by time, says what the index knows of it:

    deleted   the slot is empty; this is the order of its tombstone
    raised    the slot holds a value, and an equal value came with this higher order
    in_row    the index knows nothing: older entries of the slot are void

and two kinds of entries belong to no slot: `floor`, the order of a truncate, and `forgotten`, the order of a tombstone
that is not remembered any more. Of both only the highest counts.

A tombstone is forgotten once it acted before `keep_deleted`, counted back from the upper, unless a record of its slot
is stashed. Its entry may stay in the chain until the next full state, so each reader of the chain leaves it out:

1. A `deleted` entry counts only if it is above the floor, and if it is younger than that, counted back from the batch's
   lower (which is the upper of the batch before), or its slot is in the stash before.
2. A forgotten entry could count again later if something else of its slot is written or stashed now. Then it is made
   void, and its order is written as a `forgotten` entry. A full state does the same with all of them.

So what is remembered does not depend on when full states are written. `forgotten` never decides what wins, only what is
counted as `late_beyond_memory`. The normal plan compares with the highest order that may be forgotten; if a record lies
below it, the thorough plan finds the exact one.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from persist_core.schema import (
    ACTED,
    BEATEN_BY,
    DELETED,
    ERR_KIND,
    FLOOR,
    FORGOTTEN,
    INDEX_KIND,
    MISSING_ORDER,
    PART,
    TIME,
    CollectionSchema,
)
from persist_core.shard.batch import LATE_OPERATOR, ORDER_INDEX_OPERATOR
from persist_spark.frame import BAD_KEY, DELETE, OP, ORDER, passed, quoted, user_fields
from persist_spark.upsert.counts import (
    AT,
    ENTERS,
    ERR,
    FINAL,
    FROM,
    INDEXED,
    LATE,
    LOSES,
    PHASE,
    SIDE,
    VALUE,
)
from persist_spark.upsert.lookup import of_slots
from persist_spark.upsert.rules import ENTRY, IS_OLD, TRUNCATED, UpsertRules

_NEVER = -1  # the time of entries: before all that a slot was and will be
_FLOOR_BEFORE, _FORGOTTEN, _MARKED = "_persist_floor_before", "_persist_forgotten", "_persist_marked"  # of the index
# A record without an order is not compared with those that have one.
IS_UNORDERED = f"coalesce({ERR}.{ERR_KIND} = '{MISSING_ORDER}', false)"


@dataclass(frozen=True)
class SeenBefore:
    """What a batch in `sequence` order reads besides its input, its stash and the committed updates.

    `index`: the chain of the order index as stored, in the columns of `index_type`; `None` if it has no state.
    `slots`: only the entries of these (key columns and `BAD_KEY`, to be broadcast) are needed; `None`: all, as for a
    full state. `late`: the late records as stored, if a full state of them is to be written.
    """

    index: DataFrame | None = None
    slots: DataFrame | None = None
    late: DataFrame | None = None


def index_type(schema: CollectionSchema, order: T.DataType) -> T.StructType:
    """The columns of the order index: the slot, its order, when it acted (ms), and an `IndexKind`."""
    keys = user_fields(CollectionSchema(schema.key))
    return T.StructType(
        [
            *keys,
            T.StructField(BAD_KEY, T.BinaryType()),
            T.StructField(ORDER, order),
            T.StructField(TIME, T.LongType()),
            T.StructField(INDEX_KIND, T.StringType()),
        ]
    )


def late_type(schema: CollectionSchema, order: T.DataType) -> T.StructType:
    """The columns of late records: the slot, what the record was, its own time, its order and the one that beat it, and
    the time (ms) in whose batch it was read."""
    keys = user_fields(CollectionSchema(schema.key))
    return T.StructType(
        [
            *keys,
            T.StructField(BAD_KEY, T.BinaryType()),
            T.StructField(OP, T.StringType()),
            T.StructField(TIME, T.LongType()),
            T.StructField(ORDER, order),
            T.StructField(BEATEN_BY, order),
            T.StructField(ACTED, T.LongType()),
        ]
    )


def remembered(arrivals: DataFrame, seen: SeenBefore, stash: DataFrame | None, rules: UpsertRules) -> DataFrame:
    """Arrivals with what the order index says of their orders, and the entries of their slots as rows of the chain.

    `stash`: that of the batch, consolidated or not.
    """
    order_type = arrivals.schema[ORDER].dataType.simpleString()
    if seen.index is None:
        return arrivals.selectExpr(
            "*",
            f"CAST(NULL AS {_entry_type(order_type)}) AS {ENTRY}",
            f"CAST(NULL AS {order_type}) AS {TRUNCATED}",
            f"false AS {IS_OLD}",
        )
    memory = F.broadcast(_memory(seen.index, stash, rules))
    highest = f"{_FLOOR_BEFORE}.{ORDER}"
    marked = arrivals.crossJoin(memory).selectExpr(
        *[name for name in rules.chain if name not in (ENTRY, TRUNCATED, IS_OLD)],
        f"CAST(NULL AS {_entry_type(order_type)}) AS {ENTRY}",
        f"CASE WHEN {ORDER} < {highest} AND NOT {IS_UNORDERED} THEN {highest} END AS {TRUNCATED}",
        f"coalesce({ORDER} < {_FORGOTTEN} AND NOT {IS_UNORDERED}, false) AS {IS_OLD}",
    )
    known = seen.index.where(f"{INDEX_KIND} NOT IN ('{FLOOR}', '{FORGOTTEN}')")
    known = of_slots(known, rules.schema, seen.slots, has_bad_keys=True)
    is_covered = f"{INDEX_KIND} = '{DELETED}' AND coalesce({ORDER} <= {highest}, false)"
    entries = known.crossJoin(memory).where(f"NOT ({is_covered})").selectExpr(*_as_entries(marked, rules))
    return marked.union(entries)


def _entry_type(order_type: str) -> str:
    return f"STRUCT<kind: STRING, acted: BIGINT, rank: {order_type}, is_old: BOOLEAN>"


def _is_old(rules: UpsertRules) -> str:
    """SQL: an entry of the index is a tombstone that is forgotten, unless a record of its slot is stashed."""
    before = rules.sequence.forgets_before if rules.sequence else None
    if before is None:
        return "false"
    return f"({INDEX_KIND} = '{DELETED}' AND {TIME} < {passed(before)[0]})"


def _memory(index: DataFrame, stash: DataFrame | None, rules: UpsertRules) -> DataFrame:
    """One row: the floor (order and time), the highest order forgotten, and of that what is marked as such (order and
    time). In the normal plan the second may be too high: of a tombstone that is void, or remembered for the stash."""
    index = index.selectExpr("*", f"{_is_old(rules)} AS {IS_OLD}")
    marked = f"{INDEX_KIND} = '{FORGOTTEN}'"
    found = index.selectExpr(
        f"max(CASE WHEN {INDEX_KIND} = '{FLOOR}' THEN struct({ORDER}, {TIME}) END) AS {_FLOOR_BEFORE}",
        f"max(CASE WHEN {marked} OR {IS_OLD} THEN {ORDER} END) AS {_FORGOTTEN}",
        f"max(CASE WHEN {marked} THEN struct({ORDER}, {TIME}) END) AS {_MARKED}",
    )
    if not rules.is_thorough:
        return found
    names = [f"{name}" for name in rules.key_columns]
    slots = index.where(f"NOT ({marked}) AND {INDEX_KIND} != '{FLOOR}'")
    newest = (
        slots.selectExpr(*names, BAD_KEY, TIME, ORDER, IS_OLD)
        .groupBy(*rules.slot)
        .agg(F.expr(f"max(struct({TIME}, {IS_OLD}, {ORDER})) AS newest"))
        .where(f"newest.{IS_OLD}")
    )
    if stash is not None:
        awaited = stash.selectExpr(*[f"{name} AS _persist_slot{i}" for i, name in enumerate(rules.slot)])
        same = " AND ".join(f"{name} <=> _persist_slot{i}" for i, name in enumerate(rules.slot))
        newest = newest.join(awaited, F.expr(same), "left_anti")
    exact = newest.agg(F.expr(f"max(newest.{ORDER}) AS _persist_exact"))
    marked_order = f"{_MARKED}.{ORDER}"
    return found.crossJoin(exact).selectExpr(
        _FLOOR_BEFORE, f"greatest({marked_order}, _persist_exact) AS {_FORGOTTEN}", _MARKED
    )


def _as_entries(chain: DataFrame, rules: UpsertRules) -> list[str]:
    """Columns that make rows of the chain from rows of the index."""
    given = {
        TIME: f"{_NEVER}L",
        AT: TIME,
        FROM: str(INDEXED),
        PHASE: str(FINAL),
        LATE: "false",
        OP: f"'{DELETE}'",
        ENTRY: f"struct({INDEX_KIND} AS kind, {TIME} AS acted, {ORDER} AS rank, {_is_old(rules)} AS is_old)",
        IS_OLD: "false",
    }
    types = {name: chain.schema[name].dataType.simpleString() for name in (ORDER, VALUE, ERR, TRUNCATED)}
    given |= {name: f"CAST(NULL AS {found})" for name, found in types.items()}
    others = [f"{given.get(name, name)} AS {name}" for name in rules.chain if name not in rules.keys]
    return [*rules.key_columns, *others]


def with_full_state(changes: DataFrame, seen: SeenBefore, rules: UpsertRules) -> DataFrame:
    """Add what full states have from the batches before, besides entries of slots: floor, forgotten, late records."""
    order = rules.sequence
    if order is None:
        return changes
    added = []
    if seen.index is not None and not order.is_index_delta:
        memory = _memory(seen.index, None, replace(rules, is_thorough=False))
        kinds = {_FLOOR_BEFORE: FLOOR, _MARKED: FORGOTTEN}
        rows = ", ".join(f"named_struct('kind', '{kind}', 'entry', {name})" for name, kind in kinds.items())
        entries = memory.selectExpr(f"explode(array({rows})) AS added").where("added.entry IS NOT NULL")
        given = {TIME: f"added.entry.{TIME}", ORDER: f"added.entry.{ORDER}", INDEX_KIND: "added.kind"}
        added.append(_as_changes(entries, changes, given | {SIDE: str(ENTERS), PART: f"'{ORDER_INDEX_OPERATOR}'"}))
    if seen.late is not None and not order.is_late_delta:
        before = order.forgets_before
        late = seen.late if before is None else seen.late.where(f"{ACTED} >= {passed(before)[0]}")
        given = dict(zip(rules.keys, [quoted(column.name) for column in rules.schema.key], strict=True))
        given |= {name: name for name in (TIME, OP, ORDER, BAD_KEY, BEATEN_BY, ACTED)}
        added.append(_as_changes(late, changes, given | {SIDE: str(LOSES), PART: f"'{LATE_OPERATOR}'"}))
    return functools.reduce(DataFrame.union, added, changes)


def _as_changes(rows: DataFrame, changes: DataFrame, given: Mapping[str, str]) -> DataFrame:
    """Rows of state in the columns of `changes`."""
    cells = [
        f"{given.get(field.name, f'CAST(NULL AS {field.dataType.simpleString()})')} AS {field.name}"
        for field in changes.schema.fields
    ]
    return rows.selectExpr(*cells)
