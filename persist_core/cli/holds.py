"""`persist holds`, `persist release`: what keeps a shard's history, and ending a holder whose owner is gone."""

from __future__ import annotations

import getpass
import os
import platform
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import click

from persist_core.cli import output
from persist_core.cli.session import Session, with_session
from persist_core.inspection.facts import ShardDescription
from persist_core.maintenance import actions
from persist_core.maintenance.holders import Held, Holders, list_holders
from persist_core.time_text import format_time, show_time


@click.command("holds")
@click.argument("shard")
@with_session
def holds_command(session: Session, shard: str) -> None:
    """Who holds the history of SHARD, since when, and what ends it. The first that blocks `since` is the first row.

    Also lists the forks that share files with SHARD, and the holders that users have ended.
    """
    found = list_holders(session.client, session.client.state(shard))
    if session.as_json:
        output.print_json(asdict(found))
        return
    output.print_facts(
        [
            ("shard", shard),
            ("since", show_time(found.since)),
            ("upper", show_time(found.upper)),
            ("history", found.history),
            ("held back by", _first(found)),
        ]
    )
    columns = ("holder", "kind", "holds since", "from", "expires", "blocks", "what it is", "what ends it")
    output.print_table(columns, [_row(each) for each in found.held])
    for each in found.released:
        output.print_line(
            f"released: {each.holder}, since {show_time(each.since)}, by {each.by} at"
            f" {format_time(each.released_ms)}: {each.reason}"
        )


def _first(found: Holders) -> str:
    first = found.held[0]
    if not first.blocks:
        return "nothing"
    return f"{first.kind} {first.holder}; without it since could be {show_time(found.held[1].since)}"


def _row(each: Held) -> tuple[Any, ...]:
    return (
        each.holder,
        each.kind,
        "" if each.kind == "fork" else show_time(each.since),
        "" if each.from_ms is None else format_time(each.from_ms),
        "" if each.expires_ms is None else format_time(each.expires_ms),
        "yes" if each.blocks else "",
        each.about,
        each.remedy,
    )


@click.command("release")
@click.argument("shard")
@click.argument("holder")
@click.option("--reason", required=True, help="Why: it is kept with your name, and shown to the reader.")
@click.option("--force", is_flag=True, help="Also end the hold of a view that still reads SHARD.")
@with_session
def release_command(session: Session, shard: str, holder: str, reason: str, force: bool) -> None:
    """End the lease or hold of HOLDER (one of `persist holds`) on SHARD, because its owner is gone.

    A reader whose lease was ended gets an error and opens a new one. `since` moves with the next `persist maintain`.
    Pins are ended by `persist unpin`.
    """
    done = actions.release(session.client, shard, holder, by=this_user(), reason=reason, is_forced=force)
    output.print_done(done, as_json=session.as_json)


def this_user() -> str:
    """The user of this process and its machine. A container may run with a user id that has no name."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid-{os.getuid()}"
    return f"{user}@{platform.node()}"


def history_facts(found: ShardDescription) -> Iterator[tuple[str, str]]:
    """The rows of `persist describe` about the history."""
    grows = " (every change is kept, so stored bytes grow; `history: 30 days` in its file limits that)"
    yield "history", found.history + (grows if found.history_ms is None else "")
    if found.held_back_by is not None:
        start = show_time(found.history_start)
        yield "held back by", f"{found.held_back_by} (the history starts at {start}): `persist holds {found.shard}`"
