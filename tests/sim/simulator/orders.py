"""The orders that a simulated shard in `sequence` order has seen: beside its rows, and in the order index.

    parts, their orders ──┬──> OrderMemory ──the oracle drains──> OrderMemory ──┬──> orders of rows that are inserted
    order index, a chain ─┘                                    │                └──> what the rows do not say: the index
    late records, a chain                                      └──> records that lost ──> late records

An entry of the index, one line of JSON, is `[slot, [order, has a value]]`; without an order the index knows nothing of
the slot, and without a slot it is the floor. No other value comes with the same order, so a row's own value stands for
the one that raised it. A late record is a line `[slot, order, the order that beat it, the time at which it acted]`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa

from persist_core.checkpoint.checkpointer import load_verified
from persist_core.config.collection import FILE_POSITION
from persist_core.contents.batch import (
    LATE_OPERATOR,
    ORDER_INDEX_OPERATOR,
    BatchDescription,
    BatchManifest,
    HollowBatch,
)
from persist_core.contents.operator_state import OperatorState, StateArtifact
from persist_core.handles.client import PersistClient
from persist_core.keys import part_key
from persist_core.location.blob import Blob
from persist_core.schema import DIFF, ENDED, ORDER, TIME
from tests.oracle.consolidate import Err, Slot, Value, canonical_bytes
from tests.oracle.sequence import OrderMemory, Precedence, Seen
from tests.oracle.upsert import Drained
from tests.sim.simulator.carried import adds_to_chain, state_of
from tests.sim.simulator.workload import Remembered

_NAMES = ["by0", *(column.name for column in FILE_POSITION)]  # of the order's fields
Order = tuple[Any, ...]
Rows = dict[Slot, tuple[Order, Value]]  # of each slot that holds a value
Entries = dict[Slot | None, tuple[Order, bool] | None]
Late = list[Any]  # a line of the late records


def memory(client: PersistClient, description: BatchDescription, rows: Rows) -> OrderMemory:
    """The memory of the shard, which holds `rows`, before the batch."""
    return memory_of(rows, _index(client.blob, description.operators.get(ORDER_INDEX_OPERATOR, ())))


def late_before(client: PersistClient, description: BatchDescription) -> list[Late]:
    """The late records before the batch."""
    return late_in(client.blob, description.operators.get(LATE_OPERATOR, ()))


def memory_of(rows: Rows, index: Entries) -> OrderMemory:
    """The orders of rows and index together."""
    seen: dict[Slot, Seen] = {}
    floor = index.get(None)
    for full, (order, value) in rows.items():
        seen[full] = Seen(precedence(order, value), 0)
    for slot, entry in index.items():
        if entry is not None and slot is not None:
            order, has_value = entry
            raised = Seen(precedence(order, rows[slot][1] if has_value else None), 0)
            seen[slot] = max(raised, seen.get(slot, raised), key=lambda each: each.precedence)
    return OrderMemory(seen, None if floor is None else precedence(floor[0], None))


def precedence(order: Order, value: Value | None) -> Precedence:
    """The oracle's precedence."""
    assert not isinstance(value, Err)  # no simulated record is one
    rank = ((1, tuple((0,) if part is None else (1, part) for part in order)),)
    return (rank, 0) if value is None else (rank, 1, canonical_bytes(value, [str(i) for i in range(len(value))]))


def rows_of(blob: Blob, batches: Iterable[tuple[HollowBatch, BatchManifest]]) -> Rows:
    """The newest insertion of each slot that has not ended, with its order. A fork may have less of a run than its
    parts hold."""
    newest: dict[Slot, tuple[int, int, Order, Value]] = {}
    for batch, manifest in batches:
        for part in manifest.parts:
            for slot, time, diff, order, value in _ordered(blob.get(part.key) or b""):
                if time <= batch.last_time and (slot not in newest or newest[slot][:2] < (time, diff)):
                    newest[slot] = (time, diff, order, value)
    return {slot: (order, value) for slot, (_, diff, order, value) in newest.items() if diff > 0}


@lru_cache(maxsize=2000)
def _ordered(data: bytes) -> tuple[tuple[Slot, int, int, Order, Value], ...]:
    """The updates in a part's bytes, with their orders. A plain writer's rows have none: the least."""
    found = []
    for row in pa.ipc.open_stream(data).read_all().to_pylist():
        order = tuple((row[ORDER] or {}).values())
        found.append(((row["id"],), row[TIME], row[DIFF], order, (row["name"],)))
        if (ended := row.get(ENDED)) is not None:
            found.append(((row["id"],), ended, -1, order, (row["name"],)))
    return tuple(found)


