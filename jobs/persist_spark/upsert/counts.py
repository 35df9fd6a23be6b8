"""What `persistent_upsert` counts while it runs, as SQL over the columns that live only between its steps.

Counted after the exchange, in the stage that writes: a retried task does not count a row twice.
`persist_spark.upsert.outcome` holds the counts after the action, and checks that they add up.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F

from persist_core.schema import PART
from persist_core.shard.batch import LATE_OPERATOR, ORDER_INDEX_OPERATOR, STASH_OPERATOR, PartKind
from persist_spark.frame import OP, SKIP, TRUNCATE

# Columns that live only between the steps of an upsert.
AT = "_persist_at"  # bigint: the original time, for records; the diff, for committed updates (see `_history`)
FROM = "_persist_from"  # int: where a row comes from, one of the five below
COMMITTED, STASHED, ARRIVED, EXPANDED, INDEXED = 0, 1, 2, 3, 4
PHASE = "_persist_phase"  # int: the outcome of a record, one of the three below
FINAL, PENDING, COUNTED = 0, 1, 2  # processed now, kept in the stash, only counted
LATE = "_persist_late"  # boolean: the record's own time lies before `lower`
VALUE = "_persist_value"  # struct of v0..: null for errs and tombstones, as `ERR` is for oks and tombstones
ERR = "_persist_err"  # struct of the err columns: null for a good record
WINS = "_persist_wins"  # boolean: the last row of its slot and time
TIED = "_persist_tied"
BROKEN = "_persist_broken"
VALUE_BEFORE, ERR_BEFORE = "_persist_value_before", "_persist_err_before"  # what the slot held just before
HAD = "_persist_had"  # boolean: the slot held a value just before
HOLDS = "_persist_holds"  # boolean: the row leaves a value in the slot
SIDE = "_persist_side"  # int: retract the value before, insert the row's value, stash it, change nothing
GOES, COMES, STAYS_OUT, STAYS = -1, 1, 0, 2
LOSES, ENTERS, FORGETS = 3, 4, 5  # in `sequence` order: a late record, an entry of the order index, one forgotten
BEATEN = "_persist_beaten"  # boolean: a winner of its time that lost to an order seen before
TIED_BEFORE = "_persist_tied_before"  # boolean: by canonical bytes alone
BEYOND = "_persist_beyond"  # boolean: it was not beaten, but a forgotten tombstone might be newer
HASHES = ("_persist_hash_0", "_persist_hash_1")
# A hash is summed in three limbs of at most so many bits. So no sum over fewer than 2**41 rows overflows, which is an
# error in ANSI mode and a wrong number without it.
_LIMB_BITS, LIMBS = 22, 3


def as_json(named: Mapping[str, str]) -> Column:
    """Aggregates as one JSON text `counts`: one message to the JVM instead of dozens.

    Text, since an observation gives a struct back as a row only from Spark 4 on.
    """
    struct = ", ".join(f"{sql} AS {name}" for name, sql in named.items())
    return F.expr(f"to_json(struct({struct}), map('ignoreNullFields', 'false')) AS counts")


def read_counts(*, is_sequence: bool = False) -> dict[str, str]:
    """What is counted of every row after the exchange. Names are the fields of `outcome.Read`."""
    is_record = f"{FROM} IN ({STASHED}, {ARRIVED})"
    is_live = f"({is_record} AND {PHASE} != {COUNTED})"
    is_past = f"({is_record} AND {PHASE} = {COUNTED} AND {OP} != '{SKIP}')"
    is_expanded = f"{FROM} = {EXPANDED}"
    is_truncate = f"{OP} = '{TRUNCATE}'"
    winner = f"({is_live} AND {WINS} AND {PHASE} = {FINAL})"
    eligible = f"(({winner} AND NOT {is_truncate}) OR ({WINS} AND {is_expanded}))"
    conditions = {
        "records_read": f"{FROM} = {ARRIVED}",
        "stash_before": f"{FROM} = {STASHED}",
        "truncated": is_expanded,
        "skipped": f"({is_record} AND {OP} = '{SKIP}') OR ({winner} AND {is_truncate})",
        "already_persisted": f"{is_past} AND {WINS}",
        "duplicates": f"({is_live} OR {is_past} OR {is_expanded}) AND NOT {WINS}",
        "order_ties": f"({is_live} OR {is_past}) AND {TIED}",
        "truncates": f"{is_live} AND {is_truncate} AND {PHASE} = {FINAL}",
        "eligible": eligible,
        "stashed": f"{is_live} AND {WINS} AND {PHASE} = {PENDING}",
        "late_times": f"{winner} AND {LATE}",
        "errors": f"{eligible} AND {ERR} IS NOT NULL",
        "broken": BROKEN,
    }
    if is_sequence:
        conditions |= {
            "errors": f"{conditions['errors']} AND NOT {BEATEN}",
            "order_ties": f"({conditions['order_ties']}) OR {TIED_BEFORE}",
            "late": f"{BEATEN} AND NOT {TIED_BEFORE}",
            "late_beyond_memory": BEYOND,
        }
    return {name: _count(condition) for name, condition in conditions.items()}


def emitted_counts(*, is_sequence: bool = False) -> dict[str, str]:
    """What is counted of every row written. Names are the fields of `outcome.Emitted`.

    `digest_*`: the sums of two hashes of each update, limb by limb: neither order nor files matter.
    """
    is_update = f"{SIDE} IN ({GOES}, {COMES})"
    conditions = {
        "output_count": is_update,
        "inserts": f"{SIDE} = {COMES} AND NOT {HAD}",
        "updates": f"{SIDE} = {COMES} AND {HAD}",
        "deletes": f"{SIDE} = {GOES} AND NOT {HOLDS}",
        "kept": f"{SIDE} = {STAYS}",
        "insertions": f"{PART} = '{PartKind.INSERTIONS}'",
        "retractions": f"{PART} = '{PartKind.RETRACTIONS}'",
        "err_insertions": f"{PART} = '{PartKind.ERRS}' AND {SIDE} = {COMES}",
        "err_retractions": f"{PART} = '{PartKind.ERRS}' AND {SIDE} = {GOES}",
        "stash_rows": f"{PART} = '{STASH_OPERATOR}'",
        **(
            {"index_rows": f"{PART} = '{ORDER_INDEX_OPERATOR}'", "late_rows": f"{PART} = '{LATE_OPERATOR}'"}
            if is_sequence
            else {}
        ),
    }
    counts = {name: _count(condition) for name, condition in conditions.items()}
    for i, name in enumerate(HASHES):
        counts |= limb_sums(f"digest_{i}", f"CASE WHEN {is_update} THEN {name} ELSE 0L END")
    return counts


def limb_sums(named: str, value: str, times: str = "1L") -> dict[str, str]:
    """The sums of an unsigned bigint's limbs, each row counted so many times. `whole_sum` puts them together."""
    mask = (1 << _LIMB_BITS) - 1
    limbs = [f"shiftrightunsigned({value}, {place * _LIMB_BITS}) & {mask}L" for place in range(LIMBS)]
    return {f"{named}_{place}": f"sum({times} * ({limb}))" for place, limb in enumerate(limbs)}


def whole_sum(sums: Mapping[str, int], named: str) -> int:
    """The sum whose limbs are these: of any size."""
    return sum(sums[f"{named}_{place}"] << (place * _LIMB_BITS) for place in range(LIMBS))


def _count(condition: str) -> str:
    """The number of rows for which it is true. Spark would compute `count_if` in a column of its own for each row."""
    return f"count(CASE WHEN {condition} THEN 1 END)"
