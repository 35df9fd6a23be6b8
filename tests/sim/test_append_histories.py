"""Histories of appends by many writers under faults: nothing is lost or doubled, and the log is linearizable.

A failing history prints its seed: PERSIST_SEED=<seed> makes it the first one again.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings

from persist_core.location.consensus import CaSResult, Consensus, VersionedData
from persist_core.location.mem import MemConsensus
from persist_core.location.sqlite.consensus import SqliteConsensus
from persist_core.shard.register import Register
from tests.sim.append_history import AppendHistory, Told, append_history
from tests.suites.faults import Outcome

HISTORIES = {"dev": 300, "ci": 300, "nightly": 100_000}
SLOW_STORE_HISTORIES = {"dev": 10, "ci": 10, "nightly": 2_000}
MAX_HISTORIES_TO_FIND = 200  # within which a planted defect has to show itself


def count_of(histories: dict[str, int]) -> int:
    return histories[settings.get_current_profile_name()]


def test_many_histories_over_memory(persist_seed: int) -> None:
    injected: Counter[Outcome] = Counter()
    told: Counter[Told] = Counter()
    deaths = 0
    for seed in range(persist_seed, persist_seed + count_of(HISTORIES)):
        history = append_history(seed, MemConsensus())
        history.check()
        injected += history.injected
        told += Counter(history.told.values())
        deaths += history.deaths
    assert all(injected[outcome] > 100 for outcome in Outcome), injected
    assert all(told[what] > 10 for what in Told), told  # else the claims would prove nothing
    assert deaths > 100


def test_histories_over_sqlite(persist_seed: int, tmp_path: Path) -> None:
    store = SqliteConsensus(tmp_path / "consensus.db")
    for seed in range(persist_seed, persist_seed + count_of(SLOW_STORE_HISTORIES)):
        append_history(seed, store, shard=f"shard-{seed}").check()
    store.close()


@pytest.mark.parametrize("backend", ["mem", "sqlite"])
def test_histories_of_free_threads(persist_seed: int, tmp_path: Path, backend: str) -> None:
    store: Consensus = MemConsensus() if backend == "mem" else SqliteConsensus(tmp_path / "consensus.db")
    for seed in range(persist_seed, persist_seed + count_of(SLOW_STORE_HISTORIES)):
        append_history(seed, store, shard=f"shard-{seed}", is_stepped=False).check()
    store.close()


def test_a_history_repeats_itself(persist_seed: int) -> None:
    def facts(history: AppendHistory) -> object:
        return [str(call) for call in history.recorder.calls], history.told, history.final

    first, second = (append_history(persist_seed, MemConsensus()) for _ in range(2))
    assert facts(first) == facts(second)


# the check itself: planted defects must be found


def assert_found(store: type[MemConsensus], seed: int) -> None:
    def check_all() -> None:
        for number in range(MAX_HISTORIES_TO_FIND):
            append_history(seed + number, store()).check()

    with pytest.raises(AssertionError, match=r"history of seed \d+: "):
        check_all()


class Forgetful(MemConsensus):
    """Acknowledges some commits without keeping them."""

    def compare_and_set(self, key: str, expected: int | None, new: VersionedData) -> CaSResult:
        return CaSResult.COMMITTED if new.seqno % 3 == 2 else super().compare_and_set(key, expected, new)


class Overwriting(MemConsensus):
    """Lets a second writer replace a version whose commit was acknowledged to the first."""

    def compare_and_set(self, key: str, expected: int | None, new: VersionedData) -> CaSResult:
        versions = self._store.values.get(key, [])
        if versions and versions[-1].seqno == new.seqno and new.seqno % 2:
            versions[-1] = new
            return CaSResult.COMMITTED
        return super().compare_and_set(key, expected, new)


@pytest.mark.parametrize("store", [Forgetful, Overwriting])
def test_a_store_that_breaks_the_contract_is_found_out(store: type[MemConsensus], persist_seed: int) -> None:
    assert_found(store, persist_seed)


def test_taking_a_lost_race_for_a_won_one_is_found_out(persist_seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Register, "_has", lambda *_: True)
    assert_found(MemConsensus, persist_seed)
