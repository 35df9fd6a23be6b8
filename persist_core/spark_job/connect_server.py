"""Run a Spark Connect server that lasts: it ends between two jobs when its heap is full or it is old.

    who starts it again (the keeper, Docker, Kubernetes) ──> this process ──> spark-submit ... SparkConnectServer
        '── exit status 0 <── asks it to end <── its heap after a collection, its age, its open connections

    python -m persist_core.spark_job.connect_server [--heap 75] [--hours 24] -- [options of spark-submit]

A server keeps something of each session: classes, plans, metrics. Clients wait for the next server, and a job whose
server has ended is done again (`persist_core.errors.ServerLost`).
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from persist_core.clock import Clock, SystemClock
from persist_core.spark_job.installation import OF_MANY_JOBS, find_spark_submit, locale_of_java
from persist_core.time_text import HOUR_MS

_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
PORT, HEAP_PERCENT, HOURS = 15002, 75, 24
_PORT_SETTING = "spark.connect.grpc.binding.port"
PATIENCE_MS = HOUR_MS // 4  # a full heap is not waited with for longer: it would fill up and end in the middle of jobs
_LOOK_MS = 2_000
_METRICS_S = 30
_STOP_S = 30.0  # then by force
_ESTABLISHED = "01"  # of Linux's tables of connections
_PR_SET_PDEATHSIG = 1  # of Linux's prctl
_SINK = "spark.metrics.conf.driver.sink.csv"


@dataclass(frozen=True)
class Limits:
    """Limits of a server: the part of its heap that is in use after a collection, and its age."""

    heap: float
    age_ms: int

    def reached(self, heap: float, age_ms: int, full_ms: int, connections: int | None) -> str | None:
        """Why to end the server now; `None` to let it run.

        `full_ms` is for how long the heap has been over its limit, `connections` how many clients it has (`None`: not
        known).
        """
        if heap > self.heap and (connections == 0 or full_ms > PATIENCE_MS):
            return f"{heap:.0%} of its heap is in use after a collection, more than {self.heap:.0%}"
        if age_ms > self.age_ms and connections == 0:
            return f"it is older than {self.age_ms // HOUR_MS} h"
        return None


class Heap:
    """The server's heap, by the files that Spark's CSV sink writes into `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.used = 0.0

    def conf(self) -> dict[str, str]:
        return {
            "spark.metrics.conf.driver.source.jvm.class": "org.apache.spark.metrics.source.JvmSource",
            f"{_SINK}.class": "org.apache.spark.metrics.sink.CsvSink",
            f"{_SINK}.directory": str(self._folder),
            f"{_SINK}.period": str(_METRICS_S),
        }

    def look(self) -> float:
        """The part of the heap that was in use after the newest collection; 0 before the first one."""
        limit = self._newest("*.driver.jvm.heap.max.csv")
        if limit > 0:
            self.used = self._newest("*.driver.jvm.pools.*.used-after-gc.csv") / limit
            for path in self._folder.glob("*.csv"):  # Spark begins new ones
                path.unlink()
        return self.used

    def _newest(self, pattern: str) -> float:
        """The sum of the last values of these files: each line is a time and a value."""
        total = 0.0
        for path in self._folder.glob(pattern):
            with suppress(ValueError):  # only its header so far
                total += float(path.read_text(encoding="utf-8").rstrip().rpartition(",")[2])
        return total


def connections_of(port: int) -> int | None:
    """How many connections a port of this machine or container has; `None` if it is not Linux."""
    tables = [path for path in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")) if path.exists()]
    rows = [line.split() for path in tables for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    mine = [row for row in rows if row[1].endswith(f":{port:04X}") and row[3] == _ESTABLISHED]
    return len(mine) if tables else None


def watch(process: subprocess.Popen[bytes], limits: Limits, heap: Heap, port: int, clock: Clock) -> str | None:
    """Return once the process has ended (`None`), or should end: why."""
    started_ms = full_since_ms = clock.now_ms()
    while process.poll() is None:
        now_ms, used = clock.now_ms(), heap.look()
        full_since_ms = full_since_ms if used > limits.heap else now_ms
        why = limits.reached(used, now_ms - started_ms, now_ms - full_since_ms, connections_of(port))
        if why is not None:
            return why
        clock.sleep_ms(_LOOK_MS)
    return None


def main(arguments: Sequence[str], clock: Clock) -> int:
    """Run the server to its end; its exit status, 0 if it was ended here."""
    parser = argparse.ArgumentParser(prog="connect_server", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--port", type=int, default=PORT, help=f"default {PORT}")
    parser.add_argument("--heap", type=int, default=HEAP_PERCENT, help=f"percent, default {HEAP_PERCENT}")
    parser.add_argument("--hours", type=int, default=HOURS, help=f"its age, default {HOURS}")
    parser.add_argument("options", nargs="*", help="options of spark-submit, after --")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="persist-", ignore_cleanup_errors=True) as folder:
        heap = Heap(Path(folder))
        conf = {**OF_MANY_JOBS, **heap.conf(), _PORT_SETTING: str(given.port)}
        options = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
        submit = str(find_spark_submit(os.environ))
        command = [submit, "--class", _SERVER, *options, *given.options, "spark-internal"]
        environment = {**os.environ, **locale_of_java()}
        with subprocess.Popen(command, env=environment, preexec_fn=_end_with_parent) as process:
            for kind in (signal.SIGTERM, signal.SIGINT):
                signal.signal(kind, lambda number, _: process.send_signal(number))
            why = watch(process, Limits(given.heap / 100, given.hours * HOUR_MS), heap, given.port, clock)
            if why is None:
                return process.returncode if process.returncode >= 0 else 128 - process.returncode
            sys.stderr.write(f"the server ends, to be started again: {why}\n")
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_S)
            process.kill()
    return 0


def _end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], SystemClock()))
