"""`persistent_upsert`: records become differential updates (docs/semantics.md, section 4), as one DataFrame expression.

    records ──┐ times, lateness                    the last of a time wins         case ──> effects
    stash   ──┼──────────────> one exchange by slot ────────────────────> compared ─────────────────> updates, stash..
    state   ──┘                and sort: `chain`    observed: input       with the row before it   observed: output

One exchange and one sort are enough because what is committed is a history of the same shape as the input. A committed
insertion is an upsert at its time, a committed retraction a tombstone; so the previous value of a record is the row
before it in its slot, whether that row comes from the shard or from the same batch.

One slot in the batch [10, 20), with an update in the shard and five records, after each step:

    chain: time  from    op  value  ord │ ranked │ compared: before  case    │ effects
           5     state   u   a          │ wins   │                           │
           12    input   u   b      1   │        │                           │
           12    input   u   c      2   │ wins   │ a                 update  │ retract a, insert c
           14    input   u   c      3   │ wins   │ c                 same    │ keep
           17    input   d          4   │ wins   │ c                 delete  │ retract c
           25    input   u   d      5   │ wins   │                   waits   │ stash

`persist_spark.upsert.arguments` names the columns, and `persist_spark.upsert.rules` has the cases and their effects as
tables. `sequence` order is this plan too: it also knows what the slots have seen (`persist_spark.upsert.sequence`).

Invariants a reader may rely on:

1. Nothing here starts a Spark job, knows a session or a location, or calls a Python function per row.
2. Every count is observed after the exchange, in the stage that writes: a retried task does not count a row twice.
3. The normal plan neither expands truncates nor breaks ties of equal orders; it counts them. If either count is
   not zero, discard its output and plan again with `is_thorough=True` (`Outcome.needs_thorough_plan`). So it is with
   `unsent`, values that were left out, for which a plan with `inherits=False` has no registers.
4. The bounds of the batch are columns of arrivals and occur nowhere else. So the code that Spark generates is the same
   for each batch of a collection: it is compiled once, and the JVM optimizes it.

Expressions are SQL texts, since each of a thousand calls of the Column API would cost a dozen messages to the JVM.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from persist_core.contents.batch import PartKind
from persist_core.contents.key_range import Scalar
from persist_core.contents.schema_versions import SchemaVersion
from persist_core.errors import BadBounds, InvariantViolation
from persist_core.keys import PART
from persist_core.schema import DIFF, ERR_KIND, TIME, CollectionSchema, Late
from persist_core.time_text import show_interval, show_time
from persist_spark.counted import Counting, hashes
from persist_spark.decode.filled import IN_REST
from persist_spark.decode.row_checks import MARKS
from persist_spark.frame import BAD_KEY, OP, ORDER, inherited_fields, passed, quoted
from persist_spark.stage import Planned
from persist_spark.upsert import inherited, rules, sequence, warnings
from persist_spark.upsert.arguments import ERR_CELLS, SAME_VALUE, Arguments, SeenBefore, Watched
from persist_spark.upsert.eras import Eras, incomparable
from persist_spark.upsert.exchange import exchanged
from persist_spark.upsert.late import with_late_errs
from persist_spark.upsert.outcome import Outcome, emitted_counts, read_counts
from persist_spark.upsert.thorough import with_canonical, with_truncates

_LOWER, _UPPER, _GIVEN, _FLOOR = "_persist_lower", "_persist_upper", "_persist_given", "_persist_floor"
_IN_TIME = "_persist_in_time"
_CODE = "_persist_code"
_ERR = f"""CASE WHEN {ERR_KIND} IS NOT NULL THEN
    named_struct({", ".join(f"'{plain}', {name}" for plain, name in ERR_CELLS.items())}) END AS err"""
_SKIP_SLOTS = 64  # control records have no key; spread, so that they are not all in one task


@dataclass(frozen=True)
class PlannedUpsert(Planned[Outcome]):
    """The result of `persistent_upsert`.

    `updates` has the user's columns, time, diff, the err columns, the operator state's (`Arguments.state_columns`),
    and `PART` (a `PartKind`, or the name of an operator).
    """

    _arguments: Arguments
    _chain: DataFrame

    def broken(self) -> DataFrame:
        """One row `slot, time, diff, value, before` per committed update that breaks its slot's history.

        Run it only if `outcome().counted["broken"]` is not zero, for the error message.
        """
        arguments, value = self._arguments, "coalesce(to_json(value), to_json(err))"
        committed = _ranked(self._chain.where("diff IS NOT NULL"), arguments).selectExpr(
            f"to_json(struct({', '.join(arguments.slot)})) AS slot",
            *["time", "diff", "is_broken", f"{value} AS value"],
            f"lag({value}) {arguments.over('time', 'diff')} AS before",
        )
        return committed.where("is_broken").drop("is_broken")

    def incomparable(self) -> DataFrame:
        """One row `slot, ord, rival` per record whose order cannot be compared with another one of its slot.

        Run it only if `outcome().counted["incomparable"]` is not zero, for the error message.
        """
        keys = zip(self._arguments.keys, self._arguments.schema.key, strict=True)
        slot = [*(f"{plain} AS {quoted(column.name)}" for plain, column in keys), "CAST(bad_key AS STRING) AS bad_key"]
        found = _ranked(self._chain, self._arguments).where("rival IS NOT NULL")
        return found.selectExpr(f"to_json(struct({', '.join(slot)})) AS slot", "ord", "rival")


def persistent_upsert(
    records: DataFrame,
    state: DataFrame | None,
    *,
    schema: CollectionSchema,
    lower: int,
    upper: int | None,
    stash: DataFrame | None = None,
    stash_rows: int | None = None,
    beaten: int = 0,
    late: Late = "lift",
    in_time_from: int | None = None,
    as_of_frontier: int | None = None,
    stash_frontier: int | None = None,
    may_stash: bool = True,
    has_times: bool = True,
    is_thorough: bool = False,
    inherits: bool = True,
    in_one_task: bool = False,
    cuts: Sequence[Scalar] | None = None,
    seen: SeenBefore | None = None,
    eras: Eras | None = None,
    watched: tuple[Watched, ...] = (),
    in_rest: Callable[[DataFrame], DataFrame] | None = None,
    versions: Sequence[SchemaVersion] = (),
) -> PlannedUpsert:
    """The updates that `records` (the records frame) make of `state`, for the batch `[lower, upper)`.

    `state`: committed updates (`persist_spark.read.parts`), all before `lower`, of at least every slot in the batch,
    oks and errs; value columns of retractions may be null. `stash`: the stash before, in the records frame, not
    consolidated; what it holds before `stash_frontier` (default: `lower`) was processed since. `stash_rows`: how many
    the whole stash holds, if `stash` has only what the batch can change (`upsert.state_before`). `beaten`: how
    many records are left out (`persist_spark.upsert.hot_keys`). `late`: if a record's time lies before `lower`, it was
    never consumed and is lifted or made an err; or (`persisted`: the caller redelivers) it is dropped and counted. From
    `in_time_from` on (`None`: `lower`) it is lifted and not late: only changes have moved `lower`.
    `may_stash=False` promises that no time lies at or after `upper`, and `has_times=False` that no record has a time of
    its own. `is_thorough`: expand truncates and break ties;
    `state` then has to hold *all* slots. `inherits=False` guesses that no record leaves out a value, and promises that
    no stored row has inherited one. `in_one_task`: so little that one task does it, without an exchange. `cuts`:
    the exchange is by ranges of keys, between these values of the first key column; without one, Spark finds the
    ranges, for which all is read twice. `None`: by slot. `seen`: for `sequence` order, with `ORDER` in
    `state`. `eras`: of Debezium's `order: auto`, not all comparable. `watched`: `persist_spark.upsert.warnings`.
    `in_rest`: adds `IN_REST` to stored rows (`persist_spark.decode.filled`), if given. `versions`: the shard's.

    Raises `BadBounds` if `as_of_frontier` is not before `upper`. The result's `outcome` raises `InvariantViolation` if
    the counts do not add up, or if records were stashed against the promise.
    """
    floor = lower if as_of_frontier is None else max(lower, as_of_frontier)
    if upper is not None and floor >= upper:
        found, where = show_time(floor), show_interval(lower, upper)
        raise BadBounds(f"times cannot advance to {found} in {where}; expected less than its upper")
    inherits = inherits and schema.inherits
    is_new = state is None and stash is None and not (has_times or is_thorough or inherits or seen)
    more = (seen, eras, watched, in_rest if inherits else None, versions)
    bounds = (schema, lower, upper, floor, lower if in_time_from is None else in_time_from)
    arguments = Arguments(*bounds, late, may_stash, is_new, is_thorough, inherits, *more)
    chain = _chain(records, stash, lower if stash_frontier is None else stash_frontier, state, arguments)
    arguments = replace(arguments, has_ranges=bool(cuts))
    chain = exchanged(chain, cuts, arguments, in_one_task=in_one_task)
    if seen is not None:
        chain = chain.sortWithinPartitions(*arguments.partition, *arguments.ranks)
    read, emitted = Counting("read"), Counting("emitted")
    ranked = warnings.observed(_ranked(chain, arguments), read, read_counts(arguments), arguments)
    written = _written(_compared(ranked, arguments), arguments)
    written = emitted.of(written, emitted_counts(arguments))
    updates = written.where("part IS NOT NULL")
    published = _published(arguments)
    updates = updates.selectExpr(*[f"{sql} AS {quoted(name)}" for name, sql in published.items()])
    outcome = partial(_outcome, arguments, (read, emitted), stash_rows, beaten)
    return PlannedUpsert(updates, list(published), outcome, arguments, chain)


def _outcome(
    arguments: Arguments, counting: Sequence[Counting], stash_rows: int | None, beaten: int, written: DataFrame
) -> Outcome:
    counted = {name: count for each in counting for name, count in each.found(written).items()}
    counts, found = warnings.split(counted, arguments.watched)
    counts |= {name: counts[name] + beaten for name in ("records_read", "duplicates")}
    outcome = Outcome.observed(counts, found, arguments, stash_rows)
    if outcome.counted["stash_rows"] and not arguments.may_stash:
        raise InvariantViolation(
            f"{outcome.counted['stash_rows']} records have times at or after the upper {show_time(arguments.upper)};"
            " expected none (may_stash=False). Nothing was committed; this is a defect, please report it with the job's"
            " log"
        )
    return outcome


def _chain(
    records: DataFrame, stash: DataFrame | None, stash_frontier: int, state: DataFrame | None, arguments: Arguments
) -> DataFrame:
    """The rows of all slots: `Arguments.columns`; in the thorough plan `canonical` too."""
    chain = _arrivals(records, arguments)
    stashed = None if stash is None else _stashed(stash, stash_frontier, arguments)
    if stashed is not None:
        chain = chain.union(stashed)
    if arguments.seen is not None:
        chain = sequence.remembered(chain, arguments.seen, stashed, arguments)
    if state is not None:
        history = _history(state, records.schema[ORDER].dataType.simpleString(), arguments)
        chain = chain.unionByName(history, allowMissingColumns=True) if arguments.seen else chain.union(history)
    return with_truncates(chain, arguments) if arguments.is_thorough else chain


def _arrivals(records: DataFrame, arguments: Arguments, *, stashed: bool = False) -> DataFrame:
    """Records with their times settled. A missing time is the description's: the last one before the upper."""
    lower, upper = arguments.lower, arguments.upper
    bounds = {_LOWER: lower, _GIVEN: lower if upper is None else upper - 1, _FLOOR: arguments.floor}
    bounds[_IN_TIME] = arguments.in_time_from
    if upper is not None:
        bounds[_UPPER] = upper
    records = records.selectExpr(
        "*", *[f"{sql} AS {name}" for name, sql in zip(bounds, passed(*bounds.values()), strict=True)]
    )
    if arguments.late == "error":
        records = with_late_errs(records, arguments.schema, _IN_TIME)
    records = records.selectExpr("*", f"ascii({OP}) AS {_CODE}")
    own_time = f"coalesce({TIME}, {_GIVEN})"
    is_past = f"{own_time} < {_LOWER}" if arguments.late == "persisted" else "false"
    waits = "false" if upper is None else f"{own_time} >= {_UPPER}"
    value = arguments.value_struct(IN_REST) if stashed else arguments.value_struct()
    return records.selectExpr(
        *arguments.key_columns,
        f"""CASE WHEN {_CODE} = ascii('s') THEN CAST(CAST(pmod(xxhash64({ORDER}), {_SKIP_SLOTS}) AS STRING) AS BINARY)
                 ELSE {BAD_KEY} END AS bad_key""",
        # Negative for what is only counted. One for each time, so only the last record of each key and time counts.
        f"""CASE WHEN {_CODE} = ascii('s') THEN -1L
                 WHEN {is_past} THEN -2L - {own_time}
                 ELSE greatest({own_time}, {_FLOOR}) END AS time""",
        f"{own_time} AS own_time",
        "CAST(NULL AS BIGINT) AS diff",
        f"NOT ({_CODE} = ascii('s') OR {is_past} OR {waits}) AS is_due",
        f"{_CODE} != ascii('s') AND {waits} AS waits",
        f"{own_time} < {_IN_TIME} AS is_late",
        f"{str(stashed).lower()} AS stashed",
        "false AS expanded",
        f"{_CODE} AS op",
        f"{arguments.placed(ORDER, is_stored=stashed)} AS ord",
        f"CASE WHEN {_CODE} = ascii('u') AND {ERR_KIND} IS NULL THEN {value} END AS value",
        _ERR,
        *arguments.inherited(),
        *(arguments.marks() if stashed else arguments.marks(MARKS)),
    )


