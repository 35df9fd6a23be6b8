"""What one drain counted, and the identities that hold between the counts (docs/semantics.md, section 4).

Plain data that the driver makes from two observations of the action that wrote the batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from persist_core.errors import InvariantViolation
from persist_core.row_text import show_row
from persist_core.shard.batch import LATE_OPERATOR, ORDER_INDEX_OPERATOR, STASH_OPERATOR, BatchCounts
from persist_core.shard.stats import DrainStats
from persist_spark.stage import StateRows
from persist_spark.upsert.counts import HASHES, whole_sum
from persist_spark.upsert.rules import SequenceRules


@dataclass(frozen=True)
class Read:
    """Counts of the input, after the exchange by slot. See `counts.read_counts`."""

    records_read: int
    stash_before: int
    truncated: int
    skipped: int
    already_persisted: int
    duplicates: int
    order_ties: int
    truncates: int
    eligible: int
    stashed: int
    late_times: int
    errors: int
    broken: int
    late: int = 0
    late_beyond_memory: int = 0

    def with_closed(self, stash_rows: int) -> Read:
        """The same with the rest of the stash, of which `stash_rows` are known. Raises `InvariantViolation`."""
        closed = stash_rows - self.stash_before
        if closed < 0:
            raise InvariantViolation(
                f"{self.stash_before} records were read of the stash, which the commit before says holds {stash_rows}."
                " Nothing was committed; this is a defect, please report it with the job's log"
            )
        return replace(self, stash_before=stash_rows, stashed=self.stashed + closed)


@dataclass(frozen=True)
class Emitted:
    """Counts of the output, and its digest. See `counts.emitted_counts`."""

    output_count: int
    inserts: int
    updates: int
    deletes: int
    kept: int
    insertions: int
    retractions: int
    err_insertions: int
    err_retractions: int
    stash_rows: int
    digest_0_0: int
    digest_0_1: int
    digest_0_2: int
    digest_1_0: int
    digest_1_1: int
    digest_1_2: int
    index_rows: int = 0
    late_rows: int = 0


@dataclass(frozen=True)
class Outcome:
    """All that the driver knows about one drain."""

    read: Read
    emitted: Emitted
    is_thorough: bool
    sequence: SequenceRules | None = None

    @classmethod
    def observed(
        cls,
        read: Mapping[str, Any],
        emitted: Mapping[str, Any],
        *,
        is_thorough: bool,
        sequence: SequenceRules | None = None,
        stash_rows: int | None = None,
    ) -> Outcome:
        """From the two observations. Raises `InvariantViolation` naming both sides if the counts do not add up.

        `stash_rows`: of the whole stash before, if only what the batch can change was read: the rest stays.
        Counts of a plan whose output is discarded (`needs_thorough_plan`) are not checked.
        """
        outcome = cls(
            read=Read(**{name: int(value or 0) for name, value in read.items()}),
            emitted=Emitted(**{name: int(value or 0) for name, value in emitted.items()}),
            is_thorough=is_thorough,
            sequence=sequence,
        )
        if outcome.needs_thorough_plan:
            return outcome
        if stash_rows is not None:
            outcome = replace(outcome, read=outcome.read.with_closed(stash_rows))
        outcome._check()
        return outcome

    @property
    def needs_thorough_plan(self) -> bool:
        """True if the normal plan found records that only the thorough one handles: discard its output."""
        read = self.read
        return not self.is_thorough and max(read.truncates, read.order_ties, read.late_beyond_memory) > 0

    @property
    def state_rows(self) -> dict[str, StateRows]:
        """The rows of the stash and, in `sequence` order, of the order index and the late records."""
        rows = {STASH_OPERATOR: StateRows(self.emitted.stash_rows, self.read.stashed)}
        if self.sequence is None:
            return rows
        index, late = self.emitted.index_rows, self.emitted.late_rows
        # What a batch adds to has rows: a state without any is not stored.
        rows[ORDER_INDEX_OPERATOR] = StateRows(index, index + self.sequence.has_index)
        rows[LATE_OPERATOR] = StateRows(late, late + self.sequence.has_late)
        return rows

    @property
    def counts(self) -> BatchCounts:
        """Updates, for the manifest."""
        emitted = self.emitted
        return BatchCounts(
            insertions=emitted.insertions,
            retractions=emitted.retractions,
            err_insertions=emitted.err_insertions,
            err_retractions=emitted.err_retractions,
        )

    @property
    def rows_digest(self) -> str:
        """The order-independent digest of all updates, for `persist_core.shard.batch.contents_digest`."""
        emitted = asdict(self.emitted)
        sums = (whole_sum(emitted, f"digest_{i}") for i in range(len(HASHES)))
        return f"xxhash64-sums:{self.emitted.output_count}:{':'.join(map(str, sums))}"

    @property
    def stats(self) -> DrainStats:
        """What a run reports."""
        read, emitted = self.read, self.emitted
        return DrainStats(
            records_read=read.records_read,
            stash_before=read.stash_before,
            truncated=read.truncated,
            eligible=read.eligible,
            result_count=emitted.updates + emitted.deletes + emitted.kept,
            inserts=emitted.inserts,
            updates=emitted.updates,
            deletes=emitted.deletes,
            output_count=emitted.output_count,
            already_persisted=read.already_persisted,
            stashed=read.stashed,
            duplicates=read.duplicates,
            late=read.late,
            late_beyond_memory=read.late_beyond_memory,
            late_times=read.late_times,
            order_ties=read.order_ties,
            skipped=read.skipped,
            errors=read.errors,
        )

    def _check(self) -> None:
        self.stats.check()
        if self.emitted.output_count != self.counts.updates:
            raise InvariantViolation(
                f"output_count = {self.emitted.output_count}, but the parts get {show_row(asdict(self.counts))}."
                " Nothing was committed; this is a defect, please report it with the job's log"
            )
