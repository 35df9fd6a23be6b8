"""Stage a planned batch: one Spark action, then a manifest (docs/semantics.md, sections 3 and 5).

    Planned.updates --one action--> batches/<attempt>/_persist_part=<kind>/part-*.parquet
                                         │ list, count rows, make durable, digest
                                    batches/<attempt>/manifest.json, last

A row's kind is a `PartKind`, or the name of an operator whose state it is (`Written.state_rows`).

What is staged is not visible: a crash at any point here leaves only garbage, which GC deletes. Files get their final
names when the whole action commits, so what a failed or speculative task wrote is never listed: in a file system by the
file committer's first algorithm, on S3 by the magic committer (`persist_spark.s3a`). The listed files must
then hold as many rows as the action counted.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from pyspark.sql import DataFrame, SparkSession

from persist_core.checkpoint.checkpointer import ROWS_AT_ONCE
from persist_core.contents.batch import (
    ORDER_INDEX_OPERATOR,
    BatchCounts,
    BatchDescription,
    BatchManifest,
    Part,
    PartKind,
)
from persist_core.contents.err_groups import MAX_GROUPS, grouped
from persist_core.contents.key_range import EVERYTHING
from persist_core.contents.operator_state import OperatorState, StateArtifact
from persist_core.contents.stats import BatchWarning
from persist_core.errors import InvalidInput, InvariantViolation
from persist_core.handles.write import manifest_for, stage_manifest
from persist_core.keys import PART, attempt_prefix
from persist_core.location.blob import Blob, BlobMetadata
from persist_core.schema import CollectionSchema
from persist_spark import progress, s3a
from persist_spark.digests import staged_digests
from persist_spark.footers import Footer, footers_of, inserted_errs, read_rows
from persist_spark.frame import with_field_ids
from persist_spark.order_memory import MEMORY_COLUMNS, facts_of

MAX_PLANS = 3  # each does more than the one before it: a plan may have registers, and may be thorough
# Rows of a page at most: what a look-up of one key reads of each column (docs/benchmarks.md, "Pages").
PAGE_ROWS = 5000
_WRITE_OPTIONS = {
    "compression": "zstd",
    # Keys and measures hardly repeat within a batch: limit their dictionaries, which are the largest cost.
    "parquet.dictionary.page.size": str(64 << 10),
    "parquet.page.row.count.limit": str(PAGE_ROWS),
    "parquet.page.write-checksum.enabled": "true",  # readers verify it (`persist_spark.read.damage`)
    # The defaults, because a platform may have others: a bloom filter takes 1 MiB for each column of each file.
    "parquet.bloom.filter.enabled": "false",
    "parquet.enable.dictionary": "true",
    "parquet.writer.version": "v1",
    "parquet.block.size": str(128 << 20),
    "parquet.page.size": str(1 << 20),
    # A task's files appear only when the whole job commits; version 2 would publish them task by task.
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}


@dataclass(frozen=True)
class StateRows:
    """How many rows of an operator's state a batch writes, and how many there are after it, earlier deltas included."""

    written: int
    held: int


@dataclass(frozen=True, kw_only=True)
class Written:
    """Counts of the action that wrote files. `state_rows`: by operator.

    Of a batch: `rows_digest`, an order-independent digest of all updates, for `contents.batch.contents_digest`;
    `report`, plain numbers by name, and `warnings` of the run, for the manifest. `is_discarded`: what was written must
    be discarded.
    """

    counts: BatchCounts
    state_rows: Mapping[str, StateRows] = field(default_factory=dict)
    rows_digest: str = ""
    report: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[BatchWarning, ...] = ()
    is_discarded: bool = False


W = TypeVar("W", bound=Written)


@dataclass(frozen=True)
class Planned(Generic[W]):
    """A batch as one DataFrame for exactly one action.

    `updates` has the part columns, the columns of operators' state, and `PART`. `columns`: their names, which a Spark
    Connect server finds out by analyzing the whole plan. `outcome`: the counts of the action on a frame made of
    `updates`; call it only after the action has succeeded: it waits for them.
    """

    updates: DataFrame
    columns: Sequence[str]
    outcome: Callable[[DataFrame], W]


