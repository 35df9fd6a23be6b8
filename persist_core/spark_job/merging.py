"""Merges that are too large for one process: staged by a Spark job, put in place here.

Merge ──merge_spec──> JobSpec ──> the job (persist_spark.merge) ──> manifest ──replace_inputs──> Replaced
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from persist_core.compaction.merge import Merge, replace_inputs
from persist_core.errors import OutdatedDescription
from persist_core.handles.client import PersistClient
from persist_core.location.settings import PersistLocation
from persist_core.shard.batch import BatchDescription
from persist_core.shard.keys import manifest_key
from persist_core.shard.replace import NotReplaced, Replaced
from persist_core.spark_job.spec import JobSpec, MergeInputs
from persist_core.spark_job.submit import SparkSettings, run_job

RunJob = Callable[[JobSpec, str], object]
"""Runs a job to its end; the key is that of its answer. Raises what the job raised, `OutdatedDescription` above all."""


def merge_spec(merge: Merge, attempt: str) -> JobSpec:
    """The job that stages the run of this merge. `attempt` is a fresh UUIDv7."""
    digests = tuple(batch.manifest_sha256 for batch in merge.inputs)
    newest = merge.manifests[-1]
    description = BatchDescription(
        shard=merge.shard,
        lower=merge.inputs[0].lower,
        upper=merge.inputs[-1].upper,
        token=newest.token,
        checkpoint_id=newest.checkpoint_id,
        epoch=newest.epoch,
        parent_id=None,
        writer="compaction",
        input_files=sum(len(manifest.parts) for manifest in merge.manifests),
        input_bytes=sum(batch.size_bytes for batch in merge.inputs),
    )
    return JobSpec(description, MergeInputs(name=merge.shard, inputs=digests), attempt)


def merge_by_job(client: PersistClient, merge: Merge, run: RunJob) -> Replaced | NotReplaced:
    """Stage the run of the merge with a job, and put it in place. Raises what `run` raises."""
    spec = merge_spec(merge, client.ids.uuid7())
    key = manifest_key(merge.shard, spec.attempt)
    try:
        run(spec, key)
    except OutdatedDescription as error:
        return NotReplaced(str(error))
    return replace_inputs(client, client.staged_manifest(key), key)


@dataclass(frozen=True)
class SparkMerger:
    """Does merges with one Spark job each, started from here."""

    client: PersistClient
    location: PersistLocation
    settings: SparkSettings

    def __call__(self, merge: Merge) -> Replaced | NotReplaced:
        """Raises the job's own error, or `RunFailed` with the end of its log."""
        return merge_by_job(
            self.client, merge, lambda spec, key: run_job(self.client, self.location, spec, key, self.settings)
        )
