"""Collections whose files lie on S3: what Spark reads of them, by itself and as copies, and what it never reads."""

from __future__ import annotations

import bz2
import gzip
import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from pyspark.sql import SparkSession

from persist_core.config.collection import CollectionConfig
from persist_core.contents.batch import BatchDescription
from persist_core.errors import Determinate, RunFailed, SourceChanged
from persist_core.handles.client import PersistClient
from persist_core.location.file.blob import FileBlob
from persist_core.location.mem import MemBlob
from persist_core.location.open import OpenLocation, open_location
from persist_core.location.settings import PersistLocation, connection_variable
from persist_core.maintenance.fsck import fsck
from persist_core.maintenance.rebuild import Request as Rebuild
from persist_core.maintenance.rebuild import rebuild
from persist_core.maintenance.reprocess import Request as Correction
from persist_core.maintenance.reprocess import reprocess
from persist_core.protocol import stages
from persist_core.protocol.stages import Minted
from persist_core.schema import ERR_MESSAGE
from persist_core.shard.state import Committed
from persist_core.sources.feeds import feed_of
from persist_core.sources.files import FileSource
from persist_core.spark_job.spec import JobSpec
from persist_spark import s3a
from persist_spark.decode import files as decode_files
from persist_spark.decode.files import Copies
from persist_spark.decode.formats import decode
from persist_spark.feed_access import FeedAccess, feed_access
from persist_spark.frame import ORDER
from persist_spark.upsert import job
from persist_spark.upsert.job import run_write_job
from tests.core.location.test_s3_rights import FEEDS, policy
from tests.core.sources.bucket import Bucket
from tests.sampling import sample
from tests.servers.keyed_buckets import KEY, KeyedBuckets
from tests.servers.proxy import Fate, FaultyProxy
from tests.servers.s3 import ACCESS_KEY, SECRET_KEY, S3Server, running
from tests.spark.s3_store import s3_server


@pytest.fixture
def bucket(request: pytest.FixtureRequest) -> Bucket:
    return Bucket(s3_server(request))


def lines(*ids: int, v: str = "x") -> bytes:
    return b"".join(json.dumps({"id": key, "v": v}).encode() + b"\n" for key in ids)


def parquet(folder: Path, rows: list[dict[str, Any]]) -> bytes:
    path = folder / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path.read_bytes()


def decoded(
    spark: SparkSession, bucket: Bucket, config: CollectionConfig, folder: Path, *, is_direct: bool
) -> list[dict[str, Any]]:
    feed = bucket.feed(config)
    files = FileSource(config, MemBlob(), feed).freeze(None, until=None).frozen.files
    access = FeedAccess(feed, s3a.feed_options(feed.objects) if is_direct else {}, is_direct)
    copies = Copies(FileBlob(folder / "copies"), "t/{}".format, access)
    return [row.asDict() for row in decode(spark, config, files, copies=copies).orderBy(ORDER).collect()]


@pytest.mark.parametrize("is_direct", sample([True, False], 1, "buckets"))
def test_every_format_is_read_from_a_bucket(
    spark: SparkSession, bucket: Bucket, tmp_path: Path, is_direct: bool
) -> None:
    """With names that need care in a URI; a record that is too long comes as an err, from a copy."""
    long = json.dumps({"id": 9, "v": "x" * (1 << 21)}).encode()
    for name, data in {
        "1 a%20b#é.jsonl": lines(1, 2),
        "2+=&:.jsonl.gz": gzip.compress(lines(3)),
        "3.jsonl.bz2": bz2.compress(lines(4)),
        "4.jsonl.zst": zstandard.compress(lines(5)),
        "5.jsonl": lines(6) + long + b"\n" + lines(7),
        "6.jsonl": b"",
        "7 q?[a]{b}*.jsonl": lines(8),
    }.items():
        bucket.put(name, data)
    config = bucket.collection("*.jsonl*", limits={"max_record_bytes": 1 << 20})
    rows = decoded(spark, bucket, config, tmp_path, is_direct=is_direct)
    assert [row["id"] for row in rows if row["_persist_err_kind"] is None] == [1, 2, 3, 4, 5, 6, 7, 8]
    (err,) = [row for row in rows if row["_persist_err_kind"] is not None]
    assert err["_persist_err_message"].startswith("line 2 of file '5.jsonl'")
    bucket.put("csv/a.csv", b"id,v\n1,one\n2,two\n")
    bucket.put("parquet/a.parquet", parquet(tmp_path, [{"id": 1, "v": "one"}, {"id": 2, "v": "two"}]))
    bucket.put("parquet/b", parquet(tmp_path, [{"id": 3, "v": "three"}]))
    for kind, path, expected in (("csv", "csv/*", [1, 2]), ("parquet", "parquet/*", [1, 2, 3])):
        config = bucket.collection(path, source={"format": kind})
        assert [row["id"] for row in decoded(spark, bucket, config, tmp_path, is_direct=is_direct)] == expected


