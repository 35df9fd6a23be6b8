"""The steps of a merge: each ends beyond the one before, stays within its budget, and together they meet every file."""

from __future__ import annotations

import random

import pytest

from persist_core.compaction.files import target_bytes
from persist_core.compaction.steps import BUDGET_BYTES, Sized, alone, budget_of, end_of_step
from persist_core.contents.key_range import EVERYTHING, Key, KeyRange, spanning

SEEDS = range(30)


def run(chance: random.Random, files: int, size: int, keys: int = 10_000) -> list[Sized]:
    """Sorted rows, cut into files."""
    cuts = sorted(chance.sample(range(keys), 2 * files))
    return [(KeyRange((cuts[2 * i],), (cuts[2 * i + 1],)), size) for i in range(files)]


def cut(files: list[Sized], until: Key) -> list[Sized]:
    """The files after a step: all beyond it, and one with the rest of what it has cut, half of their bytes."""
    later = [each for each in files if each[0].begin >= until]
    rest = [(keys, size) for keys, size in files if keys.begin < until < keys.end]
    if not rest:
        return later
    last = spanning([keys for keys, _ in rest]).last
    return [*later, (KeyRange(until, last), sum(size for _, size in rest) // 2)]


@pytest.mark.parametrize("seed", SEEDS)
def test_steps_advance_within_their_budget_to_the_end(seed: int) -> None:
    chance = random.Random(seed)
    files = [each for _ in range(6) for each in run(chance, chance.randrange(1, 60), chance.randrange(1, 9))]
    budget, steps = sum(size for _, size in files) // 10 + 50, 0
    after: Key = ()
    while (until := end_of_step(files, budget, after)) is not None:
        assert until > after
        taken = sum(size for keys, size in files if keys.begin < until)
        assert taken <= budget
        files, after, steps = cut(files, until), until, steps + 1
    assert sum(size for _, size in files) <= budget
    assert 3 <= steps <= 20


def test_a_merge_within_its_budget_is_one_step() -> None:
    files = run(random.Random(1), 20, 5)
    assert end_of_step(files, 100) is None
    assert end_of_step(files, 99) is not None
    assert end_of_step([], 0) is None


def test_the_budget_is_a_share_of_large_shards() -> None:
    assert budget_of(1 << 30) == BUDGET_BYTES
    assert budget_of(1 << 40) == (1 << 40) // 20
    assert budget_of(1 << 40, 1 << 39) == 1 << 39


def test_files_that_begin_at_one_key_are_one_step() -> None:
    """However small the budget: a step that does not advance would be repeated."""
    wide = [(KeyRange((1, number), (9, 9)), 10) for number in (1, 1, 1)]
    assert end_of_step(wide, 1) is None, "no key to end at"
    assert end_of_step([*wide, (KeyRange((5, 5), (6, 6)), 1)], 1) is None, "no file has ended"
    assert end_of_step([*wide, (KeyRange((5, 5), (6, 6)), 1)], 30) == (5, 5), "these are sorted first"
    assert end_of_step([(EVERYTHING, 10), *wide], 10) == (1, 1), "files without bounds begin before all keys"


def test_no_step_of_a_small_budget_ends_before_a_file_does() -> None:
    """Steps from one first key of a commit's files to the next would write the same rows again and again."""
    commits = [(KeyRange((number,), (999 - number,)), 10) for number in range(8)]
    base = [(KeyRange((100 * place,), (100 * place + 99,)), 20) for place in range(10)]
    assert end_of_step([*commits, *base], 20) == (100,)


def test_a_step_ends_beyond_files_that_hold_the_last_end() -> None:
    """A file of the step before may begin before its end, and so may two."""
    begun = [(KeyRange((1,), (8,)), 10), (KeyRange((3,), (9,)), 10), (KeyRange((7,), (9,)), 10)]
    assert end_of_step(begun, 20, (4,)) == (7,)
    assert end_of_step(begun[:2], 10, (4,)) is None


def test_a_step_ends_where_the_fewest_bytes_are_cut() -> None:
    files = [(KeyRange((10 * i,), (10 * i + 9,)), 10) for i in range(20)]
    assert end_of_step(files, 156) == (150,)
    wide = (KeyRange((145,), (155,)), 5)
    assert end_of_step([*files, wide], 156) == (140,)
    assert end_of_step([*files, wide], 166) == (160,)


@pytest.mark.parametrize("seed", SEEDS)
def test_alone_is_meeting_no_other(seed: int) -> None:
    chance = random.Random(seed)

    def bound() -> Key | None:
        length = chance.choice([0, 1, 2, 2, 2])
        return tuple(chance.randrange(12) for _ in range(length)) or None

    ranges = []
    for _ in range(chance.randrange(9)):
        first, last = bound(), bound()
        if first and last and first[: len(last)] > last[: len(first)]:
            first, last = last, first
        ranges.append(KeyRange(first, last))
    expected = [
        not any(keys.meets(other) for place, other in enumerate(ranges) if place != number)
        for number, keys in enumerate(ranges)
    ]
    assert alone(ranges) == expected


def test_a_range_spans_all_keys_that_start_with_a_bound() -> None:
    assert spanning([KeyRange((1,), ("a",)), KeyRange((2,), ("a", 5))]) == KeyRange((1,), ("a",))


@pytest.mark.parametrize(
    ("run_mb", "file_mb"),
    [(10, 32), (1_024, 32), (1_600, 50), (100_000, 64), (256 << 10, 128), (1 << 20, 512), (9 << 20, 512)],
)
def test_files_grow_with_their_run(run_mb: int, file_mb: int) -> None:
    assert target_bytes(run_mb << 20) == file_mb << 20
