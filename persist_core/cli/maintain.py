"""Commands that keep up a location: `persist maintain`, `gc`, `drop`, `erase`, and `copy` (a backup, a move)."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from persist_core.cli import output
from persist_core.cli.configs import project_here
from persist_core.cli.output import Columns
from persist_core.cli.session import Session, this_user, with_session
from persist_core.contents.stats import show_bytes
from persist_core.gc.collect import MAX_KEYS, Collected, collect, garbage
from persist_core.gc.sweep import unfinished_uploads
from persist_core.handles.client import PersistClient
from persist_core.location.open import open_location
from persist_core.location.settings import location_from
from persist_core.maintenance.actions import Done, erase
from persist_core.maintenance.copy import THREADS, Copied, Copier, Progress
from persist_core.maintenance.drop import drop, with_dropped
from persist_core.maintenance.maintain import Maintained, maintain
from persist_core.spark_job.launch import merge_by_job
from persist_core.spark_job.process import LOCAL_MASTER, SparkProcess
from persist_core.time_text import HOUR_MS, show_time

_UPLOAD = "its upload was not completed"
_MAINTAINED: Columns[Maintained] = (
    ("shard", lambda m: m.shard),
    ("done", lambda m: m.did or "nothing to do"),
    ("still due", lambda m: str(m.owed)),
)
_COLLECTED: Columns[Collected] = (
    ("shard", lambda c: c.shard),
    ("found", lambda c: f"{c.marked} ({show_bytes(c.marked_bytes)})"),
    ("deleted", lambda c: f"{c.deleted} ({show_bytes(c.deleted_bytes)})"),
    ("listed, to be deleted later", lambda c: f"{c.waiting} ({show_bytes(c.waiting_bytes)})"),
    ("uploads aborted", lambda c: str(c.aborted_uploads or "")),
    ("not done", lambda c: "" if c.is_done else "run it again"),
)
_COPIED: Columns[Copied] = (
    ("shard", lambda c: c.shard),
    ("upper", lambda c: show_time(c.upper)),
    ("state", lambda c: "copied" if c.is_new else "up to date"),
    ("objects copied", lambda c: c.objects),
    ("bytes", lambda c: show_bytes(c.size_bytes)),
    ("there already", lambda c: c.known),
)


@click.command("maintain")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--max-rows", type=output.POSITIVE, help="Rows of one merge.")
@click.option("--max-merges", type=output.COUNT, help="Merges of each shard.")
@click.option(
    "--max-merge-bytes",
    type=output.POSITIVE,
    help="Bytes that one merge rewrites, if they are more than a 20th of the shard; a larger one is done in steps.",
)
@click.option("--master", help="Spark master, or sc://host:port, that does merges of more than --max-rows rows.")
@with_session
def maintain_command(
    session: Session,
    names: tuple[str, ...],
    max_rows: int | None,
    max_merges: int | None,
    max_merge_bytes: int | None,
    master: str | None,
) -> None:
    """Expire leases, advance since, merge batches and collect garbage, for the shards NAME (default: all).

    You can run it at any time, even while DAGs run. A merge of a view takes about 400 bytes of memory for each row,
    which --max-rows limits; of a collection at most about 0.7 GB. Bounds that are not given, and the hours of GC, come
    from `persist.yaml` beside the folder of collections. The output says what is still due. `persist gc` has more
    options for garbage.
    """
    done, tries, bounds = [], output.Tries(session.as_json), project_here().maintenance
    with SparkProcess(session.location, master or LOCAL_MASTER).kept() as start:  # nothing is started before a merge
        by_spark = functools.partial(merge_by_job, session.client, start) if master else None
        for name in names or session.client.shards():
            with tries.one():
                done.append(
                    maintain(
                        session.client,
                        name,
                        max_rows=max_rows or bounds.max_rows,
                        max_merges=bounds.max_merges if max_merges is None else max_merges,
                        budget_bytes=max_merge_bytes or bounds.max_merge_bytes,
                        merge_elsewhere=by_spark,
                        grace_ms=bounds.grace_ms,
                        intent_ms=bounds.intent_ms,
                    )
                )
    tries.print_done(done, _MAINTAINED, session.no_shards)
    tries.end()


@click.command("gc")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--dry-run", is_flag=True, help="Print what nothing needs now, whatever the hours; delete nothing.")
@click.option("--grace-hours", type=output.COUNT, help="Time for readers without lease.")
@click.option("--intent-hours", type=output.COUNT, help="Time for the longest dag run.")
@click.option("--max-keys", type=output.POSITIVE, default=MAX_KEYS, show_default=True, help="Keys of each shard.")
@with_session
def gc_command(
    session: Session,
    names: tuple[str, ...],
    dry_run: bool,
    grace_hours: int | None,
    intent_hours: int | None,
    max_keys: int,
) -> None:
    """Delete files that nothing needs, of the shards NAME (default: all).

    You can run it at any time, even while DAGs run. A file is first listed, and deleted only when the grace and the
    staging intent have passed and nothing needs it then. Hours that are not given come from `persist.yaml` beside
    the folder of collections. Run it every day (`persist maintain` does).
    """
    done, tries, hours = [], output.Tries(session.as_json), project_here().maintenance
    for name in with_dropped(session.client, names or session.client.shards()):
        with tries.one():
            if dry_run:
                _print_garbage(session, name)
                continue
            collected = collect(
                session.client,
                name,
                grace_ms=hours.grace_ms if grace_hours is None else grace_hours * HOUR_MS,
                intent_ms=hours.intent_ms if intent_hours is None else intent_hours * HOUR_MS,
                max_keys=max_keys,
            )
            done.append(collected)
    if not dry_run:
        tries.print_done(done, _COLLECTED, session.no_shards)
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
    said = f"is dropped; `persist gc {name}` deletes its files in some days" if is_new else "was dropped before"
    done = Done({"shard": name, "dropped": True, "is_new": is_new}, (f"{name} {said}",))
    output.print_done(done, as_json=session.as_json)


def _print_garbage(session: Session, name: str) -> None:
    found, uploads = garbage(session.client, name), unfinished_uploads(session.client.blob, name)
    if session.as_json:
        output.print_ndjson({"shard": name, **each._asdict(), "reason": each.reason} for each in found)
        output.print_ndjson({"shard": name, **asdict(each), "reason": _UPLOAD} for each in uploads.found)
        return
    rows = [(each.key, show_bytes(each.size_bytes), each.reason) for each in found]
    rows += [(each.key, f"begun {show_time(each.begun_ms)}", _UPLOAD) for each in uploads.found]
    if uploads.skipped:
        output.print_line(f"{name}: unfinished uploads are not looked for: {uploads.skipped}")
    output.print_table(("key", "size", "why it is not needed"), rows, empty=f"{name}: everything is needed")


@click.command("copy")
@click.argument("names", metavar="[SHARD]...", nargs=-1)
@click.option("--to-blob-uri", required=True, help="The blob store of the copy.")
@click.option("--to-consensus-uri", required=True, help="The consensus store of the copy.")
@click.option("--together", is_flag=True, help="Copy all shards as of one moment, so that views agree with inputs.")
@click.option("--move", is_flag=True, help="Then accept no more commits here: the shards go on in the other location.")
@click.option("--verify", is_flag=True, help="Verify the copy's digests, and copy damaged objects again.")
@click.option(
    "--threads", type=click.IntRange(1, 64), default=THREADS, show_default=True, help="Objects copied at a time."
)
@with_session
def copy_command(
    session: Session,
    names: tuple[str, ...],
    to_blob_uri: str,
    to_consensus_uri: str,
    together: bool,
    move: bool,
    verify: bool,
    threads: int,
) -> None:
    """Copy the shards SHARD (default: all) to another location of any kind, or bring an earlier copy up to date.

    You can run it at any time, even while DAGs run. It moves only objects that the copy lacks, and may be
    stopped and started again. A copy with appends of its own is never replaced. With --move, the source can
    still be read, and refuses commits with the name of the new place.
    """
    done, tries = [], output.Tries(session.as_json)
    with open_location(location_from(to_blob_uri, to_consensus_uri, env={})) as opened, _bar(session) as progress:
        copier = Copier(session.client, PersistClient(opened), threads=threads, progress=progress, verifies=verify)
        for group in copier.groups(names, is_together=together):
            with tries.one():
                done += copier.copy(group, is_move=move)
    tries.print_done(done, _COPIED, session.no_shards)
    if not session.as_json:
        for each in done:
            for note in each.notes:
                output.print_line(f"{each.shard}: {note}")
    tries.end()


@contextmanager
def _bar(session: Session) -> Iterator[Progress]:
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[size]}")
    console = Console(stderr=True, markup=False, emoji=False, highlight=False)
    bars: dict[str, TaskID] = {}
    with Bar(*columns, TimeElapsedColumn(), console=console, disable=session.as_json or not sys.stderr.isatty()) as bar:

        def show(shard: str, moved: int, to_move: int, size_bytes: int) -> None:
            if shard not in bars:
                bars[shard] = bar.add_task(output.printable(shard), size="")
            bar.update(bars[shard], completed=moved, total=to_move, size=show_bytes(size_bytes))

        yield show


@click.command("erase")
@click.argument("shard")
@click.option(
    "--key",
    multiple=True,
    required=True,
    help="A key. Repeat it for each key column, in order; and again for each further key.",
)
@click.option("--reason", required=True, help="Why: it is kept with your name, and without the key.")
@click.option("--dry-run", is_flag=True, help="Say what would be removed, and what is not reached.")
@click.option("--verify", is_flag=True, help="Then read every stored object. Exit code 4 if one holds a key.")
@with_session
def erase_command(session: Session, shard: str, key: tuple[str, ...], reason: str, dry_run: bool, verify: bool) -> None:
    """Remove keys from SHARD (a collection): rows, history, errors, operator state, checkpoints and garbage.

    It cannot be undone. Nothing changes for other keys, at any time. The same command goes on after a kill. It lists
    what may hold the keys and is not reached: views, forks, the source, backups.
    """
    done = erase(session.client, shard, key, by=this_user(), reason=reason, is_dry_run=dry_run, with_verify=verify)
    output.print_done(done, as_json=session.as_json)
    if not done.facts["is_clean"]:
        raise SystemExit(4)
