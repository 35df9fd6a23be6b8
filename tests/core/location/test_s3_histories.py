"""Random histories over a real S3 server whose wire fails by seed: one order of the calls explains every answer.

Each writer has a client, a wire and a clock of its own. Requests are lost before and after they took effect, answered
in the server's place, or arrive late: during a later request of any writer. Truncated objects are swept immediately, so
names are freed under writers that stall, and no answer is trusted without a second look.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse

from persist_core.errors import StorageError
from persist_core.location import CaSResult, S3Consensus, VersionedData, s3_settings
from persist_core.location.s3.uri import S3Settings
from tests.core.conformance.test_faults import CALLS_PER_WRITER, KEY, WRITERS, ids_of, write_history
from tests.core.location.s3_wire import Answer, Lost, Wire, carry_out, timed_out
from tests.sampling import is_long
from tests.servers.s3 import S3Server
from tests.sim.linearize import Recorder, explain, find_order
from tests.sim.turns import Pause, SteppedConsensus, take_turns
from tests.virtual import ManualClock, SeededIds

FAULTS = 0.25  # the share of requests with a fault
HISTORIES = 300 if is_long() else 12


class RoughSea:
    """Injects faults into requests by seed; late ones are kept until a later request of any writer, or the end."""

    def __init__(self, ids: SeededIds) -> None:
        self._ids = ids
        self._lock = threading.Lock()
        self._late: list[Any] = []
        self.struck: Counter[str] = Counter()

    def fate(self, request: Any) -> AWSResponse | None:
        with self._lock:
            due, self._late = (self._late, []) if self._ids.jitter() < 0.3 else ([], self._late)
            draw, kind = self._ids.jitter(), self._ids.jitter()
        for late in due:
            carry_out(late)
        if draw >= FAULTS:
            return None
        if kind < 0.25 and request.method == "PUT":
            self.struck["late"] += 1
            with self._lock:
                self._late.append(request)
            return timed_out(is_processed=False)(request)
        fates: list[Callable[[Any], AWSResponse]] = [
            *(Lost(is_processed) for is_processed in (True, False)),
            *(Answer(status, is_processed) for status in (500, 503) for is_processed in (True, False)),
            Answer(409),
        ]
        chosen = fates[int(kind * len(fates))]
        self.struck[str(chosen)] += 1
        return chosen(request)

    def deliver_late(self) -> None:
        for request in self._late:
            carry_out(request)
        self._late = []


class Struck:
    """Fates without an end, for a wire."""

    def __init__(self, sea: RoughSea) -> None:
        self._sea = sea

    def popleft(self) -> Callable[[Any], AWSResponse | None]:
        return self._sea.fate


FREED = -10_000  # ms: a truncated name is free immediately


class Forgetful(S3Consensus):
    """Forgets, before half of its compare-and-sets, what it has seen: as a new process does."""

    def __init__(self, place: S3Settings, ids: SeededIds, trust_ms: int) -> None:
        super().__init__(place, clock=ManualClock(), ids=ids, keep_ms=FREED, trust_ms=trust_ms)
        self._chance = ids

    def compare_and_set(self, key: str, expected: int | None, new: VersionedData) -> CaSResult:
        if self._chance.jitter() < 0.5:
            self._seen.clear()
        return super().compare_and_set(key, expected, new)


class Fleet:
    """Several consensus objects on one location, all with the same faults."""

    def __init__(self, uri: str, seed: int, trust_ms: int = -1) -> None:
        self.sea = RoughSea(ids_of(seed, 1))
        place = s3_settings(uri)
        assert place is not None
        self.calm = S3Consensus(place, clock=ManualClock(), ids=ids_of(seed, 50), keep_ms=FREED, trust_ms=trust_ms)
        self.calm.compare_and_set("probe", 0, VersionedData(1, b""))  # the probe runs without faults
        self.ships = [Forgetful(place, ids_of(seed, 60 + number), trust_ms) for number in range(WRITERS)]
        for ship in self.ships:
            wire = Wire(ship)
            for operation in ("PutObject", "GetObject", "ListObjectsV2"):
                wire._fates[operation] = Struck(self.sea)  # type: ignore[assignment]  # it has all that a wire asks of it

    def check(self, recorder: Recorder, seed: int) -> None:
        self.sea.deliver_late()
        final = tuple(self.calm.scan(KEY, 0))
        if find_order(recorder.calls, final) is None:
            raise AssertionError(f"PERSIST_SEED={seed}: {explain(recorder.calls, final)}")

    def close(self) -> None:
        for ship in (self.calm, *self.ships):
            ship.close()


@pytest.fixture
def bucket(versitygw: S3Server) -> Callable[[int], str]:
    name = versitygw.make_bucket()
    return lambda seed: versitygw.uri(f"{name}/{seed}")


def test_histories_by_turns(bucket: Callable[[int], str], persist_seed: int) -> None:
    struck: Counter[str] = Counter()
    for seed in range(persist_seed, persist_seed + HISTORIES):
        fleet, recorder = Fleet(bucket(seed), seed), Recorder(KEY)

        def player(
            writer: int, fleet: Fleet = fleet, recorder: Recorder = recorder, seed: int = seed
        ) -> Callable[[Pause], None]:
            def play(pause: Pause) -> None:
                own = SteppedConsensus(fleet.ships[writer], pause)
                write_history(recorder, own, ids_of(seed, 2 + writer), writer, CALLS_PER_WRITER)

            return play

        take_turns(ids_of(seed), [player(writer) for writer in range(WRITERS)])
        fleet.check(recorder, seed)
        struck += fleet.sea.struck
        fleet.close()
    assert struck["late"] >= HISTORIES // 4, struck
    assert len(struck) >= 7, struck


def test_histories_of_free_threads(bucket: Callable[[int], str], persist_seed: int) -> None:
    """The real race, which no seed repeats."""
    for seed in range(persist_seed + 1000, persist_seed + 1000 + HISTORIES):
        fleet, recorder = Fleet(bucket(seed), seed), Recorder(KEY)
        threads = [
            threading.Thread(target=write_history, args=(recorder, ship, ids_of(seed, 2 + writer), writer, 4))
            for writer, ship in enumerate(fleet.ships)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        fleet.check(recorder, seed)
        fleet.close()


def test_the_check_finds_a_writer_that_trusts_a_late_answer(bucket: Callable[[int], str], persist_seed: int) -> None:
    """With names freed immediately and every answer trusted, some history must fail: else this proves nothing."""
    for seed in range(persist_seed, persist_seed + 20 * HISTORIES):
        fleet, recorder = Fleet(bucket(seed), seed, trust_ms=10**12), Recorder(KEY)
        stalled = fleet.ships[0]
        try:
            for seqno in range(3):
                recorder.compare_and_set(fleet.calm, seqno - 1 if seqno else None, version(seqno))
                if seqno == 0:
                    recorder.head(stalled)
            recorder.truncate(fleet.calm, 2)
            recorder.compare_and_set(stalled, 0, version(1, b"stalled"))
            fleet.check(recorder, seed)
        except (AssertionError, StorageError) as error:
            if isinstance(error, AssertionError):
                return
        finally:
            fleet.close()
    raise AssertionError("a writer that trusts late answers was never found out")


def version(seqno: int, data: bytes = b"v") -> VersionedData:
    return VersionedData(seqno, data)
