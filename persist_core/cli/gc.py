"""`persist gc`: delete what nothing needs. `persist drop`: retire a shard."""

from __future__ import annotations

from dataclasses import asdict

import click

from persist_core.cli import output
from persist_core.cli.session import Session, with_session
from persist_core.gc.collect import GRACE_MS, INTENT_MS, MAX_KEYS, collect, garbage
from persist_core.gc.drop import drop
from persist_core.gc.uploads import unfinished_uploads
from persist_core.shard.stats import show_bytes
from persist_core.time_text import show_time

_HOUR_MS = 3_600_000
_UPLOAD = "its upload was not completed"


@click.command("gc")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--dry-run", is_flag=True, help="Print what nothing needs now, and delete nothing.")
@click.option(
    "--grace-hours", type=float, default=GRACE_MS / _HOUR_MS, show_default=True, help="Time for readers without lease."
)
@click.option(
    "--intent-hours", type=float, default=INTENT_MS / _HOUR_MS, show_default=True, help="Time for the longest dag run."
)
@click.option("--max-keys", type=click.IntRange(min=1), default=MAX_KEYS, show_default=True, help="Keys of each shard.")
@with_session
def gc_command(
    session: Session, names: tuple[str, ...], dry_run: bool, grace_hours: float, intent_hours: float, max_keys: int
) -> None:
    """Delete files of the shards NAME (default: of all) that nothing needs any more.

    You can run it at any time, also while DAGs run. A file is first listed, and deleted only when the grace and the
    staging intent have passed and nothing needs it then. Run it every day (`persist maintain` does).
    """
    done, tries = [], output.Tries()
    for name in names or session.client.shards():
        with tries.one():
            if dry_run:
                _print_garbage(session, name)
                continue
            collected = collect(
                session.client,
                name,
                grace_ms=int(grace_hours * _HOUR_MS),
                intent_ms=int(intent_hours * _HOUR_MS),
                max_keys=max_keys,
            )
            done.append(collected)
    if session.as_json:
        output.print_ndjson([asdict(each) for each in done])
    elif not dry_run:
        rows = [
            (
                each.shard,
                f"{each.marked} ({show_bytes(each.marked_bytes)})",
                f"{each.deleted} ({show_bytes(each.deleted_bytes)})",
                f"{each.waiting} ({show_bytes(each.waiting_bytes)})",
                str(each.aborted_uploads or ""),
                "" if each.is_done else "run it again",
            )
            for each in done
        ]
        columns = ("shard", "found", "deleted", "listed, to be deleted later", "uploads aborted", "not done")
        output.print_table(columns, rows, empty=f"no shards in {session.client.location.consensus.uri}")
    tries.end()


@click.command("drop")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--force", is_flag=True, help="Drop even if views, readers or forks use it.")
@with_session
def drop_command(session: Session, name: str, yes: bool, force: bool) -> None:
    """Drop the shard NAME, permanently: nothing of it can be read or restored afterwards.

    `persist gc` deletes its files; what a fork shares stays. The name can be used again with `persist run --recreate`.
    """
    session.client.state(name)  # raises if it does not exist
    if not yes:
        click.confirm(
            f"Drop {name} in {session.client.location.consensus.uri}? This cannot be undone", abort=True, err=True
        )
    is_new = drop(session.client, name, is_forced=force)
    if session.as_json:
        output.print_json({"shard": name, "dropped": True, "is_new": is_new})
    else:
        said = f"is dropped; `persist gc {name}` deletes its files in some days" if is_new else "was dropped before"
        output.print_line(f"{name} {said}")


def _print_garbage(session: Session, name: str) -> None:
    found, uploads = garbage(session.client, name), unfinished_uploads(session.client.blob, name)
    if session.as_json:
        output.print_ndjson({"shard": name, **asdict(each), "reason": each.reason} for each in found)
        output.print_ndjson({"shard": name, **asdict(each), "reason": _UPLOAD} for each in uploads.found)
        return
    rows = [(each.key, show_bytes(each.size_bytes), each.reason) for each in found]
    rows += [(each.key, f"begun {show_time(each.begun_ms)}", _UPLOAD) for each in uploads.found]
    if uploads.skipped:
        output.print_line(f"{name}: unfinished uploads are not looked for: {uploads.skipped}")
    output.print_table(("key", "size", "why it is not needed"), rows, empty=f"{name}: everything is needed")
