"""`persist init` and `persist demo`: a first project, and the bundled demo, for people who installed the package.

    persist init FOLDER   persist.toml, a collection with two days of changes, a view, the bundled DAG files, a README
    persist demo FOLDER   seven bundled days through an Airflow and a Spark that it starts on this machine

Neither changes a file that exists. `persist init --from` proposes a collection file instead.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import click

from persist_core.cli import output
from persist_core.cli.run import DEFAULT_COLLECTIONS, ENV_COLLECTIONS
from persist_core.config.collection import Format
from persist_core.errors import ConfigError, InvalidInput
from persist_core.keys import check_shard_name
from persist_core.location.open import open_location
from persist_core.location.settings import PersistLocation, location_from
from persist_core.sample.propose import found_by, propose

TEMPLATE = Path(__file__).with_name("new_project")  # all but the DAG files
DAG_FILES = tuple(f"persist_{name}.py" for name in ("actions", "collections", "maintenance", "views", "watch"))


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

    Everything that it starts listens on 127.0.0.1 only and is stopped at its end. Needs airflow-persist[airflow,spark]
    and Java 17 or newer.
    """
    missing = [name for name in ("airflow", "pyspark", "persist_airflow") if importlib.util.find_spec(name) is None]
    if missing:
        raise InvalidInput(f"not installed: {', '.join(missing)}; run pip install 'airflow-persist[airflow,spark]'")
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run([sys.executable, "-m", "persist_airflow.embedded.run", "demo"], cwd=folder, check=False)
    raise SystemExit(done.returncode)  # it has printed what failed
