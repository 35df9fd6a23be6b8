"""Which neighboring batches to merge next: size-tiered, with a bound on what is rewritten and on what is left.

    batches of a shard, oldest first:  bottom | above ............ newest
                                          └─ rule 1: all of it ──────┘
                                               └─ rule 2: a tier ──┘

1. The bottom batch holds most of the living rows, so it is rewritten only if the batches above it hold at least a
   third of its rows (and there are `FAN_IN` batches, or they hold as many rows as it does). Each of its rows is then
   rewritten at most three times for each row that was appended.
2. Above it, a batch of `n` rows is in tier `log10(n / 2048)`. As soon as a tier has `FAN_IN` neighbors they merge. So a
   row is rewritten about once for each tier, and a tier keeps fewer than `FAN_IN` neighbors.

The size of a batch is the number of its rows. An empty batch at the end is left alone, because the next append may
extend it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from persist_core.shard.batch import HollowBatch

# Simulated for uniform updates of 2.5 % of the rows at a time, with all history kept: rows written for each row of
# input are 6.5 with these, 8.3 with a fan-in of 8 and a share of 4. A larger fan-in costs look-ups more files, and a
# smaller share costs reads more rows above the bottom.
FAN_IN = 10
SMALLEST_TIER_ROWS = 2_048
BOTTOM_SHARE = 3  # the bottom batch merges if the batches above hold at least one row for this many of its own
MAX_INPUTS = 64  # of one merge: a shard that was never merged catches up in several


def next_merge(batches: Sequence[HollowBatch]) -> tuple[HollowBatch, ...] | None:
    """The neighbors to merge next, or `None` if nothing is due. At least two and at most `MAX_INPUTS`."""
    closed = list(batches)
    while closed and closed[-1].is_empty:
        closed.pop()
    if len(closed) < 2:
        return None
    first = _tier_to_merge(closed[1:]) if not _takes_in_bottom(closed) else tuple(closed)
    if first is None or len(first) <= MAX_INPUTS:
        return first
    # A long list is first merged piece by piece: the newest pieces are small, and each is read once.
    return first[-MAX_INPUTS:]


def tier(rows: int) -> int:
    """The tier of a batch of so many rows."""
    number = 0
    while rows >= SMALLEST_TIER_ROWS * FAN_IN ** (number + 1):
        number += 1
    return number


def _takes_in_bottom(batches: list[HollowBatch]) -> bool:
    bottom, above = batches[0].counts.rows, sum(batch.counts.rows for batch in batches[1:])
    return above >= bottom or (len(batches) >= FAN_IN and above * BOTTOM_SHARE >= bottom)


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
