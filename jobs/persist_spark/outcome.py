"""What one drain counted, and the identities that hold between the counts (SEMANTICS, section 4).

Plain data: the driver makes it out of two observations of the action that wrote the batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from persist_core.batch import BatchCounts
from persist_core.errors import InvariantViolation


@dataclass(frozen=True)
class Read:
    """Counts of what came in, after the exchange by slot. See `upsert._read_metrics`."""

    records: int
    stash_before: int
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


@dataclass(frozen=True)
class Emitted:
    """Counts of what goes out, and its digest. See `upsert._emitted_metrics`."""

    output_count: int
    inserts: int
    updates: int
    deletes: int
    insertions: int
    retractions: int
    err_insertions: int
    err_retractions: int
    stash_rows: int
    digest_0: int
    digest_1: int


@dataclass(frozen=True)
class Outcome:
    """All that the driver knows of one drain. Built by `observed`, which asserts what must hold."""

    read: Read
    emitted: Emitted
    is_thorough: bool

    @classmethod
    def observed(cls, read: Mapping[str, Any], emitted: Mapping[str, Any], *, is_thorough: bool) -> Outcome:
        """From the two observations. Raises `InvariantViolation` naming both sides where counts don't add up."""
        outcome = cls(
            read=Read(**{name: int(value or 0) for name, value in read.items()}),
            emitted=Emitted(**{name: int(value or 0) for name, value in emitted.items()}),
            is_thorough=is_thorough,
        )
        outcome._check()
        return outcome

    @property
    def needs_thorough_plan(self) -> bool:
        """True where the normal plan met what only the thorough one gets right: throw its output away."""
        return not self.is_thorough and (self.read.truncates > 0 or self.read.order_ties > 0)

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
        """The order-independent digest of all updates, for `persist_core.batch.contents_digest`."""
        return f"xxhash64-sums:{self.emitted.output_count}:{self.emitted.digest_0}:{self.emitted.digest_1}"

    def stats(self) -> dict[str, int]:
        """`DrainStats` as plain data, for the manifest."""
        read, emitted = self.read, self.emitted
        return {
            "records": read.records,
            "stash_before": read.stash_before,
            "eligible": read.eligible,
            "result_count": read.eligible,
            "inserts": emitted.inserts,
            "updates": emitted.updates,
            "deletes": emitted.deletes,
            "output_count": emitted.output_count,
            "already_persisted": read.already_persisted,
            "stashed": read.stashed,
            "duplicates": read.duplicates,
            "late": 0,
            "late_times": read.late_times,
            "order_ties": read.order_ties,
            "skipped": read.skipped,
            "errors": read.errors,
        }

    def _check(self) -> None:
        read, emitted = self.read, self.emitted
        _same(
            "records read + stash before",
            read.records + read.stash_before,
            "eligible + already_persisted + stashed + duplicates + skipped",
            read.eligible + read.already_persisted + read.stashed + read.duplicates + read.skipped,
        )
        _same(
            "output_count",
            emitted.output_count,
            "inserts + 2 x updates + deletes",
            emitted.inserts + 2 * emitted.updates + emitted.deletes,
        )
        _same("output_count", emitted.output_count, "updates in the parts", self.counts.updates)


def _same(left_name: str, left: int, right_name: str, right: int) -> None:
    if left != right:
        raise InvariantViolation(
            f"counts of this run don't add up: {left_name} = {left}, but {right_name} = {right}. Nothing was committed;"
            " this is a defect, please report it with the job's log"
        )
