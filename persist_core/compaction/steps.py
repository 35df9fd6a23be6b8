"""Which keys a step of a merge takes: a large merge goes from the lowest key to the highest, a range at a time.

    keys of the files      |----a----|----b----|----c----|      a run, cut into files
                           |-------d------|-------e------|      another one
                           └─ this step ──┘                     until the first key of `c`: a, b and d
                                          └─ later: c, e, and the rest of b or d beyond the key, as files of their own

A step rewrites whole files: all that begin before the place where it ends. Their rows before that place are
merged. Their other rows are written as they are, sorted, so that later steps meet small ranges of them.

1. A step ends beyond the one before, so a merge ends.
2. Of the places within its budget, it takes the one with the fewest bytes to write for each byte of files that end
   there. If none ends (files of commits have keys from low to high), it sorts as many as the budget allows.
3. It rewrites more than its budget only if that is less than the first files: then until one of them ends.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from persist_core.contents.key_range import Key, KeyRange

BUDGET_BYTES = 2 << 30
BUDGET_SHARE = 20  # or one part in so many of the shard, if that is more: a merge has at most about as many steps

Sized = tuple[KeyRange, int]
_Place = tuple[Key, int, int]  # a key, the bytes of files that begin before it, and of the ones that end before it


def budget_of(shard_bytes: int, budget_bytes: int = BUDGET_BYTES) -> int:
    """How many bytes one step of a merge may rewrite, in a shard of so many bytes."""
    return max(budget_bytes, shard_bytes // BUDGET_SHARE)


def end_of_step(files: Sequence[Sized], budget_bytes: int, after: Key = ()) -> Key | None:
    """The first key that the step does not merge; `None` if it merges all the rest.

    `files`: the ranges and sizes of the files to merge, from the key `after` on, which the step before has reached.
    """
    if sum(size for _, size in files) <= budget_bytes:
        return None
    places = list(_places(files, after))
    within = [place for place in places if place[1] <= budget_bytes]
    if done := [place for place in within if place[2]]:
        return min(done, key=lambda place: (place[1] / place[2], -place[1]))[0]
    if within and within[-1][1] > budget_bytes // 2:
        return within[-1][0]
    return next((key for key, _, over in places if over), None)


def _places(files: Sequence[Sized], after: Key) -> Iterator[_Place]:
    begins = sorted((max(keys.begin, after), size) for keys, size in files)
    ends = sorted(((keys.end, size) for keys, size in files), reverse=True)
    begun = over = 0
    for key, sizes in itertools.groupby(begins, key=lambda each: each[0]):
        while ends and ends[-1][0] < key:
            over += ends.pop()[1]
        if begun:
            yield key, begun, over
        begun += sum(size for _, size in sizes)


def alone(ranges: Iterable[KeyRange]) -> list[bool]:
    """For each range, whether it meets none of the others."""
    known = list(ranges)
    found = [False] * len(known)
    order = sorted(range(len(known)), key=lambda number: known[number].begin)
    reached: tuple[object, ...] = ()  # before every key
    for number, following in itertools.pairwise([*order, None]):
        assert number is not None
        keys = known[number]
        meets_next = following is not None and known[following].begin < keys.end
        found[number] = not (meets_next or (reached and keys.begin < reached))
        reached = max(reached, keys.end)
    return found
