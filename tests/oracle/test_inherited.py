"""Values that were not sent, in the oracle, on random histories, against a definition of their own.

The equation, for each order: as of `t`, a slot holds what its newest record carries. A value that the record does not
carry comes from the newest record before it which carries it, unless a delete, a truncate or an err lies between: then,
and without such a record, the slot is an err that shows what is known.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.oracle import test_sequence, test_upsert
from tests.oracle.consolidate import (
    Err,
    Slot,
    UpsertDiff,
    canonical_bytes,
    canonical_key,
    check_collection,
    consolidate,
)
from tests.oracle.strategies import KEYS, SCHEMA, History, SealedInput, histories, redelivered
from tests.oracle.test_upsert import contents, shown
from tests.oracle.upsert import NOT_SENT, SKIP, TOMBSTONE, TRUNCATE, Mark, Record, Value, as_of, drain_sealed_input

A = KEYS[0]
Rank = Callable[[Record], Any]
NAMES = [column.name for column in SCHEMA.values]


def least(record: Record) -> bytes:
    value = record.value
    if isinstance(value, Mark):
        return b""
    return b"\x00" + (value.payload if isinstance(value, Err) else canonical_bytes(value, NAMES))


def expected(acting: Iterable[Record], rank: Rank) -> dict[Slot, Any]:
    """The equation, of all records that act. `rank` says which of two is newer."""
    records = sorted((r for r in acting if r.value is not SKIP), key=lambda r: (rank(r), least(r)))
    truncate = max((rank(r) for r in records if r.value is TRUNCATE), default=None)
    found: dict[Slot, Any] = {}
    for slot in {record.slot for record in records if record.slot is not None}:
        own = [r for r in records if r.slot == slot and (truncate is None or rank(r) >= truncate)]
        value: Any = None
        for record in own:
            if not isinstance(record.value, tuple):
                value = None if isinstance(record.value, Mark) else record.value
                continue
            before = value if isinstance(value, tuple) else (NOT_SENT,) * len(NAMES)
            value = tuple(b if v is NOT_SENT else v for v, b in zip(record.value, before, strict=True))
        if isinstance(value, tuple) and NOT_SENT in value:
            assert isinstance(slot, tuple)
            value = Err("value", canonical_key(slot), canonical_bytes(value, NAMES))
        if value is not None:
            found[slot] = shown(value)
    return found


def in_log(history: History, time: int) -> dict[Slot, Any]:
    """The equation in `log` order: the time at which a record acts, its own time, then its order."""
    acting = {}
    for batch in history.batches:
        given_time = batch.lower if batch.upper is None else batch.upper - 1
        for record in batch.records:
            at = given_time if record.time is None else record.time
            if max(at, batch.lower) <= time:
                acting[id(record)] = (record, (max(at, batch.lower), at, record.order))
    return expected([record for record, _ in acting.values()], lambda record: acting[id(record)][1])


def known(updates: Iterable[UpsertDiff]) -> list[Any]:
    return [(u.slot, shown(u.value), u.time, u.diff) for u in updates]


@given(histories(ties=True, partial=True))
def test_log_order_obeys_the_equation_at_every_time(history: History) -> None:
    updates, _ = test_upsert.replay(history.batches)
    check_collection(updates)
    assert len(consolidate(updates)) == len(updates), "nothing is written that cancels out"
    upper = history.batches[-1].upper
    for time in test_upsert.times_of(history):
        if upper is None or time < upper:
            assert contents(updates, time) == in_log(history, time)


@given(st.data())
def test_in_log_order_permuted_and_repeated_input_gives_the_same(data: st.DataObject) -> None:
    history = data.draw(histories(ties=True, partial=True))
    again = [dataclasses.replace(b, records=tuple(data.draw(redelivered(b.records)))) for b in history.batches]
    updates, drains = test_upsert.replay(history.batches)
    updates_again, drains_again = test_upsert.replay(again)
    assert known(updates_again) == known(updates)
    for once, twice in zip(drains, drains_again, strict=True):
        assert {repr(r) for r in twice.stash} == {repr(r) for r in once.stash}
        assert (twice.stats.order_ties, twice.stats.eligible) == (once.stats.order_ties, once.stats.eligible)


@given(st.data())
def test_log_order_does_not_depend_on_batches(data: st.DataObject) -> None:
    history = data.draw(histories(ties=True, may_close=False, partial=True))
    end = history.batches[-1].upper
    assert end is not None
    records = [record for record in history.records if record.time is not None and record.time < end]
    cuts = sorted({0, end, *data.draw(st.lists(st.integers(1, end), max_size=4))})
    batches: dict[int, list[Record]] = {lower: [] for lower, _ in pairwise(cuts)}
    for record in records:
        batches[data.draw(st.sampled_from([lower for lower in batches if lower <= (record.time or 0)]))].append(record)
    cut, _ = test_upsert.replay([SealedInput(lower, upper, tuple(batches[lower])) for lower, upper in pairwise(cuts)])
    whole, _ = test_upsert.replay([SealedInput(0, end, tuple(records))])
    assert known(cut) == known(whole)


@given(histories(ties=True, partial=True))
def test_sequence_order_obeys_the_equation_at_every_time(history: History) -> None:
    updates, _ = test_sequence.replay(history.batches)
    check_collection(updates)
    assert len(consolidate(updates)) == len(updates), "nothing is written that cancels out"
    last = history.batches[-1]
    for time in range((last.lower + 8) if last.upper is None else last.upper):
        acting = test_sequence.acting_at(history, time)
        assert contents(updates, time) == expected(acting, lambda record: record.order)


@given(st.data())
def test_sequence_order_does_not_depend_on_delivery(data: st.DataObject) -> None:
    """Any permutation, batching and redelivery."""
    records = list(data.draw(histories(ties=True, partial=True)).records)
    delivered = data.draw(redelivered(records))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(delivered)), max_size=4)))
    bounds = [0, *cuts, len(delivered)]
    batches = [
        SealedInput(number * 3, None if number == len(bounds) - 2 else number * 3 + 3, tuple(delivered[first:last]))
        for number, (first, last) in enumerate(pairwise(bounds))
    ]
    updates, drains = test_sequence.replay(batches)
    assert not drains[-1].stash
    assert contents(updates, 2**40) == expected(records, lambda record: record.order)


# One case each. A name that is not sent is `None` in the tests above too, so both are tried.


def put(order: int, name: Any, amount: Any = 1, time: int | None = None) -> Record:
    return Record(A, (name, amount, 0.5), time, (order,))


def err(**known_values: str) -> Err:
    payload = canonical_bytes(list(known_values.values()), list(known_values))
    return Err("value", canonical_key(A), payload)


def run(*batches: list[Record]) -> Value | None:
    inputs = [SealedInput(day, day + 1, tuple(records)) for day, records in enumerate(batches)]
    updates, _ = test_sequence.replay(inputs)
    return as_of(updates, len(batches)).get(A)


DELETE = Record(A, TOMBSTONE, None, (3,))
FIRST, PARTIAL = put(1, "sent", 1), put(9, NOT_SENT, 9)


def test_a_value_that_was_not_sent_is_the_one_before() -> None:
    assert run([FIRST], [PARTIAL]) == run([FIRST, PARTIAL]) == run([PARTIAL], [FIRST]) == ("sent", 9, 0.5)
    assert run([put(1, None)], [PARTIAL]) == (None, 9, 0.5)


def test_a_late_record_between_gives_its_value() -> None:
    late = put(5, "late", 5)
    assert run([FIRST], [PARTIAL], [late]) == ("late", 9, 0.5)
    assert run([late], [PARTIAL], [FIRST]) == ("late", 9, 0.5)


def test_a_late_delete_between_leaves_nothing_to_keep() -> None:
    nothing = err(amount="9", rate="0.5")
    assert run([FIRST], [PARTIAL], [DELETE]) == run([FIRST, DELETE, PARTIAL]) == run([PARTIAL], [DELETE]) == nothing
    assert run([FIRST], [PARTIAL], [DELETE], [put(4, "after")]) == ("after", 9, 0.5)
    assert run([FIRST], [PARTIAL], [Record(None, TRUNCATE, None, (3,))]) == nothing


def test_a_value_before_the_delete_is_not_kept() -> None:
    assert run([PARTIAL], [DELETE], [put(2, "before")]) == err(amount="9", rate="0.5")


def test_the_next_whole_record_heals() -> None:
    assert run([PARTIAL], [put(10, "whole", 1)]) == ("whole", 1, 0.5)


def test_what_two_records_carry_together_is_enough() -> None:
    assert run([put(1, "a", NOT_SENT)], [put(2, NOT_SENT, 2)]) == ("a", 2, 0.5)


def test_an_equal_value_of_a_higher_order_is_remembered() -> None:
    """The name came from 5 then, so the late 3 no longer counts."""
    assert run([FIRST], [PARTIAL], [put(5, "sent")], [put(3, "late")]) == ("sent", 9, 0.5)


def test_the_stash_keeps_what_its_newest_record_may_inherit() -> None:
    waiting = [put(1, "a", 1, time=5), put(2, NOT_SENT, 2, time=5), put(3, NOT_SENT, NOT_SENT, time=5)]
    beaten = put(0, "old", 0, time=5)
    drained = drain_sealed_input([*waiting, waiting[1], beaten], lower=0, upper=3)
    assert {record.order for record in drained.stash} == {(1,), (2,), (3,)}
    assert (drained.stats.stashed, drained.stats.duplicates) == (3, 2)
    later = drain_sealed_input([], drained.stash, lower=3, upper=9)
    assert later.updates == (UpsertDiff(A, ("a", 2, 0.5), 5, 1),)
