"""`persistent_upsert`: records become differential updates (SEMANTICS, section 4), as one DataFrame expression.

    records ──┐ times, lateness                             keep the last         where a value differs from the
    stash   ──┼───────────────> one exchange by slot, sorted ───────────> winners ───────────────────────> updates
    state   ──┘                 by (time, original time, order)  of a time            one before it
                                                 │ observed: `outcome.Read`           │ observed: `outcome.Emitted`

The trick that keeps this to a single exchange and a single sort: what is committed is a history of the same shape as
the input. A committed insertion is an upsert at its time, a committed retraction a tombstone; so the previous value of
a record is the row before it in its slot, whether that row comes from the shard or from the same batch.

Invariants a reader may rely on:

1. Nothing here starts a Spark job, knows a session or a location, or calls a Python function per row.
2. Every count is observed after the exchange, in the stage that writes: task retries can't count a row twice.
3. The normal plan neither expands truncates nor breaks ties of equal orders; it counts them. Where either count is not
   zero its output must be thrown away and `thorough=True` asked for (`Outcome.needs_thorough_plan`).
"""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass, replace
from typing import Literal

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, Observation, Window
from pyspark.sql import functions as F
from pyspark.sql.window import WindowSpec

from persist_core.batch import STASH_KIND, PartKind
from persist_core.errors import BadBounds
from persist_core.schema import DIFF, ERR_KEY, ERR_KIND, ERR_MESSAGE, ERR_PAYLOAD, PART, TIME, CollectionSchema
from persist_spark import outcome
from persist_spark.frame import (
    BAD_KEY,
    DELETE,
    ERR_COLUMNS,
    OP,
    ORDER,
    SKIP,
    TRUNCATE,
    UPSERT,
    canonical_json,
    canonical_key,
    err_null,
    named,
    null_of,
)

LATE_TIME = "late_time"  # the err kind of a record before `lower`, where the collection wants an err
Late = Literal["lift", "error", "persisted"]

# Columns that live only between the steps below. User columns are k0.., v0.. meanwhile, so that no name can clash.
AT = "_persist_at"  # bigint: the original time, for records; the diff, for committed updates (see `_history`)
FROM = "_persist_from"  # int: where a row comes from, one of the four below
COMMITTED, STASHED, ARRIVED, EXPANDED = 0, 1, 2, 3
WINS = "_persist_wins"
TIED = "_persist_tied"
BROKEN = "_persist_broken"
HAD = "_persist_had"  # whether the slot held a value just before
HOLDS = "_persist_holds"  # whether the row itself leaves a value in the slot
SIDE = "_persist_side"  # int: -1 the value before goes, 1 the row's value comes, 0 to be stashed, 2 nothing changes
_KEPT = 2
_CANONICAL = "_persist_canonical"
_NEVER = -1  # the time of rows that are only counted
_SKIP_SLOTS = 64  # control records have no key; spread, so that they don't all land in one task


@dataclass(frozen=True)
class Drained:
    """What `persistent_upsert` returns. `updates` is for exactly one action; then ask for `outcome()`.

    `updates` has the user's columns, time, diff, the err columns, the stash's `OP`, `ORDER` and `BAD_KEY`, and `PART`
    (`insertions`, `retractions`, `errs`, `stash`). `broken` is to be run only where `outcome().read.broken` is not
    zero: one row `slot, time, diff, value, before` (texts and numbers) per update that breaks the slot's history.
    """

    updates: DataFrame
    broken: DataFrame
    is_thorough: bool
    _read: Observation
    _emitted: Observation

    def outcome(self) -> outcome.Outcome:
        """What the action observed. Call it only after the action has succeeded: it waits for the counts.

        Raises `InvariantViolation` where two counts that must agree don't.
        """
        return outcome.Outcome.observed(self._read.get, self._emitted.get, is_thorough=self.is_thorough)


