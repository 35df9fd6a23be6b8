"""A UDP socket in the place of a StatsD server, which keeps what it is sent."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(frozen=True)
class StatsdSink:
    """Its port, and every packet's lines so far: `airflow.name,label=value:number|type`."""

    port: int
    lines: list[str] = field(default_factory=list)

    def settings(self, **more: str) -> dict[str, str]:
        """The environment that makes Airflow send metrics here."""
        values = {"statsd_on": "True", "statsd_host": "127.0.0.1", "statsd_port": str(self.port), **more}
        return {f"AIRFLOW__METRICS__{name.upper()}": value for name, value in values.items()}

    def values(self, prefix: str = "airflow.persist.") -> dict[str, list[str]]:
        """Numbers and types (`5|g`) by name, in the order of their arrival."""
        found: dict[str, list[str]] = {}
        for line in self.lines:
            name, _, value = line.partition(":")
            if name.startswith(prefix):
                found.setdefault(name.removeprefix(prefix), []).append(value)
        return found


@contextmanager
def statsd_sink() -> Iterator[StatsdSink]:
    """A sink on 127.0.0.1; at the end everything that was sent is in its lines."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        sink = StatsdSink(server.getsockname()[1])

        def receive() -> None:
            while data := server.recv(65536):
                sink.lines.extend(data.decode().splitlines())

        reader = threading.Thread(target=receive)
        reader.start()
        try:
            yield sink
        finally:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
                last.sendto(b"", ("127.0.0.1", sink.port))  # it comes after all others, and ends the reader
            reader.join()
