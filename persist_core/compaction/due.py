"""The debt of a shard, which maintenance would pay now. Which neighboring batches to merge next: size-tiered, with a
bound on what is rewritten and on what is left.

    batches of a shard, oldest first:  bottom | above ............ newest
                                          └─ rule 1: all of it ──────┘
                                               └─ rule 2: a tier ──┘

1. The bottom batch holds most of the living rows, so it is rewritten only if there are `BOTTOM_BATCHES` batches, and
   the ones above hold at least half of its rows, or a quarter of its rows are versions that `since` has passed. It is
   rewritten too if the batches above hold as many rows as it does.
2. Above it, a batch of `n` rows is in tier `log10(n / 2048)`. As soon as a tier has `FAN_IN` neighbors they merge. So a
   row is rewritten about once for each tier, and a tier keeps fewer than `FAN_IN` neighbors.

The size of a batch is the number of its rows. An empty batch at the end is left alone, because the next append may
extend it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from persist_core.contents.batch import HollowBatch
from persist_core.keys import owner_of
from persist_core.shard.history import advance_since, show_history
from persist_core.shard.state import ShardState
from persist_core.time_text import DAY_MS

# Simulated in docs/storage.md, section 3. A larger fan-in costs look-ups more files, a smaller share of the bottom
# costs reads more rows above it, and a larger one writes more.
FAN_IN = 10
SMALLEST_TIER_ROWS = 2_048
BOTTOM_SHARE = 2  # the bottom batch merges if the batches above hold at least one row for this many of its own
BOTTOM_BATCHES = 4
ENDED_SHARE = 4  # or if there is one version that ended before `since` for this many of its rows
MAX_INPUTS = 64  # of one merge: a shard that was never merged catches up in several

TASK_BATCHES = 8  # a merge of fewer batches and fewer rows costs less than the task that does it
TASK_ROWS = 100_000
TASK_SINCE_MS = DAY_MS  # nor is a shorter advance of `since` worth one, or one by less than a tenth of the history


def next_merge(batches: Sequence[HollowBatch], since: int | None = None) -> tuple[HollowBatch, ...] | None:
    """The neighbors to merge next, or `None` if nothing is due. At least two and at most `MAX_INPUTS`.

    `since`: the shard's. What ended at or before it, a merge drops.
    """
    closed = list(batches)
    while closed and closed[-1].is_empty:
        closed.pop()
    if len(closed) < 2:
        return None
    first = _tier_to_merge(closed[1:]) if not _takes_in_bottom(closed, since) else tuple(closed)
    if first is None or len(first) <= MAX_INPUTS:
        return first
    # A long list is first merged piece by piece: the newest pieces are small, and each is read once.
    return first[-MAX_INPUTS:]


def tier(rows: int) -> int:
    number = 0
    while rows >= SMALLEST_TIER_ROWS * FAN_IN ** (number + 1):
        number += 1
    return number


def _takes_in_bottom(batches: list[HollowBatch], since: int | None) -> bool:
    bottom, above = batches[0].counts.rows, sum(batch.counts.rows for batch in batches[1:])
    is_large = above * BOTTOM_SHARE >= bottom or _ended(batches, since) * ENDED_SHARE >= bottom
    return above >= bottom or (len(batches) >= BOTTOM_BATCHES and is_large)


def _ended(batches: list[HollowBatch], since: int | None) -> int:
    """A bound on the rows of versions that `since` has passed: of batches that end before it. A retraction
    stands for two rows, its own and the insertion that it ends."""
    passed = [batch for batch in batches if since is not None and batch.last_time <= since]
    return sum(batch.counts.history + 2 * batch.counts.retractions for batch in passed)


def _tier_to_merge(batches: list[HollowBatch]) -> tuple[HollowBatch, ...] | None:
    """The neighbors of the lowest tier that has `FAN_IN` of them. Smaller batches between them are taken in."""
    tiers = [tier(batch.counts.rows) for batch in batches]
    for level in sorted(set(tiers)):
        for is_level, group in itertools.groupby(range(len(batches)), key=lambda i: tiers[i] <= level):
            members = list(group)
            while members and tiers[members[-1]] < level:
                members.pop()
            if is_level and len(members) >= FAN_IN:
                return tuple(batches[members[0] : members[-1] + 1])
    return None


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