@dataclass(frozen=True)
class _Rules:
    """The arguments of one run, for the steps below."""

    schema: CollectionSchema
    lower: int
    upper: int | None
    floor: int
    late: Late
    is_delta: bool
    is_thorough: bool

    @property
    def keys(self) -> list[str]:
        return [f"k{i}" for i in range(len(self.schema.key))]

    @property
    def values(self) -> list[str]:
        return [f"v{i}" for i in range(len(self.schema.values))]

    @property
    def slot(self) -> list[str]:
        return [*self.keys, BAD_KEY]

    @property
    def value(self) -> list[str]:
        """The columns that together are a value, ok or err."""
        return [*self.values, *ERR_COLUMNS]

    @property
    def is_final(self) -> SparkColumn:
        """Whether an arrival is processed now; else it is stashed."""
        return F.lit(True) if self.upper is None else F.col(AT) < self.upper


def persistent_upsert(
    records: DataFrame,
    state: DataFrame | None,
    *,
    schema: CollectionSchema,
    lower: int,
    upper: int | None,
    stash: DataFrame | None = None,
    late: Late = "lift",
    as_of_frontier: int | None = None,
    is_delta: bool = False,
    is_thorough: bool = False,
) -> Drained:
    """The updates that `records` (the records frame) make of `state`, for the batch `[lower, upper)`.

    `state`: committed updates (`persist_spark.state_reader`) of at least every slot in the batch, oks and errs; value
    columns of retractions may be null. `stash`: the stash before, in the records frame, not consolidated. `late` says
    what becomes of a record whose time lies before `lower`: it was never consumed and is lifted or made an err; or
    (`persisted`: the caller redelivers) it is dropped and counted. `is_delta`: emit only newly stashed records.
    `is_thorough`: expand truncates and break ties; `state` then has to hold *all* slots.

    Raises `BadBounds` where `as_of_frontier` is not before `upper`.
    """
    floor = lower if as_of_frontier is None else max(lower, as_of_frontier)
    if upper is not None and floor >= upper:
        raise BadBounds(f"times can't be advanced to {floor} in a batch [{lower}, {upper}); wanted less than its upper")
    rules = _Rules(schema, lower, upper, floor, late, is_delta, is_thorough)
    chain = _arrivals(records, ARRIVED, rules)
    if stash is not None:
        chain = chain.unionByName(_consolidated(_arrivals(stash, STASHED, rules), rules))
    if state is not None:
        chain = chain.unionByName(_history(state, chain, rules))
    if is_thorough:
        chain = _with_truncates(chain, rules)
    read, emitted = Observation(), Observation()
    ranked = _ranked(chain, rules).observe(read, *_read_metrics(rules))
    changes = _changes(ranked.where(_matters(rules)), rules).observe(emitted, *_emitted_metrics(rules))
    updates = changes.where(F.col(SIDE) != _KEPT)
    return Drained(_published(updates, rules), _broken(chain, rules), is_thorough, read, emitted)


def _arrivals(records: DataFrame, origin: int, rules: _Rules) -> DataFrame:
    """Records with their times settled. A missing time is the description's: the last one before the upper."""
    schema = rules.schema
    given = rules.lower if rules.upper is None else rules.upper - 1
    at = F.coalesce(F.col(TIME), F.lit(given))
    is_skip = F.col(OP).eqNullSafe(SKIP)
    is_late = at < rules.lower
    refused = is_late & F.col(ERR_KIND).isNull() & ~F.col(OP).isin(TRUNCATE, SKIP)
    becomes_err = refused if rules.late == "error" else F.lit(False)
    is_err = F.col(ERR_KIND).isNotNull() | becomes_err
    counted_only = is_skip | is_late if rules.late == "persisted" else is_skip
    spread = F.pmod(F.xxhash64(ORDER), F.lit(_SKIP_SLOTS)).cast("string").cast("binary")
    err = {
        ERR_KIND: F.lit(LATE_TIME),
        ERR_MESSAGE: F.concat(F.lit("time "), at, F.lit(f" lies before {rules.lower}, which is final")),
        ERR_KEY: F.coalesce(F.col(BAD_KEY), canonical_key(schema)),
        ERR_PAYLOAD: canonical_json(schema.values),
    }
    return records.select(
        *[F.when(~is_skip, named(c.name)).alias(n) for n, c in zip(rules.keys, schema.key, strict=True)],
        F.when(is_skip, spread).otherwise(F.col(BAD_KEY)).alias(BAD_KEY),
        F.when(counted_only, F.lit(_NEVER)).otherwise(F.greatest(at, F.lit(rules.floor))).cast("bigint").alias(TIME),
        at.alias(AT),
        F.lit(origin).alias(FROM),
        F.when(is_err, F.lit(UPSERT)).otherwise(F.col(OP)).alias(OP),
        F.col(ORDER),
        *[
            F.when(~is_err & (F.col(OP) == UPSERT), named(c.name)).alias(n)
            for n, c in zip(rules.values, schema.values, strict=True)
        ],
        *[F.when(becomes_err, err[name]).otherwise(F.col(name)).alias(name) for name in ERR_COLUMNS],
    )