def test_an_object_is_not_read_as_a_folder_of_its_name(
    spark: SparkSession, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 has both `a` and `a/b`, which the servers of the tests have not; of `a`, S3A lists `a/b`."""
    for key, name in ((1, "a.jsonl"), (2, "b.jsonl")):
        bucket.put(name, lines(key))
    config = bucket.collection()
    found = [f"s3a://{bucket.name}/feed/a.jsonl", f"s3a://{bucket.name}/feed/b.jsonl/x"]
    for listed in (found, [*found, f"{found[1]}y"]):
        monkeypatch.setattr(decode_files, "files_found", lambda _, listed=listed: listed)
        with pytest.raises(SourceChanged, match=r"b\.jsonl\b.* folder"):
            decoded(spark, bucket, config, tmp_path, is_direct=True)


class Vendor:
    """A collection of objects, in a location of its own, and the steps of a dag run."""

    def __init__(self, spark: SparkSession, bucket: Bucket, location: OpenLocation) -> None:
        self.spark, self.location = spark, location
        self.client = PersistClient(location)
        self.config = bucket.collection()

    def mint(self, until: int) -> BatchDescription:
        minted = stages.mint(self.client, self.config, until=until, writer="test")
        assert isinstance(minted, Minted)
        return minted.description

    def stage(self, config: CollectionConfig, description: BatchDescription) -> str:
        """Write; the key of the job's answer."""
        spec = JobSpec(description, config, self.client.ids.uuid7())
        run_write_job(self.spark, spec, self.location)
        return spec.answer_key

    def write(self, description: BatchDescription) -> dict[int, str]:
        """Write and append; the contents."""
        key = self.stage(self.config, description)
        assert isinstance(stages.append(self.client, description, key), Committed)
        return self.rows()

    def rows(self) -> dict[int, str]:
        """The contents."""
        return {row["id"]: row["v"] for row in self.client.open_reader("orders").snapshot().to_pylist()}


def vendor(spark: SparkSession, bucket: Bucket, folder: Path) -> Vendor:
    uris = PersistLocation(f"file://{folder}/blobs", "mem:", bucket.connections)
    return Vendor(spark, bucket, open_location(uris))


def meanwhile(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """`action` happens once, after the job has looked at all files, and before Spark reads them."""
    todo = [action]

    def then_act(*arguments: Any, **options: Any) -> Any:
        frame = decode(*arguments, **options)
        if todo:
            todo.pop()()
        return frame

    monkeypatch.setattr(job, "decode", then_act)


@pytest.mark.parametrize(("change", "when"), sample([*itertools.product(["put", "delete"], ["before", "during"])], 1,
                                                    "test_s3_feeds/changes"))  # fmt: skip
def test_an_object_that_changes_is_never_a_mixture(
    spark: SparkSession, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str, change: str
) -> None:
    """The next run takes what is there, and what came late."""
    for name in ("a.jsonl", "b.jsonl"):
        bucket.put(name, lines(ord(name[0]), v="first"))
    made = vendor(spark, bucket, tmp_path)
    description = made.mint(10)

    def happen() -> None:
        bucket.delete("a.jsonl")
        if change == "put":
            bucket.put("a.jsonl", lines(97, v="later"))  # as many bytes

    meanwhile(monkeypatch, happen) if when == "during" else happen()
    with pytest.raises(SourceChanged, match=r"a\.jsonl changed between minting and reading"):
        made.write(description)
    bucket.put("late.jsonl", lines(1, v="late"))
    expected = {1: "late", 98: "first"} | ({97: "later"} if change == "put" else {})
    assert made.write(made.mint(20)) == expected


@pytest.mark.family("histories in Spark")
def test_objects_are_read_again_by_a_correction_and_a_rebuild(
    spark: SparkSession, bucket: Bucket, tmp_path: Path
) -> None:
    """A correction of one that was replaced; then all of them, for another key."""
    made = vendor(spark, bucket, tmp_path)
    bucket.put("a.jsonl", lines(1, 2, v="wrong"))
    made.write(made.mint(10))
    bucket.put("b.jsonl", lines(3))
    made.write(made.mint(20))
    bucket.put("a.jsonl", lines(1, v="right"))
    said: dict[str, Any] = {"write": made.stage, "writer": "test", "say": lambda _: None}
    found = reprocess(made.client, made.config, Correction(0, is_confirmed=True), **said)
    assert (found.replaced, found.found.changed, found.found.removed) == (("a.jsonl",), 1, 1)
    assert made.rows() == {1: "right", 3: "x"}
    made.config = bucket.collection(key="v", columns={"v": "string", "id": "bigint"})
    assert rebuild(made.client, made.config, Rebuild(is_confirmed=True), **said).generation == 1
    assert made.client.open_reader("orders").snapshot().column_names[:2] == ["v", "id"]
    assert made.rows() == {1: "right", 3: "x"}
    assert fsck(made.client, "orders").is_clean


def test_an_object_that_is_set_aside_is_read_when_put_again(
    spark: SparkSession, bucket: Bucket, tmp_path: Path
) -> None:
    """With the same bytes, which no longer fail if they were not at fault; as the err says."""
    made = vendor(spark, bucket, tmp_path)
    made.config = bucket.collection("*.jsonl*")
    for name, data in (("a.jsonl", lines(1)), ("b.jsonl.gz", lines(2))):
        bucket.put(name, data)
    assert made.write(made.mint(10)) == {1: "x"}
    (err,) = made.client.open_reader("orders").errors().to_pylist()
    assert err[ERR_MESSAGE].endswith("to have it read again as it is, put the same object again")
    assert made.mint(20).input_files == 0
    bucket.put("b.jsonl.gz", lines(2))
    description = made.mint(20)
    assert description.input_files == 1
    assert made.write(description) == {1: "x"}


def test_a_version_that_is_frozen_is_read_whatever_comes_later(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = Bucket(s3_server(request), is_versioned=True)
    for name in ("a.jsonl", "b.jsonl", "c.jsonl"):
        bucket.put(name, lines(ord(name[0]), v="first"))
    made = vendor(spark, bucket, tmp_path)
    description = made.mint(10)
    bucket.delete("b.jsonl")
    meanwhile(monkeypatch, lambda: bucket.put("a.jsonl", lines(97, v="later")))
    with pytest.raises(RunFailed, match=r"a\.jsonl: a newer version came while Spark read it"):
        made.write(description)
    assert made.write(description) == {97: "first", 98: "first", 99: "first"}
    assert not [entry.key for entry in made.client.blob.list_keys_and_metadata("orders/jobs/")]


def test_source_and_location_have_settings_of_their_own(request: pytest.FixtureRequest, spark: SparkSession) -> None:
    """Parts on S3 too. In one bucket with two settings Spark reads copies, as a JVM keeps the first settings."""
    server = s3_server(request)
    bucket = Bucket(server)
    bucket.put("a.jsonl", lines(1, 2))
    location = open_location(PersistLocation(server.new_uri("parts"), "mem:", bucket.connections))
    made = Vendor(spark, bucket, location)
    feed = feed_of(location, made.config)
    assert feed_access(spark, location, feed, ()).is_direct
    assert made.write(made.mint(10)) == {1: "x", 2: "x"}
    same = open_location(PersistLocation(server.uri(f"{bucket.name}/parts"), "mem:", bucket.connections))
    made = Vendor(spark, bucket, same)
    assert not feed_access(spark, same, feed, ()).is_direct
    assert made.write(made.mint(10)) == {1: "x", 2: "x"}
    feed = feed_of(location, bucket.collection(source={"connection": None}))
    assert not feed_access(spark, location, feed, ()).is_direct, "this JVM has read it by the connection"
    other = Bucket(server)
    bare = open_location(PersistLocation(server.uri(f"{other.name}/parts"), "mem:"))
    feed = feed_of(bare, other.collection(source={"connection": None}))
    assert feed_access(spark, bare, feed, ()).is_direct, "the same settings for both"
    third = Bucket(server)
    third.put("a.jsonl", lines(3))
    made = Vendor(spark, third, bare)
    made.config = third.collection(source={"connection": None})
    assert feed_access(spark, bare, feed_of(bare, made.config), ()).is_direct
    assert made.write(made.mint(10)) == {3: "x"}, "from the location's server"
    for opened in (location, same, bare):
        opened.close()


@pytest.fixture
def abroad(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[S3Server]:
    """A server of another region than the location's, which refuses signatures for others. It knows a `reader`."""
    s3_server(request)
    with contextmanager(running)("versitygw", tmp_path, region="eu-central-1", users=tmp_path / "users") as server:
        server.add_user("reader", "readers-secret")
        yield server


def test_the_rights_of_the_page_in_another_region_are_enough(
    request: pytest.FixtureRequest, spark: SparkSession, abroad: S3Server
) -> None:
    """The server enforces the policy of docs/feeds-on-s3.md for all requests: by mint, by the job and by S3A."""
    for is_versioned in (False, True):
        bucket = Bucket(abroad, is_versioned=is_versioned)
        bucket.put("a.jsonl", lines(1))
        bucket.put("b.jsonl.gz", gzip.compress(lines(2)))
        body = json.dumps(policy("feed", FEEDS)).replace("vendor-bucket", bucket.name)
        allowed = json.loads(body)
        for statement in allowed["Statement"]:
            statement["Principal"] = {"AWS": ["reader"]}
        uri = f"s3://{bucket.name}?endpoint={abroad.endpoint}&access_key_id=reader&secret_access_key=readers-secret"
        connections = {connection_variable("vendor"): f"{uri}&region=eu-central-1"}
        location = open_location(PersistLocation(s3_server(request).new_uri("parts"), "mem:", connections))
        made = Vendor(spark, bucket, location)
        made.config = bucket.collection("*.jsonl*")
        with pytest.raises(Determinate, match="403 AccessDenied"):
            made.mint(10)
        abroad.raw.put_bucket_policy(Bucket=bucket.name, Policy=json.dumps(allowed))
        assert feed_access(spark, location, feed_of(location, made.config), ()).is_direct
        description = made.mint(10)
        if is_versioned:
            bucket.put("a.jsonl", lines(1, v="later"))
        assert made.write(description) == {1: "x", 2: "x"}
        location.close()


def test_a_feed_and_a_location_that_a_key_encrypts(request: pytest.FixtureRequest, spark: SparkSession) -> None:
    """Reading asks for nothing. What is written names the key: parts by S3A, and the copy of a frozen version."""
    server, keyed = s3_server(request), KeyedBuckets()
    bucket = Bucket(server, is_versioned=True)
    bucket.put("a.jsonl", lines(1))
    bucket.put("b.jsonl", lines(2))
    with FaultyProxy("127.0.0.1", int(server.endpoint.rpartition(":")[2]), keyed, is_http=True) as proxy:

        def through(uri: str) -> str:
            return uri.replace(server.endpoint, f"http://{proxy.address}")

        connections = {name: through(uri) for name, uri in bucket.connections.items()}
        where = f"{through(server.new_uri('parts'))}&kms_key={KEY}"
        with open_location(PersistLocation(where, where, connections)) as location:
            made = Vendor(spark, bucket, location)
            assert feed_access(spark, location, feed_of(location, made.config), ()).is_direct
            description = made.mint(10)
            bucket.put("a.jsonl", lines(1, v="later"))
            assert made.write(description) == {1: "x", 2: "x"}
        assert keyed.written["post"], "S3A's uploads"
        assert not {*proxy.injected} - {Fate.PASS}


def test_the_options_are_for_the_feeds_bucket_alone(bucket: Bucket) -> None:
    feed = bucket.feed(bucket.collection(source={"requester_pays": True}))
    start = f"fs.s3a.bucket.{bucket.name}."
    options = s3a.feed_options(feed.objects)
    assert {name.removeprefix(start): value for name, value in options.items()} == {
        "path.style.access": "true",
        "input.stream.type": "classic",
        "endpoint": bucket.server.endpoint,
        "endpoint.region": "us-east-1",
        "connection.ssl.enabled": "false",
        "change.detection.source": "etag",
        "change.detection.mode": "server",
        "requester.pays.enabled": "true",
        "access.key": ACCESS_KEY,
        "secret.key": SECRET_KEY,
        "aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
    }
    with_token = replace(feed.objects.settings, session_token="t0k3n")
    options = s3a.feed_options(type(feed.objects)(with_token))
    assert options[f"{start}session.token"] == "t0k3n"
    assert options[f"{start}aws.credentials.provider"].endswith(".TemporaryAWSCredentialsProvider")
