"""The merge plan: what it leaves is bounded, and so is what it rewrites, whatever the sizes of the appends."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from persist_core.compaction.due import FAN_IN, MAX_INPUTS, SMALLEST_TIER_ROWS, next_merge, tier
from persist_core.contents.batch import BatchCounts, HollowBatch

APPENDS = 1_000


def batch(lower: int, upper: int, rows: int) -> HollowBatch:
    return HollowBatch(lower, upper, f"s/{lower}-{upper}", "digest", BatchCounts(rows), rows)


def merged(batches: tuple[HollowBatch, ...], share: float) -> HollowBatch:
    """A run of these; `share` of its rows are left, because others ended them."""
    return batch(batches[0].lower, batches[-1].upper or 0, int(sum(each.counts.rows for each in batches) * share))


SIZES: dict[str, Callable[[random.Random], int]] = {
    "equal": lambda _: 5_000,
    "one row": lambda _: 1,
    "none": lambda _: 0,
    "any": lambda chance: int(10 ** chance.uniform(0, 6)),
    "now and then a large one": lambda chance: 1_000_000 if chance.random() < 0.02 else 50,
}


@pytest.mark.parametrize("share", [1.0, 0.7], ids=["all rows stay", "some rows end"])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("first", [0, 2_000_000], ids=["from nothing", "after a load"])
def test_what_is_left_and_what_is_rewritten_are_bounded(
    first: int, sizes: Callable[[random.Random], int], share: float
) -> None:
    chance = random.Random(f"{first} {share}")
    batches = [batch(0, 1, first)]
    appended, rewritten = first, 0
    for time in range(1, APPENDS):
        batches.append(batch(time, time + 1, sizes(chance)))
        appended += batches[-1].counts.rows
        merges = 0
        while (due := next_merge(batches)) is not None:
            merges += 1
            assert merges <= 10
            assert 2 <= len(due) <= MAX_INPUTS
            at = batches.index(due[0])
            assert tuple(batches[at : at + len(due)]) == due
            rewritten += sum(each.counts.rows for each in due)
            batches[at : at + len(due)] = [merged(due, share if at == 0 else 1.0)]
        filled = [each for each in batches if each.counts.rows]
        tiers = tier(max([1, *(each.counts.rows for each in filled)])) + 1
        assert len(filled) <= FAN_IN * tiers + 1
        assert next_merge(batches) is None
    levels = max(1.0, math.log(max(appended, 2) / SMALLEST_TIER_ROWS, FAN_IN))
    # About once a tier, four times for the bottom; tiny batches are merged among themselves as long as they are tiny.
    assert rewritten <= appended * (levels + 5) + APPENDS * SMALLEST_TIER_ROWS * 2


def test_an_unmerged_shard_catches_up_in_bounded_pieces() -> None:
    batches = [batch(time, time + 1, 700) for time in range(1_000)]
    merges = 0
    while (due := next_merge(batches)) is not None:
        assert len(due) <= MAX_INPUTS
        at = batches.index(due[0])
        batches[at : at + len(due)] = [merged(due, 1.0)]
        merges += 1
    assert merges < 200
    assert len(batches) <= FAN_IN * 4


def test_an_empty_last_batch_is_left_for_the_next_append() -> None:
    batches = [batch(0, 1, 100), batch(1, 2, 100), batch(2, 3, 0)]
    due = next_merge(batches)
    assert due is not None
    assert due[-1] == batches[1]


def test_a_small_share_above_the_bottom_rewrites_nothing() -> None:
    small = [batch(time, time + 1, 1_000) for time in range(1, 7)]
    assert next_merge([batch(0, 1, 1_000_000), *small]) is None


def test_a_bottom_merges_when_half_of_its_rows_lie_above() -> None:
    above = [batch(time, time + 1, 200) for time in range(1, 4)]
    assert next_merge([batch(0, 1, 1_300), *above]) is None
    assert next_merge([batch(0, 1, 1_200), *above[:2]]) is None
    assert next_merge([bottom := batch(0, 1, 1_200), *above]) == (bottom, *above)


def test_versions_that_since_has_passed_make_a_merge_due() -> None:
    raw = [HollowBatch(time, time + 1, f"s/{time}", "digest", BatchCounts(50, 50), 1) for time in range(10, 14)]
    batches = [HollowBatch(0, 10, "s/0", "digest", BatchCounts(insertions=1_200), 1, 5), *raw]
    assert next_merge(batches) is None
    assert next_merge(batches, since=11) is None, "200 rows are of ended versions: 1/6"
    assert next_merge(batches, since=12) == tuple(batches), "300 are: 1/4"
    run = HollowBatch(0, 10, "s/0", "digest", BatchCounts(insertions=1_200, history=300), 1, 5)
    assert next_merge([run, *raw], since=9) == (run, *raw)
    assert next_merge([run, *raw], since=8) is None
    assert next_merge([run], since=9) is None, "one batch alone waits for the next"
