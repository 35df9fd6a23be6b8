"""`sequence` order in the oracle, on random histories, against a definition that fits into one line.

The equation: as of `t`, a slot holds the value of the greatest of its records and of all truncates, by order, among
the ones that act at or before `t`. So the contents at the end do not depend on when a record arrives.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from persist_core.contents.stats import DrainStats
from persist_core.schema import MISSING_ORDER
from tests.oracle.sequence import OrderMemory
from tests.oracle.strategies import KEYS, SCHEMA, History, SealedInput, histories, redelivered
from tests.oracle.test_upsert import bytes_of, contents, shown
from tests.oracle.upsert import (
    SKIP,
    TOMBSTONE,
    TRUNCATE,
    Drained,
    Err,
    Mark,
    Record,
    Slot,
    UpsertDiff,
    as_of,
    check_collection,
    consolidate,
    drain_sealed_input,
)

A, B = KEYS[0], KEYS[1]
OLD, NEW, NEWER = (("old", 1, 0.5), ("new", 2, 0.5), ("newer", 3, 0.5))


def replay(
    history: Iterable[SealedInput], *, keep_deleted_ms: int | None = None
) -> tuple[list[UpsertDiff], list[Drained]]:
    """Drain batch after batch in `sequence` order, each on what the ones before it have left."""
    state: list[UpsertDiff] = []
    stash: tuple[Record, ...] = ()
    orders: OrderMemory | None = OrderMemory()
    drains = []
    for batch in history:
        drained = drain_sealed_input(
            batch.records,
            stash,
            state,
            lower=batch.lower,
            upper=batch.upper,
            schema=SCHEMA,
            orders=orders,
            keep_deleted_ms=keep_deleted_ms,
        )
        state, stash, orders = [*state, *drained.updates], drained.stash, drained.orders
        drains.append(drained)
    return state, drains


def precedence(record: Record) -> tuple[Any, ...]:
    if isinstance(record.value, Mark):
        return (record.order, 0)
    kind = record.value.kind if isinstance(record.value, Err) else ""
    return (record.order, 1, bytes_of(record.value), kind)


def newest(acting: Iterable[Record]) -> dict[Slot, Any]:
    """The equation, of all records that act."""
    best: dict[Slot, Record] = {}
    floor: tuple[Any, ...] = ((-1,), 0)
    for record in acting:
        if record.value is TRUNCATE:
            floor = max(floor, precedence(record))
        elif record.value is not SKIP and record.slot is not None:
            known = best.get(record.slot)
            if known is None or precedence(record) > precedence(known):
                best[record.slot] = record
    return {
        slot: shown(record.value)
        for slot, record in best.items()
        if not isinstance(record.value, Mark) and precedence(record) > floor
    }


def acting_at(history: History, time: int) -> list[Record]:
    found = []
    for batch in history.batches:
        given_time = batch.lower if batch.upper is None else batch.upper - 1
        for record in batch.records:
            if max(given_time if record.time is None else record.time, batch.lower) <= time:
                found.append(record)
    return found


@given(histories(ties=True))
def test_the_contents_at_every_time_are_those_of_the_equation(history: History) -> None:
    updates, drains = replay(history.batches)
    check_collection(updates)
    assert len(consolidate(updates)) == len(updates), "nothing is written that cancels out"
    last = history.batches[-1]
    for time in range((last.lower + 8) if last.upper is None else last.upper):
        assert contents(updates, time) == newest(acting_at(history, time))
    assert sum(drained.stats.late_beyond_memory for drained in drains) == 0


@given(st.data())
def test_any_delivery_ends_in_the_same_contents(data: st.DataObject) -> None:
    """Records keep their own times, so that one may arrive long after or long before its time."""
    records = list(data.draw(histories(ties=True)).records)
    delivered = data.draw(redelivered(records))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(delivered)), max_size=4)))
    bounds = [0, *cuts, len(delivered)]
    batches = [
        SealedInput(number * 3, None if number == len(bounds) - 2 else number * 3 + 3, tuple(delivered[first:last]))
        for number, (first, last) in enumerate(pairwise(bounds))
    ]
    updates, drains = replay(batches)
    assert not drains[-1].stash
    assert contents(updates, 2**40) == newest(records)


@given(histories(ties=True), st.integers(0, 6))
def test_forgetting_matters_only_to_counted_records(history: History, keep_deleted_ms: int) -> None:
    kept, _ = replay(history.batches)
    updates, drains = replay(history.batches, keep_deleted_ms=keep_deleted_ms)
    if not any(drained.stats.late_beyond_memory for drained in drains):
        assert consolidate(updates) == consolidate(kept)


def run(*batches: list[Record], keep_deleted_ms: int | None = None) -> tuple[dict[Slot, Any], list[DrainStats]]:
    """One day a batch; the contents at the end and the counts of each batch."""
    inputs = [SealedInput(day, day + 1, tuple(records)) for day, records in enumerate(batches)]
    updates, drains = replay(inputs, keep_deleted_ms=keep_deleted_ms)
    return dict(as_of(updates, len(batches))), [drained.stats for drained in drains]


def put(order: int, value: Any = OLD, slot: Slot = A, time: int | None = None) -> Record:
    return Record(slot, value, time, (order,))


def test_a_late_update_does_not_bring_back_a_deleted_row() -> None:
    found, stats = run([put(1)], [put(5, TOMBSTONE)], [put(3, NEW)])
    assert (found, stats[-1].late, stats[-1].output_count) == ({}, 1, 0)


def test_a_late_delete_does_not_remove_a_newer_row() -> None:
    found, stats = run([put(5)], [put(3, TOMBSTONE)])
    assert (found, stats[-1].late) == ({A: OLD}, 1)


def test_a_tombstone_of_a_key_never_seen_raises_its_order() -> None:
    found, stats = run([put(5, TOMBSTONE)], [put(3)])
    assert (found, stats[-1].late) == ({}, 1)


def test_an_update_that_changes_nothing_raises_the_order() -> None:
    found, stats = run([put(1, OLD)], [put(7, OLD)], [put(5, NEW)])
    assert (found, [each.output_count for each in stats], stats[-1].late) == ({A: OLD}, [1, 0, 0], 1)


def test_a_truncate_is_a_floor_for_keys_that_it_never_saw() -> None:
    truncate = Record(None, TRUNCATE, None, (5,))
    found, stats = run(
        [put(1), put(9, slot=B)], [truncate], [put(4, NEW), put(3, NEW, slot=("eu", 2))], [put(6, NEWER)]
    )
    assert found == {A: NEWER, B: OLD}
    assert [each.late for each in stats] == [0, 0, 2, 0]
    assert stats[1].truncated == 1


def test_a_late_truncate_leaves_newer_rows() -> None:
    found, _ = run([put(9)], [put(1, slot=B)], [Record(None, TRUNCATE, None, (5,))])
    assert found == {A: OLD}


def test_the_same_record_again_is_not_late() -> None:
    found, stats = run([put(5)], [put(5)], [put(6, TOMBSTONE)], [put(6, TOMBSTONE)])
    assert (found, [each.late + each.order_ties for each in stats]) == ({}, [0, 0, 0, 0])


def test_of_equal_orders_the_greater_bytes_win() -> None:
    for records in ([put(5, OLD), put(5, NEW)], [put(5, NEW), put(5, OLD)]):
        found, stats = run(*[[record] for record in records])
        assert found == {A: max(OLD, NEW, key=bytes_of)}
        assert sum(each.order_ties for each in stats) == (records[0].value == max(OLD, NEW, key=bytes_of))


def test_a_late_winner_is_lifted_and_counted() -> None:
    found, stats = run([put(1)], [], [put(5, NEW, time=0)])
    assert (found, stats[-1].late_times, stats[-1].late) == ({A: NEW}, 1, 0)


def test_a_forgotten_tombstone_is_beyond_memory() -> None:
    found, stats = run([put(1), put(2, TOMBSTONE, B)], [put(5, TOMBSTONE)], [], [], [put(3, NEW)], keep_deleted_ms=1)
    assert (found, stats[-1].late, stats[-1].late_beyond_memory) == ({A: NEW}, 0, 1)
    found, stats = run([put(5, TOMBSTONE)], [], [put(7, NEW)], keep_deleted_ms=1)
    assert (found, stats[-1].late_beyond_memory) == ({A: NEW}, 0)


def test_the_order_of_a_living_row_is_never_forgotten() -> None:
    found, stats = run([put(5)], [], [], [put(3, NEW)], keep_deleted_ms=0)
    assert (found, stats[-1].late, stats[-1].late_beyond_memory) == ({A: OLD}, 1, 0)


def test_a_tombstone_lives_while_its_key_is_stashed() -> None:
    waiting = put(3, NEW, time=4)
    found, stats = run([put(5, TOMBSTONE), waiting], [], [], [], [], keep_deleted_ms=0)
    assert (found, stats[-1].late, stats[-1].late_beyond_memory) == ({}, 1, 0)


def test_a_record_without_an_order_is_never_beaten() -> None:
    unordered = Record(b"place", Err(MISSING_ORDER, b"place", b"raw"), None, (None,))
    truncate = Record(None, TRUNCATE, None, (5,))
    for batches in ([[unordered], [truncate]], [[truncate], [unordered]], [[truncate, unordered]]):
        found, stats = run(*batches)
        assert list(found) == [b"place"]
        assert sum(each.late + each.truncated for each in stats) == 0


def test_memory_keeps_rows_that_the_floor_does_not_cover() -> None:
    truncate = Record(None, TRUNCATE, None, (5,))
    _, drains = replay([SealedInput(0, 1, (put(1), put(2, TOMBSTONE, B))), SealedInput(1, 2, (truncate, put(9, NEW)))])
    after = drains[-1].orders
    assert after is not None
    assert set(after.slots) == {A}
    assert dataclasses.replace(after, slots={}) == OrderMemory(floor=after.floor)
