"""The upsert oracle against a definition that fits into one line, on random histories.

The equation: as of `t`, a slot holds the value of the greatest of its records and of all truncates, by (time at which
it acts, original time, order), among the ones that act at or before `t`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persist_core.contents.stats import DrainStats
from persist_core.errors import BadBounds, InvalidTime, InvariantViolation
from persist_core.schema import Late
from tests.oracle.strategies import (
    KEYS,
    SCHEMA,
    History,
    SealedInput,
    histories,
    redelivered,
)
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
    Value,
    as_of,
    canonical_bytes,
    check_collection,
    consolidate,
    drain_sealed_input,
    persistent_upsert,
    same_value,
)


def replay(history: Iterable[SealedInput], late: Late = "lift") -> tuple[list[UpsertDiff], list[Drained]]:
    """Drain batch after batch, each on what the ones before it have left."""
    state: list[UpsertDiff] = []
    stash: tuple[Record, ...] = ()
    drains = []
    for batch in history:
        drained = drain_sealed_input(
            batch.records, stash, state, lower=batch.lower, upper=batch.upper, late=late, schema=SCHEMA
        )
        state, stash = [*state, *drained.updates], drained.stash
        drains.append(drained)
    return state, drains


def shown(value: Value | None) -> Any:
    """A value as plain data in which NaN equals itself."""
    if value is None or isinstance(value, Err):
        return value
    return canonical_bytes(value, [str(i) for i in range(len(value))])


def contents(updates: Iterable[UpsertDiff], time: int) -> dict[Slot, Any]:
    return {slot: shown(value) for slot, value in as_of(updates, time).items()}


def equation(history: History, time: int) -> dict[Slot, Any]:
    """The contents as of `time`, straight from the definition in this module's first lines."""
    best: dict[Slot, tuple[Any, Record]] = {}
    truncate: Any = (-1,)
    for batch in history.batches:
        for record in batch.records:
            given_time = batch.lower if batch.upper is None else batch.upper - 1
            at = given_time if record.time is None else record.time
            acts = max(at, batch.lower)
            if record.value is SKIP or acts > time:
                continue
            if record.value is TRUNCATE:
                truncate = max(truncate, (acts, at, record.order))
            elif record.slot is not None:
                least = b"" if record.value is TOMBSTONE else b"\x00" + bytes_of(record.value)
                rank = (acts, at, record.order, least)
                if record.slot not in best or rank > best[record.slot][0]:
                    best[record.slot] = (rank, record)
    return {
        slot: shown(record.value)
        for slot, (rank, record) in best.items()
        if not isinstance(record.value, Mark) and rank[:3] > truncate
    }


def bytes_of(value: Any) -> bytes:
    if isinstance(value, Err):
        return value.payload
    return canonical_bytes(value, [column.name for column in SCHEMA.values])


def times_of(history: History) -> range:
    last = history.batches[-1]
    return range((last.lower if last.upper is None else last.upper) + 8)


@given(histories(ties=True))
def test_the_contents_at_every_time_are_those_of_the_equation(history: History) -> None:
    updates, drains = replay(history.batches)
    upper = history.batches[-1].upper
    for time in times_of(history):
        if upper is None or time < upper:
            assert contents(updates, time) == equation(history, time)
    assert upper is not None or not drains[-1].stash


@given(histories(ties=True))
def test_every_batch_keeps_bounds_and_invariants(history: History) -> None:
    updates, drains = replay(history.batches)
    check_collection(updates)
    assert len(consolidate(updates)) == len(updates), "nothing is written that cancels out"
    for batch, drained in zip(history.batches, drains, strict=True):
        for update in drained.updates:
            assert batch.lower <= update.time
            assert batch.upper is None or update.time < batch.upper
        for record in drained.stash:
            assert record.time is not None
            assert batch.upper is not None
            assert record.time >= batch.upper


