"""A Spark Connect server is ended between jobs when its heap is full or it is old; another program stands for it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from persist_core.spark_job import connect_server
from persist_core.spark_job.connect_server import PATIENCE_MS, Heap, Limits, connections_of
from persist_core.time_text import HOUR_MS

LIMITS = Limits(heap=0.75, age_ms=24 * HOUR_MS)
TABLES = Path("/proc/net/tcp")


@pytest.mark.parametrize(
    ("heap", "age_ms", "full_ms", "connections", "says"),
    [
        (0.75, 24 * HOUR_MS, 0, 0, None),
        (0.76, 0, 0, 0, "76% of its heap is in use after a collection, more than 75%"),
        (0.76, 0, PATIENCE_MS, 1, None),
        (0.76, 0, PATIENCE_MS + 1, 1, "76% of its heap"),
        (0.76, 0, PATIENCE_MS + 1, None, "76% of its heap"),
        (0.1, 24 * HOUR_MS + 1, 0, 0, "it is older than 24 h"),
        (0.1, 48 * HOUR_MS, 0, 1, None),
        (0.1, 48 * HOUR_MS, 0, None, None),
    ],
)
def test_what_ends_a_server(heap: float, age_ms: int, full_ms: int, connections: int | None, says: str | None) -> None:
    """A full heap between jobs, and after a while in the middle of them; age only between jobs."""
    why = LIMITS.reached(heap, age_ms, full_ms, connections)
    assert (why or "").startswith(says or "")
    assert (why is None) == (says is None)


def test_the_heap_is_read_from_sparks_metrics(tmp_path: Path) -> None:
    heap = Heap(tmp_path)
    assert heap.look() == 0
    rows = {"heap.max": 1000, "pools.Tenured-Gen.used-after-gc": 700, "pools.Survivor-Space.used-after-gc": 60}
    for name, value in rows.items():
        (tmp_path / f"local-1.driver.jvm.{name}.csv").write_text(f"t,value\n1700000000,5\n1700000030,{value}\n")
    (tmp_path / "local-1.driver.jvm.pools.Eden-Space.used-after-gc.csv").write_text("t,value\n")
    assert heap.look() == 0.76
    assert list(tmp_path.iterdir()) == [], "what was read does not pile up"
    assert heap.look() == 0.76, "until Spark writes the next values"


@pytest.mark.skipif(not TABLES.exists(), reason="needs Linux's tables of connections")
def test_the_connections_of_a_port_are_counted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert connections_of(port) == 0
        with socket.create_connection(("127.0.0.1", port)), server.accept()[0]:
            assert connections_of(port) == 1
        assert connections_of(port) == 0


FAKE = """#!/bin/sh
'''exec' "{python}" "$0" "$@"
'''
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
given = dict(each.split("=", 1) for each in sys.argv if "=" in each)
folder = pathlib.Path(given["spark.metrics.conf.driver.sink.csv.directory"])
for name, value in (("heap.max", 100), ("pools.Tenured-Gen.used-after-gc", {used})):
    (folder / f"app.driver.jvm.{{name}}.csv").write_text(f"t,value\\n1,{{value}}\\n")
print("runs", given["spark.connect.grpc.binding.port"], given.get("spark.x"), flush=True)
time.sleep(120)
"""


@pytest.mark.parametrize(("used", "code"), [(90, 0), (10, 143)])
def test_a_server_ends_if_its_heap_is_full_or_by_a_signal(tmp_path: Path, used: int, code: int) -> None:
    script = tmp_path / "bin" / "spark-submit"
    script.parent.mkdir()
    script.write_text(FAKE.format(python=sys.executable, used=used))
    script.chmod(0o755)
    command = [sys.executable, "-m", connect_server.__name__, "--port", "1", "--", "--conf", "spark.x=y"]
    environment = {**os.environ, "SPARK_HOME": str(tmp_path)}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "runs 1 y\n"
            if code:
                process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == code
    assert ("90% of its heap is in use" in said) is (code == 0)
