"""Checkpoints: the contract on real blobs, publishing under crashes, retention, recovery."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persist_core.batch import BatchDescription, SourceFrontier, StateArtifact
from persist_core.checkpoint.checkpointer import BlobCheckpointer, Checkpointer
from persist_core.checkpoint.manifest import CheckpointManifest
from persist_core.checkpoint.publish import CheckpointReport, publish_and_retain
from persist_core.checkpoint.recovery import stash_chain, verify_artifacts
from persist_core.checkpoint.retention import plan_retention
from persist_core.client import PersistClient
from persist_core.clock import ManualClock
from persist_core.config import RetentionConfig
from persist_core.errors import CorruptArtifact, Indeterminate, InvalidInput, UnknownVersion
from persist_core.ids import SeededIds
from persist_core.location.blob import Blob
from persist_core.location.file import FileBlob
from persist_core.location.mem import MemBlob, MemConsensus
from persist_core.location.open import OpenLocation
from persist_core.schema import CollectionSchema, Column
from persist_core.testing.checkpoint_conformance import CheckpointerConformance, checkpoint_ids
from persist_core.write import stage_manifest

SCHEMA = CollectionSchema(key=(Column("id", "bigint", nullable=False),))
KEEP_ALL = RetentionConfig(keep_last=1000)
DAY_MS = 86_400_000


class OnBlob(CheckpointerConformance):
    def blob_of(self, checkpointer: Checkpointer) -> Blob:
        assert isinstance(checkpointer, BlobCheckpointer)
        return checkpointer._blob

    def key(self, checkpointer: Checkpointer, checkpoint_id: str, path: str) -> str:
        assert isinstance(checkpointer, BlobCheckpointer)
        return checkpointer.layout.artifact(checkpoint_id, path)

    def damage(self, checkpointer: Checkpointer, checkpoint_id: str, path: str) -> None:
        self.blob_of(checkpointer).set(self.key(checkpointer, checkpoint_id, path), b"damaged")

    def remove(self, checkpointer: Checkpointer, checkpoint_id: str, path: str) -> None:
        self.blob_of(checkpointer).delete(self.key(checkpointer, checkpoint_id, path))


class TestOnMemBlob(OnBlob):
    @pytest.fixture
    def checkpointer(self) -> Checkpointer:
        return BlobCheckpointer(MemBlob(), "customers")


class TestOnFileBlob(OnBlob):
    @pytest.fixture
    def checkpointer(self, tmp_path: Path) -> Checkpointer:
        return BlobCheckpointer(FileBlob(tmp_path), "customers")


class Crashing(MemBlob):
    """Fails at its n-th write or delete: before it happens, or (odd) after."""

    def __init__(self) -> None:
        super().__init__()
        self.crash_at: int | None = None
        self.calls = 0

    def _step(self) -> bool:
        self.calls += 1
        return self.crash_at is not None and self.calls - 1 == self.crash_at // 2

    def set(self, key: str, data: bytes) -> None:
        crash = self._step()
        if crash and self.crash_at is not None and self.crash_at % 2 == 0:
            raise Indeterminate("crashed before the write")
        super().set(key, data)
        if crash:
            raise Indeterminate("crashed after the write")

    def delete(self, key: str) -> int | None:
        if self._step():
            raise Indeterminate("crashed before the delete")
        return super().delete(key)


class Shard:
    """A shard whose commits carry operator state."""

    def __init__(self, blob: MemBlob | None = None) -> None:
        self.clock = ManualClock(1_700_000_000_000)
        self.blob, self.consensus = blob or MemBlob(), MemConsensus()
        self.client = PersistClient(OpenLocation(self.blob, self.consensus), self.clock, SeededIds(1, self.clock))
        self.writer = self.client.open_writer("s")
        self.epoch = 0
        self.parent: str | None = None

    def commit(self, *, is_delta: bool = False, state: bytes | None = b"stash", days: int = 1) -> str:
        self.clock.sleep_ms(days * DAY_MS)
        self.epoch += 1
        description = BatchDescription(
            "s",
            self.epoch - 1,
            self.epoch,
            token=f"t{self.epoch}",
            checkpoint_id=self.client.ids.uuid7(),
            epoch=self.epoch,
            parent_id=self.parent,
            writer="w",
            is_delta=is_delta,
            sources={"files": SourceFrontier("files", {"files": self.epoch})},
        )
        attempt = self.client.ids.uuid7()
        manifest = self.client.manifest(self.writer.stage(description, SCHEMA, attempt))
        if state is not None:
            data = b"%s-%d" % (state, self.epoch)
            key = f"s/batches/{attempt}/stash.parquet"
            self.blob.set(key, data)
            artifact = StateArtifact("upsert", 0, is_delta, key, len(data), hashlib.sha256(data).hexdigest())
            manifest = replace(manifest, operator_state=(artifact,))
        key = stage_manifest(self.blob, manifest, self.client.ids.uuid7())
        self.writer.compare_and_append(manifest, key)
        self.parent = description.checkpoint_id
        return description.checkpoint_id

    def publish(self, retention: RetentionConfig = KEEP_ALL) -> CheckpointReport:
        report = publish_and_retain(self.client, "s", retention)
        assert report is not None
        return report

    @property
    def checkpointer(self) -> BlobCheckpointer:
        return BlobCheckpointer(self.blob, "s")

    def stash(self, checkpoint_id: str) -> list[bytes]:
        artifacts = stash_chain(self.checkpointer, checkpoint_id)
        verify_artifacts(self.blob, artifacts)
        return [data for data in (self.blob.get(artifact.key) for artifact in artifacts) if data is not None]


def test_nothing_to_publish_before_the_first_commit() -> None:
    assert publish_and_retain(Shard().client, "s", KEEP_ALL) is None


def test_a_checkpoint_holds_what_the_commit_held() -> None:
    shard = Shard()
    first = shard.commit()
    report = shard.publish()
    assert (report.checkpoint_id, report.published, report.deleted) == (first, (first,), ())
    manifest = shard.checkpointer.load_manifest(first)
    assert manifest.source_offsets["files"].offsets == {"files": 1}
    assert manifest.watermark == 1
    assert manifest.shard is not None
    assert (manifest.shard.seqno, manifest.shard.upper) == (1, 1)
    offsets = shard.blob.get(f"s/checkpoints/{first}/offsets/files.json")
    assert offsets is not None
    assert json.loads(offsets)["source_type"] == "files"
    assert shard.checkpointer.read_latest() == first


def test_missed_checkpoints_are_published_later_in_order() -> None:
    shard = Shard()
    ids = [shard.commit() for _ in range(4)]
    assert shard.publish().published == tuple(ids)
    assert shard.publish().published == ()
    assert shard.checkpointer.list_checkpoints() == ids


def test_a_delta_chain_is_read_from_its_snapshot_on() -> None:
    shard = Shard()
    shard.commit()
    shard.commit()
    shard.commit(is_delta=True)
    shard.commit(is_delta=True, state=None)
    last = shard.commit(is_delta=True)
    shard.publish()
    assert shard.stash(last) == [b"stash-2", b"stash-3", b"stash-5"]


def test_retention_keeps_the_chain_of_what_it_keeps() -> None:
    shard = Shard()
    ids = [shard.commit(is_delta=number % 3 != 0) for number in range(8)]
    report = shard.publish(RetentionConfig(keep_last=1, keep_daily=0, keep_weekly=0))
    assert shard.checkpointer.list_checkpoints() == ids[6:]
    assert report.deleted == tuple(ids[:6])
    assert shard.stash(ids[7]) == [b"stash-7", b"stash-8"]


def test_a_pinned_checkpoint_stays() -> None:
    shard = Shard()
    first = shard.commit()
    shard.publish()
    shard.checkpointer.pin(first)
    shard.commit()
    last = shard.commit()
    shard.publish(RetentionConfig(keep_last=1, keep_daily=0, keep_weekly=0))
    assert shard.checkpointer.list_checkpoints() == [first, last]
    assert shard.checkpointer.unpin(first)
    shard.publish(RetentionConfig(keep_last=1, keep_daily=0, keep_weekly=0))
    assert shard.checkpointer.list_checkpoints() == [last]


@pytest.mark.parametrize("crash_at", range(40))
def test_a_crash_at_any_write_is_mended_by_doing_it_again(crash_at: int) -> None:
    blob = Crashing()
    shard = Shard(blob)
    retention = RetentionConfig(keep_last=2, keep_daily=0, keep_weekly=0)
    shard.commit()
    shard.publish(retention)
    ids = [shard.commit(is_delta=True), shard.commit(), shard.commit(is_delta=True)]
    blob.calls, blob.crash_at = 0, crash_at
    crashed = False
    try:
        shard.publish(retention)
    except Indeterminate:
        crashed = True
    latest = shard.checkpointer.read_latest()
    assert latest is not None
    assert shard.stash(latest), "what _latest names is all there, also between the crash and its repair"
    blob.crash_at = None
    shard.publish(retention)
    assert shard.checkpointer.read_latest() == ids[-1]
    assert shard.checkpointer.list_checkpoints() == ids[1:]
    assert shard.stash(ids[-1]) == [b"stash-3", b"stash-4"]
    assert crashed or crash_at > 16


def test_a_corrupt_artifact_stops_and_names_itself() -> None:
    shard = Shard()
    last = shard.commit()
    shard.publish()
    (artifact,) = stash_chain(shard.checkpointer, last)
    shard.blob.set(artifact.key, b"rotten")
    with pytest.raises(CorruptArtifact, match=f"{artifact.key}.*persist restore"):
        shard.stash(last)
    shard.blob.delete(artifact.key)
    with pytest.raises(CorruptArtifact, match=f"{artifact.key} is missing"):
        shard.stash(last)


def test_a_missing_link_of_the_chain_is_named() -> None:
    shard = Shard()
    first = shard.commit()
    last = shard.commit(is_delta=True)
    shard.publish()
    shard.blob.delete(f"s/checkpoints/{first}/manifest.json")
    with pytest.raises(CorruptArtifact, match=first):
        shard.stash(last)


def test_a_manifest_of_another_version_is_refused_and_missing_optional_fields_are_not() -> None:
    (checkpoint_id,) = checkpoint_ids(1)
    bare = {"version": 2, "checkpoint_id": checkpoint_id, "epoch": 1, "timestamp_ms": 5, "later": True}
    manifest = CheckpointManifest.decode(json.dumps(bare).encode())
    assert (manifest.parent_id, manifest.watermark, manifest.unknown) == (None, None, {"later": True})
    with pytest.raises(UnknownVersion, match="version 3"):
        CheckpointManifest.decode(json.dumps({**bare, "version": 3}).encode())
    for epoch in (0, -1, True, "1"):
        with pytest.raises(InvalidInput, match="epochs start at 1"):
            CheckpointManifest(checkpoint_id, epoch, 0)  # type: ignore[arg-type]


HISTORIES = st.lists(st.tuples(st.booleans(), st.integers(0, 10)), min_size=1, max_size=25)


@given(HISTORIES, st.integers(1, 5), st.integers(0, 4), st.integers(0, 3), st.integers(0, 24))
def test_retention_keeps_what_it_promises(
    history: list[tuple[bool, int]], keep_last: int, daily: int, weekly: int, pin: int
) -> None:
    manifests: list[CheckpointManifest] = []
    day = 0
    for number, (is_delta, days) in enumerate(history):
        day += days
        parent = manifests[-1].checkpoint_id if manifests else None
        manifests.append(
            CheckpointManifest(
                IDS[number], number + 1, day * DAY_MS, parent_id=parent, is_delta=is_delta and parent is not None
            )
        )
    ids = [manifest.checkpoint_id for manifest in manifests]
    pinned = {ids[pin]} if pin < len(ids) else set()
    doomed = plan_retention(
        manifests, keep_last=keep_last, keep_daily=daily, keep_weekly=weekly, latest_id=ids[-1], pinned=pinned
    )
    kept = [manifest for manifest in manifests if manifest.checkpoint_id not in doomed]
    kept_ids = {manifest.checkpoint_id for manifest in kept}
    assert kept_ids >= set(ids[-keep_last:]) | pinned | {ids[-1]}
    for manifest in kept:
        assert not manifest.is_delta or manifest.parent_id in kept_ids
    for period_ms, count in ((DAY_MS, daily), (7 * DAY_MS, weekly)):
        shift = 3 * DAY_MS if period_ms != DAY_MS else 0
        newest = {(manifest.timestamp_ms + shift) // period_ms: manifest.checkpoint_id for manifest in manifests}
        assert kept_ids >= {newest[key] for key in sorted(newest)[-count:] if count}
    without = [manifest for manifest in manifests if manifest.checkpoint_id in kept_ids]
    assert (
        plan_retention(
            without, keep_last=keep_last, keep_daily=daily, keep_weekly=weekly, latest_id=ids[-1], pinned=pinned
        )
        == []
    ), "a plan is its own fixed point"


IDS = checkpoint_ids(25)
