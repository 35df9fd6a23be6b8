"""An `until` in the future: refused, and how to go on from a shard whose upper one has moved there."""

from __future__ import annotations

from pathlib import Path

import pytest

from persist_core.errors import Determinate, InvalidInput
from persist_core.protocol import stages
from persist_core.protocol.fork import fork
from persist_core.protocol.stages import MAX_AHEAD_MS, Minted, NothingToDo
from persist_core.shard.state import Committed
from persist_core.time_text import parse_time
from tests.core.protocol.restored_shard import SHARD, Collection
from tests.oracle.strategies import SCHEMA
from tests.oracle.upsert import Record

YEAR_2099 = parse_time("2099-01-01")
HOUR = 3_600_000


def record(number: int) -> Record:
    """An upsert of one key, in a time that its description gives."""
    values = tuple({"bigint": number, "int": number, "string": str(number)}.get(c.type) for c in SCHEMA.columns)
    keys = len(SCHEMA.key)
    return Record(values[:keys], values[keys:], None, (f"f{number}", 0))


@pytest.fixture
def shard(tmp_path: Path) -> Collection:
    return Collection(tmp_path)


def mint(shard: Collection, until: int | None, *, is_forced: bool = False) -> Minted | NothingToDo:
    return stages.mint(shard.client, shard.config, until=until, writer="dag/run", is_forced=is_forced)


def run_forced(shard: Collection, until: int) -> None:
    minted = mint(shard, until, is_forced=True)
    assert isinstance(minted, Minted)
    committed = stages.append(shard.client, minted.description, shard.write(minted.description))
    assert isinstance(committed, Committed)
    stages.checkpoint(shard.client, shard.config)


def test_an_until_over_an_hour_ahead_is_refused(shard: Collection) -> None:
    now = shard.clock.now_ms()
    for until in (YEAR_2099, now + MAX_AHEAD_MS + 1):
        with pytest.raises(InvalidInput, match=r"until is 20.*; expected at most .*--force.*\"force\": true"):
            mint(shard, until)
    assert shard.client.machine.fetch(SHARD) is None
    assert isinstance(mint(shard, now + MAX_AHEAD_MS), Minted)
    assert isinstance(mint(shard, YEAR_2099, is_forced=True), Minted)


def test_a_folder_that_does_not_exist_leaves_no_empty_shard(shard: Collection) -> None:
    shard.folder.rmdir()
    with pytest.raises(Determinate, match="does not exist or is not a folder"):
        mint(shard, shard.clock.now_ms())
    assert shard.client.machine.fetch(SHARD) is None


def test_a_run_that_the_upper_covers_names_the_files_that_wait(shard: Collection) -> None:
    now = shard.clock.now_ms()
    shard.drop("f1.txt", [record(1)])
    run_forced(shard, YEAR_2099)
    nothing = mint(shard, now)
    assert isinstance(nothing, NothingToDo)
    assert nothing.pending == 0
    assert "pending" not in nothing.reason
    shard.drop("f2.txt", [record(2)])
    shard.drop("f3.txt", [record(3)])
    stalled = mint(shard, now)
    assert isinstance(stalled, NothingToDo)
    assert stalled.pending == 2
    assert "2 inputs are pending, and no scheduled run reads them before 2099-01-01T00:00:00Z" in stalled.reason
    assert "`A shard whose upper is in the future` in docs/operations.md" in stalled.reason


def test_a_late_file_waits_for_the_next_run(shard: Collection) -> None:
    now = shard.clock.now_ms()
    run_forced(shard, now)
    shard.drop("f1.txt", [record(1)])
    nothing = mint(shard, now - HOUR)
    assert isinstance(nothing, NothingToDo)
    assert nothing.pending == 1
    assert "1 inputs are pending, for the next run that ends after" in nothing.reason


def test_a_closed_shard_names_the_files_that_it_will_never_read(shard: Collection) -> None:
    shard.run(None)
    shard.drop("f1.txt", [record(1)])
    nothing = mint(shard, shard.clock.now_ms())
    assert isinstance(nothing, NothingToDo)
    assert nothing.pending == 1
    assert "will never be read" in nothing.reason


def test_unlistable_files_do_not_fail_a_finished_run(shard: Collection) -> None:
    now = shard.clock.now_ms()
    run_forced(shard, now)
    shard.folder.rename(shard.folder.with_name("archived"))
    nothing = mint(shard, now)
    assert isinstance(nothing, NothingToDo)
    assert nothing.pending is None
    assert "Pending input can't be counted: source folder" in nothing.reason


def test_a_fork_before_a_future_upper_continues(shard: Collection) -> None:
    """The procedure in docs/operations.md, `A shard whose upper is in the future`."""
    now = shard.clock.now_ms()
    shard.drop("f1.txt", [record(1)])
    before = shard.run(now)
    as_planned = shard.contents(now - 1)
    shard.drop("f2.txt", [record(2)])
    run_forced(shard, YEAR_2099)
    shard.drop("f3.txt", [record(3)])
    shard.clock.sleep_ms(2 * HOUR)
    assert isinstance(mint(shard, now + HOUR), NothingToDo)

    assert isinstance(fork(shard.client, SHARD, before, "things_2", writer="test"), Committed)
    went_on = shard.beside("things_2")
    assert went_on.upper() == now
    description = went_on.mint(now + HOUR)
    assert went_on.files_of(description) == ["f2.txt", "f3.txt"]
    went_on.run(now + HOUR)
    assert went_on.contents(now - 1) == as_planned
    assert len(went_on.contents(now + HOUR - 1)) == 3
    went_on.check()
