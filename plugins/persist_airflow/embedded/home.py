"""An embedded Airflow: a home folder, a scheduler and an API server on 127.0.0.1, started and stopped as one.

    LocalAirflow(home, dags, location)
        .prepare()   make the home, migrate its database, read the DAG files
        .start(...)  api-server, then scheduler, more if asked   -> <home>/processes.json
        .check()     all of them are alive
        .stop()      the processes named there, by pid and start time

For one machine: SQLite, LocalExecutor. Nothing listens on any other interface. The process that starts it stops it:
`with airflow.running():` does so on every way out, Ctrl-C and SIGTERM included. The next start, or `down`, ends what a
killed starter left running, which it finds in `processes.json`.

With `has_spark` jobs share a Spark Connect server (`embedded.spark_connect`), which starts while the rest is
prepared. Without it, each job starts a Spark of its own.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from persist_airflow.class_data import FOLDER_ENV
from persist_airflow.embedded.spark_connect import LocalSpark
from persist_core.clock import Clock, SystemClock
from persist_core.errors import PersistError
from persist_core.location.settings import PersistLocation

psutil: Any = importlib.import_module("psutil")  # comes with Airflow, without types

SPARK = "spark-connect"
API_SERVER = "api-server"
HEADLESS = (API_SERVER, "scheduler")  # what running a backfill takes, in the order of their start
TRIGGERER = "triggerer"
WITH_UI = (API_SERVER, "scheduler", "dag-processor", TRIGGERER)
HEALTHY_TIMEOUT_MS = 240_000  # 12 s on an idle machine with 2 cores
STOP_TIMEOUT_S = 4.0  # then by force: a scheduler waits for its tasks, an API server for open connections
KILL_TIMEOUT_S = 10.0
COMMAND_TIMEOUT_S = 300.0
UI_PORT = 8080
PASSWORDS = "simple_auth_manager_passwords.json.generated"  # Airflow's name for it

# Each task is a fork of the scheduler's worker: what is imported there is not imported again in every task.
_PRELOAD = """import sys
if "scheduler" in sys.argv:
    import persist_airflow.factory
    import persist_core.protocol.stages
"""
# What a job in the Spark Connect server needs: about 1.3 s of processor time, half of it for pandas.
_PRELOAD_SPARK = """    import persist_spark.merge.job
    import persist_spark.upsert.job
    import persist_spark.view.job
    import pyspark.sql.connect.session
