"""The proxy does what its table says: what the server got and what the client got, for every fate."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from persist_core.errors import InvalidInput
from tests.servers.proxy import (
    CUTS,
    Exchange,
    Fate,
    FaultyProxy,
    Injection,
    ScriptedInjections,
    SeededInjections,
)
from tests.virtual import ManualClock, SeededIds

REQUEST = b"x" * 999 + b"\n"
RESPONSE = b"y" * 1999 + b"\n"


class LineServer:
    """Answers each line with `RESPONSE`; `heard` is all that came, connection by connection, once they have ended."""

    def __init__(self) -> None:
        self._heard: list[bytes] = []
        self._ended = threading.Condition()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    def heard(self, connections: int) -> list[bytes]:
        """The results of so many connections. A client may see its end before the server does: this waits for that."""
        with self._ended:
            assert self._ended.wait_for(lambda: len(self._heard) >= connections, 10), self._heard
            return list(self._heard)

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            with closing(client):
                heard = self._talk(client)
            if heard == b"stop\n":
                return
            with self._ended:
                self._heard.append(heard)
                self._ended.notify_all()

    def _talk(self, client: socket.socket) -> bytes:
        heard = b""
        try:
            while chunk := client.recv(65536):
                heard += chunk
                if heard == b"stop\n":
                    break
                if heard.endswith(b"\n"):
                    client.sendall(RESPONSE)
        except OSError:
            pass
        return heard

    def close(self) -> None:
        with socket.create_connection(("127.0.0.1", self.port)) as last:
            last.sendall(b"stop\n")
            self._thread.join(10)
        self._listener.close()


@pytest.fixture
def server() -> Iterator[LineServer]:
    with closing(LineServer()) as server:
        yield server


def talk(port: int, requests: int = 1) -> bytes:
    """The answers to a client that sends so many requests, each after the answer before it."""
    heard = b""
    with socket.create_connection(("127.0.0.1", port), 10) as client:
        try:
            for number in range(1, requests + 1):
                client.sendall(REQUEST)
                while len(heard) < number * len(RESPONSE):
                    chunk = client.recv(65536)
                    if not chunk:
                        return heard
                    heard += chunk
        except OSError:
            pass
    return heard


def leaked() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("faulty-proxy")]


@pytest.mark.parametrize(
    ("fate", "got", "heard"),
    [
        (Fate.PASS, 1000, 2000),
        (Fate.CUT_BEFORE_REQUEST, 0, 0),
        (Fate.CUT_IN_REQUEST, 500, 0),
        (Fate.CUT_BEFORE_RESPONSE, 1000, 0),
        (Fate.CUT_IN_RESPONSE, 1000, 1000),
        (Fate.CUT_AFTER_RESPONSE, 1000, 2000),
    ],
)
def test_a_cut_of_any_protocol(server: LineServer, fate: Fate, got: int, heard: int) -> None:
    with FaultyProxy("127.0.0.1", server.port, ScriptedInjections(Fate.PASS, fate)) as proxy:
        answer = talk(proxy.port, requests=2)
        assert talk(proxy.port) == RESPONSE
    assert proxy.injected == {Fate.PASS: 2, fate: 1} if fate is not Fate.PASS else {Fate.PASS: 3}
    assert (len(server.heard(2)[0]), len(answer)) == (1000 + got, 2000 + heard)
    assert leaked() == []


def test_a_cut_after_the_response_ends_the_connection(server: LineServer) -> None:
    with FaultyProxy("127.0.0.1", server.port, ScriptedInjections(Fate.CUT_AFTER_RESPONSE)) as proxy:
        assert talk(proxy.port, requests=3) == RESPONSE
    assert server.heard(1) == [REQUEST]


def test_closing_ends_connections_that_are_open(server: LineServer) -> None:
    with FaultyProxy("127.0.0.1", server.port) as proxy:
        first = socket.create_connection(("127.0.0.1", proxy.port), 10)
        first.sendall(REQUEST)
        first.recv(1)
        proxy.cut_all()
        assert talk(proxy.port) == RESPONSE
        # The server talks to one client at a time, so these come last: they may not even have been accepted.
        others = [socket.create_connection(("127.0.0.1", proxy.port), 10) for _ in range(4)]
    for client in (first, *others):
        with closing(client), suppress(ConnectionResetError):
            while client.recv(65536):
                pass
    proxy.close()
    assert leaked() == []
    with pytest.raises(InvalidInput, match="with"):
        assert proxy.port


def test_a_server_that_is_not_there_is_a_closed_connection(server: LineServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with FaultyProxy("127.0.0.1", port) as proxy:
        assert talk(proxy.port) == b""
    assert server.heard(0) == []


def test_delays_are_the_clocks(server: LineServer) -> None:
    clock = ManualClock()
    script = ScriptedInjections(Injection(delay_ms=70), Injection(Fate.CUT_BEFORE_RESPONSE, delay_ms=5))
    with FaultyProxy("127.0.0.1", server.port, script, clock=clock) as proxy:
        assert talk(proxy.port, requests=2) == RESPONSE
    assert clock.now_ms() == 75


def test_only_http_can_be_answered_by_the_proxy(server: LineServer) -> None:
    with (
        pytest.raises(InvalidInput, match="is_http=True"),
        FaultyProxy("127.0.0.1", server.port, ScriptedInjections(Fate.REFUSE)) as proxy,
    ):
        assert talk(proxy.port) == b""
    assert leaked() == []


def test_a_seed_repeats_its_fates(persist_seed: int) -> None:
    def fates(seed: int) -> list[Fate]:
        seeded = SeededInjections(SeededIds(seed, ManualClock()), rate=0.5)
        return [seeded.injection(Exchange(0, number, b"")).fate for number in range(200)]

    assert fates(persist_seed) == fates(persist_seed)
    assert set(fates(persist_seed)) == {Fate.PASS, *CUTS}
    with pytest.raises(InvalidInput, match="rate"):
        SeededInjections(SeededIds(1, ManualClock()), rate=1.5)


# HTTP


class _Store(ThreadingHTTPServer):
    stored: dict[str, bytes]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Store

    def do_PUT(self) -> None:
        size_bytes = int(self.headers["Content-Length"])
        body = self.rfile.read(size_bytes)
        if len(body) < size_bytes:
            return
        self.server.stored[self.path] = body
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(bytes(1000))

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for _ in range(3):
            self.wfile.write(b"3e8\r\n" + b"z" * 1000 + b"\r\n")
        self.wfile.write(b"0\r\n\r\n")

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "3000")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""


@pytest.fixture
def store() -> Iterator[tuple[int, dict[str, bytes]]]:
    server = _Store(("127.0.0.1", 0), _Handler)
    server.stored = {}
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server.server_port, server.stored
    server.shutdown()
    thread.join(10)
    server.server_close()


def ask(connection: http.client.HTTPConnection, method: str, path: str = "/k", body: bytes | None = None) -> int | None:
    """The status, or `None` if no whole answer came."""
    try:
        connection.request(method, path, body)
        response = connection.getresponse()
        response.read()
        return response.status
    except (OSError, http.client.HTTPException):
        connection.close()  # the next request makes a new connection
        return None


@pytest.mark.parametrize(
    ("injection", "happened", "status"),
    [
        (Injection(), True, 200),
        (Injection(Fate.CUT_BEFORE_REQUEST), False, None),
        (Injection(Fate.CUT_IN_REQUEST), False, None),
        (Injection(Fate.CUT_BEFORE_RESPONSE), True, None),
        (Injection(Fate.CUT_IN_RESPONSE), True, None),
        (Injection(Fate.CUT_AFTER_RESPONSE), True, 200),
        (Injection(Fate.REFUSE, 503), False, 503),
        (Injection(Fate.REFUSE, 409), False, 409),
        (Injection(Fate.REPLACE, 500), True, 500),
        (Injection(Fate.REPLACE, 409), True, 409),
    ],
    ids=lambda value: f"{value.fate.value}-{value.status}" if isinstance(value, Injection) else "",
)
def test_http_fates(
    store: tuple[int, dict[str, bytes]], injection: Injection, happened: bool, status: int | None
) -> None:
    port, stored = store
    body = bytes(100_000)
    script = ScriptedInjections(injection, picks=lambda exchange: exchange.opening.startswith(b"PUT /struck"))
    with (
        FaultyProxy("127.0.0.1", port, script, is_http=True) as proxy,
        closing(http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=10)) as client,
    ):
        assert ask(client, "PUT", "/before", body) == 200
        assert ask(client, "PUT", "/struck", body) == status
        if injection.fate in CUTS:
            client.close()  # it may not know yet that the connection is gone
        assert ask(client, "GET") == 200
        assert ask(client, "HEAD") == 200
        assert ask(client, "PUT", "/after", body) == 200
    assert stored.keys() == {"/before", "/after"} | ({"/struck"} if happened else set())
    assert set(map(len, stored.values())) == {len(body)}
    assert proxy.injected[injection.fate] == (5 if injection.fate is Fate.PASS else 1)
    assert leaked() == []


def test_half_an_http_response_is_seen_as_half(store: tuple[int, dict[str, bytes]]) -> None:
    with (
        FaultyProxy("127.0.0.1", store[0], ScriptedInjections(Fate.CUT_IN_RESPONSE), is_http=True) as proxy,
        closing(http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=10)) as client,
    ):
        client.request("GET", "/k")
        with pytest.raises(http.client.IncompleteRead) as caught:
            client.getresponse().read()
    assert 0 < len(caught.value.partial) < 3000


def test_a_client_that_waits_for_leave_to_send_its_body_gets_it(store: tuple[int, dict[str, bytes]]) -> None:
    port, stored = store
    with (
        FaultyProxy("127.0.0.1", port, is_http=True) as proxy,
        socket.create_connection(("127.0.0.1", proxy.port), 10) as client,
    ):
        client.sendall(b"PUT /k HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n")
        assert client.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"body")
        assert client.recv(1000).startswith(b"HTTP/1.1 200 OK")
    assert stored == {"/k": b"body"}


def test_what_is_no_http_ends_the_connection(store: tuple[int, dict[str, bytes]]) -> None:
    with FaultyProxy("127.0.0.1", store[0], is_http=True) as proxy:
        for nonsense in (b"PUT / HTTP/1.1\r\nContent-Length: many\r\n\r\n", b"PUT /" + b"x" * 70_000):
            with socket.create_connection(("127.0.0.1", proxy.port), 10) as client:
                with suppress(OSError):  # the proxy may have closed the connection already
                    client.sendall(nonsense)
                    client.shutdown(socket.SHUT_WR)
                with suppress(ConnectionResetError):
                    assert client.recv(1000) == b""
    assert leaked() == []
