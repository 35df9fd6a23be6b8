"""`history:` of a collection or view: the mint stage sets it, maintenance follows it. On every backend."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from persist_core.checkpoint.pins import pin
from persist_core.compaction.merge import Merge, merge_here
from persist_core.errors import OutsideFrontiers, SchemaMismatch, StorageError
from persist_core.frontier import Frontier
from persist_core.protocol import stages
from persist_core.protocol.fork import fork
from persist_core.protocol.fork_records import record_fork
from persist_core.protocol.stages import Minted, NothingToDo
from persist_core.shard.state import Committed
from tests.core.protocol.restored_shard import SHARD, Collection
from tests.core.protocol.test_protocol import DAY_MS, World, world
from tests.core.protocol.test_view_protocol import World as Views
from tests.oracle.upsert import Record

__all__ = ["world"]  # the fixture

A = ("eu", 1)


def commit(world: World, until: int) -> None:
    description = world.minted(until)
    key = world.write(description, [(1, f"until {until}", until - 1, 1)] if until == DAY_MS else None)
    assert isinstance(stages.append(world.client, description, key), Committed)


def keep(world: World, history: str) -> None:
    world.config = world.config.model_validate(world.config.model_dump() | {"history": history})


def test_a_fork_can_be_read_from_the_since_that_its_files_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shard's own `since` passes the checkpoint after its batches were looked up, and before the fork is made."""
    shard = Collection(tmp_path)
    shard.drop("1.txt", [Record(("eu", 1), ("one", None, None), None, (0, "1", 0, 0))])
    first = shard.run(10)
    for until in (20, 30):
        shard.run(until)

    def recorded(*arguments: Any, **named: Any) -> None:
        record_fork(*arguments, **named)
        shard.client.set_history(SHARD, 0)
        assert shard.client.advance_since(SHARD).since == Frontier(29)

    monkeypatch.setattr("persist_core.protocol.fork.record_fork", recorded)
    fork(shard.client, SHARD, first, "twin", writer="test")
    twin = shard.client.state("twin")
    assert (twin.since, twin.upper, twin.history_ms) == (Frontier(0), Frontier(10), None)
    assert shard.client.open_reader("twin").snapshot(9).num_rows == 1
    with pytest.raises(OutsideFrontiers, match="history before since is gone"):
        fork(shard.client, SHARD, first, "late", writer="test")
    assert "late" not in shard.client.shards()


def test_mint_sets_a_changed_history_and_reports_it(world: World) -> None:
    keep(world, "2 days")
    minted = world.mint(DAY_MS)
    assert isinstance(minted, Minted)
    assert minted.notices == ()  # a new shard had no other
    state = world.client.state("things")
    assert (state.history_ms, state.seqno) == (2 * DAY_MS, 1)
    world.mint(DAY_MS)
    assert world.client.state("things").seqno == 1
    commit(world, DAY_MS)
    keep(world, "36 hours")
    changed = world.mint(2 * DAY_MS)
    assert isinstance(changed, Minted)
    assert changed.notices[0].startswith("history of shard things is now 36 hours; it was 2 days. ")
    keep(world, "all")
    nothing = world.mint(DAY_MS)
    assert isinstance(nothing, NothingToDo)
    assert "history of shard things is now all; it was 1 day 12 hours" in nothing.reason
    assert world.client.state("things").history_ms is None


def test_a_view_has_a_history_of_its_own() -> None:
    world = Views()
    world.append("a", 10, 1)
    world.append("b", 10, 2)
    world.refresh(history="5 minutes")
    assert [world.client.state(name).history_ms for name in "abv"] == [None, None, 300_000]
    world.append("a", 400_000, 1)
    world.append("b", 400_000, 2)
    world.refresh(history="5 minutes")
    assert world.client.advance_since("v").since == Frontier(100_000)
    assert world.client.advance_since("a").since == Frontier(0)


def test_since_follows_and_what_it_has_passed_is_a_clear_error(world: World) -> None:
    for day in range(1, 6):
        commit(world, day * DAY_MS)
    assert world.client.advance_since("things").since == Frontier(0)
    keep(world, "2 days")
    commit(world, 6 * DAY_MS)
    reader = world.client.open_leased_reader("things", lease_ms=1_000)
    held = world.client.advance_since("things")
    assert held.since == Frontier(0)
    assert held.held_by is not None
    assert reader.snapshot(DAY_MS).num_rows == 1
    world.clock.sleep_ms(1_001)
    seqno = world.client.state("things").seqno
    assert world.client.advance_since("things").since == Frontier(4 * DAY_MS)
    assert world.client.advance_since("things").since == Frontier(4 * DAY_MS)
    assert world.client.state("things").seqno == seqno + 1
    plain = world.client.open_reader("things")
    assert plain.snapshot(4 * DAY_MS).num_rows == 1
    reads: list[Callable[[], object]] = [
        lambda: plain.snapshot(4 * DAY_MS - 1),
        lambda: plain.changes(DAY_MS),
        lambda: plain.error_changes(DAY_MS),
        lambda: plain.errors(0),
    ]
    for read in reads:
        with pytest.raises(OutsideFrontiers, match=r"history before since is gone: .*`persist holds things`"):
            read()


def test_a_checkpoint_before_the_first_file_is_restored(tmp_path: Path) -> None:
    shard = Collection(tmp_path)
    empty = shard.run(10)
    pin(shard.client, SHARD, empty)
    for number in (2, 3):
        shard.drop(f"{number}.txt", [Record(A, (f"a{number}", None, None), 10 * number - 1, (0, "f", 0, 0))])
        shard.run(10 * number)
    state = shard.client.state(SHARD)
    merge_here(shard.client, Merge.of(shard.client, state, state.batches), attempt=shard.client.ids.uuid7())
    fork(shard.client, SHARD, empty, "twin", writer="test")
    shard.go_back(empty)
    for name in (SHARD, "twin"):
        made = shard.beside(name)
        assert made.contents(made.upper() - 1) == {}
        assert made.files_of(made.mint(40)) == ["2.txt", "3.txt"]
        made.check()


def test_the_folder_may_change_before_the_first_file(tmp_path: Path) -> None:
    """The progress names a folder only if a file was consumed from it."""
    shard = Collection(tmp_path)
    shard.run(10)
    folder = tmp_path / "other"
    folder.mkdir()
    moved = Collection(folder, shard.location)
    moved.client.ids = shard.client.ids
    moved.drop("1.txt", [Record(A, ("a1", None, None), 19, (0, "f", 0, 0))])
    moved.run(20)
    assert set(moved.contents(19)) == {A}


@pytest.mark.parametrize(
    ("wrong", "refused"),
    [
        pytest.param({"columns": {"id": "bigint", "name": "date"}}, SchemaMismatch, id="a type"),
        pytest.param({"key": "name"}, SchemaMismatch, id="the key"),
        pytest.param({"source": {"path": "nowhere/*", "format": "json"}}, StorageError, id="a folder"),
    ],
)
def test_a_refused_mint_changes_nothing(world: World, wrong: dict[str, Any], refused: type[Exception]) -> None:
    commit(world, DAY_MS)
    before, good = world.client.state("things"), world.config
    world.config = good.model_validate(good.model_dump() | {"history": "1 hour"} | wrong)
    with pytest.raises(refused):
        world.mint(2 * DAY_MS)
    assert world.client.state("things") == before
    world.config = world.config.model_validate(world.config.model_dump() | {"name": "others"})
    if refused is StorageError:
        with pytest.raises(refused):
            world.mint(2 * DAY_MS)
        assert "others" not in world.client.shards()
