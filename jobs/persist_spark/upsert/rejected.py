"""Batches that do not commit: the errors of one that has too many, in groups and samples; and the questions of one
whose feed leaves open which record of a key is the newest."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import Row

from persist_core.config.order import DOMAIN
from persist_core.contents.batch import BatchDescription, PartKind
from persist_core.contents.err_groups import ErrGroup, grouped, lines_of
from persist_core.errors import RejectedRecord, UnclearOrder
from persist_core.keys import PART, attempt_prefix
from persist_core.location.blob import Blob
from persist_core.schema import ERR_KEY, ERR_KIND, ERR_MESSAGE, ERR_PAYLOAD, ERR_POSITION, TIME
from persist_core.time_text import format_time, show_time
from persist_spark.decode.records import ORDER_AUTO
from persist_spark.footers import inserted_errs
from persist_spark.upsert.eras import FIELDS
from persist_spark.upsert.outcome import Outcome
from persist_spark.upsert.plan import PlannedUpsert

MAX_SAMPLES = 20  # as many as help a person; the record of the failure holds them
MAX_CHARS = 200  # of a payload or a key in the message
MAX_BYTES = 2_000  # of a payload or a key


def rejected_records(
    blob: Blob, description: BatchDescription, attempt: str, of: int = 0
) -> tuple[tuple[ErrGroup, ...], tuple[RejectedRecord, ...]]:
    """The groups of the `of` errors that the attempt staged, and at most `MAX_SAMPLES` of them, by kind and time.

    Without `of`, the groups count the errors that were looked at, and no others.
    """
    prefix = f"{attempt_prefix(description.shard, attempt)}/{PART}={PartKind.ERRS}/"
    files = [file for file in blob.list_keys_and_metadata(prefix) if file.key.endswith(".parquet")]
    errs = inserted_errs(blob, files)
    first = list(itertools.islice(errs, MAX_SAMPLES))
    samples = sorted(map(_rejected, first), key=lambda each: (each.kind, each.time, each.payload or ""))
    return grouped(itertools.chain(first, errs), of=of), tuple(samples)


def _rejected(err: Mapping[str, Any]) -> RejectedRecord:
    return RejectedRecord(
        kind=err[ERR_KIND],
        message=err[ERR_MESSAGE] or "",
        time=err[TIME],
        key=_text(err[ERR_KEY]),
        payload=_text(err[ERR_PAYLOAD]),
        position=err[ERR_POSITION],
    )


def _show_sample(each: RejectedRecord) -> str:
    """A sample for a message: kind, reason, key, payload and position."""
    shown = f"{each.kind}: {each.message}; key {_shown(each.key)}; payload {_shown(each.payload)}"
    return f"The first:\n  {shown}" + (f"; from {each.position}" if each.position else "")


def _shown(text: str | None) -> str:
    """A text in quotes, with what is not printable escaped."""
    if text is None:
        return "null"
    return repr(text) if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS]!r}..."


def _text(value: bytes | None) -> str | None:
    """The start of bytes as text. What is not UTF-8, perhaps because it was cut there, becomes a mark."""
    return None if value is None else value[:MAX_BYTES].decode("utf-8", "replace")


def no_order(groups: Sequence[ErrGroup], samples: Sequence[RejectedRecord]) -> UnclearOrder | None:
    """The question of a batch in which no record says its place; `None` if all are errs for another reason."""
    others = [group for group in groups if ORDER_AUTO not in group.first]
    if len(others) == len(groups):
        return None
    lines = ["Some cannot be read for another reason; the most frequent:", *lines_of(others)] if others else []
    first = "".join(f"{line}\n  " for line in lines)
    sample = next((each for each in samples if ORDER_AUTO in each.message), samples[0])
    return UnclearOrder(
        f"{first}no record of the feed says its place in the log of its database, so it is not known which record of a"
        " key is the newest. Nothing has been committed. In the collection file, write `order: {by: {FIELD: TYPE}}` if"
        " a field of each record says it, or `order: log` if the records of each key arrive in order"
        f" (docs/reference/collections.md). {_show_sample(sample)}"
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
    count = outcome.counted["incomparable"]
    if _of(newer, "number") is None and _of(newer, "lsn") is None:  # only a record of a snapshot says no place
        return UnclearOrder(
            f"it is not known which record of a key is the newest: {count} records of {description.shard}"
            f" {description.interval} meet a record of a snapshot that says no place in the log and was read later. The"
            f" first, of slot {first['slot']}: a change, {_place(older)}, and a record of a snapshot (op r),"
            f" {_place(newer)}. Nothing has been committed. In the collection file, if the snapshot is newer than all"
            " changes before it, write when it began, for example `order: {restarts: ["
            f"{format_time(first['after'])}]}}`; or, in a collection that begins, `order: position` if the files have"
            " the records of each key in order. Unwrapped records of later snapshots say it if `add.fields` has the"
            " whole order (docs/reference/collections.md)"
        )
    servers = [_of(each, "server") for each in (older, newer)]
    if None not in servers and servers[0] != servers[1]:
        shown = ", ".join(text.removeprefix(DOMAIN) for text in servers)
        answer = f"write the servers in the order in which they wrote it, for example `order: {{servers: [{shown}]}}`"
    else:
        answer = (
            f"write when they started again, after {show_time(first['before'])} and at the latest at"
            f" {show_time(first['after'])}, for example `order: {{restarts: [{format_time(first['after'])}]}}`"
        )
    return UnclearOrder(
        f"the log of the feed of {description.shard} {description.interval} is not one run of numbers:"
        f" records that cannot be compared with others of their keys: {count}. The first, of"
        f" slot {first['slot']}: {_place(older)} and {_place(newer)}. Numbers start again after a failover, a restored"
        f" backup or RESET MASTER. Nothing has been committed. In the collection file, {answer}; or, in a collection"
        " that begins, `order: position` if the files have the records of each key in order"
    )


def _of(order: Row, name: str) -> Any:
    return order[FIELDS[name]]


def _place(order: Row) -> str:
    """The numbers of an order, its server, clock and position."""
    cells = [(name, _of(order, name)) for name in ("server", "number", "pos", "lsn", "row")]
    said = " ".join(f"{name} {value}" for name, value in cells if value is not None)
    return f"{said or 'no place'} at {show_time(_of(order, 'source_ms') or 0)}"
