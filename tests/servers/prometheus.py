"""A real Prometheus, and the StatsD exporter in front of it, as docker/compose.yaml starts them.

    lines --UDP--> statsd_exporter (docker/metrics/statsd.yaml) --+
    a file of `persist metrics` --HTTP----------------------------+--scraped--> Prometheus --PromQL--> values

Prometheus is Debian's package, taken from PATH; `make statsd-exporter` builds the exporter. A test that needs one that
is missing is skipped, and the session's summary names it.
"""

from __future__ import annotations

import functools
import http.server
import json
import shutil
import socket
import subprocess
import threading
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from persist_airflow.embedded.ports import free_port
from persist_core.clock import SystemClock
from tests import real_parts

ROOT = Path(__file__).resolve().parents[2]
MAPPING = ROOT / "docker" / "metrics" / "statsd.yaml"
EXPORTER = ROOT / ".cache" / "servers" / "statsd_exporter"
START_MS = 30_000
_Result = TypeVar("_Result")
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def found(part: str, path: str | Path | None, remedy: str) -> str:
    """The program; skips the test if it is missing."""
    program = shutil.which(str(path or part))
    if program is None:
        real_parts.missing(part, remedy)
        pytest.skip(f"no {part}: {remedy}")
    real_parts.used(part, program)
    return program


def prometheus() -> str:
    """The server's program."""
    return found("prometheus", None, "not on PATH; the Debian package prometheus has it")


def promtool() -> str:
    """The program that checks rules and configurations."""
    return found("promtool", None, "not on PATH; the Debian package prometheus has it")


def statsd_exporter() -> str:
    """The exporter's program."""
    return found("statsd_exporter", EXPORTER, "`make statsd-exporter` builds it")


@dataclass(frozen=True)
class Exporter:
    """A running exporter."""

    udp_port: int
    http_port: int

    def send(self, lines: Iterable[str]) -> None:
        """Send StatsD lines."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for line in lines:
                sender.sendto(line.encode(), ("127.0.0.1", self.udp_port))

    def text(self) -> str:
        """The text that Prometheus gets from it."""
        return _get(f"http://127.0.0.1:{self.http_port}/metrics")


@dataclass(frozen=True)
class Prometheus:
    """A running server."""

    port: int

    def get(self, path: str, **arguments: str) -> dict[str, Any]:
        """The data of an answer of its API."""
        query = urllib.parse.urlencode(arguments)
        data: dict[str, Any] = json.loads(_get(f"http://127.0.0.1:{self.port}/api/v1/{path}?{query}"))["data"]
        return data

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples of an instant query. Raises `HTTPError` if it is not PromQL."""
        samples: list[dict[str, Any]] = self.get("query", query=expression)["result"]
        return samples

    def wait_for(self, expression: str) -> list[dict[str, Any]]:
        """The samples, once there are any."""
        return wait(lambda: self.query(expression), f"no sample of {expression}")


@contextmanager
def running_exporter(mapping: Path = MAPPING) -> Iterator[Exporter]:
    """The exporter with the mapping of the compose stack."""
    exporter = Exporter(free_port(), free_port())
    command = [
        statsd_exporter(),
        f"--statsd.mapping-config={mapping}",
        f"--statsd.listen-udp=127.0.0.1:{exporter.udp_port}",
        "--statsd.listen-tcp=",
        f"--web.listen-address=127.0.0.1:{exporter.http_port}",
    ]
    with _process(command, exporter.text):
        yield exporter


@contextmanager
def running_prometheus(folder: Path, texts: Path, exporter: Exporter) -> Iterator[Prometheus]:
    """A server that scrapes the exporter, and every file of `texts`."""
    with ExitStack() as stack:
        port = stack.enter_context(_served(texts))
        files = [
            {"targets": [f"127.0.0.1:{port}"], "labels": {"__metrics_path__": f"/{f.name}"}} for f in texts.iterdir()
        ]
        jobs = [
            {"job_name": "textfile", "static_configs": files},
            {"job_name": "statsd", "static_configs": [{"targets": [f"127.0.0.1:{exporter.http_port}"]}]},
        ]
        config = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": jobs}
        (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
        server = Prometheus(free_port())
        command = [
            prometheus(),
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{server.port}",
        ]
        stack.enter_context(_process(command, lambda: _get(f"http://127.0.0.1:{server.port}/-/ready")))
        yield server


@contextmanager
def _process(command: list[str], is_ready: Callable[[], object]) -> Iterator[None]:
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait(is_ready, f"{command[0]} does not answer")
            yield
        finally:
            process.kill()


@contextmanager
def _served(folder: Path) -> Iterator[int]:
    """The files of a folder over HTTP; the port."""

    class Files(http.server.SimpleHTTPRequestHandler):
        extensions_map = {"": "text/plain; version=0.0.4"}  # noqa: RUF012 - as the class that it overrides

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Files, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def wait(look: Callable[[], _Result], problem: str) -> _Result:
    """The finding of `look`, once it finds something and the server answers."""
    clock = SystemClock()
    deadline_ms = clock.now_ms() + START_MS
    while True:
        try:
            result = look()
            if result:
                return result
        except OSError as error:
            problem = f"{problem.partition(': ')[0]}: {error}"
        assert clock.now_ms() < deadline_ms, problem
        clock.sleep_ms(100)


def _get(url: str) -> str:
    with _OPENER.open(url, timeout=10) as answer:
        text: str = answer.read().decode()
        return text
