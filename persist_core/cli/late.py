"""`persist late`: the records that lost to an order seen before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import click

from persist_core.cli import output
from persist_core.cli.session import Session, with_session
from persist_core.inspection.late import late_records
from persist_core.time_text import show_time

DEFAULT_ROWS = 100  # of a table printed for people without --limit; JSON has all


@click.command("late")
@click.argument("shard")
@click.option(
    "--limit", type=click.IntRange(min=0), help=f"Records to print (default: {DEFAULT_ROWS}; with --json all)."
)
@with_session
def late_command(session: Session, shard: str, limit: int | None) -> None:
    """The late records of SHARD, a collection in sequence order, newest first: what lost, and to which order."""
    if session.as_json:
        output.print_ndjson(asdict(record) for record in late_records(session.client, shard, limit=limit))
        return
    shown = DEFAULT_ROWS if limit is None else limit
    found = late_records(session.client, shard, limit=shown + 1)
    rows = [
        (
            f"(raw) {record.bad_key}" if record.key is None else _fields(record.key),
            record.op,
            show_time(record.acted),
            _fields(record.order),
            record.position or "",
            _fields(record.beaten_by),
            record.beaten_by_position or "",
            ", ".join(record.gave),
        )
        for record in found[:shown]
    ]
    columns = ("key", "op", "time", "order", "read from", "beaten by", "read from", "gave its value of")
    output.print_table(columns, rows, empty="no late records")
    if len(found) > shown:
        output.print_line("there are older ones; --limit shows more, --json all")


def _fields(values: Mapping[str, Any]) -> str:
    """`id 5, region eu`; of an order without fields, its position says all."""
    return ", ".join(f"{name} {'null' if value is None else value}" for name, value in values.items())