def _stashed(stash: DataFrame, frontier: int, arguments: Arguments) -> DataFrame:
    """The stash as stored: a chain of deltas also holds records that later ones beat, or that were processed since.

    Records that a restore brought back may lie before `lower`. They arrived in time, so they are always lifted.
    """
    waiting = stash.where(f"{TIME} >= {passed(frontier)[0]}")
    waiting = arguments.in_rest(waiting) if arguments.in_rest else waiting
    live = with_canonical(_arrivals(waiting, replace(arguments, late="lift"), stashed=True), arguments)
    window = f"OVER (PARTITION BY {', '.join(arguments.slot)}, own_time ORDER BY ord, canonical)"
    wins = f"lead(own_time) {window} IS NULL"
    if arguments.inherits:
        is_heard = f"lead(CASE WHEN inherited IS NULL THEN true END) IGNORE NULLS {window} IS NULL"
        wins = f"{wins} OR ({is_heard} AND NOT lead(ord) {window} <=> ord)"
    return live.selectExpr("*", f"{wins} AS wins").where("wins").drop("wins", "canonical")


def _history(state: DataFrame, order_type: str, arguments: Arguments) -> DataFrame:
    """Committed updates: an insertion is an upsert at its time, a retraction a tombstone."""
    state = arguments.in_rest(state) if arguments.in_rest else state
    value = f"CASE WHEN {DIFF} > 0 AND {ERR_KIND} IS NULL THEN {arguments.value_struct(IN_REST)} END"
    if arguments.inherits:
        state, value = inherited.with_known(state, value, arguments)
    known = f"CASE WHEN {DIFF} > 0 THEN {arguments.placed(ORDER)} END"
    order = known if arguments.seen else f"CAST(NULL AS {order_type})"
    return state.selectExpr(
        *arguments.key_columns,
        f"{BAD_KEY} AS bad_key",
        f"{TIME} AS time",
        "CAST(NULL AS BIGINT) AS own_time",
        f"{DIFF} AS diff",
        *[f"false AS {name}" for name in ("is_due", "waits", "is_late", "stashed", "expanded")],
        f"CASE WHEN {DIFF} > 0 THEN ascii('u') ELSE ascii('d') END AS op",
        f"{order} AS ord",
        f"{value} AS value",
        _ERR,
        *arguments.inherited(arguments.placed_inherited, where=f"{DIFF} > 0"),
        *arguments.marks(),
    )


