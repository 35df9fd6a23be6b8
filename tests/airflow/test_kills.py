"""kill -9 of the worker at every point of the four tasks, then another try: the contents of an undisturbed run."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from persist_airflow.compat import AirflowSkipException
from persist_airflow.factory import build_upsert_dag, build_view_dag
from persist_core.frontier import Frontier
from persist_core.handles.client import PersistClient
from persist_core.location.settings import PersistLocation
from persist_core.maintenance.fsck import fsck
from persist_core.protocol.conflicts import list_conflicts
from persist_core.schema import CollectionSchema, Column
from tests.airflow import kill_points, late_fruit
from tests.airflow.fruit import DAY_MS, HISTORY, NAME, START_MS, Fruit, check_history, end_ms, end_of
from tests.airflow.kill_in_job import JOB
from tests.airflow.task_driver import DagRunDriver
from tests.airflow.view_files import DAG_MODULE, Views
from tests.plain_commit import commit
from tests.sampling import is_long, sample
from tests.servers.backends import on_postgresql, on_servers, on_sqlite_and_s3

pytestmark = pytest.mark.airflow_2_11

ROOT = Path(__file__).resolve().parents[2]
KILLED = "killed by SIGKILL"
# What Spark's part of a task leaves behind does not depend on Airflow's version: there, days without input are enough.
with_spark = pytest.mark.skipif(
    importlib.metadata.version("apache-airflow").startswith("2") and not is_long(),
    reason="as on Airflow 3 (PERSIST_PROFILE=nightly)",
)

FRUIT_DAG = ("fruit_dag", "persist_upsert__fruit")
VIEW = "by_letter"
VIEW_DAG = (DAG_MODULE, f"persist_view__{VIEW}")
LETTERS = CollectionSchema(key=(), values=(Column("letter", "string"), Column("n", "bigint")))
VIEW_FILE = """
query: SELECT substring(name, 1, 1) AS letter, count(*) AS n FROM fruit GROUP BY ALL
schedule: "@daily"
start_date: 2026-01-01
"""


class Worker:
    """A `kill_driver` process, at work on the dag runs of some days; `dag` is a module of the folder and a DAG id."""

    def __init__(
        self,
        fruit: Fruit,
        folder: Path,
        location: PersistLocation,
        name: str,
        days: list[Any],
        *,
        dag: tuple[str, str] = FRUIT_DAG,
    ) -> None:
        folder.mkdir()
        points = str(folder / "points")
        plan = {"dags": str(fruit.dags), "dag": dag, "points": points, "run_id": name, "days": days}
        (folder / "plan.json").write_text(json.dumps(plan))
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.airflow.kill_driver", str(folder / "plan.json")],
            cwd=ROOT,
            env={**os.environ, **location.to_env()},
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def tries(self) -> dict[tuple[int, str], list[str]]:
        """Wait for its end: how each try of each task ended."""
        try:
            out, _ = self.process.communicate(timeout=1500)
        finally:
            # A killed worker's Spark job lives on in this group, as a zombie's would; it ends with the test.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        assert self.process.returncode == 0, out
        return {(entry["day"], entry["task"]): entry["tries"] for entry in json.loads(out.splitlines()[-1])}


def every_point() -> dict[str, list[str]]:
    """All points, by the task that reaches them."""
    return {
        "mint_batch_descriptions": list(kill_points.MINT),
        "write_batches": list(kill_points.WRITE),
        "append_batches": list(kill_points.APPEND),
        "checkpoint_manifest": list(kill_points.CHECKPOINT),
    }


@with_spark
@pytest.mark.family("tasks")
def test_kills_at_every_point_change_nothing(
    fruit: Fruit, client: PersistClient, location: PersistLocation, tmp_path: Path
) -> None:
    kills, with_input = every_point(), 2 if is_long() else 1
    if not is_long():
        kills["write_batches"].remove("write.after")  # without Spark below: what Spark has staged makes no difference
    fruit.write_days(range(with_input))
    days = [{"day": 0, "kills": kills}, {"day": 1, "kills": {"append_batches": ["append.committed"]}}]
    tries = Worker(fruit, tmp_path / "worker", location, "killed", days).tries()
    for task, points in kills.items():
        assert tries[0, task].count(KILLED) == len(points), (task, tries)
        assert tries[0, task][-1] == "success"
    assert tries[1, "append_batches"] == [KILLED, "success"]
    assert check_history(client, with_input) == {"upper": START_MS + 2 * DAY_MS, "commits": 2}
    assert not list_conflicts(client.blob, NAME)
    assert fsck(client, NAME).is_clean


KILLS = [
    "sampled",
    *(
        pytest.param(which, marks=pytest.mark.skipif(not is_long(), reason="takes minutes (PERSIST_PROFILE=nightly)"))
        for which in ("undisturbed", "all")
    ),
]


@with_spark
@pytest.mark.parametrize("which", KILLS)
@pytest.mark.family("tasks")
def test_kills_while_the_orders_of_deleted_keys_change(
    fruit: Fruit,
    client: PersistClient,
    location: PersistLocation,
    tmp_path: Path,
    which: str,
    persist_seed: int,
) -> None:
    """In `sequence` order. Whatever is killed, rows, order index and late records are as without kills."""
    late_fruit.deliver_late(fruit)
    chance = random.Random(f"{persist_seed}/kills")
    points = {**every_point(), "write_batches": ["write.before", *JOB, "write.during", "write.after"]}
    sampled = {task: [chance.choice(names)] for task, names in points.items()}
    kills: dict[str, tuple[dict[str, list[str]], ...]] = {
        "undisturbed": ({}, {}),
        "sampled": ({}, sampled),
        "all": (points, points),
    }
    plan = list(zip(late_fruit.RUNS, kills[which], strict=True))
    days = [{"day": day, "kills": killed} for day, killed in plan]
    tries = Worker(fruit, tmp_path / "worker", location, "killed", days).tries()
    for day, killed in plan:
        for task, names in killed.items():
            ended = ["failed" if name in JOB else KILLED for name in names]
            assert tries[day, task] == [*ended, "success"], tries
    late_fruit.check_late_history(client)
    assert client.state(NAME).upper == Frontier(end_ms(late_fruit.RUNS[-1]))
    assert not list_conflicts(client.blob, NAME)
    assert fsck(client, NAME).is_clean


@pytest.mark.family("tasks")
@on_servers
def test_kills_on_days_without_input_change_nothing(
    fruit: Fruit, client: PersistClient, location: PersistLocation, tmp_path: Path
) -> None:
    """On real servers, without Spark: what the tasks themselves do there. Others, below and in e2e, have Spark too."""
    kills = every_point()
    kills["mint_batch_descriptions"].remove("mint.input_frozen")  # there is no input
    kills["write_batches"].remove("write.during")
    tries = Worker(fruit, tmp_path / "worker", location, "killed", [{"day": 0, "kills": kills}, {"day": 1}]).tries()
    for task, points in kills.items():
        assert tries[0, task] == [KILLED] * len(points) + ["success"], tries
        assert tries[1, task] == ["success"], tries
    assert check_history(client, 0) == {"upper": START_MS + 2 * DAY_MS, "commits": 2}
    assert not list_conflicts(client.blob, NAME)
    assert fsck(client, NAME).is_clean


@with_spark
@pytest.mark.family("tasks")
@on_postgresql
def test_kills_at_every_point_of_a_view_change_nothing(
    fruit: Fruit, views: Views, client: PersistClient, location: PersistLocation, tmp_path: Path
) -> None:
    """The view's first refresh, of a shard into which another writer has put rows; its input holds an err."""
    config = views.write(VIEW, VIEW_FILE)
    at = end_ms(0) - 1
    rows = [(row, at, 1) for row in enumerate(("apple", "apricot", "fig", None))]
    commit(client, NAME, fruit.config().collection_schema(), end_ms(0), rows, [("value", b"k", b"raw", at, 1)])
    commit(client, VIEW, LETTERS, START_MS, [(row, 0, 1) for row in (("a", 2), ("x", 1), ("x", 2))])
    client.open_since(NAME, f"view/{VIEW}")
    client.set_history(NAME, 0)  # so that the view's hold is in the way, and moves
    client.advance_since(NAME)
    assert client.state(NAME).since == Frontier(0)
    kills = {
        "mint_batch_descriptions": list(kill_points.MINT_VIEW),
        "write_batches": ["write.before", *sample((*JOB, "write.during"), 1, "kills of a view's job")],
        "append_batches": list(kill_points.APPEND),
        "checkpoint_manifest": list(kill_points.CHECKPOINT_VIEW),
    }
    worker = Worker(fruit, tmp_path / "worker", location, "killed", [{"day": 0, "kills": kills}], dag=VIEW_DAG)
    tries = worker.tries()
    for task, points in kills.items():
        assert tries[0, task].count(KILLED) + tries[0, task].count("failed") == len(points), (task, tries)
        assert tries[0, task][-1] == "success"
    ended = ["failed" if point in JOB else KILLED for point in kills["write_batches"]]
    assert tries[0, "write_batches"] == [*ended, "success"]
    state = client.state(VIEW)
    assert (state.upper, len(state.commits)) == (Frontier(end_ms(0)), 2)
    reader = client.open_reader(VIEW)
    left = sorted((row["letter"] or "", row["n"]) for row in reader.snapshot().to_pylist())
    assert left == [("", 1), ("a", 2), ("f", 1)]
    assert [err["_persist_err_kind"] for err in reader.errors().to_pylist()] == [f"{NAME}/value"]
    newest = state.newest_commit
    assert newest is not None
    stats = client.manifest(newest).stats
    assert {name: stats[name] for name in ("rows", "errs", "inserted", "retracted", "corrections")} == {
        "rows": 3,
        "errs": 1,
        "inserted": 2,
        "retracted": 2,
        "corrections": 3,
    }
    assert client.advance_since(NAME).since == Frontier(at), "the view's hold has followed"
    assert not list_conflicts(client.blob, VIEW)
    assert fsck(client, VIEW).is_clean
    again = DagRunDriver(build_view_dag(config), end_of(0), "again")
    with pytest.raises(AirflowSkipException, match="already in shard"):
        again.run("mint_batch_descriptions")


