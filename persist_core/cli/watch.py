"""`persist metrics`, `alerts`, `ack`: the facts of shards in Prometheus' text format, and which alerts are open."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from persist_core.alerts.facts import AlertFacts
from persist_core.alerts.health import open_alerts
from persist_core.alerts.words import show_value
from persist_core.cli import output as printed
from persist_core.cli.session import Session, this_user, with_session
from persist_core.errors import InvalidInput, StorageError
from persist_core.ids import RandomIds
from persist_core.inspection.inspector import MAX_STATES, Inspector
from persist_core.inspection.metrics import labeled_samples, prometheus_text
from persist_core.keys import check_shard_name
from persist_core.maintenance import actions
from persist_core.time_text import format_time

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
    if output is not None and session.as_json:
        raise InvalidInput("--output and --json exclude each other: the file is for Prometheus")
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
    part = path.parent / f".{path.name}.{RandomIds().uuid7()}.part"
    try:
        part.write_text(text, encoding="utf-8", errors="surrogateescape")  # an argument in a locale of few characters
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise StorageError(f"{path} can't be written: {error.strerror}; give a file in a folder that exists") from error


@click.command("alerts")
@click.argument("shard", required=False)
@with_session
def alerts_command(session: Session, shard: str | None) -> None:
    """The open alerts of SHARD, or of all shards, the most urgent first. The DAG persist_watch opens and ends them."""
    found = open_alerts(Inspector(session.client), None if shard is None else check_shard_name(shard))
    printed.print_records(found, _ALERTS, as_json=session.as_json, empty="no open alerts")


def _acknowledged(alert: AlertFacts) -> str:
    if alert.acknowledged_by is None:
        return ""
    return f"{alert.acknowledged_by} at {format_time(alert.acknowledged_ms or 0)}: {alert.reason}"


_ALERTS: printed.Columns[AlertFacts] = (
    ("level", lambda a: a.level),
    ("shard", lambda a: a.shard),
    ("alert", lambda a: a.alert),
    ("value", lambda a: show_value(a.alert, a.value)),
    ("limit", lambda a: show_value(a.alert, a.limit)),
    ("since", lambda a: format_time(a.since_ms)),
    ("acknowledged", _acknowledged),
    ("unsent", lambda a: a.unsent or ""),
)


@click.command("ack")
@click.argument("shard")
@click.argument("alert")
@click.option("--reason", required=True, help="Why: it is kept with your name until the alert is resolved.")
@with_session
def ack_command(session: Session, shard: str, alert: str, reason: str) -> None:
    """Silence ALERT of SHARD (one of `persist alerts`) until it is resolved. Its end is still sent."""
    done = actions.acknowledge(session.client, shard, alert, by=this_user(), reason=reason)
    printed.print_done(done, as_json=session.as_json)
