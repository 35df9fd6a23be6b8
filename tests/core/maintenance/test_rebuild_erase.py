"""Erasures and generations: what a rebuild has written is erased too, and a rebuild brings no erased key back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from persist_core.contents.erased import ErasedList
from persist_core.errors import InvalidInput
from persist_core.handles.client import PersistClient
from persist_core.location.mem import MemBlob, MemConsensus
from persist_core.location.open import OpenLocation
from persist_core.maintenance.erase import erase
from persist_core.maintenance.erase_objects import verify
from persist_core.maintenance.fsck import fsck
from persist_core.maintenance.hidden import end
from persist_core.protocol.swap import swap
from persist_core.shard.state import Committed
from tests.core.maintenance.rebuilt_shard import Keyed, ok, rebuilt
from tests.core.protocol.restored_shard import SHARD
from tests.core.world import SCHEMA
from tests.plain_commit import commit
from tests.virtual import ManualClock, SeededIds


def test_what_a_rebuild_has_written_is_erased() -> None:
    clock = ManualClock(1_700_000_000_000)
    location = OpenLocation(MemBlob(clock=clock), MemConsensus())
    client = PersistClient(location, clock, SeededIds(7, clock), fetch_threads=1)
    for name in ("people", "people~rebuild"):
        commit(client, name, SCHEMA, 10, [((4711, "ann"), 5, 1), ((2, "bo"), 5, 1)])
    result = swap(client, client.state("people"), client.state("people~rebuild"), keep_ms=None, writer="test")
    assert isinstance(result, Committed)
    end(client, "people~rebuild")
    with pytest.raises(InvalidInput, match="people~g1 holds contents of people"):
        erase(client, "people", [(4711,)], by="test", reason="request")
    end(client, "people~g1")
    assert any(key.startswith("people~rebuild/") for key in verify(client, "people", [(4711,)]))
    erase(client, "people", [(4711,)], by="test", reason="request")
    assert verify(client, "people", [(4711,)]) == ()
    assert client.open_reader("people").snapshot()["name"].to_pylist() == ["bo"]
    assert fsck(client, "people").is_clean


def test_a_rebuild_knows_the_erased_keys_or_is_refused(tmp_path: Path) -> None:
    shard, seen = Keyed(tmp_path), []
    shard.define(0, time={"source": "field", "field": "at", "unit": "ms"})
    shard.drop("0.txt", [ok(("eu", 1), "ann"), ok(("eu", 2), "bo")])
    shard.run(10)
    listed = ErasedList("secret")
    key = listed.key_in(SHARD)
    shard.client.blob.set(key, listed.encode())
    shard.client.machine.apply(SHARD, lambda state: (replace(state, erased=key), None))
    shard.define(1)
    with pytest.raises(InvalidInput, match="keys were erased from things"):
        rebuilt(shard)
    shard.define(0)
    rebuilt(shard, first=lambda _: seen.append(shard.client.state(f"{SHARD}~rebuild").erased))
    assert seen == [listed.key_in(f"{SHARD}~rebuild")]
    assert shard.client.state(SHARD).erased == key
    shard.check()
