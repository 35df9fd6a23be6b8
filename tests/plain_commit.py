"""Append to a shard in plain Python, as any writer could: an input that needs no Spark, or a rogue writer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from persist_core.contents.batch import BatchDescription
from persist_core.contents.parts import errs_schema, updates_schema
from persist_core.contents.stats import BatchWarning
from persist_core.handles.client import PersistClient
from persist_core.schema import ERR_POSITION, CollectionSchema
from persist_core.shard.state import Committed

Update = tuple[tuple[Any, ...], int, int]  # row, time, diff
ErrUpdate = tuple[str, bytes | None, bytes, int, int]  # kind, key, payload, time, diff


def commit(
    client: PersistClient,
    shard: str,
    schema: CollectionSchema,
    upper: int | None,
    updates: Iterable[Update] = (),
    errs: Iterable[ErrUpdate] = (),
    *,
    writer: str = "rogue",
    stats: Mapping[str, int] | None = None,
    warnings: tuple[BatchWarning, ...] = (),
) -> None:
    """One batch from the shard's upper up to `upper`. `stats`: what its manifest says that the run counted."""
    state = client.ensure_shard(shard)
    newest = state.newest_commit
    description = BatchDescription(
        shard=shard,
        lower=state.upper.time or 0,
        upper=upper,
        token=client.ids.uuid7(),
        checkpoint_id=client.ids.uuid7(),
        epoch=newest.epoch + 1 if newest else 1,
        parent_id=None,
        writer=writer,
    )
    wide, narrow = updates_schema(schema), errs_schema(schema)
    rows = [dict(zip(wide.names, (*row, time, diff), strict=True)) for row, time, diff in updates]
    bad = [
        dict.fromkeys(schema.key_names)
        | dict(zip(without_position(narrow)[len(schema.key) :], (kind, f"message of {kind}", *rest), strict=True))
        for kind, *rest in errs
    ]
    handle = client.open_writer(shard)
    key = handle.stage(
        description,
        schema,
        client.ids.uuid7(),
        pa.Table.from_pylist(rows, schema=wide),
        pa.Table.from_pylist(bad, schema=narrow),
        stats=stats,
    )
    if warnings:
        client.blob.set(key, replace(client.staged_manifest(key), warnings=warnings).encode())
    assert isinstance(handle.compare_and_append(client.staged_manifest(key), key), Committed)


def table_of(rows: Iterable[Sequence[Any]], schema: pa.Schema) -> pa.Table:
    """Rows as tuples, of errs without a position."""
    names = without_position(schema)
    return pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows], schema=schema)


def without_position(schema: pa.Schema) -> list[str]:
    """The names of its columns, of errs without their position."""
    return [name for name in schema.names if name != ERR_POSITION]
