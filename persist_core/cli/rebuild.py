"""`persist rebuild` builds a collection again by another definition, and swaps it in; `persist generations` lists."""

from __future__ import annotations

from pathlib import Path

import click

from persist_core.cli import output
from persist_core.cli.reprocess import carry_out, print_given_up
from persist_core.cli.run import find_config, spark_of, with_spark_options
from persist_core.cli.session import Session, with_session
from persist_core.config.collection import CollectionConfig
from persist_core.errors import InvalidInput
from persist_core.maintenance.hidden import end, generations, give_up_rebuild, kept_generations
from persist_core.maintenance.rebuild import Request, rebuild
from persist_core.protocol.delta import MAX_UPDATES
from persist_core.time_text import format_time, show_time


@click.command("rebuild")
@click.argument("name")
@click.option("--dry-run", is_flag=True, help="Build and report; swap nothing in. What was built is kept.")
@click.option("--yes", is_flag=True, help="Confirm: rows that cannot be compared, or more than limits.max_changed.")
@click.option("--take-back-gone", is_flag=True, help="Do without the records of consumed files that are gone now.")
@click.option("--swap-back", is_flag=True, help="Bring the newest kept generation up to date, and swap that in.")
@click.option("--generation", type=output.COUNT, help="With --swap-back or --give-up: this one.")
@click.option("--max-updates", type=output.COUNT, default=MAX_UPDATES, help="Rows to compare, at most.")
@click.option(
    "--give-up",
    "give_up_only",
    is_flag=True,
    help="Delete a rebuild that has not ended, or with --generation a kept one; do nothing else.",
)
@with_spark_options
@with_session
def rebuild_command(
    session: Session,
    name: str,
    dry_run: bool,
    yes: bool,
    take_back_gone: bool,
    swap_back: bool,
    generation: int | None,
    max_updates: int,
    give_up_only: bool,
    collections: Path | None,
    master: str | None,
    conf: tuple[str, ...],
) -> None:
    """Build the collection NAME again by its file as it is now, beside the old one, and swap it in.

    For another key, type, time, order or time zone. All input is read again; readers see the old generation until one
    commit shows them the new one. The old one is kept for retention.keep_generations, to be swapped back.
    """
    config = find_config(name, collections, None)
    if not isinstance(config, CollectionConfig):
        raise InvalidInput(f"{config.name} is a view: its next refresh makes it again by its file and its inputs")
    if give_up_only:
        if dry_run or yes or take_back_gone or swap_back:
            raise InvalidInput(
                "--give-up deletes, and does nothing else; expected no --dry-run, --yes, --take-back-gone, --swap-back"
            )
        kept = kept_generations(session.client, session.client.state(config.name))
        if generation is None:
            did = give_up_rebuild(session.client, config.name)
        else:
            doomed = [each.state.shard for each in kept if each.number == generation]
            did = [name for name in doomed if end(session.client, name)]
        print_given_up(session, config.name, did)
        return
    if generation is not None and not swap_back:
        raise InvalidInput("--generation is for --swap-back and --give-up: a rebuild makes a new one")
    request = Request(
        back_to=(-1 if generation is None else generation) if swap_back else None,
        takes_back_gone=take_back_gone,
        is_dry_run=dry_run,
        is_confirmed=yes,
        max_changed=config.limits.max_changed,
        max_updates=max_updates,
    )
    carry_out(session, spark_of(session, master, conf), rebuild, config, request)


@click.command("generations")
@click.argument("shard")
@with_session
def generations_command(session: Session, shard: str) -> None:
    """The generations of SHARD that can be read: the present one, and the ones that were swapped out."""
    found = generations(session.client, shard)
    if session.as_json:
        output.print_ndjson(found)
        return
    rows = [
        (
            each["generation"],
            each["shard"],
            ", ".join(each["key"]),
            show_time(each["upper"]),
            "" if each["swapped_out_ms"] is None else format_time(each["swapped_out_ms"]),
            "" if each["kept_until_ms"] is None else format_time(each["kept_until_ms"]),
        )
        for each in found
    ]
    output.print_table(("generation", "shard", "key", "upper", "swapped out", "kept until"), rows)
