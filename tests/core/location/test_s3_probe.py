"""The probe against servers that do not decide conditional writes, each wrong in its own way."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from persist_core.clock import SystemClock
from persist_core.errors import Determinate, UnfitStore
from persist_core.ids import LEFTOVER_AGE_MS, RandomIds, uuid7_of
from persist_core.location import CaSResult, S3Consensus, VersionedData, open_consensus
from persist_core.location.s3.probe import PROBE_FOLDER, ROUNDS, probe
from tests.core.location.s3_wire import Answer, Wire
from tests.servers.s3 import S3Server

NEW = VersionedData(0, b"data")


class Server(ThreadingHTTPServer):
    """As much of S3 as the probe sees, kept in a dict. `honours` says how it treats `If-None-Match: *`."""

    daemon_threads = True

    def __init__(self, honours: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.honours = honours
        self.objects: dict[str, bytes] = {}
        self.lock = threading.Lock()
        self.asked: Counter[str] = Counter()

    def put(self, handler: Handler) -> int:
        """The status of a PUT, in this server's way."""
        is_conditional = handler.headers.get("If-None-Match") == "*"
        if self.honours == "refuses" and is_conditional:
            handler.body()
            return 501
        if self.honours == "before the body":  # like the servers that look first and write later
            is_taken = handler.path in self.objects
            body = handler.body()
            if is_conditional and is_taken:
                return 412
            self.objects[handler.path] = body
            return 200
        body = handler.body()
        with self.lock:
            if is_conditional and handler.path in self.objects and self.honours != "never":
                return 412
            self.objects[handler.path] = b"garbled" if self.honours == "but stores another's" else body
            return 200


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers["Content-Length"]))

    def do_PUT(self) -> None:
        self.answer(self.server.put(self))

    def do_GET(self) -> None:
        if "list-type" in self.path:
            self.answer(200, b"<ListBucketResult></ListBucketResult>")
        elif self.path in self.server.objects:
            self.answer(200, self.server.objects[self.path])
        else:
            self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")

    def do_DELETE(self) -> None:
        self.server.objects.pop(self.path, None)
        self.answer(204)

    def answer(self, status: int, body: bytes = b"") -> None:
        with self.server.lock:
            self.server.asked["LIST" if "list-type" in self.path else self.command] += 1
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """No caller reads it."""


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    made = Server(request.param)
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def consensus_on(server: Server) -> S3Consensus:
    found = open_consensus(f"s3://bucket/p?endpoint=http://127.0.0.1:{server.server_port}")
    assert isinstance(found, S3Consensus)
    return found


@pytest.mark.parametrize(
    ("server", "says"),
    [
        ("never", "racing conditional writes to one new name succeeded"),
        ("before the body", "racing conditional writes to one new name succeeded"),
        ("refuses", "a conditional write was refused"),
        ("but stores another's", "what is stored is another's"),
    ],
    indirect=["server"],
)
def test_a_server_that_does_not_decide_is_refused_for_good(server: Server, says: str) -> None:
    consensus = consensus_on(server)
    for _ in range(2):
        with pytest.raises(UnfitStore, match=says) as caught:
            consensus.compare_and_set("k", None, NEW)
    assert "postgresql://" in str(caught.value)
    with pytest.raises(UnfitStore):
        consensus.truncate("k", 0)
    assert server.objects == {}, "nothing was committed, and the probe has cleaned up"
    consensus.close()


@pytest.mark.parametrize("server", ["always"], indirect=True)
def test_a_server_that_decides_is_asked_once_per_process(server: Server) -> None:
    consensus = consensus_on(server)
    assert consensus.compare_and_set("k", None, NEW) is CaSResult.COMMITTED
    asked = server.asked["PUT"]
    assert asked > ROUNDS
    another = consensus_on(server)
    assert another.compare_and_set("other", None, NEW) is CaSResult.COMMITTED
    assert server.asked["PUT"] == asked + 1
    assert not [path for path in server.objects if "=probe" in path]
    consensus.close()
    another.close()


