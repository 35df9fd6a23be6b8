"""A small batch reads only pages that hold its keys, with the same result, and never by a damaged index."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from persist_core.contents.batch import BatchManifest, Part, PartKind
from persist_core.errors import CorruptArtifact
from persist_core.location.file.blob import FileBlob
from persist_core.maintenance.maintain import maintain
from persist_core.schema import CollectionSchema, Column
from persist_spark import stage
from persist_spark.frame import SCALARS
from persist_spark.read.damage import INDEXED
from persist_spark.read.parts import scan
from persist_spark.upsert import batch as upsert_batch
from persist_spark.upsert import few_keys
from persist_spark.upsert.lookup import committed_updates
from tests.oracle.upsert import TOMBSTONE, Record
from tests.sampling import is_long, sample
from tests.spark.s3_store import s3_blob, s3_server, shard_on_one_store
from tests.spark.staged_shard import SHARD, StagedShard
from tests.spark.upsert_cases import KEYS, MANY_KEYS_DOMAIN, ONE_KEY, ONE_KEY_DOMAIN, Domain, Feed

PAGE = 20
FLIPS = 100 if is_long() else 8  # each reads the end of the file only, and fails before any job


def _record(key: int, name: str | None, row: int) -> Record:
    return Record((key,), TOMBSTONE if name is None else (name, None, None), None, (None, "f", 0, row))


pytest_generate_tests = shard_on_one_store


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(stage._WRITE_OPTIONS, "parquet.page.row.count.limit", str(PAGE))
    monkeypatch.setattr(few_keys, "PAGE_ROWS", PAGE)
    monkeypatch.setattr(upsert_batch, "SMALL_STATE_BYTES", 0)


@pytest.fixture
def shard(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Iterator[StagedShard]:
    with closing(FileBlob(tmp_path) if request.param == "file" else s3_blob(request)) as blob:
        yield StagedShard(spark, blob, ONE_KEY)


def _insertions(shard: StagedShard, manifest: BatchManifest) -> tuple[Part, bytes]:
    """The part of insertions of a batch, without the checksum file that Hadoop keeps beside it."""
    (part,) = (part for part in manifest.parts if part.kind is PartKind.INSERTIONS)
    folder, _, name = part.key.rpartition("/")
    for file in list(shard.blob.list_keys_and_metadata(f"{folder}/.{name}")):
        shard.blob.delete(file.key)
    data = shard.blob.get(part.key)
    assert data is not None
    return part, data


def _damage(shard: StagedShard, part: Part, data: bytes, at: int, bit: int = 3) -> None:
    shard.blob.set(part.key, data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :])


def test_pages_without_a_key_of_a_small_batch_are_not_read(shard: StagedShard) -> None:
    part, data = _insertions(shard, shard.commit([_record(key, f"name {key}", key) for key in range(1000)], 10))
    names = pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(0).column(1)
    last_of_names = (names.dictionary_page_offset or names.data_page_offset) + names.total_compressed_size - 2
    _damage(shard, part, data, last_of_names)
    batch = [_record(key, "new", key) for key in (3, 500, 501)] + [_record(600, None, 0), _record(5000, "new", 1)]
    stats = shard.write(batch, shard.description(20)).stats
    assert (stats["updates"], stats["deletes"], stats["inserts"]) == (3, 1, 1)
    with pytest.raises(CorruptArtifact, match=f"{part.key} is damaged"):
        shard.write([_record(999, "new", 1)], shard.description(20))


def test_pages_without_a_key_are_not_fetched_from_s3(request: pytest.FixtureRequest, spark: SparkSession) -> None:
    server, rows = s3_server(request), 200_000
    numbers = random.Random(1).sample(range(1 << 62), rows)
    table, made = pa.table({"id": range(rows), "n": numbers}), pa.BufferOutputStream()
    pq.write_table(table, made, write_page_index=True, max_rows_per_page=2_000, use_dictionary=False)
    data, key = made.getvalue().to_pybytes(), Column("id", "bigint", nullable=False)
    schema = CollectionSchema((key,), (Column("n", "bigint"),))
    with closing(s3_blob(request)) as blob:
        blob.set("a.parquet", data)
        before = server.sent_bytes()
        columns = T.StructType([T.StructField(name, T.LongType()) for name in ("id", "n")])
        found = scan(spark, blob, [("a.parquet", schema)], columns, INDEXED).where("id IN (3, 150000)").collect()
        assert [row["n"] for row in found] == [numbers[3], numbers[150_000]]
    assert server.sent_bytes() - before < len(data) / 4


def test_a_damaged_index_of_pages_stops_a_small_batch(shard: StagedShard, persist_seed: int) -> None:
    dice = random.Random(persist_seed)
    part, data = _insertions(shard, shard.commit([_record(key, f"name {key}", key) for key in range(1000)], 10))
    assert part.index is not None
    size_bytes, _ = part.index
    assert len(data) * 0.1 < size_bytes < len(data)  # 50 pages of four columns
    description = shard.description(20)
    for at in dice.sample(range(len(data) - size_bytes, len(data)), FLIPS):
        _damage(shard, part, data, at, dice.randrange(8))
        with pytest.raises(CorruptArtifact, match=f"{part.key}: its last {size_bytes} bytes"):
            shard.write([_record(3, "new", 1)], description)


@pytest.mark.family("sizes")
def test_files_merged_in_python_have_indexes_that_are_verified(shard: StagedShard) -> None:
    for upper in range(10, 90, 10):
        shard.commit([_record(key, f"name {upper}", key) for key in range(1000)], upper)
    assert maintain(shard.client, SHARD).merges
    description = shard.description(100)
    batches = shard.client.manifests(shard.client.state(SHARD).batches)
    merged = [part for each in batches if each.run is not None for part in each.parts if part.rows]
    assert merged
    assert shard.write([_record(3, "new", 1)], description).stats["updates"] == 1
    part, data = merged[0], shard.blob.get(merged[0].key)
    assert data is not None
    _damage(shard, part, data, len(data) - 20)
    with pytest.raises(CorruptArtifact, match=f"{part.key}: its last"):
        shard.write([_record(3, "new", 1)], description)


def test_a_batch_of_new_keys_reads_no_values(shard: StagedShard, monkeypatch: pytest.MonkeyPatch) -> None:
    part, data = _insertions(shard, shard.commit([_record(2 * key, f"name {key}", key) for key in range(1000)], 10))
    names = pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(0).column(1)
    _damage(shard, part, data, (names.dictionary_page_offset or names.data_page_offset) + 30)
    monkeypatch.setattr(upsert_batch, "LARGE_STATE_BYTES", 0)
    batch, description = [_record(2 * key + 1, "new", key) for key in range(500)], shard.description(20)
    assert shard.write(batch, description).stats["inserts"] == 500
    last = [*batch, _record(1998, "new", 500)]  # its page of names is not damaged
    assert shard.write(last, description).stats["updates"] == 1
    with pytest.raises(CorruptArtifact, match=f"{part.key} is damaged"):
        shard.write([*batch, _record(0, "new", 500)], description)


TYPES = [*[(name,) for name in KEYS], ("string", "bigint"), ("boolean", "date")]


@pytest.mark.parametrize("types", sample(TYPES, 1, "few keys of types"))
@pytest.mark.family("sizes")
def test_few_keys_of_each_type_give_the_same_batch(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    types: tuple[str, ...],
) -> None:
    keys = tuple(Column(f"k {place}", name, nullable=False) for place, name in enumerate(types))
    schema = CollectionSchema(keys, (Column("name", "string"),), position=ONE_KEY.position)
    shard = StagedShard(spark, tmp_path, schema)
    last = min(len(KEYS[each]) for each in types) - 1  # of a slot that is not stored

    def records(places: range, *names: Any) -> list[Record]:
        slots = [tuple(KEYS[each][place] for each in types) for place in places]
        return [Record(slot, names[row % len(names)], None, (None, "f", 0, row)) for row, slot in enumerate(slots)]

    # So many commits that a batch of all keys pays, because a key has one row in each.
    for upper in (10, 20):
        shard.commit(records(range(last), (f"{upper}",)), upper)
    monkeypatch.setattr(few_keys, "PAGE_ROWS", 1)
    filtered = any(name in SCALARS for name in types)
    for places, is_hit in ((range(last), True), (range(last, last + 1), False), (range(last + 1), True)):
        found, reads = _made_each_way(shard, monkeypatch, records(places, ("new",), TOMBSTONE))
        assert (found.stats["updates"] > 0) is is_hit
        assert reads == [(False, True), (False, is_hit), (filtered, True), (filtered, is_hit)]


@pytest.mark.parametrize("domain", [ONE_KEY_DOMAIN, MANY_KEYS_DOMAIN], ids=["one key", "many keys"])
@pytest.mark.family("sizes")
def test_to_look_for_stored_keys_changes_no_batch(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, persist_seed: int, domain: Domain
) -> None:
    feed = Feed(domain, random.Random(f"{persist_seed}/stored keys"), worlds=8)
    shard = StagedShard(spark, tmp_path, domain.schema)
    for upper in (3, 6):
        shard.commit(feed.records(40, upper - 3, upper), upper)
    monkeypatch.setattr(few_keys, "PAGE_ROWS", 1)
    feed.worlds = 16  # half of the slots are new
    _made_each_way(shard, monkeypatch, feed.records(30, 6, 30))


def _made_each_way(
    shard: StagedShard, monkeypatch: pytest.MonkeyPatch, batch: list[Record]
) -> tuple[BatchManifest, list[tuple[bool, bool]]]:
    """The batch, which is the same by each look-up: without and with a filter, at first without and then with a look
    at stored keys. Of each: is there a filter, and may files be read?"""
    made, reads = [], []

    def committed(*arguments: Any, **options: Any) -> Any:
        reads.append((options["few_keys"] is not None, options["ranges"] != ()))
        return committed_updates(*arguments, **options)

    for max_keys, large_bytes in itertools.product((0, 1024), (1 << 40, 0)):
        with monkeypatch.context() as patch:
            patch.setattr(few_keys, "MAX_KEYS", max_keys)
            patch.setattr(upsert_batch, "LARGE_STATE_BYTES", large_bytes)
            patch.setattr(upsert_batch, "expected_hits", lambda *_: 0)
            patch.setattr(upsert_batch, "committed_updates", committed)
            made.append(shard.write(batch, shard.description(30)))
    assert len({(each.contents_digest, str(each.stats)) for each in made}) == 1
    return made[0], reads
