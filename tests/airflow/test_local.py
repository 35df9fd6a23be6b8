"""The embedded Airflow's process keeping. What it runs is tested in `tests/e2e`."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from persist_airflow.backfill import BackfillStatus
from persist_airflow.embedded import demo
from persist_airflow.embedded.__main__ import main
from persist_airflow.embedded.home import EmbeddedAirflowError, LocalAirflow, free_port, project_airflow, psutil
from persist_core.clock import ManualClock
from persist_core.location.settings import PersistLocation


@pytest.fixture
def airflow(tmp_path: Path) -> LocalAirflow:
    """An embedded Airflow that is never really started."""
    (tmp_path / "home" / "logs").mkdir(parents=True)
    location = PersistLocation(f"file://{tmp_path}/blob", f"sqlite:///{tmp_path}/c.db")
    return LocalAirflow(tmp_path / "home", tmp_path / "dags", location)


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that has one of its own and ignores SIGTERM."""
    script = (
        "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); print(flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def record(airflow: LocalAirflow, process: Any, created: float | None = None) -> None:
    """What `start` would have written."""
    if created is None:
        created = psutil.Process(process.pid).create_time()
    entry = {"name": "scheduler", "pid": process.pid, "created": created}
    (airflow.home / "processes.json").write_text(json.dumps({"port": 1, "processes": [entry]}))


def test_stop_ends_a_stubborn_process_and_its_children(
    airflow: LocalAirflow, child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("persist_airflow.embedded.home.STOP_TIMEOUT_S", 0.2)
    record(airflow, child)
    (grandchild,) = psutil.Process(child.pid).children()
    assert airflow.is_running()
    assert LocalAirflow(airflow.home, airflow.dags, airflow.location).url == "http://127.0.0.1:1"
    assert airflow.stop() == ["scheduler"]
    assert child.wait(10) is not None
    assert not grandchild.is_running() or grandchild.status() == psutil.STATUS_ZOMBIE
    assert not airflow.is_running()
    assert LocalAirflow(airflow.home, airflow.dags, airflow.location).port > 1


def test_a_pid_that_belongs_to_somebody_else_by_now_is_left_alone(
    airflow: LocalAirflow, child: subprocess.Popen[bytes]
) -> None:
    record(airflow, child, created=1.0)
    assert not airflow.is_running()
    assert airflow.stop() == []
    assert child.poll() is None


def test_a_process_that_died_is_reported_with_the_end_of_its_log(airflow: LocalAirflow) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        created = psutil.Process(process.pid).create_time()
    record(airflow, process, created)
    (airflow.logs / "scheduler.log").write_text("no space left")
    with pytest.raises(EmbeddedAirflowError, match=r"scheduler has ended unexpectedly:\nno space left"):
        airflow.check()


@pytest.mark.parametrize(("heartbeat_after_s", "ends"), [(200, True), (10_000, False)])
def test_the_demo_waits_for_a_scheduler_that_starts_slowly(
    airflow: LocalAirflow, monkeypatch: pytest.MonkeyPatch, heartbeat_after_s: int, ends: bool
) -> None:
    """On a busy machine a scheduler needs minutes to its first heartbeat. Without one the error shows its log."""
    airflow.clock = ManualClock()
    for name in ("launch_spark", "prepare", "launch", "check"):
        monkeypatch.setattr(airflow, name, lambda: None)
    monkeypatch.setattr(demo, "fail_unended", lambda _: None)
    monkeypatch.setattr(demo, "_create_backfill", lambda *_: 1)
    monkeypatch.setattr("os.environ", {})
    (airflow.logs / "scheduler.log").write_text("still importing")

    def status(_: int) -> BackfillStatus:
        is_up = airflow.clock.now_ms() > heartbeat_after_s * 1000
        runs = Counter({"success" if is_up else "queued": 6})
        return BackfillStatus(1, "dag", runs, Counter(), has_scheduler=is_up)

    monkeypatch.setattr("persist_airflow.backfill.read_status", status)
    steps = [demo.Step("dag", 0, 5 * demo.DAY_MS)]
    if ends:
        assert demo._run_steps(Console(quiet=True), airflow, steps)
    else:
        with pytest.raises(EmbeddedAirflowError, match=r"(?s)0 of 6 dag runs of dag.*no heartbeat.*still importing"):
            demo._run_steps(Console(quiet=True), airflow, steps)


def test_stop_without_anything_recorded_does_nothing(airflow: LocalAirflow) -> None:
    assert airflow.stop() == []
    (airflow.home / "processes.json").write_text("not json")
    assert airflow.stop() == []


def test_the_wanted_port_is_taken_where_it_is_free() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        other = free_port(port)
        assert other not in (0, port)
    assert free_port(other) == other


def test_everything_listens_on_loopback_alone(airflow: LocalAirflow) -> None:
    environment = airflow.environment()
    assert environment["AIRFLOW__API__HOST"] == "127.0.0.1"
    for component in ("scheduler", "triggerer"):
        assert "--skip-serve-logs" in airflow._arguments(component, headless=True)
    assert airflow._arguments("api-server", headless=False)[:3] == ["api-server", "--host", "127.0.0.1"]


def test_the_project_keeps_everything_below_the_clone(tmp_path: Path) -> None:
    airflow = project_airflow(tmp_path)
    assert airflow.home == tmp_path / ".airflow"
    assert airflow.location.blob_uri == f"file://{tmp_path}/.persist/blob"


def test_an_unknown_command_prints_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["sideways"], ["up", "again"]):
        assert main(arguments) == 2
        assert "up|down|demo" in capsys.readouterr().err


SCRIPT = """
import json, signal, subprocess, sys, time
from pathlib import Path
from persist_airflow.embedded.__main__ import main
from persist_airflow.embedded.home import LocalAirflow, psutil
from persist_core.location.settings import PersistLocation

class Sleeper(LocalAirflow):
    def start(self, components=()):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
        entry = {"name": "scheduler", "pid": child.pid, "created": psutil.Process(child.pid).create_time()}
        (self.home / "processes.json").write_text(json.dumps({"port": 1, "processes": [entry]}))
        print(child.pid, flush=True)

signal.signal(signal.SIGINT, signal.default_int_handler)  # a test session may have been started without one
home = Path(sys.argv[1])
with Sleeper(home, home, PersistLocation("mem:", "mem:")).running():
    time.sleep(60)
"""


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_every_way_out_stops_what_was_started(tmp_path: Path, how: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        starter.send_signal(how)
        assert starter.wait(30) != 0
    assert not psutil.pid_exists(pid)
    assert not (tmp_path / "processes.json").exists()