@pytest.mark.family("tasks")
@on_sqlite_and_s3
def test_kills_while_a_conflict_heals_change_nothing(
    fruit: Fruit, client: PersistClient, location: PersistLocation, tmp_path: Path
) -> None:
    """Days without input, so that only the protocol is at work: the loser is killed at each step of healing."""
    dag = build_upsert_dag(fruit.config())
    points = [
        *kill_points.CONFLICT,
        "mint.after",
        "write.without_input",
        "append.before",
        "append.committed",
        "append.after",
    ]
    loser = DagRunDriver(dag, end_of(2), "loser")
    loser.run("mint_batch_descriptions")
    loser.run("write_batches")
    DagRunDriver(dag, end_of(0), "winner").run_all()
    folder = tmp_path / "healing"
    folder.mkdir()
    (folder / "loser.json").write_text(json.dumps(loser.xcoms))
    tries = _heal_in_a_worker(fruit, folder, location, points)
    assert tries[-1] == "success", tries
    assert tries.count(KILLED) == len(points), tries
    assert client.state(NAME).upper.time == START_MS + 3 * DAY_MS
    assert len(client.state(NAME).commits) == 2
    assert len(list_conflicts(client.blob, NAME)) == 1


def _heal_in_a_worker(fruit: Fruit, folder: Path, location: PersistLocation, points: list[str]) -> list[str]:
    script = (
        "import importlib, json, sys; from pathlib import Path\n"
        "from tests.airflow import kill_driver, kill_points\n"
        "from tests.airflow.fruit import end_of\n"
        "from tests.airflow.task_driver import DagRunDriver\n"
        f"sys.path.insert(0, {str(fruit.dags)!r}); folder = Path({str(folder)!r})\n"
        "dag = importlib.import_module('fruit_dag').persist_upsert__fruit\n"
        "kill_points.install(folder / 'points')\n"
        "run = DagRunDriver(dag, end_of(2), 'loser', xcoms=json.loads((folder / 'loser.json').read_text()))\n"
        f"print(json.dumps(kill_driver.run_task(run, 'append_batches', folder / 'points', {points!r})))\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        cwd=ROOT,
        env={**os.environ, **location.to_env()},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=400,
    )
    tries: list[str] = json.loads(done.stdout.splitlines()[-1])
    return tries


@with_spark
@pytest.mark.family("tasks")
@on_postgresql
def test_two_workers_over_the_same_days_at_once(
    fruit: Fruit, client: PersistClient, location: PersistLocation, tmp_path: Path
) -> None:
    """Each is killed where it has just done something that the other one sees."""
    days, with_input = range(len(HISTORY) if is_long() else 2), len(HISTORY) if is_long() else 1
    fruit.write_days(range(with_input))
    kills = {
        "mint_batch_descriptions": ["mint.input_frozen"],
        "append_batches": ["append.committed"],
        "checkpoint_manifest": ["checkpoint.manifest"],
    }
    plan = [{"day": day, "kills": kills} for day in days]
    workers = [
        Worker(fruit, tmp_path / name, location, name, order)
        for name, order in (("forwards", plan), ("backwards", plan[::-1]))
    ]
    for worker in workers:
        tries = worker.tries()
        ended = [each[-1] for each in tries.values()]
        assert set(ended) <= {"success", "skipped"}, tries
        assert any(KILLED in each for each in tries.values()), tries
    assert check_history(client, with_input)["upper"] == end_ms(days[-1])
    assert list_conflicts(client.blob, NAME), "both minted from the same upper, so one of them lost"
    assert fsck(client, NAME).is_clean
