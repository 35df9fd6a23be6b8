"""The write stage: a description and its frozen input become a staged batch (docs/semantics.md, section 5).

    JobSpec -> still valid? -> frozen input unchanged? -> decode -> upsert -> stage -> still unchanged? -> manifest

May run any number of times, at the same time, anywhere, and may die at any point: it changes nothing that a reader
sees. The result depends only on the description, the frozen input and the shard's batches below `lower`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession

from persist_core.handles.client import PersistClient
from persist_core.location.open import OpenLocation
from persist_core.protocol.stages import check_not_outdated, outdated_first
from persist_core.shard.batch import BatchManifest
from persist_core.sources.files import FrozenInput, check_unchanged
from persist_core.sources.frozen import load_frozen
from persist_core.spark_job.spec import JobSpec
from persist_spark.decode.formats import decode
from persist_spark.session import OUR_PLANS, listing, own_session, use
from persist_spark.upsert.batch import UpsertRequest, stage_upserts


def run_write_job(spark: SparkSession, spec: JobSpec, location: OpenLocation) -> BatchManifest:
    """Stage the batch that `spec` describes; its manifest is under `persist_core.shard.batch.manifest_key`.

    Raises `OutdatedDescription`, `SchemaMismatch`, `SourceChanged` before anything is staged; `TooManyErrors`,
    `InvariantViolation`, `SourceChanged` after. Nothing is committed in any case.
    """
    client = PersistClient(location)
    description, config = spec.description, spec.collection
    request = UpsertRequest(
        description=description,
        schema=config.collection_schema(),
        attempt=spec.attempt,
        late=config.time.late,
        max_errors=config.limits.max_errors,
        may_stash=config.time.source == "field",  # a file dated at or after the upper is not yet due
        is_columnar="parquet" in config.source.format,
        keep_deleted_ms=config.order.keep_deleted_ms,
    )
    check_not_outdated(client.state(description.shard), description)
    key = description.input_key
    with (
        outdated_first(client, description),
        TemporaryDirectory(prefix="persist-") as scratch,
        own_session(spark, spec) as own,
    ):
        frozen = FrozenInput(()) if key is None else load_frozen(client.blob, key, FrozenInput)
        root = config.source_pattern().root
        check_unchanged(frozen, root)
        records = decode(own, config, frozen.files, scratch=Path(scratch))
        use(own, {**OUR_PLANS, **listing(client.blob)})
        request = replace(request, file_names={file.order: file.relative for file in frozen.files})
        return stage_upserts(own, client, request, records, lambda: check_unchanged(frozen, root))
