"""The retry loop over a consensus that loses requests and answers, and delivers some of them late.

Several writers append to one shard in turns drawn by seed. After any loss, every answer that a writer received is true.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from persist_core.contents.batch import BatchCounts, BatchManifest
from persist_core.contents.schema_versions import SchemaVersions
from persist_core.errors import StorageError
from persist_core.location import MemConsensus
from persist_core.shard import state as transitions
from persist_core.shard.machine import Machine
from persist_core.shard.state import Committed, UpperMismatch
from tests.core.world import KEYS
from tests.sim.turns import Pause, SteppedConsensus, take_turns
from tests.suites.faults import FaultRates, Outcome, ScriptedFaults, SeededFaults, UnreliableConsensus
from tests.virtual import ManualClock, SeededIds

SCHEMA = SchemaVersions().placed(KEYS)
WRITERS = 3
BATCHES_PER_WRITER = 3
ROUGH = FaultRates(lost_answer=0.15, lost_request=0.1, refused=0.1, late=0.15)


def manifest(lower: int, token: str) -> BatchManifest:
    return BatchManifest(
        "s", lower, lower + 1, token, "c", SCHEMA, (), BatchCounts(), f"id-{token}", lower + 1, None, f"writer-{token}"
    )


def append(machine: Machine, batch: BatchManifest) -> Committed | UpperMismatch:
    _, result = machine.apply(
        "s",
        lambda state: transitions.compare_and_append(state, batch, "k", expected_upper=batch.lower, now_ms=0),
        create=True,
    )
    return result


class History:
    """One run of all writers; `told` is the last answer to each token's writer, `None` if it received none."""

    def __init__(self, seed: int) -> None:
        self.store = MemConsensus()
        self.unreliable = UnreliableConsensus(self.store, SeededFaults(SeededIds(100 * seed, ManualClock()), ROUGH))
        self.told: dict[str, Committed | UpperMismatch | None] = {}
        turns = SeededIds(100 * seed + 1, ManualClock())
        take_turns(turns, [self.writer(seed, number) for number in range(WRITERS)])
        self.unreliable.deliver_late()

    def writer(self, seed: int, number: int) -> Callable[[Pause], None]:
        def write(pause: Pause) -> None:
            clock = ManualClock()
            ids = SeededIds(100 * seed + 2 + number, clock)
            machine = Machine(SteppedConsensus(self.unreliable, pause), clock, ids)
            for batch in range(BATCHES_PER_WRITER):
                token = f"{number}-{batch}"
                self.told[token] = None
                try:
                    state = machine.fetch("s")
                    lower = 0 if state is None or state.upper.time is None else state.upper.time
                    self.told[token] = append(machine, manifest(lower, token))
                except StorageError:
                    continue  # the writer died here: the outcome is unknown, and no answer was given

        return write


def test_what_a_writer_was_told_is_true_for_ever(persist_seed: int) -> None:
    injected: Counter[Outcome] = Counter()
    answers: Counter[str] = Counter()
    for seed in range(persist_seed, persist_seed + 150):
        history = History(seed)
        state = Machine(history.store, ManualClock(), SeededIds(1, ManualClock())).fetch("s")
        tokens = [commit.token for commit in state.commits] if state else []
        assert len(tokens) == len(set(tokens)), f"PERSIST_SEED={seed}: a token was committed twice: {tokens}"
        assert state is None or [batch.lower for batch in state.batches] == list(range(len(tokens)))
        for token, told in history.told.items():
            answers[type(told).__name__] += 1
            if isinstance(told, Committed):
                assert token in tokens, f"PERSIST_SEED={seed}: {token} was told that it is in, and is not"
            elif isinstance(told, UpperMismatch):
                assert token not in tokens, f"PERSIST_SEED={seed}: {token} was told that it lost, and is in"
        injected += history.unreliable.injected
    assert all(injected[outcome] > 50 for outcome in Outcome), injected
    assert min(answers["Committed"], answers["UpperMismatch"]) > 50, answers


@pytest.mark.parametrize("outcome", [Outcome.LOST_ANSWER, Outcome.LOST_REQUEST, Outcome.REFUSED])
def test_old_versions_are_deleted_whatever_answers_are_lost(outcome: Outcome) -> None:
    """It is the end of a checkpoint task, whose work is done."""
    store, clock = MemConsensus(), ManualClock()
    machine = Machine(UnreliableConsensus(store, ScriptedFaults(truncate=[outcome] * 3)), clock, SeededIds(1, clock))
    for lower in range(10):
        append(machine, manifest(lower, f"{lower}"))
    state = machine.fetch("s")
    assert state is not None
    for kept in (state.seqno + 2, 3):
        machine.forget(state, kept=kept)
        assert len(store.scan("s", 0)) == min(kept, state.seqno + 1)
