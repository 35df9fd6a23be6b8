"""Transitions of a shard's state, as docs/semantics.md, section 3 states them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persist_core.contents.batch import BatchCounts, BatchManifest, SourceFrontier
from persist_core.contents.derived import Restored
from persist_core.contents.operator_state import OperatorState, StateArtifact, chain_digest
from persist_core.contents.schema_versions import SchemaVersions
from persist_core.errors import (
    BadBounds,
    InvalidInput,
    InvariantViolation,
    LeaseExpired,
    SchemaMismatch,
    StateNotRead,
    TokenReuse,
)
from persist_core.frontier import CLOSED, Frontier
from persist_core.schema import CollectionSchema, Column
from persist_core.shard.history import compare_and_downgrade_hold, register_hold, release_hold
from persist_core.shard.invariants import check_state, check_step
from persist_core.shard.state import (
    MAX_COMMITS_KEPT,
    MIN_COMMITS_KEPT,
    Committed,
    Hold,
    HoldMismatch,
    ShardState,
    UpperMismatch,
    compare_and_append,
    expire_leases,
    register_lease,
    release_lease,
    renew_lease,
    start_fork,
)

SCHEMA = SchemaVersions().placed(
    CollectionSchema((Column("id", "bigint", nullable=False),), (Column("name", "string"),))
)


def manifest(
    lower: int,
    upper: int | None,
    token: str,
    *,
    contents: str = "c",
    schema: CollectionSchema = SCHEMA,
    epoch: int | None = None,
) -> BatchManifest:
    return BatchManifest(
        shard="s",
        lower=lower,
        upper=upper,
        token=token,
        contents_digest=contents,
        schema=schema,
        parts=(),
        counts=BatchCounts(),
        checkpoint_id=f"id-{token}",
        epoch=lower + 1 if epoch is None else epoch,
        parent_id=None,
        writer=f"writer-{token}",
    )


def append(state: ShardState, batch: BatchManifest) -> tuple[ShardState, Committed | UpperMismatch]:
    after, result = compare_and_append(state, batch, f"key-{batch.token}", expected_upper=batch.lower, now_ms=7)
    if after is not state:
        after = replace(after, seqno=after.seqno + 1)
        check_step(state, after)
    return after, result


def test_an_append_moves_the_upper_and_binds_its_token() -> None:
    state, result = append(ShardState("s"), manifest(0, 10, "a"))
    assert isinstance(result, Committed)
    assert result.is_new
    assert state.upper == Frontier(10)
    assert [batch.manifest_key for batch in state.batches] == ["key-a"]
    assert state.commits[0].seqno == state.seqno


def test_a_repeated_token_gets_the_first_answer() -> None:
    first, committed = append(ShardState("s"), manifest(0, 10, "a"))
    later, _ = append(first, manifest(10, 20, "b"))
    again, result = append(later, manifest(0, 10, "a"))
    assert again is later
    assert isinstance(result, Committed)
    assert isinstance(committed, Committed)
    assert (result.commit, result.is_new) == (committed.commit, False)


def test_the_same_token_with_other_contents_is_refused() -> None:
    state, _ = append(ShardState("s"), manifest(0, 10, "a"))
    with pytest.raises(TokenReuse, match="Mint a new description"):
        append(state, manifest(0, 10, "a", contents="other"))


def test_token_is_checked_before_upper_and_arguments_before_both() -> None:
    state, _ = append(ShardState("s"), manifest(0, 10, "a"))
    with pytest.raises(TokenReuse):
        append(state, manifest(3, 10, "a", contents="other"))
    with pytest.raises(BadBounds):
        append(state, replace(manifest(0, 10, "a"), upper=0))
    with pytest.raises(InvalidInput, match="expected upper 5"):
        compare_and_append(state, manifest(0, 10, "a"), "k", expected_upper=5, now_ms=0)


def test_a_lost_race_is_a_value_that_names_the_winner() -> None:
    state, _ = append(ShardState("s"), manifest(0, 10, "a"))
    same, result = append(state, manifest(0, 20, "b", epoch=9))
    assert same is state
    assert isinstance(result, UpperMismatch)
    assert (result.expected, result.found, result.is_stale) == (0, Frontier(10), False)
    assert result.winner is not None
    assert result.winner.writer == "writer-a"


def test_a_forgotten_token_is_stale_never_a_second_commit() -> None:
    state = ShardState("s")
    for number in range(MAX_COMMITS_KEPT + 5):
        state, _ = append(state, manifest(number, number + 1, f"t{number}"))
    assert MIN_COMMITS_KEPT <= len(state.commits) <= MAX_COMMITS_KEPT
    same, result = append(state, manifest(0, 1, "t0"))
    assert same is state
    assert isinstance(result, UpperMismatch)
    assert result.is_stale


@pytest.mark.parametrize(("lower", "upper"), [(5, 5), (5, 4), (0, 0)])
def test_empty_and_backward_bounds_are_refused(lower: int, upper: int) -> None:
    with pytest.raises(BadBounds):
        append(ShardState("s"), manifest(lower, upper, "a"))


def test_a_closed_shard_takes_no_more() -> None:
    state, _ = append(ShardState("s"), manifest(0, None, "a"))
    assert state.upper == CLOSED
    _, result = append(state, manifest(5, 6, "b"))
    assert isinstance(result, UpperMismatch)


def test_schema_may_grow_by_nullable_columns_only() -> None:
    state, _ = append(ShardState("s"), manifest(0, 10, "a"))
    wider = state.schemas.placed(replace(SCHEMA, values=(*SCHEMA.values, Column("age", "int"))))
    state, _ = append(state, manifest(10, 20, "b", schema=wider))
    assert state.schema == wider
    for bad in (
        SCHEMA,
        replace(wider, values=(Column("name", "int"), Column("age", "int"))),
        replace(wider, values=(*wider.values, Column("x", "int", nullable=False))),
        replace(wider, key=(Column("id", "int", nullable=False),)),
    ):
        with pytest.raises(SchemaMismatch, match=r"left|written in schema version 1"):
            append(state, manifest(20, 30, "c", schema=bad))


def test_an_expired_lease_stays_expired() -> None:
    state, _ = register_lease(ShardState("s"), "r", now_ms=0, duration_ms=10)
    assert renew_lease(state, "r", now_ms=10)[1].heartbeat_ms == 10
    for _ in range(2):
        with pytest.raises(LeaseExpired):
            renew_lease(state, "r", now_ms=11)
        with pytest.raises(LeaseExpired):
            register_lease(state, "r", now_ms=11, duration_ms=10)
    state, expired = expire_leases(state, now_ms=11)
    assert expired == ("r",)
    same, expired = expire_leases(state, now_ms=11)
    assert (same is state, expired) == (True, ())
    with pytest.raises(LeaseExpired):
        renew_lease(state, "r", now_ms=5)


def test_a_stolen_hold_is_a_mismatch_and_a_repeated_move_is_not() -> None:
    state, _ = register_hold(ShardState("s"), "h", opaque="o1")
    state, _ = compare_and_downgrade_hold(state, "h", expected_opaque="o1", opaque="o2", since=Frontier(5))
    same, again = compare_and_downgrade_hold(state, "h", expected_opaque="o1", opaque="o2", since=Frontier(5))
    assert (same is state, again) == (True, Hold(Frontier(5), "o2"))
    same, mismatch = compare_and_downgrade_hold(state, "h", expected_opaque="o1", opaque="o3", since=Frontier(9))
    assert (same is state, mismatch) == (True, HoldMismatch(Hold(Frontier(5), "o2")))


def test_a_broken_state_is_named() -> None:
    state, _ = append(ShardState("s"), manifest(0, 10, "a"))
    with pytest.raises(InvariantViolation, match="upper_is_the_last_batch"):
        check_state(replace(state, upper=Frontier(11)))
    with pytest.raises(InvariantViolation, match=r"upper_never_regresses|upper_is_the_last_batch"):
        check_step(state, replace(state, upper=Frontier(5), seqno=state.seqno + 1))
    with pytest.raises(InvariantViolation, match="seqno_moves_by_one"):
        check_step(state, state)
    for origin in ({"branches": ()}, {"received": 7}):
        with pytest.raises(InvariantViolation, match="origin_follows_the_commits"):
            check_step(state, replace(state, seqno=state.seqno + 1, origin=replace(state.origin, **origin)))


COMMANDS = st.lists(
    st.tuples(
        st.sampled_from(["append", "retry", "lease", "renew", "release", "expire", "hold", "move", "drop"]),
        st.integers(0, 3),
        st.integers(0, 40),
    ),
    max_size=40,
)


@given(COMMANDS)
def test_no_sequence_of_commands_breaks_an_invariant(commands: list[tuple[str, int, int]]) -> None:
    """For any commands in any order: every step passes every named invariant, and since <= every live hold."""
    state, clock, appended = ShardState("s"), 0, list[BatchManifest]()
    for number, (name, who, amount) in enumerate(commands):
        clock += amount
        before = state
        try:
            if name == "append" and state.upper.time is not None:
                batch = manifest(state.upper.time, state.upper.time + amount + 1, f"t{number}", epoch=number + 1)
                state, result = compare_and_append(state, batch, "k", expected_upper=batch.lower, now_ms=clock)
                assert isinstance(result, Committed)
                assert result.is_new
                appended.append(batch)
            elif name == "retry" and appended:
                batch = appended[who % len(appended)]
                state, result = compare_and_append(state, batch, "k", expected_upper=batch.lower, now_ms=clock)
                assert isinstance(result, Committed)
                assert not result.is_new
            elif name == "lease":
                state, _ = register_lease(state, f"r{number}", now_ms=clock, duration_ms=30)
            elif name == "renew" and state.leases:
                state, _ = renew_lease(state, sorted(state.leases)[0], now_ms=clock, since=Frontier(amount))
            elif name == "release" and state.leases:
                state, _ = release_lease(state, sorted(state.leases)[-1])
            elif name == "expire":
                state, _ = expire_leases(state, now_ms=clock)
            elif name == "hold":
                state, _ = register_hold(state, f"h{who}", opaque="o")
            elif name == "move" and state.holds:
                holder = sorted(state.holds)[0]
                state, _ = compare_and_downgrade_hold(
                    state,
                    holder,
                    expected_opaque=state.holds[holder].opaque,
                    opaque=f"o{number}",
                    since=Frontier(amount),
                )
            elif name == "drop":
                state, _ = release_hold(state, f"h{who}")
        except LeaseExpired:
            assert name == "renew"
        if state is not before:
            state = replace(state, seqno=state.seqno + 1)
            check_step(before, state)


def going_back(state: ShardState, sources: dict[str, SourceFrontier], restored: Restored | None) -> ShardState:
    upper = state.upper.time or 0
    batch = replace(manifest(upper, upper + 1, f"back {upper}"), sources=sources, restored=restored)
    return append(state, batch)[0]


def files(number: int) -> SourceFrontier:
    return SourceFrontier("files", {"base": "/in", "files": number, "segments": []})


def test_progress_goes_back_by_a_restore_and_by_nothing_else() -> None:
    state = going_back(ShardState("s"), {"files": files(5), "more": files(1)}, None)
    for sunk in ({"files": files(4)}, {"files": SourceFrontier("files", {"base": "/in"})}):
        with pytest.raises(InvariantViolation, match="progress_goes_back_only_by_a_restore"):
            going_back(state, sunk, None)
    restored = going_back(state, {"files": files(4)}, Restored("s", "older", 1))
    assert restored.sources == {"files": files(4)}
    assert restored.commits[-1].restored_from == "older"
    assert going_back(restored, {"files": files(5)}, None).sources == {"files": files(5)}
    with pytest.raises(InvariantViolation, match="progress_moves_with_data"):
        check_step(state, replace(state, seqno=state.seqno + 1, sources={"files": files(9), "more": files(1)}))


def test_a_fork_starts_only_in_an_empty_shard() -> None:
    source, _ = append(append(ShardState("s"), manifest(0, 10, "a"))[0], manifest(10, 20, "b"))
    batch = replace(manifest(0, 20, "f"), shard="f", restored=Restored("s", "older", 20))

    def start(state: ShardState) -> tuple[ShardState, Committed]:
        return start_fork(
            state, batch, "key-f", batches=source.batches, since=Frontier(5), schemas=source.schemas, now_ms=1
        )

    for before in (None, ShardState("f", seqno=0)):
        after, done = start(before or ShardState("f"))
        check_step(before, replace(after, seqno=after.seqno + 1))
        assert (after.since, after.upper, after.batches) == (Frontier(5), Frontier(20), source.batches)
        assert (done.is_new, done.commit.restored_from) == (True, "older")
        again, known = start(after)
        assert again is after
        assert not known.is_new
    with pytest.raises(InvalidInput, match="already exists"):
        start(replace(source, shard="f"))
    held, _ = register_hold(ShardState("f"), "view/v", opaque="o")
    with pytest.raises(InvalidInput, match="is held at 0"):
        start(held)


FIRST, SECOND = StateArtifact(0, "a", 1, "11"), StateArtifact(0, "b", 1, "22")


def with_operators(state: ShardState, upper: int, read: dict[str, str], after: dict[str, OperatorState]) -> ShardState:
    batch = replace(manifest(state.upper.time or 0, upper, f"t{upper}"), read_operators=read, operators=after)
    return append(state, batch)[0]


def test_the_state_binds_the_digest_of_each_operator_s_chain() -> None:
    state = with_operators(
        ShardState("s"), 1, {}, {"x": OperatorState(False, (FIRST,)), "y": OperatorState(False, (SECOND,))}
    )
    one, other = chain_digest((FIRST,)), chain_digest((SECOND,))
    assert state.operators == {"x": one, "y": other}
    read = dict(state.operators)
    longer = with_operators(state, 2, read, {"x": OperatorState(True, (SECOND,)), "y": OperatorState(True, ())})
    assert longer.operators == {"x": chain_digest((FIRST, SECOND)), "y": other}
    full = with_operators(state, 2, read, {"x": OperatorState(False, (SECOND,))})
    assert full.operators == {"x": other}, "an operator that is not named has no state any more"


@pytest.mark.parametrize("read", [{}, {"x": "other"}, {"x": chain_digest((FIRST,)), "y": "more"}, {"y": "more"}])
def test_a_batch_that_did_not_read_the_operator_state_is_refused(read: dict[str, str]) -> None:
    state = with_operators(ShardState("s"), 1, {}, {"x": OperatorState(False, (FIRST,))})
    with pytest.raises(StateNotRead, match="started from other operator state"):
        with_operators(state, 2, read, {})
    stale = replace(manifest(0, 2, "stale"), read_operators=read)
    assert isinstance(append(state, stale)[1], UpperMismatch), "who comes too late is told so first"


def test_a_restore_reads_no_operator_state_and_replaces_it() -> None:
    state = with_operators(ShardState("s"), 1, {}, {"x": OperatorState(False, (FIRST,))})
    back = replace(manifest(1, 2, "back"), restored=Restored("s", "older", 1))
    assert append(state, back)[0].operators == {}
    with pytest.raises(InvalidInput, match="operator x saved a delta"):
        append(state, replace(back, operators={"x": OperatorState(True, (SECOND,))}))
    with pytest.raises(InvalidInput, match="operator y saved a delta"):
        with_operators(state, 2, dict(state.operators), {"y": OperatorState(True, (SECOND,))})
    with pytest.raises(InvalidInput, match="without artifacts"):
        OperatorState(False, ())


def test_expired_leases_leave_room_for_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("persist_core.shard.state.MAX_HOLDERS", 2)
    state = ShardState("s")
    for reader in ("a", "b"):
        state, _ = register_lease(state, reader, now_ms=0, duration_ms=10)
    with pytest.raises(InvalidInput, match="has 2 leases that have not expired, and at most 2"):
        register_lease(state, "c", now_ms=10, duration_ms=10)
    state, _ = register_lease(state, "c", now_ms=11, duration_ms=10)
    assert list(state.leases) == ["c"]
    for holder in ("h", "i"):
        state, _ = register_hold(state, holder, opaque="o")
    with pytest.raises(InvalidInput, match="has 2 critical holds, and at most 2"):
        register_hold(state, "j", opaque="o")
