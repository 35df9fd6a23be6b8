"""The texts of notices, for a person who was asleep: what happened, since when, how bad, what helps. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from persist_core.alerts.conditions import Health
from persist_core.alerts.record import Alert, Notice, NoticeKind
from persist_core.config.thresholds import (
    CONFLICTS,
    DURATIONS,
    ERRORS,
    FILE,
    FRESHNESS,
    FSCK,
    STASH_AGE,
    WARNINGS,
    Level,
)
from persist_core.time_text import format_time, show_duration

GUIDE = "docs/operations.md"  # where the documents are, unless a project says otherwise


@dataclass(frozen=True)
class _Texts:
    """`section` is a heading of docs/operations.md."""

    name: str
    command: str
    section: str
    crossed: str
    resolved: str


_TEXTS = {
    FRESHNESS: _Texts(
        "late",
        "persist describe {shard}",
        "the-data-is-late",
        "{shard} is late: it is complete up to {upper}, {value} ago (limit {limit}).",
        "{shard} is fresh again: it is complete up to {upper}, {value} ago.",
    ),
    ERRORS: _Texts(
        "errors alive",
        "persist errors {shard}",
        "records-that-could-not-be-decoded",
        "{shard} holds {value} records that could not be decoded (limit {limit}).",
        "{shard}: errors are below the limit again, {value} now.",
    ),
    WARNINGS: _Texts(
        "warnings in the newest run",
        "persist describe {shard}",
        "warnings",
        "{shard}: {value} rows of the newest run have a warning (limit {limit}).",
        "{shard}: warnings of the newest run are below the limit again, {value} now.",
    ),
    STASH_AGE: _Texts(
        "records wait in the stash",
        "persist describe {shard}",
        "records-wait-in-the-stash",
        "{shard} has had records waiting in the stash for {value} (limit {limit}).",
        "{shard}: no stashed record exceeds the age limit.",
    ),
    CONFLICTS: _Texts(
        "many conflicts",
        "persist conflicts {shard}",
        "conflicts",
        "{shard} lost {value} appends to other writers in 24 hours (limit {limit}).",
        "{shard}: conflicts are below the limit again, {value} in 24 hours.",
    ),
    FSCK: _Texts(
        "damage found",
        "persist fsck {shard}",
        "damage",
        "{shard} is damaged: {value} findings (limit {limit}).",
        "{shard}: damage is below the limit again: {value} findings.",
    ),
    FILE: _Texts(
        "its file is wrong",
        "persist plan {shard}",
        "a-file-is-wrong",
        "{shard} is not watched and not loaded: its file is wrong.",
        "{shard} is watched again: its file is correct.",
    ),
}
_UNWRITTEN = "{shard} is late: no commit in at least {value} (limit {limit})."
_CLOSED = "{shard} is no longer late: it is closed."
_TURNED_OFF = "{shard} is no longer watched for {condition}. It was {value}."


def _time(upper: int | None) -> str:
    return "its end" if upper is None else format_time(upper)


def show_value(condition: str, value: int) -> str:
    return show_duration(value) if condition in DURATIONS else str(value)


def name_of(condition: str) -> str:
    """A condition in words: `late`. One that this version does not know keeps its own name."""
    return _TEXTS[condition].name if condition in _TEXTS else condition


def command_of(shard: str, condition: str) -> str:
    """The command that helps; empty if this version does not know the condition."""
    return _TEXTS[condition].command.format(shard=shard) if condition in _TEXTS else ""


def alert_key(shard: str, condition: str) -> str:
    """The key that all notices of an alert share."""
    return f"persist/{shard}/{condition}"


def alert_notice(
    health: Health,
    condition: str,
    known: Alert | None,
    after: Alert | None,
    value: int | None,
    *,
    now_ms: int,
    guide: str,
) -> Notice:
    """The notice of a change from `known` to `after`. `value` is the value now; `None` if the condition is off."""
    alert = after or known
    if alert is None:
        raise ValueError("no change")  # the caller looks for changes only
    is_resolved = after is None
    headline = _resolved(health, condition, alert, value) if is_resolved else _crossed(health, condition, alert)
    facts = [("since", format_time(alert.since_ms))]
    if is_resolved:
        facts += [("until", format_time(now_ms)), ("lasted", show_duration(now_ms - alert.since_ms))]
    note = (health.notes or {}).get(condition)
    if note and not is_resolved:
        facts.append(("first", note))
    if health.committed_ms is not None:
        facts.append(("last commit", f"{format_time(health.committed_ms)} by {health.writer}"))
    return make_notice(
        headline,
        facts,
        command=command_of(health.shard, condition),
        section=_TEXTS[condition].section,
        kind="alert",
        key=alert_key(health.shard, condition),
        shard=health.shard,
        what=condition,
        level="warn" if alert.is_silent else alert.level,
        is_resolved=is_resolved,
        at_ms=now_ms,
        since_ms=alert.since_ms,
        value=value if is_resolved else alert.value,
        limit=alert.limit,
        guide=guide,
    )


def make_notice(
    headline: str,
    facts: Iterable[tuple[str, str]],
    *,
    command: str,
    section: str,
    kind: NoticeKind,
    key: str,
    shard: str,
    what: str,
    level: Level,
    at_ms: int,
    since_ms: int,
    guide: str,
    is_resolved: bool = False,
    notice_id: str | None = None,
    value: int | None = None,
    limit: int | None = None,
) -> Notice:
    """A notice with its texts. `facts` are lines `name: value`, `section` is a heading of docs/operations.md.

    Without `notice_id` it is one of the key and the time.
    """
    state = "resolved" if is_resolved else level
    link = f"{guide or GUIDE}#{section}"
    lines = [headline, *(f"{name}: {text}" for name, text in facts)]
    if not is_resolved:
        lines += [f"what helps: {command}", f"guide: {link}"]
        if kind == "alert":
            lines.append(f"silence it until it is resolved: persist ack {shard} {what} --reason TEXT")
    name = "" if kind != "alert" else f": {name_of(what)}"
    return Notice(
        notice_id=notice_id or f"{key}/{state}/{at_ms}",
        key=key,
        kind=kind,
        shard=shard,
        what=what,
        level=level,
        is_resolved=is_resolved,
        at_ms=at_ms,
        since_ms=since_ms,
        subject=f"[{state}] {shard}{name}" if kind == "alert" else f"[{state}] {headline.splitlines()[0]}",
        text="\n".join(lines),
        command=command,
        guide=link,
        value=value,
        limit=limit,
    )


def _crossed(health: Health, condition: str, alert: Alert) -> str:
    is_unwritten = condition == FRESHNESS and not health.has_commit
    return (_UNWRITTEN if is_unwritten else _TEXTS[condition].crossed).format(
        shard=health.shard,
        upper=_time(health.upper),
        value=show_value(condition, alert.value),
        limit=show_value(condition, alert.limit),
    )


def _resolved(health: Health, condition: str, alert: Alert, value: int | None) -> str:
    shard = health.shard
    if value is None:
        return _TURNED_OFF.format(shard=shard, condition=condition, value=show_value(condition, alert.value))
    is_closed = condition == FRESHNESS and health.upper is None
    return (_CLOSED if is_closed else _TEXTS[condition].resolved).format(
        shard=shard, upper=_time(health.upper), value=show_value(condition, value)
    )
