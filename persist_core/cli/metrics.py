"""`persist metrics`: the facts of shards in Prometheus' text format, for shards that Airflow does not run."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from persist_core.cli import output as printed
from persist_core.cli.session import Session, with_session
from persist_core.errors import StorageError
from persist_core.ids import RandomIds
from persist_core.inspection.inspector import MAX_STATES, Inspector
from persist_core.inspection.metrics import labeled_samples, prometheus_text

DEFAULT_LOCATION = "persist_default"


@click.command("metrics")
@click.argument("shards", nargs=-1, metavar="[SHARD]...")
@click.option(
    "--location",
    default=DEFAULT_LOCATION,
    show_default=True,
    help="Value of the label `location`. In Airflow it is the connection's id.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Replace this file instead of printing: a textfile collector never sees half of it.",
)
@with_session
def metrics(session: Session, shards: tuple[str, ...], location: str, output: Path | None) -> None:
    """Facts about shards (default: all of the location) in Prometheus' text format.

    It reads consensus and manifests, never rows. A shard that cannot be read has
    persist_attention{problem="unreadable"} 1, and no facts. With --json one object for each value.
    """
    found = Inspector(session.client, threads=MAX_STATES).newest_commits(shards or session.client.shards())
    if output is not None:
        _replace(output, prometheus_text(found, location=location))
    elif session.as_json:
        printed.print_ndjson(
            {"name": metric.series, "labels": labels, "value": value}
            for metric, labels, value in labeled_samples(found, location=location)
        )
    else:
        sys.stdout.write(prometheus_text(found, location=location))


def _replace(path: Path, text: str) -> None:
    """Write the file whole or not at all."""
    # The textfile collector reads only `*.prom`: no name that ends so may hold half of the text.
    part = path.with_name(f".{path.name}.{RandomIds().uuid7()}.part")
    try:
        part.write_text(text)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise StorageError(f"{path} can't be written: {error.strerror}; give a file in a folder that exists") from error
