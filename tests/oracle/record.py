"""Records of the oracle, and what a drain makes of them (docs/semantics.md, section 4).

A `Record` is a row of the records frame (docs/architecture.md). A slot is the tuple of the key columns, or the bytes
that identify a record whose key could not be decoded; control records and truncates have none (`None`).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from persist_core.contents.stats import DrainStats
from persist_core.errors import BadBounds
from persist_core.time_text import check_time, show_interval, show_time
from tests.oracle.consolidate import NOT_SENT, Err, Slot, UpsertDiff, Value
from tests.oracle.sequence import LateRecord, OrderMemory


class Mark(enum.Enum):
    """A mark that a record may carry instead of a value."""

    TOMBSTONE = "d"
    TRUNCATE = "t"
    SKIP = "s"


TOMBSTONE, TRUNCATE, SKIP = Mark.TOMBSTONE, Mark.TRUNCATE, Mark.SKIP


@dataclass(frozen=True)
class Record:
    """One record read or stashed. `time` is its own (ms), `None` if the description gives it.

    `order` is compared as Spark compares structs: field by field, null first. It ends with the source position.
    """

    slot: Slot | None
    value: Value | Mark
    time: int | None
    order: tuple[Any, ...]


@dataclass(frozen=True)
class Drained:
    """The result of a drain: updates to append (consolidated, by time), the stash after it, the counts, and in
    `sequence` order the orders that were seen and the records that lost to them."""

    updates: tuple[UpsertDiff, ...]
    stash: tuple[Record, ...]
    stats: DrainStats
    orders: OrderMemory | None = None
    late: tuple[LateRecord, ...] = ()


@dataclass(frozen=True)
class Upserted:
    """The result of `persistent_upsert`: as of a drain, oks and errs apart."""

    oks: tuple[UpsertDiff, ...]
    errs: tuple[UpsertDiff, ...]
    stash: tuple[Record, ...]
    stats: DrainStats


def floor_of(lower: int, upper: int | None, as_of_frontier: int | None) -> int:
    """The least time that an update may get."""
    floor = max(check_time(lower, what="lower"), 0 if as_of_frontier is None else check_time(as_of_frontier))
    if upper is not None and floor >= check_time(upper, what="upper"):
        raise BadBounds(
            f"times cannot be advanced to {show_time(floor)} in a batch {show_interval(lower, upper)}; expected less"
            " than its upper"
        )
    return floor


def comparable(order: Any) -> Any:
    """Order keys as Spark compares structs: null first."""
    if order is None:
        return (0,)
    return (1, tuple(comparable(part) for part in order) if isinstance(order, tuple) else order)


def is_partial(value: Value | Mark) -> bool:
    """True if it does not carry the values of all columns."""
    return isinstance(value, tuple) and NOT_SENT in value


@dataclass(frozen=True)
class Arrival:
    """A record with its times settled: `time` is where it acts, `at` its original time."""

    record: Record
    time: int
    at: int
    is_expanded: bool = False


def inheriting(value: Value | Mark, held: Value | Mark | None) -> tuple[Any, ...]:
    """The cells of a partial `value`, with what it does not carry from `held`, as far as it is known."""
    assert isinstance(value, tuple)
    before = held.cells if isinstance(held, Err) else held if isinstance(held, tuple) else None
    known = (NOT_SENT,) * len(value) if before is None else before
    return tuple(b if v is NOT_SENT else v for v, b in zip(value, known, strict=True))
