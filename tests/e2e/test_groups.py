"""A group of collections through a real scheduler: backfills, one that fails, a job that dies, a view downstream.

And a batch that leaves the DAG."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from persist_airflow.embedded.home import LocalAirflow
from persist_core.handles.client import PersistClient
from persist_core.location.open import open_location
from persist_core.location.settings import PersistLocation
from persist_core.maintenance.fsck import fsck
from tests.airflow import kill_points
from tests.airflow.fruit import end_ms
from tests.airflow.kill_in_job import JOB
from tests.e2e.test_airflow_scheduler import QUICK_RETRIES, ROOT, follow
from tests.sampling import is_long

DAG_ID, VIEW_ID = "persist_group__orchard", "persist_view__cheap"
NAMES = ("apples", "figs", "kiwis", "plums")
DAYS = 2 if is_long() else 1
COLLECTION = """
source:
  path: {feed}/{name}/date={{date:%Y-%m-%d}}/*.jsonl
  format: json
key: id
columns: {{id: bigint, price: int}}
time: path
delete: {{null_value: true}}
start_date: 2026-01-01
limits: {{max_errors: 0}}
"""
DAG_FILE = f"""
# airflow DAG
from datetime import datetime, timedelta, timezone
from pathlib import Path
from persist_airflow.factory import build_dags, build_view_dags
from tests.airflow.kill_points import install
install(Path(__file__).parents[1] / "points")
here = Path(__file__).parent
BACKFILLS_ALONE = {{"end_date": datetime(2026, 1, 2, tzinfo=timezone.utc)}}
globals().update(build_dags(here / "collections"{QUICK_RETRIES}, dag_args=BACKFILLS_ALONE))
globals().update(build_view_dags(here / "views"))
"""
FACTS = """
import json, sys
from airflow.utils.session import create_session
from persist_airflow.page import metadata
with create_session() as session:
    dag = metadata.dags(session, {sys.argv[1]})[sys.argv[1]]
    print(json.dumps({name: dag.of(name) for name in sys.argv[2:]}))
"""


@pytest.fixture
def airflow(tmp_path: Path, home: Path) -> Iterator[LocalAirflow]:
    """An Airflow home with the group, of patterns in `persist.yaml`, and a view of one member; nothing runs yet."""
    dags = tmp_path / "dags"
    for folder in ("collections", "views"):
        (dags / folder).mkdir(parents=True)
    (dags / "dags.py").write_text(DAG_FILE)
    (dags / "persist.yaml").write_text("groups: {orchard: {collections: ['*s'], batch_of: 3}}\n")
    for name in NAMES:
        (dags / "collections" / f"{name}.yaml").write_text(COLLECTION.format(feed=tmp_path / "feed", name=name))
    (dags / "views" / "cheap.yaml").write_text("query: SELECT count(*) AS n FROM apples WHERE price < 10\n")
    location = PersistLocation(f"file://{tmp_path}/blob", f"sqlite:///{tmp_path}/consensus.db")
    settings = {
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__MIN_SERIALIZED_DAG_UPDATE_INTERVAL": "0",
        "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "1",
        "PYTHONPATH": str(ROOT),
    }
    airflow = LocalAirflow(home, dags, location, settings)
    yield airflow
    airflow.stop()


@pytest.fixture
def client(airflow: LocalAirflow) -> Iterator[PersistClient]:
    with open_location(airflow.location) as opened:
        yield PersistClient(opened)


def drop(folder: Path, name: str, day: int, *rows: dict[str, Any]) -> None:
    """The whole input of a day."""
    path = folder / "feed" / name / f"date=2026-01-0{day + 1}" / "part.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def tries(airflow: LocalAirflow, task_id: str) -> list[tuple[str, int]]:
    """State and number of tries of a task, by dag run."""
    found = airflow.query(
        "select t.state, t.try_number from task_instance t join dag_run r using (dag_id, run_id)"
        " where t.dag_id = %s and t.task_id = %s order by r.logical_date",
        DAG_ID,
        task_id,
    )
    return [(str(state), int(number)) for state, number in found]


def events(airflow: LocalAirflow, name: str) -> int:
    """How often the asset of a collection was updated."""
    uri = f"persist://persist_default/{name}"
    statement = "select count(*) from asset_event e join asset a on a.id = e.asset_id where a.uri = %s"
    return int(airflow.query(statement, uri)[0][0])


@pytest.mark.family("schedulers")
def test_one_fails_and_one_dies_and_the_others_commit(
    airflow: LocalAirflow, client: PersistClient, tmp_path: Path
) -> None:
    """The Spark job of one batch dies once; the wrong record of one collection is corrected after it.

    At night also a second day, without faults.
    """
    for name in NAMES:
        drop(tmp_path, name, 0, {"id": 1, "price": 3})
    drop(tmp_path, "figs", 0, {"id": 1, "price": "three"})
    drop(tmp_path, "apples", 1, {"id": 2, "price": 4})
    kill_points.arm(tmp_path / "points", f"{JOB[0]}.apples")
    create = ("backfill", "create", "--dag-id", DAG_ID, "--from-date", "2026-01-01", "--to-date")
    airflow.commands(("dags", "reserialize"), (*create, "2026-01-01"))
    with airflow.running():
        assert follow(airflow, DAG_ID) == {DAG_ID: ["failed"]}
        assert kill_points.armed(tmp_path / "points") == []
        uppers = {name: client.state(name).upper.time for name in NAMES}
        assert uppers == {**dict.fromkeys(NAMES, end_ms(0)), "figs": 0}
        assert tries(airflow, "batch_1.retry_failed") == [("failed", 1)], "no retry corrects a wrong record"
        assert tries(airflow, "batch_1.write_batches") == tries(airflow, "batch_2.write_batches") == [("success", 1)]
        assert tries(airflow, "batch_2.retry_failed") == [("skipped", 1)], "nothing failed in the other batch"
        assert {name: events(airflow, name) for name in NAMES} == {**dict.fromkeys(NAMES, 1), "figs": 0}
        assert on_the_page(airflow) == {**dict.fromkeys(NAMES, "success"), "figs": "failed"}

        drop(tmp_path, "figs", 0, {"id": 1, "price": 3})
        airflow.command("tasks", "clear", DAG_ID, "--task-regex", "batch_1.retry_failed", "--downstream", "--yes")
        assert follow(airflow, DAG_ID) == {DAG_ID: ["success"]}
        assert tries(airflow, "batch_1.retry_failed") == [("success", 2)]
        assert tries(airflow, "complete") == [("success", 1)]
        assert {name: events(airflow, name) for name in NAMES} == dict.fromkeys(NAMES, 1)

        if DAYS > 1:
            airflow.query("update backfill set completed_at = now() where completed_at is null returning id")
            airflow.command(*create, "2026-01-02")
            assert follow(airflow, DAG_ID, VIEW_ID)[DAG_ID] == ["success"] * 2
            assert tries(airflow, "batch_2.retry_failed")[1] == ("skipped", 1), "nothing failed on the second day"
        wait_for_view(airflow, client)
    for name in NAMES:
        assert client.state(name).upper.time == end_ms(DAYS - 1)
        assert fsck(client, name).is_clean
    assert client.open_reader("figs").snapshot().to_pylist() == [{"id": 1, "price": 3}]
    assert len({commit.writer for name in NAMES for commit in client.state(name).commits}) == DAYS


def on_the_page(airflow: LocalAirflow) -> dict[str, str]:
    """The last run of each collection, as the page for shards reads it from Airflow's database."""
    said = airflow.python("the facts of the page", "-c", FACTS, DAG_ID, *NAMES)
    facts: dict[str, Any] = json.loads(said.splitlines()[-1])
    assert {each["group"] for each in facts.values()} == {"orchard"}
    assert all(each["seconds"] > 0 for each in facts.values())
    return {name: each["last_run_state"] for name, each in facts.items()}


@pytest.mark.family("days of a source")
def test_a_batch_that_leaves_the_dag_fails_its_run(
    airflow: LocalAirflow, client: PersistClient, tmp_path: Path
) -> None:
    """`batch_of` grows when all have minted: the second batch is gone before it writes. No input, so no Spark."""
    (airflow.dags / "views" / "cheap.yaml").unlink()
    for name in NAMES:
        (tmp_path / "feed" / name).mkdir(parents=True)
        with (airflow.dags / "collections" / f"{name}.yaml").open("a") as file:
            file.write("airflow: {write: {pool: gate}}\n")
    create = ("backfill", "create", "--dag-id", DAG_ID, "--from-date", "2026-01-01", "--to-date", "2026-01-01")
    airflow.commands(("pools", "set", "gate", "0", "closed"), ("dags", "reserialize"), create)
    with airflow.running():
        wait_for(airflow, "success", *(f"batch_{number}.mint_batch_descriptions" for number in (1, 2)))
        (airflow.dags / "persist.yaml").write_text("groups: {orchard: {collections: ['*s'], batch_of: 4}}\n")
        airflow.command("dags", "reserialize")
        wait_for(airflow, "removed", "batch_2.write_batches", "batch_2.append_batches")
        airflow.command("pools", "set", "gate", "1", "open")
        assert follow(airflow, DAG_ID) == {DAG_ID: ["failed"]}
        assert tries(airflow, "complete") == [("failed", 1)]
        assert tries(airflow, "batch_1.checkpoint_manifest") == [("success", 1)]
    assert {name: client.state(name).upper.time for name in NAMES} == {**dict.fromkeys(NAMES, end_ms(0)), "plums": 0}


def wait_for(airflow: LocalAirflow, state: str, *task_ids: str) -> None:
    """Each of these tasks is in that state."""
    deadline_ms = airflow.clock.now_ms() + 300_000
    while any([found for found, _ in tries(airflow, task_id)] != [state] for task_id in task_ids):
        airflow.kept.check()
        assert airflow.clock.now_ms() < deadline_ms
        airflow.clock.sleep_ms(500)


def wait_for_view(airflow: LocalAirflow, client: PersistClient) -> None:
    """The view has come as far as its input, started by the asset of one member alone."""
    deadline_ms = airflow.clock.now_ms() + 300_000
    while "cheap" not in client.shards() or client.state("cheap").upper.time != end_ms(DAYS - 1):
        airflow.kept.check()
        assert airflow.clock.now_ms() < deadline_ms
        airflow.clock.sleep_ms(500)
    assert client.open_reader("cheap").snapshot().to_pylist() == [{"n": DAYS}]