def _history(state: DataFrame, chain: DataFrame, rules: _Rules) -> DataFrame:
    """Committed updates as arrivals. Their diff stands in for the original time: it puts a retraction before the
    insertion that replaced it at the same time, and is checked on the way."""
    schema = rules.schema
    return state.select(
        *[named(c.name).alias(n) for n, c in zip(rules.keys, schema.key, strict=True)],
        F.col(BAD_KEY),
        F.col(TIME),
        F.col(DIFF).alias(AT),
        F.lit(COMMITTED).alias(FROM),
        F.when(F.col(DIFF) > 0, F.lit(UPSERT)).otherwise(F.lit(DELETE)).alias(OP),
        F.lit(None).cast(chain.schema[ORDER].dataType).alias(ORDER),
        *[named(c.name).alias(n) for n, c in zip(rules.values, schema.values, strict=True)],
        *ERR_COLUMNS,
    )


def _by_rank(rules: _Rules) -> WindowSpec:
    """The rows of a slot in the order in which they count: the last of a time is its winner."""
    return Window.partitionBy(*rules.slot).orderBy(TIME, AT, ORDER, *([_CANONICAL] if rules.is_thorough else []))


def _ranked(chain: DataFrame, rules: _Rules) -> DataFrame:
    """Mark, in each slot, the last row of each time; rows it beat by canonical bytes alone; and broken history."""
    window = _by_rank(rules)
    next_time = F.lead(TIME).over(window)
    is_tied = [F.lead(name).over(window).eqNullSafe(F.col(name)) for name in (TIME, AT, ORDER)]
    if rules.is_thorough:  # the very same record twice is no tie
        is_tied.append(~F.lead(_CANONICAL).over(window).eqNullSafe(F.col(_CANONICAL)))
    diff_before = F.coalesce(F.lag(F.when(F.col(FROM) == COMMITTED, F.col(AT))).over(window), F.lit(-1))
    is_alternating = ((F.col(AT) == 1) & (diff_before == -1)) | ((F.col(AT) == -1) & (diff_before == 1))
    return chain.select(
        *[name for name in chain.columns if name != _CANONICAL],
        (next_time.isNull() | (next_time != F.col(TIME))).alias(WINS),
        functools.reduce(operator.and_, is_tied).alias(TIED),
        ((F.col(FROM) == COMMITTED) & ~(is_alternating & (F.col(TIME) < rules.lower))).alias(BROKEN),
    )


def _broken(chain: DataFrame, rules: _Rules) -> DataFrame:
    """The committed updates that break their slot's history, each with the one before it, for the error message."""
    window = Window.partitionBy(*rules.slot).orderBy(TIME, AT)
    value = F.to_json(F.struct(*rules.value))
    ranked = _ranked(chain.where(F.col(FROM) == COMMITTED), replace(rules, is_thorough=False))
    shown = ranked.withColumns({"value": value, "before": F.lag(value).over(window)}).where(BROKEN)
    slot = F.to_json(F.struct(*rules.slot)).alias("slot")
    return shown.select(slot, F.col(TIME).alias("time"), F.col(AT).alias("diff"), "value", "before")


def _canonical_value(rules: _Rules) -> SparkColumn:
    """What decides between records of one order: the greater bytes, a tombstone being the least."""
    ok = canonical_json(rules.schema.values, rules.values)
    return F.when(F.col(OP) == UPSERT, F.when(F.col(ERR_KIND).isNull(), ok).otherwise(F.col(ERR_PAYLOAD)))


def _consolidated(stash: DataFrame, rules: _Rules) -> DataFrame:
    """The stash as it was left: a chain of deltas holds records that later ones beat, or that were processed since."""
    window = Window.partitionBy(*rules.slot, AT).orderBy(ORDER, _CANONICAL)
    marked = stash.where(F.col(AT) >= rules.lower).withColumn(_CANONICAL, _canonical_value(rules))
    return marked.withColumn(WINS, F.lead(AT).over(window).isNull()).where(WINS).drop(WINS, _CANONICAL)


