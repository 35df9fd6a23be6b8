"""The questions of a run that does not commit, because the feed leaves open which record of a key is the newest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import Row

from persist_core.contents.batch import BatchDescription
from persist_core.errors import RejectedRecord, UnclearOrder
from persist_core.time_text import format_time, show_time
from persist_spark.upsert.eras import FIELDS
from persist_spark.upsert.outcome import Outcome
from persist_spark.upsert.plan import PlannedUpsert
from persist_spark.upsert.rejected import show_samples


def no_order(samples: Sequence[RejectedRecord]) -> UnclearOrder:
    """The question of a batch in which no record says its place."""
    return UnclearOrder(
        "no record of the feed says its place in the log of its database, so it is not known which record of a key is"
        " the newest. Nothing has been committed. In the collection file, write `order: {by: {FIELD: TYPE}}` if a"
        " field of each record says it, or `order: log` if the records of each key arrive in order"
        f" (docs/reference/collections.md). {show_samples(samples[:1])}"
    )


def incomparable_orders(planned: PlannedUpsert, outcome: Outcome, description: BatchDescription) -> UnclearOrder:
    """The question of a batch that has records whose numbers are not of the same run of a log. Runs a Spark job."""
    clock = FIELDS["source_ms"]
    found = planned.incomparable().selectExpr(
        "*",
        f"max(least(ord.{clock}, rival.{clock})) OVER () AS before",
        f"min(greatest(ord.{clock}, rival.{clock})) OVER () AS after",
    )
    first = found.orderBy("slot", "ord").limit(1).collect()[0]
    older, newer = sorted((first["ord"], first["rival"]), key=lambda order: order[clock] or 0)
    servers = [_of(each, "server") for each in (older, newer)]
    if None not in servers and servers[0] != servers[1]:
        shown = ", ".join(text.removeprefix("domain ") for text in servers)
        answer = f"write the servers in the order in which they wrote it, for example `order: {{servers: [{shown}]}}`"
    else:
        answer = (
            f"write when they started again, after {show_time(first['before'])} and at the latest at"
            f" {show_time(first['after'])}, for example `order: {{restarts: [{format_time(first['after'])}]}}`"
        )
    return UnclearOrder(
        f"the log of the feed of {description.shard} {description.interval} is not one run of numbers:"
        f" records that cannot be compared with others of their keys: {outcome.counted['incomparable']}. The first, of"
        f" slot {first['slot']}: {_shown(older)} and {_shown(newer)}. Numbers start again after a failover, a restored"
        f" backup or RESET MASTER. Nothing has been committed. In the collection file, {answer}; or, in a collection"
        " that begins, `order: position` if the files have the records of each key in order"
    )


def _of(order: Row, name: str) -> Any:
    return order[FIELDS[name]]


def _shown(order: Row) -> str:
    """The numbers of an order, its server, clock and position."""
    cells = [(name, _of(order, name)) for name in ("server", "number", "pos", "lsn", "row")]
    said = " ".join(f"{name} {value}" for name, value in cells if value is not None)
    return f"{said} at {show_time(_of(order, 'source_ms') or 0)}"
