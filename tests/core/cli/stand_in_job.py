"""The job of the stand-in for `spark-submit`: stages one insertion for each line of the input."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from persist_core.config.view import ViewConfig
from persist_core.contents.batch import BatchManifest
from persist_core.contents.parts import updates_schema
from persist_core.contents.stats import DryRun
from persist_core.errors import RejectedRecord
from persist_core.handles.client import PersistClient
from persist_core.handles.write import stage_manifest
from persist_core.keys import dry_run_key
from persist_core.location.open import open_location
from persist_core.location.settings import PersistLocation
from persist_core.schema import DIFF, TIME, CollectionSchema, Column
from persist_core.sources.input_file import FrozenInput
from persist_core.spark_job.answer import record_failure
from persist_core.spark_job.spec import JobSpec, load_spec


def main(what: str, arguments: Sequence[str]) -> int:
    """`stage`, `fail`, `race` or `beaten`: see `stand_in_spark_submit`. Returns the exit status."""
    location = PersistLocation(os.environ["PERSIST_BLOB_URI"], os.environ["PERSIST_CONSENSUS_URI"])
    with open_location(location) as opened:
        client = PersistClient(opened)
        spec = load_spec(opened.blob, arguments)
        if what == "fail":
            sample = RejectedRecord("value", "column 'qty': no integer", 86_400_000, '{"id":1}', "x\ty", "2026/a.jsonl")
            record_failure(opened.blob, spec, os.environ["STAND_IN_KIND"], "the job says why", [sample])
            return 1
        if what == "beaten" or (what == "race" and not Path(os.environ["STAND_IN_NOTES"] + ".raced").exists()):
            _win(client, spec)
        (_refresh if isinstance(spec.config, ViewConfig) else _stage)(client, spec)
    return 0


def _refresh(client: PersistClient, spec: JobSpec) -> None:
    """A view: the ids of its one input, all of them new. A dry run reports the same."""
    (name,), at = spec.config.model_dump()["inputs"], (spec.description.upper or 0) - 1
    found = client.open_reader(name).snapshot(at)
    if spec.dry_run_as_of is not None:
        stats = {"inserted": len(found), "updates": len(found), "rows": len(found), "corrections": 0}
        dry_run = DryRun(spec.dry_run_as_of, stats, tuple({DIFF: 1, **row} for row in found.to_pylist()[:1]))
        client.blob.set(dry_run_key(spec.config.name, spec.attempt), dry_run.encode())
        return
    schema = CollectionSchema(key=(), values=(Column("id", "bigint"),))
    rows = [{**row, TIME: at, DIFF: 1} for row in found.to_pylist()]
    table = pa.Table.from_pylist(rows, schema=updates_schema(schema))
    writer = client.open_writer(spec.config.name)
    key = writer.stage(spec.description, schema, spec.attempt, table)
    corrected = replace(client.staged_manifest(key), stats={"rows": len(rows), "corrections": 2, "contents_0": 5})
    stage_manifest(client.blob, corrected, spec.attempt)


def _stage(client: PersistClient, spec: JobSpec) -> None:
    description = spec.description
    assert description.upper is not None
    data = client.blob.get(description.input_key or "")
    assert data is not None
    lines = [line for file in FrozenInput.decode(data).files for line in Path(file.path).read_text().splitlines()]
    schema = spec.collection.collection_schema()
    rows = [(int(line), description.upper - 1, 1) for line in lines]
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    table = pa.table([pa.array(column, pa.int64()) for column in columns], schema=updates_schema(schema))
    client.open_writer(description.shard).stage(description, schema, spec.attempt, table)


def _win(client: PersistClient, spec: JobSpec) -> None:
    """Another run commits an empty batch for a part of the interval, while this one is still writing."""
    Path(os.environ["STAND_IN_NOTES"] + ".raced").touch()
    lower = spec.description.lower
    description = replace(spec.description, upper=lower + 1, token=f"winner of {lower}", writer="winner", sources={})
    schema = spec.collection.collection_schema()
    key = client.open_writer(description.shard).stage(description, schema, client.ids.uuid7())
    manifest = client.blob.get(key)
    assert manifest is not None
    client.open_writer(description.shard).compare_and_append(BatchManifest.decode(manifest), key)
