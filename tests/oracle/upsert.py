"""Upserts in simple, slow Python: the oracle of Spark's answer (docs/semantics.md, section 4).

    records, stash --settle times--> consolidate per (slot, time) --classify--> for each time, oldest first:
                                                                     expand truncates, pick winners, look each up in
    state (feedback) -------------------------------------------->   the contents just before, emit -1 and +1

`tests.oracle.record` has the records; an `UpsertDiff` is a row of a part. Invariants that a reader may rely on:

1. Everything is a pure function of its arguments; the order of `records`, `stash` and `state` does not matter.
2. `state` and `state + updates` are keyed collections: at every time a slot holds at most one value, with diff 1.
3. Every record read ends in exactly one place; `DrainStats.check` proves it by counting.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal

from persist_core.contents.stats import DrainStats
from persist_core.errors import BadBounds
from persist_core.schema import LATE_TIME, CollectionSchema, Late
from persist_core.time_text import check_time, show_time
from tests.oracle.consolidate import (
    NOT_SENT,
    Err,
    Slot,
    UpsertDiff,
    Value,
    as_of,
    canonical_bytes,
    canonical_key,
    check_collection,
    consolidate,
    same_value,
)
from tests.oracle.record import (
    SKIP,
    TOMBSTONE,
    TRUNCATE,
    Arrival,
    Drained,
    Mark,
    Record,
    Upserted,
    comparable,
    floor_of,
    inheriting,
    is_partial,
)
from tests.oracle.sequence import Cell, Cells, Judged, OrderMemory, Orders, Precedence, higher


def drain_sealed_input(
    records: Iterable[Record],
    stash: Iterable[Record] = (),
    state: Iterable[UpsertDiff] = (),
    *,
    lower: int,
    upper: int | None,
    late: Late = "lift",
    in_time_from: int | None = None,
    as_of_frontier: int | None = None,
    stash_frontier: int | None = None,
    schema: CollectionSchema | None = None,
    orders: OrderMemory | None = None,
    keep_deleted_ms: int | None = None,
) -> Drained:
    """The updates that `records` and `stash` make of `state`, for the batch `[lower, upper)`.

    `late` defines how to handle a record whose time lies before `lower`: it was never consumed and is lifted or made an
    err; or it is redelivered (`persisted`), dropped and counted. From `in_time_from` on (default: `lower`) it is not
    late, and lifted. `as_of_frontier` advances earlier times to it. `stash` may hold what later records beat, and,
    before `stash_frontier` (default: `lower`), what earlier drains have processed (a chain of deltas does); from there
    on it is always lifted. `schema` names the columns for canonical bytes; without it they are numbered.

    With `orders`, what earlier drains have seen (`OrderMemory()` for the first), the batch is drained in `sequence`
    order: the highest order ever seen for a slot wins. Tombstones older than `upper - keep_deleted_ms` are forgotten.

    Raises `BadBounds` for an empty or reversed interval and for a state that reaches into it, `InvariantViolation` for
    a state that is not a keyed collection.
    """
    drain = _Drain(lower, upper, late, floor_of(lower, upper, as_of_frontier), schema, orders, keep_deleted_ms)
    drain.in_time_from = lower if in_time_from is None else in_time_from
    processed = lower if stash_frontier is None else stash_frontier
    committed = list(state)
    if any(update.time >= lower for update in committed):
        newest = max(update.time for update in committed)
        raise BadBounds(
            f"the state has updates up to {show_time(newest)}; expected only times before the batch's lower"
            f" {show_time(lower)}"
        )
    check_collection(committed)
    drain.take((record for record in stash if record.time is None or record.time >= processed), records)
    return drain.run(as_of(committed, lower))


def persistent_upsert(
    upserts: Iterable[Record],
    persisted: Iterable[UpsertDiff] = (),
    *,
    persist_frontier: int,
    input_frontier: int | None,
    as_of_frontier: int = 0,
    stash: Iterable[Record] = (),
) -> Upserted:
    """The contract over redelivered input: upserts before the shard's upper (`persist_frontier`) are already persisted.

    Upserts at or after `input_frontier` (`None`: the input has ended) stay in the stash, with their original times.
    """
    drained = drain_sealed_input(
        upserts,
        stash,
        persisted,
        lower=persist_frontier,
        upper=input_frontier,
        late="persisted",
        as_of_frontier=as_of_frontier,
    )
    errs = tuple(update for update in drained.updates if isinstance(update.value, Err))
    oks = tuple(update for update in drained.updates if not isinstance(update.value, Err))
    return Upserted(oks, errs, drained.stash, drained.stats)


class _Drain:
    """One drain: `take` settles, consolidates and classifies; `run` walks the times and emits."""

    def __init__(
        self,
        lower: int,
        upper: int | None,
        late: Late,
        floor: int,
        schema: CollectionSchema | None,
        orders: OrderMemory | None,
        keep_deleted_ms: int | None,
    ) -> None:
        self.lower = self.in_time_from = lower
        self.upper, self.late, self.floor, self.schema = upper, late, floor, schema
        self.orders = None if orders is None else Orders(orders)
        self.keep_deleted_ms, self.counts = keep_deleted_ms, Counter[str]()
        self.final: dict[int, dict[Slot | None, list[Arrival]]] = defaultdict(lambda: defaultdict(list))
        self.pending: dict[tuple[int, Slot | None], list[Arrival]] = defaultdict(list)

    def take(self, stash: Iterable[Record], records: Iterable[Record]) -> None:
        """Settle every record's times; count the unprocessed ones; classify the rest by original time."""
        stashed: dict[tuple[int, Slot | None], list[Arrival]] = defaultdict(list)
        for record in stash:
            arrival = self._settled(record, "lift")  # it came in time
            stashed[arrival.at, record.slot].append(arrival)
        for arrivals in stashed.values():
            for arrival in self._waiting(arrivals):
                self.counts["stash_before"] += 1
                self._classify(arrival)
        persisted: dict[tuple[int, Slot | None], list[Arrival]] = defaultdict(list)
        for record in records:
            self.counts["records_read"] += 1
            arrival = self._settled(record, self.late)
            if record.value is SKIP:
                self.counts["skipped"] += 1
            elif arrival.at < self.lower and self.late == "persisted":
                persisted[arrival.at, record.slot].append(arrival)
            else:
                self._classify(arrival)
        for arrivals in persisted.values():
            self._winner(arrivals)
            self.counts["already_persisted"] += 1

    def run(self, contents: dict[Slot, Value]) -> Drained:
        """Process all final times, oldest first; `contents`: just before `lower`."""
        updates: list[UpsertDiff] = []
        for time in sorted(self.final):
            self._expand_truncate(self.final[time], contents)
            for slot, arrivals in self.final[time].items():
                winner = self._winner(arrivals)
                cells: Cells = ()
                if slot is not None and self.orders is None:
                    winner = self._completed(winner, arrivals, slot, contents)
                elif slot is not None:
                    cells = self._cells(arrivals)
                if not winner.is_expanded and winner.at < self.in_time_from:
                    self.counts["late_times"] += 1
                if winner.record.value is TRUNCATE or slot is None:
                    self.counts["skipped"] += 1
                else:
                    updates += self._applied(winner, slot, contents, cells)
        stash = [arrival.record for arrivals in self.pending.values() for arrival in self._waiting(arrivals)]
        self.counts["duplicates"] += sum(map(len, self.pending.values())) - len(stash)
        for arrivals in self.pending.values():
            self._count_ties(arrivals)
        stats = DrainStats(**self.counts, output_count=len(updates), stashed=len(stash))
        stats.check()
        orders = self._orders_after(contents, stash)
        late = () if self.orders is None else self.orders.late
        return Drained(tuple(consolidate(updates)), tuple(sorted(stash, key=repr)), stats, orders, late)

    def _orders_after(self, contents: dict[Slot, Value], stash: list[Record]) -> OrderMemory | None:
        if self.orders is None:
            return None
        is_kept = self.keep_deleted_ms is None or self.upper is None
        keep_from = None if is_kept else (self.upper or 0) - (self.keep_deleted_ms or 0)
        return self.orders.after(contents, {r.slot for r in stash if r.slot is not None}, keep_from=keep_from)

    def _settled(self, record: Record, late: Late) -> Arrival:
        if record.time is None:
            record = replace(record, time=self.lower if self.upper is None else self.upper - 1)
        at = check_time(record.time)
        is_refusable = not isinstance(record.value, Err) and record.value not in (TRUNCATE, SKIP)
        if at < self.in_time_from and late == "error" and is_refusable:
            record = replace(record, value=self._late_err(record, at))
        return Arrival(record, max(at, self.floor), at)

    def _late_err(self, record: Record, at: int) -> Err:
        value = record.value if isinstance(record.value, tuple) else None
        slot = record.slot
        return Err(
            LATE_TIME,
            slot if isinstance(slot, bytes) else canonical_key(slot or ()),
            self._canonical(value),
            f"time {show_time(at)} lies before {show_time(self.in_time_from)}, which is final",
        )

    def _classify(self, arrival: Arrival) -> None:
        if self.upper is None or arrival.at < self.upper:
            self.final[arrival.time][arrival.record.slot].append(arrival)
        else:
            self.pending[arrival.at, arrival.record.slot].append(arrival)

    def _expand_truncate(self, by_slot: dict[Slot | None, list[Arrival]], contents: dict[Slot, Value]) -> None:
        """Add a tombstone, at the truncate's time and order, for every slot that holds a value just before it.

        Of several truncates at one time the last one has the effect of all, so only it is expanded.
        """
        if not by_slot.get(None):
            return
        truncate = max(by_slot[None], key=self._precedence)
        if self.orders is not None:
            self._expand_floor(truncate, by_slot, contents, self.orders)
            return
        for slot in [*contents, *(slot for slot in by_slot if slot is not None and slot not in contents)]:
            before = [arrival for arrival in by_slot.get(slot, ()) if self._rank(arrival) < self._rank(truncate)]
            newest = max(before, key=self._precedence).record if before else None
            held = contents.get(slot) if newest is None else newest.value
            if held not in (None, TOMBSTONE) and not (isinstance(held, Err) and held.is_unordered):
                self._expand(truncate, by_slot[slot], slot)

    def _expand_floor(
        self,
        truncate: Arrival,
        by_slot: dict[Slot | None, list[Arrival]],
        contents: dict[Slot, Value],
        orders: Orders,
    ) -> None:
        """In `sequence` order: for every slot that holds a value of a lower order, whenever it came."""
        precedence = self._precedence(truncate)
        orders.raise_floor(precedence)
        for slot in contents:
            if orders.is_below(slot, precedence):
                self._expand(truncate, by_slot[slot], slot)

    def _expand(self, truncate: Arrival, arrivals: list[Arrival], slot: Slot) -> None:
        tombstone = replace(truncate.record, slot=slot, value=TOMBSTONE)
        arrivals.append(Arrival(tombstone, truncate.time, truncate.at, is_expanded=True))
        self.counts["truncated"] += 1

    def _winner(self, arrivals: list[Arrival]) -> Arrival:
        """The arrival that survives consolidation; the others are counted."""
        self.counts["duplicates"] += len(arrivals) - 1
        self._count_ties(arrivals)
        return max(arrivals, key=self._precedence)

    def _waiting(self, arrivals: list[Arrival]) -> list[Arrival]:
        """The arrivals of one slot and time that the stash keeps: the winner, and what it may inherit from."""
        kept: list[Arrival] = []
        for arrival in sorted({self._precedence(each): each for each in arrivals}.items(), reverse=True):
            if not kept or self._rank(kept[-1]) != self._rank(arrival[1]):
                kept.append(arrival[1])
            if not is_partial(arrival[1].record.value):
                break
        return kept

    def _completed(self, winner: Arrival, arrivals: list[Arrival], slot: Slot, contents: dict[Slot, Value]) -> Arrival:
        """`winner` with the values that it inherits, from what its slot held and from what it has beaten."""
        held: Value | Mark | None = contents.get(slot)
        for arrival in sorted(arrivals, key=self._precedence):
            value = arrival.record.value
            held = self._whole(inheriting(value, held), slot) if is_partial(value) else value
        assert held is not None
        return replace(winner, record=replace(winner.record, value=held))

    def _whole(self, cells: tuple[Any, ...], slot: Slot) -> Value:
        """The row of these cells, or an err if some are not known."""
        if not is_partial(cells):
            return cells
        assert isinstance(slot, tuple)
        return Err("value", canonical_key(slot), self._canonical(cells), "nothing to keep", cells)

    def _count_ties(self, arrivals: list[Arrival]) -> None:
        for rank in {self._rank(arrival) for arrival in arrivals}:
            tied = {self._precedence(arrival) for arrival in arrivals if self._rank(arrival) == rank}
            self.counts["order_ties"] += len(tied) - 1

    def _rank(self, arrival: Arrival) -> tuple[Any, ...]:
        """The winner within one (slot, time), before canonical bytes: in `sequence` order by the order alone."""
        order, value = comparable(arrival.record.order), arrival.record.value
        if self.orders is None:
            return (arrival.at, order)
        return ((2, order),) if isinstance(value, Err) and value.is_unordered else (order,)

    def _precedence(self, arrival: Arrival) -> Precedence:
        """The rank; if even that is equal the greater bytes, a tombstone being the least."""
        value, rank = arrival.record.value, self._rank(arrival)
        if isinstance(value, Err):
            return (rank, 1, value.payload, value.kind, value.key_bytes or b"")
        return (rank, 1, self._canonical(value)) if isinstance(value, tuple) else (rank, 0)

    def _canonical(self, value: tuple[Any, ...] | None) -> bytes:
        """Canonical bytes of a value; of nulls if there is no value."""
        width = len(self.schema.values) if self.schema else len(value or ())
        return canonical_bytes(value or (None,) * width, self._names("value", width))

    def _names(self, part: Literal["key", "value"], width: int) -> list[str]:
        if self.schema is None:
            return [str(i) for i in range(width)]
        return [column.name for column in (self.schema.key if part == "key" else self.schema.values)]

    def _cells(self, arrivals: list[Arrival]) -> Cells:
        """The facts that arrivals of one slot and time say of its columns, if no truncate takes them."""
        assert self.orders is not None
        found: Cells = ()
        for arrival in arrivals:
            precedence, value = self._precedence(arrival), arrival.record.value
            if self.orders.is_above_floor(precedence) or arrival.is_expanded:
                sent = value if isinstance(value, tuple) else None
                width = len(self.schema.values) if self.schema else len(sent or ())
                (order,) = precedence[0]
                cells = [Cell() if sent and sent[i] is NOT_SENT else Cell(order) for i in range(width)]
                if sent:
                    cells = [replace(cell, value=v) for cell, v in zip(cells, sent, strict=True)]
                found = higher(found, tuple(cells))
        return found

    def _applied(self, winner: Arrival, slot: Slot, contents: dict[Slot, Value], cells: Cells) -> list[UpsertDiff]:
        """The updates that `winner` makes of `contents`, which then are just after it.

        `cells`: in `sequence` order, what all that came with it says of the columns.
        """
        value, before = None if isinstance(winner.record.value, Mark) else winner.record.value, contents.get(slot)
        self.counts["eligible"] += 1
        self.counts["result_count"] += before is not None
        is_beaten = False
        if self.orders is not None:
            precedence, is_expanded = self._precedence(winner), winner.is_expanded
            judged = self.orders.judge(slot, precedence, winner.time, is_expanded=is_expanded)
            if judged is not Judged.NEWEST and not is_expanded:
                self.counts[judged.value] += 1
            is_beaten = judged in (Judged.LATE, Judged.TIED)
            if is_beaten:
                row = self.orders.give(slot, cells)
                value = before if row is None else self._whole(row, slot)
            else:
                sent = value if isinstance(value, tuple) else None
                row = self.orders.saw(slot, precedence, winner.time, sent, cells)
                value = value if row is None else self._whole(row, slot)
        self.counts["errors"] += isinstance(value, Err) and not is_beaten
        if same_value(before, value):
            return []
        updates = []
        if before is not None:
            updates.append(UpsertDiff(slot, before, winner.time, -1))
            del contents[slot]
        if value is not None:
            updates.append(UpsertDiff(slot, value, winner.time, 1))
            contents[slot] = value
        self.counts["inserts" if before is None else "deletes" if value is None else "updates"] += 1
        return updates


__all__ = [
    "NOT_SENT",
    "SKIP",
    "TOMBSTONE",
    "TRUNCATE",
    "Drained",
    "Err",
    "Mark",
    "Record",
    "Slot",
    "UpsertDiff",
    "Upserted",
    "Value",
    "as_of",
    "canonical_bytes",
    "check_collection",
    "consolidate",
    "drain_sealed_input",
    "persistent_upsert",
    "same_value",
]