@given(st.data())
def test_permuted_and_repeated_input_gives_the_same(data: st.DataObject) -> None:
    history = data.draw(histories(ties=True))
    again = [dataclasses.replace(b, records=tuple(data.draw(redelivered(b.records)))) for b in history.batches]
    late: Late = data.draw(st.sampled_from(("lift", "error")))
    updates, drains = replay(history.batches, late)
    updates_again, drains_again = replay(again, late)
    assert [_known(u) for u in updates_again] == [_known(u) for u in updates]
    for once, twice in zip(drains, drains_again, strict=True):
        assert [_known_record(r) for r in twice.stash] == [_known_record(r) for r in once.stash]
        assert twice.stats.order_ties == once.stats.order_ties
        assert twice.stats.eligible == once.stats.eligible


def _known(update: UpsertDiff) -> Any:
    return (update.slot, shown(update.value), update.time, update.diff)


def _known_record(record: Record) -> Any:
    value = shown(record.value) if isinstance(record.value, tuple) else record.value
    return (record.slot, value, record.time, record.order)


@given(st.data())
def test_batching_does_not_matter_for_records_that_come_in_time(data: st.DataObject) -> None:
    """However the times are cut into batches, and however early a record is read, the updates are the same."""
    history = data.draw(histories(ties=True, may_close=False))
    end = history.batches[-1].upper
    assert end is not None
    records = [record for record in history.records if record.time is not None and record.time < end]
    cuts = sorted({0, end, *data.draw(st.lists(st.integers(1, end), max_size=4))})
    bounds = list(pairwise(cuts))
    batches: dict[int, list[Record]] = {lower: [] for lower, _ in bounds}
    for record in records:
        in_time = [lower for lower, _ in bounds if record.time is not None and lower <= record.time]
        batches[data.draw(st.sampled_from(in_time))].append(record)
    cut, _ = replay([SealedInput(lower, upper, tuple(batches[lower])) for lower, upper in bounds])
    whole, _ = replay([SealedInput(0, end, tuple(records))])
    assert [_known(u) for u in cut] == [_known(u) for u in whole]


@given(histories(ties=True, may_close=False))
def test_redelivering_everything_in_every_run_gives_the_same(history: History) -> None:
    """The contract with its feedback: what is persisted is dropped and counted, what is not yet final waits."""
    end = history.batches[-1].upper
    assert end is not None
    records = [record for record in history.records if record.time is not None]
    whole, _ = replay([SealedInput(0, end, tuple(records))])
    persisted: list[UpsertDiff] = []
    for batch in history.batches:
        made = persistent_upsert(records, persisted, persist_frontier=batch.lower, input_frontier=batch.upper)
        assert not any(isinstance(update.value, Err) for update in made.oks)
        assert all(isinstance(update.value, Err) for update in made.errs)
        live = [record for record in records if record.value is not SKIP]
        before = {(record.slot, record.time) for record in live if (record.time or 0) < batch.lower}
        assert made.stats.already_persisted == len(before)
        persisted += [*made.oks, *made.errs]
    assert [_known(u) for u in consolidate(persisted)] == [_known(u) for u in consolidate(whole)]


@given(st.data())
def test_as_of_changes_nothing_at_or_after_it(data: st.DataObject) -> None:
    history = data.draw(histories(ties=True))
    state, drains = replay(history.batches[:-1])
    last = history.batches[-1]
    stash = drains[-1].stash if drains else ()
    high = last.lower + 6 if last.upper is None else last.upper - 1
    frontier = data.draw(st.integers(0, high))

    def drain(as_of_frontier: int | None) -> Drained:
        return drain_sealed_input(
            last.records,
            stash,
            state,
            lower=last.lower,
            upper=last.upper,
            as_of_frontier=as_of_frontier,
            schema=SCHEMA,
        )

    plain, advanced = drain(None), drain(frontier)
    assert all(update.time >= frontier for update in advanced.updates)
    assert [_known_record(r) for r in advanced.stash] == [_known_record(r) for r in plain.stash]
    for time in range(max(frontier, last.lower), high + 8):
        assert contents([*state, *advanced.updates], time) == contents([*state, *plain.updates], time)


