"""Simulate how many files a shard has, and what its merges write, for files of several sizes. Nothing is stored.

    python -m tests.benchmarks.file_sizes --gigabytes 1000 --appends 400

Which batches merge, and where a step ends, are decisions of the product (`compaction/due.py`, `compaction/steps.py`).
Keys are uniform. 70 % of the appended bytes are updates; the bottom makes history of what they replace. Files of
appends span all keys.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import click

from persist_core.compaction.due import next_merge
from persist_core.compaction.files import target_bytes
from persist_core.compaction.steps import budget_of, end_of_step
from persist_core.contents.batch import BatchCounts, HollowBatch
from persist_core.contents.key_range import KeyRange

KEYS = 1 << 50
BYTES_PER_ROW = 100
UPDATES = 0.7
APPENDED_FILE_BYTES = 64 << 20
MB, GB = 1 << 20, 1 << 30


@dataclass(frozen=True)
class File:
    """A file of a run or an append: keys from `low` up to `high`, evenly spread; `new` of its bytes are appends that
    the bottom has not taken in."""

    low: int
    high: int
    size: int
    new: float

    @property
    def sized(self) -> tuple[KeyRange, int]:
        return KeyRange((self.low,), (self.high - 1,)), self.size

    def between(self, low: int, high: int) -> float:
        """Its bytes in a range of keys."""
        shared = min(self.high, high) - max(self.low, low)
        return self.size * max(0, shared) / (self.high - self.low)


@dataclass
class Shard:
    """`files` of each batch, by its lower; a target of 0 is the product's."""

    target: int
    batches: list[HollowBatch] = field(default_factory=list)
    files: dict[int, list[File]] = field(default_factory=dict)
    written: int = 0
    appended: int = 0
    steps: int = 0
    largest: float = 0.0
    most_files: float = 0.0

    def add(self, files: list[File]) -> None:
        """One append, and all merges that are due then."""
        number = self.batches[-1].upper or 0 if self.batches else 0
        self.batches.append(_batch(number, number + 1, files))
        self.files[number] = files
        self.appended += _sum(files)
        while (due := next_merge(self.batches)) is not None:
            first = self.batches.index(due[0])
            merged = self._merge([file for batch in due for file in self.files.pop(batch.lower)], is_bottom=first == 0)
            self.batches[first : first + len(due)] = [_batch(due[0].lower, due[-1].upper or 0, merged)]
            self.files[due[0].lower] = merged
        count, size = sum(map(len, self.files.values())), sum(map(_sum, self.files.values()))
        self.most_files = max(self.most_files, count / max(1, size / APPENDED_FILE_BYTES))

    def _merge(self, files: list[File], *, is_bottom: bool) -> list[File]:
        """All steps of one merge: the files of the run."""
        whole = _sum(files) + sum(map(_sum, self.files.values()))
        target = self.target or target_bytes(_sum(files))
        done: list[File] = []
        after = 0
        while files:
            end = end_of_step([file.sized for file in files], budget_of(whole), (after,) if after else ())
            until = KEYS if end is None else int(end[0])
            taken = [file for file in files if file.low < until]
            self.steps, self.written = self.steps + 1, self.written + _sum(taken)
            self.largest = max(self.largest, _sum(taken) / whole)
            share = 1.0
            if is_bottom:  # replaced rows go to history, which no merge writes again
                share = 1 - UPDATES * sum(file.new for file in taken) / max(1, _sum(taken))
            done += _cut(taken, after, until, target, share, is_old=is_bottom)
            files = [*_cut(taken, until, KEYS, target), *(file for file in files if file.low >= until)]
            after = until
        return done


def _cut(
    files: Sequence[File], low: int, high: int, target: float, share: float = 1.0, *, is_old: bool = False
) -> list[File]:
    """Files of about the target's size of what these hold from `low` to `high`, merged."""
    density, pieces = 0.0, []
    changes = sorted(
        (min(max(place, low), high), sign * file.size / (file.high - file.low))
        for file in files
        for place, sign in ((file.low, 1), (file.high, -1))
    )
    for (a, change), (b, _) in itertools.pairwise(changes):
        density += change
        if b > a and density * (b - a) > 1:
            pieces.append((a, b, share * density * (b - a)))
    total = sum(size for _, _, size in pieces)
    if total < 1:
        return []
    new = 0.0 if is_old else sum(file.new * file.between(low, high) / file.size for file in files if file.size) / total
    count = max(1, round(total / target))
    ends = list(_ends(pieces, [total * (number + 1) / count for number in range(count - 1)]))
    bounds = [pieces[0][0], *ends, pieces[-1][1]]
    size = int(total / count)
    return [File(a, b, size, new * size) for a, b in itertools.pairwise(bounds) if b > a]


def _ends(pieces: Sequence[tuple[int, int, float]], sums: Sequence[float]) -> Iterator[int]:
    """The keys up to which the pieces hold these many bytes."""
    wanted, held = iter(sums), 0.0
    each = next(wanted, None)
    for a, b, size in pieces:
        while each is not None and held + size >= each:
            yield a + int((b - a) * (each - held) / size)
            each = next(wanted, None)
        held += size


def _sum(files: Sequence[File]) -> int:
    return sum(file.size for file in files)


def _batch(lower: int, upper: int, files: Sequence[File]) -> HollowBatch:
    size = _sum(files)
    return HollowBatch(
        lower, upper, f"{lower}-{upper}", f"{lower:032x}{upper:032x}", BatchCounts(size // BYTES_PER_ROW), size
    )


def simulate(base: int, append: int, appends: int, target: int) -> Shard:
    """A shard of `base` bytes after so many appends."""
    shard = Shard(target)
    shard.add(_cut([File(0, KEYS, base, 0.0)], 0, KEYS, target or target_bytes(base)))
    shard.appended, count = 0, -(-append // APPENDED_FILE_BYTES)
    for _ in range(appends):
        shard.add([File(0, KEYS, append // count, append / count)] * count)
    return shard


@click.command(help=__doc__)
@click.option("--gigabytes", default=100, show_default=True, help="The base.")
@click.option("--appends", default=400, show_default=True, help="Together they are twice the base.")
def main(gigabytes: int, appends: int) -> None:
    for target in (64 * MB, 128 * MB, 256 * MB, 512 * MB, 0):
        shard = simulate(gigabytes * GB, 2 * gigabytes * GB // appends, appends, target)
        bottom = len(shard.files[0])
        click.echo(
            f"{target // MB or 'product'} MB: written {shard.written / shard.appended:.2f},"
            f" largest {shard.largest:.3f}, {shard.steps} merges, {bottom} files at the bottom,"
            f" {sum(map(len, shard.files.values()))} in all, worst {shard.most_files:.2f} for 64 MB"
        )


if __name__ == "__main__":
    main()
