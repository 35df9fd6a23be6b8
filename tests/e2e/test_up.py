"""`make up` as a user calls it: new collections wait; neither kill -9 nor many backfills stop it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from persist_airflow.embedded.home import POSTGRES, SPARK, WITH_UI, LocalAirflow, project_airflow
from persist_airflow.embedded.keeper import RUNS, Process, read_processes
from persist_airflow.embedded.ports import free_port, listener
from tests import real_parts
from tests.sampling import is_long, sample

ROOT = Path(__file__).resolve().parents[2]
COLLECTION = """
source: {{path: '../../feed/{name}/{{date:%Y-%m-%d}}/*.jsonl', format: json}}
key: id
columns: {{id: bigint, name: string}}
time: path
order: position
delete: none
schedule: "@daily"
start_date: 2026-01-01
"""
TIMEOUT_MS = 600_000
KEEPER = "keeper"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the bundled DAGs and some collections of the user's own; nothing runs in it afterwards."""
    root = tmp_path / "project"
    shutil.copytree(ROOT / "dags", root / "dags")
    for number in range(10 if is_long() else 3):
        text = COLLECTION.format(name=f"mine_{number}")
        (root / "dags" / "collections" / f"mine_{number}.yaml").write_text(text)
        days = root / "feed" / f"mine_{number}" / "2026-01-01"
        days.mkdir(parents=True)
        (days / "part.jsonl").write_text('{"id": 1, "name": "fig"}\n')
    monkeypatch.setenv("AIRFLOW__API__PORT", str(free_port()))
    yield root
    project_airflow(root).stop()


def embedded(root: Path, *arguments: str) -> tuple[int, str]:
    """`python -m persist_airflow.embedded.run ...` in the folder; its exit code and its output."""
    done = subprocess.run(
        [sys.executable, "-m", "persist_airflow.embedded.run", *arguments],
        cwd=root,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
        check=False,
    )
    return done.returncode, done.stdout


def test_up_survives_backfills_and_kill_9(project: Path) -> None:
    code, out = embedded(project, "up")
    assert code == 0, out
    airflow = project_airflow(project)
    real_parts.used("embedded Airflow", "PostgreSQL, LocalExecutor, Spark Connect, all processes kept")
    check_what_is_paused(airflow, out)
    check_who_has_the_port(project, airflow)
    backfill_at_once(project, airflow)
    for name in sample((POSTGRES, SPARK, *WITH_UI, KEEPER), 1, "the process that is killed"):
        check_kill(project, airflow, name)
    text = "".join(path.read_text(errors="replace") for path in airflow.logs.glob("*.log"))
    assert not [word for word in ("database is locked", "ObjectDeletedError") if word in text]
    processes = airflow.kept.all()
    code, out = embedded(project, "down")
    assert (code, out) == (0, f"stopped {', '.join(process.name for process in processes)}\n")
    assert [process.name for process in processes if process.alive()] == []


def check_what_is_paused(airflow: LocalAirflow, out: str) -> None:
    """A user's own collections wait for the user, and `up` names them; the bundled DAGs run."""
    paused = dict(airflow.query("select dag_id, is_paused from dag"))
    mine = {dag_id for dag_id in paused if "mine" in dag_id}
    assert len(mine) == len(list((airflow.dags / "collections").glob("mine_*.yaml")))
    assert {dag_id for dag_id, is_paused in paused.items() if is_paused} == mine
    assert {"persist_upsert__customers", "persist_view__regions", "persist_watch"} <= {*paused} - mine
    assert all(dag_id in out for dag_id in mine)
    assert "dags unpause persist_upsert__mine_0" in out


def check_who_has_the_port(project: Path, airflow: LocalAirflow) -> None:
    """A second project does not start beside it under another address."""
    other = project.parent / "other"
    (other / "dags").mkdir(parents=True)
    code, out = embedded(other, "up")
    assert code == 1
    assert listener(airflow.port) in out
    assert f"port {airflow.port} of 127.0.0.1 is taken by" in out
    assert not (other / ".airflow" / "processes.json").exists()


def backfill_at_once(project: Path, airflow: LocalAirflow) -> None:
    """A backfill of each collection, one call after the other, while the scheduler runs those before."""
    dags = sorted(f"persist_upsert__{path.stem}" for path in (project / "dags" / "collections").glob("mine_*.yaml"))
    count = 30 if is_long() else 10
    airflow.commands(*(("dags", "unpause", dag_id) for dag_id in dags))
    options = ("--from-date", "2026-01-01", "--to-date", f"2026-01-{count}")
    create = [("backfill", "create", "--dag-id", dag_id, *options) for dag_id in dags]
    if is_long():
        for command in create:
            airflow.command(*command)
    else:
        airflow.commands(*create)
    made = airflow.query("select dag_id, count(*) from dag_run where run_type = 'backfill' group by dag_id order by 1")
    assert made == [(dag_id, count) for dag_id in dags]
    wait_for_runs(airflow, 1)
    assert [process for process in airflow.kept.all() if process.ends or process.state != RUNS] == []


def check_kill(project: Path, airflow: LocalAirflow, name: str) -> None:
    """Kill -9; it comes back by itself, and dag runs go on. A killed keeper comes back by `up`."""
    before, ended = named(airflow, name), count_ended(airflow)
    before.alive().kill()
    if name == KEEPER:
        code, out = embedded(project, "up")
        assert code == 0, out
        assert "the keeper had ended" in out
        airflow = project_airflow(project)
    airflow.kept.wait_until(lambda: is_another(airflow, name, before.pid), name, TIMEOUT_MS)
    assert airflow.wait_until_healthy(TIMEOUT_MS) == {}
    if name != KEEPER:
        log = (airflow.logs / "keeper.log").read_text()
        assert f"{name}: pid {before.pid} was killed by SIGKILL" in log
    wait_for_runs(airflow, ended + 1)
    code, out = embedded(project, "up")
    assert code == 0, out
    assert airflow.url in out


def named(airflow: LocalAirflow, name: str) -> Process:
    return next(process for process in read_processes(airflow.home) if process.name == name)


def is_another(airflow: LocalAirflow, name: str, pid: int) -> bool:
    process = named(airflow, name)
    return process.state == RUNS and process.pid != pid


def count_ended(airflow: LocalAirflow) -> int:
    ((count,),) = airflow.query("select count(*) from dag_run where run_type = 'backfill' and state = 'success'")
    return int(count)


def wait_for_runs(airflow: LocalAirflow, count: int) -> None:
    """Until so many dag runs of backfills have succeeded."""

    def have_ended() -> bool:
        import psycopg

        try:
            return count_ended(airflow) >= count
        except psycopg.OperationalError:  # it was killed, and starts again
            return False

    airflow.kept.wait_until(have_ended, "scheduler", TIMEOUT_MS)
