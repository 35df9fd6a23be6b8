"""Three levels through a real scheduler: a collection, a view of it, a view of that view, each started by the last."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from persist_airflow.embedded.home import LocalAirflow
from persist_core.errors import ShardNotFound
from persist_core.handles.client import PersistClient
from persist_core.location.open import open_location
from persist_core.location.settings import PersistLocation
from persist_core.maintenance.fsck import fsck
from tests import real_parts
from tests.class_data import class_data

ROOT = Path(__file__).resolve().parents[2]
COLLECTION = """
source: {{path: {feed}/*.jsonl, format: json}}
key: id
columns: {{id: bigint, name: string, price: int}}
delete: {{null_value: true}}
schedule: null
"""
DAGS = """
# airflow DAG
from datetime import timedelta
from pathlib import Path
from persist_airflow.factory import build_dags
from persist_airflow.factory import build_view_dags
here, quick = Path(__file__).parent, {"retries": 3, "retry_delay": timedelta(seconds=1)}
globals().update(build_dags(here / "collections", default_args=quick))
globals().update(build_view_dags(here / "views", default_args=quick))
"""
LEVELS = ("fruit", "cheap", "how_many")
TIMEOUT_MS = 900_000


@pytest.fixture
def feed(tmp_path: Path) -> Path:
    """The DAG folder with one collection and two views; the feed that is returned is empty."""
    dags, feed = tmp_path / "dags", tmp_path / "feed"
    for folder in (dags / "collections", dags / "views", feed):
        folder.mkdir(parents=True)
    (dags / "collections" / "fruit.yaml").write_text(COLLECTION.format(feed=feed))
    (dags / "views" / "cheap.yaml").write_text("query: SELECT name, price FROM fruit WHERE price < 10\n")
    (dags / "views" / "how_many.yaml").write_text("query: SELECT count(*) AS n, sum(price) AS total FROM cheap\n")
    (dags / "chain_dag.py").write_text(DAGS)
    return feed


@pytest.fixture
def airflow(tmp_path: Path, home: Path, feed: Path) -> Iterator[LocalAirflow]:
    """An Airflow home with these DAGs; nothing runs yet, and nothing runs afterwards."""
    del feed
    location = PersistLocation(f"file://{tmp_path}/blob", f"sqlite:///{tmp_path}/consensus.db")
    settings = {"PYTHONPATH": str(ROOT), **class_data(location)}
    airflow = LocalAirflow(home, tmp_path / "dags", location, settings, has_spark=True)
    real_parts.used("Airflow scheduler", f"{importlib.metadata.version('apache-airflow')}, SQLite, LocalExecutor")
    real_parts.used("Spark Connect server", "local[*], with a token")
    yield airflow
    airflow.stop()


@pytest.fixture
def client(airflow: LocalAirflow) -> Iterator[PersistClient]:
    with open_location(airflow.location) as opened:
        yield PersistClient(opened)


def drop(feed: Path, name: str, *rows: dict[str, Any]) -> None:
    (feed / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def upper(client: PersistClient, shard: str) -> int:
    try:
        return client.state(shard).upper.time or 0
    except ShardNotFound:
        return 0


def run_chain(airflow: LocalAirflow, client: PersistClient) -> None:
    """Trigger the collection's DAG alone, and wait until the bottom has come as far as the top."""
    before = upper(client, LEVELS[-1])
    airflow.command("dags", "trigger", "persist_upsert__fruit")
    deadline_ms = airflow.clock.now_ms() + TIMEOUT_MS
    while not before < upper(client, LEVELS[-1]) == upper(client, LEVELS[0]):
        airflow.check()
        states = airflow.query("select dag_id, state from dag_run order by id")
        assert "failed" not in [state for _, state in states], states
        assert airflow.clock.now_ms() < deadline_ms, states
        airflow.clock.sleep_ms(500)


def bottom(client: PersistClient) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = client.open_reader(LEVELS[-1]).snapshot().to_pylist()
    return rows


def test_changes_and_errs_flow_down_by_assets_alone(airflow: LocalAirflow, client: PersistClient, feed: Path) -> None:
    drop(feed, "1.jsonl", {"id": 1, "name": "fig", "price": 3}, {"id": 2, "name": "plum", "price": 30},
         {"id": 3, "name": "kiwi", "price": "abc"})  # fmt: skip
    airflow.prepare()
    with airflow.running():
        run_chain(airflow, client)
        assert bottom(client) == [{"n": 1, "total": 3}]
        (err,) = client.open_reader("how_many").errors().to_pylist()
        assert err["_persist_err_kind"] == "cheap/fruit/value"
        assert b'"abc"' in err["_persist_err_payload"]
        first = upper(client, "how_many") - 1

        drop(feed, "2.jsonl", {"id": 2, "name": "plum", "price": 4}, {"id": 3, "name": "kiwi", "price": 5})
        run_chain(airflow, client)
        assert bottom(client) == [{"n": 3, "total": 12}]
        assert len(client.open_reader("how_many").errors()) == 0
        changes = client.open_reader("how_many").changes(first).to_pylist()
        assert [(row["n"], row["_persist_diff"]) for row in changes] == [(1, -1), (3, 1)]
    for shard in LEVELS:
        assert fsck(client, shard).is_clean
    triggered = airflow.query("select dag_id, run_type from dag_run where dag_id like 'persist_view__%' order by id")
    assert {run_type for _, run_type in triggered} == {"asset_triggered"}
    assert {dag_id for dag_id, _ in triggered} == {"persist_view__cheap", "persist_view__how_many"}
