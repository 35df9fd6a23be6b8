"""A merge as a Spark job, for shards of any size: the same run as `persist_core.compaction.merge` makes.

    JobSpec -> inputs still there? -> plan -> files -> errs (by the driver) -> manifest

    contents ─┐ one exchange by  ┌─ insertions   alive at the end of the run
              ├─ ranges of key, ─┼─ retractions  ends of versions from below the run
    history ──┘ window over key  └─ history      began and ended in it, and the history that is rewritten

The plan does what `contents.row_versions.resolve` does in Arrow. The ranges come out sorted by key, one task and one
file a range. A multiset needs no window: its rows are counted. All is counted in the stage that writes: a retried task
does not count a row twice.

A job may run any number of times, anywhere, and may die at any point: it changes nothing that a reader sees.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from persist_core.compaction.files import RunFiles
from persist_core.compaction.merge import Merge, finished
from persist_core.contents.batch import BatchCounts, BatchManifest, PartKind
from persist_core.errors import InvariantViolation, OutdatedDescription
from persist_core.handles.client import PersistClient
from persist_core.handles.write import stage_manifest
from persist_core.keys import PART
from persist_core.location.blob import Blob
from persist_core.location.open import OpenLocation
from persist_core.schema import DIFF, ENDED, TIME, CollectionSchema
from persist_core.spark_job.spec import JobSpec, MergeInputs
from persist_spark import progress
from persist_spark.counted import Counting
from persist_spark.frame import ERR_COLUMNS, at_or_after, beside_fields, part_type, quoted
from persist_spark.read.damage import check_sizes, named_damage, part_sizes
from persist_spark.read.parts import File, scan, scan_pieces
from persist_spark.session import listing, own_session, stage_settings, use
from persist_spark.stage import Planned, Written, stage_files

_IS_OLD = "_persist_is_old"  # boolean: the row is a version from the history of an input, resolved long ago
_NEXT_TIME, _NEXT_DIFF, _DIFF_BEFORE = "_persist_next_time", "_persist_next_diff", "_persist_diff_before"
_BROKEN = "_persist_broken"
_IS_LATER = "_persist_is_later"  # boolean: an update of a key that a later step merges


@dataclass(frozen=True, kw_only=True)
class Merged(Written):
    """Counts of the action that wrote a run. `read`: rows of the contents; `broken`: updates that do not alternate."""

    read: int
    broken: int


def run_merge_job(spark: SparkSession, spec: JobSpec, location: OpenLocation) -> BatchManifest:
    """Stage the run that `spec` describes, and return its manifest, which is in blob storage too.

    Raises `OutdatedDescription` if some inputs are gone, `InvariantViolation` if the updates of a key do not alternate,
    `CorruptArtifact` for a damaged file. Nothing is changed in any case.
    """
    client, shard = PersistClient(location), spec.description.shard
    assert isinstance(spec.config, MergeInputs)
    wanted = spec.config.inputs
    state = client.state(shard)
    inputs = [batch for batch in state.batches if batch.manifest_sha256 in wanted]
    if tuple(batch.manifest_sha256 for batch in inputs) != wanted:
        raise OutdatedDescription(f"shard {shard}: another merge has replaced some of the batches to merge")
    with own_session(spark, spec) as own:
        merge = Merge.of(client, state, inputs, budget_bytes=spec.config.budget_bytes)
        return stage_merge(own, client, merge, spec.attempt)


def stage_merge(spark: SparkSession, client: PersistClient, merge: Merge, attempt: str) -> BatchManifest:
    """Stage the run of a merge under `attempt`, a fresh UUIDv7, in a session of our own. Raises as `run_merge_job`."""
    blob, schema = client.blob, merge.schema
    check_sizes(blob, part_sizes(merge.manifests))
    file_rows, chosen = merge.file_rows, list(merge.contents())
    expected = [piece.part.rows for piece in chosen if piece.through is None]
    is_counted = len(expected) == len(chosen) and bool(schema.key)

    def check(merged: Merged) -> None:
        if merged.broken:
            raise InvariantViolation(
                f"shard {merge.shard}: {merged.broken} updates do not alternate between insertion and retraction."
                f" Nothing was changed; run `persist fsck {merge.shard}`"
            )
        if is_counted and None not in expected and merged.read != sum(rows or 0 for rows in expected):
            raise InvariantViolation(
                f"shard {merge.shard}: the merge read {merged.read} rows of its inputs; their manifests count"
                f" {sum(rows or 0 for rows in expected)}. Nothing was changed; run `persist fsck {merge.shard}`"
            )

    progress.enter("plan", f"{len(merge.inputs)} batches, {merge.rows} updates")
    ranges = math.ceil(merge.rows / file_rows) or 1
    files = RunFiles(client, merge.shard, attempt, schema, file_rows)
    use(spark, {**stage_settings(merge.size_bytes), **listing(blob)})
    with named_damage(blob, client):
        planned = plan_merge(spark, blob, merge, ranges=ranges)
        if planned is not None:
            staged, merged = stage_files(blob, merge.shard, attempt, schema, lambda _: planned, check=check)
            files.adopt([file.part() for file in staged], merged.counts)
    manifest = finished(client, merge, files)
    stage_manifest(blob, manifest, attempt)
    return manifest


def plan_merge(spark: SparkSession, blob: Blob, merge: Merge, *, ranges: int) -> Planned[Merged] | None:
    """The run without the files that are carried, in so many ranges of the key; `None` if no file has to be read."""
    contents = scan_pieces(spark, blob, merge.contents(), _columns(merge.schema))
    history = _history(spark, blob, merge)
    plan = _keyed if merge.schema.key else _multiset
    rows = plan(merge, contents, history, ranges)
    if rows is None:
        return None
    kinds = {"insertions": PartKind.INSERTIONS, "retractions": PartKind.RETRACTIONS, "history": PartKind.HISTORY}
    counts = {name: f"count_if({PART} = '{kind}')" for name, kind in kinds.items()}
    counts |= {"read": f"count_if(NOT {_IS_OLD})", "broken": f"count_if({_BROKEN})"}
    counting = Counting("merged")
    updates = counting.of(rows, counts).where(f"{PART} IS NOT NULL").drop(_BROKEN, _IS_OLD)

    def outcome(written: DataFrame) -> Merged:
        found = {name: int(count or 0) for name, count in counting.found(written).items()}
        read, broken = found.pop("read"), found.pop("broken")
        return Merged(counts=BatchCounts(**found), read=read, broken=broken)

    return Planned(updates, updates.columns, outcome)


def _keyed(merge: Merge, contents: DataFrame | None, history: DataFrame | None, ranges: int) -> DataFrame | None:
    sides = []
    if contents is not None:
        sides.append(contents.selectExpr("*", f"CAST(NULL AS BIGINT) AS {ENDED}", f"false AS {_IS_OLD}"))
    if history is not None:
        sides.append(history.selectExpr("*", f"true AS {_IS_OLD}"))
    if not sides:
        return None
    key = [quoted(name) for name in merge.schema.key_names]
    moved = functools.reduce(DataFrame.union, sides).repartitionByRange(ranges, *key)
    window = Window.partitionBy(*key, _IS_OLD).orderBy(TIME, DIFF)
    is_later = "false" if merge.until is None else f"NOT {_IS_OLD} AND {at_or_after(merge.until, merge.schema.key)}"
    seen = moved.select(
        "*",
        F.expr(is_later).alias(_IS_LATER),
        F.lead(TIME).over(window).alias(_NEXT_TIME),
        F.lead(DIFF).over(window).alias(_NEXT_DIFF),
        F.lag(DIFF).over(window).alias(_DIFF_BEFORE),
    )
    ended = f"CASE WHEN {_IS_OLD} THEN {ENDED} WHEN {DIFF} > 0 AND NOT {_IS_LATER} THEN {_NEXT_TIME} END"
    kind = (
        f"CASE WHEN ({_IS_OLD} OR {DIFF} > 0) AND {ended} IS NOT NULL"
        f" THEN CASE WHEN {ended} > {merge.since}L THEN '{PartKind.HISTORY}' END"
        f" WHEN {DIFF} > 0 THEN '{PartKind.INSERTIONS}'"
        f" WHEN {_DIFF_BEFORE} IS NULL OR {_IS_LATER} THEN '{PartKind.RETRACTIONS}' END"
    )
    broken = f"NOT {_IS_OLD} AND NOT {_IS_LATER} AND (abs({DIFF}) != 1 OR coalesce({_DIFF_BEFORE} != -{DIFF}, false))"
    return seen.selectExpr(
        *_user_columns(merge.schema),
        TIME,
        DIFF,
        f"{ended} AS {ENDED}",
        f"{kind} AS {PART}",
        f"{broken} AS {_BROKEN}",
        _IS_OLD,
        *[field.name for field in _beside(merge.schema)],
    )


def _multiset(merge: Merge, contents: DataFrame | None, history: DataFrame | None, ranges: int) -> DataFrame | None:
    flat = [f"c{i}" for i in range(len(merge.schema.columns))]
    named = [f"{name} AS {flat_name}" for name, flat_name in zip(_user_columns(merge.schema), flat, strict=True)]
    published = [f"{flat_name} AS {name}" for name, flat_name in zip(_user_columns(merge.schema), flat, strict=True)]
    sides = []
    if contents is not None:
        summed = contents.selectExpr(*named, DIFF).groupBy(*flat).agg(F.expr(f"sum({DIFF}) AS {DIFF}"))
        kind = (
            f"CASE WHEN {DIFF} > 0 THEN '{PartKind.INSERTIONS}' WHEN {DIFF} < 0 THEN '{PartKind.RETRACTIONS}' END"
            f" AS {PART}"
        )
        time = f"{merge.inputs[0].lower}L AS {TIME}"
        sides.append(summed.selectExpr(*published, time, DIFF, kind, f"false AS {_IS_OLD}"))
    if history is not None:
        part = f"CASE WHEN {TIME} > {merge.since}L THEN '{PartKind.HISTORY}' END AS {PART}"
        sides.append(history.repartition(ranges).selectExpr("*", part, f"true AS {_IS_OLD}"))
    if not sides:
        return None
    return functools.reduce(DataFrame.union, sides).selectExpr("*", f"false AS {_BROKEN}")


def _history(spark: SparkSession, blob: Blob, merge: Merge) -> DataFrame | None:
    """The history that is rewritten; of a multiset, the updates of raw inputs too, which become history."""
    columns = _columns(merge.schema)
    end = TIME
    if merge.schema.key:
        columns, end = T.StructType([*columns.fields, T.StructField(ENDED, T.LongType())]), ENDED
    files: dict[int | None, list[File]] = {}
    for part, clip in merge.rewritten():
        files.setdefault(clip, []).append((part.key, part.schema))
    frames = []
    for clip, found in files.items():
        rows = scan(spark, blob, found, columns)
        frames.append(rows if clip is None else rows.where(f"{end} <= {clip}L"))
    raw = None if merge.schema.key else scan_pieces(spark, blob, merge.raw_updates(), columns)
    if raw is not None:
        frames.append(raw)
    return functools.reduce(DataFrame.unionByName, frames) if frames else None


def _columns(schema: CollectionSchema) -> T.StructType:
    """The columns of a part of oks; in `sequence` order with the orders of rows."""
    plain = [field for field in part_type(schema).fields if field.name not in ERR_COLUMNS]
    return T.StructType([*plain, *_beside(schema)])


def _beside(schema: CollectionSchema) -> list[T.StructField]:
    """The columns that say which record made a row in `sequence` order."""
    return [] if schema.order is None else beside_fields(schema)


def _user_columns(schema: CollectionSchema) -> list[str]:
    return [quoted(column.name) for column in schema.columns]
