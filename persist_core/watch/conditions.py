"""The conditions of a shard that can be alerted, and their thresholds. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from persist_core.time_text import DAY_MS

Level = Literal["warn", "fail"]
Urgency = Literal["fail", "warn", "note"]
URGENCIES: tuple[Urgency, ...] = ("fail", "warn", "note")  # the most urgent first

FRESHNESS = "freshness"
ERRORS = "errors"
STASH_AGE = "stash_age"
CONFLICTS = "conflicts"
FSCK = "fsck"
FILE = "file"
CONDITIONS = (FRESHNESS, ERRORS, STASH_AGE, CONFLICTS, FSCK, FILE)
DURATIONS = (FRESHNESS, STASH_AGE)  # their values are milliseconds; the others are counts
CONFLICTS_MS = DAY_MS  # conflicts are counted over so long


@dataclass(frozen=True)
class Threshold:
    """From which value on a condition is a `warn` and a `fail`; `None`: never."""

    warn: int | None = None
    fail: int | None = None

    def level(self, value: int) -> Level | None:
        """The level of a value; `None` if it is as it should be."""
        if self.fail is not None and value >= self.fail:
            return "fail"
        return "warn" if self.warn is not None and value >= self.warn else None

    def limit(self, level: Level) -> int:
        """From where on a value is at this level."""
        limit = self.fail if level == "fail" else self.warn
        return 0 if limit is None else limit


OFF = Threshold()
DEFAULTS: Mapping[str, Threshold] = {
    FRESHNESS: OFF,  # only users know how late a feed may be
    ERRORS: Threshold(warn=1),
    STASH_AGE: Threshold(warn=7 * DAY_MS),
    CONFLICTS: Threshold(warn=5, fail=50),  # a single one is harmless
    FSCK: Threshold(fail=1),
    FILE: Threshold(fail=1),  # with a wrong file nothing else of the shard is watched
}


@dataclass(frozen=True)
class Health:
    """Findings about one shard. Times are in ms.

    `upper` is `None` if it is closed, and 0 before the first commit. `has_commit` is False also if the shard does not
    exist. `has_stash`: records wait for their time. `conflicts`: of the last day. `findings`: of the
    last fsck, and a state that cannot be read; `None` if no fsck is known. Other counts that are `None` are
    unknown. `is_defined`: its file is correct; if not, nothing else is known. `notes` says more about a
    condition, for people.
    """

    shard: str
    upper: int | None = 0
    has_commit: bool = False
    is_readable: bool = True
    is_defined: bool = True
    has_stash: bool = False
    errors: int | None = 0
    conflicts: int | None = 0
    findings: int | None = None
    committed_ms: int | None = None
    writer: str | None = None
    notes: Mapping[str, str] | None = None


def values_of(health: Health, *, unwritten_ms: int, stash_ms: int, now_ms: int) -> dict[str, int | None]:
    """The value of each condition; `None` if it is not known, so that nothing changes.

    `unwritten_ms` is since when a watcher has seen the shard without any commit, `stash_ms` since when with a stash.
    """
    if not health.is_defined:
        return {**dict.fromkeys(CONDITIONS), FILE: 1}
    if not health.is_readable:
        return {**dict.fromkeys(CONDITIONS), FSCK: health.findings, FILE: 0}
    return {
        FRESHNESS: _lateness(health, unwritten_ms, now_ms),
        ERRORS: health.errors,
        STASH_AGE: max(0, now_ms - stash_ms) if health.has_stash else 0,
        CONFLICTS: health.conflicts,
        FSCK: health.findings,
        FILE: 0,
    }


def _lateness(health: Health, unwritten_ms: int, now_ms: int) -> int | None:
    if not health.has_commit:
        return max(0, now_ms - unwritten_ms)
    if health.upper is None:
        return 0  # closed: nothing more will come
    return None if health.upper < DAY_MS else max(0, now_ms - health.upper)  # a counter has no age
