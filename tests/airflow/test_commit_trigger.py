"""`ShardCommitTrigger` in its run loop: which commits it reports, across restarts, and what it leaves open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, cast

import pytest

from persist_airflow.compat import BaseTrigger
from persist_airflow.hook import PersistHook
from persist_airflow.triggers import SEEN, ShardCommitTrigger
from persist_core.checkpoint.publish import publish_missing
from persist_core.errors import InvalidInput
from persist_core.handles.client import PersistClient
from persist_core.maintenance.drop import create_again, drop
from persist_core.protocol.restore import RestorePlan, plan_restore, restore
from persist_core.shard.eras import refuse_earlier
from persist_core.shard.state import Committed
from tests.core.world import KEYS as SCHEMA
from tests.plain_commit import commit

pytestmark = pytest.mark.airflow_2_11

POLL_S = 0.02
LOOKS = 3


class Store:
    """Stands in for the asset's state, which Airflow keeps in its database."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}

    async def aget(self, key: str, default: Any = None) -> Any:
        return self.kept.get(key, default)

    async def aset(self, key: str, value: Any) -> None:
        self.kept[key] = value


def append(client: PersistClient, writer: str) -> None:
    state = client.ensure_shard("fruit")
    commit(client, "fruit", SCHEMA, (state.upper.time or 0) + 1, writer=writer)


def trigger(store: Store | None, **arguments: Any) -> Any:
    """As the triggerer makes it of the serialized one."""
    _, given = ShardCommitTrigger("fruit", poll_s=POLL_S, **arguments).serialize()
    made: Any = ShardCommitTrigger(**given)
    made.asset_state_store, made.looks, look = store, 0, made._look

    def counted() -> Any:
        made.looks += 1
        return look()

    made._look = counted
    return made


async def has_looked(made: Any, running: asyncio.Future[Any]) -> None:
    """Wait until the trigger has looked several times, and has reported what it found."""
    async with asyncio.timeout(60):
        while made.looks <= LOOKS and not running.done():
            await asyncio.sleep(POLL_S)


async def events(made: Any) -> list[dict[str, Any]]:
    """The events that it reports in some looks; then the triggerer ends."""
    found: list[dict[str, Any]] = []

    async def collect() -> None:
        async with aclosing(cast(Any, made.run())) as running:
            async for event in cast(AsyncIterator[Any], running):
                found.append(event.payload)

    collecting = asyncio.ensure_future(collect())
    await has_looked(made, collecting)
    collecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await collecting
    return found


async def event_after(made: Any, act: Any) -> dict[str, Any]:
    """The first event after `act`, which is called when the trigger has looked for a while."""
    async with aclosing(cast(Any, made.run())) as running:
        waiting = asyncio.ensure_future(anext(running))
        await has_looked(made, waiting)
        assert not waiting.done()
        act()
        event = await asyncio.wait_for(waiting, 60)
        return dict(event.payload)


def test_commits_are_reported_once_across_restarts(client: PersistClient) -> None:
    append(client, "cli/first")
    store = Store()
    assert asyncio.run(events(trigger(store))) == []  # what was there before the watcher is not reported
    append(client, "cli/second")
    append(client, "persist_upsert__fruit/run")
    append(client, "cli/third")
    append(client, "persist_upsert__fruit/run")
    (event,) = asyncio.run(events(trigger(store)))
    assert (event["shard"], event["writer"], event["commits"], event["upper"]) == ("fruit", "cli/third", 2, 4)
    assert asyncio.run(events(trigger(store))) == []
    for dag_id in ("persist_view__x", "persist_group__x", "persist_actions"):
        append(client, f"{dag_id}/run")
    assert asyncio.run(events(trigger(store))) == []
    assert store.kept == {SEEN: [client.state("fruit").origin.life, 8]}


def test_a_commit_is_reported_while_it_runs(client: PersistClient) -> None:
    event = asyncio.run(event_after(trigger(None), lambda: append(client, "cli/first")))
    assert (event["writer"], event["commits"]) == ("cli/first", 1)
    event = asyncio.run(event_after(trigger(None, skip_writers=()), lambda: append(client, "persist_upsert__x/r")))
    assert event["writer"] == "persist_upsert__x/r"


def test_a_shard_that_was_begun_again_is_reported(client: PersistClient) -> None:
    for number in range(3):
        append(client, f"cli/{number}")
    store = Store()
    assert asyncio.run(events(trigger(store))) == []
    drop(client, "fruit")
    create_again(client, "fruit")
    append(client, "cli/new")
    (event,) = asyncio.run(events(trigger(store)))
    assert (event["writer"], event["upper"]) == ("cli/new", 1)


def test_an_era_without_a_commit_reports_nothing_again(client: PersistClient) -> None:
    """GC begins eras, and so do erasures."""
    store = Store()
    for number in range(3):
        append(client, f"cli/{number}")
    assert asyncio.run(events(trigger(store))) == []
    for _ in range(2):
        client.machine.apply("fruit", refuse_earlier)
        assert asyncio.run(events(trigger(store))) == []
    append(client, "cli/new")
    (event,) = asyncio.run(events(trigger(store)))
    assert (event["writer"], event["commits"]) == ("cli/new", 1)


def test_a_restore_is_reported(client: PersistClient) -> None:
    for number in range(3):
        append(client, f"cli/{number}")
    store = Store()
    assert asyncio.run(events(trigger(store))) == []
    publish_missing(client, client.state("fruit"))
    plan = plan_restore(client, "fruit", client.state("fruit").commits[0].checkpoint_id)
    assert isinstance(plan, RestorePlan)
    assert isinstance(restore(client, plan, writer="cli/restore"), Committed)
    (event,) = asyncio.run(events(trigger(store)))
    assert (event["writer"], event["commits"]) == ("cli/restore", 1)


def test_nothing_stays_open_between_looks(client: PersistClient, monkeypatch: pytest.MonkeyPatch) -> None:
    append(client, "cli/first")
    is_open: list[bool] = []
    connect = PersistHook.get_conn

    def counting(hook: PersistHook) -> PersistClient:
        assert not any(is_open)
        made = connect(hook)
        number = len(is_open)
        is_open.append(True)
        close = made.location.close

        def closing() -> None:
            is_open[number] = False
            close()

        vars(made.location)["close"] = closing
        return made

    monkeypatch.setattr(PersistHook, "get_conn", counting)
    asyncio.run(events(trigger(None)))
    assert len(is_open) > 2
    assert not any(is_open[:-1])  # the last look may go on for a moment in its thread


def test_polls_are_positive_and_equal_watchers_are_one_trigger() -> None:
    with pytest.raises(InvalidInput, match="poll_s is 0"):
        ShardCommitTrigger("fruit", poll_s=0)
    hash_of: Any = getattr(ShardCommitTrigger, "hash", None)
    if hash_of is None:  # 2.11
        assert issubclass(ShardCommitTrigger, BaseTrigger)
        return
    first, second, other = (ShardCommitTrigger(name).serialize() for name in ("fruit", "fruit", "shop"))
    assert hash_of(*first) == hash_of(*second) != hash_of(*other)
