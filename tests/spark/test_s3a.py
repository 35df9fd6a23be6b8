"""Spark's settings for S3, and what the write stage refuses to accept as a batch there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from pyspark.sql import SparkSession

from persist_core.errors import CorruptArtifact, InvalidInput, InvariantViolation, TooManyErrors
from persist_core.keys import PART, attempt_prefix, manifest_key
from persist_core.location.blob import BlobMetadata
from persist_core.location.mem import MemBlob
from persist_core.location.open import open_location
from persist_core.location.settings import PersistLocation
from persist_core.maintenance.fsck import fsck
from persist_spark import changes, s3a, snapshot
from persist_spark.footers import footers_of
from persist_spark.upsert.batch import UpsertRequest, stage_upserts
from tests.oracle.upsert import Err, Record
from tests.oracle.view import identity, inherited
from tests.spark.s3_store import s3_blob, s3_server
from tests.spark.staged_shard import SHARD, StagedShard
from tests.spark.upsert_cases import ONE_KEY, to_records
from tests.spark.view_shards import BY_COLOUR, COLOURS, ITEMS, ViewShards, text


def _records(keys: range, name: str) -> list[Record]:
    return [Record((key,), (name, key, None), None, (None, "f", 0, key)) for key in keys]


@pytest.fixture
def shard(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[StagedShard]:
    """A shard on S3 with one batch."""
    with closing(s3_blob(request, "team/persist")) as blob:
        shard = StagedShard(spark, blob, ONE_KEY)
        shard.commit(_records(range(5), "first"), 10)
        yield shard


def test_access_is_set_for_the_bucket_alone_and_holds_no_secret() -> None:
    assert s3a.access_options("file:///data", {}) == {}
    uri = "s3://some-bucket/a?endpoint=http://127.0.0.1:9000&access_key_id=me&secret_access_key=hush"
    bucket = "fs.s3a.bucket.some-bucket"
    assert s3a.access_options(uri, {"AWS_SECRET_ACCESS_KEY": "hush"}) == {
        f"{bucket}.endpoint": "http://127.0.0.1:9000",
        f"{bucket}.endpoint.region": "us-east-1",
        f"{bucket}.path.style.access": "true",
        f"{bucket}.input.stream.type": "classic",
        f"{bucket}.connection.ssl.enabled": "false",
    }
    assert s3a.access_options("s3://some-bucket", {"AWS_REGION": "eu-west-1"}) == {
        f"{bucket}.endpoint.region": "eu-west-1",
        f"{bucket}.path.style.access": "false",
        f"{bucket}.input.stream.type": "classic",
    }
    elsewhere = s3a.access_options("s3://some-bucket?path_style=false", {"AWS_ENDPOINT_URL_S3": "https://s3.here"})
    assert elsewhere[f"{bucket}.endpoint"] == "https://s3.here"
    assert elsewhere[f"{bucket}.connection.ssl.enabled"] == "true"


@pytest.mark.parametrize(
    ("environment", "is_set"),
    [
        ({}, False),
        ({"AWS_PROFILE": "team"}, True),
        ({"AWS_WEB_IDENTITY_TOKEN_FILE": "/token"}, True),
        ({"AWS_PROFILE": "team", "AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "hush"}, False),
    ],
)
def test_credentials_unknown_to_s3a_need_awss_chain(environment: dict[str, str], is_set: bool) -> None:
    options = s3a.access_options("s3://some-bucket", environment)
    assert ("fs.s3a.bucket.some-bucket.aws.credentials.provider" in options) == is_set


def test_only_a_missing_class_of_ours_is_explained() -> None:
    with pytest.raises(InvalidInput, match="make spark-jars"), s3a.jars_present():
        raise RuntimeError("java.lang.ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found")
    with pytest.raises(RuntimeError, match=r"other\.Thing"), s3a.jars_present():
        raise RuntimeError("java.lang.ClassNotFoundException: other.Thing")


class _S3InMemory(MemBlob):
    """Claims to be S3; for reads and writes through the blob store only."""

    @property
    def uri(self) -> str:
        return "s3://bucket"


def _report(**changes: Any) -> bytes:
    counters = {"committer_commits_completed": 2, "committer_bytes_committed": 30}
    body = {"success": True, "committer": "magic", "iostatistics": {"counters": counters}}
    return json.dumps({**body, **changes}).encode()


def test_a_commit_is_believed_if_report_and_listing_agree() -> None:
    blob = _S3InMemory()
    blob.set("a/_SUCCESS", _report())
    with pytest.raises(InvariantViolation, match="holds 1 files of 30 bytes; the driver committed 2 of 30 bytes"):
        s3a.check_commit(blob, "a", {"a/x": 30})
    with pytest.raises(InvariantViolation, match="holds 2 files of 31 bytes"):
        s3a.check_commit(blob, "a", {"a/x": 30, "a/y": 1})
    s3a.check_commit(blob, "a", {"a/x": 10, "a/y": 20})
    assert blob.get("a/_SUCCESS") is None


@pytest.mark.parametrize(
    "data",
    [
        None,
        b"",
        b"not json",
        b"[]",
        _report(committer="directory"),
        _report(success=False),
        _report(iostatistics={}),
        _report(iostatistics={"counters": {}}),
    ],
)
def test_any_other_report_fails_the_run(data: bytes | None) -> None:
    blob = _S3InMemory()
    if data is not None:
        blob.set("a/_SUCCESS", data)
    with pytest.raises(InvariantViolation, match="expected one of Hadoop's 'magic'"):
        s3a.check_commit(blob, "a", {})


def test_a_commit_by_rename_is_refused(shard: StagedShard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hadoop's own default on S3."""
    monkeypatch.setitem(s3a._COMMIT_OPTIONS, "fs.s3a.committer.name", "file")
    with pytest.raises(InvariantViolation, match="found a report of the committer None"):
        shard.write(_records(range(3), "second"), shard.description(20))
    assert "manifest.json" not in shard.staged_keys()