@dataclass(frozen=True)
class StagedFile:
    kind: str
    key: str
    size_bytes: int
    sha256: str
    footer: Footer
    schema: CollectionSchema

    def part(self) -> Part:
        """The file as a part of a manifest. The keys of errs have no bounds: they are not looked up by key alone."""
        kind, last_time = PartKind(self.kind), self.footer.last_time
        keys = EVERYTHING if kind is PartKind.ERRS else self.footer.keys
        file = (self.key, kind, self.size_bytes, self.sha256, self.schema, self.footer.rows)
        return Part(*file, last_time, keys.first, keys.last, self.footer.inherits, self.footer.index)


def stage(
    blob: Blob,
    description: BatchDescription,
    schema: CollectionSchema,
    attempt: str,
    plan: Callable[[W | None], Planned[W]],
    *,
    check: Callable[[W], None],
    kept: Callable[[], Mapping[str, tuple[StateArtifact, ...]]] = dict,
    noticed: tuple[BatchWarning, ...] = (),
) -> BatchManifest:
    """Write the batch and return its manifest, which is then in blob storage too.

    `plan(None)` plans the batch. If its output must be discarded, `plan` gets what it counted, for another plan.
    `kept` gives, of each operator that the batch saves in full, the files that stand for its state before the batch.
    `schema` is the shard's, with ids. `check` gets what the action counted, after all input was read. `noticed`
    are warnings about no row. `attempt` must be unused. Raises what `check` raises, `InvariantViolation`, and errors of
    Spark (see `persist_spark.read.damage.named_damage`); no manifest is written then.
    """
    files, outcome = stage_files(blob, description.shard, attempt, schema, plan, check=check)
    kinds = {kind.value for kind in PartKind}
    errs = [BlobMetadata(file.key, file.size_bytes) for file in files if file.kind == PartKind.ERRS]
    parts = tuple(file.part() for file in files if file.kind in kinds)
    manifest = replace(
        manifest_for(description, schema, parts, outcome.counts, rows=outcome.rows_digest),
        operators=dict(_states(blob, description, files, outcome, kept())),
        stats=outcome.report,
        warnings=(*outcome.warnings, *noticed),
        err_groups=grouped(inserted_errs(blob, errs), MAX_GROUPS, of=outcome.counts.err_insertions),
    )
    stage_manifest(blob, manifest, attempt)
    return manifest


def stage_files(
    blob: Blob,
    shard: str,
    attempt: str,
    schema: CollectionSchema,
    plan: Callable[[W | None], Planned[W]],
    *,
    check: Callable[[W], None],
) -> tuple[list[StagedFile], W]:
    """Write the files of an attempt, without a manifest: what they hold is what the action counted. Arguments and
    errors: as for `stage`."""
    prefix = attempt_prefix(shard, attempt)
    if any(True for _ in blob.list_keys_and_metadata(f"{prefix}/")):
        raise InvalidInput(f"attempt {attempt} of shard {shard} was used before; expected a fresh id")
    planned, outcome = _write(blob, prefix, schema, plan)
    progress.enter("check")
    check(outcome)
    listed = _list(blob, prefix)
    progress.enter("check", f"{outcome.counts.rows} updates in {len(listed)} files written")
    s3a.check_commit(blob, prefix, {file.key: file.size_bytes for file in listed})
    files = _described(planned.updates.sparkSession, blob, prefix, listed, schema)
    check_rows(files, outcome, prefix)
    blob.make_durable(f"{prefix}/")
    return files, outcome


def _write(
    blob: Blob, prefix: str, schema: CollectionSchema, plan: Callable[[W | None], Planned[W]]
) -> tuple[Planned[W], W]:
    """Run the action of the plan that turns out to be enough."""
    options = {**_WRITE_OPTIONS, **s3a.access_options(blob.uri, os.environ), **s3a.commit_options(blob.uri)}
    outcome: W | None = None
    for _ in range(MAX_PLANS):
        progress.enter("plan")
        planned = plan(outcome)
        updates = with_field_ids(planned.updates, planned.columns, schema)
        progress.enter("write")
        with s3a.jars_present():
            updates.write.partitionBy(PART).mode("append").options(**options).parquet(blob.uri_of(prefix))
        outcome = planned.outcome(updates)
        if not outcome.is_discarded:
            return planned, outcome
        for file in _list(blob, prefix):
            blob.delete(file.key)
    raise InvariantViolation(
        f"{prefix}: {MAX_PLANS} plans in a row did not do. Nothing was committed; please report this defect"
    )


