"""HTTP/1.1 messages for `FaultyProxy`: where one ends, the bytes as they came, and answers of our own.

Framing is RFC 9112, section 6: `Transfer-Encoding: chunked`, else `Content-Length`, else (responses) the connection's
end. A malformed message ends the connection: a proxy for tests repairs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import BinaryIO

MAX_HEAD_BYTES = 64 << 10
MAX_BODY_BYTES = 256 << 20  # more than any part or state that a test sends
_BODILESS = {HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED}


@dataclass(frozen=True)
class Message:
    """A whole message as it came. `is_last`: the connection ends after it."""

    head: bytes
    body: bytes
    is_last: bool = False

    @property
    def method(self) -> bytes:
        """The method of a request."""
        return self.head.split(b" ", 1)[0]


def read_request(stream: BinaryIO, on_head: Callable[[bytes], None]) -> Message | None:
    """The next request, or `None` if the client has closed. `on_head` runs before the body is waited for."""
    head = _read_head(stream)
    if head is None:
        return None
    on_head(head)
    fields = _fields(head)
    is_empty = b"content-length" not in fields and b"transfer-encoding" not in fields
    return Message(head, b"" if is_empty else _read_body(stream, fields))


def read_response(stream: BinaryIO, request: Message) -> Message | None:
    """The next final response to `request`, or `None` if the store has closed. Interim ones (1xx) are dropped."""
    while True:  # ends with the first response that is final
        head = _read_head(stream)
        if head is None:
            return None
        status = _number(head.split(b" ", 2)[1:2], 10)
        if status >= 200:
            break
    fields = _fields(head)
    if request.method == b"HEAD" or status in _BODILESS:
        return Message(head, b"", fields.get(b"connection") == b"close")
    is_framed = b"content-length" in fields or b"transfer-encoding" in fields
    body = _read_body(stream, fields) if is_framed else stream.read(MAX_BODY_BYTES)
    return Message(head, body, not is_framed or fields.get(b"connection", b"").lower() == b"close")


def asks_to_continue(head: bytes) -> bool:
    """Does this request's sender wait for `100 Continue` before it sends the body?"""
    return _fields(head).get(b"expect", b"").lower() == b"100-continue"


def answer_of(status: int, request: Message) -> bytes:
    """A response with `status` and a body in the form of S3's errors, which other clients read as text."""
    reason = HTTPStatus(status).phrase
    codes = {409: "ConditionalRequestConflict", 500: "InternalError", 503: "SlowDown"}
    body = (
        f"<Error><Code>{codes.get(status, reason.replace(' ', ''))}</Code><Message>fault injection</Message></Error>"
    ).encode()
    head = f"HTTP/1.1 {status} {reason}\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + (b"" if request.method == b"HEAD" else body)


def _read_head(stream: BinaryIO) -> bytes | None:
    """Start line and fields, with the empty line that ends them; `None` at the stream's end."""
    lines: list[bytes] = []
    size_bytes = 0
    while True:  # ends with the empty line, the stream or the limit
        line = stream.readline(MAX_HEAD_BYTES)
        size_bytes += len(line)
        if not line.endswith(b"\n") or size_bytes > MAX_HEAD_BYTES:
            return None
        lines.append(line)
        if line in (b"\r\n", b"\n"):
            return b"".join(lines)


def _fields(head: bytes) -> dict[bytes, bytes]:
    """Header fields by lower-case name; of a field that comes twice the last."""
    pairs = (line.partition(b":") for line in head.splitlines()[1:])
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _read_body(stream: BinaryIO, fields: dict[bytes, bytes]) -> bytes:
    if b"chunked" in fields.get(b"transfer-encoding", b"").lower():
        return _read_chunks(stream)
    return _read_exactly(stream, _number([fields[b"content-length"]], 10))


def _read_chunks(stream: BinaryIO) -> bytes:
    """Chunks as they came, sizes and trailers included."""
    pieces: list[bytes] = []
    size_bytes = 1
    while size_bytes:  # ends with the chunk of size 0
        line = stream.readline(MAX_HEAD_BYTES)
        size_bytes = _number(line.split(b";", 1)[:1], 16)
        pieces.append(line)
        if size_bytes:
            pieces.append(_read_exactly(stream, size_bytes + len(b"\r\n")))
    while pieces[-1] not in (b"\r\n", b"\n"):  # trailer fields, up to the empty line
        line = stream.readline(MAX_HEAD_BYTES)
        if not line:
            raise ConnectionError("the connection ended within a chunked body")
        pieces.append(line)
    return b"".join(pieces)


def _number(found: list[bytes], base: int) -> int:
    try:
        return int(found[0], base)
    except (ValueError, IndexError):
        raise ConnectionError(f"found {found!r} where HTTP has a number") from None


def _read_exactly(stream: BinaryIO, size_bytes: int) -> bytes:
    if size_bytes > MAX_BODY_BYTES:
        raise ConnectionError(f"a body of {size_bytes} bytes; expected at most {MAX_BODY_BYTES}")
    data = stream.read(size_bytes)
    if len(data) < size_bytes:
        raise ConnectionError(f"a body ended after {len(data)} of {size_bytes} bytes")
    return data
