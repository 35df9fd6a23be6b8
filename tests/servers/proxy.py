"""A TCP proxy between us and a store that does, on purpose, what networks and overloaded stores do by chance.

    client --request--> FaultyProxy --request--> store
    client <--response-- FaultyProxy <--response-- store

A request and its response are one exchange; `Injections` decides the fate of each. With `is_http=False` (PostgreSQL and
anything else) a request is whatever the client sends until the store answers, and a response ends where the client
speaks again, so `CUT_AFTER_RESPONSE` cuts behind the first bytes that arrive. With `is_http=True` exchanges are read
whole, which makes every cut exact, and the proxy can answer in the store's place.

    | fate                | the store got the request | the client got                         |
    | ------------------- | ------------------------- | -------------------------------------- |
    | PASS                | yes                       | the response                           |
    | CUT_BEFORE_REQUEST  | no                        | a closed connection                    |
    | CUT_IN_REQUEST      | half of it                | a closed connection                    |
    | CUT_BEFORE_RESPONSE | yes                       | a closed connection                    |
    | CUT_IN_RESPONSE     | yes                       | half of it, then a closed connection   |
    | CUT_AFTER_RESPONSE  | yes                       | the response, then a closed connection |
    | REFUSE (HTTP)       | no                        | `status`                               |
    | REPLACE (HTTP)      | yes                       | `status`, not what the store said      |

Use it as a context manager; leaving it closes every connection and ends every thread. For tests: it listens on
127.0.0.1, holds an HTTP message in memory whole, and speaks no TLS.
"""

from __future__ import annotations

import enum
import selectors
import socket
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

from persist_core.clock import Clock, SystemClock
from persist_core.errors import InvalidInput
from persist_core.ids import Ids
from tests.servers.http_messages import answer_of, asks_to_continue, read_request, read_response

MAX_CONNECTIONS = 200  # open at the same time; a test that needs more leaks them
IDLE_TIMEOUT_S = 60.0  # of a connection on which nothing moves: longer than any answer in a test takes
STOP_TIMEOUT_S = 10.0  # for all threads to end once their sockets are closed
_CHUNK_BYTES = 1 << 16


class Fate(enum.Enum):
    """The outcome of one exchange. See the module's table."""

    PASS = "pass"
    CUT_BEFORE_REQUEST = "cut_before_request"
    CUT_IN_REQUEST = "cut_in_request"
    CUT_BEFORE_RESPONSE = "cut_before_response"
    CUT_IN_RESPONSE = "cut_in_response"
    CUT_AFTER_RESPONSE = "cut_after_response"
    REFUSE = "refuse"
    REPLACE = "replace"


CUTS = tuple(fate for fate in Fate if fate.name.startswith("CUT_"))
_ONLY_HTTP = (Fate.REFUSE, Fate.REPLACE)


@dataclass(frozen=True)
class Injection:
    """One exchange's fate, the HTTP status of `REFUSE` and `REPLACE`, and a delay before the request is passed on."""

    fate: Fate = Fate.PASS
    status: int = 503
    delay_ms: int = 0


@dataclass(frozen=True)
class Exchange:
    """The known facts of an exchange when its fate is decided: numbers count from 0, `opening` is its first bytes.

    Of an HTTP exchange `opening` is the whole head, which begins with method and path.
    """

    connection: int
    number: int
    opening: bytes


class Injections(Protocol):
    """Decides the fate of each exchange. Called by one thread at a time."""

    def injection(self, exchange: Exchange) -> Injection:
        """The fate of `exchange`."""
        ...


class ScriptedInjections:
    """The fates of the first exchanges that `picks` picks (default: all), in their order; then always `PASS`."""

    def __init__(self, *script: Injection | Fate, picks: Callable[[Exchange], bool] | None = None) -> None:
        self._script = [item if isinstance(item, Injection) else Injection(item) for item in script]
        self._picks = picks

    def injection(self, exchange: Exchange) -> Injection:
        is_picked = self._picks is None or self._picks(exchange)
        return self._script.pop(0) if self._script and is_picked else Injection()


