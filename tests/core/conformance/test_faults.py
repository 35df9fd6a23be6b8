"""Fault injection does what it says, and under faults the consensus log stays linearizable: many writers, many seeds.

A failing history prints its seed; PERSIST_SEED=<seed> makes it the first one again.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import pytest

from persist_core.errors import Determinate, Indeterminate, InvalidInput, InvalidName, InvalidSeqNo, StorageError
from persist_core.location import (
    Blob,
    CaSResult,
    Consensus,
    FileBlob,
    MemBlob,
    MemConsensus,
    SqliteConsensus,
    VersionedData,
)
from tests.sim.linearize import Recorder, Versions, explain, find_order
from tests.sim.turns import Pause, SteppedConsensus, take_turns
from tests.suites.faults import (
    MAX_LATENESS_CALLS,
    FaultRates,
    Outcome,
    ScriptedFaults,
    SeededFaults,
    UnreliableBlob,
    UnreliableConsensus,
)
from tests.virtual import ManualClock, SeededIds

KEY = "shard"
WRITERS = 3
CALLS_PER_WRITER = 5
ROUGH = FaultRates(lost_answer=0.12, lost_request=0.1, refused=0.08, late=0.1)
ONE = VersionedData(1, b"one")


def ids_of(seed: int, stream: int = 0) -> SeededIds:
    """One of several independent streams of chance that belong to one seed."""
    return SeededIds(seed * 100 + stream, ManualClock())


# the wrappers


@pytest.mark.parametrize(
    ("outcome", "raises", "happened"),
    [
        (Outcome.DONE, None, True),
        (Outcome.LOST_ANSWER, Indeterminate, True),
        (Outcome.LOST_REQUEST, Indeterminate, False),
        (Outcome.REFUSED, Determinate, False),
        (Outcome.LATE, Indeterminate, False),
    ],
)
def test_each_outcome(outcome: Outcome, raises: type[StorageError] | None, happened: bool) -> None:
    inner, blob_inner = MemConsensus(), MemBlob()
    consensus = UnreliableConsensus(inner, ScriptedFaults(compare_and_set=[outcome], head=[Outcome.DONE, outcome]))
    blob = UnreliableBlob(blob_inner, ScriptedFaults(set=[outcome]))

    def both() -> Iterable[Callable[[], object]]:
        yield lambda: consensus.compare_and_set(KEY, None, ONE)
        yield lambda: blob.set("a", b"x")

    for call in both():
        if raises is None:
            call()
        else:
            with pytest.raises(StorageError) as caught:
                call()
            assert type(caught.value) is raises
            assert "fault injection" in str(caught.value)
    assert inner.head(KEY) == (ONE if happened else None)
    assert blob_inner.get("a") == (b"x" if happened else None)
    assert consensus.injected == Counter([outcome])
    consensus.deliver_late()
    blob.close()
    came = happened or outcome is Outcome.LATE
    assert inner.head(KEY) == (ONE if came else None)
    assert blob_inner.get("a") == (b"x" if came else None)
    assert consensus.compare_and_set(KEY, 1, VersionedData(2, b"")) is (
        CaSResult.COMMITTED if came else CaSResult.EXPECTATION_MISMATCH
    )


def test_a_late_request_arrives_during_a_later_call() -> None:
    inner = MemConsensus()
    consensus = UnreliableConsensus(inner, ScriptedFaults(compare_and_set=[Outcome.LATE]))
    with pytest.raises(Indeterminate):
        consensus.compare_and_set(KEY, None, ONE)
    assert inner.head(KEY) is None
    assert consensus.compare_and_set(KEY, None, VersionedData(7, b"")) is CaSResult.EXPECTATION_MISMATCH
    assert inner.head(KEY) == ONE


def test_wrong_arguments_are_refused_whatever_the_faults() -> None:
    always = FaultRates(lost_answer=0, lost_request=1, refused=0)
    consensus = UnreliableConsensus(MemConsensus(), SeededFaults(ids_of(1), always))
    blob = UnreliableBlob(MemBlob(), SeededFaults(ids_of(1), always))
    with pytest.raises(InvalidSeqNo):
        consensus.compare_and_set(KEY, 3, VersionedData(3, b""))
    with pytest.raises(InvalidSeqNo):
        consensus.scan(KEY, -1)
    with pytest.raises(InvalidName):
        blob.get("../x")
    with pytest.raises(InvalidName):
        blob.list_keys_and_metadata("../x")
    assert not consensus.injected
    with pytest.raises(InvalidInput, match="fault rates"):
        FaultRates(lost_answer=0.9, refused=0.2)


def test_a_struck_listing_breaks_off_half_way() -> None:
    inner = MemBlob()
    for index in range(6):
        inner.set(f"k{index}", b"")
    blob = UnreliableBlob(inner, ScriptedFaults(list_keys_and_metadata=[Outcome.LOST_REQUEST]))
    listing = blob.list_keys_and_metadata("k")
    assert [next(listing).key for _ in range(3)] == ["k0", "k1", "k2"]
    with pytest.raises(Indeterminate):
        next(listing)
    assert len(list(blob.list_keys_and_metadata("k"))) == 6


def test_a_seed_repeats_its_faults(persist_seed: int) -> None:
    def outcomes(seed: int) -> list[Outcome]:
        faults = SeededFaults(ids_of(seed), ROUGH)
        return [faults.outcome("head") for _ in range(400)]

    assert outcomes(persist_seed) == outcomes(persist_seed)
    assert outcomes(persist_seed) != outcomes(persist_seed + 1)
    counts = Counter(outcomes(persist_seed))
    assert set(counts) == set(Outcome)
    assert counts[Outcome.DONE] > 160
    faults = SeededFaults(ids_of(persist_seed))
    assert {faults.lateness_calls() for _ in range(200)} == set(range(1, MAX_LATENESS_CALLS + 1))


@pytest.mark.parametrize("backend", ["mem", "file"])
def test_blob_calls_repeated_until_answered_take_effect(backend: str, tmp_path: Path, persist_seed: int) -> None:
    """`set` and `delete` are idempotent: after any loss, a repeated call ends in the same contents."""
    inner: Blob = MemBlob() if backend == "mem" else FileBlob(tmp_path)
    ids = ids_of(persist_seed)
    blob = UnreliableBlob(inner, SeededFaults(ids, FaultRates(0.2, 0.2, 0.2)))

    def until_answered(call: Callable[[], object]) -> None:
        for _ in range(100):
            try:
                call()
            except StorageError:
                continue
            return
        raise AssertionError(f"no answer in 100 calls, PERSIST_SEED={persist_seed}")

    expected: dict[str, bytes] = {}
    for number in range(100):
        key = f"k{int(ids.jitter() * 8)}/x"
        if ids.jitter() < 0.6:
            data = b"%d" % number
            until_answered(partial(blob.set, key, data))
            expected[key] = data
        else:
            until_answered(partial(blob.delete, key))
            expected.pop(key, None)
    assert {m.key: inner.get(m.key) for m in inner.list_keys_and_metadata("")} == expected
    assert all(blob.injected[outcome] for outcome in Outcome if outcome is not Outcome.LATE)


# linearizability


def write_history(recorder: Recorder, consensus: Consensus, ids: SeededIds, writer: int, calls: int) -> None:
    """Random calls, most of them compare-and-sets on what the writer believes to be current."""
    believed: int | None = None
    for number in range(calls):
        draw = ids.jitter()
        if draw < 0.6:
            seqno = (-1 if believed is None else believed) + 1 + int(ids.jitter() * 2)
            new = VersionedData(seqno, b"%d.%d" % (writer, number))  # unique: a version shows its writer
            if recorder.compare_and_set(consensus, believed, new) is CaSResult.COMMITTED:
                believed = seqno
                continue
        elif draw < 0.7:
            recorder.scan(consensus, int(ids.jitter() * 3), 2)
        elif draw < 0.8:
            recorder.truncate(consensus, believed or 0)
        head = recorder.head(consensus)
        believed = head.seqno if head else believed


def stepped_history(seed: int, store: Consensus, rates: FaultRates) -> tuple[Recorder, Versions, Counter[Outcome]]:
    """One history of several writers whose steps interleave as the seed says."""
    recorder = Recorder(KEY)
    unreliable = UnreliableConsensus(store, SeededFaults(ids_of(seed, 1), rates))

    def player(writer: int) -> Callable[[Pause], None]:
        def play(pause: Pause) -> None:
            own = SteppedConsensus(unreliable, pause)
            write_history(recorder, own, ids_of(seed, 2 + writer), writer, CALLS_PER_WRITER)

        return play

    take_turns(ids_of(seed), [player(writer) for writer in range(WRITERS)])
    unreliable.deliver_late()
    return recorder, tuple(store.scan(KEY, 0)), unreliable.injected


def check(recorder: Recorder, final: Versions, seed: int) -> None:
    if find_order(recorder.calls, final) is None:
        raise AssertionError(f"PERSIST_SEED={seed}: {explain(recorder.calls, final)}")


def test_many_short_histories_over_memory(persist_seed: int) -> None:
    injected: Counter[Outcome] = Counter()
    overlapping = 0
    for seed in range(persist_seed, persist_seed + 400):
        recorder, final, struck = stepped_history(seed, MemConsensus(), ROUGH)
        check(recorder, final, seed)
        injected += struck
        calls = sorted(recorder.calls, key=lambda call: call.begin)
        overlapping += sum(a.end > b.begin for a, b in itertools.pairwise(calls))
    assert all(injected[outcome] > 100 for outcome in Outcome), injected
    assert overlapping > 1000  # else the histories would prove nothing


def test_a_history_repeats_itself(persist_seed: int) -> None:
    def texts() -> list[str]:
        recorder, final, _ = stepped_history(persist_seed, MemConsensus(), ROUGH)
        return [f"{call}" for call in recorder.calls] + [str(final)]

    assert texts() == texts()


def test_some_short_histories_over_sqlite(persist_seed: int, tmp_path: Path) -> None:
    for seed in range(persist_seed, persist_seed + 12):
        check(*stepped_history(seed, SqliteConsensus(tmp_path / f"{seed}.db"), ROUGH)[:2], seed)


@pytest.mark.parametrize("backend", ["mem", "sqlite"])
def test_histories_of_free_threads(backend: str, persist_seed: int, tmp_path: Path) -> None:
    """The real race, which no seed repeats: threads without any control."""
    for seed in range(persist_seed, persist_seed + (40 if backend == "mem" else 8)):
        store: Consensus = MemConsensus() if backend == "mem" else SqliteConsensus(tmp_path / f"{seed}.db")
        recorder = Recorder(KEY)
        unreliable = UnreliableConsensus(store, SeededFaults(ids_of(seed, 1), ROUGH))
        threads = [
            threading.Thread(target=write_history, args=(recorder, unreliable, ids_of(seed, 2 + writer), writer, 4))
            for writer in range(WRITERS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        unreliable.deliver_late()
        check(recorder, tuple(store.scan(KEY, 0)), seed)


# the check itself: stores that break the contract must be detected


class Forgetful(MemConsensus):
    """Acknowledges some commits without keeping them."""

    def compare_and_set(self, key: str, expected: int | None, new: VersionedData) -> CaSResult:
        if new.data.endswith(b"1"):
            return CaSResult.COMMITTED
        return super().compare_and_set(key, expected, new)


class Stale(MemConsensus):
    """Reads the version before the newest."""

    def head(self, key: str) -> VersionedData | None:
        versions = self.scan(key, 0)
        return versions[-2:][0] if versions else None


class Overbooked(MemConsensus):
    """Tells losers that they have won."""

    def compare_and_set(self, key: str, expected: int | None, new: VersionedData) -> CaSResult:
        super().compare_and_set(key, expected, new)
        return CaSResult.COMMITTED


class Undoing(MemConsensus):
    """Shows a version, then hides it again."""

    def head(self, key: str) -> VersionedData | None:
        seen = super().head(key)
        if seen is not None and seen.data.endswith(b"2"):
            self._store.values[key].pop()
        return seen


class Liar(MemConsensus):
    """Says "it did not happen" after it did."""

    def compare_and_set(self, key: str, expected: int | None, new: VersionedData) -> CaSResult:
        result = super().compare_and_set(key, expected, new)
        if new.data.endswith(b"2"):
            raise Determinate("no")
        return result


class Fickle(MemConsensus):
    """Answers a scan from two different states."""

    def scan(self, key: str, from_seqno: int, limit: int = 2**63 - 1) -> list[VersionedData]:
        return super().scan(key, from_seqno, limit)[1:]


@pytest.mark.parametrize("broken", [Forgetful, Stale, Overbooked, Undoing, Liar, Fickle])
def test_a_broken_store_is_found_out(broken: type[MemConsensus], persist_seed: int) -> None:
    gentle = FaultRates(lost_answer=0.05, lost_request=0.05, refused=0.05)
    for seed in range(persist_seed, persist_seed + 60):
        store = broken()
        recorder, _, _ = stepped_history(seed, store, gentle)
        final = tuple(store._store.values.get(KEY, []))
        if find_order(recorder.calls, final) is None:
            assert "no order of these calls" in explain(recorder.calls, final)
            return
    raise AssertionError(f"{broken.__name__} passed 60 histories, PERSIST_SEED={persist_seed}")


def test_a_compare_and_set_in_two_steps_is_found_out(persist_seed: int) -> None:
    """Read, compare, then write: correct for one writer at a time; interleaved turns find the gap."""
    for seed in range(persist_seed, persist_seed + 60):
        store, recorder = MemConsensus(), Recorder(KEY)

        def play(pause: Pause, writer: int, store: MemConsensus = store, recorder: Recorder = recorder) -> None:
            class Split(MemConsensus):
                def compare_and_set(self, key: str, expected: int | None, new: VersionedData) -> CaSResult:
                    head = store.head(key)
                    if (head.seqno if head else None) != expected:
                        return CaSResult.EXPECTATION_MISMATCH
                    pause()
                    store._store.values.setdefault(key, []).append(new)
                    return CaSResult.COMMITTED

                def head(self, key: str) -> VersionedData | None:
                    return store.head(key)

            split = SteppedConsensus(Split(), pause)
            for number in range(3):
                head = recorder.head(split)
                seqno = head.seqno if head else None
                new = VersionedData(0 if seqno is None else seqno + 1, b"%d.%d" % (writer, number))
                recorder.compare_and_set(split, seqno, new)

        players = [lambda pause, writer=writer: play(pause, writer) for writer in range(WRITERS)]
        take_turns(ids_of(seed), players)
        if find_order(recorder.calls, tuple(store.scan(KEY, 0))) is None:
            return
    raise AssertionError(f"it passed 60 histories, PERSIST_SEED={persist_seed}")


def test_an_error_of_a_player_comes_out() -> None:
    def bad(pause: Pause) -> None:
        pause()
        raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"):
        take_turns(ids_of(1), [bad, lambda pause: pause()])
