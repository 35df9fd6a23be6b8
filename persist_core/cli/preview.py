"""`persist preview`: a look at a feed before a run; `persist warm-up`: Spark on this machine starts faster."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import click

from persist_core.cli import output
from persist_core.cli.project import project_files
from persist_core.cli.run import ENV_SPARK_MASTER, collections_option, find_collection
from persist_core.cli.session import Session, with_session
from persist_core.config.collection import load_collection
from persist_core.contents.stats import show_bytes
from persist_core.errors import InvalidInput, RunFailed
from persist_core.handles.client import PersistClient
from persist_core.location.open import open_location
from persist_core.location.settings import location_from
from persist_core.location.uri import redact_uri
from persist_core.sample.preview import lines_of, preview
from persist_core.spark_job.installation import archive_made
from persist_core.spark_job.process import LOCAL_MASTER, SMALL_JVM, SparkProcess, is_local

DEFAULT_LIMIT, MAX_LIMIT = 1_000, 10_000
SHOWN_ROWS = 10
ARCHIVE_S = 600  # to write the archive takes about 20 s; a busy machine needs more
_WARM = ("sc://localhost:", "sc://127.0.0.1:")  # a Spark Connect server that runs here
DATED = "feed/{date:%Y-%m-%d}/*.jsonl"


@click.command("preview")
@click.argument("name")
@click.option("--input", "glob", help="Read these files instead of source.path; a glob, as there.")
@click.option("--limit", type=click.IntRange(1, MAX_LIMIT), default=DEFAULT_LIMIT, help="Records.", show_default=True)
@click.option("--rows", type=output.COUNT, default=SHOWN_ROWS, help="Rows to print.", show_default=True)
@collections_option
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
    config = find_collection(name, collections, f"`persist run {name} --read-only` tries a view")
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


@click.command("warm-up")
def warm_up() -> None:
    """Let Spark start in half the processor time on this machine: keep an archive of the classes that it loads.

    It runs a preview of an example, which takes about half a minute, and writes about 200 MB to ~/.cache, for this user
    alone. Previews and runs use the archive from then on. Repeat it after an upgrade of Java or Spark.
    """
    with tempfile.TemporaryDirectory(prefix="persist-") as folder, archive_made(os.environ) as (path, flag):
        for name, text in project_files(Path(folder)).items():
            Path(folder, name).parent.mkdir(parents=True, exist_ok=True)
            Path(folder, name).write_text(text, encoding="utf-8")
        config = load_collection(Path(folder, "dags", "collections", "orders.yaml"))
        conf = {"spark.driver.extraJavaOptions": " ".join([*SMALL_JVM, flag])}
        with open_location(location_from("mem:", "mem:")) as opened:
            found = preview(
                PersistClient(opened),
                config,
                lambda location: SparkProcess(location, LOCAL_MASTER, conf, end_s=ARCHIVE_S),
                limit=DEFAULT_LIMIT,
                rows=0,
            )
        if found.stops is not None:
            raise RunFailed(found.stops)
    output.print_line(f"wrote {path}, {show_bytes(path.stat().st_size)}; the next job on this machine uses it")
