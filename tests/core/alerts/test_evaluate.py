"""Alerts from facts: by table, and by property over any sequence of facts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persist_core.alerts.conditions import Health
from persist_core.alerts.evaluate import evaluate
from persist_core.alerts.record import Acknowledged, Alert, Notice, ShardWatch
from persist_core.config.thresholds import CONDITIONS, DEFAULTS, OFF, Threshold
from persist_core.time_text import parse_time, show_duration

HOUR = 3_600_000
DAY = 24 * HOUR
NOW = parse_time("2026-01-10T12:00:00Z")
FRESH = Threshold(warn=2 * HOUR, fail=6 * HOUR)


def healthy(**facts: Any) -> Health:
    """A shard with one commit, complete up to now."""
    return Health("fruit", **{"upper": NOW, "has_commit": True, "committed_ms": NOW, "writer": "dag/run", **facts})


def look(health: Health, before: ShardWatch | None = None, *, now_ms: int = NOW, **rules: Any) -> Any:
    return evaluate(health, rules or {"freshness": FRESH}, before or ShardWatch(), now_ms=now_ms)


@pytest.mark.parametrize(
    ("facts", "rules", "condition", "level", "value", "said"),
    [
        ({"upper": NOW - HOUR}, {}, "freshness", None, None, ""),
        ({"upper": NOW - 2 * HOUR}, {}, "freshness", "warn", 2 * HOUR, "2026-01-10T10:00:00Z, 2 hours ago"),
        ({"upper": NOW - 7 * HOUR - 720_000}, {}, "freshness", "fail", 7 * HOUR + 720_000, "7 hours 12 minutes ago"),
        ({"upper": NOW + DAY}, {}, "freshness", None, None, ""),
        ({"upper": None}, {}, "freshness", None, None, ""),
        ({"upper": 12}, {}, "freshness", None, None, ""),
        ({"upper": NOW - DAY}, {"freshness": OFF}, "freshness", None, None, ""),
        ({"errors": 3}, DEFAULTS, "errors", "warn", 3, "3 records that could not be decoded (limit 1)"),
        ({"errors": None}, DEFAULTS, "errors", None, None, ""),
        ({"errors": 9}, {"errors": Threshold(fail=9)}, "errors", "fail", 9, "persist errors fruit"),
        ({"conflicts": 4}, DEFAULTS, "conflicts", None, None, ""),
        ({"conflicts": 50}, DEFAULTS, "conflicts", "fail", 50, "lost 50 appends to other writers in 24 hours"),
        ({"findings": 0}, DEFAULTS, "fsck", None, None, ""),
        ({"findings": 2, "notes": {"fsck": "part: x"}}, DEFAULTS, "fsck", "fail", 2, "first: part: x"),
        ({"has_stash": True}, DEFAULTS, "stash_age", None, None, ""),
        ({"is_defined": False}, DEFAULTS, "file", "fail", 1, "persist plan fruit"),
    ],
)  # fmt: skip
def test_a_value_opens_an_alert_from_its_threshold_on(
    facts: dict[str, Any], rules: dict[str, Threshold], condition: str, level: str | None, value: int, said: str
) -> None:
    after, notices = evaluate(healthy(**facts), rules or {"freshness": FRESH}, ShardWatch(), now_ms=NOW)
    if level is None:
        assert (after.alerts, notices) == ({}, ())
        return
    assert {name: (alert.level, alert.value) for name, alert in after.alerts.items()} == {condition: (level, value)}
    (notice,) = notices
    assert (notice.shard, notice.what, notice.level, notice.is_resolved) == ("fruit", condition, level, False)
    assert said in notice.text
    for line in (
        "since: 2026-01-",
        "what helps: persist ",
        "guide: docs/operations.md#",
        f"persist ack fruit {condition}",
    ):
        assert line in notice.text


def test_an_alert_is_raised_once_and_resolved_once() -> None:
    hours = (1, 2, 3, 6, 9, 4, 7, 1, 0, 2)
    watch, said = ShardWatch(), []
    for number, late in enumerate(hours):
        now_ms = NOW + number * HOUR
        watch, notices = look(healthy(upper=now_ms - late * HOUR), watch, now_ms=now_ms)
        said += [("resolved" if each.is_resolved else each.level, number) for each in notices]
    assert said == [("warn", 1), ("fail", 3), ("resolved", 7), ("warn", 9)]


def test_since_is_when_the_first_threshold_was_crossed() -> None:
    watch, (notice,) = look(healthy(upper=NOW - 7 * HOUR))
    assert watch.alerts["freshness"].since_ms == notice.since_ms == NOW - 5 * HOUR
    _, (end,) = look(healthy(upper=NOW), watch, now_ms=NOW + HOUR)
    assert "until: 2026-01-10T13:00:00Z\nlasted: 6 hours\n" in end.text
    assert (end.key, end.level, end.is_resolved) == (notice.key, "fail", True)
    assert "what helps" not in end.text


def test_a_shard_without_a_commit_is_late_from_the_first_look_on() -> None:
    for missing in (Health("fruit"), Health("fruit", upper=0)):
        watch, notices = look(missing)
        assert (watch.unwritten_ms, notices) == (NOW, ())
        watch, (notice,) = look(missing, watch, now_ms=NOW + 3 * HOUR)
        assert "no commit in at least 3 hours" in notice.text
        watch, (end,) = look(healthy(upper=NOW + 4 * HOUR), watch, now_ms=NOW + 4 * HOUR)
        assert (end.is_resolved, watch.is_empty) == (True, True)


def test_the_stash_has_the_age_of_its_first_record_in_a_row() -> None:
    rules: Any = {"stash_age": Threshold(warn=2 * DAY)}
    watch, notices = look(healthy(has_stash=True, committed_ms=NOW - HOUR), **rules)
    assert (watch.stash_ms, notices) == (NOW - HOUR, ())
    emptied, _ = look(healthy(), watch, now_ms=NOW + DAY, **rules)
    assert emptied.is_empty
    watch, notices = look(healthy(has_stash=True, committed_ms=NOW + DAY), watch, now_ms=NOW + 2 * DAY, **rules)
    assert [(each.what, each.level) for each in notices] == [("stash_age", "warn")]
    watch, (end,) = look(healthy(), watch, now_ms=NOW + 3 * DAY, **rules)
    assert (end.is_resolved, watch.is_empty) == (True, True)


def test_an_unreadable_state_is_a_finding() -> None:
    rules: Any = {**DEFAULTS, "freshness": FRESH}
    watch, _ = look(healthy(upper=NOW - DAY, errors=2), **rules)
    broken = Health("fruit", is_readable=False, findings=1, notes={"fsck": "state: damaged"})
    after, (notice,) = look(broken, watch, **rules)
    assert sorted(after.alerts) == ["errors", "freshness", "fsck"]
    assert (notice.what, "damaged" in notice.text) == ("fsck", True)


def test_a_condition_that_is_turned_off_is_resolved() -> None:
    watch, _ = look(healthy(upper=NOW - DAY))
    after, (notice,) = look(healthy(upper=NOW - DAY), watch, freshness=OFF)
    assert (after.is_empty, "is no longer watched for freshness" in notice.text) == (True, True)


def test_an_acknowledged_alert_is_silent_until_it_is_resolved() -> None:
    alert = Alert("warn", 1, 1, NOW, Acknowledged("ann", NOW, "known"))
    watch, notices = look(healthy(upper=NOW - DAY), ShardWatch({"freshness": alert}))
    assert (watch.alerts["freshness"].level, notices) == ("fail", ())
    watch, (end,) = look(healthy(), watch)
    assert (end.is_resolved, end.level, watch.is_empty) == (True, "warn", True)  # nothing was sent of fail
    _, (again,) = look(healthy(upper=NOW - DAY), watch)
    assert again.level == "fail"


def facts() -> st.SearchStrategy[Health]:
    counts = st.one_of(st.none(), st.integers(0, 60))
    return st.builds(
        Health,
        st.just("fruit"),
        upper=st.one_of(st.none(), st.integers(0, 5), st.integers(NOW - DAY, NOW + DAY)),
        has_commit=st.booleans(),
        is_readable=st.booleans(),
        has_stash=st.booleans(),
        errors=counts,
        conflicts=counts,
        findings=st.integers(0, 60),
    )


RULES = st.fixed_dictionaries(
    {
        name: st.sampled_from([OFF, Threshold(warn=1), Threshold(fail=7), Threshold(warn=5, fail=20)])
        for name in CONDITIONS
    }
)


@given(st.lists(st.tuples(facts(), RULES, st.integers(0, 3)), max_size=12))
def test_notices_go_from_warn_to_fail_to_resolved(looks: list[Any]) -> None:
    """Whatever is found: no level twice, no end without a beginning, and a second look at the same finds nothing."""
    watch, now_ms = ShardWatch(), NOW
    said: dict[str, list[str]] = {name: [] for name in CONDITIONS}
    for health, rules, days in looks:
        now_ms += days * DAY
        watch, notices = evaluate(health, rules, watch, now_ms=now_ms)
        assert evaluate(health, rules, watch, now_ms=now_ms) == (watch, ())
        for each in notices:
            said[each.what].append("resolved" if each.is_resolved else each.level)
    for condition, words in said.items():
        rounds = " ".join(words).split("resolved")
        assert all(each.split() in (["warn"], ["fail"], ["warn", "fail"]) for each in rounds[:-1]), words
        assert rounds[-1].split() in ([], ["warn"], ["fail"], ["warn", "fail"])
        assert (condition in watch.alerts) == bool(rounds[-1].split())


@pytest.mark.parametrize(
    ("duration_ms", "shown"),
    [(0, "0 seconds"), (59_999, "59 seconds"), (60_000, "1 minute"), (HOUR, "1 hour"), (90_000, "1 minute 30 seconds"),
     (HOUR + 61_000, "1 hour 1 minute"), (DAY + 59_000, "1 day"), (3 * DAY + 4 * HOUR + 60_000, "3 days 4 hours"),
     (DAY + 60_000, "1 day"), (30 * DAY, "30 days")],
)  # fmt: skip
def test_durations_have_their_two_largest_units(duration_ms: int, shown: str) -> None:
    assert show_duration(duration_ms) == shown


def test_a_notice_is_complete() -> None:
    _, (notice,) = look(healthy(upper=NOW - 7 * HOUR))
    assert isinstance(notice, Notice)
    assert (notice.subject, notice.command) == ("[fail] fruit: late", "persist describe fruit")
    assert notice.text == (
        "fruit is late: it is complete up to 2026-01-10T05:00:00Z, 7 hours ago (limit 6 hours).\n"
        "since: 2026-01-10T07:00:00Z\n"
        "last commit: 2026-01-10T12:00:00Z by dag/run\n"
        "what helps: persist describe fruit\n"
        "guide: docs/operations.md#the-data-is-late\n"
        "silence it until it is resolved: persist ack fruit freshness --reason TEXT"
    )
