"""The one retry loop: every way in which a compare-and-set can be answered, and what holds afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from persist_core.clock import PATIENCE_MS, SystemClock
from persist_core.contents.batch import BatchCounts, BatchManifest
from persist_core.contents.schema_versions import SchemaVersions
from persist_core.errors import Corruption, Determinate, Indeterminate, ShardNotFound, StorageError
from persist_core.frontier import Frontier
from persist_core.ids import RandomIds
from persist_core.location.consensus import CaSResult, VersionedData
from persist_core.location.mem import MemConsensus
from persist_core.shard import state as transitions
from persist_core.shard.history import advance_since, set_history
from persist_core.shard.machine import Machine
from persist_core.shard.register import MAX_STORE_TRIES
from persist_core.shard.state import Committed, ShardState, UpperMismatch
from tests.core.world import KEYS
from tests.virtual import ManualClock, SeededIds

SCHEMA = SchemaVersions().placed(KEYS)


Step = Callable[[Callable[[], CaSResult]], CaSResult]


class Scripted(MemConsensus):
    """A real store whose next compare-and-sets go as the script says; each entry is called with the real one."""

    def __init__(self) -> None:
        super().__init__()
        self.script: list[Step] = []
        self.calls = 0

    def compare_and_set(self, key: str, expected: int | None, new: VersionedData) -> CaSResult:
        self.calls += 1
        real = super().compare_and_set
        if self.script:
            return self.script.pop(0)(lambda: real(key, expected, new))
        return real(key, expected, new)


def answer_lost(happen: Callable[[], CaSResult]) -> CaSResult:
    happen()
    raise Indeterminate("the answer was lost")


def request_lost(_: Callable[[], CaSResult]) -> CaSResult:
    raise Indeterminate("the request was lost")


def refused(_: Callable[[], CaSResult]) -> CaSResult:
    raise Determinate("the store was busy")


def machine(consensus: MemConsensus, seed: int = 1) -> Machine:
    clock = ManualClock()
    return Machine(consensus, clock, SeededIds(seed, clock))


def manifest(lower: int, upper: int, token: str) -> BatchManifest:
    return BatchManifest(
        "s", lower, upper, token, "c", SCHEMA, (), BatchCounts(), f"id-{token}", lower + 1, None, f"writer-{token}"
    )


def append(on: Machine, batch: BatchManifest) -> Committed | UpperMismatch:
    _, result = on.apply(
        "s",
        lambda state: transitions.compare_and_append(state, batch, "k", expected_upper=batch.lower, now_ms=0),
        create=True,
    )
    return result


@pytest.mark.parametrize(
    "script",
    [
        [answer_lost],
        [request_lost],
        [refused],
        [request_lost, answer_lost],
        [answer_lost, request_lost, refused],
        [refused, request_lost, answer_lost, answer_lost],
    ],
)
def test_whatever_is_lost_the_append_happens_exactly_once(
    script: list[Step],
) -> None:
    consensus = Scripted()
    consensus.script = list(script)
    result = append(machine(consensus), manifest(0, 10, "a"))
    assert isinstance(result, Committed)
    assert [version.seqno for version in consensus.scan("s", 0)] == [0]
    assert not consensus.script


def test_reading_back_finds_a_rival_that_won() -> None:
    consensus = Scripted()

    def rival_wins(_: Callable[[], CaSResult]) -> CaSResult:
        assert isinstance(append(machine(consensus, seed=2), manifest(0, 7, "rival")), Committed)
        raise Indeterminate("the answer was lost")

    consensus.script = [rival_wins]
    result = append(machine(consensus), manifest(0, 10, "a"))
    assert isinstance(result, UpperMismatch)
    assert result.winner is not None
    assert result.winner.token == "rival"


def test_our_truncated_version_is_still_ours() -> None:
    consensus = Scripted()

    def others_go_on(happen: Callable[[], CaSResult]) -> CaSResult:
        happen()
        append(machine(consensus, seed=2), manifest(10, 20, "b"))
        consensus.truncate("s", 1)
        raise Indeterminate("the answer was lost")

    consensus.script = [others_go_on]
    result = append(machine(consensus), manifest(0, 10, "a"))
    assert isinstance(result, Committed)
    assert (result.commit.token, result.is_new) == ("a", False)


def test_a_store_that_stays_down_is_an_error() -> None:
    consensus = Scripted()
    consensus.script = [*[refused] * MAX_STORE_TRIES]
    with pytest.raises(Determinate):
        append(machine(consensus), manifest(0, 10, "a"))
    consensus.script = [request_lost, *[refused] * MAX_STORE_TRIES]
    with pytest.raises(Indeterminate):
        append(machine(consensus), manifest(0, 10, "a"))
    assert consensus.head("s") is None


@pytest.mark.parametrize(("fails", "error"), [(refused, Determinate), (request_lost, Indeterminate)])
def test_a_store_that_never_answers_ends_the_call_in_time(fails: Step, error: type[StorageError]) -> None:
    consensus, clock = Scripted(), ManualClock()

    def silent(happen: Callable[[], CaSResult]) -> CaSResult:
        clock.sleep_ms(PATIENCE_MS // 2)
        return fails(happen)

    consensus.script = [silent] * MAX_STORE_TRIES
    with pytest.raises(error):
        append(Machine(consensus, clock, SeededIds(1, clock)), manifest(0, 10, "a"))
    assert consensus.calls == 2


def test_no_answer_to_the_read_back_is_indeterminate(monkeypatch: pytest.MonkeyPatch) -> None:
    consensus = Scripted()

    def down(*_: object) -> list[VersionedData]:
        raise Determinate("the store was busy; this call changed nothing")

    monkeypatch.setattr(consensus, "scan", down)
    consensus.script = [answer_lost]
    with pytest.raises(Indeterminate):
        append(machine(consensus), manifest(0, 10, "a"))
    assert consensus.head("s") is not None


def test_an_unknown_storage_error_is_taken_as_indeterminate() -> None:
    consensus = Scripted()

    def unknown(happen: Callable[[], CaSResult]) -> CaSResult:
        happen()
        raise StorageError("driver said something new")

    consensus.script = [unknown]
    assert isinstance(append(machine(consensus), manifest(0, 10, "a")), Committed)
    assert len(consensus.scan("s", 0)) == 1


def test_a_transition_that_changes_nothing_writes_nothing() -> None:
    consensus = Scripted()
    on = machine(consensus)
    with pytest.raises(ShardNotFound):
        on.apply("s", lambda state: (state, None))
    on.apply("s", lambda state: (state, None), create=True)
    assert consensus.calls == 1
    on.apply("s", lambda state: (state, None), create=True)
    assert consensus.calls == 1


def test_a_version_under_another_seqno_is_corruption() -> None:
    consensus = Scripted()
    on = machine(consensus)
    on.apply("s", lambda state: (state, None), create=True)
    head = consensus.head("s")
    assert head is not None
    consensus.compare_and_set("s", 0, replace(head, seqno=5))
    with pytest.raises(Corruption, match=r"says that it is \('s', 0\); expected \('s', 5\)"):
        on.fetch("s")


def test_many_writers_lose_nothing_and_need_few_tries() -> None:
    """8 threads append 20 batches each to one shard: every one is in it once, in a chain."""
    consensus = Scripted()
    clock = SystemClock()

    def writer(number: int) -> None:
        on = Machine(consensus, clock, RandomIds(clock))
        for batch in range(20):
            while True:
                state = on.fetch("s")
                lower = 0 if state is None or state.upper.time is None else state.upper.time
                result = append(on, manifest(lower, lower + 1, f"{number}-{batch}"))
                if isinstance(result, Committed):
                    break

    threads = [threading.Thread(target=writer, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    state = machine(consensus).fetch("s")
    assert isinstance(state, ShardState)
    assert state.upper.time == 160
    assert len(state.batches) == 160


def test_an_expired_lease_ends_with_the_next_change() -> None:
    clock = ManualClock()
    on = Machine(Scripted(), clock, SeededIds(1, clock))
    append(on, manifest(0, 10, "a"))
    on.apply("s", lambda state: transitions.register_lease(state, "r", now_ms=clock.now_ms(), duration_ms=50))
    on.apply("s", lambda state: set_history(state, 2))
    clock.sleep_ms(51)
    found = on.fetch("s")
    assert found is not None
    assert (found.since, list(found.leases)) == (Frontier(0), ["r"])
    append(on, manifest(10, 20, "b"))
    found = on.fetch("s")
    assert found is not None
    assert list(found.leases) == []
    _, moved = on.apply("s", lambda state: advance_since(state, now_ms=clock.now_ms()))
    assert (moved.since, moved.held_by) == (Frontier(18), None)
