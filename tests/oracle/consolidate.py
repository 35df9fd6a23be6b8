"""Keyed collections in plain Python: values, updates, and their invariants (docs/semantics.md, section 1).

A slot is the tuple of the key columns, or the bytes that identify a record whose key could not be decoded. A value is
the tuple of the value columns, or an `Err`. Slow and obvious: this is what fast code is compared with.
"""

from __future__ import annotations

import enum
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from persist_core.errors import InvariantViolation
from persist_core.schema import UNORDERED
from persist_core.time_text import show_time

Slot = tuple[Any, ...] | bytes


class Sent(enum.Enum):
    """Stands for the value of a column that a record does not carry."""

    NOT = "not sent"


NOT_SENT = Sent.NOT


@dataclass(frozen=True)
class Err:
    """An error as a value. Two are equal by kind, key bytes and payload; message and position are for users.

    `cells`: of a record that did not carry all values, and had none before it to keep: the known ones.
    """

    kind: str
    key_bytes: bytes | None
    payload: bytes
    message: str = field(default="", compare=False)
    cells: tuple[Any, ...] | None = field(default=None, compare=False)
    position: str | None = field(default=None, compare=False)

    @property
    def is_unordered(self) -> bool:
        """True if neither a record with an order nor a truncate beats it."""
        return self.kind in UNORDERED


Value = tuple[Any, ...] | Err


@dataclass(frozen=True)
class UpsertDiff:
    """One differential update: `value` of `slot` was inserted (`diff` 1) or retracted (-1) at `time`."""

    slot: Slot
    value: Value
    time: int
    diff: int


def canonical_bytes(values: Sequence[Any], names: Sequence[str]) -> bytes:
    """UTF-8 of a JSON object of the columns in their order, every value a string or null (docs/architecture.md).

    Columns that were not sent are left out.
    """
    body = {name: _text(value) for name, value in zip(names, values, strict=True) if value is not NOT_SENT}
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def canonical_key(values: Sequence[Any]) -> bytes:
    """UTF-8 of a JSON array of a key's values, each a string (docs/architecture.md)."""
    return json.dumps(list(map(_text, values)), ensure_ascii=False, separators=(",", ":")).encode()


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return "NaN" if value != value else repr(value + 0.0)  # -0.0 + 0.0 is 0.0
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    if isinstance(value, date):
        return value.isoformat()
    return str(value)


def _identity(value: Value) -> tuple[Any, ...]:
    """The parts that make two values equal: canonical bytes of oks; kind, key bytes and payload of errs."""
    if isinstance(value, Err):
        return ("err", value.kind, value.key_bytes, value.payload)
    return ("ok", canonical_bytes(value, [str(i) for i in range(len(value))]))


def same_value(left: Value | None, right: Value | None) -> bool:
    """True if two values of a slot are equal; `None` (no value) equals only itself."""
    if left is None or right is None:
        return left is right
    return _identity(left) == _identity(right)


def consolidate(updates: Iterable[UpsertDiff]) -> list[UpsertDiff]:
    """Sum the diffs of equal (slot, value, time), drop zeros; ordered by time, then slot, then diff."""
    sums: Counter[tuple[Any, ...]] = Counter()
    examples: dict[tuple[Any, ...], UpsertDiff] = {}
    for update in updates:
        key = (update.slot, _identity(update.value), update.time)
        sums[key] += update.diff
        examples.setdefault(key, update)
    kept = [replace(examples[key], diff=diff) for key, diff in sums.items() if diff]
    return sorted(kept, key=lambda u: (u.time, repr(u.slot), u.diff, repr(_identity(u.value))))


def as_of(updates: Iterable[UpsertDiff], time: int) -> dict[Slot, Value]:
    """The contents as of `time`. Raises `InvariantViolation` if a diff is not 1 or a slot has two values."""
    contents: dict[Slot, Value] = {}
    for update in consolidate(replace(u, time=0) for u in updates if u.time <= time):
        if update.diff != 1:
            raise InvariantViolation(
                f"slot {update.slot!r} holds {update.value!r} with diff {update.diff} as of {show_time(time)};"
                " expected 1. Run `persist fsck`"
            )
        if update.slot in contents:
            raise InvariantViolation(
                f"slot {update.slot!r} holds two values as of {show_time(time)}: {contents[update.slot]!r} and"
                f" {update.value!r}; expected at most one. Run `persist fsck`"
            )
        contents[update.slot] = update.value
    return contents


def check_collection(updates: Iterable[UpsertDiff]) -> None:
    """Raise `InvariantViolation` unless, at every time, every diff is 1 and a slot has at most one value."""
    every = list(updates)
    for time in sorted({update.time for update in every}):
        as_of(every, time)
