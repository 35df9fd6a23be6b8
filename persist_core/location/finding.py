"""Findings of `persist doctor` about a store, and the protocols by which a backend adds some.

A backend that knows more about its store than the contract shows implements `Examinable`; `maintenance.doctor` asks it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from persist_core.clock import Clock

# In milliseconds. Clocks further apart than this confuse people who compare times; leases are minutes long.
MAX_CLOCK_OFFSET_MS = 2_000


class Grade(enum.Enum):
    """The seriousness of a finding. The values are stable: programs read them."""

    OK = "ok"
    WARNING = "warning"  # works now, but can fail later
    PROBLEM = "problem"  # data can be lost, or a run will fail


@dataclass(frozen=True)
class Finding:
    """One check: what was found and, if that is not good, what is expected and what to do."""

    check: str  # stable, snake_case
    grade: Grade
    found: str
    expected: str = ""
    remedy: str = ""


def grade_if(bad: bool, check: str, found: str, *, expected: str, remedy: str, grade: Grade = Grade.PROBLEM) -> Finding:
    """The finding: of `grade` and with its remedy if `bad`, else `OK`."""
    return Finding(check, grade, found, expected, remedy) if bad else Finding(check, Grade.OK, found)


def clock_offset(store_ms: float, before_ms: int, after_ms: int, *, unsure_ms: float = 0) -> Finding:
    """The distance of the store's clock from ours, which read `before_ms` and `after_ms` around the store's answer.

    `unsure_ms`: how far the store's time may be from what it says.
    """
    offset_ms = store_ms - (before_ms + after_ms) / 2
    unsure_ms += (after_ms - before_ms) / 2
    return grade_if(
        abs(offset_ms) - unsure_ms > MAX_CLOCK_OFFSET_MS,
        "clock",
        f"the store's clock differs from this machine's by {offset_ms / 1000:+.3f} s (within {unsure_ms / 1000:.3f} s)",
        expected=f"at most {MAX_CLOCK_OFFSET_MS / 1000:g} s",
        remedy="synchronize both clocks (NTP): commits are dated by the writer's clock",
        grade=Grade.WARNING,
    )


@runtime_checkable
class Examinable(Protocol):
    """A backend that can report on its store. Only `persist doctor` calls this."""

    def diagnose(self, clock: Clock) -> Iterator[Finding]:
        """Settings, rights and rules that only this kind of store has. Changes nothing."""


@runtime_checkable
class Erasable(Protocol):
    """A consensus that can remove a key without a trace, so that probing it leaves nothing behind."""

    def erase(self, key: str) -> None:
        """Remove `key` with all its versions. Only for keys that no shard uses: a late writer could win again."""