def _ranked(chain: DataFrame, arguments: Arguments) -> DataFrame:
    """Mark, in each slot, the last row of each time, rows it beat by canonical bytes alone, and broken history."""
    window = arguments.by_rank
    tied = [f"lead({name}) {window} <=> {name}" for name in ("time", *arguments.decides)]
    wins = f"coalesce(lead(time) {window} != time, true)"
    if arguments.inherits and arguments.may_stash:
        is_heard = f"coalesce(lead(CASE WHEN inherited IS NULL THEN time END) IGNORE NULLS {window} != time, true)"
        wins = f"{wins} OR (waits AND {is_heard} AND NOT ({' AND '.join(tied)}))"
    if arguments.is_thorough:  # the same record twice is not a tie
        tied.append(f"NOT lead(canonical) {window} <=> canonical")
    diff_before = arguments.latest("diff", window, where="diff IS NOT NULL")
    marks: tuple[str, ...] = (
        f"{wins} AS wins",
        f"{' AND '.join(tied)} AS is_tied",
        f"diff IS NOT NULL AND NOT (diff IN (1, -1) AND diff = -coalesce({diff_before}, -1L)) AS is_broken",
    )
    if arguments.seen is not None:
        return sequence.judged(chain, marks, arguments)
    if arguments.eras:
        rival = f"lag(ord) {window}"
        compared = f"own_time = lag(own_time) {window} AND (is_due OR waits) AND {incomparable('ord', rival)}"
        marks = (*marks, f"CASE WHEN {compared} THEN {rival} END AS rival")
    if arguments.inherits:
        return inherited.completed(chain.selectExpr("*", *marks), arguments)
    return chain.selectExpr(*arguments.columns, *marks)