def stage_orders(
    client: PersistClient,
    description: BatchDescription,
    attempt: str,
    cells: list[dict[str, Any]],
    drained: Drained,
    before: Rows,
    late: list[Late],
) -> dict[str, OperatorState]:
    """Add its order to each of `cells`, the rows of the batch's updates, and stage what the rows do not say: the index,
    and the late records, of which `late` came before.

    The newest insertion into a slot has the highest order that the slot has seen. Earlier ones of the same batch have
    one that no reader looks at; retractions have none.
    """
    assert drained.orders is not None
    seen = {slot: order_of(each.precedence) for slot, each in drained.orders.slots.items()}
    newest = {u.slot: u.time for u in sorted(drained.updates, key=lambda u: u.time) if u.diff > 0}
    rows = dict(before)
    for cell, update in zip(cells, drained.updates, strict=True):
        is_newest = update.time == newest.get(update.slot) and update.slot in seen
        order = seen[update.slot] if is_newest else (-1, None, None, None)
        cell[ORDER] = dict(zip(_NAMES, order, strict=True)) if update.diff > 0 else None
    for update in sorted(drained.updates, key=lambda u: (u.time, u.diff)):
        rows.pop(update.slot, None)
        if update.diff > 0 and update.slot in seen:
            rows[update.slot] = (seen[update.slot], update.value)
    wanted: Entries = {}
    for slot, order in seen.items():
        if slot not in rows or rows[slot][0] != order:
            wanted[slot] = (order, slot in rows)
    if drained.orders.floor is not None:
        wanted[None] = (order_of(drained.orders.floor), False)
    new = [[each.slot, order_of(each.precedence), order_of(each.beaten_by), each.time] for each in drained.late]
    lost = new if adds_to_chain(description, LATE_OPERATOR) else [*late, *new]
    return {
        **_staged(client, description, attempt, ORDER_INDEX_OPERATOR, _new_entries(client, description, wanted)),
        **_staged(client, description, attempt, LATE_OPERATOR, lost),
    }


def _new_entries(client: PersistClient, description: BatchDescription, wanted: Entries) -> list[Any]:
    """The index: in full, or for a delta what is new."""
    entries = wanted
    if adds_to_chain(description, ORDER_INDEX_OPERATOR):
        before = _index(client.blob, description.operators[ORDER_INDEX_OPERATOR])
        gone: Entries = {slot: None for slot, entry in before.items() if entry is not None and slot not in wanted}
        entries = {**gone, **{slot: entry for slot, entry in wanted.items() if before.get(slot) != entry}}
    return sorted(entries.items(), key=repr)


def _staged(
    client: PersistClient, description: BatchDescription, attempt: str, operator: str, lines: list[Any]
) -> dict[str, OperatorState]:
    """The operator's state of this batch, in full or as a delta."""
    if not lines:
        return state_of(description, operator, ())
    data = "\n".join(map(json.dumps, lines)).encode()
    key = part_key(description.shard, attempt, operator, 0, "jsonl")
    client.blob.set(key, data)
    artifact = StateArtifact(0, key, len(data), hashlib.sha256(data).hexdigest())
    return state_of(description, operator, (artifact,))


def order_of(found: Precedence) -> Order:
    """The order in what the oracle compares."""
    parts: Sequence[Any] = found[0][0][1]
    return tuple(part[1] if len(part) > 1 else None for part in parts)


def _index(blob: Blob, chain: Iterable[StateArtifact]) -> Entries:
    entries: Entries = {}
    for slot, entry in _lines(blob, chain):
        entries[None if slot is None else tuple(slot)] = None if entry is None else (tuple(entry[0]), entry[1])
    return entries


def late_in(blob: Blob, chain: Iterable[StateArtifact]) -> list[Late]:
    """All late records of a chain."""
    return list(_lines(blob, chain))


def _lines(blob: Blob, chain: Iterable[StateArtifact]) -> Iterator[Any]:
    for artifact in chain:
        yield from map(json.loads, load_verified(blob, artifact.key, artifact.sha256).decode().splitlines())


def stored(
    blob: Blob,
    batches: Iterable[tuple[HollowBatch, BatchManifest]],
    chains: Mapping[str, Sequence[StateArtifact]],
) -> tuple[Remembered, int]:
    """The orders that a shard of these batches and this operator state remembers, and its late records."""
    memory = memory_of(rows_of(blob, batches), _index(blob, chains.get(ORDER_INDEX_OPERATOR, ())))
    lines = late_in(blob, chains.get(LATE_OPERATOR, ()))
    late = frozenset((tuple(slot), tuple(order), tuple(beaten_by), time) for slot, order, beaten_by, time in lines)
    orders: dict[Slot, object] = {slot: order_of(seen.precedence) for slot, seen in memory.slots.items()}
    return Remembered(orders, None if memory.floor is None else order_of(memory.floor), late), len(lines)
