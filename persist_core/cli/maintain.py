"""`persist maintain`: merge what is due, expire leases."""

from __future__ import annotations

from dataclasses import asdict

import click

from persist_core.cli import output
from persist_core.cli.session import Session, with_session
from persist_core.compaction.maintain import MAX_MERGES, MAX_ROWS, maintain
from persist_core.errors import PersistError


@click.command("maintain")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--max-rows", type=click.IntRange(min=1), default=MAX_ROWS, show_default=True, help="Rows of one merge.")
@click.option(
    "--max-merges", type=click.IntRange(min=0), default=MAX_MERGES, show_default=True, help="Merges of each shard."
)
@with_session
def maintain_command(session: Session, names: tuple[str, ...], max_rows: int, max_merges: int) -> None:
    """Merge batches of the shards NAME (default: of all), and expire leases.

    You can run it at any time, also while DAGs run. A merge reads whole batches into memory; --max-rows limits how
    much. The output says which merges are still due.
    """
    done, failed = [], None
    for name in names or session.client.shards():
        try:
            done.append(maintain(session.client, name, max_rows=max_rows, max_merges=max_merges))
        except PersistError as error:
            failed = failed or error
            output.print_error(error, as_json=False)
    if session.as_json:
        output.print_ndjson([asdict(each) for each in done])
    else:
        rows = [
            (
                each.shard,
                each.merges,
                each.rows,
                f"{each.batches_before} -> {each.batches_after}",
                len(each.expired_leases),
                f"a merge of {each.owed_rows} rows" if each.owed_rows else "",
            )
            for each in done
        ]
        columns = ("shard", "merges", "rows read", "batches", "expired leases", "still due")
        output.print_table(columns, rows, empty=f"no shards in {session.client.location.consensus.uri}")
    if failed is not None:
        raise failed
