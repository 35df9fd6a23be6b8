"""An embedded Airflow: a home with a PostgreSQL, a scheduler and an API server on 127.0.0.1, kept running as one.

    LocalAirflow(home, dags, location)
        .start(...)     PostgreSQL, Spark, api-server, scheduler, more if asked; a keeper starts what dies again
        .troubles()     what does not do its work, and why
        .stop()         all of them, by pid and start time

For one machine: LocalExecutor. Nothing listens on any other interface. The process that starts it stops it: `with
airflow.running():` does so on every way out, Ctrl-C and SIGTERM included. The next start, or `down`, ends what a killed
starter left running.

With `has_spark` jobs share a Spark Connect server (`embedded.spark_connect`), which starts while the rest is
prepared. Without it, each job starts a Spark of its own.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from persist_airflow.embedded import EmbeddedAirflowError, keeper
from persist_airflow.embedded.keeper import KeptProcesses, Program, write_private
from persist_airflow.embedded.ports import accepts_connections, free_port, is_clone
from persist_airflow.embedded.postgres import ENVIRONMENT, LocalPostgres, as_ordinary_user
from persist_airflow.embedded.spark_connect import LocalSpark
from persist_core.clock import Clock, SystemClock
from persist_core.errors import PersistError
from persist_core.location.settings import CONFIG_FILE_NAME, PersistLocation, location_from

POSTGRES = "postgres"
SPARK = "spark-connect"
API_SERVER = "api-server"
SCHEDULER = "scheduler"
DAG_PROCESSOR = "dag-processor"
TRIGGERER = "triggerer"
HEADLESS = (API_SERVER, SCHEDULER)  # what running a backfill takes, in the order of their start
WITH_UI = (API_SERVER, SCHEDULER, DAG_PROCESSOR, TRIGGERER)
HEALTHY_TIMEOUT_MS = 240_000  # 12 s on an idle machine with 2 cores
DATABASE_TIMEOUT_MS = 60_000  # half a second on an idle machine; a recovery after kill -9 takes some
COMMAND_TIMEOUT_S = 300.0
_POLL_MS = 100
_REQUEST_TIMEOUT_S = 5
_LOG_CHARS = 4000  # of a log's end, in an error
PASSWORDS = "simple_auth_manager_passwords.json.generated"  # Airflow's name for it
_PORTS = "ports.json"
# The bundled DAGs, which start unpaused: the demo's, and the DAGs that keep shards in order. A user's own start paused.
BUNDLED = "^persist_(upsert__(customers|cities)|view__regions|maintenance|watch|actions)$"
_COMMANDS = """
import json, sys
from airflow.__main__ import main
for arguments in json.loads(sys.argv.pop()):
    sys.argv[1:] = arguments
    main()
"""

# Each task is a fork of the scheduler's worker: what is imported there is not imported again in every task.
_PRELOAD = """import sys
if "scheduler" in sys.argv:
    import persist_airflow.factory
    import persist_core.protocol.stages
"""
# What a job in the Spark Connect server needs: about 1.3 s of processor time, half of it for pandas.
_PRELOAD_SPARK = """    import persist_spark.merge
    import persist_spark.upsert.job
    import persist_spark.view.refresh
    import pyspark.sql.connect.session