def _compared(ranked: DataFrame, arguments: Arguments) -> DataFrame:
    """The winners of the batch with what their slot held just before, and what it holds after them."""
    window = arguments.over("time")
    is_sequence = arguments.seen is not None
    winners = ranked.where("wins AND time >= 0")
    if is_sequence and arguments.inherits:
        linked = sequence.given(winners, window, arguments)
    else:
        more = ", 'ord', CASE WHEN diff IS NOT NULL THEN ord END, 'is_new', diff IS NULL" if is_sequence else ""
        more += ", 'inherited', inherited" if arguments.inherits else ""
        held = f"named_struct('holds', op = ascii('u'), 'value', value, 'err', err{more})"
        counts = sequence.ACCEPTED_OR_COMMITTED if is_sequence else "true"
        linked = winners.selectExpr(
            "*",
            "op = ascii('u') AS holds",
            f"{arguments.latest(held, window, where=counts)} AS before",
            *([sequence.is_newest(window), "ord AS row_ord", "false AS gives"] if is_sequence else []),
        )
    return linked.where("own_time IS NOT NULL").selectExpr(
        "*",
        "coalesce(before.holds, false) AS had",
        f"coalesce(before.holds, false) AND holds AND {SAME_VALUE} AS is_same",
        *([sequence.SETTLES] if is_sequence else []),
    )


