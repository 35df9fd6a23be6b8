"""The places that a user meets: ports of 127.0.0.1, and the commands (`make` targets, or Python modules)."""

from __future__ import annotations

import contextlib
import importlib
import socket
from pathlib import Path
from typing import Any

from persist_airflow.embedded import EmbeddedAirflowError

_COMMAND_CHARS = 120  # of a command line that is shown


def free_port() -> int:
    """A port of 127.0.0.1 on which no process listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def accepts_connections(port: int) -> bool:
    """True if a process listens on `port` of 127.0.0.1."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def require_free(port: int, remedy: str) -> None:
    """Raise `EmbeddedAirflowError`, naming who listens and then `remedy`, if the port is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that have just ended do not count
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            who = listener(port) or "a process that this user may not see"
            raise EmbeddedAirflowError(f"port {port} of 127.0.0.1 is taken by {who}; {remedy}") from error


def listener(port: int) -> str:
    """The process that listens on the port: name, process id, command line. Empty if that can't be seen."""
    psutil: Any = importlib.import_module("psutil")  # comes with Airflow, without types
    with contextlib.suppress(psutil.Error, OSError):
        for found in psutil.net_connections("tcp"):
            if found.status == psutil.CONN_LISTEN and found.laddr.port == port and found.pid:
                process = psutil.Process(found.pid)
                return f"{process.name()} (pid {found.pid}: {' '.join(process.cmdline())[:_COMMAND_CHARS]})"
    return ""


def embedded_command(root: Path, name: str, arguments: str = "") -> str:
    """The command line for `up`, `down`, `demo` or `airflow`, in the folder `root`."""
    if is_clone(root):
        return f"make {name}" + (f" ARGS='{arguments}'" if arguments else "")
    return f"python -m persist_airflow.embedded.run {name} {arguments}".strip()


def is_clone(root: Path) -> bool:
    """True for the top folder of a clone; elsewhere the package is installed."""
    return (root / "Makefile").is_file() and (root / "persist_core").is_dir()
