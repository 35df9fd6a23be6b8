"""The debt of a shard, which maintenance would pay now: from its state, and one listing for GC."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from persist_core.compaction.due import next_merge
from persist_core.contents.batch import HollowBatch
from persist_core.keys import owner_of
from persist_core.shard.history import advance_since, show_history
from persist_core.shard.state import ShardState
from persist_core.time_text import DAY_MS

TASK_BATCHES = 8  # a merge of fewer batches and fewer rows costs less than the task that does it
TASK_ROWS = 100_000
TASK_SINCE_MS = DAY_MS  # nor is a shorter advance of `since` worth one, or one by less than a tenth of the history


@dataclass(frozen=True)
class DueMerge:
    """The merge to do next: of how many batches, and how many rows they hold. A step merges fewer.

    Their history is not counted: it is mostly carried over as files.
    """

    batches: int
    rows: int

    def __str__(self) -> str:
        return f"a merge of {self.batches} batches, {self.rows} rows" if self.batches > 1 else "the rest of a merge"


@dataclass(frozen=True)
class Debt:
    """The debt of a shard. `merge` is the next one; others may follow it. `expired_leases` are names of readers.

    `since` can advance by `since_behind_ms`, which the history of `history_ms` no longer needs. GC has been due for
    `gc_due_ms`, negative before that. It is `None` if it is not known, because the state does not say it.
    """

    merge: DueMerge | None = None
    expired_leases: tuple[str, ...] = ()
    since_behind_ms: int = 0
    history_ms: int | None = None
    gc_due_ms: int | None = None

    @property
    def collects(self) -> bool:
        return self.gc_due_ms is not None and self.gc_due_ms >= 0

    def __bool__(self) -> bool:
        return bool(self.merge or self.expired_leases or self.since_behind_ms or self.collects)

    @property
    def is_worth_a_task(self) -> bool:
        """True if it is enough to start a task for it. Smaller debt waits until it has grown."""
        merge = self.merge
        is_large = merge is not None and (merge.batches >= TASK_BATCHES or merge.rows >= TASK_ROWS)
        is_behind = self.since_behind_ms >= max(TASK_SINCE_MS, (self.history_ms or 0) // 10)
        return is_large or is_behind or bool(self.expired_leases) or self.collects

    def __str__(self) -> str:
        leases = f"expired leases: {len(self.expired_leases)}" if self.expired_leases else ""
        since = f"since can advance by {show_history(self.since_behind_ms)}" if self.since_behind_ms else ""
        collects = "GC" if self.collects else ""
        return ", ".join(filter(None, (str(self.merge or ""), since, leases, collects))) or "nothing"


def debt_of(state: ShardState, *, now_ms: int) -> Debt:
    after, advance = advance_since(state, now_ms=now_ms)
    behind_ms = (advance.since.time or 0) - (advance.before.time or 0)
    return Debt(
        due_merge_of(state),
        tuple(sorted(state.leases.keys() - after.leases.keys())),
        behind_ms,
        state.history_ms,
    )


def merge_due(state: ShardState) -> tuple[HollowBatch, ...] | None:
    """The batches to merge next, oldest first; `None` if nothing is due, as in a dropped shard. A merge that has begun
    goes on first; but not in a fork, which shares its files.

    Batches from before and after a column was dropped are not merged while history from before it is kept.
    """
    is_over = state.is_dropped or state.origin.moved_to is not None
    if is_over:
        return None
    for batch in state.batches:
        if batch.is_partial and owner_of(batch.manifest_key) == state.shard:
            return (batch,)
    since = state.since.time
    borders = [border for border in state.schemas.borders() if since is not None and since < border]
    groups = itertools.groupby(state.batches, key=lambda batch: sum(border <= batch.lower for border in borders))
    due = (next_merge(list(batches), since) for _, batches in groups)
    return next((each for each in due if each is not None), None)


def due_merge_of(state: ShardState) -> DueMerge | None:
    """The size of `merge_due`."""
    due = merge_due(state)
    return None if due is None else DueMerge(len(due), sum(batch.counts.rows for batch in due))
