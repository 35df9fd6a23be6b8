"""`persist maintain`: all that is due, in the one order of `persist_core.maintenance.maintain`."""

from __future__ import annotations

import functools
from dataclasses import asdict

import click

from persist_core.cli import output
from persist_core.cli.session import Session, with_session
from persist_core.maintenance.maintain import MAX_MERGES, MAX_ROWS, maintain
from persist_core.spark_job.merging import merge_by_job
from persist_core.spark_job.process import SparkProcess


@click.command("maintain")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--max-rows", type=click.IntRange(min=1), default=MAX_ROWS, show_default=True, help="Rows of one merge.")
@click.option(
    "--max-merges", type=click.IntRange(min=0), default=MAX_MERGES, show_default=True, help="Merges of each shard."
)
@click.option("--master", help="Spark master, or sc://host:port, that does merges of more than --max-rows rows.")
@with_session
def maintain_command(
    session: Session, names: tuple[str, ...], max_rows: int, max_merges: int, master: str | None
) -> None:
    """Expire leases, advance since, merge batches and collect garbage, of the shards NAME (default: of all).

    You can run it at any time, also while DAGs run. A merge reads whole batches into memory; --max-rows limits how
    much. The output says what is still due. `persist gc` has more options for garbage.
    """
    done, tries = [], output.Tries()
    spark = SparkProcess(session.location, master) if master else None
    by_spark = functools.partial(merge_by_job, session.client, spark) if spark else None
    for name in names or session.client.shards():
        with tries.one():
            done.append(
                maintain(session.client, name, max_rows=max_rows, max_merges=max_merges, merge_elsewhere=by_spark)
            )
    if session.as_json:
        output.print_ndjson([asdict(each) for each in done])
    else:
        rows = [(each.shard, each.did or "nothing to do", str(each.owed)) for each in done]
        output.print_table(
            ("shard", "done", "still due"), rows, empty=f"no shards in {session.client.location.consensus.uri}"
        )
    tries.end()
