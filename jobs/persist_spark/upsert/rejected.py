"""The errors of a batch that is refused for having too many of them: in groups, and samples."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from persist_core.contents.batch import BatchDescription, PartKind
from persist_core.contents.err_groups import ErrGroup, grouped
from persist_core.errors import RejectedRecord
from persist_core.keys import PART, attempt_prefix
from persist_core.location.blob import Blob
from persist_core.schema import ERR_KEY, ERR_KIND, ERR_MESSAGE, ERR_PAYLOAD, ERR_POSITION, TIME
from persist_spark.footers import inserted_errs

MAX_SAMPLES = 20  # as many as help a person; the record of the failure holds them
MAX_CHARS = 200  # of a payload or a key in the message
MAX_BYTES = 2_000  # of a payload or a key


def rejected_records(
    blob: Blob, description: BatchDescription, attempt: str
) -> tuple[tuple[ErrGroup, ...], tuple[RejectedRecord, ...]]:
    """The groups of the errors that the attempt has staged, and at most `MAX_SAMPLES` of them, by kind and time."""
    prefix = f"{attempt_prefix(description.shard, attempt)}/{PART}={PartKind.ERRS}/"
    files = [file for file in blob.list_keys_and_metadata(prefix) if file.key.endswith(".parquet")]
    errs = inserted_errs(blob, files)
    first = list(itertools.islice(errs, MAX_SAMPLES))
    samples = sorted(map(_rejected, first), key=lambda each: (each.kind, each.time, each.payload or ""))
    return grouped(itertools.chain(first, errs)), tuple(samples)


def _rejected(err: Mapping[str, Any]) -> RejectedRecord:
    return RejectedRecord(
        kind=err[ERR_KIND],
        message=err[ERR_MESSAGE] or "",
        time=err[TIME],
        key=_text(err[ERR_KEY]),
        payload=_text(err[ERR_PAYLOAD]),
        position=err[ERR_POSITION],
    )


def show_samples(samples: Sequence[RejectedRecord]) -> str:
    """Samples for a message: kind, reason, key, payload and position of each on a line of its own."""
    lines = [
        f"{each.kind}: {each.message}; key {_shown(each.key)}; payload {_shown(each.payload)};"
        f" from {each.position or 'a record that was good by itself'}"
        for each in samples
    ]
    return "\n".join(["The first:", *(f"  {line}" for line in lines)]) if lines else ""


def _shown(text: str | None) -> str:
    """A text in quotes, with what is not printable escaped."""
    if text is None:
        return "null"
    return repr(text) if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS]!r}..."


def _text(value: bytes | None) -> str | None:
    """The start of bytes as text. What is not UTF-8, perhaps because it was cut there, becomes a mark."""
    return None if value is None else value[:MAX_BYTES].decode("utf-8", "replace")
