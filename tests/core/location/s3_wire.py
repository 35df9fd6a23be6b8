"""The fate of requests between boto3 and a real S3 server, by script: botocore's `before-send` event is the wire.

    Wire(store).script("PutObject", Answer(503), Lost(is_processed=True))

affects the first two PutObjects; all other requests pass. Every request is counted, with any outcome.
"""

from __future__ import annotations

import io
import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from botocore.awsrequest import AWSResponse
from botocore.exceptions import (
    ConnectionClosedError,
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
    ReadTimeoutError,
)
from botocore.httpsession import URLLib3Session

from persist_core.location import Blob, Consensus, S3Blob, S3Consensus
from persist_core.location.s3.objects import S3Objects

CODES = {
    403: "AccessDenied",
    404: "NoSuchKey",
    409: "ConditionalRequestConflict",
    412: "PreconditionFailed",
    500: "InternalError",
    503: "SlowDown",
}


@dataclass(frozen=True)
class Answer:
    """The server's answer is replaced by this status; before that it may have carried the request out."""

    status: int
    is_processed: bool = False
    code: str | None = None

    def __call__(self, request: Any) -> AWSResponse:
        if self.is_processed:
            carry_out(request)
        code = self.code or CODES[self.status]
        body = f"<Error><Code>{code}</Code><Message>injected</Message></Error>".encode()
        return AWSResponse(request.url, self.status, {"content-type": "application/xml"}, _Raw(body))


@dataclass(frozen=True)
class Lost:
    """No answer comes; before that the server may have carried the request out."""

    is_processed: bool
    error: type[HTTPClientError] = ConnectionClosedError

    def __call__(self, request: Any) -> AWSResponse:
        if self.is_processed:
            carry_out(request)
        raise self.error(endpoint_url=request.url, error="injected")


@dataclass(frozen=True)
class RefusedObjects:
    """The answer to a DeleteObjects that deletes nothing: its status is 200, the errors are in its body."""

    code: str

    def __call__(self, request: Any) -> AWSResponse:
        body = f"<DeleteResult><Error><Key>k</Key><Code>{self.code}</Code></Error></DeleteResult>".encode()
        return AWSResponse(request.url, 200, {"content-length": str(len(body))}, _Raw(body))


def timed_out(*, is_processed: bool) -> Lost:
    """No answer within the time that we wait."""
    return Lost(is_processed, ReadTimeoutError)


def unreachable() -> Lost:
    """No connection could be made."""
    return Lost(False, EndpointConnectionError)


def connect_timed_out() -> Lost:
    """No connection could be made in time."""
    return Lost(False, ConnectTimeoutError)


@dataclass(frozen=True)
class Meanwhile:
    """`action` happens while the request is on its way; then the request goes on, to `then` if that is given."""

    action: Callable[[], object]
    then: Callable[[Any], AWSResponse | None] | None = None

    def __call__(self, request: Any) -> AWSResponse | None:
        self.action()
        return None if self.then is None else self.then(request)


Fate = Callable[[Any], AWSResponse | None]


class Wire:
    """The wire of one store object. `counts` are the requests so far, by operation."""

    def __init__(self, store: Blob | Consensus | S3Objects) -> None:
        assert isinstance(store, (S3Blob, S3Consensus, S3Objects))
        client = store._logs.client if isinstance(store, S3Consensus) else store._client
        self.counts: Counter[str] = Counter()
        self._counting = threading.Lock()  # parts of one object are sent by several threads
        self._fates: dict[str, deque[Fate]] = {}
        client.api.meta.events.register("before-send.s3", self._send)

    def script(self, operation: str, *fates: Fate) -> None:
        """The outcomes of the next requests of `operation`, in this order."""
        self._fates.setdefault(operation, deque()).extend(fates)

    def is_played(self) -> bool:
        """True if the whole script has been used."""
        return not any(self._fates.values())

    def take_counts(self) -> dict[str, int]:
        """The requests since the last time."""
        counts = dict(self.counts)
        self.counts.clear()
        return counts

    def _send(self, request: Any, event_name: str, **_: Any) -> AWSResponse | None:
        operation = event_name.rpartition(".")[2]
        with self._counting:
            self.counts[operation] += 1
        fates = self._fates.get(operation)
        return fates.popleft()(request) if fates else None


def carry_out(request: Any) -> None:
    """Send the request without the wire; the answer is discarded."""
    session = URLLib3Session()
    try:
        session.send(request)
        if hasattr(request.body, "seek"):
            request.body.seek(0)
    finally:
        session.close()


class _Raw(io.BytesIO):
    """A body in urllib3's form."""

    def stream(self, *_: object, **__: object) -> Any:
        yield self.read()

    def release_conn(self) -> None:
        """There is no connection."""
