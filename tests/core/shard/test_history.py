"""`since` follows the upper at the distance of the history, held back by leases and holds (docs/storage.md)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persist_core.errors import InvalidInput, InvariantViolation, LeaseExpired, NotReadable
from persist_core.frontier import CLOSED, ZERO, Frontier
from persist_core.shard.history import (
    MAX_RELEASED,
    Advance,
    Holder,
    advance_since,
    compare_and_downgrade_hold,
    end_holder,
    holders,
    register_hold,
    release_hold,
    set_history,
    show_history,
)
from persist_core.shard.invariants import check_step
from persist_core.shard.state import (
    ShardState,
    compare_and_append,
    expire_leases,
    keep_lease,
    register_lease,
    release_lease,
    renew_lease,
)
from tests.core.shard.test_state import append, manifest


def shard(upper: int | None, history_ms: int | None = None) -> ShardState:
    state, _ = append(ShardState("s"), manifest(0, 10, "a"))
    if upper != 10:
        state, _ = append(state, manifest(10, upper, "b"))
    return set_history(state, history_ms)[0]


def moved(state: ShardState, now_ms: int = 0) -> int | None:
    after, advance = advance_since(state, now_ms=now_ms)
    if after is not state:
        check_step(state, replace(after, seqno=state.seqno + 1))
    assert advance_since(after, now_ms=now_ms)[0] is after, "a second call changes nothing"
    assert (advance.before, advance.since) == (state.since, after.since)
    return after.since.time


@pytest.mark.parametrize(
    ("upper", "history_ms", "since"),
    [
        (100, None, 0),
        (100, 0, 99),
        (100, 1, 99),
        (100, 30, 70),
        (100, 100, 0),
        (100, 500, 0),
        (None, 0, 9),
        (None, 4, 6),
    ],
)
def test_since_follows_the_upper_or_the_last_commit(upper: int | None, history_ms: int | None, since: int) -> None:
    assert moved(shard(upper, history_ms)) == since


def test_an_empty_and_a_dropped_shard_stay_as_they_are() -> None:
    for state in (ShardState("s", history_ms=0), replace(shard(None, 0), since=CLOSED)):
        after, advance = advance_since(state, now_ms=0)
        assert after is state
        assert advance.held_by is None


def test_readers_and_holds_keep_since_back_and_never_move_it() -> None:
    state, _ = register_lease(shard(100, 10), "r", now_ms=0, duration_ms=50)
    state, _ = register_hold(state, "view/v", opaque="o1")
    state, _ = register_hold(state, "pin/c", opaque="o", since=Frontier(60))
    assert [(each.name, each.since.time) for each in holders(state, now_ms=0)] == [
        ("r", 0),
        ("view/v", 0),
        ("pin/c", 60),
        ("history", 90),
    ]
    assert moved(state) == 0
    state, _ = renew_lease(state, "r", now_ms=1, since=Frontier(50))
    assert moved(state) == 0
    state, _ = compare_and_downgrade_hold(state, "view/v", expected_opaque="o1", opaque="o2", since=Frontier(80))
    assert state.since == ZERO
    assert moved(state) == 50
    held = advance_since(state, now_ms=0)[1]
    assert held == Advance(ZERO, Frontier(50), Holder("lease", "r", Frontier(50)))
    assert moved(state, now_ms=60) == 60, "the lease has expired"
    state, _ = release_lease(state, "r")
    state, _ = release_hold(state, "pin/c")
    assert moved(state) == 80
    state, _ = release_hold(state, "view/v")
    assert moved(state) == 90
    assert moved(set_history(state, None)[0]) == 0


def test_what_is_gone_cannot_be_held() -> None:
    state, _ = advance_since(shard(100, 10), now_ms=0)
    with pytest.raises(NotReadable, match="expected at most 89, to hold it for pin/c"):
        register_hold(state, "pin/c", opaque="o", since=Frontier(89))
    longer, before = set_history(state, 50)
    assert (before, moved(longer)) == (10, 90)
    assert set_history(longer, 50)[0] is longer
    for wrong in (-1, 1.5):
        with pytest.raises(InvalidInput, match=r"history_ms is .*expected an integer"):
            set_history(state, wrong)  # type: ignore[arg-type] # - a mistake


def test_a_lease_is_renewed_after_a_third_of_its_time_only() -> None:
    state, lease = register_lease(shard(100), "r", now_ms=1_000, duration_ms=300)
    for now_ms in (1_000, 1_050, 1_099):
        assert keep_lease(state, "r", now_ms=now_ms) == (state, lease)
    state, lease = keep_lease(state, "r", now_ms=1_100)
    assert lease.heartbeat_ms == 1_100
    assert keep_lease(state, "r", now_ms=900)[0] is state, "a clock that went back renews nothing"
    for reader, now_ms in (("r", 1_401), ("other", 1_100)):
        with pytest.raises(LeaseExpired):
            keep_lease(state, reader, now_ms=now_ms)


def test_a_reader_learns_who_ended_its_lease_or_hold() -> None:
    state, _ = register_lease(shard(100, 0), "r", now_ms=0, duration_ms=1_000)
    state, _ = register_hold(state, "view/v", opaque="o")
    for holder in ("r", "view/v"):
        before = state
        state, record = end_holder(before, holder, now_ms=7, by="me@host", reason=" its program is gone ")
        check_step(before, replace(state, seqno=before.seqno + 1))
        assert record is not None
        assert (record.holder, record.by, record.reason, record.since) == (holder, "me@host", "its program is gone", 0)
        again, known = end_holder(state, holder, now_ms=9, by="you", reason="again")
        assert (again is state, known) == (True, record)
    assert moved(state) == 99
    with pytest.raises(LeaseExpired, match=r"was released by me@host at 1970-\S+ \(its program is gone\)"):
        renew_lease(state, "r", now_ms=8)
    assert end_holder(state, "nobody", now_ms=9, by="me", reason="x") == (state, None)
    for reason in ("", "  ", "x" * 501):
        with pytest.raises(InvalidInput, match="expected 1 to 500"):
            end_holder(state, "r", now_ms=9, by="me", reason=reason)
    for number in range(MAX_RELEASED + 3):
        state, _ = register_hold(state, f"h{number}", opaque="o")
        state, _ = end_holder(state, f"h{number}", now_ms=9, by="me", reason="x")
    assert [each.holder for each in state.released][:: MAX_RELEASED - 1] == ["h3", f"h{MAX_RELEASED + 2}"]


def test_since_moves_alone_and_within_the_history() -> None:
    before = shard(100, 10)
    beyond = replace(before, seqno=before.seqno + 1, since=Frontier(91))
    with pytest.raises(InvariantViolation, match="since_moves_within_the_history"):
        check_step(before, beyond)
    appended, _ = compare_and_append(before, manifest(100, 110, "c"), "k", expected_upper=100, now_ms=0)
    with pytest.raises(InvariantViolation, match="since_moves_within_the_history"):
        check_step(before, replace(appended, seqno=before.seqno + 1, since=Frontier(5)))


@pytest.mark.parametrize(
    ("history_ms", "shown"),
    [(None, "all"), (0, "0"), (86_400_000 * 30, "30 days"), (3_600_000 * 36, "1 day 12 hours"), (60_000, "1 minute")],
)
def test_histories_are_shown_in_words(history_ms: int | None, shown: str) -> None:
    assert show_history(history_ms) == shown


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["append", "history", "advance", "lease", "renew", "keep", "hold", "move", "end", "expire"]),
        st.integers(0, 40),
    ),
    max_size=40,
)


@given(STEPS)
def test_since_never_regresses_and_never_passes_a_holder(steps: list[tuple[str, int]]) -> None:
    state, clock = ShardState("s"), 0
    for number, (name, amount) in enumerate(steps):
        clock += amount
        before, upper = state, state.upper.time or 0
        try:
            if name == "append":
                batch = manifest(upper, upper + amount + 1, f"t{number}", epoch=number + 1)
                state, _ = compare_and_append(state, batch, "k", expected_upper=upper, now_ms=clock)
            elif name == "history":
                state, _ = set_history(state, None if amount > 30 else amount)
            elif name == "advance":
                state, advance = advance_since(state, now_ms=clock)
                live = holders(state, now_ms=clock)
                assert state.since >= before.since
                assert state.since == max(before.since, min(each.since for each in live))
                assert upper == 0 or state.since < state.upper, "the newest contents stay readable"
                assert (advance.held_by is None) == (live[0].kind == "history")
            elif name == "lease":
                state, _ = register_lease(state, f"r{number}", now_ms=clock, duration_ms=60)
            elif name in ("renew", "keep") and state.leases:
                reader = sorted(state.leases)[0]
                if name == "keep":
                    state, _ = keep_lease(state, reader, now_ms=clock)
                else:
                    state, _ = renew_lease(state, reader, now_ms=clock, since=Frontier(amount))
            elif name == "hold":
                state, _ = register_hold(state, f"h{amount % 3}", opaque="o", since=max(state.since, Frontier(amount)))
            elif name == "move" and state.holds:
                holder, hold = sorted(state.holds.items())[0]
                state, _ = compare_and_downgrade_hold(
                    state, holder, expected_opaque=hold.opaque, opaque=f"o{number}", since=Frontier(amount)
                )
            elif name == "end" and (held := sorted([*state.holds, *state.leases])):
                state, _ = end_holder(state, held[0], now_ms=clock, by="me", reason="gone")
            elif name == "expire":
                state, _ = expire_leases(state, now_ms=clock)
        except LeaseExpired:
            assert name in ("renew", "keep")
        assert name == "advance" or state.since == before.since
        if state is not before:
            state = replace(state, seqno=state.seqno + 1)
            check_step(before, state)