@pytest.mark.parametrize("server", ["always"], indirect=True)
def test_reading_asks_nothing(server: Server) -> None:
    consensus = consensus_on(server)
    assert consensus.head("k") is None
    assert list(consensus.list_keys()) == []
    assert server.asked["PUT"] == 0
    consensus.close()


@pytest.mark.parametrize("server", ["always"], indirect=True)
def test_the_probe_costs_what_the_page_says(server: Server) -> None:
    consensus = consensus_on(server)
    probe(consensus._logs.client, consensus._root, RandomIds())
    assert server.asked == {"PUT": 25, "GET": 4, "DELETE": 4, "LIST": 1}
    page = (Path(__file__).parents[3] / "docs" / "locations-s3.md").read_text()
    assert "The probe is 25 PUTs, 4 GETs, 4 DELETEs and a LIST" in page
    assert f"| {server.asked.total()}, as above |" in page
    consensus.close()


@pytest.mark.parametrize("server", ["always"], indirect=True)
def test_a_probe_without_an_answer_is_no_verdict(server: Server) -> None:
    consensus = consensus_on(server)
    Wire(consensus).script("PutObject", *[Answer(503)] * 100)
    with pytest.raises(Determinate, match="could not determine"):
        consensus.compare_and_set("k", None, NEW)
    consensus.close()
    again = consensus_on(server)
    assert again.compare_and_set("k", None, NEW) is CaSResult.COMMITTED
    again.close()


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (Answer(403), "403 AccessDenied.*grant the rights"),
        (Answer(400, code="ExpiredToken"), "400 ExpiredToken.*renew the credentials"),
        (Answer(400, code="KMS.NotFoundException"), "400 KMS.NotFoundException.*correct kms_key"),
        (Answer(400, code="KMS.KMSInvalidStateException"), "400 KMS.KMSInvalidStateException.*has to exist"),
        (Answer(400, code="InvalidArgument"), "probe: write: S3 answered 400 InvalidArgument to PutObject; this call"),
        (Answer(501, code="NotImplemented"), "probe: write: S3 answered 501 NotImplemented to PutObject; this call"),
    ],
)
@pytest.mark.parametrize("server", ["always"], indirect=True)
def test_a_server_that_refuses_all_writes_is_not_unfit(server: Server, answer: Answer, says: str) -> None:
    consensus = consensus_on(server)
    Wire(consensus).script("PutObject", *[answer] * 100)
    with pytest.raises(Determinate, match=says):
        consensus.compare_and_set("k", None, NEW)
    consensus.close()


@pytest.mark.parametrize("name", ["versitygw", "minio"])
def test_real_servers_pass_again_and_again(request: pytest.FixtureRequest, name: str) -> None:
    real: S3Server = request.getfixturevalue(name)
    consensus = open_consensus(real.new_uri("p"))
    assert isinstance(consensus, S3Consensus)
    for _ in range(5):
        probe(consensus._logs.client, consensus._root, RandomIds())
    assert list(consensus.list_keys()) == []
    consensus.close()


def test_what_killed_probes_left_goes_after_a_day(versitygw: S3Server) -> None:
    consensus = open_consensus(versitygw.new_uri("p"))
    assert isinstance(consensus, S3Consensus)
    client, folder = consensus._logs.client, f"{consensus._root}{PROBE_FOLDER}/"
    in_bucket, now_ms = {"Bucket": client.settings.bucket}, SystemClock().now_ms()
    old, new = (f"{folder}{uuid7_of(now_ms - age_ms, 'a')}" for age_ms in (LEFTOVER_AGE_MS + 1, 60_000))
    for name in (old, new, f"{folder}else"):
        client.api.put_object(**in_bucket, Key=name, Body=b"x")
    probe(client, consensus._root, RandomIds())
    assert [each["Key"] for each in client.api.list_objects_v2(**in_bucket)["Contents"]] == [new, f"{folder}else"]
    consensus.close()
