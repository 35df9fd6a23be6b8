"""`persist restore`, `pin`, `unpin`: going back to a checkpoint, and keeping checkpoints to go back to."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from persist_core.checkpoint.pins import pin, unpin
from persist_core.cli import output
from persist_core.cli.session import Session, with_session
from persist_core.errors import CheckpointNotFound, InvalidInput, RunFailed
from persist_core.protocol.fork import fork
from persist_core.protocol.restore import MAX_UPDATES, NothingToRestore, RestorePlan, plan_restore, restore
from persist_core.protocol.stages import Conflict
from persist_core.shard.batch import BatchCounts
from persist_core.shard.keys import CheckpointLayout, check_checkpoint_id
from persist_core.shard.state import Committed
from persist_core.time_text import show_time

MAX_FILES_SHOWN = 20  # to people; JSON has all
WRITER = "cli/restore"


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
    check_checkpoint_id(checkpoint_id)
    if new_shard is not None:
        if dry_run:
            raise InvalidInput(
                "--dry-run reports what a restore would change in SHARD; with --as nothing changes there. Leave one out"
            )
        _print_fork(session, shard, fork(session.client, shard, checkpoint_id, new_shard, writer=WRITER), new_shard)
        return
    plan = plan_restore(session.client, shard, checkpoint_id, max_updates=max_updates)
    if isinstance(plan, NothingToRestore):
        _print_nothing(session, shard, checkpoint_id, plan)
    elif dry_run:
        _print_plan(session, plan, None)
    else:
        result = restore(session.client, plan, writer=WRITER)
        if isinstance(result, Conflict):
            raise RunFailed(f"{result.record}. Shard {shard} was not restored: pause its DAG, then try again")
        _print_plan(session, plan, result)


def _print_nothing(session: Session, shard: str, checkpoint_id: str, nothing: NothingToRestore) -> None:
    if session.as_json:
        output.print_json(
            {"shard": shard, "status": "up_to_date", "restored_from": checkpoint_id, "reason": nothing.reason}
        )
    else:
        output.print_line(f"nothing to do: {nothing.reason}")


def _print_plan(session: Session, plan: RestorePlan, done: Committed | None) -> None:
    checkpoint = plan.point.checkpoint
    counts, files = plan.counts, plan.inputs_again
    if session.as_json:
        output.print_json(
            {
                "shard": plan.shard,
                "status": "restored" if done else "dry_run",
                "restored_from": checkpoint.checkpoint_id,
                "checkpoint_id": done.commit.checkpoint_id if done else None,
                "lower": plan.lower,
                "upper": plan.upper,
                "counts": {
                    name: rows for name, rows in asdict(counts).items() if name != "history"
                },  # only runs have it
                "state_files": sum(map(len, plan.point.operators.values())),
                "inputs_again": None if files is None else list(files),
            }
        )
        return
    output.print_line(
        f"{plan.shard} {'is' if done else 'would be'} as it was at checkpoint {checkpoint.checkpoint_id} (upper"
        f" {show_time(plan.point.upper)}), from {show_time(plan.lower)} on: {_counted(counts)}"
    )
    if files is None:
        output.print_line("which inputs will be read again is not known: the record of consumed inputs is damaged")
    else:
        output.print_line(
            f"inputs consumed since, which the next run reads again if they are still there: {len(files)}"
        )
        for path in files[:MAX_FILES_SHOWN]:
            output.print_line(f"  {path}")
        if len(files) > MAX_FILES_SHOWN:
            output.print_line(f"  and {len(files) - MAX_FILES_SHOWN} more; --json has all")
    if done:
        output.print_line(
            f"committed as checkpoint {done.commit.checkpoint_id}; records that come again count from"
            f" {show_time(plan.upper)} on where their own time is earlier"
        )
    else:
        output.print_line("nothing was written")


def _counted(counts: BatchCounts) -> str:
    return (
        f"{counts.insertions} rows inserted, {counts.retractions} retracted, {counts.err_insertions} errors inserted,"
        f" {counts.err_retractions} retracted"
    )


def _print_fork(session: Session, shard: str, done: Committed, new_shard: str) -> None:
    commit = done.commit
    if session.as_json:
        output.print_json(
            {
                "shard": new_shard,
                "status": "forked" if done.is_new else "up_to_date",
                "forked_from": shard,
                "restored_from": commit.restored_from,
                "checkpoint_id": commit.checkpoint_id,
                "lower": commit.lower,
                "upper": commit.upper,
            }
        )
        return
    output.print_line(
        f"{new_shard} {'is' if done.is_new else 'was already made'} a fork of {shard} at checkpoint"
        f" {commit.restored_from}, upper {show_time(commit.upper)}; it shares the parts up to there"
    )
    output.print_line(f"to continue it, write a collection file {new_shard}.yaml; {shard} did not change")


@click.command("pin")
@click.argument("shard")
@click.argument("checkpoint_id")
@with_session
def pin_command(session: Session, shard: str, checkpoint_id: str) -> None:
    """Keep a checkpoint of SHARD until `persist unpin`, so that it can be restored: retention skips it, and the history
    since then is kept."""
    _check_known(session, shard, checkpoint_id)
    pin(session.client, shard, checkpoint_id)
    _print_pin(session, shard, checkpoint_id, is_pinned=True, said="pinned: retention skips it")


@click.command("unpin")
@click.argument("shard")
@click.argument("checkpoint_id")
@with_session
def unpin_command(session: Session, shard: str, checkpoint_id: str) -> None:
    """Leave a pinned checkpoint of SHARD to retention and the history again."""
    _check_known(session, shard, checkpoint_id)
    was_pinned = unpin(session.client, shard, checkpoint_id)
    said = "no longer pinned: the next run may delete it" if was_pinned else "was not pinned"
    _print_pin(session, shard, checkpoint_id, is_pinned=False, said=said)


def _check_known(session: Session, shard: str, checkpoint_id: str) -> None:
    check_checkpoint_id(checkpoint_id)
    session.client.state(shard)
    if session.client.blob.get(CheckpointLayout(shard).manifest(checkpoint_id)) is None:
        raise CheckpointNotFound(
            f"shard {shard} has no checkpoint {checkpoint_id}; `persist checkpoints {shard}` lists them"
        )


def _print_pin(session: Session, shard: str, checkpoint_id: str, *, is_pinned: bool, said: str) -> None:
    body: dict[str, Any] = {"shard": shard, "checkpoint_id": checkpoint_id, "is_pinned": is_pinned}
    if session.as_json:
        output.print_json(body)
    else:
        output.print_line(f"checkpoint {checkpoint_id} of {shard} {said}")
