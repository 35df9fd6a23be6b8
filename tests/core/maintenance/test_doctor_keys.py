"""The keys of `persist doctor`'s probes: no shard has them, and a killed probe's keys are removed."""

from __future__ import annotations

from persist_core.clock import SystemClock
from persist_core.errors import Determinate
from persist_core.ids import LEFTOVER_AGE_MS, uuid7_of
from persist_core.keys import copy_probe_key, doctor_probe_key, is_shard_name, owner_of
from persist_core.location import CaSResult, MemBlob, MemConsensus, VersionedData
from persist_core.maintenance.doctor import Examiner
from tests.suites.consensus_conformance import fill
from tests.virtual import SeededIds

CLOCK = SystemClock()
EXAMINER = Examiner(CLOCK, SeededIds(1, CLOCK), commits=3)
OLD, NEW = (uuid7_of(CLOCK.now_ms() - age_ms, "a") for age_ms in (LEFTOVER_AGE_MS + 1, LEFTOVER_AGE_MS // 2))


class WatchedConsensus(MemConsensus):
    def __init__(self) -> None:
        super().__init__()
        self.keys: set[str] = set()

    def compare_and_set(self, key: str, expected: int | None, new: VersionedData) -> CaSResult:
        self.keys.add(key)
        return super().compare_and_set(key, expected, new)


class WatchedBlob(MemBlob):
    def __init__(self) -> None:
        super().__init__()
        self.keys: set[str] = set()

    def set(self, key: str, data: bytes) -> None:
        self.keys.add(key)
        super().set(key, data)


class Undeletable(MemBlob):
    def delete(self, key: str) -> int | None:
        raise Determinate(f"access denied: {key}")


def test_no_key_of_a_probe_can_be_a_shards() -> None:
    consensus, blob = WatchedConsensus(), WatchedBlob()
    EXAMINER.consensus(consensus)
    EXAMINER.blob(blob)
    assert consensus.keys
    assert blob.keys
    assert not any(is_shard_name(owner_of(key)) for key in consensus.keys | blob.keys)


def test_what_killed_probes_left_goes_after_a_day() -> None:
    consensus, blob = MemConsensus(), MemBlob()
    others = [doctor_probe_key(NEW), f"persist-doctor-{OLD}", "_doctor", "_doctor/mine", f"_watch/{OLD}"]
    for key in (doctor_probe_key(OLD), *others):
        fill(consensus, key, [VersionedData(0, b"x")])
    EXAMINER.consensus(consensus)
    assert sorted(consensus.list_keys()) == sorted(others)
    others = [f"{doctor_probe_key(NEW)}/large", copy_probe_key(NEW), f"people/{OLD}", "_location", "_doctor/mine"]
    for key in (f"{doctor_probe_key(OLD)}/small/001", copy_probe_key(OLD), *others):
        blob.set(key, b"x")
    EXAMINER.blob(blob)
    assert sorted(entry.key for entry in blob.list_keys_and_metadata("")) == sorted(others)


def test_without_the_right_to_delete_little_is_written() -> None:
    blob = Undeletable()
    assert "access denied" in EXAMINER.blob(blob)[-1].found
    assert [entry.size_bytes for entry in blob.list_keys_and_metadata("")] == [0]
