"""`persist_spark.snapshot`, `changes` and their errs against the plain-Python reader, at every time."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import persist_spark
from persist_core.config.collection import FILE_POSITION
from persist_core.contents.parts import updates_schema
from persist_core.errors import InvalidInput, InvariantViolation, OutsideFrontiers, ShardNotFound
from persist_core.handles.client import PersistClient
from persist_core.keys import manifest_key
from persist_core.location.open import open_location
from persist_core.location.settings import PersistLocation
from persist_core.schema import CollectionSchema, Column
from persist_spark import frame
from persist_spark.compat import READS_ARROW
from persist_spark.read import frames as read
from persist_spark.read.damage import named_damage
from tests.oracle.consolidate import canonical_bytes
from tests.oracle.upsert import TOMBSTONE, Record
from tests.spark.staged_shard import SHARD, StagedShard
from tests.spark.upsert_cases import MANY_KEYS_DOMAIN, ONE_KEY, Feed

ROWS = CollectionSchema(key=(), values=(Column("a.b", "string"), Column("n", "double")))


def _rows(found: Iterable[dict[str, Any]]) -> list[str]:
    """Rows as comparable texts: NaN equals NaN, times in UTC."""
    return sorted(
        canonical_bytes(
            [bytes(cell) if isinstance(cell, bytearray) else cell for cell in row.values()], list(row)
        ).decode()
        for row in found
    )


def _spark_rows(frame: DataFrame) -> list[str]:
    return _rows(row.asDict() for row in frame.collect())


@pytest.mark.family("decoders")
def test_reads_are_the_plain_readers(
    spark: SparkSession, tmp_path: Path, persist_seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = StagedShard(spark, tmp_path, MANY_KEYS_DOMAIN.schema)
    feed = Feed(MANY_KEYS_DOMAIN, random.Random(f"{persist_seed}/reads"), worlds=10)
    for lower, upper in ((0, 3), (3, 4), (4, 9)):
        shard.commit(feed.records(80, lower, upper), upper)
    reader = shard.client.open_reader(SHARD)
    for time in (0, 3, 6, 8):
        for limit in (0, 1 << 20):
            monkeypatch.setattr(read, "MAX_LOCAL_BYTES", limit)
            monkeypatch.setattr(read, "MAX_LOCAL_RETRACTION_BYTES", limit)
            found = persist_spark.snapshot(spark, shard.location, SHARD, time)
            assert _spark_rows(found) == _rows(reader.snapshot(time).to_pylist())
        errs = persist_spark.errors(spark, shard.location, SHARD, time).drop("_persist_err_message")
        wanted = reader.errors(time).drop_columns(["_persist_err_message"]).select(errs.columns)
        assert _spark_rows(errs) == _rows(wanted.to_pylist())
    for after, through in ((0, 8), (2, 3), (5, 5)):
        changed = persist_spark.changes(spark, shard.location, SHARD, after, through)
        assert _spark_rows(changed) == _rows(reader.changes(after, through).to_pylist())
        errs = persist_spark.error_changes(spark, shard.location, SHARD, after, through)
        assert errs.count() == len(reader.error_changes(after, through))


def test_snapshot_is_the_same_however_its_retractions_are_read(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = StagedShard(spark, tmp_path, ONE_KEY)
    shard.commit([Record((k,), ("a", k, 0.5), None, (None, "f", 0, k)) for k in range(20)], 10)
    shard.commit([Record((k,), TOMBSTONE, None, (None, "f", 0, k)) for k in range(0, 20, 2)], 20)
    wanted = _spark_rows(persist_spark.snapshot(spark, shard.location, SHARD))
    monkeypatch.setattr(read, "MANIFESTS_KEPT", 1)
    # The retractions alone are small; nothing is, and they are broadcast; nothing is, and they are not.
    limits = ((read, "MAX_LOCAL_BYTES"), (read, "MAX_LOCAL_RETRACTION_BYTES"), (frame, "MAX_BROADCAST_BYTES"))
    for module, limit in limits:
        monkeypatch.setattr(module, limit, 0)
        assert _spark_rows(persist_spark.snapshot(spark, shard.location, SHARD)) == wanted
        assert len(read._manifests) == 1
    assert len(wanted) == 10


@pytest.mark.skipif(not READS_ARROW, reason="Spark reads small shards itself here")
def test_many_rows_in_small_files_are_read_by_spark(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = StagedShard(spark, tmp_path, ONE_KEY)
    shard.commit([Record((k,), ("a", k, 0.5), None, (None, "f", 0, k)) for k in range(20)], 10)
    for most, is_scanned in ((20, False), (19, True)):
        monkeypatch.setattr(read, "MAX_LOCAL_ROWS", most)
        found = persist_spark.snapshot(spark, shard.location, SHARD)
        assert ("parquet" in found._jdf.queryExecution().optimizedPlan().toString()) is is_scanned
        assert found.count() == 20


def test_retractions_with_wide_keys_are_not_broadcast(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("MAX_LOCAL_BYTES", "MAX_LOCAL_RETRACTION_BYTES"):
        monkeypatch.setattr(read, limit, 0)
    monkeypatch.setattr(frame, "MAX_BROADCAST_BYTES", 2000)  # nine rows of two columns take 864, and twice their texts
    key, values = (Column("id", "string", nullable=False),), (Column("n", "bigint"),)
    schema = CollectionSchema(key, values, position=FILE_POSITION)
    for width, is_broadcast in ((1, True), (100, False)):
        shard = StagedShard(spark, tmp_path / str(width), schema)
        keys = [(str(number) * width,) for number in range(10)]
        shard.commit([Record(key, (1,), None, (None, "f", 0, 1)) for key in keys], 10)
        shard.commit([Record(key, TOMBSTONE, None, (None, "f", 0, 2)) for key in keys[:9]], 20)
        found = persist_spark.snapshot(spark, shard.location, SHARD)
        assert ("broadcast" in found._jdf.queryExecution().optimizedPlan().toString()) is is_broadcast
        assert [row["id"] for row in found.collect()] == ["9" * width]


def test_multiset_rows_come_as_often_as_their_diffs_say(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "MAX_LOCAL_BYTES", 0)
    shard = StagedShard(spark, tmp_path, ROWS)
    writer = shard.client.open_writer(SHARD)
    batches: list[tuple[int, list[tuple[str | None, float | None, int, int]]]] = [
        (5, [("x", 1.0, 1, 3), (None, None, 2, 1), ("y", float("nan"), 2, 2)]),
        (9, [("x", 1.0, 6, -2), ("y", float("nan"), 7, -2)]),
    ]
    for upper, updates in batches:
        columns = list(zip(*updates, strict=True))
        oks = pa.table([pa.array(column) for column in columns], names=updates_schema(ROWS).names)
        shard.attempt = shard.client.ids.uuid7()
        key = writer.stage(shard.description(upper), ROWS, shard.attempt, oks.cast(updates_schema(ROWS)))
        shard.append(shard.client.staged_manifest(key))
        assert key == manifest_key(SHARD, shard.attempt)
        shard.upper, shard.epoch = upper, shard.epoch + 1
    reader = shard.client.open_reader(SHARD)
    for time in (1, 4, 6, 8):
        found = persist_spark.snapshot(spark, shard.location, SHARD, time)
        assert _spark_rows(found) == _rows(reader.snapshot(time).to_pylist())
    assert persist_spark.changes(spark, shard.location, SHARD, 4).count() == 2


@pytest.mark.parametrize("diffs", [(1, -2), (2**63 - 1,)], ids=["below zero", "huge"])
def test_a_multiset_s_snapshot_hides_no_broken_count(
    spark: SparkSession, tmp_path: Path, diffs: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "MAX_LOCAL_BYTES", 0)
    shard = StagedShard(spark, tmp_path, ROWS)
    rows = [
        {"a": "whole", "b": 1.0, "t": 0, "d": 1},
        *({"a": "x", "b": 1.0, "t": 1 + t, "d": d} for t, d in enumerate(diffs)),
    ]
    oks = pa.Table.from_pylist(rows).rename_columns(updates_schema(ROWS).names).cast(updates_schema(ROWS))
    shard.attempt = shard.client.ids.uuid7()
    key = shard.client.open_writer(SHARD).stage(shard.description(5), ROWS, shard.attempt, oks)
    shard.append(shard.client.staged_manifest(key))
    said = rf"shard {SHARD}: a row is there {sum(diffs)} times, expected 0 to \d+: .*\"x\""
    with pytest.raises(InvariantViolation, match=said), named_damage(shard.blob):
        persist_spark.snapshot(spark, shard.location, SHARD).collect()
    assert persist_spark.snapshot(spark, shard.location, SHARD, 0).count() == 1


def test_reads_outside_the_frontiers_print_both(spark: SparkSession, tmp_path: Path) -> None:
    uris = PersistLocation(f"file://{tmp_path}/blobs", f"sqlite:///{tmp_path}/consensus.db")
    with pytest.raises(ShardNotFound):
        persist_spark.snapshot(spark, uris, SHARD)
    with open_location(uris) as location:
        client = PersistClient(location)
        client.ensure_shard(SHARD)
        with pytest.raises(OutsideFrontiers):
            persist_spark.snapshot(spark, uris, SHARD)
    shard = StagedShard(spark, tmp_path, ONE_KEY)
    shard.commit([], 10)
    assert persist_spark.snapshot(spark, shard.location, SHARD).count() == 0
    assert persist_spark.errors(spark, shard.location, SHARD).count() == 0
    with pytest.raises(OutsideFrontiers, match=r"\[since 0, upper 10\); the read asked for 10"):
        persist_spark.snapshot(spark, shard.location, SHARD, 10)
    with pytest.raises(InvalidInput, match="after 5 through 4"):
        persist_spark.changes(spark, shard.location, SHARD, 5, 4)
    shard.client.set_history(SHARD, 3)
    shard.client.advance_since(SHARD)
    assert persist_spark.snapshot(spark, shard.location, SHARD, 7).count() == 0
    gone = r"\[since 7, upper 10\); the read asked for 6. The history before since is gone.*`persist holds"
    with pytest.raises(OutsideFrontiers, match=gone):
        persist_spark.snapshot(spark, shard.location, SHARD, 6)
    with pytest.raises(OutsideFrontiers, match=gone):
        persist_spark.changes(spark, shard.location, SHARD, 6)


def test_a_name_in_backticks_may_be_a_pattern_to_a_session(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("MAX_LOCAL_BYTES", "MAX_LOCAL_RETRACTION_BYTES"):
        monkeypatch.setattr(read, limit, 0)
    session = spark.newSession()
    session.conf.set("spark.sql.parser.quotedRegexColumnNames", "true")
    key, values = (Column("i`d.*", "string", nullable=False),), (Column("a.b", "int"), Column("axb", "int"))
    schema = CollectionSchema(key, values, position=FILE_POSITION)
    shard = StagedShard(spark, tmp_path, schema)
    shard.commit([Record((name,), (1, 2), None, (None, "f", 0, 1)) for name in "xy"], 10)
    shard.schema = CollectionSchema(key, (Column("a.b", "bigint"), values[1]), position=FILE_POSITION)
    shard.commit([Record(("x",), TOMBSTONE, None, (None, "f", 0, 2))], 20)
    reader = shard.client.open_reader(SHARD)
    found = persist_spark.snapshot(session, shard.location, SHARD)
    assert _spark_rows(found) == _rows(reader.snapshot().to_pylist())
    assert len(_spark_rows(found)) == 1
    changed = persist_spark.changes(session, shard.location, SHARD, 0)
    assert _spark_rows(changed) == _rows(reader.changes(0).to_pylist())
