"""A shard that is dropped and created again while a task of the dropped one is at work, at each of its store calls."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from persist_core.errors import CheckpointNotFound, CorruptArtifact, InvalidInput, ReadTooSlow, RunFailed
from persist_core.gc.collect import GRACE_MS, INTENT_MS, collect
from persist_core.location.mem import MemConsensus
from persist_core.location.open import OpenLocation
from persist_core.maintenance.drop import create_again, drop
from persist_core.maintenance.fsck import fsck
from persist_core.protocol import stages
from persist_core.protocol.fork import fork
from persist_core.protocol.restore import RestorePlan, plan_restore, restore
from tests.core.checkpoint.test_checkpoint_races import Overtaking, each_call
from tests.core.protocol.restored_shard import SHARD, Collection
from tests.oracle.upsert import Record

A = ("eu", 1)
OVERTAKEN = (RunFailed, InvalidInput, ReadTooSlow, CheckpointNotFound)  # what a slow task may say


class Lives:
    """A shard on a store that lets a rival drop it and create it again before any call."""

    def __init__(self, folder: Path, *, has_stash: bool = True) -> None:
        folder.mkdir()
        self.has_stash = has_stash
        self.blob = Overtaking()
        self.shard = Collection(folder, OpenLocation(self.blob, MemConsensus()))
        self.old = [self.run(number, "old") for number in (1, 2, 3)]

    def run(self, number: int, name: str) -> str:
        """A commit of a row, and of one that waits in the stash."""
        times = (10 * number - 1, 10 * number + 5) if self.has_stash else (10 * number - 1,)
        rows = [Record(A, (f"{name} {time}", None, None), time, (0, "f", 0, 0)) for time in times]
        self.shard.drop(f"{name}{number}.txt", rows)
        return self.shard.run(10 * number)

    def begin_again(self) -> None:
        """Another user's commits: fewer commits than the dropped shard had, so its epochs are lower."""
        drop(self.shard.client, SHARD, is_forced=True)
        for file in self.shard.folder.iterdir():
            file.unlink()
        create_again(self.shard.client, SHARD)
        self.new = [self.run(1, "new")]

    def check(self) -> None:
        """After the next checkpoint task and GC, all is the new shard's, and any checkpoint of it can be restored."""
        client = self.shard.client
        for checkpoint_id in self.old:
            with pytest.raises((CheckpointNotFound, CorruptArtifact)):
                plan_restore(client, SHARD, checkpoint_id)
        stages.checkpoint(client, self.shard.config)
        for _ in range(INTENT_MS // GRACE_MS + 3):
            self.shard.clock.sleep_ms(GRACE_MS)
            collect(client, SHARD)
        self.shard.check()
        assert self.shard.checkpointer.list_checkpoints() == self.new
        assert self.shard.checkpointer.read_latest() == self.new[-1]
        assert [row["name"] for row in client.open_reader(SHARD).snapshot().to_pylist()] == ["new 9"]


def _checkpoint(lives: Lives) -> None:
    stages.checkpoint(lives.shard.client, lives.shard.config)


def _collect(lives: Lives) -> None:
    lives.shard.clock.sleep_ms(GRACE_MS)
    collect(lives.shard.client, SHARD)


def _restore(lives: Lives) -> None:
    with suppress(*OVERTAKEN):
        plan = plan_restore(lives.shard.client, SHARD, lives.old[0])
        assert isinstance(plan, RestorePlan)
        restore(lives.shard.client, plan, writer="test")


def _fork(lives: Lives) -> None:
    with suppress(*OVERTAKEN):
        fork(lives.shard.client, SHARD, lives.old[0], "twin", writer="test")


@pytest.mark.family("commands")
@pytest.mark.parametrize(
    ("task", "has_stash"),
    [(_checkpoint, False), (_checkpoint, True), (_collect, True), (_restore, True), (_fork, True)],
)
def test_a_task_of_a_dropped_shard_leaves_the_new_one_alone(
    tmp_path: Path, task: Callable[[Lives], None], has_stash: bool
) -> None:
    def run(calls: int) -> bool:
        lives = Lives(tmp_path / str(calls), has_stash=has_stash)
        layout = lives.shard.checkpointer.layout
        if task is _checkpoint:  # so that it has to publish
            lives.shard.client.blob.delete(layout.manifest(lives.old[-1]))
        lives.blob.overtake(calls, lives.begin_again)
        task(lives)
        is_overtaken = lives.blob.has_overtaken()
        if is_overtaken:
            lives.check()
        return is_overtaken

    assert each_call(run) > 10


def test_fsck_names_checkpoints_of_a_dropped_shard(tmp_path: Path) -> None:
    """Its task died right after it had published."""
    lives = Lives(tmp_path / "x")
    layout = lives.shard.checkpointer.layout
    ghost = layout.manifest(lives.old[-1]), layout.artifact(lives.old[-1], "offsets/files.json")
    published = {key: lives.blob.get(key) for key in ghost}
    lives.begin_again()
    for key, data in published.items():
        assert data is not None
        lives.blob.set(key, data)
    lives.blob.set(layout.latest, lives.old[-1].encode())
    with pytest.raises(CorruptArtifact, match="is of another shard things, which was dropped"):
        plan_restore(lives.shard.client, SHARD, lives.old[-1])
    said = [violation.message for violation in fsck(lives.shard.client, SHARD).violations]
    assert any("is of another shard things, which was dropped" in message for message in said)
    lives.check()