@given(histories(ties=True), st.sampled_from(("lift", "error")))
def test_every_record_ends_in_exactly_one_place(history: History, late: Late) -> None:
    _, drains = replay(history.batches, late)
    total = DrainStats(
        **{f.name: sum(getattr(d.stats, f.name) for d in drains) for f in dataclasses.fields(DrainStats)}
    )
    assert total.records_read == len(history.records)
    assert total.skipped >= sum(record.value is SKIP for record in history.records)
    stashed = [0, *(drained.stats.stashed for drained in drains)]
    assert [drained.stats.stash_before for drained in drains] == stashed[:-1]
    for drained in drains:
        drained.stats.check()
        assert drained.stats.output_count == len(drained.updates)
        assert DrainStats.from_json(drained.stats.to_json()) == drained.stats


@given(histories(errors=False, truncates=False, strays=False))
def test_the_flags_leave_things_out(history: History) -> None:
    updates, drains = replay(history.batches)
    assert not any(isinstance(update.value, Err) for update in updates)
    for drained in drains:
        stats = drained.stats
        assert (stats.errors, stats.late_times, stats.stashed, stats.truncated, stats.order_ties) == (0, 0, 0, 0, 0)


@given(histories(strays=False, may_close=False), st.integers(0, 3))
def test_an_err_is_healed_by_the_next_good_record(history: History, which: int) -> None:
    updates, _ = replay(history.batches)
    upper = history.batches[-1].upper
    assert upper is not None
    slot = KEYS[which]
    broken = Record(slot, Err("value", b"k", b"raw"), upper, (9, "z", 0, 0))
    good = Record(slot, ("a", 1, None), upper + 1, (9, "z", 0, 1))
    drained = drain_sealed_input([broken, good], (), updates, lower=upper, upper=upper + 2)
    state = [*updates, *drained.updates]
    assert as_of(state, upper)[slot] == broken.value
    assert contents(state, upper + 1)[slot] == shown(("a", 1, None))


# A chain of deltas, as checkpoints keep it


def test_a_stash_chain_may_hold_processed_records() -> None:
    beaten = Record((1,), ("old",), 12, (1,))
    winner = Record((1,), ("new",), 12, (2,))
    processed = Record((1,), ("done",), 5, (9,))
    drained = drain_sealed_input([], [beaten, processed, winner, beaten, winner], lower=10, upper=20)
    assert drained.updates == (UpsertDiff((1,), ("new",), 12, 1),)
    assert drained.stats.stash_before == 1
    assert (drained.stats.duplicates, drained.stats.order_ties) == (0, 0)


@pytest.mark.parametrize("late", ["lift", "error"])
def test_restored_stash_records_are_lifted_and_no_errs(late: Late) -> None:
    waiting = Record((1,), ("back",), 12, (1,))
    processed = Record((2,), ("done",), 5, (9,))
    drained = drain_sealed_input([], [waiting, processed], lower=31, upper=40, late=late, stash_frontier=10)
    assert drained.updates == (UpsertDiff((1,), ("back",), 31, 1),)
    assert (drained.stats.stash_before, drained.stats.late_times, drained.stats.errors) == (1, 1, 0)


# Times


def test_a_missing_time_is_the_batchs_last_or_first() -> None:
    record = Record((1,), ("x",), None, (1,))
    assert drain_sealed_input([record], lower=3, upper=9).updates[0].time == 8
    assert drain_sealed_input([record], lower=3, upper=None).updates[0].time == 3


def test_wrong_times_are_refused() -> None:
    with pytest.raises(InvalidTime):
        drain_sealed_input([Record((1,), ("x",), -1, (1,))], lower=0, upper=9)
    with pytest.raises(InvalidTime):
        drain_sealed_input([], lower=0, upper=2**63)
    with pytest.raises(BadBounds, match="less than its upper"):
        drain_sealed_input([], lower=9, upper=9)


