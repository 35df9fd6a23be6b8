"""The write stage: a description and its frozen input become a staged batch (docs/semantics.md, section 5).

    JobSpec -> still valid? -> frozen input unchanged? -> decode -> upsert -> stage -> still unchanged? -> manifest
       jobs died here before: files are read apart first --'        '-- a file cannot be read: again, without it

May run any number of times, at the same time, anywhere, and may die at any point: it changes nothing that a reader
sees. The result depends only on the description, the frozen input and the shard's batches below `lower`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from pyspark.sql import DataFrame, SparkSession

from persist_core.config.collection import FILES
from persist_core.contents.batch import BatchManifest
from persist_core.contents.stats import show_bytes
from persist_core.handles.client import PersistClient
from persist_core.location.open import OpenLocation
from persist_core.protocol.stages import check_not_outdated, outdated_first
from persist_core.sample.fields import FeedFields
from persist_core.schema import ERR_KIND, ERR_MESSAGE, ERR_PAYLOAD, ERR_POSITION, TIME, CollectionSchema
from persist_core.sources.feeds import feed_of
from persist_core.sources.files import FileSource
from persist_core.sources.frozen import load_frozen
from persist_core.sources.input_file import FrozenInput
from persist_core.spark_job.deaths import deaths_at_lower
from persist_core.spark_job.spec import RECORDS, JobSpec
from persist_spark import progress
from persist_spark.decode.files import copies_in
from persist_spark.decode.filled import with_in_rest
from persist_spark.decode.formats import decode
from persist_spark.decode.row_checks import check_texts
from persist_spark.decode.times import check_zone
from persist_spark.feed_access import changed_first, feed_access
from persist_spark.frame import OP, ORDER, quoted
from persist_spark.session import OUR_PLANS, listing, own_session, use
from persist_spark.upsert.batch import UpsertRequest, stage_upserts
from persist_spark.upsert.eras import eras_of
from persist_spark.upsert.set_aside import SetAside, find_killers, stage_without_bad_files, with_files
from persist_spark.upsert.warnings import watched_by

_PAYLOAD_BYTES = 2_000  # of the payload of an err in a sample


def run_write_job(spark: SparkSession, spec: JobSpec, location: OpenLocation) -> BatchManifest:
    """Stage the batch that `spec` describes; its manifest is under `persist_core.contents.batch.manifest_key`.

    Raises `OutdatedDescription`, `SchemaMismatch`, `FeedChanged`, `SourceChanged` before anything is staged;
    `TooManyErrors`, `InvariantViolation`, `SourceChanged` after. Nothing is committed in any case.
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
        may_truncate="debezium" in config.source.format,
        keep_deleted_ms=config.order.keep_deleted_ms,
        eras=eras_of(config),
        is_auto_order=config.order.by == "auto",
        has_times=config.time.source != "description",
        watched=watched_by(config),
        in_rest=partial(with_in_rest, config) if config.source.rest else None,
    )
    state = client.state(description.shard)
    check_not_outdated(state, description)
    key = description.input_key
    with (
        outdated_first(client, description),
        own_session(spark, spec) as own,
        ExitStack() as opened,
    ):
        frozen = FrozenInput(()) if key is None else load_frozen(client.blob, key, FrozenInput)
        check_zone(own, config.timezone)
        access = feed_access(own, location, feed_of(location, config), frozen.files)
        copies = opened.enter_context(copies_in(client.blob, spec.key_of, access))
        opened.enter_context(changed_first(access, frozen.files))
        progress.enter("decode", f"{len(frozen.files)} files, {show_bytes(description.input_bytes)}")
        if config.checks:
            check_texts(own, config)
        deaths = deaths_at_lower(client.blob, spec, client.clock.now_ms()) if frozen.files else []
        killers = find_killers(own, spec, frozen.files, deaths, copies) if deaths else ()

        def stage(aside: Sequence[SetAside]) -> BatchManifest:
            names = {each.file for each in aside}
            described = description
            if names:  # in the source progress too: a corrected file is then read
                source, era = FileSource(config, client.blob, access.feed), description.era or 0
                after = source.set_aside(description.sources[FILES], names, era=era)
                described = replace(description, sources={**description.sources, FILES: after})
            good, fields = [file for file in frozen.files if file not in names], FeedFields(config)
            fields.look_at(access.feed, good)
            records = decode(own, config, good, copies=copies, see=fields.see)
            noticed = fields.warnings()
            records = with_files(own, records, config, description.lower, aside, frozen.files)
            if spec.is_sample:
                records = records.persist()  # small; its code is compiled once
                opened.callback(records.unpersist)  # the cache is the server's, not the session's
                client.blob.set(spec.key_of(RECORDS), as_json_lines(records, request.schema))
            use(own, {**OUR_PLANS, **listing(client.blob)})
            asked = replace(request, description=described, noticed=noticed)
            return stage_upserts(own, client, state, asked, records, lambda: access.check_after(frozen.files))

        return stage_without_bad_files(own, spec, frozen.files, killers, copies, stage)


def as_json_lines(records: DataFrame, schema: CollectionSchema) -> bytes:
    """The records frame, a JSON object a line: key, op, time, order, kind, message, position, payload (base64).

    It is collected whole: the frame must be a sample's.
    """
    keys = ", ".join(quoted(column.name) for column in schema.key)
    cells = {
        "key": f"struct({keys})",
        "op": OP,
        "time": TIME,
        "order": ORDER,
        "kind": ERR_KIND,
        "message": ERR_MESSAGE,
        "position": ERR_POSITION,
        "payload": f"substring({ERR_PAYLOAD}, 1, {_PAYLOAD_BYTES})",
    }
    struct = ", ".join(f"'{name}', {sql}" for name, sql in cells.items())
    rows = records.selectExpr(f"to_json(named_struct({struct}), map('ignoreNullFields', 'false')) AS line").collect()
    return "\n".join(row["line"] for row in rows).encode()
