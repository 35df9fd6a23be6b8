"""A real Spark standalone cluster for tests, from the installed pyspark: one master, two workers of one core each.

    spark_cluster -> master --register-- worker on 127.0.0.1, worker on localhost --> spark-submit --master spark://...

Two hosts, since Spark starts a speculative attempt only on a host that has no attempt of that task; two names of this
machine are two hosts to it. The workers get no AWS variables: executors have to be given their credentials by the
driver, as on other machines. A worker that dies comes back, as under a supervisor.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from persist_core.clock import SystemClock
from persist_core.spark_job.installation import spark_environment, spark_home
from persist_core.spark_job.process import SMALL_JVM
from tests import real_parts

HOSTS = ("127.0.0.1", "localhost")
REGISTERED = "Registering worker"  # as the log of the master says it
START_MS = 120_000  # three JVMs on a busy machine
POLL_MS = 100
_SUPERVISED = ["bash", "-c", 'until "$@"; do sleep 0.2; done', "-"]
STOP_S = 10.0
_JVM = " ".join(SMALL_JVM)
# Settings that make a job small enough for two workers beside it; `spark.driver.host` is where executors call back.
CONF = {
    "spark.executor.memory": "640m",
    "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": _JVM,
    "spark.driver.memory": "640m",
    "spark.driver.extraJavaOptions": _JVM,
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
}


@dataclass(frozen=True)
class SparkCluster:
    """A cluster that runs, and where its logs are."""

    master: str
    folder: Path


@pytest.fixture(scope="session")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """One cluster for all tests that need one."""
    with running(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@contextmanager
def running(folder: Path) -> Iterator[SparkCluster]:
    """The cluster, up until the context ends. Raises `RuntimeError` with the end of a log if it does not start."""
    home = spark_home(os.environ)
    assert home is not None
    port = _free_port()
    master = f"spark://{HOSTS[0]}:{port}"
    with ExitStack() as stack:
        deploy = "org.apache.spark.deploy"
        arguments = ["--host", HOSTS[0], "--port", str(port), "--webui-port", "0"]
        log = stack.enter_context(_daemon(home, folder, "master", f"{deploy}.master.Master", arguments))
        _wait_for(log, "I have been elected leader", 1)
        for number, host in enumerate(HOSTS):
            work = folder / f"work-{number}"
            arguments = ["--host", host, "--webui-port", "0", "--cores", "1", "--memory", "1g", "--work-dir", str(work)]
            name = f"{deploy}.worker.Worker"
            stack.enter_context(_daemon(home, folder, f"worker-{number}", name, [*arguments, master], _SUPERVISED))
        _wait_for(log, REGISTERED, len(HOSTS))
        real_parts.used("Spark cluster", f"standalone, {len(HOSTS)} workers")
        yield SparkCluster(master, folder)


@contextmanager
def _daemon(
    home: Path, folder: Path, log_name: str, name: str, arguments: list[str], supervisor: Sequence[str] = ()
) -> Iterator[Path]:
    """One of Spark's daemons, ended with the context; its log."""
    log = folder / f"{log_name}.log"
    command = [*supervisor, str(home / "bin" / "spark-class"), name, *arguments]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env={**_environment(home), "SPARK_LOCAL_DIRS": str(folder / "local")},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield log
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(STOP_S)


def _environment(home: Path) -> Mapping[str, str]:
    without_aws = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    daemon = {
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": HOSTS[0],
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": _JVM,
    }
    return {**without_aws, **spark_environment(os.environ), **daemon}


def _wait_for(log: Path, text: str, times: int) -> None:
    clock = SystemClock()
    deadline_ms = clock.now_ms() + START_MS
    while clock.now_ms() < deadline_ms:
        if log.read_text(errors="replace").count(text) >= times:
            return
        clock.sleep_ms(POLL_MS)
    raise RuntimeError(f"{log.name} did not say {text!r} {times} times:\n{log.read_text(errors='replace')[-4000:]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOSTS[0], 0))
        port: int = probe.getsockname()[1]
    return port