def _list(blob: Blob, prefix: str) -> list[BlobMetadata]:
    """The Parquet files of the attempt. Names that start with a dot or an underscore are Hadoop's own."""
    found = []
    for file in blob.list_keys_and_metadata(f"{prefix}/{PART}="):
        name = posixpath.basename(file.key)
        if name.endswith(".parquet") and name[0] not in "._":
            found.append(file)
    return found


def _described(
    spark: SparkSession, blob: Blob, prefix: str, files: list[BlobMetadata], schema: CollectionSchema
) -> list[StagedFile]:
    """The files with their kinds, which their folders name, their digests and their footers."""
    kinds = [file.key.removeprefix(f"{prefix}/{PART}=").partition("/")[0] for file in files]
    found = zip(kinds, files, staged_digests(spark, blob, prefix, files), footers_of(blob, files, schema), strict=True)
    return [StagedFile(kind, file.key, file.size_bytes, sha256, footer, schema) for kind, file, sha256, footer in found]


def check_rows(files: list[StagedFile], outcome: Written, prefix: str) -> None:
    """Raise `InvariantViolation` unless the files hold exactly the rows that the action counted."""
    counts = outcome.counts
    expected = {
        PartKind.INSERTIONS.value: counts.insertions,
        PartKind.RETRACTIONS.value: counts.retractions,
        PartKind.ERRS.value: counts.err_insertions + counts.err_retractions,
        PartKind.HISTORY.value: counts.history,
        **{operator: rows.written for operator, rows in outcome.state_rows.items()},
    }
    for kind in sorted({*expected, *(file.kind for file in files)}):
        held, counted = sum(file.footer.rows for file in files if file.kind == kind), expected.get(kind, 0)
        if held != counted:
            raise InvariantViolation(
                f"{prefix}: the {kind} files hold {held} rows; the action counted {counted}."
                " Nothing was committed: try again under a new attempt"
            )


def artifacts_of(blob: Blob, files: list[StagedFile], operator: str) -> list[StateArtifact]:
    """The files of an operator's state, in the order of their keys, not yet numbered."""
    return [_artifact(blob, file) for file in sorted(files, key=lambda file: file.key) if file.kind == operator]


def _artifact(blob: Blob, file: StagedFile) -> StateArtifact:
    found, orders = file.footer, None
    if file.kind == ORDER_INDEX_OPERATOR:
        entries = read_rows(blob, BlobMetadata(file.key, file.size_bytes), MEMORY_COLUMNS, ROWS_AT_ONCE)
        orders = facts_of(entries, file.schema, found.first_time or 0, found.last_time or 0)
    return StateArtifact(
        partition_id=0,
        key=file.key,
        size_bytes=file.size_bytes,
        sha256=file.sha256,
        rows=found.rows,
        first_time=found.first_time,
        last_time=found.last_time,
        first_key=found.keys.first,
        last_key=found.keys.last,
        orders=orders,
        schema_version=file.schema.version,
        inherits=found.inherits,
    )


def _states(
    blob: Blob,
    description: BatchDescription,
    files: list[StagedFile],
    outcome: Written,
    kept: Mapping[str, tuple[StateArtifact, ...]],
) -> Iterator[tuple[str, OperatorState]]:
    """The state of each operator that has any after the batch: in full, or what the batch adds to it."""
    for operator, rows in outcome.state_rows.items():
        artifacts = (*kept.get(operator, ()), *artifacts_of(blob, files, operator))
        is_delta = description.saves_delta(operator)
        if rows.held and (is_delta or artifacts):
            numbered = tuple(replace(artifact, partition_id=number) for number, artifact in enumerate(artifacts))
            yield operator, OperatorState(is_delta, numbered)
