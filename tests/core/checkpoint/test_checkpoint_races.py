"""Publishers and minters that are overtaken at each of their store calls in turn: found by the simulator.

The rival commits, publishes, and its retention deletes all older checkpoints. The overtaken process must end well:
what it was reading was deleted correctly, which is not corruption.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

import pytest

from persist_core.checkpoint.publish import publish, settle_latest
from persist_core.errors import AlreadyCommitted, CorruptArtifact
from persist_core.keys import offsets_path
from persist_core.location.blob import BlobMetadata
from persist_core.location.mem import MemBlob
from persist_core.maintenance.fsck import fsck
from persist_core.protocol import stages
from persist_core.protocol.stages import Minted
from tests.core.checkpoint.checkpointed_shard import KEEP_ALL, KEEP_ONE, Shard
from tests.core.protocol.test_checkpoint_protocol import Runs


class Overtaking(MemBlob):
    """Lets a rival do its work just before a call, after `after` other calls."""

    def __init__(self) -> None:
        super().__init__()
        self._rival: Callable[[], object] | None = None
        self._calls_left = 0

    def overtake(self, after: int, rival: Callable[[], object]) -> None:
        self._calls_left, self._rival = after, rival

    def has_overtaken(self) -> bool:
        """True if the rival has run. It does not run from here on."""
        rival, self._rival = self._rival, None
        return rival is None

    def _count(self) -> None:
        self._calls_left -= 1
        if self._rival is not None and self._calls_left < 0:
            rival, self._rival = self._rival, None
            rival()

    def get(self, key: str) -> bytes | None:
        self._count()
        return super().get(key)

    def set(self, key: str, data: bytes) -> None:
        self._count()
        super().set(key, data)

    def delete(self, key: str) -> int | None:
        self._count()
        return super().delete(key)

    def list_keys_and_metadata(self, prefix: str) -> Iterator[BlobMetadata]:
        self._count()
        return super().list_keys_and_metadata(prefix)


def each_call(run: Callable[[int], bool]) -> int:
    """Overtake at the first call, the second ... until a run ends before that; returns the number of calls."""
    for calls in range(200):
        if not run(calls):
            return calls
    raise AssertionError("200 store calls in one task")


def test_a_publisher_may_be_overtaken_at_any_call() -> None:
    def run(calls: int) -> bool:
        blob = Overtaking()
        shard = Shard(blob)
        shard.commit()

        def rival() -> None:
            shard.commit()
            shard.publish(KEEP_ONE)

        blob.overtake(calls, rival)
        report = shard.publish(KEEP_ONE)
        is_overtaken = blob.has_overtaken()
        newest = shard.client.state("s").newest_commit
        assert newest is not None
        assert shard.checkpointer.read_latest() == newest.checkpoint_id, calls
        assert report.epoch <= newest.epoch
        shard.publish(KEEP_ONE)
        assert shard.checkpointer.list_checkpoints() == [newest.checkpoint_id]
        return is_overtaken

    assert each_call(run) > 15


def test_a_publisher_restores_nothing_that_retention_deleted() -> None:
    """Found by simulation 318253786: the slow publisher died before its own retention."""

    def run(calls: int) -> bool:
        blob = Overtaking()
        shard = Shard(blob)
        shard.commit()
        state = shard.client.state("s")
        (commit,) = state.commits
        manifest = shard.client.manifest(commit)

        def rival() -> None:
            shard.publish(KEEP_ONE)
            shard.commit()
            shard.publish(KEEP_ONE)

        blob.overtake(calls, rival)
        publish(blob, manifest, commit, state.origin.life)
        is_overtaken = blob.has_overtaken()
        assert not is_overtaken or fsck(shard.client, "s").is_clean, calls
        return is_overtaken

    assert each_call(run) > 5


def test_a_deletion_may_be_overtaken_at_any_call() -> None:
    """The rival publishes what is being deleted: in the end the checkpoint is complete or gone."""

    def run(calls: int) -> bool:
        blob = Overtaking()
        shard = Shard(blob)
        older = shard.commit()
        shard.publish(KEEP_ALL)
        newest = shard.commit()
        shard.publish(KEEP_ALL)
        state = shard.client.state("s")
        (commit,) = (each for each in state.commits if each.checkpoint_id == older)
        manifest = shard.client.manifest(commit)
        blob.overtake(calls, lambda: publish(blob, manifest, commit, state.origin.life))
        shard.publish(KEEP_ONE)
        is_overtaken = blob.has_overtaken()
        assert shard.checkpointer.list_checkpoints() in ([newest], [older, newest]), calls
        assert fsck(shard.client, "s").is_clean, calls
        return is_overtaken

    assert each_call(run) > 15


def test_the_next_task_settles_a_deletion_that_died() -> None:
    shard = Shard()
    older = shard.commit()
    shard.publish(KEEP_ALL)
    newest = shard.commit()
    shard.publish(KEEP_ALL)
    shard.blob.delete(shard.checkpointer.layout.artifact(older, offsets_path("files")))
    assert [violation.check for violation in fsck(shard.client, "s").violations] == ["checkpoint"]
    shard.publish(KEEP_ALL)
    assert shard.checkpointer.list_checkpoints() == [older, newest]
    assert fsck(shard.client, "s").is_clean


def test_the_next_task_settles_a_deletion_after_its_manifest() -> None:
    shard = Shard()
    older = shard.commit()
    shard.publish(KEEP_ALL)
    shard.commit()
    shard.publish(KEEP_ALL)
    folder = shard.checkpointer.layout.folder(older)
    shard.blob.delete(shard.checkpointer.layout.manifest(older))
    assert list(shard.blob.list_keys_and_metadata(folder))
    (violation,) = fsck(shard.client, "s").violations
    assert violation.check == "checkpoint"
    assert violation.message.startswith(f"{older}: its manifest is missing")
    shard.publish(KEEP_ALL)
    assert list(shard.blob.list_keys_and_metadata(folder)) == []
    assert fsck(shard.client, "s").is_clean


def test_a_pointer_is_never_left_at_a_checkpoint_that_is_gone() -> None:
    """The rival runs between the last read and the write: one call after all others."""

    def run(calls: int) -> bool:
        blob = Overtaking()
        shard = Shard(blob)
        shard.commit()
        shard.publish(KEEP_ONE)
        blob.delete(shard.checkpointer.layout.latest)

        def rival() -> None:
            shard.commit()
            shard.publish(KEEP_ONE)

        blob.overtake(calls, rival)
        with suppress(CorruptArtifact):  # the requested target was deleted: a regular result, and nothing was written
            settle_latest(shard.client, "s")
        is_overtaken = blob.has_overtaken()
        newest = shard.client.state("s").newest_commit
        assert newest is not None
        assert shard.checkpointer.read_latest() == newest.checkpoint_id, calls
        return is_overtaken

    assert each_call(run) > 3


def test_mint_may_be_overtaken_at_any_call(tmp_path: Path) -> None:
    """Its description may be outdated by then, which append detects; mint itself must not fail."""

    def run(calls: int) -> bool:
        blob = Overtaking()
        runs = Runs(tmp_path, blob)
        runs.commit(b"one", stashed=1)
        runs.commit(b"two", stashed=1)

        def rival() -> None:
            runs.commit(None, stashed=0)
            stages.checkpoint(runs.client, runs.config)

        blob.overtake(calls, rival)
        minted = stages.mint(runs.client, runs.config, until=100, writer="dag/slow")
        assert isinstance(minted, Minted)
        is_overtaken = blob.has_overtaken()
        assert minted.description.lower in ((20, 30) if is_overtaken else (20,))
        return is_overtaken

    assert each_call(run) > 3


def test_what_an_outdated_description_needs_may_be_gone(tmp_path: Path) -> None:
    """Also if another try has committed this very description, and retention has deleted what both start from."""
    runs = Runs(tmp_path)
    runs.commit(b"one", stashed=1)
    slow = runs.mint()
    with pytest.raises(CorruptArtifact, match="really"), stages.outdated_first(runs.client, slow):
        raise CorruptArtifact("really")
    runs.commit(None, stashed=0, description=slow)
    with pytest.raises(AlreadyCommitted, match="already committed"), stages.outdated_first(runs.client, slow):
        raise CorruptArtifact("deleted correctly")


def test_corruption_that_stays_is_reported_by_mint_and_publisher(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    runs.commit(b"one", stashed=1)
    staged = next(e.key for e in runs.blob.list_keys_and_metadata("things/batches/") if "part=upsert-stash" in e.key)
    runs.blob.delete(staged)
    for task in (runs.mint, lambda: stages.checkpoint(runs.client, runs.config)):
        with pytest.raises(CorruptArtifact, match=staged):
            task()


def test_a_pointer_to_nothing_gives_way_to_the_newest() -> None:
    """Found by simulation 20261417: ids of one millisecond have no order, and a crash had left an old pointer."""
    shard = Shard()
    shard.commit()
    last = shard.commit()
    shard.publish()
    shard.blob.set("s/checkpoints/_latest", b"0fffffff-ffff-7fff-bfff-ffffffffffff")
    shard.publish(KEEP_ONE)
    assert shard.checkpointer.read_latest() == last


def test_manifests_are_read_several_at_a_time() -> None:
    """Retention may keep hundreds: one after the other, their latency was most of a checkpoint task on S3."""
    shard = Shard()
    ids = [shard.commit() for _ in range(4)]
    shard.publish(KEEP_ALL)
    get, together = shard.blob.get, threading.Barrier(4)

    def waiting(key: str) -> bytes | None:
        together.wait(timeout=60)
        return get(key)

    with patch.object(shard.blob, "get", waiting):
        assert [each.checkpoint_id for each in shard.checkpointer.listing(threads=4).manifests] == ids
