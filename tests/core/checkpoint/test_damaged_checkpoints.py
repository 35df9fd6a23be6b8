"""Damage to derived objects stops no task: it is repaired from the commits or moved aside, and reported."""

from __future__ import annotations

import json

import pytest

from persist_core.checkpoint import quarantine
from persist_core.checkpoint.publish import repair_checkpoints, settle_latest
from persist_core.checkpoint.recovery import recover_newest
from persist_core.errors import CorruptArtifact, UnknownVersion
from persist_core.maintenance.fsck import fsck
from persist_core.sealed import seal
from tests.core.checkpoint.checkpointed_shard import KEEP_ONE, Shard
from tests.suites.checkpoint_conformance import checkpoint_ids


def manifest_key(checkpoint_id: str) -> str:
    return f"s/checkpoints/{checkpoint_id}/manifest.json"


def copy_key(checkpoint_id: str, ending: str = "snap") -> str:
    return f"s/checkpoints/{checkpoint_id}/operators/upsert/partition-0.{ending}"


def test_an_unreadable_old_manifest_is_rewritten_and_kept() -> None:
    shard = Shard()
    first, second = shard.commit(), shard.commit()
    shard.publish()
    whole = shard.blob.get(manifest_key(first))
    shard.blob.set(manifest_key(first), b"rotten")
    assert [v.check for v in fsck(shard.client, "s").violations] == ["checkpoint"]
    third = shard.commit()
    report = shard.publish()
    assert (report.published, report.repaired, report.quarantined) == ((third,), (manifest_key(first),), ())
    (warning,) = report.warnings
    assert warning.startswith(f"{manifest_key(first)} was damaged")
    assert shard.blob.get(manifest_key(first)) == whole
    assert shard.checkpointer.list_checkpoints() == [first, second, third]
    (kept,) = shard.blob.list_keys_and_metadata("s/checkpoints/quarantine/")
    assert shard.blob.get(kept.key) == b"rotten"
    assert fsck(shard.client, "s").is_clean


def test_a_deleted_manifest_that_a_chain_needs_is_written_again() -> None:
    shard = Shard()
    root, middle, last = shard.commit(), shard.commit(is_delta=True), shard.commit(is_delta=True)
    shard.publish()
    for gone in ([root], [middle], [root, middle]):
        for checkpoint_id in gone:
            shard.blob.delete(manifest_key(checkpoint_id))
        assert not fsck(shard.client, "s").is_clean
        assert shard.publish().published == tuple(gone)
        assert fsck(shard.client, "s").is_clean
    shard.blob.delete(manifest_key(root))
    newest = shard.commit(is_delta=True)
    report = shard.publish(KEEP_ONE)
    assert (report.published, report.not_repaired) == ((newest, root), ()), "the pointer moves on"
    assert shard.checkpointer.read_latest() == newest
    assert shard.checkpointer.list_checkpoints() == [root, middle, last, newest]
    shard.blob.delete(manifest_key(root))
    assert repair_checkpoints(shard.client, "s").published == (root,)


def test_a_damaged_manifest_of_a_forgotten_commit_is_set_aside() -> None:
    shard = Shard()
    (forgotten,) = checkpoint_ids(1)
    shard.checkpointer.save_snapshot(forgotten, "upsert", 0, b"old")
    shard.blob.set(manifest_key(forgotten), b"rotten")
    listing = shard.checkpointer.listing()
    assert listing.manifests == ()
    assert "cannot be read" in str(listing.unreadable[forgotten])
    first, second = shard.commit(), shard.commit()
    report = shard.publish(KEEP_ONE)
    assert (report.quarantined, report.deleted, report.kept) == ((forgotten,), (first,), 1)
    assert [forgotten in warning for warning in report.warnings] == [True, True]
    assert shard.checkpointer.list_checkpoints() == [second]
    assert shard.blob.get(copy_key(forgotten)) == b"old", "what belongs to it stays while it is in the quarantine"
    assert shard.publish(KEEP_ONE).warnings == ()
    assert fsck(shard.client, "s").is_clean


def test_the_quarantine_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine, "MAX_QUARANTINED", 2)
    shard, ids = Shard(), checkpoint_ids(4)
    for forgotten in ids:
        shard.checkpointer.save_snapshot(forgotten, "upsert", 0, b"old")
        shard.blob.set(manifest_key(forgotten), b"rotten")
    shard.commit()
    assert shard.publish().quarantined == tuple(ids)
    assert len(list(shard.blob.list_keys_and_metadata("s/checkpoints/quarantine/"))) == 2
    shard.publish()
    assert [shard.blob.get(copy_key(each)) for each in ids] == [None, None, b"old", b"old"]


def test_a_manifest_of_a_newer_release_is_named_and_left_alone() -> None:
    shard = Shard()
    (newer,) = checkpoint_ids(1)
    data = seal("checkpoint_manifest", 3, {"checkpoint_id": newer})
    shard.blob.set(manifest_key(newer), data)
    shard.commit()
    report = shard.publish(KEEP_ONE)
    assert report.quarantined == ()
    assert "has version 3" in report.not_repaired[0]
    assert shard.blob.get(manifest_key(newer)) == data
    with pytest.raises(UnknownVersion):
        shard.checkpointer.load_manifest(newer)


