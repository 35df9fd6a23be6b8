"""The memory of a shard in `sequence` order of what it has seen before a batch: the order index, and what of it counts.

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

So what is remembered does not depend on when full states are written. If `keep_deleted` is raised, what was forgotten
and not yet rewritten counts again: of a slot of which nothing came since, so the highest order ever seen still wins.
`forgotten` never decides what wins, only what is
counted as `late_beyond_memory`. The normal plan compares with the highest order that may be forgotten; if a record lies
below it, the thorough plan finds the exact one.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from persist_core.schema import ACTED, BEATEN_BY, FLOOR, FORGOTTEN, INDEX_KIND, TIME, CollectionSchema
from persist_spark.frame import BAD_KEY, OP, ORDER, inherited_fields, passed, struct_of, user_fields
from persist_spark.order_memory import Order
from persist_spark.upsert.arguments import Arguments, SeenBefore
from persist_spark.upsert.eras import incomparable
from persist_spark.upsert.lookup import of_slots
from persist_spark.upsert.sequence import IS_UNORDERED

_OF_SLOTS = f"{INDEX_KIND} NOT IN ('{FLOOR}', '{FORGOTTEN}')"


def index_type(schema: CollectionSchema, order: T.DataType) -> T.StructType:
    """The columns of the order index: the slot, its order, when it acted (ms), and an `IndexKind`."""
    return _of_slots(schema, {ORDER: order, TIME: T.LongType(), INDEX_KIND: T.StringType()})


def late_type(schema: CollectionSchema, order: T.DataType) -> T.StructType:
    """The columns of late records: the slot, what the record was, its own time, its order and the one that beat it, and
    the time (ms) in whose batch it was read."""
    own = {OP: T.StringType(), TIME: T.LongType(), ORDER: order}
    return _of_slots(schema, {**own, BEATEN_BY: order, ACTED: T.LongType()})


def _of_slots(schema: CollectionSchema, cells: Mapping[str, T.DataType]) -> T.StructType:
    keys = user_fields(CollectionSchema(schema.key))
    return T.StructType([*keys, *struct_of({BAD_KEY: T.BinaryType(), **cells}), *inherited_fields(schema)])


def remembered(arrivals: DataFrame, seen: SeenBefore, stash: DataFrame | None, arguments: Arguments) -> DataFrame:
    """Arrivals with what the order index says of their orders, and the entries of their slots as rows of the chain.

    `stash`: the batch's, consolidated or not.
    """
    order = arrivals.schema["ord"].dataType
    assert isinstance(order, T.StructType)
    entry = {"kind": "STRING", "acted": "BIGINT", "ord": order.simpleString(), "is_old": "BOOLEAN"}
    for field in inherited_fields(arguments.schema) if arguments.inherits else ():
        entry["inherited"] = field.dataType.simpleString()
    given = {
        "entry": f"CAST(NULL AS STRUCT<{', '.join(f'{name}: {kind}' for name, kind in entry.items())}>)",
        "truncated_by": f"CAST(NULL AS {order.simpleString()})",
        "is_beyond": "false",
    }
    floor = None if seen.memory.floor is None else literal(seen.memory.floor[0], order)
    if floor is not None:
        arrivals = arrivals.withColumn("floor_before", floor)
        below = "ord < floor_before"
        if arguments.eras:
            below = f"({below} OR {incomparable('ord', 'floor_before')})"
        given["truncated_by"] = f"CASE WHEN {below} AND NOT {IS_UNORDERED} THEN floor_before END"
    if seen.memory.forgotten is not None:
        arrivals = _with_forgotten(arrivals, seen, stash, order, arguments)
        given["is_beyond"] = f"coalesce(ord < forgotten AND NOT {IS_UNORDERED}, false)"
    marked = arrivals.selectExpr(*[f"{given.get(name, name)} AS {name}" for name in arguments.columns])
    if seen.index is None:
        return marked
    known = of_slots(seen.index.where(_OF_SLOTS), arguments.schema, seen.slots, has_bad_keys=seen.memory.has_bad_keys)
    entries = _entries(known, arguments)
    if floor is not None:
        entries = entries.withColumn("floor_before", floor)
        entries = entries.where("NOT (kind = 'deleted' AND coalesce(ord <= floor_before, false))")
    return marked.union(entries.selectExpr(*_as_rows(marked, arguments)))


def _with_forgotten(
    arrivals: DataFrame, seen: SeenBefore, stash: DataFrame | None, order: T.StructType, arguments: Arguments
) -> DataFrame:
    """Arrivals with the highest order forgotten, which the thorough plan finds exactly."""
    if seen.index is None or not arguments.is_thorough:
        return arrivals.withColumn("forgotten", literal(seen.memory.forgotten, order))
    marked = literal(seen.memory.marked[0] if seen.memory.marked else None, order)
    old = _forgotten_of_slots(_entries(seen.index.where(_OF_SLOTS), arguments), stash, arguments)
    return arrivals.crossJoin(F.broadcast(old.select(F.greatest(marked, F.col("ord")).alias("forgotten"))))


def literal(order: Order | None, order_type: T.StructType) -> Column:
    """One order as a literal. Spark passes a struct to the code that it generates: each batch runs the same code.

    Dates and times are given as texts: PySpark's own literals are wrong, or fail, before the Gregorian calendar.
    """
    if order is None:
        return F.lit(None).cast(order_type)
    given = zip(order, order_type.fields, strict=True)
    return F.struct(*[F.lit(value).cast(field.dataType.simpleString()).alias(field.name) for value, field in given])


def _entries(index: DataFrame, arguments: Arguments) -> DataFrame:
    """Rows of the index under plain names. `is_old`: a tombstone that is forgotten, unless a record of its slot is
    stashed."""
    before = arguments.seen.forgets_before if arguments.seen else None
    is_old = "false" if before is None else f"{INDEX_KIND} = 'deleted' AND {TIME} < {passed(before)[0]}"
    named = [f"{BAD_KEY} AS bad_key", f"{INDEX_KIND} AS kind", f"{TIME} AS acted", f"{arguments.placed(ORDER)} AS ord"]
    inherited = arguments.inherited(arguments.placed_inherited)
    return index.selectExpr(*arguments.key_columns, *named, f"{is_old} AS is_old", *inherited)


def _forgotten_of_slots(entries: DataFrame, stash: DataFrame | None, arguments: Arguments) -> DataFrame:
    """One row: the highest order `ord` of a tombstone that is forgotten, though no entry marks it as such (or null)."""
    newest = F.expr("max(struct(acted, is_old, ord)) AS newest")
    old = entries.groupBy(*arguments.slot).agg(newest).where("newest.is_old")
    if stash is not None:
        awaited = stash.selectExpr(*[f"{name} AS waiting{i}" for i, name in enumerate(arguments.slot)])
        same = " AND ".join(f"{name} <=> waiting{i}" for i, name in enumerate(arguments.slot))
        old = old.join(awaited, F.expr(same), "left_anti")
    return old.agg(F.expr("max(newest.ord) AS ord"))


def _as_rows(chain: DataFrame, arguments: Arguments) -> list[str]:
    """Columns that make rows of the chain from entries: before all that their slots hold, in the order of `acted`."""
    given = {
        "time": f"acted - {(1 << 63) - 1}L",  # not the least bigint: a window subtracts 1
        **dict.fromkeys(("is_due", "waits", "is_late", "stashed", "expanded"), "false"),
        "op": "ascii('d')",
        "entry": f"struct(kind, acted, ord, is_old{', inherited' if arguments.inherits else ''})",
        "is_beyond": "false",
    }
    inherited = [name for name in ("inherited", "marks") if name in arguments.columns]
    empty = ("own_time", "diff", "ord", "value", "err", "truncated_by", *inherited)
    given |= {name: f"CAST(NULL AS {chain.schema[name].dataType.simpleString()})" for name in empty}
    return [f"{given.get(name, name)} AS {name}" for name in arguments.columns]