def test_a_file_that_the_driver_did_not_commit_fails_the_run(shard: StagedShard) -> None:
    description, attempt = shard.description(20), shard.client.ids.uuid7()
    prefix = attempt_prefix(SHARD, attempt)

    def intrude() -> None:
        shard.blob.set(f"{prefix}/{PART}=insertions/part-00000-forgotten.c000.zstd.parquet", b"PAR1")

    records = to_records(shard.spark, ONE_KEY, _records(range(3), "second"))
    request, state = UpsertRequest(description, ONE_KEY, attempt), shard.client.state(SHARD)
    with pytest.raises(InvariantViolation, match=r"holds \d+ files of .*; the driver committed \d+ of"):
        stage_upserts(shard.spark, shard.client, state, request, records, intrude)
    assert shard.blob.get(manifest_key(SHARD, attempt)) is None


def test_leftovers_are_not_data(shard: StagedShard) -> None:
    """An attempt that wrote all of its files and then failed: readers and fsck ignore them, and a retry succeeds."""
    bad = Record((9,), Err("value", b"k", b"raw"), None, (None, "f", 0, 9))
    with pytest.raises(TooManyErrors):
        shard.write([*_records(range(3), "second"), bad], shard.description(20), max_errors=(0,))
    assert [key for key in shard.staged_keys() if key.endswith(".parquet")]
    assert fsck(shard.client, SHARD).is_clean
    assert [row["name"] for row in shard.snapshot()] == ["first"] * 5
    shard.commit(_records(range(3), "second"), 20)
    assert fsck(shard.client, SHARD).is_clean
    assert sorted(row["name"] for row in shard.snapshot()) == ["first"] * 2 + ["second"] * 3


def test_spark_reads_what_plain_python_reads(shard: StagedShard) -> None:
    shard.commit(_records(range(3, 8), "second"), 20)
    for as_of in (9, 19):
        found = [row.asDict() for row in snapshot(shard.spark, shard.location, SHARD, as_of).collect()]
        assert sorted(found, key=repr) == shard.snapshot(as_of)
    updates = [row.asDict() for row in changes(shard.spark, shard.location, SHARD, 9).collect()]
    plain = shard.client.open_reader(SHARD).changes(9).to_pylist()
    assert sorted(map(repr, updates)) == sorted(map(repr, plain))


def test_a_view_is_refreshed_mended_and_tried_on_s3_alone(request: pytest.FixtureRequest, spark: SparkSession) -> None:
    """Collection, view, rows and state in one bucket, one Spark session."""
    uri = s3_server(request).new_uri("team/persist")
    with open_location(PersistLocation(uri, uri)) as location:
        shards = ViewShards(spark, location)
        shards.commit("items", ITEMS, 5, [((1, "red", 5), 1, 1), ((2, "blue", 7), 2, 1)], [("value", b"k", b"p", 3, 1)])
        assert shards.refresh(BY_COLOUR).stats["inserted"] == 2
        shards.commit("by_colour", COLOURS, 6, [(("pink", 1), 5, 1)])
        shards.commit("items", ITEMS, 8, [((3, "red", 1), 7, 1)], [("value", b"k", b"p", 7, -1)])
        tried = shards.dry_run(BY_COLOUR, 7).stats
        refreshed = shards.refresh(BY_COLOUR).stats
        assert tried == refreshed
        assert (refreshed["corrections"], refreshed["updates"], refreshed["errs_retracted"]) == (1, 4, 1)
        assert shards.rows("by_colour") == {
            text({"colour": "red", "total": 6}): 1,
            text({"colour": "blue", "total": 7}): 1,
        }
        assert not shards.errs("by_colour")
        of_items = inherited(Err("value", b"k", b"p"), "items")
        assert shards.errs("by_colour", 4) == {identity(of_items)[1:]: 1}
        assert fsck(shards.client, "by_colour").is_clean


def test_a_vanished_part_is_an_error_not_fewer_rows(shard: StagedShard) -> None:
    part, *_ = shard.client.staged_manifest(manifest_key(SHARD, shard.attempt)).parts
    shard.blob.delete(part.key)
    with pytest.raises(CorruptArtifact, match=f"{part.key}: found nothing"):
        snapshot(shard.spark, shard.location, SHARD)
    assert not fsck(shard.client, SHARD).is_clean


def test_rows_are_counted_by_footers(shard: StagedShard) -> None:
    manifest = shard.write(_records(range(3, 8), "second"), shard.description(20))
    files = [BlobMetadata(part.key, part.size_bytes) for part in manifest.parts]
    footers = footers_of(shard.blob, files, manifest.schema)
    assert [footer.rows for footer in footers] == [part.rows for part in manifest.parts]
    assert [footer.keys for footer in footers] == [part.keys for part in manifest.parts]
    shard.blob.set("torn.parquet", b"PAR1 and no more")
    for torn in (BlobMetadata("torn.parquet", 16), BlobMetadata("torn.parquet", 99), BlobMetadata("gone.parquet", 9)):
        with pytest.raises(CorruptArtifact, match=f"staged file {torn.key} cannot be read as Parquet"):
            footers_of(shard.blob, [torn], manifest.schema)


def test_a_spark_that_can_not_write_to_s3_says_so_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3a, "WRITES_TO_S3", False)
    assert s3a.commit_options("file:///data") == {}
    with pytest.raises(InvalidInput, match=r"cannot write to s3://bucket/p.*Use Spark 4"):
        s3a.commit_options("s3://bucket/p")
