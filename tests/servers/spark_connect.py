"""A real Spark Connect server for tests, as the embedded Airflow starts it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from persist_airflow.embedded.ports import accepts_connections, free_port
from persist_airflow.embedded.spark_connect import LocalSpark
from tests import real_parts
from tests.servers.lifeline import ServerFolder, end, family, wait_until

_START_TIMEOUT_MS = 120_000


@dataclass(frozen=True)
class ConnectServer:
    """A server that runs. `kill` is how a machine ends it, `stop` how its owner does; both start it again. `jvm`: its
    process."""

    port: int
    token: str
    kill: Callable[[], None]
    stop: Callable[[], None]
    jvm: Callable[[], int]

    @property
    def url(self) -> str:
        """For clients of this machine."""
        return self.url_with(self.token)

    def url_with(self, token: str) -> str:
        """The server's URL with another token."""
        return f"sc://localhost:{self.port}/;token={token}"


def running(conf: Mapping[str, str] | None = None) -> Iterator[ConnectServer]:
    """Start one, with these settings too; it ends with the generator, or with the test session."""
    folder = ServerFolder("spark-connect")
    local = LocalSpark(folder.path, free_port())
    command = [*local.command(), *(part for pair in (conf or {}).items() for part in ("--conf", "=".join(pair)))]
    environment = {**os.environ, **local.environment()}  # as it is now: a job changes it
    started: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        with (folder.path / "log").open("ab") as log:
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        started.append(process)
        (folder.path / "spark.pid").write_text(f"{process.pid}\n")

    def kill() -> None:
        for pid in family(started[-1].pid)[::-1]:
            os.kill(pid, signal.SIGKILL)
        started[-1].wait()
        start()

    def stop() -> None:
        started[-1].terminate()
        started[-1].wait()
        start()

    def jvm() -> int:
        parent = started[-1].pid
        return next(pid for pid in family(parent) if pid != parent)

    start()
    try:
        up = f"Spark Connect on port {local.port}"
        wait_until(lambda: accepts_connections(local.port), what=up, timeout_ms=_START_TIMEOUT_MS)
        real_parts.used("Spark Connect server", "local[*], with a token")
        token = json.loads(local.connection())["password"]
        yield ConnectServer(local.port, token, kill, stop, jvm)
    finally:
        end(started[-1], signal.SIGTERM)
        folder.remove()
