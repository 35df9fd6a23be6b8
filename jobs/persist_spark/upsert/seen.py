"""What a shard in `sequence` order has seen before a batch: the order index, and what of it counts.

    order index ─┬─ entries of the batch's slots ─────────────────────> rows of the chain (`INDEXED`)
                 └─ floor, the highest order forgotten: `memory` ──> columns of the batch's records

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

from dataclasses import dataclass
from datetime import date

from pyspark.sql import Column, DataFrame
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
    TIME,
    CollectionSchema,
)
from persist_spark.frame import BAD_KEY, DELETE, OP, ORDER, passed, user_fields
from persist_spark.order_memory import NOTHING, Memory, Order
from persist_spark.upsert.counts import (
    AT,
    ERR,
    FINAL,
    FROM,
    INDEXED,
    LATE,
    PHASE,
    VALUE,
)
from persist_spark.upsert.lookup import of_slots
from persist_spark.upsert.rules import ENTRY, IS_OLD, TRUNCATED, UpsertRules

_NEVER = -1  # the time of entries: before all that a slot was and will be
_FLOOR_BEFORE, _FORGOTTEN = "_persist_floor_before", "_persist_forgotten"  # of the index
# A record without an order is not compared with those that have one.
IS_UNORDERED = f"coalesce({ERR}.{ERR_KIND} = '{MISSING_ORDER}', false)"


@dataclass(frozen=True)
class SeenBefore:
    """What a batch in `sequence` order reads besides its input, its stash and the committed updates.

    `index`: the chain of the order index as stored, in the columns of `index_type`; `None` if it has no state.
    `memory`: what of it belongs to no slot.
    `slots`: only the entries of these (key columns and `BAD_KEY`, to be broadcast) are needed; `None`: all.
    """

    index: DataFrame | None = None
    memory: Memory = NOTHING
    slots: DataFrame | None = None


def index_type(schema: CollectionSchema, order: T.DataType) -> T.StructType:
    """The columns of the order index: the slot, its order, when it acted (ms), and an `IndexKind`."""
    keys = user_fields(CollectionSchema(schema.key))
    return T.StructType([*keys, T.StructField(BAD_KEY, T.BinaryType()), *_entry_fields(order)])


def _entry_fields(order: T.DataType) -> list[T.StructField]:
    """The columns of entries that belong to no slot."""
    return [
        T.StructField(ORDER, order),
        T.StructField(TIME, T.LongType()),
        T.StructField(INDEX_KIND, T.StringType()),
    ]


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
    order_type = _order_of(arrivals)
    marked = _with_memory(arrivals, seen, stash, rules).selectExpr(
        *[name for name in rules.chain if name not in (ENTRY, TRUNCATED, IS_OLD)],
        f"CAST(NULL AS {_entry_type(order_type.simpleString())}) AS {ENTRY}",
        f"CASE WHEN {ORDER} < {_FLOOR_BEFORE} AND NOT {IS_UNORDERED} THEN {_FLOOR_BEFORE} END AS {TRUNCATED}",
        f"coalesce({ORDER} < {_FORGOTTEN} AND NOT {IS_UNORDERED}, false) AS {IS_OLD}",
    )
    if seen.index is None:
        return marked
    known = seen.index.where(f"{INDEX_KIND} NOT IN ('{FLOOR}', '{FORGOTTEN}')")
    known = of_slots(known, rules.schema, seen.slots, has_bad_keys=seen.memory.has_bad_keys)
    if seen.memory.floor is not None:
        known = known.withColumn(_FLOOR_BEFORE, literal(seen.memory.floor[0], order_type))
        known = known.where(f"NOT ({INDEX_KIND} = '{DELETED}' AND coalesce({ORDER} <= {_FLOOR_BEFORE}, false))")
    return marked.union(known.selectExpr(*_as_entries(marked, rules)))


def _with_memory(arrivals: DataFrame, seen: SeenBefore, stash: DataFrame | None, rules: UpsertRules) -> DataFrame:
    """Arrivals with the floor and the highest order forgotten, which the thorough plan finds exactly."""
    order, memory = _order_of(arrivals), seen.memory
    floor = literal(memory.floor[0] if memory.floor else None, order)
    if seen.index is None or not rules.is_thorough:
        return arrivals.withColumns({_FLOOR_BEFORE: floor, _FORGOTTEN: literal(memory.forgotten, order)})
    marked = literal(memory.marked[0] if memory.marked else None, order)
    exact = _forgotten_of_slots(seen.index, stash, rules).select(F.greatest(marked, F.col(ORDER)).alias(_FORGOTTEN))
    return arrivals.withColumn(_FLOOR_BEFORE, floor).crossJoin(F.broadcast(exact))


def _order_of(rows: DataFrame) -> T.StructType:
    found = rows.schema[ORDER].dataType
    assert isinstance(found, T.StructType)
    return found


def literal(order: Order | None, order_type: T.StructType) -> Column:
    """One order as a literal. Spark passes a struct to the code that it generates: each batch runs the same code.

    Dates and times are given as texts: PySpark's own literals are wrong, or fail, before the Gregorian calendar.
    """
    if order is None:
        return F.lit(None).cast(order_type)
    values = [value.isoformat() if isinstance(value, date) else value for value in order]
    given = zip(values, order_type.fields, strict=True)
    return F.struct(*[F.lit(value).cast(field.dataType).alias(field.name) for value, field in given])


def _entry_type(order_type: str) -> str:
    return f"STRUCT<kind: STRING, acted: BIGINT, rank: {order_type}, is_old: BOOLEAN>"


def _is_old(rules: UpsertRules) -> str:
    """SQL: an entry of the index is a tombstone that is forgotten, unless a record of its slot is stashed."""
    before = rules.sequence.forgets_before if rules.sequence else None
    if before is None:
        return "false"
    return f"({INDEX_KIND} = '{DELETED}' AND {TIME} < {passed(before)[0]})"


def _forgotten_of_slots(index: DataFrame, stash: DataFrame | None, rules: UpsertRules) -> DataFrame:
    """One row: the highest order of a tombstone that is forgotten, though no entry marks it as such (or null)."""
    newest = (
        index.where(f"{INDEX_KIND} NOT IN ('{FORGOTTEN}', '{FLOOR}')")
        .selectExpr(*rules.key_columns, BAD_KEY, TIME, ORDER, f"{_is_old(rules)} AS {IS_OLD}")
        .groupBy(*rules.slot)
        .agg(F.expr(f"max(struct({TIME}, {IS_OLD}, {ORDER})) AS newest"))
        .where(f"newest.{IS_OLD}")
    )
    if stash is not None:
        awaited = stash.selectExpr(*[f"{name} AS _persist_slot{i}" for i, name in enumerate(rules.slot)])
        same = " AND ".join(f"{name} <=> _persist_slot{i}" for i, name in enumerate(rules.slot))
        newest = newest.join(awaited, F.expr(same), "left_anti")
    return newest.agg(F.expr(f"max(newest.{ORDER}) AS {ORDER}"))


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
