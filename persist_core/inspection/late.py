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

from persist_core.checkpoint.checkpointer import state_rows
from persist_core.checkpoint.recovery import recover_newest
from persist_core.contents.batch import LATE_OPERATOR, SourceFrontier
from persist_core.contents.operator_state import StateArtifact
from persist_core.contents.parts import late_schema
from persist_core.exact import exact_rows
from persist_core.handles.client import PersistClient
from persist_core.inspection.values import json_value
from persist_core.schema import ACTED, BAD_KEY, BEATEN_BY, INHERITED, OP, ORDER, TIME, CollectionSchema
from persist_core.shard.state import ShardState
from persist_core.sources.registry import show_position

_OPS = {"u": "upsert", "d": "delete", "t": "truncate"}


@dataclass(frozen=True)
class LateRecord:
    """One record that lost. `key` is `None` if it could not be decoded; then `bad_key` is its raw bytes (hex).

    `op` is `upsert` or `delete`. `time` is the record's own (`None`: its description gave it), `acted` the time at
    which it would have changed something. `order` and `beaten_by` have the order fields by name; `position`, its own
    and the winner's, say where they were read, as the source shows it. `gave` names the columns in which it
    still changed the slot's row, because the row's own record did not have them.
    """

    key: Mapping[str, Any] | None
    bad_key: str | None
    op: str
    time: int | None
    acted: int
    order: Mapping[str, Any]
    position: str | None
    beaten_by: Mapping[str, Any]
    beaten_by_position: str | None
    gave: tuple[str, ...] = ()


def late_records(client: PersistClient, shard: str, *, limit: int | None = None) -> list[LateRecord]:
    """The newest late records, newest first; none for a shard in `log` order.

    Raises `ShardNotFound`, and `CorruptArtifact` naming what of the operator state is missing or damaged.
    """
    state = client.state(shard)
    if state.schema is None or state.schema.order is None:
        return []
    chain = recover_newest(client, state).operators.get(LATE_OPERATOR, ())
    return list(islice(_newest_first(client, chain, state), limit))


def _newest_first(client: PersistClient, chain: tuple[StateArtifact, ...], state: ShardState) -> Iterator[LateRecord]:
    assert state.schema is not None
    columns = late_schema(state.schema)
    for artifact in reversed(chain):
        found = list(state_rows(client.blob, artifact, columns, state.schemas, client.part_format))
        if found:
            for row in exact_rows(pa.concat_tables(found).sort_by([(ACTED, "descending")])):
                yield _late_record(row, state.schema, state.sources)


def _late_record(row: Mapping[str, Any], schema: CollectionSchema, sources: Mapping[str, SourceFrontier]) -> LateRecord:
    bad_key, names = row[BAD_KEY], {column.id: column.name for column in schema.values}
    order, position = _split(row[ORDER], schema, sources)
    beaten_by, beaten_by_position = _split(row[BEATEN_BY], schema, sources)
    return LateRecord(
        key=None if bad_key is not None else {name: json_value(row[name]) for name in schema.key_names},
        bad_key=json_value(bad_key),
        op=_OPS.get(row[OP], row[OP]),
        time=row[TIME],
        acted=row[ACTED],
        order=order,
        position=position,
        beaten_by=beaten_by,
        beaten_by_position=beaten_by_position,
        gave=tuple(names[each["id"]] for each in row.get(INHERITED) or () if each["ord"] == row[ORDER]),
    )


def _split(
    order: Mapping[str, Any] | None, schema: CollectionSchema, sources: Mapping[str, SourceFrontier]
) -> tuple[dict[str, Any], str | None]:
    if order is None:
        return {}, None
    fields = {column.name: json_value(value) for column, value in zip(schema.order or (), order.values(), strict=False)}
    position = {column.name: order[column.name] for column in schema.position}
    return fields, None if None in position.values() else show_position(sources, position)