@pytest.mark.parametrize("damage", [b"", b"another size", None], ids=["empty", "longer", "missing"])
def test_a_damaged_copy_is_copied_again_and_holds_nothing_back(damage: bytes | None) -> None:
    shard = Shard()
    first = shard.commit()
    second = shard.commit(is_delta=True)
    shard.publish()
    if damage is None:
        shard.blob.delete(copy_key(first))
    else:
        shard.blob.set(copy_key(first), damage)
    assert recover_newest(shard.client, shard.client.state("s")).notices == (), "mint does not read copies"
    third = shard.commit(is_delta=True)
    report = shard.publish()
    assert report.published == (third,)
    assert report.repaired == (() if damage is None else (copy_key(first),))
    assert shard.blob.get(copy_key(first)) == b"stash-1"
    assert shard.checkpointer.read_latest() == third
    assert shard.stash(second) == [b"stash-1", b"stash-2"]
    assert fsck(shard.client, "s").is_clean


def test_a_copy_of_the_same_size_is_found_by_fsck_and_repaired() -> None:
    shard = Shard()
    first = shard.commit()
    shard.commit()
    shard.publish()
    shard.blob.set(copy_key(first), b"stash-0")
    assert [v.check for v in fsck(shard.client, "s").violations] == ["checkpoint"]
    done = repair_checkpoints(shard.client, "s")
    assert (done.repaired, done.quarantined, done.not_repaired) == ((copy_key(first),), (), ())
    assert fsck(shard.client, "s").is_clean
    assert repair_checkpoints(shard.client, "s").repaired == ()


def test_a_lost_copy_is_reported_and_stops_nothing() -> None:
    shard = Shard()
    first = shard.commit()
    shard.publish()
    second = shard.commit()
    for entry in list(shard.blob.list_keys_and_metadata("s/batches/")):
        if entry.key.endswith("upsert.bin") and shard.blob.get(entry.key) == b"stash-1":
            shard.blob.delete(entry.key)
    shard.blob.delete(copy_key(first))
    report = shard.publish()
    assert report.published == (second,)
    assert [first in message for message in report.not_repaired] == [True]
    assert report.quarantined == (first,)
    assert shard.checkpointer.list_checkpoints() == [second]
    assert shard.publish().not_repaired == ()


def test_a_whole_checkpoint_of_a_damaged_commit_is_left_alone() -> None:
    """It may contain the only intact copy of the operator state."""
    shard = Shard()
    first, second = shard.commit(), shard.commit()
    shard.publish()
    for commit in shard.client.state("s").commits:
        shard.blob.set(commit.manifest_key, b"rotten")
    done = repair_checkpoints(shard.client, "s")
    assert (done.repaired, done.quarantined, len(done.not_repaired)) == ((), (), 2)
    assert shard.checkpointer.list_checkpoints() == [first, second]
    assert shard.stash(first) == [b"stash-1"]


def test_a_manifest_with_other_facts_than_its_commit_is_replaced() -> None:
    shard = Shard()
    first = shard.commit()
    shard.commit()
    shard.publish()
    body = json.loads(shard.blob.get(manifest_key(first)) or b"")
    for name in ("sha256", "kind", "version"):
        del body[name]
    altered: list[dict[str, object]] = [{"epoch": 9}, {"watermark": 7}, {"operators": {}}, {"parent_id": first}]
    for facts in altered:
        shard.blob.set(manifest_key(first), seal("checkpoint_manifest", 2, {**body, **facts}))
        (violation,) = fsck(shard.client, "s").violations
        assert next(iter(facts)) in violation.message
        assert repair_checkpoints(shard.client, "s").repaired == (manifest_key(first),)
        assert fsck(shard.client, "s").is_clean


@pytest.mark.parametrize("damage", [b"{}", None], ids=["altered", "missing"])
def test_an_offsets_file_is_compared_and_repaired(damage: bytes | None) -> None:
    shard = Shard()
    first = shard.commit()
    shard.publish()
    key = f"s/checkpoints/{first}/offsets/files.json"
    if damage is None:
        shard.blob.delete(key)
    else:
        shard.blob.set(key, damage)
    assert [v.check for v in fsck(shard.client, "s").violations] == ["checkpoint"]
    repair_checkpoints(shard.client, "s")
    assert fsck(shard.client, "s").is_clean


def test_latest_is_repaired_from_the_newest_published_commit() -> None:
    shard = Shard()
    first, second = shard.commit(), shard.commit()
    shard.publish()
    (never,) = checkpoint_ids(1, seed=7)
    for pointer in (None, b"", first.encode(), b"f" * 36, never.encode(), b"ffffffff-ffff-7fff-bfff-ffffffffffff"):
        if pointer is None:
            shard.blob.delete("s/checkpoints/_latest")
        else:
            shard.blob.set("s/checkpoints/_latest", pointer)
        assert [v.check for v in fsck(shard.client, "s").violations] == ["latest"], pointer
        repair_checkpoints(shard.client, "s")
        assert shard.checkpointer.read_latest() == second
        assert fsck(shard.client, "s").is_clean


def test_latest_stays_if_the_newest_checkpoint_is_not_whole() -> None:
    shard = Shard()
    first = shard.commit()
    shard.publish()
    second = shard.commit()
    shard.publish()
    shard.blob.set("s/checkpoints/_latest", first.encode())
    shard.blob.set(copy_key(second), b"stash-0")
    with pytest.raises(CorruptArtifact, match=copy_key(second)):
        settle_latest(shard.client, "s")
    assert shard.checkpointer.read_latest() == first
    report = shard.publish()
    assert ["_latest" in message for message in report.not_repaired] == [True]
    assert repair_checkpoints(shard.client, "s").not_repaired == ()
    assert shard.checkpointer.read_latest() == second
