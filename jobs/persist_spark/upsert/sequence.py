"""`sequence` order in the plan of an upsert: the highest order ever seen for a slot wins (docs/semantics.md, part 4).

    records, stash ──┐ below the floor? below what is forgotten?                            ┌─> updates, as in `plan`
    order index ─────┼───────────────> one exchange by slot ──> beaten by the highest       ├─> order index
    state, orders ───┘                                          order seen before? ─────────┴─> late records

What a slot has seen is the highest of: the order of its row, its newest entry in the order index, and, within the
batch, the records at earlier times. A record below that, or below the floor, is beaten: it changes nothing.

Precedence is compared as structs: `o`, the order, and, in the thorough plan, `c`, the canonical bytes of the value,
null for a tombstone.

The order index is a chain of entries. A slot's newest entry, by time, says what the index knows of it:

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
`forgotten` never decides what wins, only what is counted as `late_beyond_memory`. The normal plan compares with the
highest order that may be forgotten; if a record lies below it, the thorough plan finds the exact one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from persist_core.schema import ACTED, BEATEN_BY, FLOOR, FORGOTTEN, INDEX_KIND, TIME, UNORDERED, CollectionSchema
from persist_spark.frame import BAD_KEY, OP, ORDER, inherited_fields, passed, struct_of, user_fields
from persist_spark.order_memory import Order
from persist_spark.upsert import inherited
from persist_spark.upsert.arguments import ACTS, Arguments, SeenBefore
from persist_spark.upsert.eras import incomparable
from persist_spark.upsert.lookup import of_slots

ACCEPTED = f"({ACTS} AND NOT is_beaten)"
ACCEPTED_OR_COMMITTED = f"diff IS NOT NULL OR {ACCEPTED}"
# A record without an order is not compared with records that have one, nor is a file that was not read; and no truncate
# removes its err.
IS_UNORDERED = f"coalesce(err.kind IN {UNORDERED}, false)"
# A record that waits comes after all that the batch does to its slot. If it does anything, that settles the slot.
SETTLES = "IF(waits, NOT coalesce(before.is_new, false), is_newest) AS settles"
_OF_SLOTS = f"{INDEX_KIND} NOT IN ('{FLOOR}', '{FORGOTTEN}')"
_OF_REGISTERS = ("committed", "is_awaited", "lacks")
# Of a committed row: what an equal value that came after it has brought, or what is stored with it. An entry may be
# older than the row's end: entries of tombstones below the floor are left out.
_HAS_RAISED = "coalesce(diff > 0 AND known.kind = 'raised', false)"
_ORDER = f"IF({_HAS_RAISED}, known.ord, ord)"
_ENTRIES = f"IF({_HAS_RAISED}, known.inherited, inherited)"


def is_newest(window: str, acts: str = ACCEPTED) -> str:
    """SQL: no record after the row in the window is accepted, or `gives`."""
    return f"lead(CASE WHEN {acts} THEN true END) IGNORE NULLS {window} IS NULL AS is_newest"


def given(winners: DataFrame, window: str, arguments: Arguments) -> DataFrame:
    """The winners with what their slot held before them, where columns inherit (`_registered`)."""
    after = """named_struct('holds', holds, 'value', value, 'err', err, 'ord', CASE WHEN diff IS NOT NULL THEN ord END,
        'inherited', CASE WHEN diff IS NOT NULL THEN stored END, 'is_new', diff IS NULL)"""
    before = arguments.latest(after, window, where=f"gives OR {ACCEPTED_OR_COMMITTED}")
    return winners.selectExpr("*", f"{before} AS before", is_newest(window, f"gives OR {ACCEPTED}"))


def expanded(both: DataFrame, arguments: Arguments) -> DataFrame:
    """The chain with only those expanded truncates that end a value in their slot, and each row with the floor at its
    time."""
    window = f"{arguments.over('time')[:-1]} RANGE BETWEEN UNBOUNDED PRECEDING AND"
    counts = f"CASE WHEN {ACTS} AND truncated_by IS NULL THEN {_precedence(arguments)} END"
    found = both.selectExpr(
        *[*arguments.columns, "canonical", *_known_of_slot(arguments)],
        f"max({counts}) {window} 1 PRECEDING) AS highest",
        f"max(CASE WHEN expanded THEN ord END) {window} CURRENT ROW) AS floor_now",
    )
    found = inherited.with_raised(found, arguments)
    newest = f"greatest({_seen(arguments)}, highest)"
    tombstone = _precedence(arguments, canonical="CAST(NULL AS BINARY)")
    ends = f"{newest} < {tombstone}"
    if arguments.inherits:  # or a value that the slot's row has inherited
        found, cuts = inherited.with_cuts(found, arguments, counts, window)
        ends = f"({ends} OR {cuts})"
    ends = f"truncated_by IS NULL AND {newest}.c IS NOT NULL AND {ends}"
    below = "ord < floor_now"
    if arguments.eras:  # the question that a batch with one of these ends with: `judged`
        ends = f"coalesce({ends}, false) OR coalesce({incomparable('ord', f'{newest}.o')}, false)"
        below = f"({below} OR {incomparable('ord', 'floor_now')})"
    floor = f"""CASE WHEN NOT expanded THEN
        greatest(truncated_by, CASE WHEN {below} THEN floor_now END) END AS truncated_by"""
    cells = [floor if name == "truncated_by" else name for name in arguments.columns]
    return found.where(f"NOT expanded OR ({ends})").selectExpr(*cells, "canonical")


def _precedence(arguments: Arguments, order: str = "ord", canonical: str = "canonical") -> str:
    """SQL: what decides between two records of a slot."""
    return f"named_struct('o', {order}, 'c', {canonical})" if arguments.is_thorough else f"named_struct('o', {order})"


def _known_of_slot(arguments: Arguments) -> list[str]:
    """The shard's knowledge of the slot: columns over the rows of the chain in their order.

    `known`: the newest entry of the index. `committed`: the newest committed update. `is_awaited`: a record of the slot
    was stashed before this batch.
    """
    before = arguments.so_far(arguments.by_rank)
    more = ""
    if arguments.inherits:
        more = ", 'value', value, 'inherited', inherited, 'is_err', err IS NOT NULL"
    update = f"CASE WHEN diff IS NOT NULL THEN named_struct('holds', diff > 0, 'p', {_precedence(arguments)}{more}) END"
    awaited = f"coalesce(max(stashed) {arguments.whole(arguments.by_rank)}, false)"
    return [
        f"last(entry, true) {before} AS known",
        f"last({update}, true) {before} AS committed",
        f"{awaited if arguments.may_stash else 'false'} AS is_awaited",
    ]


def _seen(arguments: Arguments) -> str:
    """SQL: the order that the shard has seen of the slot, or null."""
    canonical = "committed.p.c"
    if arguments.inherits and arguments.is_thorough:
        canonical = inherited.CANONICAL_NOW
    raised = _precedence(arguments, "known.ord", canonical)
    deleted = _precedence(arguments, "known.ord", "CAST(NULL AS BINARY)")
    return f"""CASE
        WHEN committed.holds THEN greatest(committed.p, CASE WHEN known.kind = 'raised' THEN {raised} END)
        WHEN {inherited.REMEMBERED} THEN {deleted} END"""


def judged(chain: DataFrame, marks: Sequence[str], arguments: Arguments) -> DataFrame:
    """The chain with `marks`, and of winners what `rules` knows of them but for their value before.

    Spark evaluates each frame of a window in a pass of its own: all that looks back has one.
    """
    before = arguments.so_far(arguments.by_rank)
    own = _precedence(arguments)
    above = f"CASE WHEN {ACTS} AND truncated_by IS NULL THEN time END"
    lacks = "inherited IS NOT NULL OR entry.inherited IS NOT NULL"  # in the other slots there is nothing to compute
    known = chain.selectExpr(
        "*",
        *marks,
        *_known_of_slot(arguments),
        f"max(CASE WHEN is_due THEN {own} END) {before} AS highest",  # truncates have a slot of their own
        f"coalesce(min({above}) {before}, {above}) AS first_time",  # of a record at or above the floor
        *([f"max(CASE WHEN waits THEN struct(time, ord) END) {before} AS waiting"] if arguments.eras else []),
        *([f"max({lacks}) {arguments.whole(arguments.by_rank)} AS lacks"] if arguments.inherits else []),
    )
    seen = _seen(arguments)
    compared = inherited.with_raised(known, arguments).selectExpr(
        "*", f"{seen} AS seen", f"greatest({seen}, highest) AS higher", f"wins AND {ACTS} AS is_judged"
    )
    is_equal = "higher.o <=> ord AND truncated_by IS NULL"
    is_below = f"(truncated_by IS NOT NULL OR coalesce({own} < higher, false))"
    # Without canonical bytes, an equal order may be the same record again: the thorough plan finds out.
    tied_before = f"is_judged AND {is_equal}" + (f" AND {is_below}" if arguments.is_thorough else "")
    rivals = " ".join(f"WHEN {incomparable('ord', name)} THEN {name}" for name in ("truncated_by", "higher.o"))
    of_time = f"waiting.time = time AND {incomparable('ord', 'waiting.ord')}"
    rival = f"""CASE WHEN waits AND {of_time} THEN waiting.ord
        WHEN own_time IS NULL OR NOT is_due THEN NULL {rivals} END AS rival"""
    beyond = f"is_judged AND NOT {is_below} AND seen IS NULL AND first_time = time AND is_beyond"
    found = compared.selectExpr(
        *[name for name in arguments.columns if name != "is_beyond"],
        *["wins", "is_tied", "is_broken", "known"],
        "known.is_old AND NOT is_awaited AS is_forgotten",
        f"is_judged AND {is_below} AS is_beaten",
        f"{tied_before} AS is_tied_before",
        f"{beyond} AS is_beyond",
        f"IF(is_judged AND {is_below} AND NOT ({is_equal}), greatest(higher.o, truncated_by), NULL) AS beaten_by",
        *([rival] if arguments.eras else []),
        *(_OF_REGISTERS if arguments.inherits else []),
        *(["canonical"] if arguments.inherits and arguments.is_thorough else []),
    )
    return _registered(found, arguments) if arguments.inherits else found


def _registered(found: DataFrame, arguments: Arguments) -> DataFrame:
    """The rows, whole or errs, and what their slot holds after them: `holds`, by the order `row_ord`.

    A beaten record may give a value to the row of its slot: the row of the last record that was accepted (`holder`), as
    it came. If that has inherited, the record `gives`, and `value`, `err` and `inherited` are the row's: so what it
    leaves there settles the slot, even if it brings nothing new.
    """
    window = arguments.by_rank
    registers = inherited.registers_of(arguments, window, where="lacks")
    held = f"named_struct('value', value, 'ord', {_ORDER}, 'inherited', {_ENTRIES})"
    acted = f"lacks AND wins AND time >= 0 AND ({ACCEPTED_OR_COMMITTED})"
    rows = found.selectExpr(
        *[name for name in found.columns if name not in (*_OF_REGISTERS, "canonical")],
        f"{arguments.latest(held, window, where=acted)} AS holder",
        *[f"{sql} AS {name}" for name, sql in registers.items()],
    )
    gives = f"own_time IS NOT NULL AND wins AND {ACTS} AND is_beaten AND holder.inherited IS NOT NULL"
    changed = {
        "value": "IF(gives, holder.value, value)",
        "err": "IF(gives, NULL, err)",
        "inherited": f"IF(gives, holder.inherited, {_ENTRIES})",
    }
    rows = rows.selectExpr("*", f"coalesce({gives}, false) AS gives").selectExpr(
        *[f"{changed.get(name, name)} AS {name}" for name in rows.columns if name != "holder"],
        f"IF(gives, holder.ord, {_ORDER}) AS row_ord",
        "gives OR op = ascii('u') AS holds",
        *["gives", "inherited AS stored"],
    )
    return inherited.with_registers(rows, arguments, f"(gives OR own_time IS NOT NULL AND wins AND {ACCEPTED})")


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
