"""Erasures and generations: what a rebuild has written is erased too, and a rebuild brings no erased key back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from persist_core.checkpoint.publish import publish_missing
from persist_core.contents.batch import BatchDescription
from persist_core.contents.erased import ErasedList
from persist_core.errors import InvalidInput, RunFailed
from persist_core.handles.client import PersistClient
from persist_core.handles.erased import erased_for
from persist_core.location.mem import MemBlob, MemConsensus
from persist_core.location.open import OpenLocation
from persist_core.maintenance.copy import Copier
from persist_core.maintenance.erase import erase, look
from persist_core.maintenance.erase_objects import verify
from persist_core.maintenance.fsck import fsck
from persist_core.maintenance.hidden import end
from persist_core.maintenance.maintain import maintain
from persist_core.protocol.fork import fork
from persist_core.protocol.swap import swap
from persist_core.shard.state import Committed
from tests.core.maintenance.rebuilt_shard import Keyed, ok, rebuilt
from tests.core.protocol.ordered_shard import OrderedCollection
from tests.core.protocol.restored_shard import SHARD, Collection
from tests.core.world import SCHEMA
from tests.plain_commit import commit
from tests.virtual import ManualClock, SeededIds


def swapped() -> PersistClient:
    """A client of `people`, whose files a rebuild has written."""
    clock = ManualClock(1_700_000_000_000)
    location = OpenLocation(MemBlob(clock=clock), MemConsensus())
    client = PersistClient(location, clock, SeededIds(7, clock), fetch_threads=1)
    for name in ("people", "people~rebuild"):
        commit(client, name, SCHEMA, 10, [((4711, "ann"), 5, 1), ((2, "bo"), 5, 1)])
    result = swap(client, client.state("people"), client.state("people~rebuild"), keep_ms=None, writer="test")
    assert isinstance(result, Committed)
    end(client, "people~rebuild")
    return client


def test_what_a_rebuild_has_written_is_erased() -> None:
    client = swapped()
    with pytest.raises(InvalidInput, match="people~g1 holds contents of people"):
        erase(client, "people", [(4711,)], by="test", reason="request")
    end(client, "people~g1")
    assert any(key.startswith("people~rebuild/") for key in verify(client, "people", [(4711,)]))
    erase(client, "people", [(4711,)], by="test", reason="request")
    assert verify(client, "people", [(4711,)]) == ()
    assert client.open_reader("people").snapshot()["name"].to_pylist() == ["bo"]
    assert fsck(client, "people").is_clean


@pytest.mark.parametrize("is_maintained", [True, False])
def test_it_is_erased_and_maintained_in_a_copy_too(is_maintained: bool) -> None:
    client = swapped()
    end(client, "people~g1")
    location = OpenLocation(MemBlob(clock=client.clock), MemConsensus())
    target = PersistClient(location, client.clock, client.ids, fetch_threads=1)
    Copier(client, target, threads=1).copy(["people"], is_move=True)
    assert any(key.startswith("people~rebuild/") for key in verify(target, "people", [(4711,)]))
    assert look(target, "people", [(4711,)]).rows == 1
    assert not is_maintained or maintain(target, "people").untidy == ""
    erase(target, "people", [(4711,)], by="test", reason="request")
    assert verify(target, "people", [(4711,)]) == ()
    assert target.open_reader("people").snapshot()["name"].to_pylist() == ["bo"]
    assert maintain(target, "people").untidy == ""
    assert fsck(target, "people").is_clean


def test_a_fork_of_a_rebuilt_shard_is_named_first() -> None:
    client = swapped()
    end(client, "people~g1")
    publish_missing(client, client.state("people"))
    newest = client.state("people").newest_commit
    assert newest is not None
    fork(client, "people", newest.checkpoint_id, "again", writer="test")
    before = client.state("people")
    with pytest.raises(InvalidInput, match="fork again shares files of people that hold a key"):
        erase(client, "people", [(4711,)], by="test", reason="request")
    assert client.state("people") == before
    erase(client, "again", [(4711,)], by="test", reason="request")
    done = erase(client, "people", [(4711,)], by="test", reason="request")
    assert "again, which shares a past with people: erase there too" in done.beyond
    for name in ("people", "again"):
        assert verify(client, name, [(4711,)]) == ()
        assert client.open_reader(name).snapshot()["name"].to_pylist() == ["bo"]


def test_no_other_times_in_log_order_after_an_erasure(tmp_path: Path) -> None:
    shard = Keyed(tmp_path)
    shard.define(0, time={"source": "field", "field": "at", "unit": "ms"})
    shard.drop("0.txt", [ok(("eu", 1), "ann"), ok(("eu", 2), "bo")])
    shard.run(10)
    rebuilt(shard)
    put_list(shard)
    rebuilt(shard)
    for back_to, unit in ((None, "s"), (-1, "us")):
        shard.define(0, time={"source": "field", "field": "at", "unit": unit})
        with pytest.raises(InvalidInput, match="keys were erased from things, which is in log order"):
            rebuilt(shard, back_to=back_to)


def test_a_rebuild_begins_again_after_an_erasure(tmp_path: Path) -> None:
    shard = OrderedCollection(tmp_path)
    seen: list[ErasedList | None] = []
    said: list[str] = []

    def see(description: BatchDescription) -> None:
        hidden, schema = shard.client.state(description.shard), shard.config.collection_schema()
        seen.append(erased_for(shard.client, hidden, schema, has_times=True))

    shard.drop("0.txt", [ok(("eu", 1), "ann", 1), ok(("eu", 2), "bo", 2)])
    shard.run(10)
    with pytest.raises(RunFailed, match="an erasure of things has ended this one"):
        rebuilt(shard, first=lambda _: put_list(shard))
    listed = ErasedList("secret")
    rebuilt(shard, say=said.append, first=see)
    assert seen == [listed]
    assert said[0].endswith("it is given up")
    assert shard.client.state(SHARD).erased == listed.key_in(SHARD)
    shard.check()


def put_list(shard: Collection) -> None:
    listed = ErasedList("secret")
    key = listed.key_in(SHARD)
    shard.client.blob.set(key, listed.encode())
    shard.client.machine.apply(SHARD, lambda state: (replace(state, erased=key), None))
