"""GC and forks: what a given up fork does to its readers, a fork of a fork that is made while GC looks, and lists of
parts that nothing reads any more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from persist_core.checkpoint.publish import publish_missing
from persist_core.compaction.merge import Merge, merge_here
from persist_core.contents import part_lists, pieces
from persist_core.contents.batch import BatchDescription
from persist_core.contents.parts import updates_schema
from persist_core.errors import CorruptArtifact, RunFailed
from persist_core.gc.collect import GRACE_MS, INTENT_MS, collect
from persist_core.gc.sweep import GarbageList
from persist_core.handles.client import PersistClient
from persist_core.handles.read import ReadHandle, schema_of
from persist_core.handles.write import stage_manifest
from persist_core.keys import forks_prefix, gc_clock_key, gc_prefix, list_key
from persist_core.location.blob import BlobMetadata
from persist_core.location.mem import MemBlob, MemConsensus
from persist_core.location.open import OpenLocation
from persist_core.maintenance.drop import drop
from persist_core.protocol.fork import fork
from persist_core.shard.state import Committed, ShardState
from tests.core.maintenance.copies import copy_all
from tests.core.protocol.restored_shard import SHARD, Collection, as_tables
from tests.core.protocol.test_restore_faults import client_on
from tests.dying_store import Crash
from tests.oracle.strategies import SCHEMA
from tests.oracle.upsert import Record, UpsertDiff

HOUR_MS = GRACE_MS // 24
ERAS_TO_SWEEP = INTENT_MS // GRACE_MS + 2  # from a mark until its list is swept
A = ("eu", 1)


def merge_all(client: PersistClient, shard: str) -> None:
    state = client.state(shard)
    merge_here(client, Merge.of(client, state, state.batches), attempt=client.ids.uuid7())


def read_all(reader: ReadHandle, state: ShardState) -> None:
    newest = state.batches[-1].last_time
    reader.read(state.batches, updates_schema(schema_of(state)), lambda b, m: pieces.oks_as_of(b, m, newest))


def run(shard: Collection, number: int) -> str:
    shard.drop(f"{shard.shard}{number}.txt", [Record(A, (f"a{number}", None, None), 10 * number - 1, (0, "f", 0, 0))])
    return shard.run(10 * number)


def pass_era(*shards: Collection) -> None:
    shards[0].clock.sleep_ms(GRACE_MS)
    for shard in shards:
        collect(shards[0].client, shard.shard)


def sweep(shard: Collection) -> None:
    """Let GC delete what was unneeded, and what forks that nothing needs have kept."""
    for _ in range(2 * ERAS_TO_SWEEP):
        pass_era(shard)


def before_it_is_staged(patch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let a fork stop between its look at the shard and its own first commit."""

    def stage(*staged: Any) -> str:
        act()
        return stage_manifest(*staged)

    patch.setattr("persist_core.protocol.fork.stage_manifest", stage)


