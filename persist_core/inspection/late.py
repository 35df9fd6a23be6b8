"""The late records of a shard in `sequence` order: what lost to an order seen before, and so changed nothing.

    newest commit ──> chain of the operator `late-records`, verified ──newest file first──> late records, newest first

They are kept as long as the orders of deleted keys are (`order.keep_deleted`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa

from persist_core.checkpoint.recovery import recover_newest
from persist_core.checkpoint.state_rows import state_rows
from persist_core.handles.client import PersistClient
from persist_core.inspection.values import json_value
from persist_core.schema import ACTED, BAD_KEY, BEATEN_BY, OP, ORDER, TIME, CollectionSchema
from persist_core.shard.batch import LATE_OPERATOR
from persist_core.shard.operator_state import StateArtifact
from persist_core.sources.natural_order import path_of

_OPS = {"u": "upsert", "d": "delete", "t": "truncate"}


@dataclass(frozen=True)
class LateRecord:
    """One record that lost. `key` is `None` if it could not be decoded; then `bad_key` is its raw bytes (hex).

    `op` is `upsert` or `delete`. `time` is the record's own (`None`: its description gave it), `acted` the time at
    which it would have changed something. `order` and `beaten_by` have the order fields by name; `file` and `row`, and
    the same of the record that beat it, say where they were read.
    """

    key: Mapping[str, Any] | None
    bad_key: str | None
    op: str
    time: int | None
    acted: int
    order: Mapping[str, Any]
    file: str | None
    row: int | None
    beaten_by: Mapping[str, Any]
    beaten_by_file: str | None
    beaten_by_row: int | None


def late_records(client: PersistClient, shard: str, *, limit: int | None = None) -> list[LateRecord]:
    """The newest late records, newest first; none for a shard in `log` order.

    Raises `ShardNotFound`, and `CorruptArtifact` naming what of the operator state is missing or damaged.
    """
    state = client.state(shard)
    if state.schema is None or state.schema.order is None:
        return []
    chain = recover_newest(client, state).operators.get(LATE_OPERATOR, ())
    return list(islice(_newest_first(client, chain, state.schema), limit))


def _newest_first(
    client: PersistClient, chain: tuple[StateArtifact, ...], schema: CollectionSchema
) -> Iterator[LateRecord]:
    columns = [*schema.key_names, BAD_KEY, OP, TIME, ORDER, BEATEN_BY, ACTED]
    for artifact in reversed(chain):
        found = list(state_rows(client.blob, artifact, columns, client.part_format))
        if found:
            for row in pa.concat_tables(found).sort_by([(ACTED, "descending")]).to_pylist():
                yield _late_record(row, schema)


def _late_record(row: Mapping[str, Any], schema: CollectionSchema) -> LateRecord:
    bad_key = row[BAD_KEY]
    file, number = _place(row[ORDER])
    beaten_by_file, beaten_by_number = _place(row[BEATEN_BY])
    return LateRecord(
        key=None if bad_key is not None else {name: json_value(row[name]) for name in schema.key_names},
        bad_key=json_value(bad_key),
        op=_OPS.get(row[OP], row[OP]),
        time=row[TIME],
        acted=row[ACTED],
        order=_fields(row[ORDER], schema),
        file=file,
        row=number,
        beaten_by=_fields(row[BEATEN_BY], schema),
        beaten_by_file=beaten_by_file,
        beaten_by_row=beaten_by_number,
    )


def _fields(order: Mapping[str, Any] | None, schema: CollectionSchema) -> dict[str, Any]:
    """The order by the names of its fields; those of the position are elsewhere."""
    values = list((order or {}).values())
    return {column.name: json_value(value) for column, value in zip(schema.order or (), values, strict=False)}


def _place(order: Mapping[str, Any] | None) -> tuple[str | None, int | None]:
    """The file of a record, below its source's folder, and its number among the records of its block."""
    if order is None or order.get("file") is None:
        return None, None
    try:
        return path_of(order["file"]), order.get("row")
    except (ValueError, StopIteration):
        return order["file"], order.get("row")
