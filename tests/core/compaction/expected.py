"""The expected answer to every read of a shard in a random history: brute force over all updates."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from persist_core.schema import CollectionSchema

Row = tuple[Any, ...]
Contents = Counter[Row]


@dataclass
class Expected:
    """All updates ever committed, with time and diff; an err's row is (key..., kind, message, key bytes, payload,
    position).

    `orders`: in `sequence` order, of each insertion, by row and time. `ids`: keys have so many different ones.
    """

    schema: CollectionSchema
    oks: list[tuple[Row, int, int]] = field(default_factory=list)
    errs: list[tuple[Row, int, int]] = field(default_factory=list)
    orders: dict[tuple[Row, int], int] = field(default_factory=dict)
    ids: int = 4

    def order(self, updates: list[tuple[Row, int, int]], row: Row, time: int) -> int:
        """The order of a row as of `time`: its newest insertion's."""
        newest = max(at for each, at, diff in updates if each == row and diff > 0 and at <= time)
        return self.orders[row, newest]

    def snapshot(self, time: int) -> Contents:
        found: Contents = Counter()
        for row, at, diff in self.oks:
            if at <= time:
                found[row] += diff
        return +found

    def errors(self, time: int) -> Contents:
        """Each err as often as it is there, with message and time of its newest insertion."""
        sums: Counter[Row] = Counter()
        newest: dict[Row, tuple[int, Row]] = {}
        for row, at, diff in self.errs:
            if at <= time:
                identity = self.identity(row)
                sums[identity] += diff
                if diff > 0:
                    newest[identity] = max(newest.get(identity, (-1, row)), (at, row))
        return Counter({(*newest[each][1], newest[each][0]): count for each, count in sums.items() if count > 0})

    def identity(self, err: Row) -> Row:
        kind, _, key, payload, _ = err[len(self.schema.key) :]
        return (kind, key, payload)

    def changes(self, updates: list[tuple[Row, int, int]], after: int, through: int) -> Contents:
        return Counter((*row, at, diff) for row, at, diff in updates if after < at <= through)

    def until(self, upper: int) -> Expected:
        """The records up to a checkpoint."""
        return Expected(
            self.schema,
            [each for each in self.oks if each[1] < upper],
            [each for each in self.errs if each[1] < upper],
            dict(self.orders),
            self.ids,
        )
