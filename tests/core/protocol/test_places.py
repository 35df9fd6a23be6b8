"""A whole object of another shard in a shard's place is found: by readers, by runs, by GC and by fsck."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from persist_core.errors import CorruptArtifact
from persist_core.gc.collect import GRACE_MS, collect
from persist_core.handles.client import PersistClient
from persist_core.inspection.inspector import Inspector
from persist_core.keys import LOCATION, conflicts_prefix, forks_prefix, gc_prefix
from persist_core.location.mem import MemConsensus
from persist_core.location.open import OpenLocation
from persist_core.maintenance.fsck import fsck
from persist_core.protocol import stages
from persist_core.protocol.conflicts import list_conflicts
from persist_core.protocol.fork import fork
from persist_core.protocol.fork_records import list_forks
from persist_core.protocol.restore import plan_restore
from persist_core.protocol.stages import Conflict
from tests.core.protocol.restored_shard import SHARD, Collection
from tests.oracle.upsert import Record

OTHER = "others"
IN_PLACE = "another object is in its place"


@pytest.fixture
def shard(tmp_path: Path) -> Collection:
    return committed(tmp_path / SHARD, SHARD, None)


@pytest.fixture
def other(tmp_path: Path, shard: Collection) -> Collection:
    """A shard with other rows beside the first one, at the same version."""
    return committed(tmp_path / OTHER, OTHER, shard)


def committed(folder: Path, name: str, beside: Collection | None) -> Collection:
    folder.mkdir()
    made = Collection(folder, beside.location if beside else None, name)
    if beside is not None:
        made.client.ids = beside.client.ids
    for number in (1, 2):
        row = Record(("eu", number), (f"{name} {number}", None, None), 10 * number - 1, (0, "f", 0, 0))
        made.drop(f"{number}.txt", [row])
        made.run(10 * number)
    return made


def put_in_place(shard: Collection, prefix: Callable[[str], str], *, found: int = 1) -> list[str]:
    """Copy what the other shard has below `prefix` to the same places of this one; their keys."""
    blob, keys = shard.client.blob, []
    for entry in list(blob.list_keys_and_metadata(prefix(OTHER))):
        data = blob.get(entry.key)
        if data:
            keys.append(prefix(SHARD) + entry.key.removeprefix(prefix(OTHER)))
            blob.set(keys[-1], data)
    assert len(keys) == found
    return keys


def use_state_of_other(shard: Collection) -> None:
    """The value of the other shard's key is under this shard's key too."""
    consensus = MemConsensus()
    head = shard.location.consensus.head(OTHER)
    assert head is not None
    for name in (SHARD, OTHER):
        consensus.compare_and_set(name, None, head)
    location = shard.location.consensus.head(LOCATION)
    assert location is not None
    consensus.compare_and_set(LOCATION, None, location)
    shard.location = OpenLocation(shard.location.blob, consensus)
    shard.client = PersistClient(
        shard.location, shard.clock, shard.client.ids, fetch_threads=1, part_format=shard.client.part_format
    )


def test_the_state_of_another_shard_is_not_served(shard: Collection, other: Collection) -> None:
    assert shard.client.state(SHARD).seqno == other.client.state(OTHER).seqno
    shard.drop("3.txt", [])
    description = shard.mint(30)
    manifest_key = shard.write(description)
    use_state_of_other(shard)
    for serve in (
        lambda: shard.client.open_reader(SHARD).snapshot(),
        lambda: shard.mint(30),
        lambda: stages.append(shard.client, description, manifest_key),
        lambda: collect(shard.client, SHARD),
        lambda: Inspector(shard.client).state(SHARD),
    ):
        with pytest.raises(CorruptArtifact, match=IN_PLACE):
            serve()
    assert not fsck(shard.client, SHARD).is_clean
    assert fsck(shard.client, OTHER).is_clean


def test_the_batch_manifest_of_another_shard_is_not_appended(shard: Collection, other: Collection) -> None:
    ours, theirs = shard.write(shard.mint(30)), other.write(other.mint(30))
    staged = shard.client.blob.get(theirs)
    assert staged is not None
    shard.client.blob.set(ours, staged)
    with pytest.raises(CorruptArtifact, match=IN_PLACE):
        shard.client.staged_manifest(ours)


def test_the_checkpoint_of_another_shard_is_not_restored(shard: Collection, other: Collection) -> None:
    theirs = other.client.state(OTHER).commits[0].checkpoint_id
    manifest = shard.client.blob.get(other.checkpointer.layout.manifest(theirs))
    assert manifest is not None
    shard.client.blob.set(shard.checkpointer.layout.manifest(theirs), manifest)
    with pytest.raises(CorruptArtifact, match=IN_PLACE):
        plan_restore(shard.client, SHARD, theirs)
    assert shard.checkpointer.listing().unreadable.keys() == {theirs}
    assert not fsck(shard.client, SHARD).is_clean


@pytest.mark.usefixtures("other")
def test_the_fork_record_of_another_shard_is_refused(shard: Collection) -> None:
    fork(shard.client, OTHER, shard.client.state(OTHER).commits[0].checkpoint_id, "twin", writer="test")
    put_in_place(shard, forks_prefix)
    with pytest.raises(CorruptArtifact, match=IN_PLACE):
        list_forks(shard.client.blob, SHARD)
    assert not fsck(shard.client, SHARD).is_clean


def test_the_conflict_record_of_another_shard_is_refused(shard: Collection, other: Collection) -> None:
    late = other.mint(30)
    written = other.write(late)
    other.run(40)
    assert isinstance(stages.append(other.client, late, written), Conflict)
    put_in_place(shard, conflicts_prefix)
    with pytest.raises(CorruptArtifact, match=IN_PLACE):
        list_conflicts(shard.client.blob, SHARD)
    assert not fsck(shard.client, SHARD).is_clean


def test_the_garbage_list_of_another_shard_deletes_nothing(shard: Collection, other: Collection) -> None:
    """A batch of the other shard is on a list, and appended after that: the other shard's own GC keeps it."""
    row = Record(("eu", 3), ("listed", None, None), 29, (0, "f", 0, 0))
    other.drop("3.txt", [row])
    description = other.mint(30)
    waiting = other.write(description)
    collect(other.client, OTHER)
    stages.append(other.client, description, waiting)
    (ours,) = put_in_place(shard, gc_prefix)
    assert not fsck(shard.client, SHARD).is_clean
    for _ in range(10):
        for name in (SHARD, OTHER):
            collect(shard.client, name)
        shard.clock.sleep_ms(GRACE_MS)
        other.clock.sleep_ms(GRACE_MS)
    other.check()
    assert shard.client.blob.get(ours) is None