def _written(compared: DataFrame, arguments: Arguments) -> DataFrame:
    """One row per update and per row of operator state, unpacked; and per value that stays, only to be counted."""
    is_sequence = arguments.seen is not None
    found = rules.effects_sql(is_sequence=is_sequence)
    if arguments.is_new:  # a slot has at most one effect
        effects = compared.selectExpr("*", f"get({found}, 0) AS effect").where("effect IS NOT NULL")
    else:
        effects = compared.selectExpr("*", f"explode({found}) AS effect")
    cells = rules.written_sql(arguments.slot, is_sequence=is_sequence, inherits=arguments.inherits)
    chosen = effects.selectExpr("effect", "had", "holds", *[f"{sql} AS {name}" for name, sql in cells.items()])
    if arguments.inherits:  # what is known of an err stays in its payload
        chosen = chosen.withColumn("value", F.expr("IF(err IS NULL, value, NULL)"))
    values = [f"value.{name}" for name in arguments.values]
    return chosen.selectExpr(
        *["had", "holds", *arguments.keys, "time", "diff"],
        *values,
        *[f"err.{plain} AS {name}" for plain, name in ERR_CELLS.items()],
        *arguments.state_columns,
        f"CASE WHEN diff IS NOT NULL AND err IS NOT NULL THEN '{PartKind.ERRS}' ELSE part END AS part",
        *hashes([*arguments.keys, *values, "time", "diff", "err.kind", "err.key", "err.payload"]),
    )


def _published(arguments: Arguments) -> dict[str, str]:
    plain = zip(arguments.keys + arguments.values, arguments.schema.columns, strict=True)
    none = inherited_fields(arguments.schema) if arguments.guesses else []
    return {
        **{column.name: name for name, column in plain},
        **{TIME: "time", DIFF: "diff"},
        **{name: name for name in ERR_CELLS.values()},
        **{name: plain for plain, name in arguments.state_columns.items()},
        **{field.name: f"CAST(NULL AS {field.dataType.simpleString()})" for field in none},
        PART: "part",
    }
