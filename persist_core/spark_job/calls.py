"""The jobs of a process: one, by its arguments; or one after another, while its starter lives.

    starter: Calls.do(arguments) ──a line of JSON──> the process: answer_calls ──exit status──> the starter

The calls go through a socket in a folder of mode 0700. If the starter ends, the process ends after its call; and the
starter sees that the process has ended: each by the end of the connection.
"""

from __future__ import annotations

import json
import select
import socket
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

BROKEN = 2  # the exit status of a job after which the process cannot be trusted with another one
ENV_CALLS = "PERSIST_JOB_CALLS"
_MAX_FOLDER_CHARS = 80  # a socket's path has at most 108


def answer_calls(arguments: Sequence[str], env: Mapping[str, str], do: Callable[[Sequence[str]], int]) -> int:
    """Call `do` with each call's arguments, which gives an exit status; the last status. For the job's process."""
    if ENV_CALLS not in env:
        return do(arguments)
    status = 0
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(env[ENV_CALLS])
        with connection.makefile("r", encoding="utf-8") as calls:
            for call in calls:
                status = do(json.loads(call))
                if status == BROKEN:
                    break  # the starter sees the end of the process
                connection.sendall(f"{status}\n".encode())
    return status


class Calls:
    """The starter's end. `environment` goes to the process."""

    def __init__(self) -> None:
        is_long = len(tempfile.gettempdir()) > _MAX_FOLDER_CHARS
        self._folder = tempfile.TemporaryDirectory(prefix="persist-", dir="/tmp" if is_long else None)
        path = f"{self._folder.name}/calls"
        self.environment = {ENV_CALLS: path}
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(1)
        self._connection: socket.socket | None = None
        self._to_send: bytes | None = None

    def begin(self, arguments: Sequence[str]) -> None:
        """Send a call, as soon as the process is there."""
        self._to_send = json.dumps(list(arguments)).encode() + b"\n"

    def status(self, timeout_s: float) -> int | None:
        """The exit status of the call that was begun; `None` if it has not ended within the time.

        Raises `EOFError` if the process has ended.
        """
        if self._connection is None:
            if not _is_ready(self._listener, timeout_s):
                return None
            self._connection = self._listener.accept()[0]
        try:
            if self._to_send is not None:
                self._connection.sendall(self._to_send)
                self._to_send = None
            if not _is_ready(self._connection, timeout_s):
                return None
            answer = self._connection.recv(64)  # a line of a few characters, sent as one
        except OSError:
            answer = b""
        if not answer:
            raise EOFError
        return int(answer)

    def close(self) -> None:
        """Let the process end."""
        for each in filter(None, [self._connection, self._listener]):
            with suppress(OSError):
                each.close()
        self._folder.cleanup()


def _is_ready(end: socket.socket, timeout_s: float) -> Any:
    return select.select([end], [], [], timeout_s)[0]
