"""Times and frontiers (docs/semantics.md, section 1).

A timestamp is an int in `[0, MAX_TIME]`. A `Frontier` is an antichain over that total order: one timestamp `t`
("updates at times >= t may still arrive"), or empty ("closed"). Frontiers are ordered by progress; the empty one is the
greatest. Intervals are half-open and printed `[lower, upper)`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from persist_core.errors import InvalidTime

MAX_TIME = 2**63 - 1


def check_time(value: object, *, what: str = "time") -> int:
    """Return `value` if it is a timestamp, else raise `InvalidTime` naming `what`."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_TIME:
        raise InvalidTime(f"{what} is {value!r}; expected an integer in [0, {MAX_TIME}]")
    return value


@functools.total_ordering
@dataclass(frozen=True)
class Frontier:
    """One timestamp, or `None` for the empty (closed) frontier."""

    time: int | None

    def __post_init__(self) -> None:
        if self.time is not None:
            check_time(self.time, what="frontier")

    @property
    def is_closed(self) -> bool:
        """True if no more updates will arrive."""
        return self.time is None

    def is_past(self, time: int) -> bool:
        """True if `time` is final: this frontier lies strictly beyond it."""
        return self.time is None or time < self.time

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, Frontier):
            return NotImplemented
        if self.time is None:
            return False
        return other.time is None or self.time < other.time

    def __str__(self) -> str:
        return "closed" if self.time is None else str(self.time)


CLOSED = Frontier(None)
ZERO = Frontier(0)


def interval(lower: Frontier, upper: Frontier) -> str:
    """`[lower, upper)`, in the form that every message uses."""
    return f"[{lower}, {upper})"
