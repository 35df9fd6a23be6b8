"""Stage a planned batch: one Spark action, then a manifest (docs/semantics.md, sections 3 and 5).

    Planned.updates --one action--> batches/<attempt>/_persist_part=<kind>/part-*.parquet
                                         │ list, count rows, make durable, digest the stash
                                    batches/<attempt>/manifest.json, last

What is staged is not visible: dying at any point here leaves garbage that GC takes, and nothing else. Files reach their
final names when the whole action commits, so that what a failed or speculative task wrote is never listed: in a file
system by the file committer's first algorithm, on S3 by the magic committer (`persist_spark.s3a`). The rows of all
listed files must then add up to what the action counted.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from pyspark.sql import DataFrame

from persist_core.errors import CorruptArtifact, InvalidInput, InvariantViolation
from persist_core.handles.write import manifest_for, stage_manifest
from persist_core.location.blob import Blob, BlobMetadata
from persist_core.schema import PART, CollectionSchema
from persist_core.shard.batch import (
    STASH_KIND,
    STASH_OPERATOR,
    BatchCounts,
    BatchDescription,
    BatchManifest,
    OperatorState,
    Part,
    PartKind,
    StateArtifact,
)
from persist_core.shard.keys import attempt_prefix
from persist_spark import s3a
from persist_spark.footers import rows_of

MAX_PLANS = 2  # the normal plan, then at most once the thorough one

_WRITE_OPTIONS = {
    "compression": "zstd",
    # Keys and measures hardly repeat within a batch: give their dictionaries up soon. They cost more than all else.
    "parquet.dictionary.page.size": str(64 << 10),
    # A task's files appear only when the whole job commits; version 2 would publish them task by task.
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}


class Stats(Protocol):
    """What a run reports, for the manifest."""

    def to_json(self) -> dict[str, int]:
        """Plain numbers by name."""
        ...


class Counted(Protocol):
    """What the action that wrote a batch counted: rows by kind, and a digest of all updates whatever their order."""

    @property
    def needs_thorough_plan(self) -> bool:
        """True where what was written must be thrown away."""
        ...

    @property
    def counts(self) -> BatchCounts:
        """Updates by kind."""
        ...

    @property
    def stash_rows(self) -> int:
        """Rows of operator state."""
        ...

    @property
    def stashed(self) -> int:
        """Records that the stash holds after the batch, those of its chain included."""
        ...

    @property
    def rows_digest(self) -> str:
        """For `persist_core.shard.batch.contents_digest`."""
        ...

    @property
    def stats(self) -> Stats:
        """What the run reports."""
        ...


C = TypeVar("C", bound=Counted)
Counts = TypeVar("Counts", bound=Counted, covariant=True)


class Planned(Protocol[Counts]):
    """A batch as one DataFrame for exactly one action; then `outcome()` says what that counted."""

    @property
    def updates(self) -> DataFrame:
        """The part columns and `PART`."""
        ...

    def outcome(self) -> Counts:
        """To be called only after the action has succeeded."""
        ...


@dataclass(frozen=True)
class StagedFile:
    """One file of the attempt, by what is in it."""

    kind: str
    key: str
    size_bytes: int
    rows: int | None


def stage(
    blob: Blob,
    description: BatchDescription,
    schema: CollectionSchema,
    attempt: str,
    plan: Callable[[bool], Planned[C]],
    *,
    check: Callable[[C], None],
) -> BatchManifest:
    """Write the batch and return its manifest, which is then in blob storage too.

    `plan(is_thorough)` plans the batch; it is asked for the thorough plan only where the normal one turns out not to
    do. `check` gets what the action counted, when all input has been read. `attempt` must never have been
    used. Raises what `check` raises, and `InvariantViolation`; no manifest is written then.
    """
    prefix = attempt_prefix(description.shard, attempt)
    if any(True for _ in blob.list_keys_and_metadata(f"{prefix}/")):
        raise InvalidInput(f"attempt {attempt} of shard {description.shard} was used before; wanted a fresh id")
    options = {**_WRITE_OPTIONS, **s3a.access_options(blob.uri, os.environ), **s3a.commit_options(blob.uri)}
    for number in range(MAX_PLANS):
        planned = plan(number > 0)
        writer = planned.updates.write.partitionBy(PART).mode("error" if number == 0 else "append")
        with s3a.jars_present():
            writer.options(**options).parquet(blob.uri_of(prefix))
        outcome = planned.outcome()
        if not outcome.needs_thorough_plan:
            break
        for file in _list(blob, prefix):
            blob.delete(file.key)
    check(outcome)
    listed = _list(blob, prefix)
    s3a.check_commit(blob, prefix, {file.key: file.size_bytes for file in listed})
    files = _count(blob, prefix, listed)
    check_rows(files, outcome, prefix)
    blob.make_durable(f"{prefix}/")
    parts = tuple(
        Part(file.key, PartKind(file.kind), file.size_bytes, _digest(blob, file), file.rows)
        for file in files
        if file.kind != STASH_KIND
    )
    manifest = replace(
        manifest_for(description, schema, parts, outcome.counts, rows=outcome.rows_digest),
        operators=_operators(blob, files, outcome, description),
        stats=outcome.stats.to_json(),
    )
    stage_manifest(blob, manifest, attempt)
    return manifest


def _list(blob: Blob, prefix: str) -> list[BlobMetadata]:
    """The Parquet files of the attempt. Names with a dot or an underscore first are Hadoop's own."""
    found = []
    for file in blob.list_keys_and_metadata(f"{prefix}/{PART}="):
        name = posixpath.basename(file.key)
        if name.endswith(".parquet") and name[0] not in "._":
            found.append(file)
    return found


