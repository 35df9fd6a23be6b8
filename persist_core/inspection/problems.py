"""How urgent each problem of a shard is: the only place that decides it. The page gives each urgency a color. Pure.

fail    the shard is damaged, stands still or has crossed a limit that a user has set: look now
warn    something is not as it should be, and the shard goes on: look today
note    a user knows, or has done it
"""

from __future__ import annotations

from collections.abc import Iterable

from persist_core.inspection.facts import Problem
from persist_core.watch.conditions import URGENCIES, Urgency
from persist_core.watch.facts import AlertFacts
from persist_core.watch.words import show_value

_WORDS: dict[str, tuple[Urgency, str, str]] = {
    "unreadable": ("fail", "unreadable", "The state can't be read: run persist fsck"),
    "future_upper": ("fail", "upper in the future", "The shard accepts nothing before its upper"),
    "failed": ("fail", "last run failed", "The newest dag run of a DAG that writes the shard failed"),
    "behind": ("warn", "behind", "The upper is behind the DAG's schedule"),
    "errors": ("warn", "errors", "Records that could not be decoded are alive"),
    "conflicts": ("warn", "conflicts", "Appends were lost in the last 7 days; no data was"),
    "moved": ("note", "moved", "The shard was moved to another location, and accepts no commits here"),
    "paused": ("note", "paused", "A DAG that writes the shard is paused"),
}


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
