"""The threads in which the page works: its own, so that Airflow's routes never wait for it.

    request --a place in the lane?--> a thread does the work --> the answer
       |          none: `Busy`            ^
       +-- the client is gone, the time is over: the work ends at its next check

A synchronous route of FastAPI takes one of the threads that all routes of the API server share. So ours are
asynchronous, and their work has a bounded number of threads and places to wait.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import BoundedSemaphore, Event
from typing import Any, TypeVar

from starlette.requests import Request

_Answer = TypeVar("_Answer")
Check = Callable[[], None]


class Busy(Exception):
    """All threads work, and all places to wait are taken."""


class TooSlow(Exception):
    """The work was not done in its time."""


class ClientGone(Exception):
    """The client has closed the connection: no one reads the answer."""


class Stop(Exception):
    """Ends the work in its thread."""


class Lane:
    """`run` threads, `wait` requests that wait for one, and `seconds` from a request's arrival to its answer."""

    def __init__(self, name: str, *, run: int, wait: int, seconds: float) -> None:
        self.seconds = seconds
        self._threads = ThreadPoolExecutor(run, thread_name_prefix=name)
        self._places = BoundedSemaphore(run + wait)

    async def do(self, request: Request, work: Callable[[Check], _Answer]) -> _Answer:
        """The result of `work`, which calls its argument now and then: that raises `Stop` if the work is to end.

        Raises `Busy`, `TooSlow` or `ClientGone`, after which the work ends at its next check: its thread and place are
        taken until then.
        """
        if not self._places.acquire(blocking=False):
            raise Busy
        is_over = Event()

        def check() -> None:
            if is_over.is_set():
                raise Stop

        doing: Future[_Answer] = self._threads.submit(work, check)
        doing.add_done_callback(lambda _: self._places.release())
        answer = asyncio.wrap_future(doing)
        gone = asyncio.ensure_future(_disconnected(request))
        try:
            either: set[asyncio.Future[Any]] = {answer, gone}
            await asyncio.wait(either, timeout=self.seconds, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
            raise ClientGone if gone.done() else TooSlow
        finally:
            is_over.set()
            gone.cancel()
            if not answer.done():
                doing.cancel()  # if it still waits
                answer.add_done_callback(_look)


def _look(answer: asyncio.Future[_Answer]) -> None:
    """Take the exception of an answer that no one waits for, else asyncio logs that no one took it."""
    with contextlib.suppress(asyncio.CancelledError):
        answer.exception()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
