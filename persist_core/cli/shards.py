"""Commands that look at shards: `shards`, `describe`, `commits`, `checkpoints`, `conflicts`, `late`, `fsck`.

The facts come from `persist_core.inspection`: with `--json` its objects, for people a table of some of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

import click

from persist_core.cli import output
from persist_core.cli.session import Session, with_session
from persist_core.contents.stats import show_bytes
from persist_core.errors import Corruption, StorageError
from persist_core.inspection.facts import LastCommit, ShardDescription
from persist_core.inspection.inspector import DEFAULT_COMMITS, MAX_COMMITS, Inspector
from persist_core.inspection.late import LateRecord, late_records
from persist_core.keys import check_shard_name
from persist_core.maintenance import actions
from persist_core.maintenance.fsck import lost_shards
from persist_core.protocol.conflicts import ConflictRecord
from persist_core.protocol.replay import starts
from persist_core.schema import CollectionSchema, show_order
from persist_core.sealed import from_plain
from persist_core.shard.history import HISTORY
from persist_core.time_text import format_time, show_ago, show_time

UNREADABLE = "the manifest can't be read"
_CONFLICTS: output.Columns[ConflictRecord] = (
    ("detected", lambda r: format_time(r.detected_ms)),
    ("expected upper", lambda r: show_time(r.expected_upper)),
    ("found upper", lambda r: show_time(r.found_upper)),
    ("lost", lambda r: r.loser),
    ("won", lambda r: r.winner),
)


@click.command()
@with_session
def shards(session: Session) -> None:
    """List the shards of the location: frontiers, contents, and what needs attention."""
    found = Inspector(session.client).summaries()
    if session.as_json:
        output.print_ndjson(asdict(each) for each in found)
        return
    now_ms = session.client.clock.now_ms()
    rows = [
        (s.shard, *[""] * 9, "unreadable")
        if "unreadable" in s.attention
        else (
            s.shard,
            s.kind,
            show_time(s.upper),
            "" if s.lag_ms is None else show_ago(now_ms - s.lag_ms, now_ms),
            s.rows if s.rows is not None else "unknown",
            s.errors if s.errors is not None else "unknown",
            s.stash if s.stash is not None else "unknown",
            s.batches,
            show_bytes(s.size_bytes),
            show_ago(s.newest_commit.committed_ms, now_ms) if s.newest_commit else "never",
            ", ".join(s.attention),
        )
        for s in found
    ]
    titles = ("shard", "kind", "upper", "age", "rows", "errors", "stash", "batches", "size", "last commit", "attention")
    output.print_table(titles, rows, empty=session.no_shards)
    for s in found:
        if s.error:
            output.print_line(f"{s.shard}: {s.error}")


@click.command()
@click.argument("shard")
@with_session
def describe(session: Session, shard: str) -> None:
    """Frontiers, schema, sizes, progress and holders of SHARD."""
    found = Inspector(session.client).description(shard)
    if _is_correctable(found):
        try:
            kept = [each for each in starts(session.client, session.client.state(shard)) if each.checkpoint_id]
            found = replace(found, reprocess_from=kept[-1].inputs_end if kept else None)
        except Corruption as damage:
            found = replace(found, error=found.error or f"{damage.kind}: {damage}")
    if session.as_json:
        output.print_json(asdict(found))
        return
    output.print_facts(_facts(found, session.client.clock.now_ms()))
    if found.schema is not None:
        keys, values = found.schema["key"], found.schema["values"]
        rows = [(c["name"], c["type"], "key") for c in keys]
        rows += [(c["name"], c["type"], "" if c["nullable"] else "not null") for c in values]
        output.print_table(("column", "type", ""), rows)


def _is_correctable(found: ShardDescription) -> bool:
    return found.kind == "collection" and not found.is_dropped


def _facts(found: ShardDescription, now_ms: int) -> Iterable[tuple[str, str]]:
    yield "shard", f"{found.shard} ({found.kind})"
    if found.moved_to is not None:
        yield "moved to", f"{found.moved_to}; it accepts no commits here"
    yield "since", show_time(found.since)
    yield (
        "upper",
        show_time(found.upper) + ("" if found.lag_ms is None else f", {show_ago(now_ms - found.lag_ms, now_ms)}"),
    )
    grows = " (every change is kept, so stored bytes grow; `history: 30 days` in its file limits that)"
    yield "history", found.history + (grows if found.history_ms is None else "")
    if found.held_back_by is not None:
        start = show_time(found.history_start)
        yield "held back by", f"{found.held_back_by} (the history starts at {start}): `persist holds {found.shard}`"
    if found.schema is not None and found.schema["key"]:
        schema = from_plain(CollectionSchema, found.schema, what="its schema")
        arrival = "" if schema.order is not None else ": the records of a key must arrive in order, a later run wins"
        yield "order", f"{show_order(schema)}{arrival}"
    yield "batches", f"{found.batches}, {found.updates} updates, {show_bytes(found.size_bytes)}"
    counts = {"rows": found.rows, "errors": found.errors, "in the stash": found.stash}
    yield "contents", ", ".join(f"{'unknown' if n is None else n} {what}" for what, n in counts.items())
    for each in found.warned:
        yield "warning", f"{each} (in the newest run)"
    yield "last commit", _last(found.newest_commit, now_ms)
    due = found.due_merge
    yield "maintenance", "nothing is due" if due is None else f"{due} is due: `persist maintain {found.shard}`"
    yield "state", f"version {found.seqno}"
    for name, progress in found.sources.items():
        yield f"source {name}", _progress(progress)
    for held in found.held:
        if held.kind == "fork":
            yield f"fork {held.holder}", held.about
        elif held.kind != HISTORY:
            ends = "" if held.expires_ms is None else f", until {format_time(held.expires_ms)}"
            yield f"{held.kind} {held.holder}", f"holds {show_time(held.since)}{ends}"
    if found.attention:
        yield "attention", ", ".join(found.attention)
    if found.error:
        yield "not readable", found.error
    if _is_correctable(found) and not found.error:
        first = found.reprocess_from
        replayed = "all input" if first is None else f"days from {show_time(first)} on; earlier ones by all input"
        yield "reprocess", f"replays {replayed}"


def _last(commit: LastCommit | None, now_ms: int) -> str:
    if commit is None:
        return "never"
    made = f"{format_time(commit.committed_ms)}, {show_ago(commit.committed_ms, now_ms)}"
    return f"{made}, by {commit.writer}, checkpoint {commit.checkpoint_id}"


def _progress(progress: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_progress_value(name, value)}" for name, value in sorted(progress.items()))


def _progress_value(name: str, value: Any) -> Any:
    """`uppers` has a time for each input of a view, `as_of` is one; all else is plain."""
    if isinstance(value, Mapping):
        shown = {key: show_time(each) if name == "uppers" else each for key, each in value.items()}
        return "(" + ", ".join(f"{key} {each}" for key, each in shown.items()) + ")"
    return show_time(value) if name == "as_of" else value


@click.command()
@click.argument("shard")
@click.option("--before", type=output.COUNT, help="Commits before this version of the state (`older`).")
@click.option(
    "--limit", type=click.IntRange(1, MAX_COMMITS), default=DEFAULT_COMMITS, show_default=True, help="Commits to print."
)
@with_session
def commits(session: Session, shard: str, before: int | None, limit: int) -> None:
    """The newest commits of SHARD, oldest first: times, writer, and what each changed."""
    page = Inspector(session.client).commits(shard, before=before, limit=limit)
    if session.as_json:
        output.print_json(asdict(page))
        return
    rows = [
        (
            format_time(c.committed_ms),
            show_time(c.upper),
            *(
                (c.error or "no longer known", "", "", "")
                if c.inserts is None
                else (c.inserts, c.updates, c.deletes, c.errors)
            ),
            c.writer
            + (f" (corrects {show_time(c.correction['from_ms'])} and later)" if c.correction else "")
            + (" (another generation)" if c.swapped_in else "")
            + (f" (schema: {'; '.join(c.schema_changes)})" if c.schema_changes else ""),
        )
        for c in page.commits
    ]
    columns = ("committed", "upper", "inserts", "updates", "deletes", "errors", "writer")
    output.print_table(columns, rows, empty="no commits")
    if page.older is not None:
        output.print_line(f"older commits: `persist commits {shard} --before {page.older}`")


@click.command()
@click.argument("shard")
@with_session
def checkpoints(session: Session, shard: str) -> None:
    """The checkpoints of SHARD, oldest first."""
    inspector = Inspector(session.client)
    found, problem = inspector.checkpoints(shard), inspector.latest_problem(shard)
    if problem is not None:
        session.say(f"warning: {problem}; the next run writes it again")
    if session.as_json:
        output.print_ndjson(asdict(each) for each in found)
        return
    rows = [
        (c.checkpoint_id, UNREADABLE, *[""] * 6)
        if c.error is not None
        else (
            c.checkpoint_id + "".join(f" ({reason})" for reason in c.kept_by),
            c.epoch,
            "" if c.timestamp_ms is None else format_time(c.timestamp_ms),
            show_time(c.upper),
            "" if c.kept_until is None else show_time(c.kept_until),
            show_bytes(c.total_size_bytes or 0),
            c.parent_id,
            c.restored_from or "",
        )
        for c in found
    ]
    columns = ("checkpoint", "epoch", "made", "upper", "kept until upper is", "state size", "parent", "restored from")
    output.print_table(columns, rows, empty="no checkpoints")


@click.command()
@click.argument("shard")
@with_session
def conflicts(session: Session, shard: str) -> None:
    """The lost appends of SHARD, oldest first: both writers, the expected upper and the upper that was found."""
    records = Inspector(session.client).conflicts(shard)
    output.print_records(records, _CONFLICTS, as_json=session.as_json, empty="no conflicts")


@click.command("fsck")
@click.argument("shard", required=False)
@click.option(
    "--repair",
    "with_repair",
    is_flag=True,
    help="First write again what commits determine: checkpoints, copies of operator state, _latest. A shard that has"
    " lost commits goes on from what is left. Nothing else.",
)
@with_session
def check(session: Session, shard: str | None, with_repair: bool) -> None:
    """Check SHARD, or all shards: every stored byte, and the invariants. Exit code 4 if anything is damaged, 6 if not
    all could be read.

    The result is kept for alerts (`persist alerts`); nothing else is changed. A shard whose state is gone is repaired
    only by its name.
    """
    names = session.client.shards() if shard is None else [check_shard_name(shard)]
    lost: list[str] = []
    if shard is None:
        try:
            lost = lost_shards(session.client)
        except StorageError as error:  # such as `lost+found` in the root
            session.say(f"shards whose state is gone were not looked for: {error}")
    if not (names or lost or session.as_json):
        output.print_line(session.no_shards)
    is_clean, is_damaged = True, False
    for name in (*names, *lost):
        done = actions.check(session.client, name, with_repair=with_repair and name not in lost)
        is_clean, is_damaged = is_clean and done.facts["is_clean"], is_damaged or done.facts["is_damaged"]
        output.print_done(done, as_json=session.as_json)
    if not is_clean:
        raise SystemExit(4 if is_damaged else 6)


DEFAULT_ROWS = 100  # of a table printed for people without --limit; JSON has all


@click.command("late")
@click.argument("shard")
@click.option("--limit", type=output.COUNT, help=f"Records to print (default: {DEFAULT_ROWS}; with --json all).")
@with_session
def late_command(session: Session, shard: str, limit: int | None) -> None:
    """The late records of SHARD, a collection in sequence order, newest first: what lost, and to which order."""
    if session.as_json:
        output.print_records(late_records(session.client, shard, limit=limit), _LATE, as_json=True)
        return
    shown = DEFAULT_ROWS if limit is None else limit
    found = late_records(session.client, shard, limit=shown + 1)
    output.print_records(found[:shown], _LATE, as_json=False, empty="" if found else "no late records")
    if len(found) > shown:
        output.print_line("there are older ones; --limit shows more, --json all")


def _fields(values: Mapping[str, Any]) -> str:
    """`id 5, region eu`; of an order without fields, its position says all."""
    return ", ".join(f"{name} {'null' if value is None else value}" for name, value in values.items())


_LATE: output.Columns[LateRecord] = (
    ("key", lambda r: f"(raw) {r.bad_key}" if r.key is None else _fields(r.key)),
    ("op", lambda r: r.op),
    ("time", lambda r: show_time(r.acted)),
    ("order", lambda r: _fields(r.order)),
    ("read from", lambda r: r.position or ""),
    ("beaten by", lambda r: _fields(r.beaten_by)),
    ("read from", lambda r: r.beaten_by_position or ""),
    ("gave its value of", lambda r: ", ".join(r.gave)),
)
