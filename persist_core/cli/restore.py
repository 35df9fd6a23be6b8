"""Going back, and what keeps history for it: `persist restore`, `pin`, `unpin`, `holds`, `release`; and `resolve`,
which removes errs that no record can remove."""

from __future__ import annotations

from dataclasses import asdict

import click

from persist_core.cli import output
from persist_core.cli.session import Session, this_user, with_session
from persist_core.errors import InvalidInput
from persist_core.inspection.holders import Held, Holders, list_holders
from persist_core.maintenance import actions
from persist_core.protocol.delta import MAX_UPDATES
from persist_core.time_text import format_time, show_time

WRITER = "cli/restore"
RESOLVER = "cli/resolve"
_HELD: output.Columns[Held] = (
    ("holder", lambda h: h.holder),
    ("kind", lambda h: h.kind),
    ("holds since", lambda h: "" if h.kind == "fork" else show_time(h.since)),
    ("from", lambda h: "" if h.from_ms is None else format_time(h.from_ms)),
    ("expires", lambda h: "" if h.expires_ms is None else format_time(h.expires_ms)),
    ("blocks", lambda h: "yes" if h.blocks else ""),
    ("what it is", lambda h: h.about),
    ("what ends it", lambda h: h.remedy),
)


@click.command("restore")
@click.argument("shard")
@click.option("--to", "checkpoint_id", required=True, metavar="CHECKPOINT_ID", help="One of `persist checkpoints`.")
@click.option("--as", "new_shard", metavar="NEW_SHARD", help="Leave SHARD alone: make a new shard of the checkpoint.")
@click.option("--dry-run", is_flag=True, help="Say what would change, and which files would be read again.")
@click.option(
    "--max-updates",
    type=output.COUNT,
    default=MAX_UPDATES,
    help=f"Refuse to undo more updates than this ({MAX_UPDATES}); each takes 1.2 KiB of memory, if rows are narrow.",
)
@with_session
def restore_command(
    session: Session, shard: str, checkpoint_id: str, new_shard: str | None, dry_run: bool, max_updates: int
) -> None:
    """Restore SHARD (a collection) to a checkpoint. The next run reads the input since that checkpoint again.

    A restore is a new commit: history stays readable, and another restore can undo it. Pause the DAG first, and move
    away the files that should not be read again. With --as, the checkpoint becomes a new, independent shard, and SHARD
    does not change.
    """
    if new_shard is None:
        done = actions.restore(
            session.client, shard, checkpoint_id, writer=WRITER, is_dry_run=dry_run, max_updates=max_updates
        )
    elif dry_run:
        raise InvalidInput(
            "--dry-run reports what a restore would change in SHARD; with --as nothing changes there. Leave one out"
        )
    else:
        done = actions.fork(session.client, shard, checkpoint_id, new_shard, writer=WRITER)
    output.print_done(done, as_json=session.as_json)


@click.command("pin")
@click.argument("shard")
@click.argument("checkpoint_id")
@with_session
def pin_command(session: Session, shard: str, checkpoint_id: str) -> None:
    """Keep a checkpoint of SHARD until `persist unpin`, so that it can be restored: retention skips it, and the history
    since then is kept."""
    output.print_done(actions.pin(session.client, shard, checkpoint_id), as_json=session.as_json)


@click.command("unpin")
@click.argument("shard")
@click.argument("checkpoint_id")
@with_session
def unpin_command(session: Session, shard: str, checkpoint_id: str) -> None:
    """Leave a pinned checkpoint of SHARD to retention and the history again."""
    output.print_done(actions.unpin(session.client, shard, checkpoint_id), as_json=session.as_json)


@click.command("resolve")
@click.argument("shard")
@click.option("--all", "is_all", is_flag=True, help="All of them.")
@click.option("--at", metavar="GLOB", help="Errors at matching positions, as `--dry-run` prints them.")
@click.option("--dry-run", is_flag=True, help="Say which errors would be removed.")
@with_session
def resolve_command(session: Session, shard: str, is_all: bool, at: str | None, dry_run: bool) -> None:
    """Remove errors of kind missing_order of SHARD, a collection in sequence order: records that said no order.

    Each stands in a slot of its own, so no record removes it. Rows, orders and progress do not change; older times keep
    the errors. If the record counts, deliver it again with an order, before or after.
    """
    if is_all == bool(at):  # an empty text is an unset variable of a shell, not all errors
        raise InvalidInput("expected either --all or --at GLOB: which errors you have looked at; --dry-run lists them")
    done = actions.resolve(session.client, shard, at=at or "*", writer=RESOLVER, is_dry_run=dry_run)
    output.print_done(done, as_json=session.as_json)


@click.command("holds")
@click.argument("shard")
@with_session
def holds_command(session: Session, shard: str) -> None:
    """List the holders of SHARD's history, since when, and what ends each. The first that blocks `since` comes first.

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
    output.print_records(found.held, _HELD, as_json=False)
    for each in found.released:
        output.print_line(
            f"released: {each.holder}, since {show_time(each.since)}, by {each.by} at"
            f" {format_time(each.released_ms)}: {each.reason}"
        )


def _first(found: Holders) -> str:
    first = found.held[0]
    return (
        "nothing"
        if found.held_back_by is None
        else f"{first.kind} {first.holder}; without it since could be {show_time(found.held[1].since)}"
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
