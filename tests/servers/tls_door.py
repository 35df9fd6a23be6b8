"""TLS before a PostgreSQL that was built without it, as the wheel's is. To a client it is a server that speaks TLS.

client --SSLRequest--> door --'S'--> TLS handshake, then every byte is passed on in clear --> the server
"""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import suppress
from types import TracebackType

from tests.servers.certificates import Certificate

_SSL_REQUEST = (8).to_bytes(4) + (80877103).to_bytes(4)  # PostgreSQL's manual, "Message Formats"
_CHUNK_BYTES = 1 << 16


class TlsDoor:
    """Listens on `port` of 127.0.0.1 while its context lasts."""

    def __init__(self, server_port: int, certificate: Certificate) -> None:
        self._server_port = server_port
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate.path, certificate.key)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=self._accept)]
        self._open: list[socket.socket] = []
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> TlsDoor:
        self._threads[0].start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes `accept`
        self._listener.close()
        for connection in self._open:
            _end(connection)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:  # bounded by the context
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(client)
            thread = threading.Thread(target=self._serve, args=[client])
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), client:
            if client.recv(len(_SSL_REQUEST), socket.MSG_WAITALL) != _SSL_REQUEST:
                return  # a client that would speak in clear
            client.sendall(b"S")
            with (
                self._context.wrap_socket(client, server_side=True) as inside,
                socket.create_connection(("127.0.0.1", self._server_port)) as server,
            ):
                back = threading.Thread(target=_pass_on, args=[server, inside])
                back.start()
                _pass_on(inside, server)
                back.join()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(_CHUNK_BYTES):
            target.sendall(data)
    for end in (source, target):
        _end(end)


def _end(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
