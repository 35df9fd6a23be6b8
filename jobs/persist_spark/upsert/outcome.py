"""Counts of an upsert while it runs, and the identities that hold between the counts (docs/semantics.md, section 4).

Conditions are SQL over the columns of the plan. The driver makes an `Outcome` of the two observations of the action
that wrote the batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from persist_core.contents.batch import LATE_OPERATOR, ORDER_INDEX_OPERATOR, STASH_OPERATOR, BatchCounts
from persist_core.contents.stats import BatchWarning, DrainStats
from persist_core.errors import InvariantViolation
from persist_core.row_text import show_row
from persist_core.schema import BAD_FILE, ERR_KIND, LATE_TIME, MISSING_ORDER
from persist_spark.counted import digest_sums, rows_digest, tally
from persist_spark.stage import StateRows, Written
from persist_spark.upsert.arguments import ACTS, Arguments, SeenBefore
from persist_spark.upsert.sequence import IS_UNORDERED

_READ = {
    "records_read": "own_time IS NOT NULL AND NOT stashed AND NOT expanded",
    "stash_before": "stashed",
    "truncated": "expanded",
    "skipped": "NOT is_due AND op = ascii('s') OR is_due AND wins AND op = ascii('t')",
    "already_persisted": "wins AND own_time IS NOT NULL AND time < 0 AND op != ascii('s')",
    "duplicates": "NOT wins AND own_time IS NOT NULL AND op != ascii('s')",
    "order_ties": "is_tied AND own_time IS NOT NULL AND op != ascii('s') AND NOT expanded",
    "truncates": "is_due AND op = ascii('t')",
    "eligible": f"wins AND {ACTS}",
    "stashed": "wins AND waits",
    "late_times": "wins AND is_due AND is_late",
    "errors": f"wins AND {ACTS} AND err IS NOT NULL AND op = ascii('u')",
    "bad_records": f"wins AND {ACTS} AND err.kind NOT IN ('{BAD_FILE}', '{LATE_TIME}') AND op = ascii('u')",
    "broken": "is_broken",
}
_UNPLACED = f"coalesce(err.kind = '{MISSING_ORDER}', false)"
_READ_OF_SEQUENCE = {
    "unplaced": f"own_time IS NOT NULL AND {_UNPLACED}",
    "placed": f"own_time IS NOT NULL AND op != ascii('s') AND NOT expanded AND NOT {IS_UNORDERED}",
    "errors": f"{_READ['errors']} AND NOT is_beaten",
    "bad_records": f"{_READ['bad_records']} AND NOT is_beaten",
    "order_ties": f"({_READ['order_ties']}) OR is_tied_before",
    "late": "is_beaten AND NOT is_tied_before AND NOT expanded",
    "late_beyond_memory": "is_beyond",
}
_READ_OF_ERAS = {"incomparable": "rival IS NOT NULL"}
_EMITTED = {
    "inserts": "diff > 0 AND NOT had",
    "updates": "diff > 0 AND had",
    "deletes": "diff < 0 AND NOT holds",
    "kept": "part IS NULL",
    "output_count": "diff IS NOT NULL",
    "insertions": f"diff > 0 AND {ERR_KIND} IS NULL",
    "retractions": f"diff < 0 AND {ERR_KIND} IS NULL",
    "err_insertions": f"diff > 0 AND {ERR_KIND} IS NOT NULL",
    "err_retractions": f"diff < 0 AND {ERR_KIND} IS NOT NULL",
    "stash_rows": f"diff IS NULL AND part = '{STASH_OPERATOR}'",
}
_EMITTED_OF_SEQUENCE = {
    "index_rows": f"diff IS NULL AND part = '{ORDER_INDEX_OPERATOR}'",
    "late_rows": f"diff IS NULL AND part = '{LATE_OPERATOR}'",
}
# Where no slot holds anything, nothing waits, and records have no times. An aggregate costs the same if it counts none.
_NONE_IF_NEW = {
    *("stash_before", "truncated", "already_persisted", "stashed", "late_times", "broken"),
    *("updates", "deletes", "kept", "retractions", "err_retractions", "stash_rows"),
}
# What only the thorough plan handles.
_FOR_THOROUGH = ("truncates", "order_ties", "late_beyond_memory")


def read_counts(arguments: Arguments) -> dict[str, str]:
    """Aggregates over every row after the exchange, by name."""
    of_sequence = {} if arguments.seen is None else _READ_OF_SEQUENCE
    of_eras = {} if arguments.eras is None else _READ_OF_ERAS
    of_guess = {"unsent": "is_partial"} if arguments.guesses else {}
    return _tallied(_READ | of_sequence | of_eras | of_guess, arguments.is_new)


def emitted_counts(arguments: Arguments) -> dict[str, str]:
    """Aggregates over every row written, by name. `digest_*`: the sums of two hashes of each update."""
    of_sequence = {} if arguments.seen is None else _EMITTED_OF_SEQUENCE
    return _tallied(_EMITTED | of_sequence, arguments.is_new) | digest_sums()


def _tallied(conditions: Mapping[str, str], is_new: bool) -> dict[str, str]:
    return {name: "0L" if is_new and name in _NONE_IF_NEW else sql for name, sql in tally(conditions).items()}


@dataclass(frozen=True, kw_only=True)
class Outcome(Written):
    """All that the driver knows about one drain. `counted`: by the names of `read_counts` and `emitted_counts`.

    It `is_discarded` if another plan has to do the batch: a thorough one, because the normal plan found records that
    only that handles (`needs_thorough_plan`), or one with registers.
    """

    counted: Mapping[str, int]
    stats: DrainStats
    is_thorough: bool
    needs_thorough_plan: bool

    @classmethod
    def observed(
        cls,
        counted: Mapping[str, Any],
        warnings: tuple[BatchWarning, ...],
        arguments: Arguments,
        stash_rows: int | None,
    ) -> Outcome:
        """From the two observations. Raises `InvariantViolation` naming both sides if the counts do not add up.

        `stash_rows`: of the whole stash before, if only what the batch can change was read: the rest stays.
        Counts of a plan whose output is discarded are not checked.
        """
        found = {name: int(value or 0) for name, value in counted.items()}
        found["warnings"] = sum(each.count for each in warnings)
        needs_more = not arguments.is_thorough and any(found.get(name) for name in _FOR_THOROUGH)
        is_discarded = needs_more or bool(found.get("unsent"))
        if stash_rows is not None and not is_discarded:
            closed = stash_rows - found["stash_before"]
            if closed < 0:
                raise InvariantViolation(
                    f"{found['stash_before']} records were read of the stash, which the commit before says holds"
                    f" {stash_rows}. Nothing was committed; this is a defect, please report it with the job's log"
                )
            found |= {"stash_before": stash_rows, "stashed": found["stashed"] + closed}
        stats = DrainStats.from_json({**found, "result_count": found["updates"] + found["deletes"] + found["kept"]})
        names = ("insertions", "retractions", "err_insertions", "err_retractions")
        counts = BatchCounts(**{name: found[name] for name in names})
        if not is_discarded:
            stats.check()
            if found["output_count"] != counts.updates:
                raise InvariantViolation(
                    f"output_count = {found['output_count']}, but the parts get {show_row(found)}."
                    " Nothing was committed; this is a defect, please report it with the job's log"
                )
        return cls(
            counts=counts,
            state_rows=_state_rows(found, arguments.seen),
            rows_digest=rows_digest(found, found["output_count"]),
            report=stats.to_json(),
            warnings=warnings,
            is_discarded=is_discarded,
            counted=found,
            stats=stats,
            is_thorough=arguments.is_thorough,
            needs_thorough_plan=needs_more,
        )


def _state_rows(found: Mapping[str, int], seen: SeenBefore | None) -> dict[str, StateRows]:
    """The rows of the stash and, in `sequence` order, of the order index and the late records."""
    rows = {STASH_OPERATOR: StateRows(found["stash_rows"], found["stashed"])}
    if seen is not None:
        index, late = found["index_rows"], found["late_rows"]
        # What a batch adds to has rows: a state without any is not stored.
        rows[ORDER_INDEX_OPERATOR] = StateRows(index, index + seen.has_index)
        rows[LATE_OPERATOR] = StateRows(late, late + seen.has_late)
    return rows
