"""Dropped shards: refused while someone needs them, all their files go, and the name can be used again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from persist_core.errors import InvalidInput, OutsideFrontiers, RunFailed
from persist_core.gc.collect import GRACE_MS, INTENT_MS, collect
from persist_core.handles.read import check_as_of
from persist_core.inspection.holders import list_holders
from persist_core.maintenance.actions import pin, recreate, unpin
from persist_core.maintenance.drop import create_again, drop, users_of
from persist_core.maintenance.fsck import fsck
from persist_core.protocol import stages
from persist_core.protocol.fork import fork
from persist_core.protocol.stages import Conflict
from tests.core.protocol.restored_shard import SHARD, Collection
from tests.oracle.upsert import Record

A = ("eu", 1)


@pytest.fixture
def shard(tmp_path: Path) -> Collection:
    made = Collection(tmp_path)
    for number in (1, 2):
        made.drop(f"{number}.txt", [Record(A, (f"a{number}", None, None), 10 * number - 1, (0, "f", 0, 0))])
        made.run(10 * number)
    return made


def stored(shard: Collection) -> list[str]:
    return [entry.key for entry in shard.client.blob.list_keys_and_metadata(f"{SHARD}/")]


def collect_all(shard: Collection) -> None:
    for _ in range(INTENT_MS // GRACE_MS + 3):
        collect(shard.client, SHARD)
        shard.clock.sleep_ms(GRACE_MS)


def test_everything_goes_but_the_gravestone(shard: Collection) -> None:
    assert drop(shard.client, SHARD)
    assert not drop(shard.client, SHARD)
    collect_all(shard)
    assert stored(shard) == []
    state = shard.client.state(SHARD)
    assert state.is_dropped
    assert (state.batches, state.commits, state.sources) == ((), (), {})
    assert fsck(shard.client, SHARD).is_clean
    with pytest.raises(OutsideFrontiers, match="shard things was dropped"):
        shard.client.open_reader(SHARD).snapshot()
    with pytest.raises(OutsideFrontiers, match="shard things was dropped"):
        check_as_of(state, None)
    with pytest.raises(InvalidInput, match="persist run --recreate things"):
        shard.mint(30)


def test_it_is_refused_while_someone_needs_the_shard(shard: Collection) -> None:
    shard.client.open_since(SHARD, "view/sales")
    reader = shard.client.open_leased_reader(SHARD, lease_ms=GRACE_MS)
    fork(shard.client, SHARD, shard.client.state(SHARD).commits[0].checkpoint_id, "twin", writer="test")
    users = users_of(shard.client, SHARD)
    assert users[0] == "hold view/sales"
    assert users[2] == "fork twin"
    with pytest.raises(InvalidInput, match=r"is needed by hold view/sales, lease .*, fork twin\. Drop the views first"):
        drop(shard.client, SHARD)
    assert not shard.client.state(SHARD).is_dropped
    reader.expire()
    assert drop(shard.client, SHARD, is_forced=True)
    collect_all(shard)
    assert {key.split("/")[1] for key in stored(shard)} <= {"batches", "sources", "forks", "gc"}
    twin = shard.beside("twin")
    twin.check()
    assert drop(twin.client, "twin")
    collect_all(shard)
    assert stored(shard) == []


def test_what_the_refusal_points_to_ends_a_pin(shard: Collection) -> None:
    checkpoint_id = shard.client.state(SHARD).commits[0].checkpoint_id
    pin(shard.client, SHARD, checkpoint_id)
    with pytest.raises(InvalidInput, match=f"hold pin/{checkpoint_id}.*`persist holds {SHARD}` says what ends"):
        drop(shard.client, SHARD)
    remedies = {each.kind: each.remedy for each in list_holders(shard.client, shard.client.state(SHARD)).held}
    assert remedies["pin"] == f"persist unpin {SHARD} {checkpoint_id}"
    unpin(shard.client, SHARD, checkpoint_id)
    assert drop(shard.client, SHARD)


def test_a_hold_that_comes_in_between_refuses_it_too(shard: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(*_: object) -> tuple[str, ...]:
        shard.client.open_since(SHARD, "view/sales")
        return ()

    monkeypatch.setattr("persist_core.maintenance.drop.users_of", late)
    with pytest.raises(InvalidInput, match="now in use by view/sales; retry"):
        drop(shard.client, SHARD)


def test_the_name_is_used_again_only_on_demand(shard: Collection) -> None:
    with pytest.raises(InvalidInput, match="is not dropped"):
        create_again(shard.client, SHARD)
    shard.drop("3.txt", [Record(A, ("a3", None, None), 29, (0, "f", 0, 0))])
    late = shard.mint(30)
    key = shard.write(late)
    drop(shard.client, SHARD)
    create_again(shard.client, SHARD)
    assert [key for key in stored(shard) if "/gc/" not in key] == []
    state = shard.client.state(SHARD)
    assert (state.upper.time, state.since.time, state.commits) == (0, 0, ())
    assert isinstance(stages.append(shard.client, late, key), Conflict)
    shard.run(30)
    shard.check()
    assert [row["name"] for row in shard.client.open_reader(SHARD).snapshot().to_pylist()] == ["a3"]


def test_a_recreation_that_another_has_overtaken_drops_nothing(
    shard: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that was cleared while the first try still worked: the next run has filled the table meanwhile."""

    def slow(*given: Any, **options: Any) -> bool:
        monkeypatch.undo()
        recreate(shard.client, SHARD)
        shard.run(30)
        return drop(*given, **options)

    monkeypatch.setattr("persist_core.maintenance.drop.drop", slow)
    with pytest.raises(RunFailed, match="things was begun again by another call meanwhile: nothing was dropped"):
        recreate(shard.client, SHARD)
    assert shard.client.state(SHARD).upper.time == 30
    assert len(shard.client.open_reader(SHARD).snapshot()) == 1


def test_a_dropped_shard_begins_again_whoever_needs_it(shard: Collection) -> None:
    (*_, newest) = shard.client.state(SHARD).commits
    pin(shard.client, SHARD, newest.checkpoint_id)
    with pytest.raises(InvalidInput, match="is needed by hold"):
        recreate(shard.client, SHARD)
    drop(shard.client, SHARD, is_forced=True)
    assert recreate(shard.client, SHARD).facts["status"] == "emptied"
    assert not shard.client.state(SHARD).is_dropped
