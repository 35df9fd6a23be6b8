"""Find what is open now, and what users are to be notified of, by facts, rules and what was open. Pure.

level of the value now      opened before?     what happens
warn or fail                no                 opened, notice
fail                        at warn            raised to fail, notice (none if it was acknowledged)
warn                        at fail            nothing: it stays at fail until it is resolved
none                        yes                resolved, notice
not known                   any                nothing

An open alert has the limit of its level as the rules are now.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from persist_core.alerts.conditions import Health, checked, values_of
from persist_core.alerts.record import Alert, Notice, ShardWatch
from persist_core.alerts.words import alert_notice
from persist_core.config.thresholds import CONDITIONS, DURATIONS, FILE, OFF, Threshold


def evaluate(
    health: Health,
    rules: Mapping[str, Threshold],
    before: ShardWatch,
    *,
    now_ms: int,
    watcher: str = "",
    guide: str = "",
) -> tuple[ShardWatch, tuple[Notice, ...]]:
    """The new memory of the shard, and the notices of what changed.

    `guide` is where the documents are. A condition whose rule is off is resolved.
    """
    health = checked(health, before.check)
    unwritten_ms, stash_ms = before.unwritten_ms, before.stash_ms
    if health.is_readable and health.is_defined:
        unwritten_ms = None if health.has_commit else (before.unwritten_ms or now_ms)
        stash_ms = (before.stash_ms or health.committed_ms or now_ms) if health.has_stash else None
    values = values_of(health, replace(before, unwritten_ms=unwritten_ms, stash_ms=stash_ms), now_ms)
    alerts, notices = dict(before.alerts), []
    for condition in CONDITIONS if health.is_defined else (FILE,):
        threshold, value, known = rules.get(condition, OFF), values[condition], before.alerts.get(condition)
        alert = _step(condition, threshold, value, known, now_ms)
        if alert == known:
            continue
        if alert is not None and known is not None and alert.level == known.level:
            alerts[condition] = alert  # another limit: nothing to be notified of
            continue
        if alert is None:
            del alerts[condition]
        else:
            alerts[condition] = alert
        if alert is None or alert.acknowledged is None:
            change = (known, alert, None if threshold == OFF else value)
            notices.append(alert_notice(health, condition, *change, now_ms=now_ms, guide=guide))
    after = replace(before, alerts=alerts, unwritten_ms=unwritten_ms, stash_ms=stash_ms)
    return before if after == before else replace(after, watcher=watcher), tuple(notices)


def _step(condition: str, threshold: Threshold, value: int | None, known: Alert | None, now_ms: int) -> Alert | None:
    if threshold == OFF:
        return None
    if value is None:
        return known
    level = threshold.level(value)
    if level is None:
        return None
    if known is None:
        limit = threshold.limit(level)
        first = limit if threshold.warn is None else min(limit, threshold.warn)
        since_ms = now_ms - (value - first) if condition in DURATIONS else now_ms
        return Alert(level, value, limit, since_ms)
    if level == "fail" and known.level == "warn":
        is_silent = known.acknowledged is not None
        return replace(known, level="fail", value=value, limit=threshold.limit("fail"), is_silent=is_silent)
    return replace(known, limit=threshold.limit(known.level) or threshold.limit(level))
