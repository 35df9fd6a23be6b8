"""A real scheduler (PostgreSQL, LocalExecutor, 127.0.0.1) runs backfills: after kill -9 of its starter, through kill -9
of tasks, two concurrently.

On PostgreSQL with a folder, and on S3 alone: one test each, since each takes a scheduler. The embedded default is in
`test_up.py`.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from persist_airflow.embedded import EmbeddedAirflowError
from persist_airflow.embedded.home import LocalAirflow
from persist_core.handles.client import PersistClient
from persist_core.location.open import open_location
from persist_core.location.settings import PersistLocation
from persist_core.maintenance.fsck import fsck
from persist_core.protocol.conflicts import list_conflicts
from tests import real_parts
from tests.airflow import kill_points
from tests.airflow.fruit import DAY_MS, HISTORY, NAME, START_MS, Fruit, check_history
from tests.airflow.statsd_sink import statsd_sink
from tests.e2e import operation
from tests.sampling import is_long
from tests.servers.backends import blob_uri_beside, on_postgresql, on_s3
from tests.spark.s3_store import s3_server

ROOT = Path(__file__).resolve().parents[2]
DAG_ID = "persist_upsert__fruit"
# Tries enough for a task that is killed at each point, and loses its append as well.
QUICK_RETRIES = ', default_args={"retries": 6, "retry_delay": timedelta(seconds=1)}'


@pytest.fixture
def airflow(request: pytest.FixtureRequest, tmp_path: Path, home: Path, consensus_uri: str) -> Iterator[LocalAirflow]:
    """An Airflow home with the fruit collection; nothing runs yet, and nothing runs afterwards."""
    fruit = Fruit.create(tmp_path)
    fruit.write_days(range(len(HISTORY) if is_long() else 2))  # a day without input needs no Spark
    location = PersistLocation(blob_uri_beside(consensus_uri, tmp_path / "blob"), consensus_uri)
    is_on_s3 = location.blob_uri.startswith("s3:")
    if is_on_s3:
        s3_server(request)  # skips if Spark lacks the jars
    settings = {
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__SCHEDULER__USE_JOB_SCHEDULE": "False",
        "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "1",  # looking five times as often takes processor time
        "PYTHONPATH": str(ROOT),
    }
    airflow = LocalAirflow(home, fruit.dags, location, settings)
    real_parts.used("Airflow scheduler", f"{importlib.metadata.version('apache-airflow')}, PostgreSQL, LocalExecutor")
    yield airflow
    airflow.stop()


@pytest.fixture
def client(airflow: LocalAirflow) -> Iterator[PersistClient]:
    """A client on the location that the tasks write."""
    with open_location(airflow.location) as opened:
        yield PersistClient(opened)


def run_states(airflow: LocalAirflow, dag_id: str) -> list[str]:
    """The states of a DAG's runs, by logical date."""
    return [
        state for (state,) in airflow.query("select state from dag_run where dag_id = %s order by logical_date", dag_id)
    ]


def follow(airflow: LocalAirflow, *dag_ids: str, timeout_ms: int = 1_500_000) -> dict[str, list[str]]:
    """Wait until every dag run has ended; their states by DAG."""
    deadline_ms = airflow.clock.now_ms() + timeout_ms
    while True:
        airflow.kept.check()
        states = {dag_id: run_states(airflow, dag_id) for dag_id in dag_ids}
        if all(state in ("success", "failed") for found in states.values() for state in found):
            return states
        assert airflow.clock.now_ms() < deadline_ms, states
        airflow.clock.sleep_ms(500)


@pytest.mark.family("schedulers")
@on_postgresql
def test_a_backfill_whose_starter_is_killed_and_another_one(airflow: LocalAirflow, client: PersistClient) -> None:
    """Two days by Airflow's command, with a starter that is killed as `make demo` may be; then a third day."""
    backfill = ("backfill", "create", "--dag-id", DAG_ID, "--from-date", "2026-01-01", "--to-date", "2026-01-02",
                "--reprocess-behavior", "completed")  # fmt: skip
    with statsd_sink() as statsd:
        settings = {**airflow.settings, **statsd.settings(statsd_influxdb_enabled="True")}
        starter, heir = (LocalAirflow(airflow.home, airflow.dags, airflow.location, settings) for _ in range(2))
        starter.commands(("dags", "reserialize"), backfill)
        left = start_until_a_task_writes(starter)
        assert heir.stop() == ["postgres", "api-server", "scheduler"]
        for pid in left:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
        assert heir.stop() == starter.stop() == []
        with pytest.raises(EmbeddedAirflowError, match="AlreadyRunningBackfill"):
            heir.command(*backfill)
        check_backfills(heir, client)
    operation.check_counters(client, statsd, DAG_ID)


