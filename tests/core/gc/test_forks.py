"""GC and forks: what a given up fork does to its readers, and a fork of a fork that is made while GC looks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from persist_core.checkpoint.publish import publish_missing
from persist_core.compaction.merge import Merge, merge_here
from persist_core.contents import pieces
from persist_core.contents.batch import BatchDescription
from persist_core.contents.parts import updates_schema
from persist_core.errors import RunFailed
from persist_core.gc.collect import GRACE_MS, collect
from persist_core.gc.garbage_list import GarbageList
from persist_core.handles.client import PersistClient
from persist_core.handles.read import ReadHandle, schema_of
from persist_core.handles.write import stage_manifest
from persist_core.keys import forks_prefix, gc_clock_key, gc_prefix
from persist_core.location.blob import BlobMetadata
from persist_core.location.open import OpenLocation
from persist_core.protocol.fork import fork
from persist_core.shard.state import Committed, ShardState
from tests.core.protocol.restored_shard import SHARD, Collection, as_tables
from tests.core.protocol.test_restore_faults import client_on
from tests.dying_store import Crash
from tests.oracle.strategies import SCHEMA
from tests.oracle.upsert import Record, UpsertDiff

HOUR_MS = GRACE_MS // 24
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