"""


class EmbeddedAirflowError(PersistError):
    """A process of the embedded Airflow failed; the message has the end of its output. Everything is stopped again."""

    kind = "embedded_airflow"


@dataclass
class LocalAirflow:
    """One embedded Airflow. `settings` are further environment variables, which go over those made here."""

    home: Path
    dags: Path
    location: PersistLocation
    settings: Mapping[str, str] = field(default_factory=dict)
    port: int = 0
    has_spark: bool = False
    clock: Clock = field(default_factory=SystemClock)
    _children: list[subprocess.Popen[bytes]] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        self.home, self.dags = self.home.absolute(), self.dags.absolute()
        ports = self._ports() if self.is_running() else {}
        self.port = self.port or ports.get("port") or free_port()
        self._spark = LocalSpark(self.home, ports.get("spark_port") or free_port()) if self.has_spark else None

    @property
    def url(self) -> str:
        """Where the API server listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def logs(self) -> Path:
        """One file per process, and the tasks' logs below."""
        return self.home / "logs"

    def environment(self) -> dict[str, str]:
        """What every process of this Airflow needs in its environment, on top of the caller's."""
        loopback = ",".join(filter(None, [os.environ.get("NO_PROXY"), "127.0.0.1,localhost"]))
        return {
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.dags),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__PARALLELISM": "4",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self.home}/airflow.db",
            "AIRFLOW__DATABASE__LOAD_DEFAULT_CONNECTIONS": "False",  # its spark_default means YARN
            "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(self.logs),
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.2",  # a hop from task to task takes about this long
            "AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "1",
            "NO_PROXY": loopback,
            "no_proxy": loopback,
            FOLDER_ENV: str(self.home / "class-data"),
            **self._spark_connection(),
            **self.location.to_env(),
            **self.settings,
        }

    def _spark_connection(self) -> dict[str, str]:
        """The connection to the Spark Connect server while it runs; without it jobs start a Spark of their own."""
        is_there = any(entry["name"] == SPARK and _alive(entry) is not None for entry in self._recorded())
        return {"AIRFLOW_CONN_SPARK_DEFAULT": self._spark.connection()} if self._spark and is_there else {}

    def prepare(self) -> None:
        """Make the home, migrate its database, read the DAG files."""
        self.migrate()
        self.command("dags", "reserialize")

    def migrate(self) -> None:
        """Make the home and migrate its database, once for each version of Airflow."""
        self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.logs.mkdir(exist_ok=True)
        (self.home / "config").mkdir(exist_ok=True)
        (self.home / "config" / "airflow_local_settings.py").write_text(
            _PRELOAD + (_PRELOAD_SPARK if self.has_spark else "")
        )
        stamp, version = self.home / "migrated-to", importlib.metadata.version("apache-airflow")
        if not stamp.exists() or stamp.read_text() != version:
            self.command("db", "migrate")
            stamp.write_text(version)

    def command(self, *arguments: str, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
        """Run `airflow ARGUMENTS` to its end; its output. Raises `EmbeddedAirflowError` with the end of that."""
        return self.python(f"airflow {' '.join(arguments)}", "-m", "airflow", *arguments, timeout_s=timeout_s)

    def python(self, what: str, *arguments: str, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
        """Run `python ARGUMENTS` in this home to its end, as `command` does. `what` names it in the error."""
        done = subprocess.run(
            [sys.executable, *arguments],
            env={**os.environ, **self.environment()},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if done.returncode:
            raise EmbeddedAirflowError(f"{what}: exit code {done.returncode}\n{done.stdout[-4000:]}")
        return done.stdout

    def start(self, components: Sequence[str] = HEADLESS) -> None:
        """Start the processes and stop first what an earlier start left running.

        Raises `EmbeddedAirflowError` if a process dies or does not become healthy; then everything is stopped again.
        """
        self.stop()
        try:
            self.launch_spark()
            self.launch(components)
        except BaseException:
            self.stop()
            raise

    def launch_spark(self) -> None:
        """Start the Spark Connect server, if this Airflow has one. Jobs wait for it by themselves."""
        if self._spark is not None:
            self._spawn(SPARK, self._spark.command(), self._spark.environment())

    def launch(self, components: Sequence[str] = HEADLESS) -> None:
        """Start processes beside those that run: the API server, and the others when it answers.

        Tasks report to the API server; if the scheduler started them earlier, their first tries would fail. Raises
        `EmbeddedAirflowError` if a process dies or does not become healthy; the caller stops what runs.
        """
        defers = {"AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE": str(TRIGGERER in components)}
        for name in components:
            arguments = self._arguments(name, headless="dag-processor" not in components)
            self._spawn(name, [sys.executable, "-m", "airflow", *arguments], {**defers, **self.environment()})
            if name == API_SERVER:
                self._wait_until_healthy(f"{self.url}/execution/health")

    def _spawn(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start one process, and write down that it is ours."""
        self.logs.mkdir(parents=True, exist_ok=True)
        with (self.logs / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches us alone, and we stop them in order
            )
        self._children.append(process)
        started = {"name": name, "pid": process.pid, "created": psutil.Process(process.pid).create_time()}
        ports = {"port": self.port, "spark_port": self._spark.port if self._spark else None}
        recorded = {**ports, "processes": [*self._recorded(), started]}
        self._processes_file.write_text(json.dumps(recorded))

    def _arguments(self, name: str, *, headless: bool) -> list[str]:
        if name == API_SERVER:
            only = ["--apps", "execution"] if headless else []
            return [name, "--host", "127.0.0.1", "--port", str(self.port), "--workers", "1", *only]
        # Logs are read from the shared folder; the log servers would listen on every interface.
        return [name, "--skip-serve-logs"] if name in ("scheduler", TRIGGERER) else [name]

    def _wait_until_healthy(self, url: str) -> None:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        deadline_ms = self.clock.now_ms() + HEALTHY_TIMEOUT_MS
        while self.clock.now_ms() < deadline_ms:
            with contextlib.suppress(OSError), opener.open(url, timeout=5) as answer:
                if answer.status == 200:
                    return
            self.check()
            self.clock.sleep_ms(100)
        raise EmbeddedAirflowError(f"{url} does not answer after {HEALTHY_TIMEOUT_MS} ms:\n{self.log_tail(API_SERVER)}")

    def check(self) -> None:
        """Raise `EmbeddedAirflowError` with the end of its log if a process has died."""
        dead = [process["name"] for process in self._recorded() if _alive(process) is None]
        if dead:
            raise EmbeddedAirflowError(f"{dead[0]} has ended unexpectedly:\n{self.log_tail(dead[0])}")

    def log_tail(self, name: str) -> str:
        """The end of a process's log, for error messages."""
        with contextlib.suppress(OSError):
            return (self.logs / f"{name}.log").read_text(errors="replace")[-4000:]
        return ""

    def stop(self) -> list[str]:
        """End what `processes.json` names and everything that descends from it; names of the processes ended.

        A pid that meanwhile belongs to another process (its start time differs) is left alone.
        """
        living = [(entry["name"], process) for entry in self._recorded() if (process := _alive(entry)) is not None]
        _end_trees([process for _, process in living])
        for child in self._children:
            child.poll()  # already reaped: this only lets Python forget it
        self._children.clear()
        self._processes_file.unlink(missing_ok=True)
        return [name for name, _ in living]

    @contextlib.contextmanager
    def running(self, components: Sequence[str] = HEADLESS) -> Iterator[LocalAirflow]:
        """Start, and stop on every way out; SIGTERM becomes an ordinary exit meanwhile."""
        with self.stopping():
            self.start(components)
            yield self

    @contextlib.contextmanager
    def stopping(self) -> Iterator[LocalAirflow]:
        """Stop what the body launches on every way out of it, and before it what an earlier start left behind."""
        before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        try:
            self.stop()
            yield self
        finally:
            self.stop()
            signal.signal(signal.SIGTERM, before)

    @property
    def _processes_file(self) -> Path:
        return self.home / "processes.json"

    def _recorded(self) -> list[dict[str, Any]]:
        try:
            recorded: list[dict[str, Any]] = json.loads(self._processes_file.read_text())["processes"]
        except (OSError, ValueError, KeyError):
            return []
        return recorded

    def recorded_pids(self) -> list[int]:
        """The pids of the processes that were started."""
        return [entry["pid"] for entry in self._recorded()]

    def query(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Rows of the metadata database, read from its file: this process need not import Airflow."""
        uri = f"file:{self.home}/airflow.db?mode=ro"
        with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=30)) as database:
            return database.execute(sql, parameters).fetchall()

    def is_running(self) -> bool:
        """True if at least one recorded process lives."""
        return any(_alive(entry) is not None for entry in self._recorded())

    def passwords(self) -> dict[str, str]:
        """The UI's users and their passwords, which Airflow draws when its API server first starts."""
        with contextlib.suppress(OSError, ValueError):
            found: dict[str, str] = json.loads((self.home / PASSWORDS).read_text())
            return found
        return {}

    def _ports(self) -> dict[str, int]:
        """Where the processes that run listen, as their starter wrote it down."""
        ports: dict[str, int] = json.loads(self._processes_file.read_text())
        return {name: port for name, port in ports.items() if name in ("port", "spark_port") and port}


def free_port(preferred: int = 0) -> int:
    """`preferred` if it is free on 127.0.0.1, else one that is."""
    for port in (preferred, 0):
        with contextlib.suppress(OSError), socket.socket() as listener:
            listener.bind(("127.0.0.1", port))
            found: int = listener.getsockname()[1]
            return found
    raise EmbeddedAirflowError("no free port on 127.0.0.1")


def _alive(entry: Mapping[str, Any]) -> Any:
    """The `psutil.Process` that was recorded, `None` if it has ended or its pid belongs to another one by now."""
    try:
        process = psutil.Process(entry["pid"])
        same = abs(process.create_time() - entry["created"]) < 1 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return None
    return process if same else None


def _end_trees(processes: Sequence[Any]) -> None:
    """Ask the processes to stop, then kill them and whatever descends from them."""
    family = {*processes, *_descendants(processes)}
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    psutil.wait_procs(processes, timeout=STOP_TIMEOUT_S)
    family |= _descendants(processes)
    for member in family:
        with contextlib.suppress(psutil.Error):
            member.kill()
    psutil.wait_procs(list(family), timeout=KILL_TIMEOUT_S)


def _descendants(processes: Sequence[Any]) -> set[Any]:
    found: set[Any] = set()
    for process in processes:
        with contextlib.suppress(psutil.Error):
            found.update(process.children(recursive=True))
    return found


def project_airflow(root: Path, *, port: int = 0, settings: Mapping[str, str] | None = None) -> LocalAirflow:
    """The embedded Airflow of a clone: home `.airflow`, DAGs `dags`, location `.persist`, the rest in `.cache`."""
    data, root = root.absolute() / ".persist", root.absolute()
    location = PersistLocation(f"file://{data / 'blob'}", f"sqlite:///{data / 'consensus.db'}")
    cache = {FOLDER_ENV: str(root / ".cache" / "class-data")}
    return LocalAirflow(root / ".airflow", root / "dags", location, {**cache, **(settings or {})}, port, has_spark=True)
