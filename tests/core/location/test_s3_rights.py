"""The policies of docs/locations-s3.md allow exactly the requests that are made."""

from __future__ import annotations

import json
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from persist_core.clock import SystemClock
from persist_core.errors import Determinate, StorageError
from persist_core.location import S3Blob, S3Consensus, VersionedData, open_blob, open_consensus, s3_settings
from persist_core.location.mem import MemBlob
from persist_core.location.s3.client import BLOB_TRIES
from persist_core.location.s3.log import S3Logs
from persist_core.sources.files import FileSource
from tests.core.location.s3_wire import Answer, Wire
from tests.core.sources.bucket import Bucket
from tests.servers.keyed_buckets import KEY, KeyedBuckets
from tests.servers.proxy import FaultyProxy
from tests.servers.s3 import S3Server

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "locations-s3.md"
FEEDS = DOCUMENT.with_name("feeds-on-s3.md")
MIB = 1 << 20

# The right that each request needs (AWS service authorization reference, "Actions, resources, and condition keys for
# Amazon S3").
RIGHT_OF = {
    "ListObjectsV2": "s3:ListBucket",
    "GetObject": "s3:GetObject",
    "HeadObject": "s3:GetObject",
    "PutObject": "s3:PutObject",
    "CreateMultipartUpload": "s3:PutObject",
    "UploadPart": "s3:PutObject",
    "CompleteMultipartUpload": "s3:PutObject",
    "AbortMultipartUpload": "s3:AbortMultipartUpload",
    "ListMultipartUploads": "s3:ListBucketMultipartUploads",
    "DeleteObject": "s3:DeleteObject",
    "DeleteObjects": "s3:DeleteObject",
    "GetBucketVersioning": "s3:GetBucketVersioning",
    "GetBucketLifecycleConfiguration": "s3:GetLifecycleConfiguration",
    "GetObjectLockConfiguration": "s3:GetBucketObjectLockConfiguration",
}


def policy(name: str, document: Path = DOCUMENT) -> dict[str, Any]:
    """The policy with this mark in the document."""
    found = re.search(rf"<!-- policy: {name} -->\n```json\n(.*?)```", document.read_text(), re.DOTALL)
    assert found is not None
    body: dict[str, Any] = json.loads(found[1])
    return body


def rights(name: str, document: Path = DOCUMENT) -> set[str]:
    return {action for statement in policy(name, document)["Statement"] for action in statement["Action"]}


@pytest.mark.parametrize(("name", "document"), [("least", DOCUMENT), ("doctor", DOCUMENT), ("feed", FEEDS)])
def test_policies_are_well_formed(name: str, document: Path) -> None:
    body = policy(name, document)
    assert body.keys() == {"Version", "Statement"}
    assert body["Version"] == "2012-10-17"
    for statement in body["Statement"]:
        assert statement.keys() == {"Sid", "Effect", "Action", "Resource"}
        assert statement["Effect"] == "Allow"
        on_objects = {"s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"}
        assert statement["Resource"].endswith("/*") == bool(on_objects & set(statement["Action"]))
        assert statement["Resource"].startswith("arn:aws:s3:::")


def test_the_policies_allow_what_is_done_and_nothing_else(versitygw: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)
    uri = versitygw.new_uri("persist")
    settings = s3_settings(uri)
    assert settings is not None
    blob, consensus = S3Blob(settings, multipart_bytes=6 * MIB, piece_bytes=5 * MIB), open_consensus(uri)
    assert isinstance(consensus, S3Consensus)
    wires = [Wire(blob), Wire(consensus)]
    use_blob(blob, wires[0])
    use_consensus(consensus, monkeypatch)
    assert {RIGHT_OF[operation] for wire in wires for operation in wire.take_counts()} == rights("least")
    for store in (blob, consensus):
        list(store.diagnose(SystemClock()))
    done = {RIGHT_OF[operation] for wire in wires for operation in wire.take_counts()}
    assert done - {"s3:ListBucket"} == rights("doctor")
    blob.close()
    consensus.close()


def use_blob(blob: S3Blob, wire: Wire) -> None:
    """Every call, also with a large value, once successful and once not."""
    blob.set("k", b"v")
    blob.set("large", bytes(11 * MIB))
    wire.script("UploadPart", *[Answer(500)] * (3 * BLOB_TRIES))
    with pytest.raises(StorageError):
        blob.set("large", bytes(11 * MIB))
    assert blob.get("k") == b"v"
    assert [found.key for found in blob.list_keys_and_metadata("")] == ["k", "large"]
    assert blob.delete("k") == 1
    assert blob.unfinished_uploads("").found == ()


def use_consensus(consensus: S3Consensus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call, and a sweep that has something to delete."""
    for seqno in range(3):
        consensus.compare_and_set("a key", seqno - 1 if seqno else None, VersionedData(seqno, b"v"))
    assert list(consensus.list_keys()) == ["a key"]
    assert len(consensus.scan("a key", 0)) == 3
    sweep = S3Logs.sweep
    monkeypatch.setattr(S3Logs, "sweep", lambda logs, key, first, _: sweep(logs, key, first, -10_000))
    assert consensus.truncate("a key", 2) == 2


def test_buckets_that_take_only_what_a_key_encrypts(versitygw: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)
    keyed, port = KeyedBuckets(), int(versitygw.endpoint.rpartition(":")[2])
    with FaultyProxy("127.0.0.1", port, keyed, is_http=True) as proxy:
        plain = versitygw.new_uri("persist").replace(versitygw.endpoint, f"http://{proxy.address}")
        with closing(open_blob(plain)) as blob, pytest.raises(Determinate, match="403"):
            blob.set("k", b"v")
        settings, consensus = s3_settings(f"{plain}&kms_key={KEY}"), open_consensus(f"{plain}&kms_key={KEY}")
        assert settings is not None
        assert isinstance(consensus, S3Consensus)
        blob = S3Blob(settings, multipart_bytes=6 * MIB, piece_bytes=5 * MIB)
        use_blob(blob, Wire(blob))
        use_consensus(consensus, monkeypatch)
        blob.close()
        consensus.close()
    assert keyed.written["put"] > 1
    assert keyed.written["post"] > 1, "large values"


def test_the_policy_of_a_feed_allows_what_is_read_of_it(versitygw: S3Server) -> None:
    """The policies of both kinds of bucket. A request for a version needs another right than one for an object."""
    done: set[str] = set()

    def look(request: Any, event_name: str, **_: Any) -> None:
        right = RIGHT_OF[event_name.rpartition(".")[2]]
        done.add(f"{right}Version" if "versionId=" in request.url else right)

    for is_versioned in (False, True):
        bucket = Bucket(versitygw, is_versioned=is_versioned)
        bucket.put("a.jsonl")
        config = bucket.collection()
        feed = bucket.feed(config)
        feed.objects._client.api.meta.events.register("before-send.s3", look)
        (file,) = FileSource(config, MemBlob(), feed).freeze(None, until=None).frozen.files
        feed.check([file])
        feed.superseded([file])
        with feed.opened(file) as source:
            source.read()
        assert ("s3:GetObjectVersion" in done) == is_versioned
    assert done == rights("feed", FEEDS)
