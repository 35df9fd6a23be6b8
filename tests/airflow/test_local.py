"""The embedded Airflow's process keeping. What it runs is tested in `tests/e2e`."""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from persist_airflow.embedded import EmbeddedAirflowError, demo, keeper
from persist_airflow.embedded.home import LocalAirflow, project_airflow
from persist_airflow.embedded.keeper import (
    KeptProcesses,
    Process,
    Program,
    psutil,
    read_processes,
    since_boot,
    write_private,
)
from persist_airflow.embedded.ports import accepts_connections, require_free
from persist_airflow.embedded.run import down, main
from persist_core.clock import SystemClock
from persist_core.handles.client import PersistClient
from persist_core.location.open import open_location
from persist_core.location.settings import ENV_BLOB_URI, ENV_CONSENSUS_URI, PersistLocation, location_from
from persist_core.time_text import DAY_MS, parse_time
from tests.core.world import SCHEMA
from tests.plain_commit import commit
from tests.servers import spark_connect
from tests.servers.lifeline import wait_until
from tests.virtual import ManualClock


@pytest.fixture
def airflow(tmp_path: Path) -> LocalAirflow:
    """An embedded Airflow that is never really started."""
    (tmp_path / "home" / "logs").mkdir(parents=True)
    location = PersistLocation(f"file://{tmp_path}/blob", f"sqlite:///{tmp_path}/c.db")
    return LocalAirflow(tmp_path / "home", tmp_path / "dags", location)


def program(name: str, code: str) -> Program:
    """A program of a few lines of Python."""
    return Program(name, [sys.executable, "-c", code], {})


SLEEPS = "import time; time.sleep(60)"
STUBBORN = (
    "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True);"
    "print('ready', flush=True); time.sleep(60)"
)


@pytest.fixture
def kept(airflow: LocalAirflow) -> Iterator[KeptProcesses]:
    """The processes of its home, none yet."""
    yield airflow.kept
    airflow.kept.stop()


def running(kept: KeptProcesses, name: str, *, other_than: int = 0) -> Any:
    """The process of this name, once it runs, and is not the one with the pid `other_than`."""
    found: list[Any] = []

    def runs() -> bool:
        process = kept.named(name)
        found[:] = [process.alive()] if process and process.state == keeper.RUNS and process.pid != other_than else []
        return bool(found)

    kept.wait_until(runs, name, 30_000)
    return found[0]


def test_a_killed_program_starts_again_and_is_logged(kept: KeptProcesses) -> None:
    kept.start(program("first", SLEEPS))
    kept.add(program("second", SLEEPS))
    first, second = running(kept, "first"), running(kept, "second")
    second.kill()
    again = running(kept, "second", other_than=second.pid)
    assert again.pid != second.pid
    assert first.is_running()
    log = (kept.home / "logs" / "keeper.log").read_text()
    assert f"second: pid {second.pid} was killed by SIGKILL after 0 s; it starts again in 1 s" in log
    assert f"second starts as pid {again.pid}" in log
    assert kept.stop() == ["first", "second"]
    assert not any(psutil.pid_exists(process.pid) for process in (first, again))


def test_children_of_a_killed_program_die_before_its_restart(kept: KeptProcesses) -> None:
    kept.start(program("parent", STUBBORN))
    parent = running(kept, "parent")
    kept.wait_until(lambda: "ready" in kept.log_tail("parent"), "parent", 30_000)
    (child,) = parent.children()
    parent.kill()
    running(kept, "parent", other_than=parent.pid)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_a_program_that_keeps_ending_is_given_up_and_retried(airflow: LocalAirflow) -> None:
    """Each wait is longer, and there are as many as `PAUSES_MS` has; a long life in between counts as a good start."""
    clock = ManualClock()
    looking = keeper.Keeper(airflow.home, clock)

    def look() -> Process:
        """Look once; what started has ended when this returns."""
        looking.look()
        (process,) = airflow.kept.all()
        if process.state == keeper.RUNS:
            airflow.kept.wait_until(lambda: process.alive() is None, "bad", 30_000)
        return process

    airflow.kept.clock = SystemClock()
    failing = program("bad", "raise SystemExit('no space left: an Error')")
    write_private(airflow.home / keeper.PROGRAMS, [asdict(failing)])
    assert look().state == keeper.RUNS
    for ends, pause_ms in enumerate(keeper.PAUSES_MS, 1):
        waiting = look()
        assert (waiting.state, waiting.ends) == (keeper.WAITS, ends)
        clock.sleep_ms(pause_ms - 1)
        assert look() == waiting
        clock.sleep_ms(1)
        assert look().state == keeper.RUNS
    assert look().state == keeper.GIVEN_UP
    with pytest.raises(EmbeddedAirflowError, match=r"bad was started 6 times .*exit code 1 .*no space left: an Error"):
        airflow.kept.check()
    clock.sleep_ms(keeper.STEADY_MS)
    assert look().state == keeper.GIVEN_UP
    airflow.kept.restart(())
    assert look().state == keeper.RUNS
    assert look().ends == 1
    clock.sleep_ms(keeper.PAUSES_MS[0])
    assert look().state == keeper.RUNS
    clock.sleep_ms(keeper.STEADY_MS)
    assert look().ends == 1


