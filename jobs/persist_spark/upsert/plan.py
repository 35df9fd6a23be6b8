"""`persistent_upsert`: records become differential updates (docs/semantics.md, section 4), as one DataFrame expression.

    records ──┐ times, lateness                             keep the last         if a value differs from the
    stash   ──┼───────────────> one exchange by slot, sorted ───────────> winners ───────────────────────> updates
    state   ──┘                 by (time, original time, order)  of a time            one before it
                                                 │ observed: `outcome.Read`           │ observed: `outcome.Emitted`

One exchange and one sort are enough because what is committed is a history of the same shape as the input. A committed
insertion is an upsert at its time, a committed retraction a tombstone; so the previous value of a record is the row
before it in its slot, whether that row comes from the shard or from the same batch.

Invariants a reader may rely on:

1. Nothing here starts a Spark job, knows a session or a location, or calls a Python function per row.
2. Every count is observed after the exchange, in the stage that writes: a retried task does not count a row twice.
3. The normal plan neither expands truncates nor breaks ties of equal orders; it counts them. If either count is
   not zero, discard its output and plan again with `is_thorough=True` (`Outcome.needs_thorough_plan`).
4. The bounds of the batch are columns of arrivals (`UpsertRules.bounds`) and occur nowhere else. So the code that Spark
   generates is the same for each batch of a collection: it is compiled once, and the JVM optimizes it.

Expressions are SQL texts, since each of a thousand calls of the Column API would cost a dozen messages to the JVM.
Key columns are k0.. in them, and value columns are v0.. within one struct: no name can clash or break out, and a value
goes through the windows in one piece.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from persist_core.errors import BadBounds, InvariantViolation
from persist_core.schema import (
    DIFF,
    ERR_KEY,
    ERR_KIND,
    ERR_MESSAGE,
    ERR_PAYLOAD,
    LATE_TIME,
    PART,
    TIME,
    CollectionSchema,
    Late,
)
from persist_core.shard.batch import STASH_OPERATOR, PartKind
from persist_core.shard.parts import ERR_IDENTITY
from persist_core.time_text import show_interval, show_time
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
    passed,
    quoted,
    shown_time,
)
from persist_spark.upsert.counts import (
    ARRIVED,
    AT,
    BROKEN,
    COMES,
    COMMITTED,
    COUNTED,
    ERR,
    ERR_BEFORE,
    FINAL,
    FROM,
    GOES,
    HAD,
    HASHES,
    HOLDS,
    LATE,
    PENDING,
    PHASE,
    SIDE,
    STASHED,
    STAYS,
    STAYS_OUT,
    TIED,
    VALUE,
    VALUE_BEFORE,
    WINS,
    as_json,
    emitted_counts,
    read_counts,
)
from persist_spark.upsert.outcome import Outcome
from persist_spark.upsert.rules import (
    CANONICAL,
    FLOOR,
    GIVEN,
    LOWER,
    UPPER,
    SequenceRules,
    UpsertRules,
)
from persist_spark.upsert.seen import SeenBefore, remembered
from persist_spark.upsert.sequence import (
    PARTS,
    judged,
    sided,
)
from persist_spark.upsert.thorough import with_canonical, with_truncates

_NEVER = -1  # the time of control records, which are only counted
# What the original time of an already persisted record is subtracted from: the result is negative, so the record is
# compared with no update, and one for each time, so only the last record of each key and time counts.
_FIRST_PAST = -2
_ERR_CELLS = ", ".join(f"'{name}', {name}" for name in ERR_COLUMNS)
_ERR_STRUCT = f"CASE WHEN {ERR_KIND} IS NOT NULL THEN named_struct({_ERR_CELLS}) END AS {ERR}"
_SKIP_SLOTS = 64  # control records have no key; spread, so that they are not all in one task


@dataclass(frozen=True)
class PlannedUpsert:
    """What `persistent_upsert` returns. `updates` is for exactly one action; then ask for `outcome()`.

    `updates` has the user's columns, time, diff, the err columns, the stash's `OP`, `ORDER` and `BAD_KEY`, and `PART`
    (a `PartKind`, or the name of the stash's operator).
    """

    updates: DataFrame
    is_thorough: bool
    _rules: UpsertRules
    _chain: DataFrame
    _read: Observation
    _emitted: Observation
    _stash_rows: int | None

    def outcome(self) -> Outcome:
        """What the action observed. Call it only after the action has succeeded: it waits for the counts.

        Raises `InvariantViolation` if the counts do not add up, or if records were stashed against the promise.
        """
        outcome = Outcome.observed(
            json.loads(self._read.get["counts"]),
            json.loads(self._emitted.get["counts"]),
            is_thorough=self.is_thorough,
            sequence=self._rules.sequence,
            stash_rows=self._stash_rows,
        )
        if outcome.emitted.stash_rows and not self._rules.may_stash:
            raise InvariantViolation(
                f"{outcome.emitted.stash_rows} records have times at or after the upper"
                f" {show_time(self._rules.upper)}; expected none (may_stash=False). Nothing was committed; this is a"
                " defect, please report it with the job's log"
            )
        return outcome

    def broken(self) -> DataFrame:
        """One row `slot, time, diff, value, before` per committed update that breaks its slot's history.

        Run it only if `outcome().read.broken` is not zero, for the error message.
        """
        return _broken(self._chain, self._rules)


def persistent_upsert(
    records: DataFrame,
    state: DataFrame | None,
    *,
    schema: CollectionSchema,
    lower: int,
    upper: int | None,
    stash: DataFrame | None = None,
    stash_rows: int | None = None,
    late: Late = "lift",
    as_of_frontier: int | None = None,
    stash_frontier: int | None = None,
    may_stash: bool = True,
    is_thorough: bool = False,
    in_one_task: bool = False,
    sequence: SequenceRules | None = None,
    seen: SeenBefore | None = None,
) -> PlannedUpsert:
    """The updates that `records` (the records frame) make of `state`, for the batch `[lower, upper)`.

    `state`: committed updates (`persist_spark.read.parts`), all before `lower`, of at least every slot in the batch,
    oks and errs; value columns of retractions may be null. `stash`: the stash before, in the records frame, not
    consolidated; what it holds before `stash_frontier` (default: `lower`) was processed since. `stash_rows`: how many
    the whole stash holds, if `stash` has only those that the batch can change (`persist_spark.upsert.stash`). `late`:
    what to do if a record's time lies before `lower`: it was never consumed and is lifted or made an err; or
    (`persisted`: the caller redelivers) it is dropped and counted. `may_stash=False` promises that no time lies at or
    after `upper`, and leaves out the columns that only the stash has. `is_thorough`:
    expand truncates and break ties; `state` then has to hold *all* slots. `in_one_task`: all of this is so little that
    one task does it, without an exchange. `sequence`: drain in `sequence` order, after what was `seen` before; `state`
    then has the column `ORDER`.

    Raises `BadBounds` if `as_of_frontier` is not before `upper`.
    """
    floor = lower if as_of_frontier is None else max(lower, as_of_frontier)
    if upper is not None and floor >= upper:
        raise BadBounds(
            f"times cannot advance to {show_time(floor)} in a batch {show_interval(lower, upper)}; expected less than"
            " its upper"
        )
    rules = UpsertRules(schema, lower, upper, floor, late, may_stash, is_thorough, sequence)
    chain = _arrivals(records, ARRIVED, rules)
    stashed = None if stash is None else _stashed(stash, lower if stash_frontier is None else stash_frontier, rules)
    if stashed is not None:
        chain = chain.union(stashed)
    if sequence is not None:
        chain = remembered(chain, seen or SeenBefore(), stashed, rules)
    if state is not None:
        history = _history(state, records.schema[ORDER].dataType.simpleString(), rules)
        chain = chain.unionByName(history, allowMissingColumns=True) if rules.sequence else chain.union(history)
    if is_thorough:
        chain = with_truncates(chain, rules)
    if in_one_task:
        chain = chain.coalesce(1)
    read, emitted = Observation(), Observation()
    is_sequence = sequence is not None
    ranked = judged(chain, rules) if is_sequence else _ranked(chain, rules)
    ranked = ranked.observe(read, as_json(read_counts(is_sequence=is_sequence)))
    changes = _flat(sided(ranked, rules) if is_sequence else _sided(ranked, rules), rules)
    changes = changes.observe(emitted, as_json(emitted_counts(is_sequence=is_sequence)))
    return PlannedUpsert(_published(changes, rules), is_thorough, rules, chain, read, emitted, stash_rows)


def _arrivals(records: DataFrame, origin: int, rules: UpsertRules) -> DataFrame:
    """Records with their times settled. A missing time is the description's: the last one before the upper."""
    records = records.selectExpr("*", *rules.bounds)
    if rules.late == "error":
        records = _with_late_errs(records, rules)
    at = f"coalesce({TIME}, {GIVEN})"
    is_late = f"{at} < {LOWER}"
    is_skip = f"{OP} = '{SKIP}'"
    is_past = is_late if rules.late == "persisted" else "false"
    is_pending = "false" if rules.upper is None else f"{at} >= {UPPER}"
    spread = f"CAST(CAST(pmod(xxhash64({ORDER}), {_SKIP_SLOTS}) AS STRING) AS BINARY)"
    return records.selectExpr(
        *rules.key_columns,
        f"CASE WHEN {is_skip} THEN {spread} ELSE {BAD_KEY} END AS {BAD_KEY}",
        f"CASE WHEN {is_skip} THEN {_NEVER}L WHEN {is_past} THEN {_FIRST_PAST}L - {at}"
        f" ELSE greatest({at}, {FLOOR}) END AS {TIME}",
        f"{at} AS {AT}",
        f"{origin} AS {FROM}",
        f"CASE WHEN {is_skip} OR {is_past} THEN {COUNTED} WHEN {is_pending} THEN {PENDING} ELSE {FINAL} END AS {PHASE}",
        f"{is_late} AS {LATE}",
        OP,
        ORDER,
        f"CASE WHEN {OP} = '{UPSERT}' AND {ERR_KIND} IS NULL THEN {rules.value_struct} END AS {VALUE}",
        _ERR_STRUCT,
    )


def _with_late_errs(records: DataFrame, rules: UpsertRules) -> DataFrame:
    """Make each record before `lower` an err of its slot. Its payload is its values: the raw record is not kept."""
    is_good = F.col(ERR_KIND).isNull() & ~F.col(OP).isin(TRUNCATE, SKIP)
    own_time, lower = shown_time(TIME), shown_time(LOWER)
    refused = F.coalesce((F.col(TIME) < F.col(LOWER)) & is_good, F.lit(False))
    err = {
        ERR_KIND: F.lit(LATE_TIME),
        ERR_MESSAGE: F.expr(f"concat('time ', {own_time}, ' lies before ', {lower}, ', which is final')"),
        ERR_KEY: F.coalesce(F.col(BAD_KEY), canonical_key(rules.schema)),
        ERR_PAYLOAD: canonical_json(rules.schema.values),
    }
    changed = {name: F.when(refused, value).otherwise(F.col(name)) for name, value in err.items()}
    gone = {c.name: F.when(~refused, F.col(quoted(c.name))) for c in rules.schema.values}
    return records.withColumns({**changed, **gone, OP: F.when(refused, F.lit(UPSERT)).otherwise(F.col(OP))})


def _history(state: DataFrame, order_type: str, rules: UpsertRules) -> DataFrame:
    """Committed updates as arrivals. Their diff stands in for the original time: it puts a retraction before the
    insertion that replaced it at the same time, and is checked on the way."""
    return state.selectExpr(
        *rules.key_columns,
        BAD_KEY,
        TIME,
        f"{DIFF} AS {AT}",
        f"{COMMITTED} AS {FROM}",
        f"{FINAL} AS {PHASE}",
        f"false AS {LATE}",
        f"CASE WHEN {DIFF} > 0 THEN '{UPSERT}' ELSE '{DELETE}' END AS {OP}",
        f"{f'CASE WHEN {DIFF} > 0 THEN {ORDER} END' if rules.sequence else f'CAST(NULL AS {order_type})'} AS {ORDER}",
        f"CASE WHEN {DIFF} > 0 AND {ERR_KIND} IS NULL THEN {rules.value_struct} END AS {VALUE}",
        _ERR_STRUCT,
    )


def _ranked(chain: DataFrame, rules: UpsertRules) -> DataFrame:
    """Mark, in each slot, the last row of each time; rows it beat by canonical bytes alone; and broken history."""
    window = rules.by_rank
    next_time = f"lead({TIME}) {window}"
    tied = [f"lead({name}) {window} <=> {name}" for name in (TIME, AT, ORDER)]
    if rules.is_thorough:  # the same record twice is not a tie
        tied.append(f"NOT lead({CANONICAL}) {window} <=> {CANONICAL}")
    diff_before = f"coalesce(lag(CASE WHEN {FROM} = {COMMITTED} THEN {AT} END) {window}, -1L)"
    return chain.selectExpr(
        *rules.chain,
        f"coalesce({next_time} != {TIME}, true) AS {WINS}",
        f"{' AND '.join(tied)} AS {TIED}",
        f"{FROM} = {COMMITTED} AND NOT ({AT} IN (1, -1) AND {AT} = -{diff_before}) AS {BROKEN}",
    )


def _broken(chain: DataFrame, rules: UpsertRules) -> DataFrame:
    """See `PlannedUpsert.broken`."""
    value = f"coalesce(to_json({VALUE}), to_json({ERR}))"
    before = f"lag({value}) {rules.over(TIME, AT)}"
    committed = _ranked(chain.where(f"{FROM} = {COMMITTED}"), rules)
    shown = committed.selectExpr("*", f"{value} AS value", f"{before} AS before").where(BROKEN)
    slot = f"to_json(struct({', '.join(rules.slot)})) AS slot"
    return shown.selectExpr(slot, f"{TIME} AS time", f"{AT} AS diff", "value", "before")


def _stashed(stash: DataFrame, frontier: int, rules: UpsertRules) -> DataFrame:
    """The stash as stored: a chain of deltas also holds records that later ones beat, or that were processed since.

    Records that a restore brought back may lie before `lower`. It arrived in time, so it is always lifted.
    """
    waiting = stash.where(f"{TIME} >= {passed(frontier)[0]}")
    live = with_canonical(_arrivals(waiting, STASHED, replace(rules, late="lift")), rules)
    wins = f"lead({AT}) OVER (PARTITION BY {', '.join(rules.slot)}, {AT} ORDER BY {ORDER}, {CANONICAL}) IS NULL"
    return live.selectExpr("*", f"{wins} AS {WINS}").where(WINS).drop(WINS, CANONICAL)


def _sided(ranked: DataFrame, rules: UpsertRules) -> DataFrame:
    """Compare each winner with the one before it in its slot.

    One row per update, per record to be stashed, and, only to be counted, per value that was there already. A truncate
    itself changes nothing, but waits in the stash until its time is due.
    """
    spent = f"{PHASE} = {COUNTED} OR ({OP} = '{TRUNCATE}' AND {PHASE} = {FINAL})"
    window = rules.over(TIME)
    linked = ranked.where(f"{WINS} AND NOT ({spent})").selectExpr(
        "*",
        f"{OP} = '{UPSERT}' AS {HOLDS}",
        f"coalesce(lag({OP} = '{UPSERT}') {window}, false) AS {HAD}",
        f"lag({VALUE}) {window} AS {VALUE_BEFORE}",
        f"lag({ERR}) {window} AS {ERR_BEFORE}",
    )
    same = [f"{VALUE} <=> {VALUE_BEFORE}", *[f"{ERR}.{name} <=> {ERR_BEFORE}.{name}" for name in ERR_IDENTITY]]
    is_same = " AND ".join(same)
    sides = (
        f"CASE WHEN {PHASE} = {PENDING} THEN CASE WHEN {FROM} = {ARRIVED} THEN array({STAYS_OUT}) END"
        f" WHEN {HAD} AND {HOLDS} THEN CASE WHEN {is_same} THEN array({STAYS}) ELSE array({GOES}, {COMES}) END"
        f" WHEN {HAD} THEN array({GOES}) WHEN {HOLDS} THEN array({COMES}) END"
    )
    kept = [*rules.slot, TIME, AT, OP, ORDER, HAD, HOLDS, VALUE, ERR, VALUE_BEFORE, ERR_BEFORE]
    return linked.where(f"{FROM} != {COMMITTED}").selectExpr(*kept, f"explode({sides}) AS {SIDE}")


def _flat(sided: DataFrame, rules: UpsertRules) -> DataFrame:
    """What each row writes, unpacked: k0.., v0.., the err columns, time and diff, and which part it goes to."""
    chosen = sided.selectExpr(
        *[*rules.keys, *(rules.state_columns if rules.sequence else (OP, ORDER, BAD_KEY)), SIDE, HAD, HOLDS],
        f"CASE WHEN {SIDE} = {STAYS_OUT} THEN {AT} ELSE {TIME} END AS {TIME}",
        f"CASE WHEN {SIDE} IN ({GOES}, {COMES}) THEN CAST({SIDE} AS BIGINT) END AS {DIFF}",
        f"CASE WHEN {SIDE} = {GOES} THEN {VALUE_BEFORE} ELSE {VALUE} END AS {VALUE}",
        f"CASE WHEN {SIDE} = {GOES} THEN {ERR_BEFORE} ELSE {ERR} END AS {ERR}",
    )
    part = (
        f"CASE WHEN {SIDE} = {STAYS_OUT} THEN '{STASH_OPERATOR}' WHEN {SIDE} = {STAYS} THEN NULL"
        f"{PARTS if rules.sequence else ''} WHEN {ERR} IS NOT NULL THEN '{PartKind.ERRS}'"
        f" WHEN {SIDE} = {COMES} THEN '{PartKind.INSERTIONS}' ELSE '{PartKind.RETRACTIONS}' END"
    )
    of_stash = "{0}" if rules.sequence else f"CASE WHEN {SIDE} = {STAYS_OUT} THEN {{0}} END AS {{0}}"
    return chosen.selectExpr(
        *[*rules.keys, TIME, DIFF, SIDE, HAD, HOLDS],
        *[f"{VALUE}.{name} AS {name}" for name in rules.values],
        *[f"{ERR}.{name} AS {name}" for name in ERR_COLUMNS],
        *map(of_stash.format, rules.state_columns),
        f"{part} AS {PART}",
        *_hashes(rules),
    )


def _published(changes: DataFrame, rules: UpsertRules) -> DataFrame:
    """The updates under the user's names."""
    flat = zip(rules.keys + rules.values, rules.schema.columns, strict=True)
    user = [f"{name} AS {quoted(column.name)}" for name, column in flat]
    return changes.where(f"{SIDE} != {STAYS}").selectExpr(*user, TIME, DIFF, *ERR_COLUMNS, *rules.state_columns, PART)


def _hashes(rules: UpsertRules) -> list[str]:
    """Two independent 64-bit hashes of an update. Hashing passes over nulls, so where they are is hashed too."""
    cells = [*[f"{VALUE}.{name}" for name in rules.values], TIME, DIFF, *[f"{ERR}.{name}" for name in ERR_IDENTITY]]
    hashed = [*rules.keys, *cells]
    nulls = [f"{name} IS NULL" for name in hashed]
    return [f"xxhash64({i}, {', '.join(hashed + nulls)}) AS {name}" for i, name in enumerate(HASHES)]
