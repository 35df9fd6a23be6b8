"""Damaged parts: every read of them by Spark stops with an error that names the part, and commits nothing."""

from __future__ import annotations

import posixpath
import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from persist_core.compaction.merge import Merge, merge_here, replace_inputs
from persist_core.contents import part_lists
from persist_core.contents.batch import STASH_OPERATOR, BatchManifest, PartKind
from persist_core.contents.parts import updates_schema
from persist_core.errors import CorruptArtifact, Determinate, ReadTooSlow
from persist_core.handles.write import stage_manifest
from persist_core.keys import list_key, manifest_key
from persist_core.location.blob import BlobMetadata
from persist_core.location.file.blob import FileBlob
from persist_core.schema import TIME
from persist_spark.compat import ENGINE_ERRORS, READS_ARROW
from persist_spark.footers import digests_of
from persist_spark.frame import part_type
from persist_spark.read import damage, frames, parts
from persist_spark.read.frames import named_failures, snapshot
from persist_spark.read.parts import scan
from tests.core.sources.test_scan import unprivileged
from tests.oracle.upsert import Record
from tests.sampling import is_long
from tests.spark.s3_store import s3_blob, shard_on_one_store
from tests.spark.staged_shard import SHARD, StagedShard
from tests.spark.upsert_cases import ONE_KEY

FLIPS = 60 if is_long() else 6  # each is read by Spark


def _record(key: int, name: str, row: int, time: int | None = None) -> Record:
    return Record((key,), (name, None, None), time, (None, "f", 0, row))


pytest_generate_tests = shard_on_one_store


@pytest.fixture
def shard(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StagedShard]:
    for limit in ("MAX_LOCAL_BYTES", "MAX_LOCAL_RETRACTION_BYTES"):
        monkeypatch.setattr(frames, limit, 0)  # else small files are not read by Spark
    with closing(FileBlob(tmp_path) if request.param == "file" else s3_blob(request)) as blob:
        yield StagedShard(spark, blob, ONE_KEY)


def _insertions(shard: StagedShard, manifest: BatchManifest) -> tuple[str, bytes]:
    """The largest part of insertions of a batch, without the checksum file that Hadoop keeps beside it."""
    part = max((part for part in manifest.parts if part.kind is PartKind.INSERTIONS), key=lambda part: part.size_bytes)
    folder, _, name = part.key.rpartition("/")
    for file in list(shard.blob.list_keys_and_metadata(f"{folder}/.{name}")):
        shard.blob.delete(file.key)
    data = shard.blob.get(part.key)
    assert data is not None
    return part.key, data


def _chunks(data: bytes) -> dict[str, range]:
    """The places of a Parquet file that hold the pages of each column."""
    group = pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(0)
    columns = [group.column(index) for index in range(group.num_columns)]
    starts = {c.path_in_schema: c.dictionary_page_offset or c.data_page_offset for c in columns}
    return {c.path_in_schema: range(starts[c.path_in_schema], starts[c.path_in_schema] + c.total_compressed_size)
            for c in columns}  # fmt: skip


def _last_value(data: bytes, column: str) -> int:
    """A place within the values of a column's last page."""
    return _chunks(data)[column][-2]


