"""A collection whose write stage is the plain-Python oracle, on any location: for tests of going back and on again.

Its input files hold no more than their names: the records that they stand for are kept beside them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from persist_core.checkpoint.checkpointer import Checkpointer
from persist_core.config.collection import CollectionConfig
from persist_core.contents.batch import STASH_OPERATOR, BatchDescription
from persist_core.contents.operator_state import OperatorState, StateArtifact
from persist_core.contents.parts import errs_schema, updates_schema
from persist_core.handles.client import PersistClient
from persist_core.keys import part_key
from persist_core.location.mem import MemBlob, MemConsensus
from persist_core.location.open import OpenLocation
from persist_core.maintenance.fsck import fsck
from persist_core.protocol import stages
from persist_core.protocol.restore import RestorePlan, plan_restore, restore
from persist_core.protocol.stages import Minted
from persist_core.schema import (
    DIFF,
    ERR_KEY,
    ERR_KIND,
    ERR_MESSAGE,
    ERR_PAYLOAD,
    ERR_POSITION,
    OP,
    TIME,
    CollectionSchema,
    system_field,
)
from persist_core.shard.state import Committed
from persist_core.sources.input_file import FrozenInput
from tests.core.protocol import log_source
from tests.core.world import all_updates
from tests.oracle.consolidate import Err, Slot, UpsertDiff, Value, as_of, canonical_bytes
from tests.oracle.strategies import SCHEMA
from tests.oracle.upsert import Record, drain_sealed_input
from tests.sim.simulator.write_stage import ArrowParts
from tests.virtual import ManualClock, SeededIds

SHARD = "things"
KEEP_ALL = {"keep_last": 1000, "snapshot_every": 3}


class Collection:
    """`run` mints, writes, appends and checkpoints once; a name of another shard makes it a fork's."""

    def __init__(
        self, folder: Path, location: OpenLocation | None = None, shard: str = SHARD, *, is_log: bool = False
    ) -> None:
        """`is_log`: its source is `tests.core.protocol.log_source`, of which the caller says that it is `known`."""
        self.folder, self.shard, self.is_log = folder, shard, is_log
        self.clock = ManualClock(1_700_000_000_000)
        self.location = location or OpenLocation(MemBlob(clock=self.clock), MemConsensus())
        ids = SeededIds(7, self.clock)
        self.client = PersistClient(self.location, self.clock, ids, fetch_threads=1, part_format=ArrowParts())
        body = {
            "name": shard,
            "source": {"path": "*.txt", "format": "json"},
            "key": [column.name for column in SCHEMA.key],
            "columns": {column.name: column.type for column in SCHEMA.columns},
            "delete": "none",
            "base_dir": str(folder),
            "retention": KEEP_ALL,
        }
        config = CollectionConfig.model_validate(body)
        self.config = log_source.of_log(config) if is_log else config
        self.feed: dict[str, tuple[Record, ...]] = {}
        self.stashed: dict[bytes, tuple[Record, ...]] = {}

    def beside(self, shard: str) -> Collection:
        """These files and stores under another shard's name."""
        other = Collection(self.folder, self.location, shard, is_log=self.is_log)
        other.config = self.config.model_copy(update={"name": shard})
        other.feed, other.stashed = self.feed, self.stashed
        other.client.ids = self.client.ids  # or they would draw the same ids
        return other

    def drop(self, name: str, records: Iterable[Record]) -> None:
        self.feed[name] = tuple(map(log_source.placed, records)) if self.is_log else tuple(records)
        if self.is_log:
            log_source.append(self.folder, name)
        else:
            (self.folder / name).write_text(name)

    def take_out(self, name: str) -> None:
        if self.is_log:
            log_source.compact_away(self.folder, name)
        else:
            (self.folder / name).unlink()

    @property
    def schema(self) -> CollectionSchema:
        return self.config.collection_schema()

    def mint(self, until: int | None) -> BatchDescription:
        minted = stages.mint(self.client, self.config, until=until, writer=f"dag/{until}")
        assert isinstance(minted, Minted), minted
        return minted.description

    def run(self, until: int | None) -> str:
        """One dag run up to `until`; returns its checkpoint's id."""
        description = self.mint(until)
        result = stages.append(self.client, description, self.write(description))
        assert isinstance(result, Committed), result
        stages.checkpoint(self.client, self.config)
        return description.checkpoint_id

    def write(self, description: BatchDescription) -> str:
        """Act as the Spark job."""
        records = [record for name in self.files_of(description) for record in self.feed[name]]
        stash = [
            record for artifact in description.operators.get(STASH_OPERATOR, ()) for record in self._stash_of(artifact)
        ]
        drained = drain_sealed_input(
            records,
            stash,
            self.updates(),
            lower=description.lower,
            upper=description.upper,
            late=self.config.time.late,
            stash_frontier=description.stash_frontier,
            in_time_from=description.in_time_from,
            schema=self.schema,
        )
        known = set(map(repr, stash)) if description.saves_delta(STASH_OPERATOR) else set()
        kept = tuple(record for record in drained.stash if repr(record) not in known)
        attempt = self.client.ids.uuid7()
        oks, errs = as_tables(drained.updates)
        return self.client.open_writer(self.shard).stage(
            description,
            self.schema,
            attempt,
            oks,
            errs,
            operators=self._stage_stash(description, attempt, kept) if drained.stash else {},
            stats=drained.stats.to_json(),
        )

    def files_of(self, description: BatchDescription) -> list[str]:
        """Names of the files that the description takes in."""
        data = None if description.input_key is None else self.client.blob.get(description.input_key)
        if data is None:
            return []
        if self.is_log:
            return list(log_source.FrozenLog.decode(data).names)
        return [file.relative for file in FrozenInput.decode(data).files]

    def _stage_stash(
        self, description: BatchDescription, attempt: str, records: tuple[Record, ...]
    ) -> dict[str, OperatorState]:
        is_delta = description.saves_delta(STASH_OPERATOR)
        if not records:
            return {STASH_OPERATOR: OperatorState(is_delta, ())}
        rows = [{TIME: record.time, OP: repr(record)} for record in records]
        data = self.client.part_format.encode(
            pa.Table.from_pylist(rows, schema=pa.schema([system_field(TIME), system_field(OP)]))
        )
        self.stashed[data] = records
        key = part_key(self.shard, attempt, STASH_OPERATOR, 0)
        self.client.blob.set(key, data)
        digest = hashlib.sha256(data).hexdigest()
        return {STASH_OPERATOR: OperatorState(is_delta, (StateArtifact(0, key, len(data), digest, schema_version=1),))}

    def _stash_of(self, artifact: StateArtifact) -> tuple[Record, ...]:
        data = self.client.blob.get(artifact.key)
        assert data is not None
        assert hashlib.sha256(data).hexdigest() == artifact.sha256
        return self.stashed[data]

    def go_back(self, checkpoint_id: str) -> Committed:
        """Restore the shard itself."""
        result = restore(self.client, self.plan(checkpoint_id), writer="test/restore")
        assert isinstance(result, Committed), result
        return result

    def plan(self, checkpoint_id: str) -> RestorePlan:
        plan = plan_restore(self.client, self.shard, checkpoint_id)
        assert isinstance(plan, RestorePlan), plan
        return plan

    def upper(self) -> int:
        return self.client.state(self.shard).upper.time or 0

    def updates(self) -> list[UpsertDiff]:
        """Everything that the shard holds."""
        state = self.client.ensure_shard(self.shard)
        if state.schema is None:
            return []
        oks, errs = all_updates(self.client.open_reader(self.shard), state)
        return [*from_oks(oks), *from_errs(errs)]

    def contents(self, time: int) -> dict[Slot, Any]:
        """As of `time`, by the updates themselves; NaN equals itself in it."""
        return contents(self.updates(), time)

    def read(self, time: int) -> dict[Slot, Any]:
        """As of `time`, by what readers use."""
        reader = self.client.open_reader(self.shard)
        oks = reader.snapshot(time)
        timed = oks.append_column(TIME, pa.repeat(0, len(oks))).append_column(DIFF, pa.repeat(1, len(oks)))
        errs = reader.errors(time)
        found = [*from_oks(timed), *from_errs(errs.append_column(DIFF, pa.repeat(1, len(errs))))]
        return {update.slot: shown(update.value) for update in found}

    @property
    def checkpointer(self) -> Checkpointer:
        return Checkpointer(self.client.blob, self.shard)

    def check(self) -> None:
        """`fsck` finds nothing."""
        report = fsck(self.client, self.shard)
        assert report.is_clean, report.violations


