"""The first steps: `persist init` and `persist demo`, for people who installed the package; `persist preview` and
`persist warm-up`, before a run.

    persist init FOLDER   persist.toml, a collection with two days of changes, a view, the bundled DAG files, a README
    persist demo FOLDER   seven bundled days through an Airflow and a Spark that it starts on this machine
    persist preview NAME  a look at a feed
    persist warm-up       Spark on this machine starts faster

None changes a file that exists. `persist init --from` proposes a collection file instead.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import click

from persist_core.cli import output
from persist_core.cli.configs import DEFAULT_COLLECTIONS, ENV_COLLECTIONS, collections_option, find_collection
from persist_core.cli.run import ENV_SPARK_MASTER
from persist_core.cli.session import Session, with_session
from persist_core.config.collection import Format, load_collection
from persist_core.contents.stats import show_bytes
from persist_core.errors import ConfigError, InvalidInput, RunFailed
from persist_core.handles.client import PersistClient
from persist_core.keys import check_shard_name
from persist_core.location.open import open_location
from persist_core.location.settings import PersistLocation, location_from
from persist_core.location.uri import redact_uri
from persist_core.sample.found import found_by
from persist_core.sample.preview import lines_of, preview
from persist_core.sample.propose import propose
from persist_core.spark_job.installation import archive_made
from persist_core.spark_job.process import LOCAL_MASTER, SMALL_JVM, SparkProcess, is_local

TEMPLATE = Path(__file__).with_name("new_project")  # all but the DAG files
DAG_FILES = tuple(f"persist_{name}.py" for name in ("actions", "collections", "maintenance", "views", "watch"))
DEFAULT_LIMIT, MAX_LIMIT = 1_000, 10_000
SHOWN_ROWS = 10
ARCHIVE_S = 600  # to write the archive takes about 20 s; a busy machine needs more
_WARM = ("sc://localhost:", "sc://127.0.0.1:")  # a Spark Connect server that runs here
DATED = "feed/{date:%Y-%m-%d}/*.jsonl"


def bundled_dags() -> Path:
    """The bundled DAGs: in the wheel a folder of `persist_airflow`, in the repository `dags/`."""
    spec = importlib.util.find_spec("persist_airflow")
    if spec is None or spec.origin is None:
        raise InvalidInput("not installed: persist_airflow, which has the DAG files; install airflow-persist again")
    package = Path(spec.origin).parent
    packed = package / "example_dags"
    return packed if packed.is_dir() else package.parents[1] / "dags"


def project_files(folder: Path) -> dict[str, str]:
    """The files of a new project in `folder`: path, text. Raises `InvalidUri` if no URI can name the folder."""
    files = {f"dags/{name}": bundled_dags() / name for name in DAG_FILES}
    files |= {str(path.relative_to(TEMPLATE)): path for path in TEMPLATE.rglob("*") if path.is_file()}
    texts = {name: path.read_text(encoding="utf-8") for name, path in files.items()}
    in_data = PersistLocation.in_folder(folder / "data")
    uris = location_from(in_data.blob_uri, in_data.consensus_uri)  # refuses a path that no URI can name
    # Quoted, neither URI has a character that TOML escapes.
    return {**texts, "persist.toml": texts["persist.toml"].format(blob=uris.blob_uri, consensus=uris.consensus_uri)}


@click.command()
@click.argument("folder", nargs=-1)
@click.option("--from", "feed", metavar="FILES", help="Propose a collection file for these files: a path, or a glob.")
@click.option("--format", "format_", type=click.Choice(get_args(Format)), help="Their format (default: detected).")
@click.option("--name", help="Write it as the collection file NAME.yaml (default: print it).")
@click.option("--collections", type=click.Path(path_type=Path), help="Folder of collection files, for --name.")
@click.option("--connection", help="For s3://: the source.connection to read with (default: the location's rights).")
def init(
    folder: tuple[str, ...],
    feed: str | None,
    format_: Format | None,
    name: str | None,
    collections: Path | None,
    connection: str | None,
) -> None:
    """Create a project in FOLDER: a collection with two days of changes, a view, a config file, a README.

    With --from, propose a collection file for an existing feed: format, key, columns, order, deletes, each with the
    reason for it. Read it, then look with `persist preview`. Existing files are not changed.
    """
    if feed is not None:
        if collections is not None and name is None:
            raise InvalidInput("--collections: expected --name too: without it the file is printed")
        _propose([feed, *folder], format_, name, collections, connection)
        return
    if len(folder) != 1 or {format_, name, collections, connection} != {None}:
        raise InvalidInput("persist init: expected one FOLDER; or --from FILES, with --format and --name")
    _create(Path(folder[0]))


def _propose(
    globs: Sequence[str], format_: Format | None, name: str | None, collections: Path | None, connection: str | None
) -> None:
    where = collections or Path(os.environ.get(ENV_COLLECTIONS) or DEFAULT_COLLECTIONS)
    with open_location(_location()) as location:  # only to know how to reach a bucket
        found = found_by(globs, location, connection)
        text = propose(found, folder=None if name is None else where, format=format_)
    if name is None:
        sys.stdout.write(text)
        return
    path = where / f"{check_shard_name(name)}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise InvalidInput(f"{path}: exists already; nothing was written. Choose another --name") from None
    output.print_line(f"wrote {path}; read it, then look: persist preview {name}")


def _location() -> PersistLocation:
    """The location that is configured, if one is: a feed may be looked at before."""
    try:
        return location_from()
    except ConfigError:
        return location_from("mem:", "mem:")


def _create(folder: Path) -> None:
    files = {folder / name: text for name, text in project_files(folder).items()}
    existing = sorted(str(path) for path in files if path.exists())
    if existing:
        raise InvalidInput(f"{', '.join(existing)}: exists already; nothing was written. Choose another folder")
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    output.print_line(
        f"created {len(files)} files; next: cd {shlex.quote(str(folder))} && persist run orders --until 2026-01-03"
    )


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default="persist-demo")
def demo(folder: Path) -> None:
    """Run the bundled demo in FOLDER (default: persist-demo): an Airflow scheduler, Spark, seven days of changes.

    Everything that it starts listens on 127.0.0.1 only and is stopped at its end. Needs
    airflow-persist[airflow,spark,embedded] and Java 17 or newer.
    """
    missing = [name for name in ("airflow", "pyspark", "persist_airflow") if importlib.util.find_spec(name) is None]
    if missing:
        extras = "airflow,spark,embedded"
        raise InvalidInput(f"not installed: {', '.join(missing)}; run pip install 'airflow-persist[{extras}]'")
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run([sys.executable, "-m", "persist_airflow.embedded.run", "demo"], cwd=folder, check=False)
    raise SystemExit(done.returncode)  # it has printed what failed


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
