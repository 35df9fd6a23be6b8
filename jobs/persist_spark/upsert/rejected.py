"""Samples of the errors of a batch that is refused for having too many of them.

It costs one small Spark job, and only if the batch is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column as SparkColumn
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from persist_core.errors import RejectedRecord
from persist_core.location.blob import Blob
from persist_core.schema import (
    DIFF,
    ERR_KEY,
    ERR_KIND,
    ERR_MESSAGE,
    ERR_PAYLOAD,
    ERR_POSITION,
    PART,
    TIME,
    CollectionSchema,
)
from persist_core.shard.batch import BatchDescription, PartKind
from persist_core.shard.keys import attempt_prefix
from persist_spark.frame import part_type
from persist_spark.read.parts import scan

MAX_SAMPLES = 20  # as many as help a person; the record of the failure holds them
MAX_SHOWN = 3  # in the message itself
MAX_CHARS = 200  # of a payload or a key in the message
MAX_BYTES = 2_000  # of a payload or a key


def rejected_records(
    spark: SparkSession,
    blob: Blob,
    description: BatchDescription,
    schema: CollectionSchema,
    attempt: str,
) -> tuple[RejectedRecord, ...]:
    """At most `MAX_SAMPLES` errors that the attempt has staged, by kind and time."""
    prefix = f"{attempt_prefix(description.shard, attempt)}/{PART}={PartKind.ERRS}/"
    keys = [file.key for file in blob.list_keys_and_metadata(prefix) if file.key.endswith(".parquet")]
    if not keys:
        return ()
    staged = scan(spark, blob, [(key, schema) for key in keys], part_type(schema)).where(F.col(DIFF) > 0)
    shown = [_start(name) for name in (ERR_KEY, ERR_PAYLOAD)]
    samples = staged.select(ERR_KIND, ERR_MESSAGE, ERR_POSITION, TIME, *shown).limit(MAX_SAMPLES).collect()
    found = [
        RejectedRecord(
            kind=row[ERR_KIND],
            message=row[ERR_MESSAGE] or "",
            time=row[TIME],
            key=_text(row[ERR_KEY]),
            payload=_text(row[ERR_PAYLOAD]),
            position=row[ERR_POSITION],
        )
        for row in samples
    ]
    return tuple(sorted(found, key=lambda each: (each.kind, each.time, each.payload or "")))


def show_samples(samples: Sequence[RejectedRecord]) -> str:
    """The first of them, for a message: kind, reason, key, payload and position of each on a line of its own."""
    lines = [
        f"{each.kind}: {each.message}; key {_shown(each.key)}; payload {_shown(each.payload)};"
        f" from {each.position or 'a record that was good by itself'}"
        for each in samples[:MAX_SHOWN]
    ]
    return "\n".join(["The first:", *(f"  {line}" for line in lines)]) if lines else ""


def _shown(text: str | None) -> str:
    """A text in quotes, with what is not printable escaped."""
    if text is None:
        return "null"
    return repr(text) if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS]!r}..."


def _start(name: str) -> SparkColumn:
    return F.substring(F.col(name), 1, MAX_BYTES).alias(name)


def _text(value: bytearray | None) -> str | None:
    """Bytes as text. What is not UTF-8, perhaps because it was cut there, becomes a mark."""
    return None if value is None else bytes(value).decode("utf-8", "replace")
