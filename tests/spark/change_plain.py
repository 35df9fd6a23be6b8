"""The write stage of a changing collection in plain Python, in `log` order: it drains as the oracle does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa

from persist_core.config.collection import CollectionConfig
from persist_core.contents import pieces
from persist_core.contents.batch import BatchDescription
from persist_core.contents.parts import errs_schema, updates_schema
from persist_core.handles.client import PersistClient
from persist_core.schema import (
    DIFF,
    ERR_KEY,
    ERR_KIND,
    ERR_MESSAGE,
    ERR_PAYLOAD,
    ERR_POSITION,
    TIME,
    CollectionSchema,
)
from persist_core.shard.state import ShardState
from persist_core.sources.input_file import FrozenInput
from tests.oracle.changing import Collection, Definition, History
from tests.oracle.consolidate import Err, UpsertDiff


def write_plain(
    client: PersistClient, config: CollectionConfig, description: BatchDescription, model: Collection
) -> str:
    """Stage the batch; returns its manifest's key. Of `model` come the files, and the keys that were erased."""
    state, definition = client.state(description.shard), model.definition
    schema = state.schemas.placed(config.collection_schema())
    now = History(definition, None, model.now.width, model.now.erased)
    now.upper, now.updates = description.lower, list(_updates(client, state, schema, now))
    data = None if description.input_key is None else client.blob.get(description.input_key)
    files = FrozenInput.decode(data).files if data else ()
    before = len(now.updates)
    assert description.upper is not None
    now.drain(
        {each.relative: replace(model.files[each.relative], date_ms=each.date_ms) for each in files}, description.upper
    )
    oks, errs = _tables(now.updates[before:], schema, definition)
    stage = client.open_writer(description.shard).stage
    return stage(description, config.collection_schema(), client.ids.uuid7(), oks, errs)


def _updates(client: PersistClient, state: ShardState, schema: CollectionSchema, now: History) -> Iterator[UpsertDiff]:
    """All that the shard holds, as the schema of the next batch shows it."""
    reader, definition = client.open_reader(state.shard), now.definition
    for row in reader.read(state.batches, updates_schema(schema), pieces.all_oks).to_pylist():
        value: list[Any] = [None] * now.width
        for each in definition.values:
            value[each.place] = row[each.name]
        yield UpsertDiff(tuple(row[name] for name in definition.key), tuple(value), row[TIME], row[DIFF])
    for row in reader.read(state.batches, errs_schema(schema), pieces.all_errs).to_pylist():
        err = Err(row[ERR_KIND], row[ERR_KEY], row[ERR_PAYLOAD])
        yield UpsertDiff(tuple(row[name] for name in definition.key), err, row[TIME], row[DIFF])


def _tables(updates: list[UpsertDiff], schema: CollectionSchema, definition: Definition) -> tuple[pa.Table, pa.Table]:
    oks, errs = [], []
    for u in updates:
        key = dict(zip(definition.key, u.slot, strict=True))
        if isinstance(u.value, Err):
            err = {ERR_KIND: u.value.kind, ERR_MESSAGE: "", ERR_KEY: u.value.key_bytes, ERR_PAYLOAD: u.value.payload}
            errs.append({**key, **err, ERR_POSITION: "", TIME: u.time, DIFF: u.diff})
        else:
            cells = {each.name: u.value[each.place] for each in definition.values}
            oks.append({**key, **cells, TIME: u.time, DIFF: u.diff})
    return (
        pa.Table.from_pylist(oks, schema=updates_schema(schema)),
        pa.Table.from_pylist(errs, schema=errs_schema(schema)),
    )
