"""Checkpoints: the contract on real blobs, publishing under crashes, retention, recovery."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persist_core.checkpoint.checkpointer import Checkpointer
from persist_core.checkpoint.manifest import CheckpointManifest, SavedOperator
from persist_core.checkpoint.publish import publish_and_retain
from persist_core.checkpoint.retention import plan_retention
from persist_core.config.shard import RetentionConfig
from persist_core.errors import CorruptArtifact, Indeterminate, InvalidInput, UnknownVersion
from persist_core.frontier import Frontier
from persist_core.location.blob import Blob
from persist_core.location.file.blob import FileBlob
from persist_core.location.mem import MemBlob
from persist_core.location.open import open_blob
from tests.core.checkpoint.checkpointed_shard import DAY_MS, KEEP_ALL, KEEP_ONE, Crashing, Shard
from tests.servers.s3 import S3Server
from tests.suites.checkpoint_conformance import CheckpointerConformance, checkpoint_ids


class OnBlob(CheckpointerConformance):
    def blob_of(self, checkpointer: Checkpointer) -> Blob:
        assert isinstance(checkpointer, Checkpointer)
        return checkpointer.blob

    def key(self, checkpointer: Checkpointer, checkpoint_id: str, path: str) -> str:
        assert isinstance(checkpointer, Checkpointer)
        return checkpointer.layout.artifact(checkpoint_id, path)

    def damage(self, checkpointer: Checkpointer, checkpoint_id: str, path: str) -> None:
        self.blob_of(checkpointer).set(self.key(checkpointer, checkpoint_id, path), b"damaged")

    def remove(self, checkpointer: Checkpointer, checkpoint_id: str, path: str) -> None:
        self.blob_of(checkpointer).delete(self.key(checkpointer, checkpoint_id, path))


class TestOnMemBlob(OnBlob):
    @pytest.fixture
    def checkpointer(self) -> Checkpointer:
        return Checkpointer(MemBlob(), "customers")


class TestOnS3Blob(OnBlob):
    @pytest.fixture
    def checkpointer(self, versitygw: S3Server) -> Iterator[Checkpointer]:
        blob = open_blob(versitygw.new_uri("p"))
        yield Checkpointer(blob, "customers")
        blob.close()


class TestOnFileBlob(OnBlob):
    @pytest.fixture
    def checkpointer(self, tmp_path: Path) -> Checkpointer:
        return Checkpointer(FileBlob(tmp_path), "customers")


def test_nothing_to_publish_before_the_first_commit() -> None:
    assert publish_and_retain(Shard().client, "s", KEEP_ALL) is None


def test_a_checkpoint_holds_what_the_commit_held() -> None:
    shard = Shard()
    first = shard.commit()
    report = shard.publish()
    assert (report.checkpoint_id, report.published, report.deleted) == (first, (first,), ())
    manifest = shard.checkpointer.load_manifest(first)
    assert manifest.source_offsets["files"].offsets["files"] == 1
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
    report = shard.publish(KEEP_ONE)
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
    shard.publish(KEEP_ONE)
    assert shard.checkpointer.list_checkpoints() == [first, last]
    assert shard.checkpointer.unpin(first)
    shard.publish(KEEP_ONE)
    assert shard.checkpointer.list_checkpoints() == [last]


@pytest.mark.parametrize("is_late", [False, True], ids=["before", "after"])
def test_a_crash_at_any_call_is_mended_by_doing_it_again(is_late: bool) -> None:
    for crash_at in range(MOST_CALLS):
        if not crash_and_mend(crash_at, is_late=is_late):
            assert crash_at > 40, "every get, set, delete and listing of a publication was tried"
            return
    pytest.fail(f"publishing takes more than {MOST_CALLS} calls")


def crash_and_mend(crash_at: int, *, is_late: bool) -> bool:
    """Crash a publication with retention at one call, repeat it, compare. False if there is no such call."""
    blob = Crashing()
    shard = Shard(blob)
    retention = RetentionConfig(keep_last=2, keep_daily=0, keep_weekly=0)
    shard.commit()
    shard.publish(retention)
    ids = [shard.commit(is_delta=True), shard.commit(), shard.commit(is_delta=True)]
    blob.arm(crash_at, is_late=is_late)
    try:
        shard.publish(retention)
        return False
    except Indeterminate:
        blob.is_armed = False
    latest = shard.checkpointer.read_latest()
    assert latest is not None
    assert shard.stash(latest), "all that _latest names exists, also between the crash and its repair"
    shard.publish(retention)
    assert shard.checkpointer.read_latest() == ids[-1]
    assert shard.checkpointer.list_checkpoints() == ids[1:]
    assert shard.stash(ids[-1]) == [b"stash-3", b"stash-4"]
    return True


def test_a_corrupt_artifact_stops_and_names_itself() -> None:
    shard = Shard()
    last = shard.commit()
    shard.publish()
    (artifact,) = shard.operators(last)["upsert"]
    shard.blob.set(artifact.key, b"rotten")
    assert shard.stash(last) == [b"stash-1"], "its copy is used instead"
    shard.blob.delete(f"s/checkpoints/{last}/operators/upsert/partition-0.snap")
    with pytest.raises(CorruptArtifact, match=f"{artifact.key} in mem: has SHA-256"):
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
    assert shard.stash(last) == [b"stash-1", b"stash-2"], "the batch manifest says the same"
    staged = shard.client.state("s").commits[0].manifest_key
    shard.blob.delete(staged)
    with pytest.raises(CorruptArtifact, match=staged):
        shard.stash(last)


def test_other_manifest_versions_are_refused_not_missing_fields() -> None:
    (checkpoint_id,) = checkpoint_ids(1)
    bare = {"version": 2, "checkpoint_id": checkpoint_id, "epoch": 1, "timestamp_ms": 5, "later": True}
    manifest = CheckpointManifest.decode(json.dumps(bare).encode())
    assert (manifest.parent_id, manifest.watermark, manifest.unknown) == (None, None, {"later": True})
    with pytest.raises(UnknownVersion, match="version 3"):
        CheckpointManifest.decode(json.dumps({**bare, "version": 3}).encode())
    for epoch in (0, -1, True, "1", None):
        with pytest.raises(CorruptArtifact, match="epochs start at 1"):
            CheckpointManifest.decode(json.dumps({**bare, "epoch": epoch}).encode())


def test_latest_and_manifests_are_mended_from_the_commits() -> None:
    shard = Shard()
    first, last = shard.commit(), shard.commit()
    shard.publish()
    for key in (f"s/checkpoints/{last}/manifest.json", "s/checkpoints/_latest"):
        for damage in (b"{}", b"\xff", None):
            if damage is None:
                shard.blob.delete(key)
            else:
                shard.blob.set(key, damage)
            shard.publish()
            assert shard.checkpointer.read_latest() == last
            assert shard.checkpointer.list_checkpoints() == [first, last]


def test_a_crash_between_manifest_and_latest_is_repaired() -> None:
    shard = Shard()
    first, last = shard.commit(), shard.commit()
    shard.publish()
    shard.blob.set("s/checkpoints/_latest", first.encode())  # a slower publisher would leave it like this, too
    assert shard.publish().published == ()
    assert shard.checkpointer.read_latest() == last


def test_an_unreadable_latest_admits_no_older_checkpoint() -> None:
    shard = Shard()
    first, last = shard.commit(), shard.commit()
    shard.publish()
    shard.blob.set(f"s/checkpoints/{last}/manifest.json", b"rotten")
    assert not shard.checkpointer.update_latest(first)
    assert shard.checkpointer.read_latest() == last


def test_what_retention_deleted_is_not_published_again() -> None:
    shard = Shard()
    for _ in range(3):
        shard.commit()
    assert len(shard.publish(KEEP_ONE).deleted) == 2
    report = shard.publish(KEEP_ALL)
    assert (report.published, report.kept) == ((), 1)
    shard.blob.set(f"s/checkpoints/{report.checkpoint_id}/manifest.json", b"rotten")
    report = shard.publish(KEEP_ALL)
    assert (report.published, report.kept) == ((report.checkpoint_id,), 1)


def test_a_stash_that_ran_empty_ends_its_chain() -> None:
    shard = Shard()
    shard.commit()
    empty = shard.commit(is_delta=True, state=None, is_empty=True)
    shard.publish(KEEP_ONE)
    assert shard.stash(empty) == []
    assert shard.checkpointer.list_checkpoints() == [empty]


def test_a_crashed_deletion_is_swept_but_no_publication() -> None:
    shard = Shard()
    (stranger,) = checkpoint_ids(1, seed=9)
    shard.checkpointer.save_snapshot(stranger, "upsert", 0, b"left over")
    shard.blob.set(f"s/checkpoints/{stranger}/pinned", b"")
    known = shard.commit()
    shard.publish()
    busy = shard.commit()
    shard.checkpointer.write_derived(busy, "offsets/files.json", b"half done")
    shard.blob.set("s/checkpoints/not-an-id/manifest.json", b"somebody else's")
    assert shard.checkpointer.listing().unfinished == (busy,)
    assert shard.checkpointer.list_checkpoints() == [known]


def test_pins_outlast_races_with_retention() -> None:
    """A pin that is set after the deletion has looked for pins is kept: the manifest is restored."""
    shard = Shard()
    first = shard.commit()
    shard.publish()
    shard.commit()
    shard.publish()

    class PinsMeanwhile(MemBlob):
        def delete(self, key: str) -> int | None:
            size = shard.blob.delete(key)
            if key.endswith("manifest.json"):
                shard.blob.set(f"s/checkpoints/{first}/pinned", b"")
            return size

        get, set, list_keys_and_metadata = shard.blob.get, shard.blob.set, shard.blob.list_keys_and_metadata

    with pytest.raises(InvalidInput, match="pinned"):
        Checkpointer(PinsMeanwhile(), "s").delete_checkpoint(first)
    assert shard.stash(first) == [b"stash-1"]
    with pytest.raises(InvalidInput, match="pinned"):
        shard.checkpointer.delete_checkpoint(first)
    with pytest.raises(CorruptArtifact, match="missing"):
        shard.checkpointer.pin(*checkpoint_ids(1, seed=9))


def test_unknown_fields_are_kept_and_optional_ones_filled_in() -> None:
    a, b = checkpoint_ids(2)
    part = {"partition_id": 0, "path": "operators/x/partition-0.snap", "size_bytes": 3, "sha256": "00", "codec": "zstd"}
    body = {
        "version": 2,
        "checkpoint_id": b,
        "epoch": 4,
        "timestamp_ms": 5,
        "parent_id": a,
        "operators": {"x": {"partitions": [part], "later": [1, {"n": None}]}, "y": {"partitions": []}},
        "source_offsets": {"files": {"source_type": "files", "lag": 2}},
        "shard": {"shard": "s", "seqno": 1, "since": 0, "upper": None, "region": "eu"},
        "unknown": "even so",
    }
    manifest = CheckpointManifest.decode(json.dumps(body).encode())
    assert manifest.total_size_bytes == manifest.operators["x"].total_bytes == 3
    assert not manifest.artifacts[0].is_delta
    assert (manifest.source_offsets["files"].epoch, manifest.source_offsets["files"].offsets) == (4, {})
    checkpointer = Checkpointer(MemBlob(), "s")
    checkpointer.blob.set(f"s/checkpoints/{b}/manifest.json", json.dumps(body).encode())
    bare = CheckpointManifest.decode(json.dumps(manifest.facts()).encode())
    assert bare != manifest
    checkpointer.save_manifest(replace(bare, unknown={"note": 1}))
    data = checkpointer.blob.get(f"s/checkpoints/{b}/manifest.json")
    assert data is not None
    saved = json.loads(data)
    assert saved["unknown"] == "even so"
    assert saved["note"] == 1
    assert saved["operators"]["x"]["later"] == [1, {"n": None}]
    assert saved["operators"]["x"]["partitions"][0]["codec"] == "zstd"
    assert saved["source_offsets"]["files"]["lag"] == 2
    assert saved["shard"]["region"] == "eu"


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff", b"[]", b"7", b"{}", b'{"version": 2}', b'{"version": 2, "checkpoint_id": "x", "epoch": 1}'],
    ids=ascii,
)
def test_bytes_that_are_no_manifest_are_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptArtifact, match="the manifest"):
        CheckpointManifest.decode(data, what="the manifest")


HISTORIES = st.lists(st.tuples(st.booleans(), st.integers(0, 10)), min_size=1, max_size=25)


@given(HISTORIES, st.integers(1, 5), st.integers(0, 4), st.integers(0, 3), st.integers(0, 24), st.integers(0, 40))
def test_retention_keeps_what_it_promises(
    history: list[tuple[bool, int]], keep_last: int, daily: int, weekly: int, pin: int, history_days: int
) -> None:
    manifests: list[CheckpointManifest] = []
    day = 0
    for number, (is_delta, days) in enumerate(history):
        day += days
        parent = manifests[-1].checkpoint_id if manifests else None
        manifests.append(
            CheckpointManifest(
                IDS[number],
                number + 1,
                day * DAY_MS,
                operators={"upsert": SavedOperator((), 0, is_delta=is_delta and parent is not None)},
                parent_id=parent,
                watermark=day * DAY_MS + 1,
            )
        )
    start = Frontier(max(0, day - history_days) * DAY_MS)
    within = [manifest for manifest in manifests if manifest.timestamp_ms >= (start.time or 0)]
    ids = [manifest.checkpoint_id for manifest in manifests]
    pinned = {ids[pin]} if pin < len(ids) else set()

    def plan(found: list[CheckpointManifest]) -> list[str]:
        return plan_retention(
            found,
            RetentionConfig(keep_last=keep_last, keep_daily=daily, keep_weekly=weekly),
            latest_id=ids[-1],
            pinned=pinned,
            history_start=start,
        )

    doomed = plan(manifests)
    kept = [manifest for manifest in manifests if manifest.checkpoint_id not in doomed]
    kept_ids = {manifest.checkpoint_id for manifest in kept}
    assert kept_ids >= {manifest.checkpoint_id for manifest in within[-keep_last:]} | pinned | {ids[-1]}
    beyond = kept_ids - {manifest.checkpoint_id for manifest in within} - pinned
    if not any(manifest.is_delta for manifest in manifests):
        assert not beyond, "only a chain keeps what the history does not reach"
    for manifest in kept:
        assert not manifest.is_delta or manifest.parent_id in kept_ids
    for period_ms, count in ((DAY_MS, daily), (7 * DAY_MS, weekly)):
        shift = 3 * DAY_MS if period_ms != DAY_MS else 0
        newest = {(manifest.timestamp_ms + shift) // period_ms: manifest.checkpoint_id for manifest in within}
        assert kept_ids >= {newest[key] for key in sorted(newest)[-count:] if count}
    without = [manifest for manifest in manifests if manifest.checkpoint_id in kept_ids]
    assert plan(without) == [], "a plan is its own fixed point"


IDS = checkpoint_ids(25)
MOST_CALLS = 400
