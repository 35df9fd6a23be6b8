"""The common parts of many tests: the schemas of small tables, and all updates of a shard."""

from __future__ import annotations

import pyarrow as pa

from persist_core.contents import pieces
from persist_core.contents.parts import errs_schema, updates_schema
from persist_core.handles.read import ReadHandle, schema_of
from persist_core.schema import CollectionSchema, Column
from persist_core.shard.state import ShardState

_ID = Column("id", "bigint", nullable=False)
KEYS = CollectionSchema(key=(_ID,))
"""Rows that are an id and nothing else."""
SCHEMA = CollectionSchema(key=(_ID,), values=(Column("name", "string"),))
"""Rows with an id and a name."""


def all_updates(reader: ReadHandle, state: ShardState) -> tuple[pa.Table, pa.Table]:
    """Every update that the shard still has, oks and errs."""
    schema = schema_of(state)
    oks = reader.read(state.batches, updates_schema(schema), pieces.all_oks)
    return oks, reader.read(state.batches, errs_schema(schema), pieces.all_errs)