def test_the_end_of_a_large_log_takes_little_memory(airflow: LocalAirflow) -> None:
    """Nothing rotates these logs, and the keeper looks at them while it should start programs again."""
    assert airflow.kept.log_tail("bad") == ""
    with (airflow.home / "logs" / "bad.log").open("wb") as log:
        log.truncate(50_000_000)
        log.seek(0, os.SEEK_END)
        log.write("\u00e9\n".encode() * 2_000)
    tracemalloc.start()
    tail = airflow.kept.log_tail("bad")
    assert keeper.Keeper(airflow.home, SystemClock())._last_line("bad") == ": \u00e9"
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (len(tail), peak < 1_000_000) == (2_667, True)


def test_what_a_killed_keeper_leaves_is_stopped_children_too(
    kept: KeptProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "STOP_TIMEOUT_S", 0.2)
    kept.start(program("stubborn", STUBBORN))
    process = running(kept, "stubborn")
    kept.wait_until(lambda: "ready" in kept.log_tail("stubborn"), "stubborn", 30_000)
    (child,) = process.children()
    read_processes(kept.home)[0].alive().kill()
    with pytest.raises(EmbeddedAirflowError, match="keeper of the processes has ended"):
        kept.wait_until(lambda: False, "stubborn", 30_000)
    assert not kept.is_running()
    assert kept.stop() == ["stubborn"]
    for ended in (process, child):
        assert not ended.is_running() or ended.status() == psutil.STATUS_ZOMBIE
    assert kept.stop() == []


def test_a_pid_of_another_process_is_left_alone(kept: KeptProcesses) -> None:
    with subprocess.Popen([sys.executable, "-c", SLEEPS]) as child:
        foreign = [Process(name, child.pid, 1.0, keeper.RUNS) for name in ("keeper", "scheduler")]
        write_private(kept.home / keeper.PROCESSES, [asdict(process) for process in foreign])
        assert not kept.is_running()
        assert kept.stop() == []
        assert child.poll() is None
        child.kill()


def test_a_second_keeper_of_a_home_ends_and_says_so(kept: KeptProcesses) -> None:
    kept.start(program("first", SLEEPS))
    running(kept, "first")
    second = subprocess.run(
        [sys.executable, "-m", keeper.__name__, str(kept.home)], capture_output=True, text=True, timeout=60, check=False
    )
    assert second.returncode == 1
    assert "another keeper has" in second.stderr


@pytest.mark.parametrize(("first_end_s", "ends"), [(200, True), (10_000, False)])
def test_the_demo_waits_for_a_scheduler_that_starts_slowly(
    airflow: LocalAirflow, monkeypatch: pytest.MonkeyPatch, first_end_s: int, ends: bool
) -> None:
    """On a busy machine a scheduler needs minutes to its first dag run. If none ends, the error shows its log."""
    airflow.clock = ManualClock()
    for name in ("launch_database", "launch_spark", "prepare", "launch"):
        monkeypatch.setattr(airflow, name, lambda: None)
    monkeypatch.setattr(airflow.kept, "check", lambda: None)
    monkeypatch.setattr(demo, "create", lambda *_: 1)
    monkeypatch.setattr("os.environ", {})
    (airflow.logs / "scheduler.log").write_text("still importing")

    def query(sql: str, *_: object) -> list[tuple[str, ...]]:
        is_up = airflow.clock.now_ms() > first_end_s * 1000
        return [("success" if is_up else "queued",)] * 6 if sql.startswith("select r.state") else []

    monkeypatch.setattr(airflow, "query", query)
    steps = [demo.Step("dag", 0, 5 * DAY_MS)]
    if ends:
        assert demo._run_steps(Console(quiet=True), airflow, steps)
    else:
        with pytest.raises(EmbeddedAirflowError, match=r"(?s)0 of 6 dag runs of dag.*still importing"):
            demo._run_steps(Console(quiet=True), airflow, steps)


def test_a_backfill_without_a_dag_run_is_an_error() -> None:
    idle: Any = SimpleNamespace(kept=SimpleNamespace(check=lambda: None), clock=ManualClock(), query=lambda *_: [])
    with pytest.raises(EmbeddedAirflowError, match="made no dag run for backfill 7"):
        demo.follow(Console(file=io.StringIO()), idle, "dag", 7)


def test_the_demo_shows_its_results_by_commands(airflow: LocalAirflow, capsys: pytest.CaptureFixture[str]) -> None:
    """Each command is printed as a user types it, and none fails on the demo's shards."""
    first_ms = parse_time("2026-01-01")
    with open_location(airflow.location) as location:
        for shard in (demo.COLLECTION, demo.VIEW):
            for at in range(first_ms, first_ms + demo.DAYS * DAY_MS, DAY_MS):
                error = ("value", None, b"unreadable", at, 1)
                commit(PersistClient(location), shard, SCHEMA, at + DAY_MS, [((at, "fig"), at, 1)], [error])
    assert demo._print_results(Console(), airflow.location, first_ms) == 0
    shown = capsys.readouterr().out
    assert "$ persist snapshot customers --as-of 2026-01-03 --limit 12" in shown
    assert "$ persist changes regions --after 2026-01-07" in shown
    assert "fig" in shown
    assert "unreadable" in shown


