"""Both stores of a location hold its id: a run or GC with another consensus store, or other blobs, changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from persist_core.errors import ConfigError
from persist_core.gc.collect import collect
from persist_core.handles.client import PersistClient
from persist_core.location.blob import Blob
from persist_core.location.consensus import Consensus
from persist_core.location.mem import MemBlob, MemConsensus
from persist_core.location.open import OpenLocation
from persist_core.maintenance.fsck import fsck
from tests.core.protocol.restored_shard import SHARD, Collection
from tests.dying_store import Crash, DyingStore
from tests.oracle.upsert import Record

OTHER = "are not the stores of one location"


@pytest.fixture
def shard(tmp_path: Path) -> Collection:
    shard = Collection(tmp_path)
    shard.drop("0.txt", [Record(("eu", 1), ("one", None, None), None, (0, "f", 0, 0))])
    shard.run(10)
    return shard


def with_stores(shard: Collection, *, blob: Blob | None = None, consensus: Consensus | None = None) -> Collection:
    """Read the same files into another store."""
    location = OpenLocation(blob or shard.location.blob, consensus or shard.location.consensus)
    other = Collection(shard.folder, location)
    other.feed, other.client.ids = shard.feed, shard.client.ids
    return other


def stored(shard: Collection) -> list[str]:
    return [entry.key for entry in shard.client.blob.list_keys_and_metadata("")]


def test_a_run_with_an_empty_consensus_store_changes_nothing(shard: Collection) -> None:
    before = stored(shard)
    lost = with_stores(shard, consensus=MemConsensus())
    with pytest.raises(ConfigError, match=OTHER):
        lost.run(20)
    assert list(lost.location.consensus.list_keys()) == []
    assert stored(shard) == before
    shard.run(20)
    shard.check()


def test_a_run_with_other_blobs_makes_no_shard(shard: Collection) -> None:
    lost = with_stores(shard, blob=MemBlob(clock=shard.clock))
    with pytest.raises(ConfigError, match=OTHER):
        lost.client.ensure_shard("new")
    assert stored(lost) == []
    assert "new" not in shard.client.shards()


def test_a_run_with_other_blobs_is_no_damage(shard: Collection) -> None:
    """As if the disk with the blobs is not mounted."""
    lost = with_stores(shard, blob=MemBlob(clock=shard.clock))
    lost.drop("1.txt", [Record(("eu", 1), ("two", None, None), None, (1, "f", 0, 0))])
    with pytest.raises(ConfigError, match=OTHER):
        lost.run(20)
    shard.run(20)
    shard.check()


def test_a_location_that_is_being_made_is_no_other_one(tmp_path: Path) -> None:
    """Its maker has stored the id in consensus, and is about to store it beside the blobs."""
    made = Collection(tmp_path)
    made.client.pair.make()
    (key,) = stored(made)
    made.location.blob.delete(key)
    made.client.pair.check()
    assert stored(made) == [], "to look changes nothing"
    made.client.ensure_shard("new")
    assert stored(made) == [key]


def test_gc_deletes_nothing_of_another_location(shard: Collection, tmp_path: Path) -> None:
    beside = tmp_path / "beside"
    beside.mkdir()
    other = Collection(beside)
    other.client.ids.uuid7()  # both would draw the same ids
    other.run(10)
    mixed = with_stores(shard, consensus=other.location.consensus)
    before = stored(shard)
    for _ in range(3):
        with pytest.raises(ConfigError, match=OTHER):
            collect(mixed.client, SHARD, grace_ms=0, intent_ms=0)
    assert stored(shard) == before
    assert [each.check for each in fsck(mixed.client, SHARD).violations if OTHER in each.message] == ["location"]


@pytest.mark.parametrize("is_late", [False, True], ids=["before", "after"])
def test_a_killed_first_run_is_gone_on_with(is_late: bool, tmp_path: Path) -> None:
    """Also between the two stores, where only consensus has the id."""
    for at in range(1, 20):
        shard, calls = Collection(tmp_path), [0]
        blob = DyingStore(shard.location.blob, calls, at, is_late=is_late)
        consensus = DyingStore(shard.location.consensus, calls, at, is_late=is_late)
        try:
            PersistClient(
                OpenLocation(cast(Any, blob), cast(Any, consensus)), shard.clock, shard.client.ids
            ).ensure_shard(SHARD)
        except Crash:
            shard.run(10)
            shard.check()
        else:
            break
    assert at > 5
