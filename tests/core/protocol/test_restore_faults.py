"""Restores and forks that crash at any call of a store, see injected faults, or race each other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from persist_core.compaction.merge import Merge, merge_here
from persist_core.contents.batch import STASH_OPERATOR
from persist_core.errors import InvalidInput, RunFailed, StorageError
from persist_core.handles.client import PersistClient
from persist_core.location.open import OpenLocation
from persist_core.maintenance.fsck import fsck
from persist_core.protocol import stages
from persist_core.protocol.conflicts import list_conflicts
from persist_core.protocol.fork import fork
from persist_core.protocol.fork_records import record_fork
from persist_core.protocol.restore import NothingToRestore, plan_restore, restore
from persist_core.protocol.stages import Conflict
from persist_core.shard.state import Committed
from tests.core.protocol.restored_shard import SHARD, Collection
from tests.dying_store import Crash, DyingStore
from tests.oracle.upsert import Record
from tests.sim.simulator.write_stage import ArrowParts
from tests.suites.faults import FaultRates, SeededFaults, UnreliableBlob, UnreliableConsensus
from tests.virtual import SeededIds

A, B, C = ("eu", 1), ("eu", 2), ("", 0)
MAX_CALLS = 200


def ok(slot: tuple[str, int], name: str, time: int, row: int = 0) -> Record:
    return Record(slot, (name, None, None), time, (0, "f", 0, row))


def made(folder: Path) -> tuple[Collection, str]:
    """Two commits with a stash; to be restored to the first."""
    shard = Collection(folder)
    shard.drop("1.txt", [ok(A, "one", 1), ok(B, "later", 15)])
    first = shard.run(10)
    shard.drop("2.txt", [ok(A, "two", 12), ok(C, "new", 13), ok(C, "newer", 40)])
    shard.run(20)
    return shard, first


def client_on(shard: Collection, location: OpenLocation) -> PersistClient:
    """A new process."""
    return PersistClient(location, shard.clock, SeededIds(99, shard.clock), fetch_threads=1, part_format=ArrowParts())


def back(client: PersistClient, to: str) -> object:
    plan = plan_restore(client, SHARD, to)
    return plan if isinstance(plan, NothingToRestore) else restore(client, plan, writer="test")


def forked(client: PersistClient, to: str) -> object:
    return fork(client, SHARD, to, "twin", writer="test")


def dies(shard: Collection, to: str, do: Callable[[PersistClient, str], object], at: int, *, is_late: bool) -> bool:
    """True if the process died: False once it makes fewer calls than `at`."""
    calls = [0]
    blob = DyingStore(shard.location.blob, calls, at, is_late=is_late)
    consensus = DyingStore(shard.location.consensus, calls, at, is_late=is_late)
    try:
        do(client_on(shard, OpenLocation(blob, consensus)), to)
    except Crash:
        return True
    return False


@pytest.mark.family("commands")
@pytest.mark.parametrize("is_late", [False, True], ids=["before", "after"])
def test_a_restore_that_dies_anywhere_is_atomic(tmp_path: Path, is_late: bool) -> None:
    for at in range(1, MAX_CALLS):
        (folder := tmp_path / str(at)).mkdir()
        shard, first = made(folder)
        state, wanted = shard.client.state(SHARD), shard.contents(9)
        died = dies(shard, first, back, at, is_late=is_late)
        between = shard.client.state(SHARD)
        assert between == state or between.upper.time == 21
        back(client_on(shard, shard.location), first)
        assert [commit.restored_from for commit in shard.client.state(SHARD).commits] == [None, None, first]
        assert shard.read(20) == wanted
        assert shard.files_of(shard.mint(60)) == ["2.txt"]
        shard.run(60)
        shard.check()
        assert set(shard.contents(59)) == {A, B, C}
        if not died:
            assert at > 10
            return
    pytest.fail("the restore makes more calls than the test has patience for")


@pytest.mark.family("commands")
@pytest.mark.parametrize("is_late", [False, True], ids=["before", "after"])
def test_a_fork_that_dies_anywhere_is_atomic(tmp_path: Path, is_late: bool) -> None:
    for at in range(1, MAX_CALLS):
        (folder := tmp_path / str(at)).mkdir()
        shard, first = made(folder)
        state = shard.client.state(SHARD)
        died = dies(shard, first, forked, at, is_late=is_late)
        forked(client_on(shard, shard.location), first)
        twin = shard.beside("twin")
        assert len(twin.client.state("twin").commits) == 1
        assert twin.contents(9) == shard.contents(9)
        twin.run(60)
        twin.check()
        assert shard.client.state(SHARD) == state
        if not died:
            return
    pytest.fail("the fork makes more calls than the test has patience for")


@pytest.mark.parametrize("seed", range(12))
def test_a_restore_over_failing_stores_happens_once(tmp_path: Path, seed: int, persist_seed: int) -> None:
    shard, first = made(tmp_path)
    wanted = shard.contents(9)
    ids = SeededIds(persist_seed + seed, shard.clock)
    rates = FaultRates(lost_answer=0.02, lost_request=0.02, refused=0.02)
    location = OpenLocation(
        UnreliableBlob(shard.location.blob, SeededFaults(ids, rates)),
        UnreliableConsensus(shard.location.consensus, SeededFaults(ids, rates)),
    )
    for _ in range(MAX_CALLS):
        try:
            back(client_on(shard, location), first)
            break
        except StorageError:
            continue
    else:
        pytest.fail("a restore never got through")
    assert [commit.restored_from for commit in shard.client.state(SHARD).commits] == [None, None, first]
    assert shard.read(20) == wanted
    shard.run(60)
    shard.check()


def test_two_restores_to_one_checkpoint_are_one_commit(tmp_path: Path) -> None:
    shard, first = made(tmp_path)
    plans = [shard.plan(first), shard.plan(first)]
    one, other = [restore(shard.client, plan, writer=f"test/{number}") for number, plan in enumerate(plans)]
    assert isinstance(one, Committed)
    assert isinstance(other, Committed)
    assert (one.is_new, other.is_new, one.commit) == (True, False, other.commit)


def test_a_restore_and_an_append_race_and_heal(tmp_path: Path) -> None:
    shard, first = made(tmp_path)
    plan, description = shard.plan(first), shard.mint(30)
    staged = shard.write(description)
    assert isinstance(stages.append(shard.client, description, staged), Committed)
    before = shard.client.state(SHARD)
    lost = restore(shard.client, plan, writer="test/restore")
    assert isinstance(lost, Conflict)
    assert (lost.record.loser, lost.record.winner, lost.is_new) == ("test/restore", "dag/30", True)
    assert shard.client.state(SHARD) == before
    assert [record.conflict_id for record in list_conflicts(shard.client.blob, SHARD)] == [lost.record.conflict_id]
    shard.go_back(first)
    shard.check()


def test_an_append_overtaken_by_a_restore_is_minted_again(tmp_path: Path) -> None:
    shard, first = made(tmp_path)
    shard.drop("3.txt", [ok(A, "three", 25)])
    description = shard.mint(30)
    staged = shard.write(description)
    shard.go_back(first)
    assert isinstance(stages.append(shard.client, description, staged), Conflict)
    assert shard.files_of(shard.mint(60)) == ["2.txt", "3.txt"]
    shard.run(60)
    assert shard.contents(59)[A] != shard.contents(9)[A]
    shard.check()


def test_restores_to_two_checkpoints_at_once_are_a_conflict(tmp_path: Path) -> None:
    shard, first = made(tmp_path)
    second = shard.checkpointer.list_checkpoints()[-1]
    shard.run(30)
    one, other = shard.plan(first), shard.plan(second)
    assert isinstance(restore(shard.client, one, writer="one"), Committed)
    assert isinstance(restore(shard.client, other, writer="other"), Conflict)


def test_retention_may_take_the_checkpoint_once_it_is_restored(tmp_path: Path) -> None:
    shard, first = made(tmp_path)
    shard.go_back(first)
    newest = shard.checkpointer.list_checkpoints()[-1]
    assert shard.checkpointer.read_latest() == newest
    for checkpoint_id in shard.checkpointer.list_checkpoints()[:-1]:
        assert shard.checkpointer.delete_checkpoint(checkpoint_id)
    assert len(shard.mint(30).operators[STASH_OPERATOR]) == 1
    shard.run(60)
    shard.check()


def test_a_fork_into_a_shard_that_holds_data_is_refused(tmp_path: Path) -> None:
    shard, first = made(tmp_path)
    other = shard.beside("twin")
    other.client.ensure_shard("twin")  # its DAG was there first and had nothing to do
    forked(shard.client, first)
    twin = shard.client.state("twin")
    again = forked(shard.client, first)
    assert isinstance(again, Committed)
    assert (again.is_new, shard.client.state("twin")) == (False, twin)
    with pytest.raises(InvalidInput, match="twin already exists"):
        fork(shard.client, SHARD, shard.checkpointer.list_checkpoints()[-1], "twin", writer="test")
    with pytest.raises(InvalidInput, match="needs another name"):
        fork(shard.client, SHARD, first, SHARD, writer="test")


def merge(shard: Collection) -> None:
    """Merge the whole shard."""
    state = shard.client.state(SHARD)
    merge_here(shard.client, Merge.of(shard.client, state, state.batches), attempt=shard.client.ids.uuid7())


def test_a_fork_gives_up_where_its_batches_are_merged_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, first = made(tmp_path)

    def recorded(*arguments: Any, **named: Any) -> None:
        record_fork(*arguments, **named)
        merge(shard)

    monkeypatch.setattr("persist_core.protocol.fork.record_fork", recorded)
    with pytest.raises(RunFailed, match="were merged in the meantime; twin was not made"):
        forked(shard.client, first)
    assert not shard.client.state("twin").commits


def test_a_checkpoint_within_a_run_is_restored_and_forked(tmp_path: Path) -> None:
    shard, first = made(tmp_path)
    before = shard.client.open_reader(SHARD).snapshot(9).to_pylist()
    merge(shard)
    twin = shard.beside("twin")
    forked(shard.client, first)
    assert twin.client.open_reader("twin").snapshot().to_pylist() == before
    assert isinstance(back(shard.client, first), Committed)
    assert shard.client.open_reader(SHARD).snapshot().to_pylist() == before
    for name in (SHARD, "twin"):
        assert fsck(shard.client, name).is_clean
