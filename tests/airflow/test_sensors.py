"""Sensors: when they are done, what they wait for, and how they wait."""

from __future__ import annotations

import asyncio
import importlib
import json
import threading
from collections import Counter
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from persist_airflow import sensors, triggers
from persist_airflow.compat import AirflowFailException, AirflowSensorTimeout, AirflowSkipException
from persist_airflow.factory import build_upsert_dag
from persist_airflow.hook import PersistHook
from persist_airflow.sensors import InputSensor, ShardSensor
from persist_core.errors import Determinate
from persist_core.frontier import Frontier
from persist_core.handles.client import PersistClient
from persist_core.location.open import OpenLocation
from tests.airflow.fruit import NAME, Fruit, end_ms, end_of
from tests.airflow.task_driver import DagRunDriver
from tests.core.world import KEYS
from tests.plain_commit import commit

pytestmark = pytest.mark.airflow_2_11


def context(day: int) -> Any:
    return {"data_interval_end": end_of(day), "dag_run": SimpleNamespace()}


@pytest.mark.parametrize("upper", [None, "2026-01-02", end_ms(0), "2026-01-02T00:00:00Z"])
def test_it_is_done_when_the_upper_is_there(fruit: Fruit, client: PersistClient, upper: str | int | None) -> None:
    sensor = ShardSensor(task_id="wait", shard=NAME, upper=upper)
    assert not sensor.poke(context(0)), "the shard does not exist yet"
    assert NAME not in client.shards()
    DagRunDriver(build_upsert_dag(fruit.config()), end_of(0)).run_all()
    assert sensor.poke(context(0))
    assert sensor.poke(context(1)) == (upper is not None)


@pytest.mark.usefixtures("without_spark")
def test_there_is_input_if_mint_would_take_a_file(fruit: Fruit, client: PersistClient) -> None:
    sensor = InputSensor(task_id="files", config=fruit.config())
    assert not sensor.poke(context(0))
    fruit.write_days(range(1, 2))
    assert not sensor.poke(context(0)), "the next day's file is not due"
    fruit.write_days(range(1))
    assert sensor.poke(context(0))
    assert NAME not in client.shards()
    DagRunDriver(build_upsert_dag(fruit.config()), end_of(1)).run_all()
    assert sensor.poke(context(0)), "the interval is covered: mint skips"
    assert not sensor.poke(context(2)), "all files are consumed"