def start_until_a_task_writes(airflow: LocalAirflow) -> list[int]:
    """Start Airflow; the pids of its processes, which run when this returns."""
    airflow.start()
    running = "select task_id from task_instance where state = 'running' and task_id = 'write_batches'"
    deadline_ms = airflow.clock.now_ms() + 240_000
    while not airflow.query(running):
        airflow.kept.check()
        assert airflow.clock.now_ms() < deadline_ms
        airflow.clock.sleep_ms(100)
    return [process.pid for process in airflow.kept.all()]


def check_backfills(airflow: LocalAirflow, client: PersistClient) -> None:
    """The backfill of two days goes on by itself to its end; then one of three days creates the third only."""
    with airflow.running():
        assert follow(airflow, DAG_ID) == {DAG_ID: ["success"] * 2}
        assert check_history(client, 2) == {"upper": START_MS + 2 * DAY_MS, "commits": 2}
        assert not list_conflicts(client.blob, NAME), "the two dag runs run at the same time, and take turns"
        # As the scheduler does, which looks every 30 s.
        airflow.query("update backfill set completed_at = now() where completed_at is null returning id")
        airflow.command(
            "backfill", "create", "--dag-id", DAG_ID, "--from-date", "2026-01-01", "--to-date", "2026-01-03"
        )
        assert follow(airflow, DAG_ID) == {DAG_ID: ["success"] * 3}, "no new runs of the two days that are there"
        days = len(list((airflow.dags.parent / "feed").iterdir()))
        assert check_history(client, min(days, 3)) == {"upper": START_MS + 3 * DAY_MS, "commits": 3}
    assert not airflow.kept.is_running()
    assert fsck(client, NAME).is_clean
    check_asset_events(airflow, client)


def check_asset_events(airflow: LocalAirflow, client: PersistClient) -> None:
    """Each append has left an event with its upper, since and counts, and a link to the page that shows them."""
    found = airflow.query(
        "select e.extra from asset_event e join asset a on a.id = e.asset_id where a.uri = %s order by e.id",
        f"persist://persist_default/{NAME}",
    )
    extras = [extra for (extra,) in found]
    assert [extra["upper"] for extra in extras] == [commit.upper for commit in client.state(NAME).commits]
    assert all(extra["since"] == 0 for extra in extras)
    assert [extra["stats"]["eligible"] > 0 for extra in extras[:2]] == [True, True]
    ((links,),) = airflow.query(
        "select count(*) from xcom where key = '_link_ShardLink' and task_id = 'append_batches'"
    )
    assert links == len(extras)


@pytest.mark.family("schedulers")
@on_s3
def test_two_concurrent_backfills_whose_tasks_are_killed(
    airflow: LocalAirflow, client: PersistClient, tmp_path: Path
) -> None:
    """On S3 alone. The first process to reach a point is killed there, and Airflow's own retry goes on.

    Airflow allows one backfill per DAG, so the second one is another DAG's, of the same collection and shard.
    """
    days = 2 if is_long() else 1
    for folder in sorted((tmp_path / "feed").iterdir())[days:]:
        shutil.rmtree(folder)
    points = tmp_path / "points"
    armed = ("mint.input_frozen", "write.during", "append.committed", "checkpoint.manifest")
    for point in armed:
        kill_points.arm(points, point)
    head = (
        "from datetime import timedelta\nfrom pathlib import Path\n"
        f"from tests.airflow.kill_points import install\ninstall(Path({str(points)!r}))\n"
    )
    Fruit(airflow.dags, tmp_path / "feed").write_dag_file(QUICK_RETRIES, head=head)
    (airflow.dags / "again_dag.py").write_text(
        f"# airflow DAG\n{head}"
        "from persist_airflow.factory import build_upsert_dag\n"
        "from persist_core.config.collection import load_collection\n"
        "config = load_collection(Path(__file__).parent / 'collections' / 'fruit.yaml')\n"
        f"dag = build_upsert_dag(config, dag_args={{'dag_id': 'again'}}{QUICK_RETRIES})\n"
    )
    backfills = [
        ("backfill", "create", "--dag-id", dag_id, "--from-date", "2026-01-01", "--to-date", f"2026-01-0{days}",
         "--max-active-runs", "1", *flags)
        for dag_id, flags in ((DAG_ID, ()), ("again", ("--run-backwards",)))
    ]  # fmt: skip
    airflow.commands(("dags", "reserialize"), *backfills)
    with airflow.running():
        states = follow(airflow, DAG_ID, "again")
    assert {state for found in states.values() for state in found} == {"success"}, states
    assert kill_points.armed(points) == [], "every point was reached"
    assert check_history(client, days)["upper"] == START_MS + days * DAY_MS
    assert list_conflicts(client.blob, NAME), "both minted from the same upper, so one of them lost"
    assert fsck(client, NAME).is_clean