"""


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

    def __post_init__(self) -> None:
        self.home, self.dags = self.home.absolute(), self.dags.absolute()
        self.kept = KeptProcesses(self.home, self.clock)
        ports = json.loads((self.home / _PORTS).read_text(encoding="utf-8")) if self.kept.is_running() else {}
        self.port = self.port or ports.get("port") or free_port()
        self._postgres = LocalPostgres(self.home, ports.get("postgres_port") or free_port())
        self._spark = LocalSpark(self.home, ports.get("spark_port") or free_port()) if self.has_spark else None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def logs(self) -> Path:
        """One file per process, and the tasks' logs below."""
        return self.home / "logs"

    def environment(self) -> dict[str, str]:
        """The environment of every process of this Airflow, on top of the caller's."""
        loopback = ",".join(filter(None, [os.environ.get("NO_PROXY"), "127.0.0.1,localhost"]))
        spark = self._spark if self.kept.named(SPARK) is not None else None  # jobs start their own without it
        return {
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.dags),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__PARALLELISM": "4",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": self._postgres.uri(),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC": self._postgres.uri(),
            "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(self.logs),
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.2",  # a hop from task to task takes about this long
            "AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "1",
            # Tasks of a scheduler that was killed start again 30 s after its last heartbeat, not minutes later.
            "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "10",
            "NO_PROXY": loopback,
            "no_proxy": loopback,
            **({} if spark is None else {"AIRFLOW_CONN_SPARK_DEFAULT": spark.connection()}),
            **self.location.to_env(),
            **self.settings,
        }

    def prepare(self) -> None:
        """Make the home, migrate its database, read the DAG files; the first time, unpause the bundled ones."""
        with self.database():
            self.migrate()
            stamp = self.home / "dags-read"
            unpause = [] if stamp.exists() else [("dags", "unpause", "--yes", "--treat-dag-id-as-regex", BUNDLED)]
            self.commands(("dags", "reserialize"), *unpause)
            stamp.touch()

    def migrate(self) -> None:
        """Make the home and migrate its database, once for each version of Airflow."""
        self._make_home()
        stamp, version = self._postgres.data / "persist-migrated-to", importlib.metadata.version("apache-airflow")
        if not stamp.exists() or stamp.read_text(encoding="utf-8") != version:
            self.command("db", "migrate")
            stamp.write_text(version, encoding="utf-8")

    def _make_home(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        self.home.chmod(0o700)  # also of an earlier release: logs and passwords are in it
        self.logs.mkdir(exist_ok=True)
        (self.home / "config").mkdir(exist_ok=True)
        (self.home / "config" / "airflow_local_settings.py").write_text(
            _PRELOAD + (_PRELOAD_SPARK if self.has_spark else "")
        )

    def command(self, *arguments: str) -> str:
        """Run `airflow ARGUMENTS` to its end; its output. Raises `EmbeddedAirflowError` with the end of that."""
        return self.python(f"airflow {' '.join(arguments)}", "-m", "airflow", *arguments)

    def commands(self, *commands: Sequence[str]) -> str:
        """As `command`, several in one process. Importing Airflow takes most of it."""
        named = "; ".join(f"airflow {' '.join(arguments)}" for arguments in commands)
        return self.python(named, "-c", _COMMANDS, json.dumps(commands))

    def python(self, what: str, *arguments: str) -> str:
        """Run `python ARGUMENTS` in this home to its end, as `command` does. `what` names it in the error."""
        with self.database():
            done = subprocess.run(
                [sys.executable, *arguments],
                env={**os.environ, **self.environment()},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=COMMAND_TIMEOUT_S,
                check=False,
            )
        if done.returncode:
            raise EmbeddedAirflowError(f"{what}: exit code {done.returncode}\n{done.stdout[-_LOG_CHARS:]}")
        return done.stdout

    @contextlib.contextmanager
    def database(self) -> Iterator[None]:
        """Its PostgreSQL runs in the body; it stops afterwards if it did not run before."""
        if self.kept.is_running():
            yield
            return
        with self.stopping():
            self.launch_database()
            yield

    def start(self, components: Sequence[str] = HEADLESS, *, reads_dags: bool = False) -> None:
        """Start the processes and stop first what an earlier start left running.

        Raises `EmbeddedAirflowError` if a process was given up or does not become healthy; then everything is stopped
        again.
        """
        self.stop()
        try:
            self.launch_database()
            self.launch_spark()
            self.prepare() if reads_dags else self.migrate()
            self.launch(components)
        except BaseException:
            self.stop()
            raise

    def launch_database(self) -> None:
        """Start the keeper, and PostgreSQL as the first process that it keeps, and wait for it. Nothing may run yet."""
        self._make_home()
        self._postgres.prepare()
        ports = {"port": self.port, "postgres_port": self._postgres.port}
        write_private(self.home / _PORTS, ports | ({"spark_port": self._spark.port} if self._spark else {}))
        options = {"cwd": str(self._postgres.data), **as_ordinary_user()}
        # SIGINT ends its sessions; SIGTERM would wait for them.
        self.kept.start(Program(POSTGRES, self._postgres.command(), ENVIRONMENT, options, signal.SIGINT))
        self.kept.wait_until(lambda: bool(self.kept.all()) and self._postgres.answers(), POSTGRES, DATABASE_TIMEOUT_MS)

    def launch_spark(self) -> None:
        """Start the Spark Connect server, if this Airflow has one. Jobs wait for it by themselves."""
        if self._spark is not None:
            self.kept.add(Program(SPARK, self._spark.command(), self._spark.environment()))
            self.kept.wait_until(lambda: self.kept.named(SPARK) is not None, SPARK, HEALTHY_TIMEOUT_MS)

    def launch(self, components: Sequence[str] = HEADLESS) -> None:
        """Start processes that do not run yet: the API server, and the others when it answers.

        Tasks report to the API server; if the scheduler started them earlier, their first tries would fail. Raises
        `EmbeddedAirflowError` if a process was given up or does not become healthy; the caller stops what runs.
        """
        defers = {"AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE": str(TRIGGERER in components)}
        environment = {**defers, **self.environment()}
        for name in components:
            arguments = self._arguments(name, headless=DAG_PROCESSOR not in components)
            self.kept.add(Program(name, [sys.executable, "-m", "airflow", *arguments], environment))
            if name == API_SERVER:
                self.kept.wait_until(lambda: self._get("/execution/health") is not None, name, HEALTHY_TIMEOUT_MS)

    def _arguments(self, name: str, *, headless: bool) -> list[str]:
        if name == API_SERVER:
            only = ["--apps", "execution"] if headless else []
            return [name, "--host", "127.0.0.1", "--port", str(self.port), "--workers", "1", *only]
        # Logs are read from the shared folder; the log servers would listen on every interface.
        return [name, "--skip-serve-logs"] if name in (SCHEDULER, TRIGGERER) else [name]

    def _get(self, path: str) -> bytes | None:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with contextlib.suppress(OSError), opener.open(f"{self.url}{path}", timeout=_REQUEST_TIMEOUT_S) as answer:
            body: bytes = answer.read()
            return body
        return None

    def troubles(self) -> dict[str, str]:
        """Processes that do not do their work, and why; empty if all is well. It takes the UI's API server."""
        if not self.kept.is_running():
            return {"keeper": "it has ended, and nothing starts again what dies"}
        components = json.loads(self._get("/api/v2/monitor/health") or b"{}")
        works: dict[str, Callable[[], bool]] = {
            POSTGRES: self._postgres.answers,
            SPARK: lambda: self._spark is None or accepts_connections(self._spark.port),
            API_SERVER: lambda: bool(components),
        }
        found = {}
        for process in self.kept.all():
            beats = components.get(process.name.replace("-", "_"), {"status": "healthy"})
            if process.state != keeper.RUNS:
                found[process.name] = f"{process.state}: {process.reason}"
            elif process.name in works and not works[process.name]():
                found[process.name] = "it does not answer"
            elif beats["status"] != "healthy":
                found[process.name] = "it shows no heartbeat"
        return found

    def wait_until_healthy(self, timeout_ms: int = HEALTHY_TIMEOUT_MS) -> dict[str, str]:
        """Wait until there are no `troubles`, one is for good, or the time has passed; the remaining ones."""
        deadline_ms = self.clock.now_ms() + timeout_ms
        while (found := self.troubles()) and self.clock.now_ms() < deadline_ms:
            if any(process.state == keeper.GIVEN_UP for process in self.kept.all()):
                break
            self.clock.sleep_ms(_POLL_MS)
        return found

    def stop(self) -> list[str]:
        """End everything that runs in this home; names of the processes ended."""
        names = self.kept.stop()
        self._postgres.remove_programs()
        return names

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

    def query(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Rows of the metadata database: this process need not import Airflow."""
        with self.database(), self._postgres.connect() as connection:
            return connection.execute(sql.encode(), parameters or None).fetchall()

    def passwords(self) -> dict[str, str]:
        """The UI's users and their passwords, which Airflow draws when its API server first starts."""
        with contextlib.suppress(OSError, ValueError):
            found: dict[str, str] = json.loads((self.home / PASSWORDS).read_text(encoding="utf-8"))
            return found
        return {}


def project_airflow(
    root: Path, *, port: int = 0, settings: Mapping[str, str] | None = None, is_used: bool = True
) -> LocalAirflow:
    """The embedded Airflow of a folder: home `.airflow`, DAGs `dags`, the rest in `.cache`.

    `is_used`: its tables are. What runs can be stopped with a wrong `persist.toml` too.
    """
    root = root.absolute()
    location = _location_of(root) if is_used else PersistLocation.in_folder(root / ".persist")
    return LocalAirflow(root / ".airflow", root / "dags", location, settings or {}, port, has_spark=True)


def _location_of(root: Path) -> PersistLocation:
    """By its `persist.toml`, as for the command line there; else `.persist`. A clone has `.persist`: its bundled DAGs
    start unpaused, and must not write to other tables. Nor does the caller's environment count."""
    file = root / CONFIG_FILE_NAME
    if is_clone(root) or not file.is_file():
        return PersistLocation.in_folder(root / ".persist")
    try:
        return location_from(env={}, config_file=file)
    except PersistError as error:
        raise EmbeddedAirflowError(str(error)) from error
