"""A store whose caller dies at one of its calls: by an exception, or with its whole process."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any, NoReturn


class Crash(BaseException):
    """The process is gone."""


def crash() -> NoReturn:
    """End the caller, in a test that goes on in the same process."""
    raise Crash


def kill_process() -> None:
    """End this process as `kill -9` does."""
    os.kill(os.getpid(), signal.SIGKILL)


class DyingStore:
    """Dies at call number `at`, before or, if `is_late`, after it has happened; and at each later one, because a dead
    process cleans nothing up. `calls` is shared by several stores."""

    def __init__(
        self, store: Any, calls: list[int], at: int, *, is_late: bool, die: Callable[[], None] = crash
    ) -> None:
        self._store, self._calls, self._at, self._is_late, self._die = store, calls, at, is_late, die

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._store, name)
        return self._counted(value) if callable(value) else value

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            self._calls[0] += 1
            number = self._calls[0]
            is_last = number == self._at
            if number > self._at or (is_last and not self._is_late):
                self._die()
            answer = call(*arguments)
            if isinstance(answer, Iterator):
                answer = iter(list(answer))
            if is_last:
                self._die()
            return answer

        return counted
