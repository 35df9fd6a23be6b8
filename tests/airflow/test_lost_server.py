"""A Spark Connect server that ends in the middle of jobs: its owner starts it again, and the jobs are done again."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from persist_airflow.factory import build_upsert_dag
from persist_core.handles.client import PersistClient
from persist_core.maintenance.fsck import fsck
from persist_spark import progress
from persist_spark.decode.formats import decode
from persist_spark.upsert import job
from tests.airflow.fruit import NAME, Fruit, check_history, end_of
from tests.airflow.task_driver import DagRunDriver
from tests.airflow.test_groups import NAMES, TASKS, WRITE, Orchard
from tests.servers.spark_connect import ConnectServer

AFTER_S = 1.0  # from the start of the write's action: each of its records takes longer


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch, connect_server: ConnectServer) -> list[str]:
    """The phases of the jobs. The server is killed during the first write, and starts again."""
    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", None)
    monkeypatch.setattr("pyspark.sql.SparkSession._instantiatedSession", None)
    connection = {"conn_type": "spark_connect", "host": "localhost", "port": connect_server.port}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({**connection, "password": connect_server.token}))
    phases: list[str] = []
    enter = progress.enter

    def entered(phase: str, *arguments: Any) -> None:
        phases.append(phase)
        if phase == "write" and phases.count(phase) == 1:
            threading.Timer(AFTER_S, connect_server.kill).start()
        enter(phase, *arguments)

    def slowly(*arguments: Any, **named: Any) -> Any:
        is_first = phases.count("write") == 0
        records = decode(*arguments, **named)
        return records.where("reflect('java.lang.Thread', 'sleep', 5000L) != ''") if is_first else records

    monkeypatch.setattr(progress, "enter", entered)
    monkeypatch.setattr(job, "decode", slowly)
    return phases


@pytest.mark.family("tasks")
def test_the_write_of_one_collection_commits_once(fruit: Fruit, client: PersistClient, killed: list[str]) -> None:
    fruit.write_days(range(1))
    assert DagRunDriver(build_upsert_dag(fruit.config()), end_of(0)).run_all()["result"] == "committed"
    assert killed.count("write") == 2
    assert check_history(client, 1)["commits"] == 1
    assert fsck(client, NAME).is_clean


@pytest.mark.family("tasks")
def test_the_write_of_a_group_commits_each_once(
    client: PersistClient, killed: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    orchard = Orchard(tmp_path_factory.mktemp("orchard"), NAMES)
    run = DagRunDriver(orchard.dag(), end_of(0))
    results = {task: run.run(task) for task in TASKS[:-1]}
    assert results[WRITE]["failed"] == {}, "no collection fails, and no alert is sent"
    assert killed.count("write") > len(NAMES)
    for name in NAMES:
        assert len(client.state(name).commits) == 1
        assert client.open_reader(name).snapshot().to_pylist() == [{"id": 1, "name": name}]
