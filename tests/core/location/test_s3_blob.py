"""`S3Blob` beyond the suite: large values, broken answers, other tools' objects, the consensus beside it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from persist_core.errors import Determinate, Indeterminate, InvalidName, StorageError
from persist_core.location import S3Blob, VersionedData, open_blob, open_consensus, s3_settings
from persist_core.location.s3.client import BLOB_TRIES
from persist_core.location.s3.objects import S3Objects
from tests.core.location.s3_wire import Answer, Lost, Wire, timed_out
from tests.servers.proxy import Fate, FaultyProxy, ScriptedInjections
from tests.servers.s3 import S3Server

MIB = 1 << 20


@pytest.fixture
def blob(versitygw: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Blob]:
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)
    made = open_blob(versitygw.new_uri("a prefix/%41"))
    assert isinstance(made, S3Blob)
    yield made
    made.close()


@pytest.fixture
def in_pieces(blob: S3Blob) -> Iterator[S3Blob]:
    """The store with smaller pieces."""
    made = S3Blob(blob._settings, multipart_bytes=6 * MIB, piece_bytes=5 * MIB)
    yield made
    made.close()


def test_large_values_go_in_pieces(in_pieces: S3Blob) -> None:
    blob = in_pieces
    data = bytes(range(256)) * (13 * MIB // 256)
    wire = Wire(blob)
    blob.set("large", data)
    assert wire.take_counts() == {"CreateMultipartUpload": 1, "UploadPart": 3, "CompleteMultipartUpload": 1}
    assert blob.get("large") == data
    assert [found.size_bytes for found in blob.list_keys_and_metadata("")] == [13 * MIB]


def test_a_large_value_that_fails_half_way_is_not_there(in_pieces: S3Blob, versitygw: S3Server) -> None:
    blob = in_pieces
    blob.set("large", b"old")
    Wire(blob).script("UploadPart", *[Answer(500)] * (3 * BLOB_TRIES))
    with pytest.raises(Indeterminate, match="500 InternalError"):
        blob.set("large", bytes(13 * MIB))
    assert blob.get("large") == b"old"
    assert "Uploads" not in versitygw.raw.list_multipart_uploads(Bucket=blob._settings.bucket)


@pytest.mark.parametrize("fate", [Answer(503), Lost(True), timed_out(is_processed=False)], ids=["503", "cut", "slow"])
def test_trouble_that_passes_is_not_noticed(blob: S3Blob, fate: Lost | Answer) -> None:
    wire = Wire(blob)
    wire.script("PutObject", fate, fate)
    blob.set("k", b"v")
    for operation in ("GetObject", "HeadObject", "DeleteObject", "ListObjectsV2"):
        wire.script(operation, fate)
    assert blob.get("k") == b"v"
    assert [found.key for found in blob.list_keys_and_metadata("")] == ["k"]
    assert blob.delete("k") == 1
    assert wire.is_played()
    assert blob.get("k") is None


@pytest.mark.parametrize("part", ["blob", "range", "consensus", "no such key"])
def test_a_body_that_is_cut_is_read_again(versitygw: S3Server, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    """The head is shorter than half of the answer, so half an answer is a whole head and a part of the body."""
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)
    uri, key, data = versitygw.new_uri("cut"), "/".join(["k" * 200] * 4) if part == "no such key" else "k", bytes(5000)
    with (
        closing(open_blob(uri)) as blob,
        closing(open_consensus(uri)) as consensus,
        FaultyProxy("127.0.0.1", int(versitygw.endpoint.rpartition(":")[2]), is_http=True) as proxy,
        closing(open_blob(uri.replace(versitygw.endpoint, f"http://{proxy.address}"))) as cut_blob,
        closing(open_consensus(uri.replace(versitygw.endpoint, f"http://{proxy.address}"))) as cut_consensus,
    ):
        assert isinstance(cut_blob, S3Blob)
        consensus.compare_and_set("shard", None, VersionedData(0, data))
        if part != "no such key":
            blob.set(key, data)
        assert cut_consensus.head("other") is None  # the probe has run by now
        proxy.injections = ScriptedInjections(
            Fate.CUT_IN_RESPONSE,
            picks=lambda exchange: exchange.opening.startswith(b"GET") and b"list-type" not in exchange.opening,
        )
        if part == "consensus":
            assert cut_consensus.head("shard") == VersionedData(0, data)
        elif part == "range":
            assert cut_blob.get_range(key, 10, 4000) == data[10:4010]
        else:
            assert cut_blob.get(key) == (None if part == "no such key" else data)
        assert proxy.injected[Fate.CUT_IN_RESPONSE] == 1


class CutHead(BaseHTTPRequestHandler):
    """Answers each request with `head`, which does not end."""

    head = b""

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.wfile.write(b"HTTP/1.1 200 OK\r\n" + self.head)

    do_HEAD = do_PUT = do_DELETE = do_GET

    def log_message(self, *_: object) -> None:
        """No caller reads it."""


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"Date: today\r\n",
        b"Content-Length: ",
        b"Transfer-Encoding: chu",
        b"Content-Length: 5\r\n",
    ],
)
def test_an_answer_that_is_cut_in_its_head_is_an_error(monkeypatch: pytest.MonkeyPatch, head: bytes) -> None:
    """A listing would be empty, a value too."""
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)
    handler = type("Cut", (CutHead,), {"head": head})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        uri = f"s3://bucket/p?endpoint=http://127.0.0.1:{server.server_port}"
        settings = s3_settings(uri)
        assert settings is not None
        objects = S3Objects(settings)
        with closing(open_blob(uri)) as blob, closing(open_consensus(uri)) as consensus, closing(objects):
            calls: list[Callable[[], object]] = [
                lambda: list(blob.list_keys_and_metadata("")),
                lambda: blob.get("k"),
                lambda: blob.delete("k"),
                lambda: blob.set("k", b"v"),
                lambda: consensus.head("k"),
                lambda: list(objects.listed("")),
                lambda: objects.looked_at("k"),
            ]
            for call in calls:
                with pytest.raises(StorageError):
                    call()
        server.shutdown()


def test_trouble_that_stays_is_told_as_what_it_is(blob: S3Blob) -> None:
    wire = Wire(blob)
    for operation in ("GetObject", "PutObject", "ListObjectsV2", "HeadObject"):
        wire.script(operation, *[Answer(503)] * 3 * BLOB_TRIES)
    with pytest.raises(Indeterminate, match="set 'k'"):
        blob.set("k", b"v")
    with pytest.raises(Determinate, match="get 'k'"):
        blob.get("k")
    with pytest.raises(Determinate, match="list ''"):
        list(blob.list_keys_and_metadata(""))
    with pytest.raises(Determinate, match="delete 'k'"):
        blob.delete("k")


def test_a_read_that_fails_by_a_condition_it_lacks_is_an_error(blob: S3Blob) -> None:
    blob.set("k", b"v")
    Wire(blob).script("GetObject", Answer(412))
    with pytest.raises(Determinate, match="PreconditionFailed"):
        blob.get("k")


def test_a_delete_of_what_is_gone_succeeds(blob: S3Blob) -> None:
    """Some servers answer 404, also if the first answer was lost."""
    blob.set("k", b"v")
    Wire(blob).script("DeleteObject", Lost(True), Answer(404))
    assert blob.delete("k") == 1
    assert blob.get("k") is None


def test_an_upload_that_is_gone_may_have_been_completed(in_pieces: S3Blob) -> None:
    Wire(in_pieces).script("CompleteMultipartUpload", Lost(True), Answer(404, code="NoSuchUpload"))
    with pytest.raises(Indeterminate, match="404 NoSuchUpload"):
        in_pieces.set("large", bytes(7 * MIB))
    assert in_pieces.get("large") == bytes(7 * MIB)


def test_a_refusal_is_determinate(blob: S3Blob) -> None:
    Wire(blob).script("PutObject", Answer(403))
    with pytest.raises(Determinate, match=r"403 AccessDenied to PutObject.*docs/locations-s3\.md"):
        blob.set("k", b"v")


def test_markers_of_folders_are_no_keys(blob: S3Blob, versitygw: S3Server) -> None:
    root = blob._settings.prefix
    versitygw.raw.put_object(Bucket=blob._settings.bucket, Key=f"{root}/folder/", Body=b"")
    blob.set("folder/k", b"v")
    assert [found.key for found in blob.list_keys_and_metadata("")] == ["folder/k"]


def test_spark_finds_a_key_where_it_is(blob: S3Blob) -> None:
    assert blob.uri_of("s/day=2024-01-01 00%3A00/x") == (
        f"s3a://{blob._settings.bucket}/a prefix/A/s/day=2024-01-01 00%3A00/x"
    )


def test_a_key_that_is_too_long_below_its_prefix(blob: S3Blob) -> None:
    with pytest.raises(InvalidName, match="1024 bytes; shorten"):
        blob.set("k/" * 500 + "k" * 24, b"v")


def test_the_consensus_beside_the_blobs_is_out_of_reach(blob: S3Blob) -> None:
    consensus = open_consensus(blob.uri)
    consensus.compare_and_set("s", None, VersionedData(0, b"state"))
    blob.set("s/part", b"v")
    assert [found.key for found in blob.list_keys_and_metadata("")] == ["s/part"]
    for key in ("_consensus", "_consensus/s/x"):
        with pytest.raises(InvalidName, match="kept for S3Consensus"):
            blob.delete(key)
    blob.set("_consensus2/x", b"v")
    consensus.close()
