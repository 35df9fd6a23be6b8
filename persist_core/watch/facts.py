"""`AlertFacts`: an open alert as the page, `persist alerts` and actions show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from persist_core.watch.conditions import DURATIONS, URGENCIES, Health, Level, Urgency
from persist_core.watch.evaluate import value_now
from persist_core.watch.record import WatchRecord
from persist_core.watch.words import command_of, name_of


@dataclass(frozen=True)
class AlertFacts:
    """An open alert (docs/alerts.md): a condition of a shard that has crossed a threshold.

    `alert` is the condition (`freshness`, `errors`, `stash_age`, `conflicts`, `fsck`), `name` the same in
    words, and `command` what helps. `level` is `warn` or `fail`. `value` is the current one, or from when `level` was
    reached if it is not known now; `limit` is where the level begins. Both are in `unit`: `ms` or `count`.
    `unsent` counts notices that a notifier has not taken yet. An acknowledged alert is silent until it is
    resolved. `urgency` is the level, or `note` of an acknowledged alert.
    """

    shard: str
    alert: str
    name: str
    command: str
    level: Level
    urgency: Urgency
    value: int
    limit: int
    unit: Literal["ms", "count"]
    since_ms: int
    acknowledged_by: str | None
    acknowledged_ms: int | None
    reason: str | None
    unsent: int


def alerts_at(
    record: WatchRecord, healths: Mapping[str, Health], now_ms: int, shard: str | None = None
) -> list[AlertFacts]:
    """The open alerts of a shard or of all, the most urgent first, with the values of `healths`."""
    found = []
    for name, watch in record.shards.items():
        if shard not in (None, name):
            continue
        values = value_now(healths[name], watch, now_ms) if name in healths else {}
        for condition in watch.alerts:
            facts, value = facts_of(record, name, condition), values.get(condition)
            found.append(facts if value is None else replace(facts, value=value))
    return sorted(found, key=lambda each: (URGENCIES.index(each.urgency), each.since_ms, each.shard, each.alert))


def facts_of(record: WatchRecord, shard: str, condition: str) -> AlertFacts:
    """The facts of an alert that is open in the record. Raises `KeyError` for another one."""
    alert = record.of(shard).alerts[condition]
    seen = alert.acknowledged
    return AlertFacts(
        shard=shard,
        alert=condition,
        name=name_of(condition),
        command=command_of(shard, condition),
        level=alert.level,
        urgency="note" if seen else alert.level,
        value=alert.value,
        limit=alert.limit,
        unit="ms" if condition in DURATIONS else "count",
        since_ms=alert.since_ms,
        acknowledged_by=seen.by if seen else None,
        acknowledged_ms=seen.at_ms if seen else None,
        reason=seen.reason if seen else None,
        unsent=sum((each.kind, each.shard, each.what) == ("alert", shard, condition) for each in record.unsent),
    )
