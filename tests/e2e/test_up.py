"""`make up` as a user calls it: new collections wait; it does all that an Airflow does, and views start each other;
days follow the clocks of a time zone; neither kill -9 nor many backfills stop it.

One Airflow for all: to start one takes half a minute.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from persist_airflow.embedded.home import POSTGRES, SPARK, WITH_UI, LocalAirflow, project_airflow
from persist_airflow.embedded.keeper import RUNS, Process, psutil, read_processes
from persist_airflow.embedded.ports import free_port, listener
from persist_core.handles.client import PersistClient
from persist_core.location.open import open_location
from tests import real_parts
from tests.airflow.sinks import HttpSink, http_sink
from tests.airflow.statsd_sink import StatsdSink, statsd_sink
from tests.e2e import clocks, operation, view_chain
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


@dataclass
class Up:
    """A clone in which `make up` has run, with what it printed, and what listens to its Airflow."""

    root: Path
    printed: str
    slack: HttpSink
    statsd: StatsdSink

    @property
    def airflow(self) -> LocalAirflow:
        """The Airflow that runs; a later `up` may have started another one."""
        return project_airflow(self.root)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """`make up` in a folder with the bundled DAGs and the user's own; nothing runs in it afterwards."""
    root = tmp_path_factory.mktemp("up") / "project"
    write_files(root)
    with http_sink() as slack, statsd_sink() as statsd, pytest.MonkeyPatch.context() as environment:
        for name, text in operation.settings(slack, statsd).items():
            environment.setenv(name, text)
        environment.setenv("AIRFLOW__API__PORT", str(free_port()))
        try:
            code, printed = embedded(root, "up")
            assert code == 0, printed
            real_parts.used("embedded Airflow", "PostgreSQL, LocalExecutor, Spark Connect, all processes kept")
            yield Up(root, printed, slack, statsd)
        finally:
            project_airflow(root).stop()


def write_files(root: Path) -> None:
    """The bundled DAGs, with another watcher; collections to backfill, one that is wrong, a chain of views."""
    dags = root / "dags"
    shutil.copytree(ROOT / "dags", dags)
    for name in ("persist_watch.py", "persist_maintenance.py"):
        (dags / name).unlink()
    (dags / "operate_dag.py").write_text(operation.DAG_FILE)
    (dags / "persist.yaml").write_text(operation.PROJECT)
    for number in range(10 if is_long() else 3):
        text = COLLECTION.format(name=f"mine_{number}")
        (dags / "collections" / f"mine_{number}.yaml").write_text(text)
        days = root / "feed" / f"mine_{number}" / "2026-01-01"
        days.mkdir(parents=True)
        (days / "part.jsonl").write_text('{"id": 1, "name": "fig"}\n')
    watched = COLLECTION.format(name=operation.SHARD).replace('"@daily"', "null")
    (dags / "collections" / f"{operation.SHARD}.yaml").write_text(watched)
    (dags / "collections" / "wrong.yaml").write_text(text.replace("format: json", "format: jsn"))
    view_chain.write_files(dags, root / "feed" / "chain")
    clocks.write_files(dags, root / "feed")


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


@pytest.mark.family("schedulers")
def test_up_serves_the_ui_and_reads_dag_files_on_loopback_alone(up: Up) -> None:
    airflow = up.airflow
    check_what_is_paused(airflow, up.printed)
    check_ui(airflow)
    check_dag_files(airflow)
    assert airflow.wait_until_healthy() == {}
    for pid in (process.pid for process in airflow.kept.all()):
        assert listens_at(pid) <= {"127.0.0.1"}, (pid, listens_at(pid))
    assert (airflow.home / "simple_auth_manager_passwords.json.generated").exists()


@pytest.mark.family("schedulers")
def test_its_triggerer_and_its_scheduler_work(up: Up) -> None:
    """See `operation`."""
    api = view_chain.api_of(up.airflow)
    api.pause(operation.STARTER, is_paused=False)
    with open_location(up.airflow.location) as opened:
        operation.check(up.airflow, PersistClient(opened), up.slack, up.statsd)
    api.pause("persist_watch", is_paused=True)


@pytest.mark.family("schedulers")
def test_views_start_each_other(up: Up) -> None:
    """See `view_chain`."""
    api = view_chain.api_of(up.airflow)
    for dag_id in view_chain.DAG_IDS:
        api.pause(dag_id, is_paused=False)
    with open_location(up.airflow.location) as opened:
        view_chain.check(up.airflow, PersistClient(opened), up.root / "feed" / "chain")


@pytest.mark.timeout(4 * 3600)
@pytest.mark.family("schedulers")
def test_days_of_23_and_25_hours(up: Up) -> None:
    """A year at night: see `clocks`."""
    with open_location(up.airflow.location) as opened:
        clocks.check(up.airflow, PersistClient(opened))