def test_null_orders_come_first() -> None:
    records = [Record((1,), (name,), 1, (order, 0)) for name, order in (("none", None), ("zero", 0))]
    drained = drain_sealed_input(records, lower=0, upper=9)
    assert [update.value for update in drained.updates] == [("zero",)]


# Values


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        ('ü\n"', '"ü\\n\\""'),
        (True, '"true"'),
        (7, '"7"'),
        (0.5, '"0.5"'),
        (-0.0, '"0.0"'),
        (float("nan"), '"NaN"'),
        (Decimal("1.50"), '"1.50"'),
        (Decimal("1E+3"), '"1000"'),
        (b"\x00\xff", '"00ff"'),
        (date(2024, 2, 29), '"2024-02-29"'),
        (datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=UTC), '"2024-02-29T01:02:03.000004Z"'),
        (datetime(2024, 2, 29, 1, 0, tzinfo=timezone(timedelta(hours=2))), '"2024-02-28T23:00:00.000000Z"'),
    ],
)
def test_canonical_bytes(value: Any, text: str) -> None:
    assert canonical_bytes((value, "x"), ("a b", "c")) == f'{{"a b":{text},"c":"x"}}'.encode()


@pytest.mark.parametrize(
    ("left", "right", "is_same"),
    [
        ((float("nan"),), (float("nan"),), True),
        ((0.0,), (-0.0,), True),
        ((None,), (None,), True),
        ((None,), ("",), False),
        (None, (None,), False),
        (None, None, True),
        (Err("v", b"k", b"p", "one"), Err("v", b"k", b"p", "two"), True),
        (Err("v", b"k", b"p"), Err("w", b"k", b"p"), False),
        (Err("v", b"k", b"p"), Err("v", None, b"p"), False),
        (Err("v", b"k", b"p"), ("p",), False),
    ],
)
def test_equality_of_values(left: Value | None, right: Value | None, is_same: bool) -> None:
    assert same_value(left, right) is is_same
    assert same_value(right, left) is is_same


# Invariants


def test_broken_collections_are_named_with_key_and_values() -> None:
    def up(value: str, time: int, diff: int) -> UpsertDiff:
        return UpsertDiff((1,), (value,), time, diff)

    check_collection([up("a", 1, 1), up("a", 2, -1), up("b", 2, 1), up("b", 9, -1)])
    broken: Sequence[tuple[list[UpsertDiff], str]] = [
        ([up("a", 1, -1)], r"slot \(1,\) holds \('a',\) with diff -1 as of 1"),
        ([up("a", 1, 1), up("a", 3, 1)], "with diff 2 as of 3"),
        ([up("a", 1, 1), up("b", 4, 1)], r"two values as of 4: \('a',\) and \('b',\)"),
        ([up("a", 1, 1), up("b", 4, 1), up("a", 5, -1)], "two values as of 4"),
    ]
    for updates, message in broken:
        with pytest.raises(InvariantViolation, match=message):
            check_collection(updates)
        with pytest.raises(InvariantViolation, match=message):
            drain_sealed_input([], (), updates, lower=10, upper=11)


@pytest.mark.parametrize(
    ("counts", "claim"),
    [
        ({"records_read": 1}, "records_read"),
        ({"stash_before": 1}, "stash_before"),
        ({"truncated": 1}, "truncated"),
        ({"output_count": 1}, "inserts"),
        ({"records_read": 1, "eligible": 1, "inserts": 1, "output_count": 2}, "output_count"),
        ({"records_read": 1, "eligible": 1, "updates": 1, "output_count": 2}, "result_count"),
        ({"records_read": 1, "eligible": 1, "result_count": 2}, "result_count"),
        ({"records_read": -1, "stash_before": 1}, ">= 0"),
    ],
)
def test_counts_that_do_not_add_up_are_refused(counts: dict[str, int], claim: str) -> None:
    with pytest.raises(InvariantViolation, match=claim):
        DrainStats(**counts).check()


def test_counts_from_another_release() -> None:
    assert DrainStats.from_json({"eligible": 3, "invented_later": 4}) == DrainStats(eligible=3)
