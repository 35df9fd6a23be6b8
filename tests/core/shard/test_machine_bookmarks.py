"""`Machine.apply` by a bookmark: whatever old state it leads to, the answer is the newest state's."""

from __future__ import annotations

import threading

import pytest

from persist_core.clock import ManualClock
from persist_core.errors import Determinate, SchemaMismatch
from persist_core.ids import SeededIds
from persist_core.location.consensus import VersionedData
from persist_core.location.mem import MemConsensus
from persist_core.schema import CollectionSchema, Column
from persist_core.shard import state as transitions
from persist_core.shard.batch import BatchManifest
from persist_core.shard.machine import Machine
from persist_core.shard.state import Committed, ShardState, UpperMismatch
from tests.core.shard.test_machine import machine, manifest

WRITERS, APPENDS = 4, 12


class Bookmarked(MemConsensus):
    """A bookmark is a seqno, or "broken"; counts the heads that it could not spare."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = 0

    def head(self, key: str) -> VersionedData | None:
        self.heads += 1
        return super().head(key)

    def bookmark(self, key: str) -> str | None:
        newest = super().head(key)
        return None if newest is None else str(newest.seqno)

    def turn_to(self, key: str, bookmark: str) -> VersionedData | None:
        if bookmark == "broken":
            raise Determinate("no answer")
        found = self.scan(key, int(bookmark), 1)
        return found[0] if found else None


def append(on: Machine, batch: BatchManifest, bookmark: str | None) -> Committed | UpperMismatch:
    _, result = on.apply(
        "s",
        lambda state: transitions.compare_and_append(state, batch, "k", expected_upper=batch.lower, now_ms=0),
        create=True,
        bookmark=bookmark,
    )
    return result


@pytest.fixture
def consensus() -> Bookmarked:
    """Two commits: seqno 0 has the upper 10, seqno 1 the upper 20."""
    made = Bookmarked()
    for lower in (0, 10):
        append(machine(made, seed=lower), manifest(lower, lower + 10, f"t{lower}"), None)
    made.heads = 0
    return made


def test_the_newest_state_s_bookmark_spares_the_look(consensus: Bookmarked) -> None:
    on = machine(consensus)
    assert on.bookmark("s") == "1"
    assert isinstance(append(on, manifest(20, 30, "a"), "1"), Committed)
    assert consensus.heads == 0
    assert machine(MemConsensus()).bookmark("s") is None


@pytest.mark.parametrize("bookmark", ["0", "1", "7", "broken"])
def test_whatever_the_bookmark_the_answer_is_the_same(consensus: Bookmarked, bookmark: str) -> None:
    again = append(machine(consensus), manifest(10, 20, "t10"), bookmark)
    assert isinstance(again, Committed)
    assert not again.is_new
    lost = append(machine(consensus), manifest(10, 15, "b"), bookmark)
    assert isinstance(lost, UpperMismatch)
    assert (lost.found.time, lost.is_stale) == (20, True)
    assert isinstance(append(machine(consensus), manifest(20, 30, "a"), bookmark), Committed)
    assert len(consensus.scan("s", 0)) == 3


def test_an_error_of_an_old_state_is_not_the_newest_one_s(consensus: Bookmarked) -> None:
    other = CollectionSchema(key=(Column("other", "string", nullable=False),))
    batch = BatchManifest(**{**manifest(10, 15, "b").__dict__, "schema": other})
    assert isinstance(append(machine(consensus), batch, "0"), UpperMismatch), "the newest is asked for the upper first"
    batch = BatchManifest(**{**manifest(20, 25, "b").__dict__, "schema": other})
    with pytest.raises(SchemaMismatch):
        append(machine(consensus), batch, "1")


def test_many_writers_by_bookmarks_of_any_age_lose_and_double_nothing(persist_seed: int) -> None:
    consensus = Bookmarked()
    wrong: list[str] = []

    def write(writer: int) -> None:
        ids = SeededIds(persist_seed * 10 + writer, ManualClock())
        on = Machine(consensus, ManualClock(), ids)
        for number in range(APPENDS):
            for _ in range(200):
                state = on.fetch("s") or ShardState("s")
                oldest = int(ids.jitter() * (state.seqno + 1)) if ids.jitter() < 0.5 else state.seqno
                lower = state.upper.time or 0
                batch = manifest(lower, lower + 1, f"{writer}.{number}")
                result = append(on, batch, str(max(0, oldest)))
                if isinstance(result, Committed):
                    break
            else:
                wrong.append(f"writer {writer} was never let in")

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    state = machine(consensus).fetch("s")
    assert state is not None
    assert sorted(commit.token for commit in state.commits) == sorted(
        f"{writer}.{number}" for writer in range(WRITERS) for number in range(APPENDS)
    )
    assert state.upper.time == WRITERS * APPENDS


def test_what_no_consensus_knows_is_no_bookmark() -> None:
    plain = MemConsensus()
    assert isinstance(append(machine(plain), manifest(0, 10, "a"), "any"), Committed)