def _with_truncates(chain: DataFrame, rules: _Rules) -> DataFrame:
    """Add each truncate as a tombstone for every slot that holds a value just before it.

    Of several truncates at one time the last one does all that the others do, so only it is expanded.
    """
    is_truncate = (F.col(OP) == TRUNCATE) & (F.col(TIME) != _NEVER)
    newest = F.max(F.struct(AT, ORDER)).alias("newest")
    truncates = chain.where(is_truncate & rules.is_final).groupBy(TIME).agg(newest)
    slots = chain.where(~F.col(OP).isin(TRUNCATE, SKIP)).select(*rules.slot).distinct()
    values = zip(rules.values, rules.schema.values, strict=True)
    expanded = slots.crossJoin(F.broadcast(truncates)).select(
        *rules.slot,
        F.col(TIME),
        F.col(f"newest.{AT}").alias(AT),
        F.lit(EXPANDED).alias(FROM),
        F.lit(DELETE).alias(OP),
        F.col(f"newest.{ORDER}").alias(ORDER),
        *[null_of(column.type).alias(name) for name, column in values],
        *[err_null(name).alias(name) for name in ERR_COLUMNS],
    )
    both = chain.unionByName(expanded).withColumn(_CANONICAL, _canonical_value(rules))
    held = F.coalesce(F.lag(F.col(OP) == UPSERT).over(_by_rank(rules)), F.lit(False))
    return both.withColumn(HAD, held).where((F.col(FROM) != EXPANDED) | F.col(HAD)).drop(HAD)


def _matters(rules: _Rules) -> SparkColumn:
    """Winners only; a truncate itself changes nothing, but waits in the stash until its time has come."""
    is_spent_truncate = (F.col(OP) == TRUNCATE) & rules.is_final
    return F.col(WINS) & (F.col(TIME) != _NEVER) & ~is_spent_truncate


def _before(name: str) -> str:
    """The column that holds what column `name` was just before."""
    return f"_persist_before_{name}"


def _changes(winners: DataFrame, rules: _Rules) -> DataFrame:
    """Compare each winner with the one before it in its slot.

    One row per update, per record to be stashed, and, only to be counted, per value that was there already.
    """
    window = Window.partitionBy(*rules.slot).orderBy(TIME)
    holds = F.col(OP) == UPSERT
    before = {_before(name): F.lag(name).over(window) for name in rules.value}
    had = F.coalesce(F.lag(holds).over(window), F.lit(False))
    compared = [name for name in rules.value if name != ERR_MESSAGE]
    is_same = F.struct(*[F.col(_before(name)).alias(name) for name in compared]).eqNullSafe(F.struct(*compared))
    is_arrival = F.col(FROM) != COMMITTED
    is_kept = is_arrival & rules.is_final & F.col(HAD) & F.col(HOLDS) & is_same
    is_change = is_arrival & rules.is_final & (F.col(HAD) | F.col(HOLDS))
    to_stash = (F.col(FROM) == ARRIVED if rules.is_delta else is_arrival) & ~rules.is_final
    sides = (
        F.when(is_kept, F.array(F.lit(_KEPT)))
        .when(is_change & F.col(HAD) & F.col(HOLDS), F.array(F.lit(-1), F.lit(1)))
        .when(is_change & F.col(HAD), F.array(F.lit(-1)))
        .when(is_change, F.array(F.lit(1)))
        .when(to_stash, F.array(F.lit(0)))
    )
    linked = winners.withColumns({**before, HAD: had, HOLDS: holds})
    sided = linked.where(is_arrival).withColumn(SIDE, F.explode(sides))
    is_before, is_stash = F.col(SIDE) == -1, F.col(SIDE) == 0
    rows = sided.select(
        *rules.keys,
        *[F.when(is_before, F.col(_before(name))).otherwise(F.col(name)).alias(name) for name in rules.value],
        F.when(is_stash, F.col(AT)).otherwise(F.col(TIME)).alias(TIME),
        F.when(~is_stash, F.col(SIDE).cast("bigint")).alias(DIFF),
        *[F.when(is_stash, F.col(name)).alias(name) for name in (OP, ORDER, BAD_KEY)],
        *[SIDE, HAD, HOLDS],
    )
    part = (
        F.when(F.col(SIDE) == 0, F.lit(STASH_KIND))
        .when(F.col(SIDE) == _KEPT, F.lit(None))
        .when(F.col(ERR_KIND).isNotNull(), F.lit(PartKind.ERRS.value))
        .when(F.col(SIDE) == 1, F.lit(PartKind.INSERTIONS.value))
        .otherwise(F.lit(PartKind.RETRACTIONS.value))
    )
    return rows.withColumn(PART, part)


