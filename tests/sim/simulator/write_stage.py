"""The write stage without Spark: the plain-Python oracle drains what the description froze, and stages it.

The same steps as the Spark job: still valid? -> frozen input unchanged? -> decode -> look up -> drain -> stage. Parts
have the same columns, but are Arrow streams, which are made and read ten times faster than Parquet of a few rows; the
stash is lines of JSON.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa

from persist_core.config.collection import CollectionConfig
from persist_core.contents.batch import STASH_OPERATOR, BatchDescription, BatchManifest
from persist_core.contents.operator_state import OperatorState, StateArtifact
from persist_core.contents.parts import PartFormat, check_field_ids, updates_schema
from persist_core.errors import CorruptArtifact
from persist_core.handles.client import PersistClient
from persist_core.keys import part_key
from persist_core.location.blob import Blob
from persist_core.protocol import stages
from persist_core.schema import DIFF, ENDED, TIME, CollectionSchema
from persist_core.sources.feed import LocalFeed
from persist_core.sources.frozen import load_frozen
from persist_core.sources.input_file import FrozenInput
from tests.oracle.consolidate import UpsertDiff
from tests.oracle.sequence import OrderMemory
from tests.oracle.upsert import (
    Drained,
    Mark,
    Record,
    drain_sealed_input,
)
from tests.sim.simulator import orders
from tests.sim.simulator.carried import adds_to_chain, state_of
from tests.sim.simulator.workload import read_records, row_of


class ArrowParts(PartFormat):
    """Parts as Arrow streams, for speed."""

    def encode(self, table: pa.Table) -> bytes:
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, table.schema) as stream:
            stream.write_table(table)
        data: bytes = out.getvalue().to_pybytes()
        return data

    def index(self, data: bytes) -> None:  # noqa: ARG002 - there are no pages
        return None

    def decode(self, data: bytes, columns: list[str], written: CollectionSchema) -> pa.Table:
        table = pa.ipc.open_stream(data).read_all()
        check_field_ids(table.schema, written)
        return table.select([name for name in columns if name in table.column_names])

    def batches(
        self,
        data: bytes,
        columns: list[str],
        written: CollectionSchema,
        rows: int,
        *,
        is_packed: bool = False,  # noqa: ARG002 - nothing is packed
    ) -> Iterator[pa.Table]:
        table = self.decode(data, columns, written)
        for start in range(0, len(table), rows):
            yield table.slice(start, rows)


@dataclass(frozen=True)
class SequenceMemory:
    """How a shard in `sequence` order finds what it has seen before a batch, and what has lost before it."""

    remember: Callable[[PersistClient, BatchDescription, orders.Rows], OrderMemory] = orders.memory
    late: Callable[[PersistClient, BatchDescription], list[orders.Late]] = orders.late_before


def write(
    client: PersistClient,
    config: CollectionConfig,
    description: BatchDescription,
    *,
    memory: SequenceMemory | None = None,
) -> str:
    """Stage the batch of `description` and return its manifest's key. Raises what the Spark job raises."""
    without_input = stages.write_without_input(client, config, description)
    if without_input is not None:
        return without_input
    with stages.outdated_first(client, description):
        return _write(client, config, description, memory or SequenceMemory())


def _write(
    client: PersistClient,
    config: CollectionConfig,
    description: BatchDescription,
    memory: SequenceMemory,
) -> str:
    state = client.state(description.shard)
    stages.check_not_outdated(state, description)
    key = description.input_key
    frozen = FrozenInput(()) if key is None else load_frozen(client.blob, key, FrozenInput)
    LocalFeed(config.source_pattern()).check(frozen.files)
    records = [record for file in frozen.files for record in read_records(file.path)]
    stash = [
        record
        for artifact in description.operators.get(STASH_OPERATOR, ())
        for record in _read_stash(client.blob, artifact)
    ]
    below = [batch for batch in state.batches if batch.lower < description.lower]
    manifests = client.manifests(below)
    updates = [update for manifest in manifests for update in read_updates(client.blob, manifest)]
    rows = None if config.order.mode == "log" else orders.rows_of(client.blob, zip(below, manifests, strict=True))
    drained = drain_sealed_input(
        records,
        stash,
        updates,
        lower=description.lower,
        upper=description.upper,
        stash_frontier=description.stash_frontier,
        in_time_from=description.in_time_from,
        orders=None if rows is None else memory.remember(client, description, rows),
    )
    late = [] if rows is None else memory.late(client, description)
    return _stage(client, config, description, drained, stash, rows, late)


def read_updates(blob: Blob, manifest: BatchManifest) -> list[UpsertDiff]:
    """All updates of one batch. Raises `CorruptArtifact` naming a part that is missing."""
    found: list[UpsertDiff] = []
    for part in manifest.parts:
        data = blob.get(part.key)
        if data is None:
            raise CorruptArtifact(f"part {part.key} is missing")
        found += decode_part(data)
    return found


@lru_cache(maxsize=2000)
def decode_part(data: bytes) -> tuple[UpsertDiff, ...]:
    """The updates in a part's bytes; two for a version of a run's history."""
    rows = pa.ipc.open_stream(data).read_all().to_pylist()
    updates = [UpsertDiff((row["id"],), (row["name"],), row[TIME], row[DIFF]) for row in rows]
    ends = [UpsertDiff((row["id"],), (row["name"],), row[ENDED], -1) for row in rows if ENDED in row]
    return (*updates, *ends)


def _stage(
    client: PersistClient,
    config: CollectionConfig,
    description: BatchDescription,
    drained: Drained,
    stash_before: list[Record],
    rows_before: orders.Rows | None,
    late_before: list[orders.Late],
) -> str:
    schema = config.collection_schema()
    attempt = client.ids.uuid7()
    rows = [{**row_of(u.slot, u.value), TIME: u.time, DIFF: u.diff} for u in drained.updates]
    operators: dict[str, OperatorState] = {}
    if rows_before is not None:
        operators = orders.stage_orders(client, description, attempt, rows, drained, rows_before, late_before)
    oks = pa.Table.from_pylist(rows, schema=updates_schema(schema))
    known = set(map(repr, stash_before)) if adds_to_chain(description, STASH_OPERATOR) else set()
    stashed = [record for record in drained.stash if repr(record) not in known]
    artifacts: tuple[StateArtifact, ...] = ()
    if stashed:
        key = part_key(description.shard, attempt, STASH_OPERATOR, 0, "jsonl")
        data = _encode_stash(stashed)
        client.blob.set(key, data)
        digest = hashlib.sha256(data).hexdigest()
        artifacts = (StateArtifact(0, key, len(data), digest),)
    if drained.stash:
        operators |= state_of(description, STASH_OPERATOR, artifacts)
    return client.open_writer(description.shard).stage(
        description, schema, attempt, oks, operators=operators, stats=drained.stats.to_json()
    )


def _encode_stash(records: list[Record]) -> bytes:
    lines = [
        json.dumps(
            [
                record.slot,
                record.value.value if isinstance(record.value, Mark) else record.value,
                record.time,
                record.order,
            ]
        )
        for record in records
    ]
    return "\n".join(lines).encode()


def _read_stash(blob: Blob, artifact: StateArtifact) -> list[Record]:
    data = blob.get(artifact.key)
    if data is None or hashlib.sha256(data).hexdigest() != artifact.sha256:
        raise CorruptArtifact(f"stash artifact {artifact.key} is missing or altered")
    return [
        Record(slot and tuple(slot), Mark(value) if isinstance(value, str) else tuple(value), time, tuple(order))
        for slot, value, time, order in map(json.loads, data.decode().splitlines())
    ]
