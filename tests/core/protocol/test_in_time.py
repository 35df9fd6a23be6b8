"""Changes move the upper, but take in no input: what is dated in between is not late for the next run."""

from __future__ import annotations

from pathlib import Path

from persist_core.protocol import stages
from persist_core.protocol.describe import describe_change
from persist_core.protocol.fork import fork
from persist_core.shard.state import Committed
from tests.core.maintenance.rebuilt_shard import made, ok, rebuilt
from tests.core.maintenance.test_reprocess import HIDDEN, corrected, replace_file
from tests.core.protocol.restored_shard import SHARD, Collection

A = ("eu", 1)


def change(shard: Collection) -> str:
    """Commit a change that changes no row; returns its checkpoint's id."""
    attempt = shard.client.ids.uuid7()
    description = describe_change(shard.client, shard.client.state(shard.shard), attempt, writer="test")
    key = shard.client.open_writer(shard.shard).stage(description, shard.schema, attempt)
    assert isinstance(stages.append(shard.client, description, key), Committed)
    stages.checkpoint(shard.client, shard.config)
    return description.checkpoint_id


def bounds(shard: Collection) -> tuple[int | None, int]:
    """From when on input of the next run is in time, if that is before its lower; and its lower."""
    description = shard.mint(1000)
    return description.in_time_from, description.lower


def test_input_is_in_time_from_the_last_run_on(tmp_path: Path) -> None:
    shard = Collection(tmp_path)
    shard.drop("1.txt", [ok(A, "a")])
    first = shard.run(10)
    assert bounds(shard) == (None, 10)
    changed = [change(shard), change(shard)][-1]
    assert bounds(shard) == (10, 12)
    shard.run(20)
    assert bounds(shard) == (None, 20)
    shard.go_back(first)
    replace_file(shard, "1.txt", (ok(A, "b"),))
    corrected(shard, 0)
    assert bounds(shard) == (20, 22)
    for checkpoint_id, name, expected in ((first, "run", (10, 10)), (changed, "change", (10, 12))):
        fork(shard.client, SHARD, checkpoint_id, name, writer="test")
        assert bounds(shard.beside(name)) == expected
    shard.check()


def test_a_replay_that_goes_on_is_in_time_as_the_shard_is(tmp_path: Path) -> None:
    """A dry run has brought it up to the upper that a change has moved; what the run after that took comes next."""
    shard = Collection(tmp_path)
    shard.drop("1.txt", [ok(A, "a")])
    shard.run(10)
    change(shard)
    replace_file(shard, "1.txt", (ok(A, "b"),))
    corrected(shard, 0, is_dry_run=True)
    hidden = shard.beside(HIDDEN)
    assert bounds(hidden) == (10, 11)
    change(hidden)
    assert bounds(hidden) == (10, 12)


def test_a_swap_takes_in_nothing_either(tmp_path: Path) -> None:
    shard = made(tmp_path)
    rebuilt(shard)
    assert bounds(shard) == (30, 31)
    shard.define(0)
    rebuilt(shard, back_to=-1)
    assert bounds(shard) == (30, 32)