def _published(updates: DataFrame, rules: _Rules) -> DataFrame:
    """The updates under the user's names."""
    user = [
        F.col(flat).alias(column.name)
        for flat, column in zip(rules.keys + rules.values, rules.schema.columns, strict=True)
    ]
    return updates.select(*user, TIME, DIFF, *ERR_COLUMNS, OP, ORDER, BAD_KEY, PART)


def _count(condition: SparkColumn, name: str) -> SparkColumn:
    return F.count(F.when(condition, F.lit(1))).alias(name)


def _read_metrics(rules: _Rules) -> list[SparkColumn]:
    """What is counted of every row after the exchange. Names are the fields of `outcome.Read`."""
    origin, final, wins = F.col(FROM), rules.is_final, F.col(WINS)
    is_record = origin.isin(STASHED, ARRIVED)
    is_late = F.col(AT) < rules.lower
    live = is_record & (F.col(TIME) != _NEVER)
    is_truncate = F.col(OP) == TRUNCATE
    winner = live & wins & final
    eligible = (winner & ~is_truncate) | (wins & (origin == EXPANDED))
    return [
        _count(origin == ARRIVED, "records_read"),
        _count(origin == STASHED, "stash_before"),
        _count(origin == EXPANDED, "truncated"),
        _count((is_record & (F.col(OP) == SKIP)) | (winner & is_truncate), "skipped"),
        _count(is_record & (F.col(OP) != SKIP) & (F.col(TIME) == _NEVER), "already_persisted"),
        _count((live | (origin == EXPANDED)) & ~wins, "duplicates"),
        _count(live & F.col(TIED), "order_ties"),
        _count(live & is_truncate & final, "truncates"),
        _count(eligible, "eligible"),
        _count(live & wins & ~final, "stashed"),
        _count(winner & is_late, "late_times"),
        _count(eligible & F.col(ERR_KIND).isNotNull(), "errors"),
        _count(F.col(BROKEN), "broken"),
    ]


def _emitted_metrics(rules: _Rules) -> list[SparkColumn]:
    """What is counted of every row written. Names are the fields of `outcome.Emitted`.

    `digest_*`: two sums of independent 64-bit hashes of the updates, so that neither order nor files matter. Hashing
    passes over nulls, so which columns are null is hashed beside them. Summed as decimals: a bigint could overflow.
    """
    part, side = F.col(PART), F.col(SIDE)
    is_update = side.isin(-1, 1)
    hashed = [*rules.keys, *rules.values, TIME, DIFF, ERR_KIND, ERR_KEY, ERR_PAYLOAD]
    nulls = [F.col(name).isNull() for name in hashed]
    digests = [F.xxhash64(F.lit(salt), *hashed, *nulls).cast("decimal(20,0)") for salt in (1, 2)]
    return [
        _count(is_update, "output_count"),
        _count((side == 1) & ~F.col(HAD), "inserts"),
        _count((side == 1) & F.col(HAD), "updates"),
        _count((side == -1) & ~F.col(HOLDS), "deletes"),
        _count(side == _KEPT, "kept"),
        _count(part == PartKind.INSERTIONS.value, "insertions"),
        _count(part == PartKind.RETRACTIONS.value, "retractions"),
        _count((part == PartKind.ERRS.value) & (side == 1), "err_insertions"),
        _count((part == PartKind.ERRS.value) & (side == -1), "err_retractions"),
        _count(part == STASH_KIND, "stash_rows"),
        *[F.sum(F.when(is_update, digest)).alias(f"digest_{i}") for i, digest in enumerate(digests)],
    ]
