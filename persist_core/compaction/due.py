"""Which neighboring batches to merge next: size-tiered, with a bound on what is rewritten and on what is left.

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

from persist_core.contents.batch import HollowBatch

# Simulated in docs/storage.md, section 3. A larger fan-in costs look-ups more files, a smaller share of the bottom
# costs reads more rows above it, and a larger one writes more.
FAN_IN = 10
SMALLEST_TIER_ROWS = 2_048
BOTTOM_SHARE = 2  # the bottom batch merges if the batches above hold at least one row for this many of its own
BOTTOM_BATCHES = 4
ENDED_SHARE = 4  # or if there is one version that ended before `since` for this many of its rows
MAX_INPUTS = 64  # of one merge: a shard that was never merged catches up in several


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
