"""The orders that a simulated shard in `sequence` order has seen: beside its rows, and in the order index.

    parts, their orders ──┬──> OrderMemory ──the oracle drains──> OrderMemory ──┬──> orders of rows that are inserted
    order index, a chain ─┘                                                     └──> what the rows do not say: the index

An entry of the index, one line of JSON, is `[id, order, has a value]`; without an order the index knows nothing of the
slot. No other value comes with the same order, so a row's own value stands for the one that raised it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa

from persist_core.checkpoint.checkpointer import load_verified
from persist_core.handles.client import PersistClient
from persist_core.oracle.consolidate import Err, Slot, Value, canonical_bytes
from persist_core.oracle.sequence import OrderMemory, Precedence, Seen
from persist_core.oracle.upsert import Drained
from persist_core.schema import DIFF, ENDED, ORDER, POSITION, TIME
from persist_core.shard.batch import (
    ORDER_INDEX_OPERATOR,
    BatchDescription,
    BatchManifest,
    OperatorState,
    StateArtifact,
)
from persist_core.shard.keys import part_key

_NAMES = ["by0", *(column.name for column in POSITION)]  # of the order's fields
Order = tuple[Any, ...]
Rows = dict[Slot, tuple[Order, Value]]  # of each slot that holds a value
Entries = dict[Slot, tuple[Order, bool] | None]


def memory(client: PersistClient, description: BatchDescription, rows: Rows) -> OrderMemory:
    """What the shard, which holds `rows`, has seen before the batch."""
    seen: dict[Slot, Seen] = {}
    for slot, (order, value) in rows.items():
        seen[slot] = Seen(precedence(order, value), 0)
    for slot, entry in _index(client, description).items():
        if entry is not None:
            order, has_value = entry
            raised = Seen(precedence(order, rows[slot][1] if has_value else None), 0)
            seen[slot] = max(raised, seen.get(slot, raised), key=lambda each: each.precedence)
    return OrderMemory(seen)


def precedence(order: Order, value: Value | None) -> Precedence:
    """What the oracle compares."""
    assert not isinstance(value, Err)  # no simulated record is one
    rank = ((1, tuple((0,) if part is None else (1, part) for part in order)),)
    return (rank, 0) if value is None else (rank, 1, canonical_bytes(value, [str(i) for i in range(len(value))]))


def rows_of(client: PersistClient, manifests: Iterable[BatchManifest]) -> Rows:
    """The newest insertion of each slot that has not ended, with its order."""
    newest: dict[Slot, tuple[int, int, Order, Value]] = {}
    for manifest in manifests:
        for part in manifest.parts:
            for slot, time, diff, order, value in _ordered(client.blob.get(part.key) or b""):
                if slot not in newest or newest[slot][:2] < (time, diff):
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
) -> dict[str, OperatorState]:
    """Add its order to each of `cells`, the rows of the batch's updates, and stage what the rows do not say.

    The newest insertion into a slot has the highest order that the slot has seen. Earlier ones of the same batch have
    one that no reader looks at; retractions have none.
    """
    assert drained.orders is not None
    seen = {slot: _order_of(each.precedence) for slot, each in drained.orders.slots.items()}
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
    return _staged(client, description, attempt, wanted)


def _staged(
    client: PersistClient, description: BatchDescription, attempt: str, wanted: Entries
) -> dict[str, OperatorState]:
    """The index: in full, or as a delta what is new."""
    entries, is_delta = wanted, description.saves_delta(ORDER_INDEX_OPERATOR)
    if is_delta:
        before = _index(client, description)
        gone: Entries = {slot: None for slot, entry in before.items() if entry is not None and slot not in wanted}
        entries = {**gone, **{slot: entry for slot, entry in wanted.items() if before.get(slot) != entry}}
    if not entries:
        return {ORDER_INDEX_OPERATOR: OperatorState(True, ())} if is_delta else {}
    data = "\n".join(json.dumps([slot, entry]) for slot, entry in sorted(entries.items())).encode()
    key = part_key(description.shard, attempt, ORDER_INDEX_OPERATOR, 0, "jsonl")
    client.blob.set(key, data)
    artifact = StateArtifact(0, key, len(data), hashlib.sha256(data).hexdigest())
    return {ORDER_INDEX_OPERATOR: OperatorState(is_delta, (artifact,))}


def _order_of(found: Precedence) -> Order:
    parts: Sequence[Any] = found[0][0][1]
    return tuple(part[1] if len(part) > 1 else None for part in parts)


def _index(client: PersistClient, description: BatchDescription) -> Entries:
    entries: Entries = {}
    for artifact in description.operators.get(ORDER_INDEX_OPERATOR, ()):
        data = load_verified(client.blob, artifact.key, artifact.sha256)
        for slot, entry in map(json.loads, data.decode().splitlines()):
            entries[tuple(slot)] = None if entry is None else (tuple(entry[0]), entry[1])
    return entries
