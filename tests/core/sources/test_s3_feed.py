"""Files in a bucket, on a real S3 server: which are found, by how many requests, and what is read of them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from persist_core.errors import ConfigError, Determinate, SourceChanged
from persist_core.handles.client import PersistClient
from persist_core.location.mem import MemBlob, MemConsensus
from persist_core.location.open import OpenLocation, open_location
from persist_core.location.s3.objects import S3Objects
from persist_core.location.settings import PersistLocation
from persist_core.protocol import stages
from persist_core.protocol.stages import Minted
from persist_core.shard.state import ShardState
from persist_core.sources import s3_feed
from persist_core.sources.collection import CollectionSource
from persist_core.sources.feed import Wanted
from persist_core.sources.feeds import feed_of
from persist_core.sources.files import FileSource
from persist_core.sources.input_file import FrozenInput
from persist_core.time_text import parse_time
from tests.core.location.s3_wire import Answer, Meanwhile, Wire
from tests.core.sources.bucket import Bucket
from tests.core.sources.drop_folder import collection, drop, names
from tests.servers.s3 import S3Server

DAILY = "{date:%Y/%m/%d}/*.jsonl"
HANDBOOK = Path(__file__).resolve().parents[3] / "docs" / "feeds-on-s3.md"
# Names as these writers make them. DMS numbers the files of a full load in hexadecimal: no two rows have one key.
LAYOUTS = {
    "DMS, changes by date": [f"sales/orders/2026/01/{name}.csv" for name in ("02/20260102-101112345", "10/20260110-1")],
    "DMS, full load": [f"sales/orders/LOAD{number}.csv" for number in ("0000000A", "00000001")],
    "Kafka Connect, by hour": [
        f"topics/orders/year=2026/month=01/day=02/hour={hour:02}/orders+{part}+{offset:010}.json.gz"
        for hour in (9, 10)
        for part in (0, 1)
        for offset in (0, 1000)
    ],
    "Kafka Connect, by partition": [
        f"topics/orders/partition={part}/orders+{part}+{offset:010}.json.gz" for part in (0, 1) for offset in (0, 1000)
    ],
}


@pytest.fixture
def bucket(versitygw: S3Server) -> Bucket:
    return Bucket(versitygw)


def at(text: str) -> int:
    return parse_time(text)


def test_the_names_that_a_folder_would_give(bucket: Bucket) -> None:
    """In natural order; what is unfinished, hidden, or not to be read is left out or reported."""
    for name in ("p-10.jsonl", "p-9.jsonl", "a b%?é.jsonl", "other.csv", "_tmp/x.jsonl", ".x.jsonl", "y.jsonl.tmp"):
        bucket.put(name)
    bucket.put("deep/z.jsonl", b"")
    bucket.put("deep/bad\\name.jsonl")
    bucket.put("no\x01way.jsonl")  # this server lists another name
    found = bucket.files(bucket.collection("**/*.jsonl*")).freeze(None, until=None)
    assert names(found) == ["a b%?é.jsonl", "deep/z.jsonl", "p-9.jsonl", "p-10.jsonl"]
    assert (found.unfinished, [each.path for each in found.unmatched]) == (
        3,
        ["deep/bad\\name.jsonl", "no\ufffdway.jsonl"],
    )
    pattern = bucket.collection("**/*.jsonl").source_pattern()
    assert pattern.loose.fullmatch("a//x.jsonl"), "reported, as a path can't name it"
    file = found.frozen.files[0]
    assert file.path == f"s3://{bucket.name}/feed/a b%?é.jsonl"
    assert re.fullmatch("[0-9a-f]{32}", file.etag)
    assert (file.size_bytes, file.version_id) == (9, "")
    assert FrozenInput.decode(found.frozen.encode()) == found.frozen


def test_the_layouts_of_dms_and_of_kafka_connect(bucket: Bucket) -> None:
    """The paths in the handbook find what these writers write, and no file twice."""
    rows = re.findall(r"^\| (.+?) \| `s3://BUCKET/(.+?)` \|$", HANDBOOK.read_text(), re.MULTILINE)
    assert {writer for writer, _ in rows} == set(LAYOUTS)
    for written in LAYOUTS.values():
        for name in written:
            bucket.put(name)
    for writer, path in rows:
        path = path.replace("SCHEMA/TABLE", "sales/orders").replace("TOPIC", "orders")
        found = bucket.files(bucket.collection(path, time="path" if "{date" in path else "description"))
        root, wanted = path.partition("/{")[0].partition("/LOAD")[0].partition("/partition")[0], LAYOUTS[writer]
        assert [f"{root}/{name}" for name in names(found.freeze(None, until=None))] == wanted, writer
    hourly = bucket.files(
        bucket.collection("topics/orders/{date:year=%Y/month=%m/day=%d/hour=%H}/*.json.gz", time="path")
    )
    due = hourly.freeze(None, until=at("2026-01-02T10:00:00"))
    assert (len(names(due)), due.not_due) == (4, 4)
    assert due.frozen.files[0].date_ms == at("2026-01-02T09:00:00")


def test_only_days_that_can_be_new_are_listed_and_all_once_a_day(bucket: Bucket) -> None:
    config = bucket.collection(DAILY, source={"look_back": "2 days"})
    feed = bucket.feed(config)
    source, wire = FileSource(config, MemBlob(), feed), Wire(feed.objects)
    for day in range(1, 11):
        bucket.put(f"2026/01/{day:02}/a.jsonl")
    first = source.freeze(None, until=at("2026-01-10T12:00:00"))
    assert (len(first.frozen.files), first.requests) == (10, 1)
    consumed = source.advance(None, first.frozen, era=0)
    bucket.put("2026/01/02/late.jsonl")
    bucket.put("2026/01/08/late.jsonl")
    wire.take_counts()
    hourly = source.freeze(consumed, lower=at("2026-01-10T12:00:00"), until=at("2026-01-10T13:00:00"))
    assert names(hourly) == ["2026/01/08/late.jsonl"]
    assert wire.take_counts() == {"ListObjectsV2": 3, "HeadObject": 1}, "the 8th to the 10th"
    next_day = source.freeze(consumed, lower=at("2026-01-11"), until=at("2026-01-11T01:00:00"))
    assert names(next_day) == ["2026/01/02/late.jsonl", "2026/01/08/late.jsonl"]
    always = bucket.files(bucket.collection(DAILY, source={"look_back": "all"}))
    always._ledger = source._ledger
    assert len(names(always.freeze(consumed, lower=at("2026-01-10T12:00:00"), until=at("2026-01-10T13:00:00")))) == 2


def test_what_limits_left_over_is_looked_for_until_it_is_read(bucket: Bucket) -> None:
    config = bucket.collection(DAILY, source={"look_back": "0"}, limits={"max_files": 2})
    source = bucket.files(config)
    for day in range(1, 6):
        bucket.put(f"2026/01/{day:02}/a.jsonl")
    found, consumed, lower = [], None, 0
    for minute in range(3):
        until = at(f"2026-01-20T12:0{minute}:00")
        freeze = source.freeze(consumed, lower=lower, until=until)
        found.append(len(freeze.frozen.files))
        consumed = source.advance(consumed, freeze.frozen, era=0, unread_from=freeze.unread_from)
        lower = until
    assert found == [2, 2, 1]
    assert consumed is not None
    assert "unread_from" not in consumed.offsets


@pytest.mark.parametrize("path", ["*.jsonl", "**/*.jsonl", "2026/*/x-*.jsonl", "a.jsonl", DAILY, "x-{date:%Y}.jsonl"])
def test_a_folder_without_objects_is_refused(bucket: Bucket, path: str) -> None:
    """As a missing folder is, by a first run and by later ones, whether they list all or some days."""
    config = bucket.collection(path)
    client = PersistClient(open_location(PersistLocation("mem:", "mem:", bucket.connections)))
    root = config.source_pattern().root.removeprefix(f"s3://{bucket.name}/")
    for other in ("feeds/2026/01/01/a.jsonl", f"{root}-2/a.jsonl", f"{root.upper()}/a.jsonl"):
        bucket.server.raw.put_object(Bucket=bucket.name, Key=other, Body=b"{}")
    says = rf"source folder s3://{bucket.name}/{root} \(of source\.path .* does not exist: .*named '{root}/'"
    with pytest.raises(Determinate, match=says):
        stages.mint(client, config, until=at("2026-01-02"), writer="test")
    assert client.machine.fetch("orders") is None
    source = bucket.files(config)
    frozen = FrozenInput((), f"s3://{bucket.name}/{root}")
    consumed = source.advance(None, frozen, era=0)
    lower = at("2026-01-10T12:00:00")
    with pytest.raises(Determinate, match=says):
        source.freeze(consumed, lower=lower, until=lower + 1)
    with pytest.raises(Determinate, match=says):
        source.inputs_now(consumed, None)
    bucket.server.raw.put_object(Bucket=bucket.name, Key=f"{root}/", Body=b"")
    assert names(source.freeze(consumed, lower=lower, until=lower + 1)) == []
    assert isinstance(stages.mint(client, config, until=at("2026-01-02"), writer="test"), Minted)
    client.location.close()


def test_a_folder_with_other_objects_exists(bucket: Bucket) -> None:
    """It costs a request more if no name in the listing was looked at. A whole bucket may be empty."""
    bucket.put("other.csv")
    for path, requests in (("*.jsonl", 1), ("x-*.jsonl", 2), (DAILY, 1)):
        found = bucket.files(bucket.collection(path)).freeze(None, until=None)
        assert (names(found), found.requests) == ([], requests)
    source = {"path": f"s3://{Bucket(bucket.server).name}/*.jsonl"}
    config = bucket.collection(source=source)
    location = open_location(PersistLocation("mem:", "mem:", {"PERSIST_CONNECTION_VENDOR": bucket.anywhere}))
    assert names(FileSource(config, MemBlob(), feed_of(location, config)).freeze(None, until=None)) == []
    missing = bucket.collection(source={"path": "s3://no-such-bucket/*.jsonl"})
    with pytest.raises(Determinate, match="404 NoSuchBucket"):
        FileSource(missing, MemBlob(), feed_of(location, missing)).freeze(None, until=None)


def test_a_long_listing_of_known_names_is_cut_into_pieces(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_feed, "_PAGE", 3)
    config = bucket.collection("**/*.jsonl")
    feed = bucket.feed(config)
    source = FileSource(config, MemBlob(), feed)
    for index in range(40):
        bucket.put(f"{index % 7}/x{index}.jsonl")
    first = source.freeze(None, until=None)
    consumed = source.advance(None, first.frozen, era=0)
    for name in ("0/a.jsonl", "3/x7000.jsonl", "9/z.jsonl"):
        bucket.put(name)
    second = source.freeze(consumed, until=None)
    assert names(second) == ["0/a.jsonl", "3/x7000.jsonl", "9/z.jsonl"]
    assert second.requests > 5
    bucket.put("4/x4.jsonl", b"other bytes")
    assert [each.relative for each in source.freeze(consumed, until=None).changed] == ["4/x4.jsonl"]


@pytest.mark.parametrize("change", ["put", "delete", "same bytes"])
def test_an_object_that_changes_is_never_read(bucket: Bucket, change: str) -> None:
    bucket.put("a.jsonl", b"first\n")
    config = bucket.collection()
    feed = bucket.feed(config)
    (file,) = FileSource(config, MemBlob(), feed).freeze(None, until=None).frozen.files
    feed.check([file])
    if change == "same bytes":
        file = replace(file, mtime_ms=file.mtime_ms - 5_000)
        with pytest.raises(SourceChanged, match="changed between minting and reading"):
            feed.check([file])
        return
    bucket.delete("a.jsonl")
    if change == "put":
        bucket.put("a.jsonl", b"other\n")
    now = "there is no such object" if change == "delete" else "the object has 6 bytes and the ETag"
    with pytest.raises(SourceChanged, match=rf"input file s3://{bucket.name}/feed/a\.jsonl changed .*{now}"):
        feed.check([file])
    with feed.opened(file) as source, pytest.raises(SourceChanged, match="another object has its name now"):
        source.read()


def test_a_change_in_the_middle_of_a_read_is_seen(bucket: Bucket) -> None:
    data = bytes(10 << 20)
    bucket.put("a.jsonl", data)
    config = bucket.collection()
    feed = bucket.feed(config)
    (file,) = FileSource(config, MemBlob(), feed).freeze(None, until=None).frozen.files
    wire = Wire(feed.objects)
    with feed.opened(file) as source:
        assert source.read() == data
        assert source.seek(-5, 2) == len(data) - 5
        assert source.read() == data[-5:]
    with feed.opened(file) as source:
        assert source.read(100) == data[:100]
        wire.script("GetObject", Meanwhile(lambda: bucket.put("a.jsonl", b"x" * len(data))))
        with pytest.raises(SourceChanged):
            source.read()


def test_a_frozen_version_is_readable_after_a_newer_one(versitygw: S3Server) -> None:
    bucket = Bucket(versitygw, is_versioned=True)
    for name in ("a.jsonl", "b.jsonl"):
        bucket.put(name, b"first\n")
    config = bucket.collection()
    feed = bucket.feed(config)
    frozen = FileSource(config, MemBlob(), feed).freeze(None, until=None).frozen
    assert all(file.version_id for file in frozen.files)
    assert feed.superseded(frozen.files) == set()
    bucket.put("a.jsonl", b"later\n")
    bucket.delete("b.jsonl")
    feed.check(frozen.files)
    assert feed.superseded(frozen.files) == set(frozen.files)
    for file in frozen.files:
        with feed.opened(file) as source:
            assert source.read() == b"first\n"
    gone = replace(frozen.files[0], version_id="01ARZ3NDEKTSV4RRFFQ69G5FAV")
    with pytest.raises((SourceChanged, Determinate)):
        feed.check([gone])


def test_a_file_that_goes_while_it_is_frozen_is_left_out(versitygw: S3Server) -> None:
    bucket = Bucket(versitygw, is_versioned=True)
    for name in ("a.jsonl", "b.jsonl", "c.jsonl"):
        bucket.put(name, b"1\n")
    config = bucket.collection()
    feed = bucket.feed(config)
    Wire(feed.objects).script("HeadObject", Meanwhile(lambda: bucket.delete("b.jsonl")))
    assert names(FileSource(config, MemBlob(), feed).freeze(None, until=None)) == ["a.jsonl", "c.jsonl"]


def test_a_look_asks_for_no_version_of_each_file(versitygw: S3Server) -> None:
    bucket = Bucket(versitygw, is_versioned=True)
    for number in range(3):
        bucket.put(f"{number}.jsonl")
    client = PersistClient(OpenLocation(MemBlob(), MemConsensus(), bucket.connections))
    source = CollectionSource(client, config := bucket.collection())
    source.files = FileSource(config, client.blob, feed := bucket.feed(config))
    wire = Wire(feed.objects)
    assert source.pending(ShardState("orders"), until=at("2026-01-10")) == 3
    assert wire.take_counts() == {"ListObjectsV2": 1}
    (file, *_) = source.files.freeze(None, until=None, is_look=True).frozen.files
    with feed.opened(file) as opened:
        assert opened.read() == b'{"id":1}\n'


def test_a_feed_moves_from_a_folder_to_a_bucket(bucket: Bucket, tmp_path_factory: pytest.TempPathFactory) -> None:
    """`moved_from`: the same files, read only once; `replaces`: other files, whatever their names."""
    folder, blob = tmp_path_factory.mktemp("in"), MemBlob()
    drop(folder, "a.jsonl", b'{"id":1}\n')
    local = FileSource(collection(folder), blob)
    consumed = local.advance(None, local.freeze(None, until=None).frozen, era=0)
    bucket.put("a.jsonl")
    bucket.put("b.jsonl")
    for reason, expected in (("moved_from", ["b.jsonl"]), ("replaces", ["a.jsonl", "b.jsonl"])):
        config = bucket.collection(source={reason: str(folder)})
        source = FileSource(config, blob, bucket.feed(config))
        freeze = source.freeze(consumed, until=None)
        paths = [file.path for file in freeze.frozen.files]
        assert paths == [f"s3://{bucket.name}/feed/{name}" for name in expected]
        assert FrozenInput.decode(freeze.frozen.encode()) == freeze.frozen
        after = source.advance(consumed, freeze.frozen, era=0, moved=freeze.moved)
        assert names(source.freeze(after, until=None)) == []
        assert not source.freeze(after, until=None).changed
    config = bucket.collection()
    with pytest.raises(ConfigError, match=f"found 's3://{bucket.name}/feed' as the folder"):
        FileSource(config, blob, bucket.feed(config)).freeze(consumed, until=None)
    here = {"path": "*.jsonl", "format": "json", "moved_from": f"s3://{bucket.name}/feed"}
    back = FileSource(collection(folder, source=here, delete="none"), blob)
    moved = bucket.collection(source={"moved_from": str(folder)})
    there = FileSource(moved, blob, bucket.feed(moved))
    returned = back.freeze(there.advance(consumed, there.freeze(consumed, until=None).frozen, era=0), until=None)
    assert names(returned) == []


def test_errors_of_the_store_name_what_to_do(bucket: Bucket) -> None:
    config = bucket.collection()
    feed = bucket.feed(config)
    Wire(feed.objects).script("ListObjectsV2", Answer(403))
    with pytest.raises(
        Determinate, match=r"S3 answered 403 AccessDenied .*grant the rights .*docs/feeds-on-s3\.md.*kms:Decrypt"
    ):
        FileSource(config, MemBlob(), feed).freeze(None, until=None)
    location = OpenLocation(
        MemBlob(), MemConsensus(), {"PERSIST_CONNECTION_VENDOR": f"s3://{bucket.name}/else?profile=x"}
    )
    with pytest.raises(ConfigError, match=r"source\.connection 'vendor' is for .*else.*found the path"):
        feed_of(location, config)
    with pytest.raises(ConfigError, match=r"source\.connection 'vendor' is not known: set PERSIST_CONNECTION_VENDOR="):
        feed_of(replace(location, connections={}), config)


@pytest.mark.parametrize(
    ("status", "code", "says"),
    [(301, "Moved", "write https:// instead"), (302, "Found", "https://"), (403, "InvalidObjectState", "restore it")],
)
def test_a_redirect_and_an_archive_name_what_to_do(bucket: Bucket, status: int, code: str, says: str) -> None:
    bucket.put("a.jsonl")
    feed = bucket.feed(bucket.collection())
    wire = Wire(feed.objects)
    wire.script("ListObjectsV2", Answer(status, code=code))
    with pytest.raises(Determinate, match=rf"S3 answered {status} .*; this call changed nothing; .*{says}"):
        feed.scan(Wanted())
    assert wire.take_counts() == {"ListObjectsV2": 1}


def test_without_a_connection_the_locations_credentials_count(bucket: Bucket) -> None:
    config = bucket.collection(source={"connection": None})
    given = {"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "hush", "AWS_REGION": "eu-west-1"}
    feed = feed_of(OpenLocation(MemBlob(), MemConsensus(), {}, given), config)
    assert isinstance(feed, s3_feed.S3Feed)
    settings = feed.objects.settings
    assert (settings.access_key_id, settings.region, settings.endpoint) == ("me", "eu-west-1", None)
    assert "hush" not in repr(settings)


def test_each_request_says_that_the_requester_pays(bucket: Bucket) -> None:
    sent: list[bool] = []
    config = bucket.collection(source={"requester_pays": True})
    feed = bucket.feed(config)

    def look(request: Any, **_: Any) -> None:
        sent.append(request.headers.get("x-amz-request-payer") == b"requester")

    feed.objects._client.api.meta.events.register("before-send.s3", look)
    bucket.put("a.jsonl")
    (file,) = FileSource(config, MemBlob(), feed).freeze(None, until=None).frozen.files
    feed.check([file])
    with feed.opened(file) as source:
        source.read()
    assert sent == [True] * 4


def test_an_object_that_is_read_in_pieces(bucket: Bucket) -> None:
    bucket.put("a.jsonl", b"0123456789")
    objects = S3Objects(bucket.feed(bucket.collection()).objects.settings)
    facts = objects.looked_at("feed/a.jsonl")
    assert facts is not None
    assert objects.read(facts, 3, 4) == b"3456"
    assert objects.read(replace(facts, etag="0" * 32), 3, 4) is None
    assert objects.looked_at("feed/none") is None
