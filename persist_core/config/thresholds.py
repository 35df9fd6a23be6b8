"""The conditions of a shard that can be alerted, and the thresholds at which they are. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from persist_core.time_text import DAY_MS

Level = Literal["warn", "fail"]

FRESHNESS = "freshness"
ERRORS = "errors"
WARNINGS = "warnings"
STASH_AGE = "stash_age"
CONFLICTS = "conflicts"
FSCK = "fsck"
FILE = "file"
CONDITIONS = (FRESHNESS, ERRORS, WARNINGS, STASH_AGE, CONFLICTS, FSCK, FILE)
DURATIONS = (FRESHNESS, STASH_AGE)  # their values are milliseconds; the others are counts


@dataclass(frozen=True)
class Threshold:
    """The values from which on a condition is a `warn` and a `fail`; `None`: never."""

    warn: int | None = None
    fail: int | None = None

    def level(self, value: int) -> Level | None:
        """The level of a value; `None` if it is as it should be."""
        if self.fail is not None and value >= self.fail:
            return "fail"
        return "warn" if self.warn is not None and value >= self.warn else None

    def limit(self, level: Level) -> int:
        """The value from which on this level begins."""
        limit = self.fail if level == "fail" else self.warn
        return 0 if limit is None else limit


OFF = Threshold()
DEFAULTS: Mapping[str, Threshold] = {
    FRESHNESS: OFF,  # only users know how late a feed may be
    ERRORS: Threshold(warn=1),
    WARNINGS: Threshold(warn=1),  # the rows are in the table: a fail only where a user sets one
    STASH_AGE: Threshold(warn=7 * DAY_MS),
    CONFLICTS: Threshold(warn=5, fail=50),  # a single one is harmless
    FSCK: Threshold(fail=1),
    FILE: Threshold(fail=1),  # with a wrong file nothing else of the shard is watched
}
