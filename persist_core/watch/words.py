"""What a notice says: what, since when, how bad, and the command that helps. For a person who was asleep. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from persist_core.time_text import format_time
from persist_core.watch.conditions import CONFLICTS, DURATIONS, ERRORS, FRESHNESS, FSCK, STASH_AGE, Health, Level
from persist_core.watch.record import Alert, Notice, NoticeKind

GUIDE = "docs/operations.md"  # where the documents are, unless a project says otherwise
_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000))
_SECTIONS = {  # headings of docs/operations.md
    FRESHNESS: "the-data-is-late",
    ERRORS: "records-that-could-not-be-decoded",
    STASH_AGE: "records-wait-in-the-stash",
    CONFLICTS: "conflicts",
    FSCK: "damage",
}
_COMMANDS = {
    FRESHNESS: "persist describe {shard}",
    ERRORS: "persist errors {shard}",
    STASH_AGE: "persist describe {shard}",
    CONFLICTS: "persist conflicts {shard}",
    FSCK: "persist fsck {shard}",
}
_NAMES = {
    FRESHNESS: "late",
    ERRORS: "errors alive",
    STASH_AGE: "records wait in the stash",
    CONFLICTS: "many conflicts",
    FSCK: "damage found",
}


@dataclass(frozen=True)
class Words:
    """The parts of a notice's text. `facts` are lines `name: value`."""

    headline: str
    facts: tuple[tuple[str, str], ...]
    command: str
    section: str


def show_duration(duration_ms: int) -> str:
    """`7 h 12 min`, `3 d 4 h`, `45 s`: the two largest units."""
    parts: list[str] = []
    rest = max(0, duration_ms)
    for name, size in _UNITS:
        count, rest = divmod(rest, size)
        if count or parts:
            parts.append(f"{count} {name}" if count else "")
    shown = [part for part in parts[:2] if part]
    return " ".join(shown) if shown else f"{duration_ms // 1000} s"


def _time(upper: int | None) -> str:
    return "its end" if upper is None else format_time(upper)


def show_value(condition: str, value: int) -> str:
    """A value of a condition, or one of its thresholds."""
    return show_duration(value) if condition in DURATIONS else str(value)


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
    words = Words(headline, tuple(facts), _COMMANDS[condition].format(shard=health.shard), _SECTIONS[condition])
    return make_notice(
        words,
        kind="alert",
        key=alert_key(health.shard, condition),
        shard=health.shard,
        what=condition,
        level=alert.level,
        is_resolved=is_resolved,
        at_ms=now_ms,
        since_ms=alert.since_ms,
        value=value if is_resolved else alert.value,
        limit=alert.limit,
        guide=guide,
    )


def make_notice(
    words: Words,
    *,
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
    """A notice with its texts. Without `notice_id` it is one of the key and the time."""
    state = "resolved" if is_resolved else level
    link = f"{guide or GUIDE}#{words.section}"
    lines = [words.headline, *(f"{name}: {text}" for name, text in words.facts)]
    if not is_resolved:
        lines += [f"what helps: {words.command}", f"guide: {link}"]
        if kind == "alert":
            lines.append(f"silence it until it is resolved: persist ack {shard} {what} --reason TEXT")
    name = "" if kind != "alert" else f": {_NAMES[what]}"
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
        subject=f"[{state}] {shard}{name}" if kind == "alert" else f"[{state}] {words.headline.splitlines()[0]}",
        text="\n".join(lines),
        command=words.command,
        guide=link,
        value=value,
        limit=limit,
    )


def _crossed(health: Health, condition: str, alert: Alert) -> str:
    shard, value, limit = health.shard, show_value(condition, alert.value), show_value(condition, alert.limit)
    if condition == FRESHNESS:
        upper = _time(health.upper)
        if not health.has_commit:
            return f"{shard} is late: nothing was committed yet, since {value} ago or longer (limit {limit})."
        return f"{shard} is late: it is complete up to {upper}, {value} ago (limit {limit})."
    if condition == ERRORS:
        return f"{shard} holds {value} records that could not be decoded (limit {limit})."
    if condition == STASH_AGE:
        return f"{shard} has had records waiting in the stash for {value} (limit {limit})."
    if condition == CONFLICTS:
        return f"{shard} lost {value} appends to other writers in 24 hours (limit {limit})."
    return f"{shard} is damaged: {value} findings (limit {limit})."


def _resolved(health: Health, condition: str, alert: Alert, value: int | None) -> str:
    shard = health.shard
    if value is None:
        return f"{shard} is not watched for {condition} any more. It was {show_value(condition, alert.value)}."
    now = show_value(condition, value)
    if condition == FRESHNESS:
        if health.upper is None:
            return f"{shard} is not late any more: it is closed."
        return f"{shard} is fresh again: it is complete up to {_time(health.upper)}, {now} ago."
    if condition == ERRORS:
        return f"{shard}: errors are below the limit again, {now} now."
    if condition == STASH_AGE:
        return f"{shard}: no record has been waiting in the stash for long any more."
    if condition == CONFLICTS:
        return f"{shard}: conflicts are below the limit again, {now} in 24 hours."
    return f"{shard}: the last fsck has {now} findings."
