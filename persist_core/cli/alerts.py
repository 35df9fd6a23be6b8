"""`persist alerts`, `persist ack`: which alerts are open, and keeping one silent."""

from __future__ import annotations

from dataclasses import asdict

import click

from persist_core.cli import output
from persist_core.cli.holds import this_user
from persist_core.cli.session import Session, with_session
from persist_core.inspection.health import open_alerts
from persist_core.maintenance import actions
from persist_core.shard.keys import check_shard_name
from persist_core.time_text import format_time
from persist_core.watch.facts import AlertFacts
from persist_core.watch.words import show_value


@click.command("alerts")
@click.argument("shard", required=False)
@with_session
def alerts_command(session: Session, shard: str | None) -> None:
    """The open alerts of SHARD, or of all shards, the most urgent first. The DAG persist_watch opens and ends them."""
    found = open_alerts(session.client, None if shard is None else check_shard_name(shard))
    if session.as_json:
        output.print_ndjson(asdict(each) for each in found)
        return
    rows = [
        (
            each.level,
            each.shard,
            each.alert,
            show_value(each.alert, each.value),
            show_value(each.alert, each.limit),
            format_time(each.since_ms),
            _acknowledged(each),
            each.unsent or "",
        )
        for each in found
    ]
    columns = ("level", "shard", "alert", "value", "limit", "since", "acknowledged", "unsent")
    output.print_table(columns, rows, empty="no open alerts")


def _acknowledged(alert: AlertFacts) -> str:
    if alert.acknowledged_by is None:
        return ""
    return f"{alert.acknowledged_by} at {format_time(alert.acknowledged_ms or 0)}: {alert.reason}"


@click.command("ack")
@click.argument("shard")
@click.argument("alert")
@click.option("--reason", required=True, help="Why: it is kept with your name until the alert is resolved.")
@with_session
def ack_command(session: Session, shard: str, alert: str, reason: str) -> None:
    """Keep ALERT of SHARD (one of `persist alerts`) silent until it is resolved. Its end is still sent."""
    done = actions.acknowledge(session.client, shard, alert, by=this_user(), reason=reason)
    output.print_done(done, as_json=session.as_json)
