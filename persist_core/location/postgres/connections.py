"""Connections to one PostgreSQL database, kept for the next call: for threads, over forks, through PgBouncer.

    take:  one at rest that is still quiet, else a new one (made by the caller's own thread)
    give:  back to rest if its transaction is over, else closed

`psycopg_pool` is not used: its worker threads do the connecting, so they would be missing in a forked child, and the
reason why a connection could not be made (a wrong password) reaches its log instead of the caller, who only times out.

1. A connection belongs to one process. What a forked child inherits is never used nor closed by it: a goodbye sent
   by the child would end the parent's session.
2. A connection at rest that has something to read was closed by the server, or the server sent a message: it is closed
   and dropped. So after a server's restart the next call makes a new connection instead of failing during a commit.
3. Nothing is kept in a session (no SET, no prepared statement, no advisory lock): PgBouncer may hand each transaction
   to another one.
4. If a server does not answer for too long, the connection is closed; the statement is never canceled: a canceled
   commit that waits for a standby is committed, but not replicated as required.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import psycopg
from psycopg import waiting
from psycopg.conninfo import make_conninfo
from psycopg.pq import ConnStatus, TransactionStatus
from psycopg.rows import TupleRow, tuple_row

Result = TypeVar("Result")

# Connections that one process holds concurrently. More threads than that wait: a commit takes milliseconds, while each
# connection costs the server some megabytes and one of its (by default 100) slots.
MAX_CONNECTIONS = 8

# How often psycopg returns from a wait, in seconds: server silence is measured in these steps.
_LOOK_UP_S = 0.1


class _Connection(psycopg.Connection[TupleRow]):
    """A connection that gives up on a server that does not answer for `silence_s` seconds."""

    silence_s: float

    def __del__(self, *_: object) -> None:
        """No warning of psycopg: idle connections may be collected with their owner, inherited ones are not ours."""

    def wait(self, gen: Generator[Any, Any, Result], *_: Any, **__: Any) -> Result:
        look_ups = round(self.silence_s / _LOOK_UP_S)
        # Not `super().wait`: that cancels the statement if Ctrl-C interrupts it.
        return waiting.wait(_until_silent(gen, look_ups), self.pgconn.socket, interval=_LOOK_UP_S)


class NoConnection(Exception):
    """No connection could be made. Nothing was sent. The message is for people and holds no secret."""


class _AtRest:
    def __init__(self) -> None:
        self.slots = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self.connections: list[_Connection] = []  # append and pop are atomic; the newest is taken first


class Connections:
    """See the module's first lines. `libpq` are connection parameters, the password included."""

    def __init__(self, libpq: Mapping[str, str], *, silence_s: float) -> None:
        self._conninfo = make_conninfo("", **libpq)
        self._silence_s = silence_s
        self._at_rest: dict[int, _AtRest] = {}  # by process id: a forked child finds no entry of its own
        self._closed = False

    def close(self) -> None:
        """Close what is at rest; what is in use is closed when it comes back."""
        self._closed = True
        mine = self._at_rest.get(os.getpid())
        while mine is not None and mine.connections:  # bounded by MAX_CONNECTIONS: none is added any more
            with suppress(IndexError):
                mine.connections.pop().close()

    @contextmanager
    def one(self) -> Iterator[psycopg.Connection[TupleRow]]:
        """A connection in autocommit mode. Raises `NoConnection`; after any error of the body it may be closed."""
        if self._closed:
            raise NoConnection("this store object was closed; open the location again")
        mine = self._at_rest.setdefault(os.getpid(), _AtRest())
        if not mine.slots.acquire(timeout=self._silence_s):
            raise NoConnection(f"all {MAX_CONNECTIONS} connections of this process were busy for {self._silence_s:g} s")
        try:
            connection = _quiet(mine) or self._connect()
            try:
                yield connection
            finally:
                if connection.pgconn.transaction_status == TransactionStatus.IDLE and not self._closed:
                    mine.connections.append(connection)
                else:
                    connection.close()
        finally:
            mine.slots.release()

    def _connect(self) -> _Connection:
        try:
            connection = _Connection.connect(
                self._conninfo,
                autocommit=True,
                prepare_threshold=None,
                cursor_factory=psycopg.ClientCursor[TupleRow],
                row_factory=tuple_row,
            )
        except psycopg.Error as error:
            raise NoConnection(" ".join(str(error).split())) from error
        connection.silence_s = self._silence_s
        return connection


def _quiet(mine: _AtRest) -> _Connection | None:
    """A connection at rest that the server has not closed meanwhile."""
    for _ in range(MAX_CONNECTIONS):
        try:
            connection = mine.connections.pop()
        except IndexError:
            return None
        if connection.pgconn.status == ConnStatus.OK and not _has_news(connection):
            return connection
        connection.close()
    return None


def _has_news(connection: _Connection) -> bool:
    poll = select.poll()
    poll.register(connection.pgconn.socket, select.POLLIN)
    return bool(poll.poll(0))


def _until_silent(gen: Generator[Any, Any, Result], look_ups: int) -> Generator[Any, Any, Result]:
    """`gen`, ended by `OperationalError` after so many look-ups in a row without new data."""
    silent = 0
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            silent = 0 if ready else silent + 1
            if silent > look_ups:
                raise psycopg.OperationalError(f"the server did not answer for {look_ups * _LOOK_UP_S:g} s")
            wanted = gen.send(ready)
    except StopIteration as stop:
        result: Result = stop.value
        return result
    finally:
        gen.close()
