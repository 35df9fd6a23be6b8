"""Times and frontiers (docs/semantics.md, section 1).

A timestamp is an int in `[0, MAX_TIME]`. A `Frontier` is an antichain over that total order: one timestamp `t`
("updates at times >= t may still arrive"), or empty ("closed"). Frontiers are ordered by progress; the empty one is the
greatest. Intervals are half-open: `lower` belongs to them, `upper` does not.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from persist_core.time_text import check_time, show_time


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
        return show_time(self.time)


CLOSED = Frontier(None)
ZERO = Frontier(0)
