"""Merges that are too large for one process: staged by a Spark job, put in place here.

Merge ──merge_spec──> JobSpec ──> the job (persist_spark.merge) ──> manifest ──replace_inputs──> Replaced
"""

from __future__ import annotations

from persist_core.compaction.merge import Merge, replace_inputs
from persist_core.errors import OutdatedDescription
from persist_core.handles.client import PersistClient
from persist_core.shard.batch import BatchDescription
from persist_core.shard.replace import NotReplaced, Replaced
from persist_core.spark_job.launch import Start, run_job
from persist_core.spark_job.spec import JobSpec, MergeInputs


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


def merge_by_job(client: PersistClient, start: Start, merge: Merge) -> Replaced | NotReplaced:
    """Stage the run of the merge with a job, and put it in place. Raises as `run_job`."""
    spec = merge_spec(merge, client.ids.uuid7())
    try:
        run_job(client, spec, start)
    except OutdatedDescription as error:
        return NotReplaced(str(error))
    return replace_inputs(client, client.staged_manifest(spec.answer_key), spec.answer_key)
