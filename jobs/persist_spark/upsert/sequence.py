"""`sequence` order in the plan of an upsert: the highest order ever seen for a slot wins (docs/semantics.md, part 4).

    records, stash ──┐ below the floor? below what is forgotten?                            ┌─> updates, as in `plan`
    order index ─────┼───────────────> one exchange by slot ──> beaten by the highest       ├─> order index
    state, orders ───┘                                          order seen before? ─────────┴─> late records

What a slot has seen is the highest of: the order of its row, its newest entry in the order index (`seen`), and, within
the batch, the records at earlier times. A record below that, or below the floor, is beaten: it changes nothing.

Orders are compared as structs: `o`, the order, and, in the thorough plan, `c`, the canonical bytes of the value, null
for a tombstone.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from persist_core.schema import (
    ACTED,
    BEATEN_BY,
    DELETED,
    FLOOR,
    FORGOTTEN,
    IN_ROW,
    INDEX_KIND,
    RAISED,
    TIME,
)
from persist_core.shard.batch import LATE_OPERATOR, ORDER_INDEX_OPERATOR
from persist_core.shard.parts import ERR_IDENTITY
from persist_spark.frame import BAD_KEY, OP, ORDER, TRUNCATE, UPSERT
from persist_spark.upsert.counts import (
    ARRIVED,
    AT,
    BEATEN,
    BEYOND,
    BROKEN,
    COMES,
    COMMITTED,
    COUNTED,
    ENTERS,
    ERR,
    ERR_BEFORE,
    EXPANDED,
    FINAL,
    FORGETS,
    FROM,
    GOES,
    HAD,
    HOLDS,
    INDEXED,
    LOSES,
    PENDING,
    PHASE,
    SIDE,
    STASHED,
    STAYS,
    STAYS_OUT,
    TIED,
    TIED_BEFORE,
    VALUE,
    VALUE_BEFORE,
    WINS,
)
from persist_spark.upsert.rules import CANONICAL, ENTRY, IS_OLD, TRUNCATED, UpsertRules
from persist_spark.upsert.seen import IS_UNORDERED

_KNOWS = "_persist_knows"  # struct: the newest entry of the slot, if there is any
_ROW = "_persist_row"  # struct: the newest committed update: whether it holds a value, and its order
_HIGHEST = "_persist_highest"  # struct: the highest order among the records before
_FIRST = "_persist_first"  # the time of the first record at or above the floor
_AWAITED = "_persist_awaited"  # boolean: a record of the slot was stashed before this batch
_BEFORE, _IS_NEWEST = "_persist_before", "_persist_is_newest"
_RANK_BEFORE = "_persist_rank_before"  # struct: the order of the committed row that the slot held just before
_FLOOR_NOW = "_persist_floor_now"
_ENTERED = "_persist_entered"  # struct of kind, time and order: the entry that a row writes
_INT_ARRAY = "ARRAY<INT>"
_IS_RECORD = f"{FROM} IN ({STASHED}, {ARRIVED}, {EXPANDED})"
_ACTS = f"({_IS_RECORD} AND {PHASE} = {FINAL} AND {OP} != '{TRUNCATE}')"
IS_TRUNCATED = f"{FROM} != {INDEXED} AND NOT {IS_UNORDERED}"  # a row of a slot that a truncate may empty
PARTS = (
    f" WHEN {SIDE} = {LOSES} THEN '{LATE_OPERATOR}' WHEN {SIDE} IN ({ENTERS}, {FORGETS}) THEN '{ORDER_INDEX_OPERATOR}'"
)


def expanded(both: DataFrame, rules: UpsertRules) -> DataFrame:
    """The chain with only those truncates that end a value in their slot, and each row with the floor at its time.

    Truncates are rows `EXPANDED`, one a slot and truncate.
    """
    so_far = f"OVER (PARTITION BY {', '.join(rules.slot)} ORDER BY {TIME} RANGE BETWEEN UNBOUNDED PRECEDING AND"
    counts = f"CASE WHEN {_ACTS} AND {TRUNCATED} IS NULL THEN {_precedence(rules)} END"
    found = both.selectExpr(
        *[*rules.chain, CANONICAL],
        *_known_of_slot(rules),
        f"max({counts}) {so_far} 1 PRECEDING) AS {_HIGHEST}",
        f"max(CASE WHEN {FROM} = {EXPANDED} THEN {ORDER} END) {so_far} CURRENT ROW) AS {_FLOOR_NOW}",
    )
    newest = f"greatest({_seen(rules)}, {_HIGHEST})"
    tombstone = _precedence(rules, canonical="CAST(NULL AS BINARY)")
    ends = f"{TRUNCATED} IS NULL AND {newest}.c IS NOT NULL AND {newest} < {tombstone}"
    kept = found.where(f"{FROM} != {EXPANDED} OR ({ends})")
    above = f"CASE WHEN {ORDER} < {_FLOOR_NOW} THEN {_FLOOR_NOW} END"
    floor = f"CASE WHEN {FROM} != {EXPANDED} THEN greatest({TRUNCATED}, {above}) END AS {TRUNCATED}"
    return kept.selectExpr(*[floor if name == TRUNCATED else name for name in rules.chain], CANONICAL)


def _precedence(rules: UpsertRules, order: str = ORDER, canonical: str = CANONICAL) -> str:
    """SQL: what decides between two records of a slot."""
    return f"named_struct('o', {order}{f', {chr(39)}c{chr(39)}, {canonical}' if rules.is_thorough else ''})"


def _known_of_slot(rules: UpsertRules) -> list[str]:
    """What the shard knows of the slot: columns over the rows of the chain in their order."""
    before = rules.before(rules.by_rank)
    row = f"CASE WHEN {FROM} = {COMMITTED} THEN named_struct('holds', {AT} > 0, 'p', {_precedence(rules)}) END"
    awaited = f"coalesce(max({FROM} = {STASHED}) OVER (PARTITION BY {', '.join(rules.slot)}), false)"
    return [
        f"last({ENTRY}, true) {before} AS {_KNOWS}",
        f"last({row}, true) {before} AS {_ROW}",
        f"{awaited if rules.may_stash else 'false'} AS {_AWAITED}",
    ]


def _seen(rules: UpsertRules) -> str:
    """SQL: the order that the shard has seen of the slot, or null."""
    entry = f"{_KNOWS}.rank"
    return (
        f"CASE WHEN {_ROW}.holds THEN greatest({_ROW}.p, CASE WHEN {_KNOWS}.kind = '{RAISED}'"
        f" THEN {_precedence(rules, entry, f'{_ROW}.p.c')} END)"
        f" WHEN {_KNOWS}.kind = '{DELETED}' AND NOT ({_KNOWS}.is_old AND NOT {_AWAITED})"
        f" THEN {_precedence(rules, entry, 'CAST(NULL AS BINARY)')} END"
    )


def judged(chain: DataFrame, rules: UpsertRules) -> DataFrame:
    """Mark, in each slot, the last row of each time, and whether a higher order was seen before it.

    Spark evaluates each frame of a window in a pass of its own: all that looks back has one.
    """
    window, before = rules.by_rank, rules.before(rules.by_rank)
    own = _precedence(rules)
    tied = [f"lead({name}) {window} <=> {name}" for name in (TIME, ORDER)]
    if rules.is_thorough:  # the same record twice is not a tie
        tied.append(f"NOT lead({CANONICAL}) {window} <=> {CANONICAL}")
    diff_before = f"coalesce(last(CASE WHEN {FROM} = {COMMITTED} THEN {AT} END) {before}, -1L)"
    above = f"CASE WHEN {_ACTS} AND {TRUNCATED} IS NULL THEN {TIME} END"
    known = chain.selectExpr(
        "*",
        f"coalesce(lead({TIME}) {window} != {TIME}, true) AS {WINS}",
        f"{' AND '.join(tied)} AS {TIED}",
        f"{FROM} = {COMMITTED} AND NOT ({AT} IN (1, -1) AND {AT} = -{diff_before}) AS {BROKEN}",
        *_known_of_slot(rules),
        f"max(CASE WHEN {_ACTS} THEN {own} END) {before} AS {_HIGHEST}",
        f"coalesce(min({above}) {before}, {above}) AS {_FIRST}",
    )
    seen = known.selectExpr("*", f"{_seen(rules)} AS _persist_seen")
    higher = f"greatest(_persist_seen, {_HIGHEST})"
    compared = seen.selectExpr("*", f"{higher} AS _persist_higher", f"{WINS} AND {_ACTS} AS _persist_judged")
    is_equal = f"_persist_higher.o <=> {ORDER} AND {TRUNCATED} IS NULL"
    is_below = f"{TRUNCATED} IS NOT NULL OR coalesce({own} < _persist_higher, false)"
    beaten = f"_persist_judged AND ({is_below})"
    # Without canonical bytes, an equal order may be the same record again: the thorough plan finds out.
    tied_before = f"_persist_judged AND {is_equal}" + (f" AND ({is_below})" if rules.is_thorough else "")
    beyond = f"_persist_judged AND NOT ({is_below}) AND _persist_seen IS NULL AND {_FIRST} = {TIME} AND {IS_OLD}"
    return compared.selectExpr(
        *[*rules.chain, WINS, TIED, BROKEN, _KNOWS, _AWAITED],
        f"{beaten} AS {BEATEN}",
        f"{tied_before} AS {TIED_BEFORE}",
        f"{beyond} AS {BEYOND}",
        f"CASE WHEN {beaten} AND NOT ({is_equal}) THEN greatest(_persist_higher.o, {TRUNCATED}) END AS {BEATEN_BY}",
    )


def sided(ranked: DataFrame, rules: UpsertRules) -> DataFrame:
    """Compare each winner with the one before it that was not beaten.

    One row per update, per record to be stashed, per late record and per entry of the index; and, only to be counted,
    per value that stays.
    """
    window = rules.over(TIME)
    accepted = f"({_ACTS} AND NOT {BEATEN})"
    before = (
        f"CASE WHEN {FROM} = {COMMITTED} OR {accepted} THEN"
        f" named_struct('origin', {FROM}, 'holds', {OP} = '{UPSERT}', 'value', {VALUE}, 'err', {ERR},"
        f" 'rank', CASE WHEN {FROM} = {COMMITTED} THEN {ORDER} END) END"
    )
    linked = ranked.where(f"{WINS} AND {PHASE} != {COUNTED}").selectExpr(
        "*",
        f"{OP} = '{UPSERT}' AS {HOLDS}",
        f"last({before}, true) {rules.before(window)} AS {_BEFORE}",
        f"lead(CASE WHEN {accepted} THEN true END) IGNORE NULLS {window} IS NULL AS {_IS_NEWEST}",
    )
    same = [f"{VALUE} <=> {_BEFORE}.value", *[f"{ERR}.{name} <=> {_BEFORE}.err.{name}" for name in ERR_IDENTITY]]
    compared = linked.where(f"{FROM} != {COMMITTED}").selectExpr(
        "*",
        f"coalesce({_BEFORE}.holds, false) AS {HAD}",
        f"coalesce({_BEFORE}.holds, false) AND {HOLDS} AND {' AND '.join(same)} AS _persist_same",
        f"{_KNOWS}.is_old AND NOT {_AWAITED} AS _persist_forgets",
    )
    entered = compared.selectExpr("*", f"{_entered(accepted)} AS {_ENTERED}")
    exploded = entered.selectExpr(
        *[*rules.slot, TIME, AT, OP, ORDER, HAD, HOLDS, VALUE, ERR, BEATEN_BY, _ENTERED],
        f"coalesce({ENTRY}, {_KNOWS}) AS {_KNOWS}",
        f"{_BEFORE}.value AS {VALUE_BEFORE}",
        f"{_BEFORE}.err AS {ERR_BEFORE}",
        f"{_BEFORE}.rank AS {_RANK_BEFORE}",
        f"explode(concat({_update_sides(accepted)}, {_index_sides(accepted)})) AS {SIDE}",
    )
    return exploded.selectExpr(*[f"{sql} AS {name}" for name, sql in _cells(rules).items()])


def _update_sides(accepted: str) -> str:
    nothing = f"CAST(array() AS {_INT_ARRAY})"
    # A value that a beaten record finds stays, and is counted as such.
    stays = f"CASE WHEN {HAD} THEN array({STAYS}) ELSE {nothing} END"
    loses = f"CASE WHEN {BEATEN_BY} IS NOT NULL THEN array({LOSES}) ELSE {nothing} END"
    return (
        f"CASE WHEN {FROM} = {INDEXED} THEN {nothing}"
        f" WHEN {PHASE} = {PENDING} THEN CASE WHEN {FROM} = {ARRIVED} THEN array({STAYS_OUT}) ELSE {nothing} END"
        f" WHEN {BEATEN} THEN concat({stays}, {loses})"
        f" WHEN NOT {accepted} THEN {nothing}"
        f" WHEN _persist_same THEN array({STAYS}) WHEN {HAD} AND {HOLDS} THEN array({GOES}, {COMES})"
        f" WHEN {HAD} THEN array({GOES}) WHEN {HOLDS} THEN array({COMES}) ELSE {nothing} END"
    )


def _entered(accepted: str) -> str:
    """SQL: the entry that a row adds to the index, or null. It says what changed."""

    def entry(kind: str, acted: str = TIME, rank: str = ORDER) -> str:
        return f"struct('{kind}' AS kind, {acted} AS acted, {rank} AS rank)"

    is_known = f"{_KNOWS}.kind IN ('{DELETED}', '{RAISED}')"
    newest = (
        f"CASE WHEN {HOLDS} AND _persist_same THEN {entry(RAISED)}"
        f" WHEN NOT {HOLDS} AND {FROM} != {EXPANDED} THEN {entry(DELETED)} WHEN {is_known} THEN {entry(IN_ROW)} END"
    )
    # Only now stashed: from now on the slot is awaited. What was forgotten stays so.
    was_idle = f"coalesce({_BEFORE}.origin, {COMMITTED}) = {COMMITTED}"
    revives = f"{PHASE} = {PENDING} AND {was_idle} AND _persist_forgets"
    return (
        f"CASE WHEN {OP} = '{TRUNCATE}' AND {PHASE} = {FINAL} THEN {entry(FLOOR)}"
        f" WHEN {accepted} AND {_IS_NEWEST} THEN {newest}"
        f" WHEN {revives} THEN {entry(IN_ROW, f'{_KNOWS}.acted + 1', f'{_KNOWS}.rank')} END"
    )


def _index_sides(accepted: str) -> str:
    """SQL: the entry, and the order of the tombstone that it buries."""
    buries = f"(({accepted} AND {_IS_NEWEST}) OR {PHASE} = {PENDING}) AND {_ENTERED} IS NOT NULL AND _persist_forgets"
    return (
        f"concat(CASE WHEN {_ENTERED} IS NOT NULL THEN array({ENTERS}) ELSE CAST(array() AS {_INT_ARRAY}) END,"
        f" CASE WHEN {buries} THEN array({FORGETS}) ELSE CAST(array() AS {_INT_ARRAY}) END)"
    )


def _cells(rules: UpsertRules) -> dict[str, str]:
    """What each row writes, by the name of the column.

    A retraction has the order of its row, for restores; or null, if the row came in this batch: an equal value may have
    come after it with another order, and a restore finds the row among the same updates.
    """
    is_update = f"{SIDE} IN ({GOES}, {COMES}, {STAYS}, {STAYS_OUT})"
    is_record = f"{SIDE} IN ({STAYS_OUT}, {LOSES})"
    is_floor = f"({SIDE} = {ENTERS} AND {_ENTERED}.kind = '{FLOOR}')"
    return {
        **{key: f"CASE WHEN {SIDE} != {FORGETS} AND NOT {is_floor} THEN {key} END" for key in rules.keys},
        TIME: (
            f"CASE {SIDE} WHEN {LOSES} THEN {AT} WHEN {ENTERS} THEN {_ENTERED}.acted"
            f" WHEN {FORGETS} THEN {_KNOWS}.acted ELSE {TIME} END"
        ),
        AT: AT,
        **{name: name for name in (SIDE, HAD, HOLDS, VALUE_BEFORE, ERR_BEFORE)},
        **{name: f"CASE WHEN {is_update} THEN {name} END" for name in (VALUE, ERR)},
        OP: f"CASE WHEN {is_record} THEN {OP} END",
        ORDER: (
            f"CASE WHEN {is_record} OR {SIDE} = {COMES} THEN {ORDER}"
            f" WHEN {SIDE} = {GOES} THEN {_RANK_BEFORE}"
            f" WHEN {SIDE} = {ENTERS} THEN {_ENTERED}.rank WHEN {SIDE} = {FORGETS} THEN {_KNOWS}.rank END"
        ),
        BAD_KEY: f"CASE WHEN ({is_record} OR {SIDE} = {ENTERS}) AND NOT {is_floor} THEN {BAD_KEY} END",
        INDEX_KIND: (f"CASE {SIDE} WHEN {ENTERS} THEN {_ENTERED}.kind WHEN {FORGETS} THEN '{FORGOTTEN}' END"),
        BEATEN_BY: f"CASE WHEN {SIDE} = {LOSES} THEN {BEATEN_BY} END",
        ACTED: f"CASE WHEN {SIDE} = {LOSES} THEN {TIME} END",
    }