def test_a_fork_tried_twice_takes_no_time_from_readers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GC of the shard ends eras of the other one when it gives up the two forks, whose files nothing needs."""
    shard, client = (made := Collection(tmp_path)), made.client
    checkpoints = [run(shard, number) for number in (1, 2, 3)]

    def die() -> None:
        raise Crash

    with monkeypatch.context() as patch:
        before_it_is_staged(patch, die)
        for checkpoint in checkpoints[1:]:
            with pytest.raises(Crash):
                fork(client, SHARD, checkpoint, "twin", writer="test")
    twin = shard.beside("twin")
    for number in (1, 2, 3):
        run(twin, number)
    merge_all(client, SHARD)
    for begun_ms in range(0, 20 * GRACE_MS, GRACE_MS):
        reader = client.open_reader("twin")
        state = reader.state()
        run(twin, begun_ms // GRACE_MS + 4)
        merge_all(client, "twin")
        collect(client, "twin")
        shard.clock.sleep_ms(HOUR_MS)
        collect(client, SHARD)
        for _ in range(2):
            collect(client, "twin")
        read_all(reader, state)
        shard.clock.sleep_ms(GRACE_MS - HOUR_MS)
        if not list(client.blob.list_keys_and_metadata(forks_prefix(SHARD))):
            break
    else:
        raise AssertionError("GC has not given up the forks")
    twin.check()


class Stopping:
    """A blob store on which a collector stops once, after it has listed the records of forks."""

    def __init__(self, blob: Any) -> None:
        self._blob = blob
        self.has_listed, self.may_go_on = Event(), Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._blob, name)

    def list_keys_and_metadata(self, prefix: str) -> Iterator[BlobMetadata]:
        listed = list(self._blob.list_keys_and_metadata(prefix))
        if prefix == forks_prefix(SHARD) and not self.has_listed.is_set():
            self.has_listed.set()
            assert self.may_go_on.wait(60)
        return iter(listed)


def without_progress(folder: Path) -> tuple[Collection, str]:
    """A shard by a plain writer, so that a fork shares manifests only; its newest checkpoint."""
    shard = Collection(folder)
    for number in (1, 2):
        lower, client = 10 * (number - 1), shard.client
        ids = client.ids.uuid7(), client.ids.uuid7()
        description = BatchDescription(SHARD, lower, lower + 10, *ids, epoch=number, parent_id=None, writer="test")
        updates = [UpsertDiff(("eu", number), (f"a{number}", None, None), lower, 1)]
        writer = client.open_writer(SHARD)
        key = writer.stage(description, SCHEMA, client.ids.uuid7(), *as_tables(updates))
        assert isinstance(writer.compare_and_append(client.staged_manifest(key), key), Committed)
    publish_missing(shard.client, shard.client.state(SHARD))
    return shard, description.checkpoint_id


def is_to_be_swept(shard: Collection, key: str) -> bool:
    """True if a list names `key`, of an era that is refused."""
    oldest, clock = shard.client.state(SHARD).oldest_era, gc_clock_key(SHARD)
    for entry in shard.client.blob.list_keys_and_metadata(gc_prefix(SHARD)):
        if entry.key != clock:
            listed = GarbageList.read(shard.client.blob.get(entry.key) or b"", entry.key)
            if listed.era < oldest and any(each.key == key for each in listed.garbage):
                return True
    return False


def test_a_fork_of_a_fork_is_whole_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A collector has listed the forks of the shard. Then the fork is forked again, and needs the shard no more.

    The fork took so long that its files are on a list already; so the collector is about to delete them.
    """
    shard, checkpoint = without_progress(tmp_path)
    client = shard.client
    shared = client.manifest(client.state(SHARD).batches[0]).parts[0].key

    def let_its_files_be_listed() -> None:
        merge_all(client, SHARD)
        collect(client, SHARD)
        for _ in range(20):
            if is_to_be_swept(shard, shared):
                return
            pass_era(shard)
        raise AssertionError("not listed")

    with monkeypatch.context() as patch:
        before_it_is_staged(patch, let_its_files_be_listed)
        made = fork(client, SHARD, checkpoint, "twin", writer="test")
    stopping = Stopping(client.blob)
    slow = client_on(shard, OpenLocation(stopping, shard.location.consensus))
    shard.clock.sleep_ms(GRACE_MS)
    collector = Thread(target=collect, args=(slow, SHARD))
    collector.start()
    assert stopping.has_listed.wait(60)

    def let_the_collector_end() -> None:
        merge_all(client, "twin")
        stopping.may_go_on.set()
        collector.join(60)
        assert not collector.is_alive()

    with monkeypatch.context() as patch:
        before_it_is_staged(patch, let_the_collector_end)
        try:
            fork(client, "twin", made.commit.checkpoint_id, "child", writer="test")
        except RunFailed:
            return
    child = shard.beside("child")
    assert set(child.contents(19)) == {("eu", 1), ("eu", 2)}
    child.check()


@pytest.fixture
def fork_with_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Collection, Collection]:
    """A shard, whose commits are all in its state, and its fork: they share a manifest with lists."""
    monkeypatch.setattr(part_lists, "MAX_PARTS", 1)
    shard = Collection(tmp_path)
    for number in (1, 2):
        run(shard, number)
    fork(shard.client, SHARD, shard.client.state(SHARD).commits[-1].checkpoint_id, "twin", writer="test")
    merge_all(shard.client, SHARD)
    return shard, shard.beside("twin")


def test_lists_of_a_dropped_fork_may_go_before_its_record(fork_with_lists: tuple[Collection, Collection]) -> None:
    """GC ends between them, and a commit keeps the manifest of lists that are gone."""
    shard, twin = fork_with_lists
    drop(shard.client, twin.shard)
    for _ in range(2 * ERAS_TO_SWEEP):
        shard.clock.sleep_ms(GRACE_MS)
        while not collect(shard.client, SHARD, max_keys=1).is_done:
            pass
    assert not any(shard.client.blob.list_keys_and_metadata(forks_prefix(SHARD)))
    shard.check()


def test_a_list_that_a_fork_reads_and_has_lost_stops_gc(fork_with_lists: tuple[Collection, Collection]) -> None:
    shard, twin = fork_with_lists
    blob = shard.client.blob
    blob.delete(list_key(twin.client.state(twin.shard).batches[-1].manifest_key, 0))
    before = {entry.key for entry in blob.list_keys_and_metadata(f"{SHARD}/")}
    with pytest.raises(CorruptArtifact, match=r"list of parts .* is missing"):
        sweep(shard)
    assert before <= {entry.key for entry in blob.list_keys_and_metadata(f"{SHARD}/")}


def test_a_copy_without_lists_that_nothing_reads_is_collected(fork_with_lists: tuple[Collection, Collection]) -> None:
    """The fork has merged what it shared, but it still names the owner's progress, so its record stays."""
    shard, twin = fork_with_lists
    merge_all(shard.client, twin.shard)
    there = OpenLocation(MemBlob(clock=shard.clock), MemConsensus())
    copy_all(shard.client, client_on(shard, there))
    for each in fork_with_lists:
        each.location, each.client = there, client_on(shard, there)
    sweep(shard)
    assert any(shard.client.blob.list_keys_and_metadata(forks_prefix(SHARD)))
    for each in fork_with_lists:
        each.check()
