"""`persist preview`: a look at a feed before a run."""

from __future__ import annotations

import os
from pathlib import Path

import click

from persist_core.cli import output
from persist_core.cli.run import ENV_SPARK_MASTER, find_config
from persist_core.cli.session import Session, with_session
from persist_core.config.collection import CollectionConfig
from persist_core.errors import InvalidInput
from persist_core.location.uri import redact_uri
from persist_core.sample.preview import preview
from persist_core.sample.show import lines_of
from persist_core.spark_job.process import LOCAL_MASTER, SparkProcess, is_local

DEFAULT_LIMIT, MAX_LIMIT = 1_000, 10_000
SHOWN_ROWS = 10
_WARM = ("sc://localhost:", "sc://127.0.0.1:")  # a Spark Connect server that runs here
DATED = "feed/{date:%Y-%m-%d}/*.jsonl"


@click.command("preview")
@click.argument("name")
@click.option("--input", "glob", help="Read these files instead of source.path; a glob, as there.")
@click.option("--limit", type=click.IntRange(1, MAX_LIMIT), default=DEFAULT_LIMIT, help="Records.", show_default=True)
@click.option("--rows", type=click.IntRange(0), default=SHOWN_ROWS, help="Rows to print.", show_default=True)
@click.option("--collections", type=click.Path(path_type=Path), help="Folder of collection files.")
@click.option("--master", help=f"Spark on this machine (default: {ENV_SPARK_MASTER} if it is here, or {LOCAL_MASTER}).")
@with_session
def preview_command(
    session: Session, name: str, glob: str | None, limit: int, rows: int, collections: Path | None, master: str | None
) -> None:
    """Show what a run would make of a sample of NAME's input (a collection, or its file). Writes nothing.

    The sample is the first records of the oldest and of the newest files. It prints the rows as they would be, what the
    records do, errors in groups, keys that repeat, times and orders, fields that no column takes, types that would fit
    better, and what the next run would take. Errors in the sample do not change the exit code.
    """
    config = find_config(name, collections, None)
    if not isinstance(config, CollectionConfig):
        raise InvalidInput(f"{name} is a view; expected a collection. `persist run {name} --read-only` tries a view")
    if glob is not None:
        path = glob if glob.startswith("s3://") else str(Path(glob).absolute())
        config = config.model_copy(update={"source": config.source.model_copy(update={"path": path})})
        if config.source_pattern().date_format is None and config.time.source == "path":
            raise InvalidInput(f"--input {glob}: time: path needs a {{date:...}} in it, as in {DATED}")
    spark = master or os.environ.get(ENV_SPARK_MASTER) or LOCAL_MASTER
    if not master and not is_local(spark) and not spark.startswith(_WARM):
        spark = LOCAL_MASTER  # the sample lies on this machine alone
    session.say(f"reading a sample of {config.name} with Spark ({redact_uri(spark)}); nothing is written")
    found = preview(
        session.client,
        config,
        lambda location: SparkProcess(location, spark),
        limit=limit,
        rows=rows,
        is_other_input=glob is not None,
    )
    if session.as_json:
        output.print_json(found.to_json())
        return
    for line in lines_of(found):
        output.print_line(line)
    if found.rows:
        title = f"the first {len(found.rows)} of {found.row_count} rows, as of the end of the sample"
        output.print_table(list(found.rows[0]), [list(row.values()) for row in found.rows], title=title)
