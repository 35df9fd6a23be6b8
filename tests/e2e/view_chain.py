"""Three levels in a running Airflow: a collection, a view of it, a view of that view, each started by the last."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from persist_airflow.embedded.home import LocalAirflow
from persist_core.errors import ShardNotFound
from persist_core.handles.client import PersistClient
from persist_core.maintenance.fsck import fsck
from tests.airflow.api import Api

COLLECTION = """
source: {{path: {feed}/*.jsonl, format: json}}
key: id
columns: {{id: bigint, name: string, price: int}}
delete: {{null_value: true}}
schedule: null
"""
LEVELS = ("produce", "cheap", "how_many")
UPSERT_DAG, *VIEW_DAGS = DAG_IDS = ("persist_upsert__produce", "persist_view__cheap", "persist_view__how_many")
TIMEOUT_MS = 900_000


def write_files(dags: Path, feed: Path) -> None:
    """Put one collection and two views into the folders of a clone, and make an empty feed."""
    feed.mkdir(parents=True)
    (dags / "collections" / f"{LEVELS[0]}.yaml").write_text(COLLECTION.format(feed=feed))
    (dags / "views" / "cheap.yaml").write_text("query: SELECT name, price FROM produce WHERE price < 10\n")
    (dags / "views" / "how_many.yaml").write_text("query: SELECT count(*) AS n, sum(price) AS total FROM cheap\n")


def check(airflow: LocalAirflow, client: PersistClient, feed: Path) -> None:
    """Changes and errs flow down by assets alone."""
    drop(feed, "1.jsonl", {"id": 1, "name": "fig", "price": 3}, {"id": 2, "name": "plum", "price": 30},
         {"id": 3, "name": "kiwi", "price": "abc"})  # fmt: skip
    run_chain(airflow, client)
    assert bottom(client) == [{"n": 1, "total": 3}]
    (err,) = client.open_reader("how_many").errors().to_pylist()
    assert err["_persist_err_kind"] == "cheap/produce/value"
    assert (err["_persist_err_message"], err["_persist_err_payload"]) == (
        "run `persist errors produce`, which shows the record",
        b"",
    )
    first = upper(client, "how_many") - 1

    drop(feed, "2.jsonl", {"id": 2, "name": "plum", "price": 4}, {"id": 3, "name": "kiwi", "price": 5})
    run_chain(airflow, client)
    assert bottom(client) == [{"n": 3, "total": 12}]
    assert len(client.open_reader("how_many").errors()) == 0
    changes = client.open_reader("how_many").changes(first).to_pylist()
    assert [(row["n"], row["_persist_diff"]) for row in changes] == [(1, -1), (3, 1)]
    for shard in LEVELS:
        assert fsck(client, shard).is_clean
    triggered = airflow.query("select dag_id, run_type from dag_run where dag_id = any(%s)", list(VIEW_DAGS))
    assert {run_type for _, run_type in triggered} == {"asset_triggered"}
    assert {dag_id for dag_id, _ in triggered} == {*VIEW_DAGS}


def run_chain(airflow: LocalAirflow, client: PersistClient) -> None:
    """Trigger the collection's DAG alone, and wait until the bottom has come as far as the top."""
    before = upper(client, LEVELS[-1])
    api_of(airflow).start(UPSERT_DAG)
    deadline_ms = airflow.clock.now_ms() + TIMEOUT_MS
    while not before < upper(client, LEVELS[-1]) == upper(client, LEVELS[0]):
        airflow.kept.check()
        states = airflow.query("select dag_id, state from dag_run order by id desc limit 20")
        assert "failed" not in [state for dag_id, state in states if dag_id in DAG_IDS], states
        assert airflow.clock.now_ms() < deadline_ms, states
        airflow.clock.sleep_ms(500)


def api_of(airflow: LocalAirflow) -> Api:
    """Its REST API, with a fresh token."""
    ((user, password),) = airflow.passwords().items()
    return Api(airflow.url, user, password)


def drop(feed: Path, name: str, *rows: dict[str, Any]) -> None:
    (feed / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def upper(client: PersistClient, shard: str) -> int:
    try:
        return client.state(shard).upper.time or 0
    except ShardNotFound:
        return 0


def bottom(client: PersistClient) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = client.open_reader(LEVELS[-1]).snapshot().to_pylist()
    return rows
