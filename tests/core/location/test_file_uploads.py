"""Temporary files of writers that were killed: listed by key, deleted by GC and by an erasure."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from persist_core.clock import SystemClock
from persist_core.errors import Determinate
from persist_core.gc.collect import INTENT_MS, collect
from persist_core.gc.sweep import unfinished_uploads
from persist_core.handles.client import PersistClient
from persist_core.keys import CheckpointLayout, part_key
from persist_core.location import FileBlob
from persist_core.location.file.blob import TEMPORARY
from persist_core.location.open import OpenLocation
from persist_core.location.sqlite.consensus import SqliteConsensus
from persist_core.maintenance.erase import erase
from persist_core.maintenance.erase_objects import KILLED_MS
from persist_core.schema import CollectionSchema, Column
from tests.core.gc.test_kills import make_garbage
from tests.plain_commit import commit

ID = "01900000-0000-7000-8000-00000000000a"
SCHEMA = CollectionSchema(key=(Column("email", "string", nullable=False),), values=())


@pytest.fixture
def blob(tmp_path: Path) -> FileBlob:
    return FileBlob(tmp_path / "blob")


def client_on(blob: FileBlob) -> PersistClient:
    return PersistClient(OpenLocation(blob, SqliteConsensus(blob.path.with_name("c.db"))))


def killed_write(blob: FileBlob, key: str, data: bytes = b"data") -> Path:
    """Leave what a `set` leaves that is killed before its rename."""
    return blob._stage(key, lambda file: file.write(data))


def left(blob: FileBlob) -> set[str]:
    return {each.name for each in (blob.path / TEMPORARY).iterdir()}


@pytest.mark.parametrize(
    "key", ["a", "s/gc/clock", "t%2F/ü ~.json", "s/" + "/".join(["x" * 200] * 5), "s/" + "ü" * 100]
)
def test_what_a_killed_set_left_is_known_by_its_key(blob: FileBlob, key: str) -> None:
    assert blob.unfinished_uploads("").found == ()
    path = killed_write(blob, key)
    (found,) = blob.unfinished_uploads("").found
    assert found.key[:30] == key[:30]  # names of files end at 255 bytes
    assert abs(found.begun_ms - SystemClock().now_ms()) < 600_000
    assert blob.unfinished_uploads(key[:2]).found == (found,)
    assert blob.unfinished_uploads("other/").found == ()
    assert blob.abort_upload(found)
    assert not path.exists()
    assert not blob.abort_upload(found)
    assert blob.unfinished_uploads("").found == ()


def test_a_write_whose_file_was_taken_away_has_not_happened(blob: FileBlob, monkeypatch: pytest.MonkeyPatch) -> None:
    blob.set("a", b"old")
    rename = os.rename

    def late(source: Path, name: str, **options: int) -> None:
        assert [blob.abort_upload(each) for each in blob.unfinished_uploads("a").found] == [True]
        rename(source, name, **options)

    monkeypatch.setattr(os, "rename", late)
    with pytest.raises(Determinate, match="try again"):
        blob.set("a", b"new")
    assert blob.get("a") == b"old"


def test_gc_deletes_what_killed_writers_left(blob: FileBlob) -> None:
    client = client_on(blob)
    make_garbage(client, 1)
    (shard,) = client.shards()
    old = killed_write(blob, part_key(shard, ID, "insertions", 0))
    seconds = (SystemClock().now_ms() - INTENT_MS - 600_000) / 1000
    os.utime(old, (seconds, seconds))
    young, others = killed_write(blob, CheckpointLayout(shard).latest), killed_write(blob, f"{shard}2/forks/x")
    assert len(unfinished_uploads(blob, shard).found) == 2
    assert collect(client, shard).aborted_uploads == 1
    assert left(blob) == {young.name, others.name}


@pytest.mark.parametrize("is_first", [True, False])
def test_an_erasure_deletes_what_killed_writers_left(blob: FileBlob, *, is_first: bool) -> None:
    client = client_on(blob)
    commit(client, "people", SCHEMA, 10, [(("ann@example.org",), 5, 1), (("bo@example.org",), 5, 1)])
    (part,) = client.manifest(client.state("people").batches[0]).parts
    data = blob.get(part.key)
    assert data is not None
    if not is_first:
        erase(client, "people", [("ann@example.org",)], by="me", reason="asked")
    killed = killed_write(blob, part_key("people", ID, "insertions", 0), data)
    if not is_first:  # it finds nothing to erase, so it leaves alone what a writer may be at
        seconds = (SystemClock().now_ms() - KILLED_MS) / 1000 - 1
        os.utime(killed, (seconds, seconds))
    others = killed_write(blob, "people2/batches/x/y", data)
    erase(client, "people", [("ann@example.org",)], by="me", reason="asked")
    assert left(blob) == {others.name}


def test_an_erasure_that_finds_nothing_spares_a_long_write(blob: FileBlob) -> None:
    client = client_on(blob)
    commit(client, "people", SCHEMA, 10, [(("ann@example.org",), 5, 1), (("bo@example.org",), 5, 1)])
    erase(client, "people", [("ann@example.org",)], by="me", reason="asked")
    at_work = killed_write(blob, part_key("people", ID, "insertions", 0))
    seconds = SystemClock().now_ms() / 1000 - 12 * 3600
    os.utime(at_work, (seconds, seconds))
    erase(client, "people", [("ann@example.org",)], by="me", reason="asked")
    assert left(blob) == {at_work.name}
