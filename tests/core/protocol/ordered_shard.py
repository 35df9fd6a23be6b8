"""A collection in `sequence` order whose write stage is the plain-Python oracle: orders lie with the rows, in the order
index and among the late records, as the Spark job puts them there. The index's files have a format of their own."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from persist_core.contents.batch import LATE_OPERATOR, ORDER_INDEX_OPERATOR, STASH_OPERATOR, BatchDescription
from persist_core.contents.operator_state import OperatorState, StateArtifact
from persist_core.contents.parts import late_schema
from persist_core.contents.schema_versions import SchemaVersions
from persist_core.keys import part_key
from persist_core.location.open import OpenLocation
from persist_core.protocol import stages
from persist_core.schema import (
    ACTED,
    BAD_KEY,
    BEATEN_BY,
    MISSING_ORDER,
    OP,
    ORDER,
    TIME,
    CollectionSchema,
    Column,
    order_type,
)
from tests.core.protocol import log_source
from tests.core.protocol.restored_shard import SHARD, Collection, as_tables, from_errs, from_oks
from tests.core.world import all_updates
from tests.oracle.consolidate import Err, Slot, UpsertDiff, Value, canonical_bytes
from tests.oracle.sequence import OrderMemory, Precedence, Seen
from tests.oracle.strategies import SCHEMA
from tests.oracle.upsert import Record, drain_sealed_input

ORDERED = replace(SCHEMA, order=(Column("seq", "bigint"),))
Entries = dict[Slot, Seen | None]


@dataclass(frozen=True)
class Index:
    """Additions of one batch to the order index: entries by slot (`None`: the index knows nothing of it any more)."""

    entries: Entries
    floor: Precedence | None
    forgotten: Precedence | None


class OrderedCollection(Collection):
    """`run` drains in `sequence` order."""

    def __init__(
        self,
        folder: Path,
        location: OpenLocation | None = None,
        shard: str = SHARD,
        keep_deleted: str = "all",
        *,
        is_log: bool = False,
    ) -> None:
        super().__init__(folder, location, shard, is_log=is_log)
        order = {"mode": "sequence", "by": {"seq": "bigint"}, "keep_deleted": keep_deleted}
        config = type(self.config).model_validate({**self.config.model_dump(mode="json"), "order": order})
        self.config = log_source.of_log(config) if is_log else config
        self.indexes: dict[bytes, Index] = {}

    def beside(self, shard: str) -> OrderedCollection:
        kept = self.config.order.keep_deleted or "all"
        other = OrderedCollection(self.folder, self.location, shard, kept, is_log=self.is_log)
        other.feed, other.stashed, other.indexes = self.feed, self.stashed, self.indexes
        other.client.ids = self.client.ids
        return other

    def write(self, description: BatchDescription) -> str:
        if self.config.order.keep_deleted_ms is None:  # so that nothing is forgotten with time
            staged = stages.write_without_input(self.client, self.config, description)
            if staged is not None:
                return staged
        records = [record for name in self.files_of(description) for record in self.feed[name]]
        stash = [r for artifact in description.operators.get(STASH_OPERATOR, ()) for r in self._stash_of(artifact)]
        before = self.memory(description.operators.get(ORDER_INDEX_OPERATOR, ()))
        drained = drain_sealed_input(
            records,
            stash,
            self.updates(),
            lower=description.lower,
            upper=description.upper,
            stash_frontier=description.stash_frontier,
            in_time_from=description.in_time_from,
            schema=self.schema,
            orders=before,
            keep_deleted_ms=self.config.order.keep_deleted_ms,
        )
        assert drained.orders is not None
        known = set(map(repr, stash)) if description.saves_delta(STASH_OPERATOR) else set()
        attempt = self.client.ids.uuid7()
        kept = tuple(record for record in drained.stash if repr(record) not in known)
        operators = self._stage_stash(description, attempt, kept) if drained.stash else {}
        operators |= self._stage_index(description, attempt, drained.updates, drained.orders)
        operators |= self._stage_late(description, attempt, records, drained.stats.late)
        oks, errs = as_tables(drained.updates)
        rows = {u.slot: u.time for u in sorted(drained.updates, key=lambda each: each.time) if u.diff > 0}
        return self.client.open_writer(self.shard).stage(
            description,
            self.schema,
            attempt,
            _with_orders(self.schema, oks, from_oks(oks), rows, drained.orders),
            _with_orders(self.schema, errs, from_errs(errs), rows, drained.orders),
            operators=operators,
            stats=drained.stats.to_json(),
        )

    def memory(self, chain: Iterable[StateArtifact]) -> OrderMemory:
        """All orders that the shard has seen: of its rows and of the index."""
        entries: Entries = {}
        floor: Precedence | None = None
        forgotten: Precedence | None = None
        for artifact in chain:
            data = self.client.blob.get(artifact.key)
            assert data is not None
            assert hashlib.sha256(data).hexdigest() == artifact.sha256
            index = self.indexes[data]
            entries |= index.entries
            floor, forgotten = index.floor, index.forgotten
        slots = {slot: seen for slot, seen in entries.items() if seen is not None}
        for slot, seen in self.rows().items():
            known = slots.get(slot)
            slots[slot] = seen if known is None else max(known, seen, key=lambda each: each.precedence)
        return OrderMemory(slots, floor, forgotten)

    def rows(self) -> dict[Slot, Seen]:
        """The precedence of the row of each slot that holds a value."""
        state = self.client.ensure_shard(self.shard)
        if state.schema is None:
            return {}
        found: dict[Slot, tuple[int, int, Seen | None]] = {}
        for table, updates in zip(self.stored(), (from_oks, from_errs), strict=True):
            for update, order in zip(updates(table), table[ORDER].to_pylist(), strict=True):
                seen = None
                if update.diff > 0:
                    assert order is not None, f"the row of {update.slot!r} has lost its order"
                    seen = Seen(precedence(tuple(order.values()), update.value), update.time)
                place = (update.time, update.diff)
                if update.slot not in found or found[update.slot][:2] < place:
                    found[update.slot] = (*place, seen)
        return {slot: seen for slot, (_, _, seen) in found.items() if seen is not None}

    def stored(self) -> tuple[pa.Table, pa.Table]:
        """Every update that the shard holds, with its order."""
        return all_updates(self.client.open_reader(self.shard), self.client.state(self.shard))

    def _stage_index(
        self, description: BatchDescription, attempt: str, updates: Iterable[UpsertDiff], after: OrderMemory
    ) -> dict[str, OperatorState]:
        """All that the rows do not say: a delta has what is new."""
        chain = description.operators.get(ORDER_INDEX_OPERATOR, ())
        before = self.memory_of_index(chain)
        rows = {slot: seen.precedence for slot, seen in self.rows().items()}
        for update in sorted(updates, key=lambda each: (each.time, each.diff)):
            rows.pop(update.slot, None)
            if update.diff > 0 and update.slot in after.slots:
                rows[update.slot] = after.slots[update.slot].precedence
        wanted: Entries = {slot: seen for slot, seen in after.slots.items() if rows.get(slot) != seen.precedence}
        index = Index(wanted, after.floor, after.forgotten)
        is_delta = description.saves_delta(ORDER_INDEX_OPERATOR)
        if is_delta:
            gone: Entries = {slot: None for slot in before if slot not in wanted}
            new: Entries = {slot: seen for slot, seen in wanted.items() if before.get(slot) != seen}
            index = replace(index, entries={**gone, **new})
        if not is_delta and not wanted and index.floor is None and index.forgotten is None:
            return {}
        data = repr(index).encode()
        self.indexes[data] = index
        return {ORDER_INDEX_OPERATOR: OperatorState(is_delta, (self._staged(ORDER_INDEX_OPERATOR, attempt, data),))}

    def memory_of_index(self, chain: Iterable[StateArtifact]) -> dict[Slot, Seen]:
        entries: Entries = {}
        for artifact in chain:
            entries |= self.indexes[self.client.blob.get(artifact.key) or b""].entries
        return {slot: seen for slot, seen in entries.items() if seen is not None}

    def _stage_late(
        self, description: BatchDescription, attempt: str, records: list[Record], late: int
    ) -> dict[str, OperatorState]:
        """As many records of the batch as were late: which ones does not matter here."""
        is_delta = description.saves_delta(LATE_OPERATOR)
        lost = [record for record in records if isinstance(record.slot, tuple)][:late]
        if not lost:
            return {LATE_OPERATOR: OperatorState(True, ())} if is_delta else {}
        data = self.client.part_format.encode(late_table(lost, description.lower, self.schema))
        return {LATE_OPERATOR: OperatorState(is_delta, (self._staged(LATE_OPERATOR, attempt, data),))}

    def _staged(self, operator: str, attempt: str, data: bytes) -> StateArtifact:
        key = part_key(self.shard, attempt, operator, 0)
        self.client.blob.set(key, data)
        return StateArtifact(0, key, len(data), hashlib.sha256(data).hexdigest(), schema_version=1)


def late_table(records: Iterable[Record], acted: int, schema: CollectionSchema = ORDERED) -> pa.Table:
    """Late records as the Spark job stores them, each beaten by an order that is higher by one."""
    struct = order_type(schema)
    rows = []
    for record in records:
        assert isinstance(record.slot, tuple)
        order = dict(zip(struct.names, record.order, strict=True))
        rows.append(
            dict(zip(schema.key_names, record.slot, strict=True))
            | {BAD_KEY: None, OP: "u", TIME: record.time, ORDER: order}
            | {BEATEN_BY: {**order, "by0": record.order[0] + 1}, ACTED: acted}
        )
    return pa.Table.from_pylist(rows, schema=late_schema(SchemaVersions().placed(schema)))


def precedence(order: tuple[Any, ...], value: Value) -> Precedence:
    """The oracle's precedence of a row with this order."""
    rank: Precedence = ((1, tuple((0,) if part is None else (1, part) for part in order)),)
    if isinstance(value, Err):
        if value.kind == MISSING_ORDER:
            rank = ((2, *rank),)
        return (rank, 1, value.payload, value.kind, value.key_bytes or b"")
    return (rank, 1, canonical_bytes(value, [column.name for column in ORDERED.values]))


def _with_orders(
    schema: CollectionSchema,
    table: pa.Table,
    updates: Iterable[UpsertDiff],
    newest: Mapping[Slot, int],
    after: OrderMemory,
) -> pa.Table:
    """The rows with their orders: a slot's newest insertion has its record's. Retractions have
    none, and for insertions that were retracted in this very batch it does not matter."""
    struct = order_type(schema)
    orders = []
    for update in updates:
        seen = after.slots.get(update.slot)
        order = None
        if update.diff > 0:
            parts: Precedence = ((1, -1),)
            if seen is not None and newest[update.slot] == update.time:
                (rank,) = seen.precedence[0]
                parts = rank[1][1] if rank[0] == 2 else rank[1]  # of a record without an order
            values = [part[1] if len(part) > 1 else None for part in parts]
            order = dict(zip(struct.names, [*values, *[None] * len(struct)], strict=False))
        orders.append(order)
    return table.append_column(pa.field(ORDER, struct), pa.array(orders, struct))
