"""The suite that every `Checkpointer` passes (docs/semantics.md, section 7).

Subclass it and give it a `checkpointer` fixture.

class TestMine(CheckpointerConformance):
    @pytest.fixture
    def checkpointer(self) -> Checkpointer: ...
    def damage(self, checkpointer, checkpoint_id, path) -> None: ...   # alter the artifact's stored bytes directly
    def remove(self, checkpointer, checkpoint_id, path) -> None: ...   # delete the stored artifact directly
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from persist_core.checkpoint.checkpointer import Checkpointer
from persist_core.checkpoint.manifest import CheckpointManifest, PartitionState, SavedOperator
from persist_core.errors import CorruptArtifact, InvalidInput
from persist_core.keys import state_path
from tests.virtual import ManualClock, SeededIds


def checkpoint_ids(count: int, seed: int = 1) -> list[str]:
    """UUIDv7s in ascending order."""
    clock = ManualClock(1_700_000_000_000)
    ids = SeededIds(seed, clock)
    made = []
    for _ in range(count):
        clock.sleep_ms(1)
        made.append(ids.uuid7())
    return made


class CheckpointerConformance:
    """Tests of the contract; every one starts with an empty checkpointer."""

    def damage(self, checkpointer: Checkpointer, checkpoint_id: str, path: str) -> None:
        """Alter the stored bytes of an artifact without the checkpointer's help."""
        raise AssertionError(f"say in the subclass how: {checkpointer} {checkpoint_id} {path}")

    def remove(self, checkpointer: Checkpointer, checkpoint_id: str, path: str) -> None:
        """Delete an artifact without the checkpointer's help."""
        raise AssertionError(f"say in the subclass how: {checkpointer} {checkpoint_id} {path}")

    def save(
        self, on: Checkpointer, checkpoint_id: str, epoch: int, data: bytes | None = None, parent: str | None = None
    ) -> CheckpointManifest:
        """Save a checkpoint with one artifact (or none) and return its manifest."""
        parts: tuple[PartitionState, ...] = ()
        is_delta = parent is not None
        if data is not None:
            save = on.save_delta if is_delta else on.save_snapshot
            digest = save(checkpoint_id, "upsert", 0, data)
            path = state_path("upsert", 0, is_delta=is_delta)
            parts = (PartitionState(0, is_delta, path, len(data), digest),)
        manifest = CheckpointManifest(
            checkpoint_id=checkpoint_id,
            epoch=epoch,
            timestamp_ms=epoch * 1000,
            operators={"upsert": SavedOperator(parts, sum(part.size_bytes for part in parts), is_delta=is_delta)}
            if parts or is_delta
            else {},
            parent_id=parent,
        )
        on.save_manifest(manifest)
        return manifest

    def test_saving_returns_the_digest_of_the_bytes(self, checkpointer: Checkpointer) -> None:
        (first,) = checkpoint_ids(1)
        for data in (b"", b"state", b"\x00" * 100_000):
            for number, save in enumerate((checkpointer.save_snapshot, checkpointer.save_delta)):
                digest = save(first, f"operator{len(data)}", number, data)
                assert digest == hashlib.sha256(data).hexdigest()

    def test_what_was_saved_is_loaded(self, checkpointer: Checkpointer) -> None:
        (first,) = checkpoint_ids(1)
        manifest = self.save(checkpointer, first, 1, b"state")
        assert checkpointer.load_manifest(first) == manifest
        assert checkpointer.load_artifact(first, manifest.artifacts[0]) == b"state"

    def test_the_same_facts_again_succeed_and_others_fail(self, checkpointer: Checkpointer) -> None:
        (first,) = checkpoint_ids(1)
        manifest = self.save(checkpointer, first, 1, b"state")
        checkpointer.save_manifest(manifest)
        assert checkpointer.save_snapshot(first, "upsert", 0, b"state")
        with pytest.raises(InvalidInput):
            checkpointer.save_manifest(replace(manifest, watermark=9))
        with pytest.raises(InvalidInput):
            checkpointer.save_snapshot(first, "upsert", 0, b"other")
        assert checkpointer.load_manifest(first) == manifest

    def test_unknown_fields_are_kept_on_rewrite(self, checkpointer: Checkpointer) -> None:
        (first,) = checkpoint_ids(1)
        manifest = self.save(checkpointer, first, 1)
        known = checkpointer.load_manifest(first)
        checkpointer.save_manifest(replace(known, unknown={"note": {"by": "another tool"}}))
        checkpointer.save_manifest(manifest)
        assert checkpointer.load_manifest(first).unknown == {"note": {"by": "another tool"}}

    def test_checkpoints_are_listed_oldest_first_by_epoch_then_id(self, checkpointer: Checkpointer) -> None:
        a, b, c = checkpoint_ids(3)
        assert checkpointer.list_checkpoints() == []
        for checkpoint_id, epoch in ((c, 1), (b, 2), (a, 2)):
            self.save(checkpointer, checkpoint_id, epoch)
        assert checkpointer.list_checkpoints() == [c, a, b]

    def test_latest_never_goes_back(self, checkpointer: Checkpointer) -> None:
        a, b, c = checkpoint_ids(3)
        assert checkpointer.read_latest() is None
        for checkpoint_id, epoch in ((a, 3), (b, 2), (c, 3)):
            self.save(checkpointer, checkpoint_id, epoch)
        assert checkpointer.update_latest(a)
        assert not checkpointer.update_latest(a)
        assert not checkpointer.update_latest(b)
        assert checkpointer.read_latest() == a
        assert checkpointer.update_latest(c)
        assert checkpointer.read_latest() == c

    def test_latest_never_names_what_is_not_all_there(self, checkpointer: Checkpointer) -> None:
        a, b, c = checkpoint_ids(3)
        for number, checkpoint_id in enumerate((a, b), start=1):
            self.save(checkpointer, checkpoint_id, number, b"state")
        path = state_path("upsert", 0, is_delta=False)
        self.damage(checkpointer, a, path)
        self.remove(checkpointer, b, path)
        for checkpoint_id in (a, b):
            with pytest.raises(CorruptArtifact, match=r"partition-0\.snap"):
                checkpointer.update_latest(checkpoint_id)
        with pytest.raises(CorruptArtifact, match="manifest"):
            checkpointer.update_latest(c)
        assert checkpointer.read_latest() is None

    def test_a_damaged_artifact_is_named_with_both_digests(self, checkpointer: Checkpointer) -> None:
        (first,) = checkpoint_ids(1)
        artifact = self.save(checkpointer, first, 1, b"state").artifacts[0]
        self.damage(checkpointer, first, artifact.path)
        with pytest.raises(CorruptArtifact, match=rf"partition-0\.snap.*{artifact.sha256}"):
            checkpointer.load_artifact(first, artifact)

    def test_deleting(self, checkpointer: Checkpointer) -> None:
        a, b = checkpoint_ids(2)
        artifact = self.save(checkpointer, a, 1, b"state").artifacts[0]
        self.save(checkpointer, b, 2)
        checkpointer.update_latest(b)
        with pytest.raises(InvalidInput, match="latest"):
            checkpointer.delete_checkpoint(b)
        assert checkpointer.delete_checkpoint(a)
        assert not checkpointer.delete_checkpoint(a)
        assert checkpointer.list_checkpoints() == [b]
        with pytest.raises(CorruptArtifact):
            checkpointer.load_artifact(a, artifact)

    def test_latest_needs_its_whole_chain(self, checkpointer: Checkpointer) -> None:
        a, b, c = checkpoint_ids(3)
        self.save(checkpointer, a, 1, b"state")
        self.save(checkpointer, b, 2, b"more", parent=a)
        assert checkpointer.update_latest(b)
        for needed in (a, b):
            with pytest.raises(InvalidInput, match=b):
                checkpointer.delete_checkpoint(needed)
        self.save(checkpointer, c, 3, b"yet more", parent=b)
        self.remove(checkpointer, a, state_path("upsert", 0, is_delta=False))
        with pytest.raises(CorruptArtifact, match=rf"{a}.*partition-0\.snap"):
            checkpointer.update_latest(c)
        self.remove(checkpointer, a, "manifest.json")
        with pytest.raises(CorruptArtifact, match=rf"{a}/manifest\.json"):
            checkpointer.update_latest(c)
        assert checkpointer.read_latest() == b

    def test_an_unreadable_manifest_is_named_and_can_be_saved_again(self, checkpointer: Checkpointer) -> None:
        (first,) = checkpoint_ids(1)
        manifest = self.save(checkpointer, first, 1, b"state")
        self.damage(checkpointer, first, "manifest.json")
        with pytest.raises(CorruptArtifact, match=rf"{first}/manifest\.json"):
            checkpointer.load_manifest(first)
        checkpointer.save_manifest(manifest)
        assert checkpointer.load_manifest(first) == manifest

    def test_what_is_not_there_is_named(self, checkpointer: Checkpointer) -> None:
        a, b = checkpoint_ids(2)
        artifact = self.save(checkpointer, a, 1, b"state").artifacts[0]
        with pytest.raises(CorruptArtifact, match=rf"{b}/manifest\.json is missing"):
            checkpointer.load_manifest(b)
        with pytest.raises(CorruptArtifact, match=rf"{b}.*partition-0\.snap is missing"):
            checkpointer.load_artifact(b, artifact)

    @pytest.mark.parametrize("bad", ["", "..", "../x", "a/b", "not-a-uuid", "3f0b1f7e-9d5e-4c39-8f1d-0a4e7f5d2b11"])
    def test_ids_that_are_no_uuid7_are_refused(self, checkpointer: Checkpointer, bad: str) -> None:
        with pytest.raises(InvalidInput):
            checkpointer.save_snapshot(bad, "upsert", 0, b"x")
        with pytest.raises(InvalidInput):
            checkpointer.delete_checkpoint(bad)

    @pytest.mark.parametrize("bad", ["", "..", "a/b", "a\x00", "x" * 65])
    def test_hostile_operator_names_are_refused(self, checkpointer: Checkpointer, bad: str) -> None:
        (first,) = checkpoint_ids(1)
        with pytest.raises(InvalidInput):
            checkpointer.save_snapshot(first, bad, 0, b"x")
