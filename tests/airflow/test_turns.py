"""Dag runs of one DAG take turns: which one waits for which, for how long, and that waiting costs nothing."""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from persist_airflow.compat import AirflowException, AirflowSkipException
from persist_airflow.factory import build_upsert_dag
from persist_airflow.triggers import ShardUpperTrigger
from persist_airflow.turns import LAST_LOOK_MS, NEXT_LOOK_MS, PATIENCE_MS
from persist_core.config.collection import load_collection
from persist_core.handles.client import PersistClient
from persist_core.location.consensus import VersionedData
from tests.airflow.fruit import NAME, Fruit, end_ms, end_of
from tests.airflow.task_driver import DagRunDriver
from tests.airflow.test_groups import NAMES, Orchard
from tests.plain_commit import commit

pytestmark = pytest.mark.airflow_2_11

IS_AIRFLOW_3 = importlib.metadata.version("apache-airflow").startswith("3")
only_airflow_3 = pytest.mark.skipif(not IS_AIRFLOW_3, reason="2.11 starts no more dag runs than the DAG allows")
MINT = "mint_batch_descriptions"
GROUPED = f"batch_1.{MINT}"


@pytest.fixture
def dag(fruit: Fruit, client: PersistClient) -> Any:
    """The collection's DAG; `client` is there so that the location is in the environment."""
    del client
    return build_upsert_dag(fruit.config())


def pause_ms(driver: DagRunDriver, client: PersistClient, mint: str = MINT) -> float:
    """How long a run is put off that has to wait."""
    with pytest.raises(AirflowException) as put_off:
        driver.run(mint)
    error: Any = put_off.value
    assert type(error).__name__ == "AirflowRescheduleException"
    return float(error.reschedule_date.timestamp() * 1000 - client.clock.now_ms())


def priority(task: Any) -> int:
    """The priority by which Airflow picks a task; 2.11 has its rule loaded already."""
    rule = task.weight_rule
    if isinstance(rule, str):
        strategies = importlib.import_module("airflow.task.priority_strategy")
        rule = strategies.validate_and_load_priority_weight_strategy(rule)
    return int(rule.get_weight(SimpleNamespace(task=task)))


@only_airflow_3
def test_an_earlier_run_goes_first_until_it_has_appended(dag: Any, client: PersistClient) -> None:
    run = DagRunDriver(dag, end_of(1), "second", earlier_run="first")
    pause_ms(run, client)
    assert NAME not in client.shards(), "waiting changes nothing"
    run.append_states = {"first": "running"}
    pause_ms(run, client)
    for ended in ("success", "skipped", "failed", "upstream_failed"):
        run.append_states = {"first": ended}
        if ended == "success":
            assert run.run(MINT)["upper"] == end_ms(1)
        else:
            run.run(MINT)


def test_of_few_slots_a_run_that_goes_on_gets_one_first(dag: Any, tmp_path: Path) -> None:
    """Else mints that look whether it is their turn would keep a pool from the run that they wait for."""
    for each, begins in ((dag, MINT), (Orchard(tmp_path / "group", NAMES).dag(), GROUPED)):
        stages = [
            each.get_task(name) for name in (begins, *each.get_task(begins).get_flat_relative_ids(upstream=False))
        ]
        mint, *others = map(priority, stages)
        assert mint < min(others)
    given = build_upsert_dag(dag.get_task(MINT).config, default_args={"weight_rule": "absolute"})
    assert set(map(priority, given.tasks)) == {1}, "default_args go over it"


@only_airflow_3
def test_a_run_that_has_minted_is_not_overtaken(dag: Any, client: PersistClient) -> None:
    """A run by hand, or an earlier day that is started late: there is no earlier run, but one that writes."""
    run = DagRunDriver(dag, end_of(1), "by hand", staging=1)
    pause_ms(run, client)
    run.staging = 0
    assert run.run_all()["upper"] == end_ms(1)


@only_airflow_3
def test_a_run_does_not_wait_for_its_own_tasks(dag: Any, client: PersistClient) -> None:
    """Only mint was cleared: the write of the same dag run is up for a retry, and an earlier run waits for it."""
    run = DagRunDriver(dag, end_of(1), "cleared", staging=1, own_staging=1, earlier_run="first")
    pause_ms(run, client)
    run.staging = 0
    run.append_states = {"first": "running"}
    pause_ms(run, client)
    run.append_states = {}
    assert run.run(MINT)["upper"] == end_ms(1)


@only_airflow_3
def test_the_next_run_looks_often_and_the_last_one_seldom(dag: Any, client: PersistClient) -> None:
    DagRunDriver(dag, end_of(0), "first").run_all()
    pauses = [pause_ms(DagRunDriver(dag, end_of(day), earlier_run="second"), client) for day in (2, 4, 29)]
    expected = [NEXT_LOOK_MS, 3 * NEXT_LOOK_MS, LAST_LOOK_MS]
    assert pauses == pytest.approx(expected, abs=2_000)


