"""Uploads that killed writers have left behind on a real S3 server: GC aborts them after the staging intent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from persist_core.cli.main import run_command
from persist_core.gc import collect as collecting
from persist_core.gc.collect import GRACE_MS, INTENT_MS, Collected, collect
from persist_core.gc.sweep import unfinished_uploads
from persist_core.handles.client import PersistClient
from persist_core.keys import part_key
from persist_core.location import S3Blob
from persist_core.location.open import open_location
from persist_core.location.settings import PersistLocation
from tests.core.gc.test_kills import SHARD, make_garbage
from tests.core.location.s3_wire import Answer, Wire
from tests.servers.s3 import S3Server

ID = "01900000-0000-7000-8000-00000000000a"
KEY = part_key(SHARD, ID, "insertions", 0)
OTHERS = f"{SHARD}/something/else"  # of a newer release
PIECE = bytes(5 << 20)


@pytest.fixture(params=["versitygw", "minio"])
def server(request: pytest.FixtureRequest) -> S3Server:
    made: S3Server = request.getfixturevalue(request.param)
    return made


@pytest.fixture
def location(server: S3Server) -> PersistLocation:
    return PersistLocation(server.new_uri("persist"), "mem:")


@pytest.fixture
def client(location: PersistLocation) -> Iterator[PersistClient]:
    with open_location(location) as opened:
        client = PersistClient(opened)
        make_garbage(client, 1)
        yield client


def begin(server: S3Server, location: PersistLocation, key: str) -> str:
    """Begin an upload, as a writer does that is killed after its first piece."""
    where = {"Bucket": location.blob_uri.split("/")[2], "Key": f"persist/{key}"}
    upload: str = server.raw.create_multipart_upload(**where)["UploadId"]
    server.raw.upload_part(**where, UploadId=upload, PartNumber=1, Body=PIECE)
    return upload


def collect_later(client: PersistClient, monkeypatch: pytest.MonkeyPatch, after_ms: int) -> Collected:
    """GC when so much time has passed, by the store's clock."""
    inner = collecting._lists

    def lists(*arguments: Any) -> Any:
        found, now_ms = inner(*arguments)
        return found, now_ms + after_ms

    with monkeypatch.context() as patch:
        patch.setattr(collecting, "_lists", lists)
        return collect(client, SHARD)


def test_uploads_of_killed_writers_are_aborted_in_time(
    server: S3Server, location: PersistLocation, client: PersistClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = begin(server, location, KEY)
    others = begin(server, location, OTHERS)
    uploads = unfinished_uploads(client.blob, SHARD)
    if server.name == "minio" and not uploads.found:
        pytest.skip("MinIO lists the uploads of one whole name only, and deletes them itself after a day")
    assert [(each.key, each.upload_id) for each in uploads.found] == [(KEY, upload)]
    assert collect(client, SHARD).aborted_uploads == 0
    assert collect_later(client, monkeypatch, INTENT_MS - GRACE_MS // 2).aborted_uploads == 0
    done = collect_later(client, monkeypatch, INTENT_MS + GRACE_MS)
    assert (done.aborted_uploads, done.did.split("; ")[-1]) == (1, "aborted 1 unfinished uploads")
    left = server.raw.list_multipart_uploads(Bucket=location.blob_uri.split("/")[2])["Uploads"]
    assert [each["UploadId"] for each in left] == [others]
    assert isinstance(client.blob, S3Blob)
    assert client.blob.abort_upload(uploads.found[0]) is False
    assert client.open_reader(SHARD).snapshot().num_rows


def test_a_dry_run_shows_them(
    versitygw: S3Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    location = PersistLocation(versitygw.new_uri("persist"), versitygw.new_uri("consensus"))
    for name, value in location.to_env().items():
        monkeypatch.setenv(name, value)
    with open_location(location) as opened:
        make_garbage(PersistClient(opened), 1)
    begin(versitygw, location, KEY)
    assert run_command(["gc", SHARD, "--dry-run"]) == 0
    assert "its upload was not completed" in capsys.readouterr().out
    assert run_command(["gc", SHARD, "--dry-run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (found["shard"], found["key"], found["reason"]) == (SHARD, KEY, "its upload was not completed")


@pytest.mark.parametrize(("status", "code"), [(403, "AccessDenied"), (501, "NotImplemented")])
def test_a_server_that_lists_no_uploads_is_skipped(
    versitygw: S3Server, monkeypatch: pytest.MonkeyPatch, status: int, code: str
) -> None:
    with open_location(PersistLocation(versitygw.new_uri("persist"), "mem:")) as opened:
        client = PersistClient(opened)
        make_garbage(client, 1)
        assert isinstance(opened.blob, S3Blob)
        Wire(opened.blob).script("ListMultipartUploads", *[Answer(status, code=code)] * 2)
        assert unfinished_uploads(opened.blob, SHARD).skipped == f"S3 answered {status} {code} to ListMultipartUploads"
        assert collect_later(client, monkeypatch, INTENT_MS + GRACE_MS).aborted_uploads == 0


def test_a_listing_goes_on_page_by_page(versitygw: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    location = PersistLocation(versitygw.new_uri("persist"), "mem:")
    with open_location(location) as opened:
        assert isinstance(opened.blob, S3Blob)
        begun = [begin(versitygw, location, f"{KEY}-{number}") for number in range(3)]
        api = opened.blob._client.api
        inner = api.list_multipart_uploads
        monkeypatch.setattr(api, "list_multipart_uploads", lambda **request: inner(**request, MaxUploads=1))
        assert [each.upload_id for each in opened.blob.unfinished_uploads("").found] == begun
        few = S3Blob(opened.blob._settings, max_uploads=2)
        assert len(few.unfinished_uploads("").found) == 2
        few.close()