def _flipped(data: bytes, at: int, bit: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


@pytest.mark.family("merges")
def test_a_flipped_bit_in_a_page_is_an_error_and_never_data(shard: StagedShard, persist_seed: int) -> None:
    dice = random.Random(persist_seed)
    manifest = shard.commit([_record(key, f"name {key}", key) for key in range(300)], 10)
    key, data = _insertions(shard, manifest)
    good = sorted(snapshot(shard.spark, shard.location, SHARD).collect())
    chunks = _chunks(data)
    places = [place for name in ("id", "name", TIME) for place in chunks[name]]
    messages = []
    for at in dice.sample(places, FLIPS):
        shard.blob.set(key, _flipped(data, at, dice.randrange(8)))
        try:
            # A few bits of a page's header mean nothing to a reader.
            assert sorted(snapshot(shard.spark, shard.location, SHARD).collect()) == good
        except ENGINE_ERRORS as error:
            messages.append(str(error))
    assert len(messages) > FLIPS / 4  # 6 flips may hit 2 or 3 such bits
    assert all(key.rpartition("/")[2] in message for message in messages)


@pytest.mark.family("merges")
def test_a_damaged_part_fails_the_write_job_by_its_name(shard: StagedShard) -> None:
    manifest = shard.commit([_record(key, f"name {key}", key) for key in range(300)], 10)
    key, data = _insertions(shard, manifest)
    shard.blob.set(key, _flipped(data, _last_value(data, "name"), 3))
    with pytest.raises(CorruptArtifact, match=f"{key} is damaged"):
        shard.write([_record(1, "new", 1)], shard.description(20))
    assert "manifest.json" not in shard.staged_keys()
    shard.blob.set(key, data)
    assert shard.write([_record(1, "new", 1)], shard.description(20)).stats["updates"] == 1


def test_a_part_of_another_size_stops_a_read_before_it_begins(shard: StagedShard) -> None:
    manifest = shard.commit([_record(key, "a", key) for key in range(20)], 10)
    key, data = _insertions(shard, manifest)
    for damaged, found in ((data[:-1], f"{len(data) - 1} bytes"), (b"", "0 bytes"), (None, "nothing")):
        shard.blob.delete(key)
        if damaged is not None:
            shard.blob.set(key, damaged)
        match = f"{key}: found {found}, expected {len(data)} bytes"
        with pytest.raises(CorruptArtifact, match=match):
            snapshot(shard.spark, shard.location, SHARD)
        with pytest.raises(CorruptArtifact, match=match):
            shard.write([_record(1, "new", 1)], shard.description(20))


@pytest.mark.family("merges")
def test_a_damaged_stash_stops_the_batch_that_reads_it(shard: StagedShard) -> None:
    manifest = shard.commit([_record(key, "later", key, time=50) for key in range(50)], 10)
    (artifact, *_) = manifest.operators[STASH_OPERATOR].artifacts
    folder, _, name = artifact.key.rpartition("/")
    for file in list(shard.blob.list_keys_and_metadata(f"{folder}/.{name}")):
        shard.blob.delete(file.key)
    data = shard.blob.get(artifact.key)
    assert data is not None
    shard.blob.set(artifact.key, _flipped(data, _last_value(data, "id"), 3))
    with pytest.raises(CorruptArtifact, match=artifact.key):
        shard.write([], shard.description(60))
    shard.blob.set(artifact.key, data[:-2])
    with pytest.raises(CorruptArtifact, match=f"{artifact.key} .*expected {artifact.sha256}"):
        shard.write([], shard.description(60))


def test_pages_that_the_plain_writer_wrote_are_verified_too(shard: StagedShard) -> None:
    rows = {"id": range(500), "name": [f"name {n}" for n in range(500)], "amount": [None] * 500, "rate": [None] * 500}
    oks = pa.table({**rows, "_persist_time": [1] * 500, "_persist_diff": [1] * 500}).cast(updates_schema(ONE_KEY))
    shard.attempt = shard.client.ids.uuid7()
    key = shard.client.open_writer(SHARD).stage(shard.description(10), ONE_KEY, shard.attempt, oks)
    manifest = shard.client.staged_manifest(key)
    shard.append(manifest)
    part, data = _insertions(shard, manifest)
    shard.blob.set(part, _flipped(data, _last_value(data, "name"), 3))
    with pytest.raises(ENGINE_ERRORS, match=part.rpartition("/")[2]):
        snapshot(shard.spark, shard.location, SHARD).collect()


def test_an_error_at_a_whole_part_stays_what_it_is(shard: StagedShard, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = shard.commit([_record(1, "a", 1)], 10)
    key, data = _insertions(shard, manifest)
    named = shard.spark.range(1).selectExpr(
        f"raise_error('Encountered error while reading file {shard.blob.uri_of(key)}')"
    )
    with pytest.raises(ENGINE_ERRORS), damage.named_damage(shard.blob):
        named.collect()
    with monkeypatch.context() as patched:
        patched.setattr(damage, "digests_of", Mock(side_effect=PermissionError))  # the reader may not read it
        with pytest.raises(ENGINE_ERRORS), damage.named_damage(shard.blob):
            named.collect()
    shard.blob.set(key, data[:-1])
    with pytest.raises(CorruptArtifact, match=key), damage.named_damage(shard.blob):
        named.collect()


@pytest.mark.family("merges")
def test_a_part_whose_list_is_gone_is_not_said_to_be_damaged(
    shard: StagedShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run carries the file, and a commit keeps the manifest beside it."""
    monkeypatch.setattr(part_lists, "MAX_PARTS", 1)
    shard.commit([_record(1, "a", 1)], 10)
    manifest = shard.commit([_record(1, "b", 2)], 20)
    key, _ = _insertions(shard, manifest)
    for number, _ in enumerate(manifest.lists):
        shard.blob.delete(list_key(manifest_key(SHARD, shard.attempt), number))
    named = shard.spark.range(1).selectExpr(
        f"raise_error('Encountered error while reading file {shard.blob.uri_of(key)}')"
    )
    with pytest.raises(ENGINE_ERRORS), damage.named_damage(shard.blob):
        named.collect()


@pytest.mark.skipif(not READS_ARROW, reason="Spark reads small shards itself here, without digests")
def test_a_small_shard_is_read_with_its_digests_verified(shard: StagedShard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_LOCAL_BYTES", 1 << 20)
    manifest = shard.commit([_record(key, f"name {key}", key) for key in range(30)], 10)
    key, data = _insertions(shard, manifest)
    shard.blob.set(key, _flipped(data, len(data) - 9, 1))
    with pytest.raises(CorruptArtifact, match=key):
        snapshot(shard.spark, shard.location, SHARD)


@pytest.mark.family("merges")
def test_a_file_that_gc_deleted_during_a_read_is_no_damage(shard: StagedShard) -> None:
    first = shard.commit([_record(key, "a", key) for key in range(20)], 10)
    shard.commit([_record(1, "b", 1)], 20)
    slow = snapshot(shard.spark, shard.location, SHARD)
    state = shard.client.state(SHARD)
    merge_here(shard.client, Merge.of(shard.client, state, state.batches), attempt=shard.client.ids.uuid7())
    key, _ = _insertions(shard, first)
    shard.blob.delete(key)
    with pytest.raises(ReadTooSlow, match=rf"{SHARD} was merged.*{key} is gone.*lease"), named_failures(shard.location):
        slow.collect()
    assert snapshot(shard.spark, shard.location, SHARD).count() == 20


def test_a_folder_is_one_path_if_all_its_files_are_read(shard: StagedShard, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = shard.commit([_record(key, "a", key) for key in range(20)], 10)
    key, data = _insertions(shard, manifest)
    folder = posixpath.dirname(key).replace(shard.attempt, shard.client.ids.uuid7())
    files = [f"{folder}/part-{number}.parquet" for number in range(9)]
    for file in files:
        shard.blob.set(file, data)

    def paths_and_rows(count: int) -> tuple[str, int]:
        found = scan(shard.spark, shard.blob, [(file, ONE_KEY) for file in files[:count]], part_type(ONE_KEY))
        plan = found._jdf.queryExecution().toString()
        return plan.rpartition("InMemoryFileIndex(")[2].partition(")")[0], found.count()

    assert paths_and_rows(8) == ("8 paths", 160)
    assert paths_and_rows(9) == ("1 paths", 180)
    listed = shard.blob.list_keys_and_metadata

    def vanishing(prefix: str) -> list[BlobMetadata]:
        found = list(listed(prefix))
        shard.blob.delete(files[0])
        return found

    monkeypatch.setattr(shard.blob, "list_keys_and_metadata", vanishing)
    with pytest.raises(CorruptArtifact, match=r"part-0\.parquet: appeared or vanished"):
        paths_and_rows(9)


def test_a_file_that_vanishes_while_spark_lists_is_missed(shard: StagedShard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark looks whether a path is there, and then lists it: of one that went in between it reads nothing."""
    key, _ = _insertions(shard, shard.commit([_record(key, "a", key) for key in range(20)], 10))
    monkeypatch.setattr(parts, "files_found", lambda _: [])
    with pytest.raises(CorruptArtifact, match=f"{key}: appeared or vanished"):
        snapshot(shard.spark, shard.location, SHARD)


@pytest.mark.family("merges")
def test_a_folder_that_lost_files_is_not_read_as_before(shard: StagedShard) -> None:
    """To Spark reads of one path and equal options are one, in its cache and within a plan."""
    key, data = _insertions(shard, shard.commit([_record(key, "a", key) for key in range(20)], 10))
    folder = posixpath.dirname(key).replace(shard.attempt, shard.client.ids.uuid7())
    files = [f"{folder}/part-{number}.parquet" for number in range(10)]
    for file in files:
        shard.blob.set(file, data)
    old = scan(shard.spark, shard.blob, [(file, ONE_KEY) for file in files], part_type(ONE_KEY)).cache()
    try:
        assert old.count() == 200
        shard.blob.delete(files[0])
        new = scan(shard.spark, shard.blob, [(file, ONE_KEY) for file in files[1:]], part_type(ONE_KEY))
        assert new.count() == 180
    finally:
        old.unpersist()
    with pytest.raises(ENGINE_ERRORS):
        old.groupBy("id").count().union(new.groupBy("id").count()).collect()


@pytest.mark.family("merges")
def test_a_damaged_carried_file_is_found_without_its_manifest(shard: StagedShard) -> None:
    first = shard.commit([_record(key, "a", key) for key in range(20)], 10)
    part = next(part for part in first.parts if part.kind is PartKind.INSERTIONS)
    state = shard.client.state(SHARD)
    shard.commit([], 20)
    merge = Merge.of(shard.client, shard.client.state(SHARD), shard.client.state(SHARD).batches)
    run = merge.manifest((part,), state.batches[0].counts)
    replace_inputs(shard.client, run, stage_manifest(shard.blob, run, shard.client.ids.uuid7()))
    key, data = _insertions(shard, first)
    shard.blob.delete(state.batches[0].manifest_key)
    shard.blob.set(key, _flipped(data, _last_value(data, "name"), 3))
    with pytest.raises(CorruptArtifact, match=f"{key} is damaged"), named_failures(shard.location):
        snapshot(shard.spark, shard.location, SHARD).collect()


def test_digests_of_files_in_chunks(shard: StagedShard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("persist_spark.footers._CHUNK_BYTES", 1000)
    manifest = shard.write([_record(key, f"name {key}", key) for key in range(500)], shard.description(10))
    files = [file for file in shard.blob.list_keys_and_metadata("") if file.key.endswith(".parquet")]
    by_key = dict(zip([file.key for file in files], digests_of(shard.blob, files), strict=True))
    assert by_key == {part.key: part.sha256 for part in manifest.parts}


def test_a_folder_that_may_not_be_read_is_an_error_of_the_store(tmp_path: Path) -> None:
    blob = FileBlob(tmp_path)
    blob.set("orders/part", b"rows")
    assert damage.stored_sizes(blob, ["orders/part", "orders/gone"]) == {"orders/part": 4}
    (tmp_path / "orders").chmod(0)
    with unprivileged(), pytest.raises(Determinate, match="Permission denied"):
        damage.stored_sizes(blob, ["orders/part"])
