"""The facts of a shard that alerts are about, and the value of each condition. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from persist_core.alerts.record import LastCheck, ShardWatch
from persist_core.config.thresholds import CONDITIONS, CONFLICTS, ERRORS, FILE, FRESHNESS, FSCK, STASH_AGE, WARNINGS
from persist_core.time_text import DAY_MS

CONFLICTS_MS = DAY_MS  # conflicts are counted over so long


@dataclass(frozen=True)
class Health:
    """Findings about one shard. Times are in ms.

    `upper` is `None` if it is closed, and 0 before the first commit. `has_commit` is False also if the shard does not
    exist. `has_stash`: records wait for their time. `warnings`: of the newest run. `conflicts`: of the last day.
    `findings` counts damage, with the result of the last fsck only after `checked`. Counts that are `None` are unknown.
    `is_defined`: its file is correct; if not, nothing else is known. `notes` says more about a condition, for people.
    """

    shard: str
    upper: int | None = 0
    has_commit: bool = False
    is_readable: bool = True
    is_defined: bool = True
    has_stash: bool = False
    errors: int | None = 0
    warnings: int | None = None
    conflicts: int | None = 0
    findings: int = 0
    committed_ms: int | None = None
    writer: str | None = None
    notes: Mapping[str, str] | None = None


def checked(health: Health, check: LastCheck | None) -> Health:
    """The health with what the last fsck has found. Damage that was found just now comes first."""
    if check is None:
        return health
    notes = {**({FSCK: check.finding} if check.finding else {}), **(health.notes or {})}
    return replace(health, findings=max(health.findings, check.findings), notes=notes or None)


def values_of(health: Health, watch: ShardWatch, now_ms: int) -> dict[str, int | None]:
    """The value of each condition at `now_ms`; `None` if it is not known, so that nothing changes."""
    findings = checked(health, watch.check).findings
    if not health.is_defined:
        return {**dict.fromkeys(CONDITIONS), FILE: 1}
    if not health.is_readable:
        return {**dict.fromkeys(CONDITIONS), FSCK: findings, FILE: 0}
    return {
        FRESHNESS: _lateness(health, watch.unwritten_ms or now_ms, now_ms),
        ERRORS: health.errors,
        WARNINGS: health.warnings,
        STASH_AGE: max(0, now_ms - (watch.stash_ms or now_ms)) if health.has_stash else 0,
        CONFLICTS: health.conflicts,
        FSCK: findings,
        FILE: 0,
    }


def _lateness(health: Health, unwritten_ms: int, now_ms: int) -> int | None:
    if not health.has_commit:
        return max(0, now_ms - unwritten_ms)
    if health.upper is None:
        return 0  # closed: nothing more will come
    return None if health.upper < DAY_MS else max(0, now_ms - health.upper)  # a counter has no age
