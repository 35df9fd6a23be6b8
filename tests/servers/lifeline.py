"""Servers of a test session end with it: also when it is killed, and cannot clean up any more.

    pytest --stdin kept open--> sh, waiting for its end --> kills the servers of the folder, removes the folder

Each server writes its process id into the first line of a `*.pid` file, in the folder or one level below.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from persist_airflow.embedded.postgres import own
from persist_core.clock import SystemClock

START_TIMEOUT_MS = 30_000
STOP_TIMEOUT_S = 30.0
_POLL_MS = 20

_WAIT_AND_CLEAN = """
cat > /dev/null
[ -d "$1" ] || exit 0
for pid in "$1"/*.pid "$1"/*/*.pid; do [ -e "$pid" ] && kill -QUIT "$(head -n 1 "$pid")"; done
sleep 1
rm -rf "$1"
"""


class ServerFolder:
    """A folder in the system's temporary folder that an ordinary user can work in, and that ends with this process."""

    def __init__(self, name: str) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=f"persist-{name}-"))
        self._lifeline = subprocess.Popen(
            ["/bin/sh", "-c", _WAIT_AND_CLEAN, "lifeline", str(self.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        own(self.path)

    def remove(self) -> None:
        """Remove the folder, after its servers have ended."""
        shutil.rmtree(self.path, ignore_errors=True)
        assert self._lifeline.stdin is not None
        self._lifeline.stdin.close()
        self._lifeline.wait(STOP_TIMEOUT_S)


def wait_until(holds: Callable[[], bool], *, what: str, timeout_ms: int = START_TIMEOUT_MS) -> None:
    """Return once `holds()`; `TimeoutError` naming `what` if that takes longer than `timeout_ms`."""
    clock = SystemClock()
    for _ in range(timeout_ms // _POLL_MS):
        if holds():
            return
        clock.sleep_ms(_POLL_MS)
    raise TimeoutError(f"{what} did not happen within {timeout_ms} ms")


def end(process: subprocess.Popen[bytes], kind: signal.Signals) -> None:
    """End a server that we started, and wait until it is gone."""
    if process.poll() is None:
        process.send_signal(kind)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(STOP_TIMEOUT_S)


def family(pid: int) -> list[int]:
    """`pid` and its children, as far as they are alive."""
    return [member for member, parent in _live_processes() if pid in (member, parent)]


def any_alive(pids: Iterable[int]) -> bool:
    """True if one of these processes is more than a zombie: no parent may be left to reap those."""
    alive = {member for member, _ in _live_processes()}
    return not alive.isdisjoint(pids)


def _live_processes() -> Iterator[tuple[int, int]]:
    """Process id and parent of every process."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent, *_ = path.read_text().rpartition(")")[2].split()
            if state != "Z":
                yield int(path.parent.name), int(parent)
