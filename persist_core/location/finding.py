"""What `persist doctor` finds out about a store, and what a backend can add to it.

A backend that knows more of its store than the contract shows implements `Examinable`; `maintenance.doctor` asks it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from persist_core.clock import Clock

# Clocks further apart than this confuse people who compare times, in milliseconds; leases are minutes long.
MAX_CLOCK_OFFSET_MS = 2_000


class Grade(enum.Enum):
    """How a finding is to be taken. The values are stable: programs read them."""

    OK = "ok"
    WARNING = "warning"  # works, but will bite some day
    PROBLEM = "problem"  # data can be lost, or a run will fail


@dataclass(frozen=True)
class Finding:
    """One thing looked at: what was found, and where that is not well, what is wanted and what to do."""

    check: str  # stable, snake_case
    grade: Grade
    found: str
    wanted: str = ""
    remedy: str = ""


def grade_if(bad: bool, check: str, found: str, *, wanted: str, remedy: str, grade: Grade = Grade.PROBLEM) -> Finding:
    """The finding: of `grade` and with its remedy where `bad`, else `OK`."""
    return Finding(check, grade, found, wanted, remedy) if bad else Finding(check, Grade.OK, found)


def clock_offset(store_ms: float, before_ms: int, after_ms: int) -> Finding:
    """How far the store's clock is from ours, which read `before_ms` and `after_ms` around the store's answer."""
    offset_ms = store_ms - (before_ms + after_ms) / 2
    unsure_ms = (after_ms - before_ms) / 2
    return grade_if(
        abs(offset_ms) - unsure_ms > MAX_CLOCK_OFFSET_MS,
        "clock",
        f"the store's clock is {offset_ms / 1000:+.3f} s from ours (within {unsure_ms / 1000:.3f} s)",
        wanted=f"at most {MAX_CLOCK_OFFSET_MS / 1000:g} s",
        remedy="synchronise both clocks (NTP): commits are dated by the writer's clock",
        grade=Grade.WARNING,
    )


@runtime_checkable
class Examinable(Protocol):
    """A backend that can be asked about its store. Both are for `persist doctor` alone."""

    def diagnose(self, clock: Clock) -> Iterator[Finding]:
        """What only this kind of store has: settings, rights, rules that would bite. Changes nothing."""
        ...


@runtime_checkable
class Erasable(Protocol):
    """A consensus that can forget a key as if it had never been, so that probing it leaves nothing behind."""

    def erase(self, key: str) -> None:
        """Remove `key` with all its versions. Only for keys that no shard uses: a late writer could win again."""
        ...