@pytest.mark.family("schedulers")
def test_up_survives_backfills_and_kill_9(up: Up) -> None:
    """Beside all that runs there; at the end `down` stops it."""
    airflow = up.airflow
    check_who_has_the_port(up.root, airflow)
    with load(8 if is_long() else 0):
        backfill_at_once(up.root, airflow)
    for name in sample((POSTGRES, SPARK, *WITH_UI, KEEPER), 1, "the process that is killed"):
        check_kill(up.root, up.airflow, name)
    airflow = up.airflow
    text = "".join(path.read_text(errors="replace") for path in airflow.logs.glob("*.log"))
    assert not [word for word in ("database is locked", "ObjectDeletedError") if word in text]
    processes = airflow.kept.all()
    code, out = embedded(up.root, "down")
    assert (code, out) == (0, f"stopped {', '.join(process.name for process in processes)}\n")
    assert [process.name for process in processes if process.alive()] == []


@contextlib.contextmanager
def load(wanted: int) -> Iterator[None]:
    """Processes beside it that are always busy: as many as the machine's load, others' included, lacks of `wanted`."""
    count = max(0, wanted - round(os.getloadavg()[0]))
    busy = [subprocess.Popen(["nice", sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def listens_at(pid: int) -> set[str]:
    """The addresses that a process and its children listen at; a child may end meanwhile, as tasks do."""
    found: set[str] = set()
    for one in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            found |= {c.laddr.ip for c in one.net_connections("tcp") if c.status == "LISTEN"}
    return {ip.removeprefix("::ffff:") for ip in found}


def check_what_is_paused(airflow: LocalAirflow, out: str) -> None:
    """A user's own collections wait for the user, and `up` names them; the bundled DAGs run."""
    found = airflow.query("select dag_id, is_paused, is_stale, has_import_errors from dag order by dag_id")
    assert [dag_id for dag_id, _, *wrong in found if any(wrong)] == []
    paused = {dag_id: is_paused for dag_id, is_paused, *_ in found}
    mine = {dag_id for dag_id in paused if "mine" in dag_id}
    assert len(mine) == len(list((airflow.dags / "collections").glob("mine_*.yaml")))
    own = {*view_chain.DAG_IDS, *clocks.DAG_IDS}
    waits = mine | own | {operation.STARTER, f"persist_upsert__{operation.SHARD}"}
    assert {dag_id for dag_id, is_paused in paused.items() if is_paused} == waits
    assert {"persist_upsert__customers", "persist_view__regions", "persist_watch"} <= {*paused} - waits
    assert all(dag_id in out for dag_id in waits - {operation.STARTER})
    assert f"dags unpause {min(waits - {operation.STARTER})}" in out


def check_ui(airflow: LocalAirflow) -> None:
    """It is there, and asks who looks."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{airflow.url}/", timeout=30) as page:
        assert b"<title>Airflow</title>" in page.read()
    with pytest.raises(urllib.error.HTTPError, match="401"):
        opener.open(f"{airflow.url}/api/v2/dags", timeout=30)


def check_dag_files(airflow: LocalAirflow) -> None:
    """A wrong file is the one import error."""
    errors: list[tuple[str, str]] = []

    def has_errors() -> bool:
        errors[:] = airflow.query("select filename, stacktrace from import_error")
        return bool(errors)

    airflow.kept.wait_until(has_errors, "dag-processor", TIMEOUT_MS)
    ((file, message),) = errors
    assert file == "collections/wrong.yaml"
    assert "source.format: found 'jsn'" in message


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
    count = 30 if is_long() else 4
    airflow.commands(*(("dags", "unpause", dag_id) for dag_id in dags))
    options = ("--from-date", "2026-01-01", "--to-date", f"2026-01-{count}")
    create = [("backfill", "create", "--dag-id", dag_id, *options) for dag_id in dags]
    if is_long():
        for command in create:
            airflow.command(*command)
    else:
        airflow.commands(*create)
    counted = (
        "select dag_id, count(*) from dag_run where run_type = 'backfill' and dag_id = any(%s) group by 1 order by 1"
    )
    made = airflow.query(counted, dags)
    assert made == [(dag_id, count) for dag_id in dags]
    airflow.kept.wait_until(lambda: count_ended(airflow) > 0, "scheduler", TIMEOUT_MS)
    assert [process for process in airflow.kept.all() if process.ends or process.state != RUNS] == []


def check_kill(project: Path, airflow: LocalAirflow, name: str) -> None:
    """Kill -9; it comes back by itself, and a new dag run ends. A killed keeper comes back by `up`."""
    before = named(airflow, name)
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
    api = view_chain.api_of(airflow)
    api.pause(view_chain.UPSERT_DAG, is_paused=False)
    path = api.start(view_chain.UPSERT_DAG)
    airflow.kept.wait_until(lambda: api.call("GET", path)["state"] == "success", "scheduler", TIMEOUT_MS)
    code, out = embedded(project, "up")
    assert code == 0, out
    assert airflow.url in out


def named(airflow: LocalAirflow, name: str) -> Process:
    return next(process for process in read_processes(airflow.home) if process.name == name)


def is_another(airflow: LocalAirflow, name: str, pid: int) -> bool:
    process = named(airflow, name)
    return process.state == RUNS and process.pid != pid


def count_ended(airflow: LocalAirflow) -> int:
    backfills = "select count(*) from dag_run where run_type = 'backfill' and dag_id like 'persist_upsert__mine%'"
    ((count,),) = airflow.query(f"{backfills} and state = 'success'")
    return int(count)
