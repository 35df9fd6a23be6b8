"""Where notifiers send to in tests: an HTTP server that takes Slack's and PagerDuty's requests, and an SMTP server."""

from __future__ import annotations

import email
import email.policy
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from aiosmtpd.controller import Controller

from tests.servers.certificates import Certificate


class HttpSink:
    """Keeps the JSON bodies of all requests, with their paths. `status` is what it answers."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.status = 200

    def bodies(self, prefix: str) -> list[dict[str, Any]]:
        """The bodies sent to paths that start with `prefix`, oldest first."""
        return [body for path, body in self.requests if path.startswith(prefix)]


@contextmanager
def http_sink(certificate: Certificate | None = None) -> Iterator[HttpSink]:
    """A server on a free port, by TLS with a certificate. It answers as Slack does, and below /v2 as PagerDuty."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if sink.status == 200:
                sink.requests.append((self.path, body))
            answer = b'{"status": "success", "dedup_key": "k"}' if self.path.startswith("/v2") else b"ok"
            self.send_response(sink.status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if certificate is not None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificate.path, certificate.key)
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    sink = HttpSink(f"{'http' if certificate is None else 'https'}://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield sink
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class MailSink:
    """Keeps the messages that it gets."""

    def __init__(self) -> None:
        self.messages: list[email.message.EmailMessage] = []
        self.port = 0

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: ARG002 - aiosmtpd's names
        """Called with each message."""
        message = email.message_from_bytes(envelope.content, policy=email.policy.default)
        assert isinstance(message, email.message.EmailMessage)
        self.messages.append(message)
        return "250 OK"


class _OnFreePort(Controller):
    """aiosmtpd's controller tries to connect before it knows the port that the system has chosen."""

    def _trigger_server(self) -> None:
        server: Any = self.server
        self.port = server.sockets[0].getsockname()[1]
        super()._trigger_server()  # type: ignore[no-untyped-call] # aiosmtpd has no annotation here


@contextmanager
def mail_sink() -> Iterator[MailSink]:
    """An SMTP server on a free port."""
    sink = MailSink()
    controller = _OnFreePort(sink, hostname="127.0.0.1", port=0)
    controller.start()
    sink.port = controller.port
    try:
        yield sink
    finally:
        controller.stop()
