"""`persist copy`: shards of the location in another one: a backup, a restore, a move, or data for a test."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from persist_core.cli import output
from persist_core.cli.session import Session, with_session
from persist_core.handles.client import PersistClient
from persist_core.location.open import open_location
from persist_core.location.settings import location_from
from persist_core.maintenance.copy import THREADS, Copied, Copier, Progress
from persist_core.shard.stats import show_bytes
from persist_core.time_text import show_time


@click.command("copy")
@click.argument("names", metavar="[SHARD]...", nargs=-1)
@click.option("--to-blob-uri", required=True, help="The blob store of the copy.")
@click.option("--to-consensus-uri", required=True, help="The consensus store of the copy.")
@click.option("--together", is_flag=True, help="Copy all shards as of one moment, so that views agree with inputs.")
@click.option("--move", is_flag=True, help="Then accept no more commits here: the shards go on in the other location.")
@click.option("--verify", is_flag=True, help="Read what is there already, and copy again what has another digest.")
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

    You can run it at any time, also while DAGs run. It moves only objects that the copy does not have, and may be
    stopped and started again. A copy to which something was appended is never replaced. With --move, the source can
    still be read, and refuses commits with the name of the new place.
    """
    done, tries = [], output.Tries()
    with open_location(location_from(to_blob_uri, to_consensus_uri, env={})) as opened, _bar(session) as progress:
        copier = Copier(session.client, PersistClient(opened), threads=threads, progress=progress, verifies=verify)
        for group in copier.groups(names, is_together=together):
            with tries.one():
                done += copier.copy(group, is_move=move)
    if session.as_json:
        output.print_ndjson([asdict(each) for each in done])
    else:
        columns = ("shard", "upper", "state", "objects copied", "bytes", "there already")
        empty = f"no shards in {session.client.location.consensus.uri}"
        output.print_table(columns, [_row(each) for each in done], empty=empty)
        for each in done:
            for note in each.notes:
                output.print_line(f"{each.shard}: {note}")
    tries.end()


def _row(each: Copied) -> tuple[str | int, ...]:
    said = "copied" if each.is_new else "up to date"
    return each.shard, show_time(each.upper), said, each.objects, show_bytes(each.size_bytes), each.known


@contextmanager
def _bar(session: Session) -> Iterator[Progress]:
    """A bar for each shard on stderr, if that is a terminal."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[size]}")
    console = Console(stderr=True, markup=False, emoji=False, highlight=False)
    bars: dict[str, TaskID] = {}
    with Bar(*columns, TimeElapsedColumn(), console=console, disable=session.as_json or not sys.stderr.isatty()) as bar:

        def show(shard: str, moved: int, to_move: int, size_bytes: int) -> None:
            if shard not in bars:
                bars[shard] = bar.add_task(output.printable(shard), size="")
            bar.update(bars[shard], completed=moved, total=to_move, size=show_bytes(size_bytes))

        yield show