def _count(blob: Blob, prefix: str, files: Sequence[BlobMetadata]) -> list[StagedFile]:
    """The same with their kinds, which their folders say, and their rows."""
    kinds = [file.key.removeprefix(f"{prefix}/{PART}=").partition("/")[0] for file in files]
    return [
        StagedFile(kind, file.key, file.size_bytes, rows)
        for kind, file, rows in zip(kinds, files, rows_of(blob, files), strict=True)
    ]


def check_rows(files: list[StagedFile], outcome: Counted, prefix: str) -> None:
    """What is listed must be what was written, no more and no less; else `InvariantViolation`."""
    counts = outcome.counts
    wanted = {
        PartKind.INSERTIONS.value: counts.insertions,
        PartKind.RETRACTIONS.value: counts.retractions,
        PartKind.ERRS.value: counts.err_insertions + counts.err_retractions,
        STASH_KIND: outcome.stash_rows,
    }
    for kind, rows in wanted.items():
        counted = [file.rows for file in files if file.kind == kind]
        known = [rows for rows in counted if rows is not None]
        if len(known) == len(counted) and sum(known) != rows:
            raise InvariantViolation(
                f"{prefix}: the {kind} files hold {sum(known)} rows; the action counted {rows}. Nothing was committed:"
                " try again under a new attempt"
            )


def _operators(
    blob: Blob, files: list[StagedFile], outcome: Counted, description: BatchDescription
) -> dict[str, OperatorState]:
    """The stash's files, in the order of their keys, as operator state; nothing if no record is left in the stash."""
    if not outcome.stashed:
        return {}
    stash = sorted((file for file in files if file.kind == STASH_KIND), key=lambda file: file.key)
    artifacts = tuple(
        StateArtifact(number, file.key, file.size_bytes, _digest(blob, file)) for number, file in enumerate(stash)
    )
    return {STASH_OPERATOR: OperatorState(description.saves_delta(STASH_OPERATOR), artifacts)}


def _digest(blob: Blob, file: StagedFile) -> str:
    data = blob.get(file.key)
    if data is None or len(data) != file.size_bytes:
        found = "nothing" if data is None else f"{len(data)} bytes"
        raise CorruptArtifact(f"{file.key}: found {found}, expected the {file.size_bytes} bytes just staged; try again")
    return hashlib.sha256(data).hexdigest()
