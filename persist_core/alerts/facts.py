"""Alerts and other problems as people see them: on the page, by `persist alerts` and by actions. Pure.

The only place that decides how urgent a problem is; the page gives each urgency a color:

fail    the shard is damaged, stands still or has crossed a limit that a user has set: look now
warn    something is not as it should be, and the shard goes on: look today
note    a user knows, or has done it
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from persist_core.alerts.record import WatchRecord
from persist_core.alerts.words import command_of, name_of, show_value
from persist_core.config.thresholds import DURATIONS, Level

Urgency = Literal["fail", "warn", "note"]
URGENCIES: tuple[Urgency, ...] = ("fail", "warn", "note")  # the most urgent first
_WORDS: dict[str, tuple[Urgency, str, str]] = {
    "unreadable": ("fail", "unreadable", "The state can't be read: run persist fsck"),
    "damaged": ("fail", "damaged", "A manifest or record can't be read, the page says which: run persist fsck"),
    "future_upper": ("fail", "upper in the future", "The shard accepts nothing before its upper"),
    "failed": ("fail", "last run failed", "The newest dag run of a DAG that writes the shard failed"),
    "behind": ("warn", "behind", "The upper is behind the DAG's schedule"),
    "errors": ("warn", "errors", "Records that could not be decoded are alive"),
    "warnings": (
        "warn",
        "warnings",
        "Rows of the newest run fail a check, had a bad value set to null, or could not be filled",
    ),
    "conflicts": ("warn", "conflicts", "Appends were lost in the last 7 days; no data was"),
    "moved": ("note", "moved", "The shard was moved to another location, and accepts no commits here"),
    "paused": ("note", "paused", "A DAG that writes the shard is paused"),
}


@dataclass(frozen=True)
class AlertFacts:
    """An open alert (docs/alerts.md): a condition of a shard that has crossed a threshold.

    `alert` is the condition (`freshness`, `errors`, `warnings`, `stash_age`, `conflicts`, `fsck`, `file`), `name` the
    same in words, and `command` what helps. `level` is `warn` or `fail`. `value` is the current one, or from when
    `level` was reached if it is not known now; `limit` is where the level begins. Both are in `unit`: `ms` or `count`.
    `unsent` counts notices that a notifier has not taken yet. An acknowledged alert is silent until it is resolved.
    `urgency` is the level, or `note` of an acknowledged alert.
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


@dataclass(frozen=True)
class Problem:
    """A problem that needs attention, as the page shows it in `problems` of a shard.

    `problem` is a word of `ShardSummary.attention`, a condition of an open alert, or what Airflow knows: `behind` (the
    schedule), `failed` (the last dag run), `paused`. `text` and `detail` are for people. `urgency` is `fail` (red on
    the page), `warn` (yellow) or `note` (gray).
    """

    problem: str
    text: str
    detail: str
    urgency: Urgency


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


def problems_of(words: Iterable[str], alerts: Iterable[AlertFacts]) -> tuple[Problem, ...]:
    """The problems of one shard, the most urgent first, an alert before others.

    `words` are from `ShardSummary.attention`, and `behind`, `failed` and `paused`, which a scheduler knows.
    `alerts` are the open ones of the shard; one replaces the word for the same condition, so its threshold decides.
    """
    found = [_alert(alert) for alert in alerts]
    known = {problem.problem for problem in found}
    for word in words:
        if word not in known:
            urgency, text, detail = _WORDS[word]
            found.append(Problem(word, text, detail, urgency))
    return tuple(sorted(found, key=lambda each: URGENCIES.index(each.urgency)))


def _alert(alert: AlertFacts) -> Problem:
    value, limit = (show_value(alert.alert, each) for each in (alert.value, alert.limit))
    said = "alert" if alert.acknowledged_by is None else "acknowledged"
    return Problem(alert.alert, f"{said}: {alert.name}", f"{alert.level}: {value}, limit {limit}", alert.urgency)