def test_a_home_that_others_could_read_is_closed_to_them(airflow: LocalAirflow) -> None:
    airflow.home.chmod(0o755)
    airflow._make_home()
    assert airflow.home.stat().st_mode & 0o777 == 0o700


def test_stop_without_anything_recorded_does_nothing(airflow: LocalAirflow) -> None:
    assert airflow.stop() == []
    (airflow.home / "processes.json").write_text("not json")
    assert airflow.stop() == []


def test_a_busy_port_is_an_error_that_names_who_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`up` takes no other port, which no bookmark has. A connection that has ended does not make a port busy."""
    monkeypatch.chdir(tmp_path)
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setenv("AIRFLOW__API__PORT", str(port))
        assert main(["up"]) == 1
        error = capsys.readouterr().err
        with socket.create_connection(("127.0.0.1", port)), taken.accept()[0]:
            pass
    assert f"port {port} of 127.0.0.1 is taken by" in error
    assert f"(pid {os.getpid()}: " in error
    assert f"AIRFLOW__API__PORT={port + 1}" in error
    require_free(port, "")


@pytest.mark.parametrize("text", ["abc", "0", "70000", "9" * 5000])
def test_a_port_that_is_none_is_an_error(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AIRFLOW__API__PORT", text)
    assert main(["up"]) == 1
    assert f"AIRFLOW__API__PORT={text}: expected a port" in capsys.readouterr().err.replace("\n", "")


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


def test_a_step_of_the_clock_ends_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A virtual machine that goes on after a pause has one; then `down` found nothing, and all went on."""
    me = Process("me", os.getpid(), since_boot(os.getpid()))
    boot = psutil.boot_time()
    monkeypatch.setattr(psutil._psplatform, "boot_time", lambda: boot + 100)
    assert psutil.boot_time() == boot + 100
    assert me.alive() is not None


def test_it_has_the_location_of_persist_toml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`persist init` writes the file, and `persist run` beside this Airflow reads it."""
    monkeypatch.setenv(ENV_BLOB_URI, "mem:another")
    monkeypatch.setenv(ENV_CONSENSUS_URI, "mem:another")
    file = tmp_path / "persist.toml"
    file.write_text('blob_uri = "file:///data/blob"\nconsensus_uri = "sqlite:///consensus.db"\n')
    location = project_airflow(tmp_path).location
    assert location == location_from(env={}, config_file=file)
    assert (location.blob_uri, location.consensus_uri) == ("file:///data/blob", f"sqlite:///{tmp_path}/consensus.db")
    file.write_text('blob_uri = "file:///data/blob"\n')
    with pytest.raises(EmbeddedAirflowError, match="blob_uri is given but consensus_uri is not"):
        project_airflow(tmp_path)
    assert down(tmp_path) == 0, "what runs can be stopped"
    (tmp_path / "Makefile").touch()
    (tmp_path / "persist_core").mkdir()
    assert project_airflow(tmp_path).location == PersistLocation.in_folder(tmp_path / ".persist")


def test_the_demo_takes_no_folder_of_other_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "dags" / "collections").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert main(["demo"]) == 1
    assert "customers.yaml: no such file, and the demo runs it" in capsys.readouterr().err.replace("\n", "")


def test_an_unknown_command_prints_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["sideways"], ["up", "again"]):
        assert main(arguments) == 2
        assert "up|down|demo" in capsys.readouterr().err


SCRIPT = """
import signal, sys, time
from pathlib import Path
from persist_airflow.embedded.keeper import Program
from persist_airflow.embedded.home import LocalAirflow
from persist_core.location.settings import PersistLocation

class Sleeper(LocalAirflow):
    def start(self, components=()):
        self._make_home()
        self.kept.start(Program("scheduler", [sys.executable, "-c", "import time; time.sleep(60)"], {}))
        self.kept.wait_until(lambda: self.kept.named("scheduler") is not None, "scheduler", 30000)
        print(self.kept.named("scheduler").pid, flush=True)

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


@pytest.mark.family("Sparks")
def test_a_local_server_without_memory_ends() -> None:
    """Otherwise a JVM goes on in a state that no one knows, and its keeper sees nothing."""
    with contextmanager(spark_connect.running)({"spark.driver.memory": "512m"}) as server:
        fill = "import sys; from pyspark.sql import SparkSession as S; s = S.builder.remote(sys.argv[1]).getOrCreate();"
        fill += 's.range(1).selectExpr("length(repeat(cast(id as string), 1500000000))").collect()'
        client = subprocess.Popen([sys.executable, "-c", fill, server.url], stderr=subprocess.DEVNULL)
        try:
            wait_until(lambda: not accepts_connections(server.port), what="the end of the server", timeout_ms=300_000)
        finally:
            client.kill()  # it looks for the server for ten minutes
            client.wait()