class SeededInjections:
    """Every exchange meets one of `choices`, drawn by `ids`, with the probability `rate`; else it passes."""

    def __init__(self, ids: Ids, choices: Sequence[Injection | Fate] = CUTS, *, rate: float = 0.2) -> None:
        if not choices or not 0 <= rate <= 1:
            raise InvalidInput(f"{len(choices)} choices at rate {rate}: expected at least one, and a rate from 0 to 1")
        self._ids = ids
        self._choices = [item if isinstance(item, Injection) else Injection(item) for item in choices]
        self._rate = rate

    def injection(self, exchange: Exchange) -> Injection:
        del exchange  # all fates are equally likely
        if self._ids.jitter() >= self._rate:
            return Injection()
        return self._choices[int(self._ids.jitter() * len(self._choices))]


class _Cut(Exception):
    """This connection ends here."""


class FaultyProxy:
    """Listens on `address` while its context lasts and passes everything on to `host:port`, but for the injections.

    `injections` may be replaced at any time; `injected` counts the fates so far, delays not.
    """

    def __init__(
        self,
        host: str,
        port: int,
        injections: Injections | None = None,
        *,
        is_http: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self.injections: Injections = injections or ScriptedInjections()
        self.injected: Counter[Fate] = Counter()
        self._target = (host, port)
        self._is_http = is_http
        self._clock: Clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._is_closing = False
        self._connections = 0
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._errors: list[Exception] = []
        self._listener: socket.socket | None = None
        self._acceptor = threading.Thread(target=self._accept, daemon=True, name="faulty-proxy-accept")

    def __enter__(self) -> FaultyProxy:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._acceptor.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def port(self) -> int:
        """Where it listens. Raises `InvalidInput` outside of its context."""
        if self._listener is None:
            raise InvalidInput("the proxy listens only inside of its `with` block")
        port: int = self._listener.getsockname()[1]
        return port

    @property
    def address(self) -> str:
        """`127.0.0.1:port`."""
        return f"127.0.0.1:{self.port}"

    def cut_all(self) -> None:
        """Close every connection that is open now; new ones are welcome."""
        with self._lock:
            sockets = list(self._open)
        for one in sockets:
            _shut(one)

    def close(self) -> None:
        """Close everything and wait for the threads. A second call is harmless.

        Raises `TimeoutError` if a thread does not end, and what `injections` raised, if it did.
        """
        if self._listener is None:
            return
        with self._lock:
            self._is_closing = True
        with suppress(OSError):  # wakes the thread that accepts
            socket.create_connection(self._listener.getsockname(), STOP_TIMEOUT_S).close()
        self._acceptor.join(STOP_TIMEOUT_S)
        self._listener.close()
        self._listener = None
        self.cut_all()
        for thread in self._threads:
            thread.join(STOP_TIMEOUT_S)
        if any(thread.is_alive() for thread in (self._acceptor, *self._threads)):
            raise TimeoutError(f"a connection of the proxy did not end within {STOP_TIMEOUT_S:g} s")
        if self._errors:
            raise self._errors[0]

    def _accept(self) -> None:
        assert self._listener is not None
        while True:  # ends with the first connection after `close` began
            client, _ = self._listener.accept()
            with self._lock:
                if self._is_closing or len(self._open) >= 2 * MAX_CONNECTIONS:
                    client.close()
                else:
                    self._open.add(client)
                    thread = threading.Thread(
                        target=self._serve, args=(client, self._connections), daemon=True, name="faulty-proxy"
                    )
                    self._connections += 1
                    self._threads = [*(known for known in self._threads if known.is_alive()), thread]
                    thread.start()
                if self._is_closing:
                    return

    def _serve(self, client: socket.socket, number: int) -> None:
        """One connection, from its accept to its end, in a thread of its own."""
        server: socket.socket | None = None
        try:
            client.settimeout(IDLE_TIMEOUT_S)
            server = socket.create_connection(self._target, IDLE_TIMEOUT_S)
            with self._lock:
                self._open.add(server)
                if self._is_closing:
                    return
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            (self._serve_http if self._is_http else self._serve_turns)(client, server, number)
        except (OSError, _Cut):
            return  # a cut, a peer that went away, or the end of the test
        finally:
            for ended in (client, server):
                if ended is not None:
                    with self._lock:
                        self._open.discard(ended)
                    _shut(ended)
                    ended.close()

    def _decide(self, exchange: Exchange) -> Injection:
        with self._lock:
            try:
                injection = self.injections.injection(exchange)
                if injection.fate in _ONLY_HTTP and not self._is_http:
                    raise InvalidInput(f"{injection.fate} needs a proxy with is_http=True")
            except Exception as error:  # the test's own mistake: it must reach the test
                self._errors.append(error)
                raise _Cut from error
            self.injected[injection.fate] += 1
        if injection.delay_ms:
            self._clock.sleep_ms(injection.delay_ms)
        if injection.fate is Fate.CUT_BEFORE_REQUEST:
            raise _Cut
        return injection

    def _serve_http(self, client: socket.socket, server: socket.socket, connection: int) -> None:
        number = 0
        with client.makefile("rb") as requests, server.makefile("rb") as responses:
            while True:  # ends when one of the two closes, at the latest after IDLE_TIMEOUT_S
                request = read_request(requests, lambda head: _let_continue(client, head))
                if request is None:
                    return
                injection = self._decide(Exchange(connection, number, request.head))
                number += 1
                if injection.fate is Fate.REFUSE:
                    client.sendall(answer_of(injection.status, request))
                    continue
                data = request.head + request.body
                if injection.fate is Fate.CUT_IN_REQUEST:
                    server.sendall(data[: len(data) // 2])
                    raise _Cut
                server.sendall(data)
                response = read_response(responses, request)
                if response is None or injection.fate is Fate.CUT_BEFORE_RESPONSE:
                    raise _Cut
                answer = response.head + response.body
                if injection.fate is Fate.REPLACE:
                    answer = answer_of(injection.status, request)
                client.sendall(answer[: len(answer) // 2] if injection.fate is Fate.CUT_IN_RESPONSE else answer)
                if injection.fate in CUTS or response.is_last:
                    raise _Cut

    def _serve_turns(self, client: socket.socket, server: socket.socket, connection: int) -> None:
        injection, number, client_speaks = Injection(), 0, False
        with selectors.DefaultSelector() as selector:
            for one in (client, server):
                selector.register(one, selectors.EVENT_READ)
            while ready := selector.select(IDLE_TIMEOUT_S):  # an idle connection ends
                for key, _ in ready:
                    sender, receiver = (client, server) if key.fileobj is client else (server, client)
                    chunk = sender.recv(_CHUNK_BYTES)
                    if not chunk:
                        return
                    if sender is client:
                        if not client_speaks:
                            injection = self._decide(Exchange(connection, number, chunk))
                            number, client_speaks = number + 1, True
                        cut_in, cut_before, cut_after = Fate.CUT_IN_REQUEST, Fate.CUT_BEFORE_REQUEST, None
                    else:
                        client_speaks = False
                        cut_in, cut_before, cut_after = (
                            Fate.CUT_IN_RESPONSE, Fate.CUT_BEFORE_RESPONSE, Fate.CUT_AFTER_RESPONSE,
                        )  # fmt: skip
                    if injection.fate is cut_before:
                        raise _Cut
                    receiver.sendall(chunk[: len(chunk) // 2] if injection.fate is cut_in else chunk)
                    if injection.fate in (cut_in, cut_after):
                        raise _Cut


def _let_continue(client: socket.socket, head: bytes) -> None:
    """A client that waits for leave to send its body gets it from the proxy, which reads messages whole."""
    if asks_to_continue(head):
        client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")


def _shut(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
