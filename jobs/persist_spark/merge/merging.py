"""The merge of a job: its inputs become a staged run, which its starter puts in their place.

    JobSpec -> inputs still there? -> plan -> files -> errs (by the driver) -> manifest

May run any number of times, anywhere, and may die at any point: it changes nothing that a reader sees.
"""

from __future__ import annotations

import math

from pyspark.sql import SparkSession

from persist_core.compaction.files import RunFiles
from persist_core.compaction.merge import Merge, finished
from persist_core.contents.batch import BatchManifest
from persist_core.errors import InvariantViolation, OutdatedDescription
from persist_core.handles.client import PersistClient
from persist_core.handles.write import stage_manifest
from persist_core.location.open import OpenLocation
from persist_core.spark_job.spec import JobSpec, MergeInputs
from persist_spark import progress
from persist_spark.merge.versions import Merged, plan_merge
from persist_spark.read.damage import check_sizes, named_damage, part_sizes
from persist_spark.session import listing, own_session, stage_settings, use
from persist_spark.stage import stage_files


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
