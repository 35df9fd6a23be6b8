"""The action `fill` with a real Spark Connect server, on S3, of a shard that has a fork."""

from __future__ import annotations

import json
from typing import Any

import pytest

from persist_airflow.actions import ShardActionOperator
from persist_airflow.factory import build_upsert_dag
from persist_core.handles.client import PersistClient
from persist_core.maintenance.actions import fork
from persist_core.maintenance.fsck import fsck
from tests.airflow.fruit import NAME, Fruit, end_of
from tests.airflow.task_driver import DagRunDriver
from tests.airflow.test_actions import context
from tests.airflow.test_spark_connect import connect
from tests.servers.backends import on_s3
from tests.servers.spark_connect import ConnectServer

FILE = """
source: {{path: "{feed}/date={{date:%Y-%m-%d}}/*.json", format: json, rest: more}}
key: id
columns: {{id: bigint, {columns}more: json}}
time: path
delete: none
start_date: 2026-01-01
"""


@on_s3
@pytest.mark.family("tasks")
def test_a_fill_in_a_server_leaves_a_fork_alone(
    fruit: Fruit, client: PersistClient, connect_server: ConnectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch, connect_server)

    def run(day: int, columns: str) -> None:
        fruit.write_collection(NAME, FILE.format(feed=fruit.feed, columns=columns))
        driver = DagRunDriver(build_upsert_dag(fruit.config()), end_of(day), run_id=f"day {day}")
        assert driver.run_all()["result"] == "committed"

    def rows(shard: str = NAME) -> dict[int, tuple[str | None, Any]]:
        found = client.open_reader(shard).snapshot().to_pylist()
        return {row["id"]: (row.get("name"), json.loads(row["more"] or "{}")) for row in found}

    fruit.write_days(range(3))
    run(0, "")
    newest = client.state(NAME).newest_commit
    assert newest is not None
    fork(client, NAME, newest.checkpoint_id, "other", writer="test")
    before = rows("other")
    assert before == {1: (None, {"name": "red apple"}), 2: (None, {"name": "pear"}), 3: (None, {"name": "fig"})}
    run(1, "name: string, ")
    operator = ShardActionOperator(task_id="shard_action", shard=NAME, collections=fruit.dags / "collections")
    done: Any = operator.execute(context("alice", action="fill", shard=NAME, confirm=NAME))
    assert (done["status"], done["changed"], done["columns"]) == ("filled", 2, {"name": 2})
    run(2, "name: string, ")
    assert rows() == {1: ("red apple", {}), 2: ("green pear", {}), 3: ("fig", {}), 4: ("kiwi", {}), 9: (None, {})}
    assert rows("other") == before
    assert all(fsck(client, name).is_clean for name in (NAME, "other"))
