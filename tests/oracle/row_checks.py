"""Checks of rows and bad values in plain Python: what a record becomes, and what a batch warns of.

raw cells ──bad value of a lenient column──> null, and a mark ──check of `err` is false──> an err of `check/NAME`
winners of the batch ──marks, checks of `warn` and `fail`──> a count for each name
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tests.oracle.consolidate import Err
from tests.oracle.record import Record, comparable

Row = Mapping[str, Any]
Judge = Callable[[Row], bool | None]
"""A condition on a row. None is not a failure; an exception is one."""


@dataclass(frozen=True)
class Read:
    """A record, the row that it carries (key included), and the columns that had bad values."""

    record: Record
    row: Row
    marks: tuple[str, ...] = ()


def fails(judge: Judge, row: Row) -> bool:
    """True if a row fails a check."""
    try:
        return judge(row) is False
    except ArithmeticError:
        return True


def refused(read: Read, checks: Mapping[str, Judge], key: bytes, payload: bytes) -> Read:
    """The record as an err of the first check that it fails, if it fails one."""
    if isinstance(read.record.value, Err):
        return read
    name = next((name for name, judge in checks.items() if fails(judge, read.row)), None)
    if name is None:
        return read
    return replace(read, record=replace(read.record, value=Err(f"check/{name}", key, payload, "")))


def warned(reads: Iterable[Read], checks: Mapping[str, Judge]) -> dict[str, int]:
    """The warnings of a batch at one time: of the last record of each slot, if it is good."""
    last: dict[Any, Read] = {}
    for read in reads:
        known = last.get(read.record.slot)
        if known is None or comparable(read.record.order) > comparable(known.record.order):
            last[read.record.slot] = read
    found: Counter[str] = Counter()
    for read in last.values():
        if isinstance(read.record.value, tuple):
            found.update(f"column {name}" for name in read.marks)
            found.update(f"check {name}" for name, judge in checks.items() if fails(judge, read.row))
    return dict(found)
