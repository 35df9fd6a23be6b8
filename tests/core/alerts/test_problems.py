"""Which problems a shard has, and how urgent each is: the table of docs/page.md, section "Colors"."""

from __future__ import annotations

from dataclasses import replace

import pytest

from persist_core.alerts.facts import URGENCIES, AlertFacts, problems_of
from persist_core.inspection.facts import ATTENTION

AIRFLOW = ("behind", "failed", "paused")


def alert(name: str, level: str, *, is_acknowledged: bool = False) -> AlertFacts:
    known = AlertFacts(
        shard="fruit",
        alert=name,
        name=name,
        command="",
        level="fail" if level == "fail" else "warn",
        urgency="fail" if level == "fail" else "warn",
        value=7_200_000,
        limit=3_600_000,
        unit="ms",
        since_ms=0,
        acknowledged_by=None,
        acknowledged_ms=None,
        reason=None,
        unsent=0,
    )
    return replace(known, urgency="note", acknowledged_by="alice", reason="known") if is_acknowledged else known


def urgencies(words: tuple[str, ...], *alerts: AlertFacts) -> dict[str, str]:
    return {each.problem: each.urgency for each in problems_of(words, alerts)}


def test_every_word_has_an_urgency() -> None:
    found = urgencies((*ATTENTION, *AIRFLOW))
    by_urgency = {urgency: [word for word in found if found[word] == urgency] for urgency in URGENCIES}
    assert by_urgency == {
        "fail": ["unreadable", "damaged", "future_upper", "failed"],
        "warn": ["errors", "warnings", "conflicts", "behind"],
        "note": ["moved", "paused"],
    }


@pytest.mark.parametrize(
    ("of_errors", "expected"),
    [
        (alert("errors", "warn"), "warn"),
        (alert("errors", "fail"), "fail"),
        (alert("errors", "fail", is_acknowledged=True), "note"),
    ],
)
def test_an_alert_replaces_the_word_of_its_condition(of_errors: AlertFacts, expected: str) -> None:
    assert urgencies(("errors", "conflicts"), of_errors) == {"errors": expected, "conflicts": "warn"}


def test_the_most_urgent_comes_first_and_says_what_was_found() -> None:
    late = alert("freshness", "fail")
    first, second, third = problems_of(("errors", "paused"), [late])
    assert (first.problem, first.text, first.detail) == ("freshness", "alert: freshness", "fail: 2 hours, limit 1 hour")
    assert (second.problem, third.problem) == ("errors", "paused")
