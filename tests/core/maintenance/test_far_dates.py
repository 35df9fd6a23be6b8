"""Dates and timestamps outside of the years 1 to 9999, as keys and values: reads, corrections and erasures of them."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from persist_core.checkpoint.publish import publish_missing
from persist_core.contents.batch import BatchDescription
from persist_core.contents.key_range import exactly, parse_key
from persist_core.contents.parts import errs_schema, updates_schema
from persist_core.handles.client import PersistClient
from persist_core.inspection.values import json_rows
from persist_core.location.mem import MemBlob, MemConsensus
from persist_core.location.open import OpenLocation
from persist_core.maintenance.actions import erase
from persist_core.maintenance.fsck import fsck
from persist_core.protocol.restore import RestorePlan, plan_restore, restore
from persist_core.schema import CollectionSchema, Column
from persist_core.shard.state import Committed
from tests.virtual import ManualClock, SeededIds

DAYS = [2**31 - 1, -(2**31), 2_932_897, 2_932_896, -719_529, -719_164, -719_162, 0]
MOMENTS = [2**63 - 1, 1 - 2**63, 253_402_300_800_000_000, -62_135_596_800_000_001, -62_167_219_200_000_001, 0]
SCHEMA = CollectionSchema(
    key=(Column("born", "date", nullable=False), Column("at", "timestamp", nullable=False)),
    values=(Column("day", "date"), Column("seen", "timestamp")),
)
BY_DAY = replace(SCHEMA, key=SCHEMA.key[:1], values=(*SCHEMA.values, Column("n", "bigint")))
Row = tuple[Any, ...]


class Far:
    """A shard of far dates and its rows by key, as days and microseconds."""

    def __init__(self, schema: CollectionSchema, seed: str) -> None:
        clock = ManualClock(1_700_000_000_000)
        self.client = PersistClient(OpenLocation(MemBlob(), MemConsensus()), clock, SeededIds(1, clock))
        self.schema, self.chance = schema, random.Random(seed)
        self.rows: dict[Row, Row] = {}
        self.client.ensure_shard("s")

    def _cell(self, column: Column) -> int:
        return self.chance.choice({"date": DAYS, "timestamp": MOMENTS}.get(column.type, [1, 2]))

    def append(self) -> str:
        """Insert, change or delete the rows of some keys; returns the checkpoint."""
        state = self.client.state("s")
        newest, time = state.newest_commit, state.upper.time or 0
        description = BatchDescription(
            shard="s",
            lower=time,
            upper=time + 1,
            token=self.client.ids.uuid7(),
            checkpoint_id=self.client.ids.uuid7(),
            epoch=newest.epoch + 1 if newest else 1,
            parent_id=newest.checkpoint_id if newest else None,
            writer="test",
        )
        updates = []
        for key in {tuple(map(self._cell, self.schema.key)) for _ in range(4)}:
            if key in self.rows:
                updates.append((*key, *self.rows.pop(key), time, -1))
            if self.chance.random() < 0.8:
                self.rows[key] = tuple(map(self._cell, self.schema.values))
                updates.append((*key, *self.rows[key], time, 1))
        columns = updates_schema(self.schema)
        writer = self.client.open_writer("s")
        tables = (table_of(updates, columns), errs_schema(self.schema).empty_table())
        staged = writer.stage(description, self.schema, self.client.ids.uuid7(), *tables)
        assert isinstance(writer.compare_and_append(self.client.staged_manifest(staged), staged), Committed)
        publish_missing(self.client, self.client.state("s"))
        return description.checkpoint_id

    def check(self) -> None:
        """All rows, and the row of each key, are as expected."""
        reader = self.client.open_reader("s")
        assert rows_of(reader.snapshot(), self.schema) == self.rows
        for key, row in self.rows.items():
            found = reader.snapshot(keys=[exactly(key)])
            assert rows_of(found, self.schema) == {key: row}
        assert fsck(self.client, "s").is_clean


def table_of(rows: list[tuple[Any, ...]], columns: pa.Schema) -> pa.Table:
    cells = zip(*rows, strict=True) if rows else [[] for _ in columns]
    arrays = [pa.array(each, _number(c.type)).cast(c.type) for each, c in zip(cells, columns, strict=True)]
    return pa.table(arrays, columns)


def _number(kind: pa.DataType) -> pa.DataType:
    return {pa.date32(): pa.int32(), pa.timestamp("us", "UTC"): pa.int64()}.get(kind, kind)


def rows_of(table: pa.Table, schema: CollectionSchema) -> dict[Row, Row]:
    cells = [table[column.name].cast(_number(table[column.name].type)).to_pylist() for column in schema.columns]
    width = len(schema.key)
    return {row[:width]: row[width:] for row in zip(*cells, strict=True)}


@pytest.mark.family("histories in Python")
@pytest.mark.parametrize("schema", [SCHEMA, BY_DAY], ids=["two columns", "one column"])
@pytest.mark.parametrize("seed", range(4))
def test_far_dates_are_read_restored_and_erased(schema: CollectionSchema, seed: int) -> None:
    shard = Far(schema, f"far {seed}")
    points = []
    for _ in range(5):
        points.append((shard.append(), dict(shard.rows)))
        shard.check()
    checkpoint, rows = shard.chance.choice(points[:-1])
    plan = plan_restore(shard.client, "s", checkpoint)
    if isinstance(plan, RestorePlan):
        assert isinstance(restore(shard.client, plan, writer="test"), Committed)
        shard.rows = dict(rows)
    shard.check()
    for printed in list(json_rows(shard.client.open_reader("s").snapshot()))[:2]:
        texts = [printed[name] for name in schema.key_names]
        assert erase(shard.client, "s", texts, by="me", reason="asked", with_verify=True).facts["is_clean"]
        del shard.rows[parse_key(texts, schema.key)]
        shard.check()