def contents(updates: Iterable[UpsertDiff], time: int) -> dict[Slot, Any]:
    """As of `time`; NaN equals itself in it."""
    return {slot: shown(value) for slot, value in as_of(updates, time).items()}


def shown(value: Value) -> Any:
    """A value as plain data in which NaN equals itself."""
    return value if isinstance(value, Err) else canonical_bytes(value, [str(i) for i in range(len(value))])


def as_tables(updates: Iterable[UpsertDiff]) -> tuple[pa.Table, pa.Table]:
    """Oks and errs, as `WriteHandle.stage` takes them."""
    keys, values = SCHEMA.key_names, [column.name for column in SCHEMA.values]
    oks, errs = [], []
    for u in updates:
        at = {TIME: u.time, DIFF: u.diff}
        if isinstance(u.value, Err):
            slot = (None,) * len(keys) if isinstance(u.slot, bytes) else u.slot
            err = {
                ERR_KIND: u.value.kind,
                ERR_MESSAGE: u.value.message,
                ERR_KEY: u.value.key_bytes,
                ERR_PAYLOAD: u.value.payload,
                ERR_POSITION: u.value.position,
            }
            errs.append({**dict(zip(keys, slot, strict=True)), **err, **at})
        else:
            row = dict(zip(keys, u.slot, strict=True)) | dict(zip(values, u.value, strict=True))
            oks.append({**row, **at})
    return (
        pa.Table.from_pylist(oks, schema=updates_schema(SCHEMA)),
        pa.Table.from_pylist(errs, schema=errs_schema(SCHEMA)),
    )


def from_oks(table: pa.Table) -> Iterator[UpsertDiff]:
    for row in table.to_pylist():
        slot = tuple(row[name] for name in SCHEMA.key_names)
        yield UpsertDiff(slot, tuple(row[column.name] for column in SCHEMA.values), row[TIME], row[DIFF])


def from_errs(table: pa.Table) -> Iterator[UpsertDiff]:
    for row in table.to_pylist():
        err = Err(row[ERR_KIND], row[ERR_KEY], row[ERR_PAYLOAD], row[ERR_MESSAGE], position=row[ERR_POSITION])
        key = tuple(row[name] for name in SCHEMA.key_names)
        slot = key if key[0] is not None else row[ERR_KEY] if row[ERR_KEY] is not None else row[ERR_PAYLOAD]
        yield UpsertDiff(slot, err, row[TIME], row[DIFF])
