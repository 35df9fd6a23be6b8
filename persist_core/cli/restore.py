"""`persist restore`, `pin`, `unpin`, `resolve`: going back to a checkpoint, keeping checkpoints to go back to, and
removing errs that no record can remove."""

from __future__ import annotations

import click

from persist_core.cli import output
from persist_core.cli.session import Session, with_session
from persist_core.errors import InvalidInput
from persist_core.maintenance import actions
from persist_core.protocol.restore import MAX_UPDATES

WRITER = "cli/restore"
RESOLVER = "cli/resolve"


@click.command("restore")
@click.argument("shard")
@click.option("--to", "checkpoint_id", required=True, metavar="CHECKPOINT_ID", help="One of `persist checkpoints`.")
@click.option("--as", "new_shard", metavar="NEW_SHARD", help="Leave SHARD alone: make a new shard of the checkpoint.")
@click.option("--dry-run", is_flag=True, help="Say what would change, and which files would be read again.")
@click.option(
    "--max-updates",
    type=click.IntRange(min=0),
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
@click.option("--at", metavar="GLOB", help="Those at the positions that match, as `--dry-run` prints them.")
@click.option("--dry-run", is_flag=True, help="Say which errors would be removed.")
@with_session
def resolve_command(session: Session, shard: str, is_all: bool, at: str | None, dry_run: bool) -> None:
    """Remove errors of kind missing_order of SHARD, a collection in sequence order: records that said no order.

    Each stands in a slot of its own, so no record removes it. Rows, orders and progress do not change; older times keep
    the errors. If the record counts, deliver it again with an order, before or after.
    """
    if is_all == (at is not None):
        raise InvalidInput("expected either --all or --at GLOB: which errors you have looked at; --dry-run lists them")
    done = actions.resolve(session.client, shard, at=at or "*", writer=RESOLVER, is_dry_run=dry_run)
    output.print_done(done, as_json=session.as_json)