@only_airflow_3
@pytest.mark.parametrize(("day", "awaited", "timeout_s"), [(2, end_ms(1), 60.0), (1, end_ms(0) + 1, 5.0)])
def test_with_a_triggerer_the_task_waits_deferred(dag: Any, day: int, awaited: int, timeout_s: float) -> None:
    """Until the shard reaches the start of the interval; for a moment only if it is there and the append just ends."""
    DagRunDriver(dag, end_of(0), "first").run_all()
    run = DagRunDriver(dag, end_of(day), "later", earlier_run="before")
    with pytest.raises(BaseException) as put_off:  # noqa: PT011 - Airflow 3's is a BaseException
        run.run(MINT, deferrable=True)
    deferred: Any = put_off.value
    assert type(deferred).__name__ == "TaskDeferred"
    assert (deferred.trigger.upper, deferred.trigger.timeout_s) == (awaited, timeout_s)
    run.earlier_run = None
    mint = run.executed[MINT]
    assert mint.execute_complete(run.context(), {"reached": False})["upper"] == end_ms(day)


@only_airflow_3
def test_a_turn_that_does_not_end_is_not_waited_for(dag: Any, client: PersistClient) -> None:
    now_ms = client.clock.now_ms()
    stuck = DagRunDriver(dag, end_of(1), earlier_run="stuck")
    stuck.started = datetime.fromtimestamp((now_ms - PATIENCE_MS - 1000) / 1000, UTC)
    assert stuck.run(MINT)["upper"] == end_ms(1)


def test_a_run_that_waited_in_vain_is_skipped(dag: Any) -> None:
    DagRunDriver(dag, end_of(1), "later").run_all()
    with pytest.raises(AirflowSkipException, match="already in shard fruit"):
        DagRunDriver(dag, end_of(0), "earlier").run(MINT)


def test_a_trigger_fires_when_the_shard_reaches_a_time(dag: Any) -> None:
    async def first_event(trigger: ShardUpperTrigger) -> Any:
        path, arguments = trigger.serialize()
        module, name = path.rsplit(".", 1)
        again = getattr(importlib.import_module(module), name)(**arguments)
        return (await anext(again.run())).payload

    early = ShardUpperTrigger(NAME, end_ms(0), poll_s=0.01, timeout_s=0.05)
    assert asyncio.run(first_event(early)) == {"shard": NAME, "upper": 0, "reached": False}
    DagRunDriver(dag, end_of(0)).run_all()
    on_time = ShardUpperTrigger(NAME, end_ms(0), poll_s=0.01)
    assert asyncio.run(first_event(on_time)) == {"shard": NAME, "upper": end_ms(0), "reached": True}


@only_airflow_3
@pytest.mark.usefixtures("client")
def test_a_group_goes_on_after_its_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow lets only its task runner call `execute`, which it has not done then."""
    monkeypatch.setattr("airflow.sdk.bases.operator.ExecutorSafeguard.test_mode", False)
    mint: Any = Orchard(tmp_path, NAMES).dag().get_task(GROUPED)
    mint.allow_nested_operators = False
    minted = mint.execute_complete(DagRunDriver(mint.dag, end_of(0)).context(), {"reached": False})
    assert set(minted["descriptions"]) == {*NAMES}


def group_at(folder: Path, client: PersistClient, uppers: Mapping[str, int | None]) -> Any:
    """The DAG of collections with these uppers (`None`: closed). The state of the first one is damaged."""
    orchard = Orchard(folder / "project", tuple(uppers))
    schema = load_collection(orchard.folder / "collections" / f"{next(iter(uppers))}.yaml").collection_schema()
    for name, upper in uppers.items():
        commit(client, name, schema, upper)
    damaged = next(iter(uppers))
    consensus = client.location.consensus
    head = consensus.head(damaged)
    assert head is not None
    consensus.compare_and_set(damaged, head.seqno, VersionedData(head.seqno + 1, b"damaged"))
    return orchard.dag()


@only_airflow_3
def test_a_group_waits_for_a_member_that_is_behind(tmp_path: Path, client: PersistClient) -> None:
    """For the nearest: one that always fails stays far behind."""
    uppers = {"apples": end_ms(0), "cherries": end_ms(9), "dates": 1, "figs": end_ms(0), "kiwis": None}
    with pytest.raises(BaseException) as put_off:  # noqa: PT011 - Airflow 3's is a BaseException
        DagRunDriver(group_at(tmp_path, client, uppers), end_of(2), earlier_run="first").run(GROUPED, deferrable=True)
    trigger: Any = vars(put_off.value)["trigger"]
    assert (trigger.shard, trigger.upper, trigger.timeout_s) == ("figs", end_ms(1), 60.0)


@only_airflow_3
def test_a_damaged_member_holds_up_no_other(tmp_path: Path, client: PersistClient) -> None:
    run = DagRunDriver(group_at(tmp_path, client, dict.fromkeys(NAMES, 1)), end_of(0), earlier_run="first")
    pause_ms(run, client, GROUPED)
    run.earlier_run = None
    minted = run.run(GROUPED)
    assert (minted["descriptions"].keys(), minted["failed"].keys()) == ({"figs", "kiwis"}, {"apples"})


@only_airflow_3
def test_no_member_that_could_move_on_is_waited_for(tmp_path: Path, client: PersistClient) -> None:
    dag = group_at(tmp_path, client, {"apples": 1, "figs": None, "kiwis": None})
    assert DagRunDriver(dag, end_of(0), earlier_run="first").run(GROUPED)["failed"].keys() == {"apples"}