def test_only_the_first_look_for_files_is_whole(
    fruit: Fruit, client: PersistClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    del client  # it is there so that the location is in the environment
    looks: list[bool] = []

    def due(*_: Any, again: bool) -> tuple[int, Frontier]:
        looks.append(again)
        return len(looks) // 3, Frontier(0)

    for module in (sensors, triggers):
        monkeypatch.setattr(module, "files_due", due)
    sensor = InputSensor(task_id="files", config=fruit.config())
    assert not any(sensor.poke(context(0)) for _ in range(2))
    trigger = triggers.InputTrigger(fruit.config().model_dump(mode="json"), end_ms(0))

    async def fired() -> Any:
        return await anext(trigger.run())

    assert asyncio.run(fired()).payload["files"] == 1
    assert looks == [False, True, True]


def test_a_deferred_sensor_gives_up_after_its_timeout(fruit: Fruit, client: PersistClient) -> None:
    del client
    wait: dict[str, Any] = {"task_id": "wait", "shard": NAME, "deferrable": True, "timeout": 30, "poke_interval": 3}
    sensor = ShardSensor(**wait)
    with pytest.raises(BaseException) as put_off:  # noqa: PT011 - Airflow 3's is a BaseException
        sensor.execute(context(0))
    deferred: Any = put_off.value
    assert type(deferred).__name__ == "TaskDeferred"
    trigger = deferred.trigger
    assert deferred.timeout == timedelta(seconds=30), "Airflow keeps it, also if the triggerer starts again"
    assert (trigger.shard, trigger.upper, trigger.poll_s, trigger.timeout_s) == (NAME, end_ms(0), 3, None)
    reached = {"event": {"shard": NAME, "upper": end_ms(0), "reached": True}}
    sensor.resume_execution("execute_complete", reached, context(0))
    for error in ("Trigger timeout", "Trigger/execution timeout"):  # of 3.x, and of 2.11
        timeout = ("__fail__", {"error": error}, context(0))
        with pytest.raises(AirflowSensorTimeout, match=r"fruit: upper has not reached 2026-01-02T.* after 30"):
            sensor.resume_execution(*timeout)
        with pytest.raises(AirflowSkipException):
            ShardSensor(**wait, soft_fail=True).resume_execution(*timeout)
    with pytest.raises(Exception, match="Trigger failure") as failed:
        sensor.resume_execution("__fail__", {"error": "Trigger failure"}, context(0))
    assert not isinstance(failed.value, AirflowSensorTimeout), "another try may succeed"
    DagRunDriver(build_upsert_dag(fruit.config()), end_of(0)).run_all()
    sensor.execute(context(0))


@pytest.mark.parametrize(
    "wait", [{"shard": "None"}, {"shard": "{{ shard }}"}, {"upper": "20260102"}, {"upper": "None"}]
)
@pytest.mark.parametrize("deferrable", [False, True])
def test_what_no_wait_can_change_fails_the_first_look(
    client: PersistClient, wait: dict[str, Any], *, deferrable: bool
) -> None:
    del client
    wait = {"task_id": "wait", "shard": NAME, "deferrable": deferrable, **wait}
    with pytest.raises(AirflowFailException, match="expected"):
        ShardSensor(**wait).execute(context(0))
    with pytest.raises(AirflowSkipException):
        ShardSensor(**wait, soft_fail=True).execute(context(0))


def test_a_look_that_fails_hides_no_earlier_one(client: PersistClient, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(client, NAME, KEYS, 1)
    found = iter([client.machine.fetch(NAME)])

    def look(*_: object) -> Any:
        for state in found:
            return state
        raise Determinate("the store is away")

    monkeypatch.setattr(type(client.machine), "fetch", look)
    fired: Any = anext(triggers.ShardUpperTrigger(NAME, 2, poll_s=0.01, timeout_s=0.05).run())
    assert asyncio.run(fired).payload == {"shard": NAME, "upper": 1, "reached": False}


def test_no_trigger_holds_a_location_open(client: PersistClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """The credentials of a role expire within hours, and a thousand waiting tasks would take as many connections."""
    commit(client, NAME, KEYS, 1)
    counted, get_conn, close = Counter[str](), PersistHook.get_conn, OpenLocation.close

    def opened(hook: PersistHook) -> PersistClient:
        assert counted["opened"] == counted["closed"]
        counted["opened"] += 1
        return get_conn(hook)

    def closed(location: OpenLocation) -> None:
        counted["closed"] += 1
        close(location)

    monkeypatch.setattr(PersistHook, "get_conn", opened)
    monkeypatch.setattr(OpenLocation, "close", closed)
    fired: Any = anext(triggers.ShardUpperTrigger(NAME, 2, poll_s=0.01, timeout_s=0.2).run())
    assert asyncio.run(fired).payload["reached"] is False
    assert counted["opened"] == counted["closed"] > 1


def test_a_slow_store_holds_up_no_other_trigger(client: PersistClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """One connection's triggers wait for its store; triggers of other connections and providers do not."""
    commit(client, NAME, KEYS, 1)
    get_conn, is_over = PersistHook.get_conn, threading.Event()

    def slow(hook: PersistHook) -> PersistClient:
        assert hook.persist_conn_id == PersistHook.default_conn_name or is_over.wait(60)
        return get_conn(PersistHook())

    monkeypatch.setattr(PersistHook, "get_conn", slow)

    async def fire() -> None:
        def fired(conn_id: str) -> Any:
            return anext(triggers.ShardUpperTrigger(NAME, 1, persist_conn_id=conn_id).run())

        waiting = asyncio.gather(*(fired("slow") for _ in range(2 * triggers.MAX_LOOKS)))
        try:
            async with asyncio.timeout(20):
                await asyncio.sleep(0)  # they begin
                await fired(PersistHook.default_conn_name)
                await sync_to_async(len)("another provider's")
                assert not waiting.done()
        finally:
            is_over.set()
        assert all(event.payload["reached"] for event in await waiting)

    asyncio.run(fire())


def test_it_waits_for_files_in_the_triggerer(
    fruit: Fruit, client: PersistClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    del client
    sensor = InputSensor(task_id="files", config=fruit.config(), deferrable=True, timeout=30, poke_interval=0.01)
    with pytest.raises(BaseException) as put_off:  # noqa: PT011 - Airflow 3's is a BaseException
        sensor.execute(context(0))
    deferred: Any = put_off.value
    name, arguments = deferred.trigger.serialize()
    module, _, kind = name.rpartition(".")
    trigger = getattr(importlib.import_module(module), kind)(**json.loads(json.dumps(arguments)))

    failures, get_conn = [Determinate("the store is away")] * (triggers.MAX_STORAGE_ERRORS - 1), PersistHook.get_conn
    looks: list[PersistHook] = []

    def unsteady(hook: PersistHook) -> PersistClient:
        if failures:
            raise failures.pop()
        looks.append(hook)
        return get_conn(hook)

    monkeypatch.setattr(PersistHook, "get_conn", unsteady)

    async def fired() -> Any:
        waiting = asyncio.ensure_future(anext(trigger.run()))
        while len(looks) < 3 and not waiting.done():
            await asyncio.sleep(0.01)
        assert not waiting.done(), "no file is there"
        await asyncio.to_thread(fruit.write_days, range(1))
        return (await waiting).payload

    event = asyncio.run(fired())
    assert event == {"files": 1, "reached": True}
    sensor.execute_complete(context(0), event)
    sensor.execute(context(0))
    assert not failures
    with pytest.raises(AirflowSensorTimeout, match=r"\*\.json: no files are due after 30"):
        sensor.resume_execution("__fail__", {"error": "Trigger timeout"}, context(0))


def test_a_mistyped_name_fails_with_the_name_that_is_near(client: PersistClient) -> None:
    client.ensure_shard("customers")
    with pytest.raises(AirflowFailException, match=r"no shard 'custmers' in connection persist_default; did you mean"):
        ShardSensor(task_id="wait", shard="custmers", upper=end_ms(0)).poke(context(0))
    assert not ShardSensor(task_id="wait", shard="custmers", upper=end_ms(0), may_be_new=True).poke(context(0))
    assert not ShardSensor(task_id="wait", shard="orders", upper=end_ms(0)).poke(context(0)), "it may come"


def test_a_wrong_time_is_named(client: PersistClient) -> None:
    del client
    with pytest.raises(AirflowFailException, match="upper of wait is 'soon'"):
        ShardSensor(task_id="wait", shard=NAME, upper="soon").poke(context(0))
