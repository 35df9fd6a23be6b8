"""One shard in two schema versions reads right in Spark: snapshots, look-ups, merges, views, and operator state."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from persist_core.compaction.merge import Merge, replace_inputs
from persist_core.contents.batch import LATE_OPERATOR, ORDER_INDEX_OPERATOR, STASH_OPERATOR
from persist_core.errors import CorruptArtifact
from persist_core.keys import manifest_key
from persist_core.maintenance.fsck import fsck
from persist_core.schema import DIFF, ERR_PAYLOAD, TIME, CollectionSchema, Column, field_id
from persist_core.shard.replace import Replaced
from persist_spark.merge import stage_merge
from persist_spark.read import frames
from persist_spark.read.frames import changes, errors, snapshot
from persist_spark.upsert import batch, lookup, state_before
from tests import two_versions
from tests.core.handles.test_schema_evolution import Evolving, check_changes
from tests.oracle.consolidate import NOT_SENT
from tests.oracle.upsert import TOMBSTONE, Record
from tests.sampling import sample
from tests.spark.staged_shard import StagedShard
from tests.spark.upsert_cases import to_records
from tests.spark.view_shards import ViewShards, text, view
from tests.two_versions import CHANGES, ERRORS_1, ERRORS_2, ROWS_1, ROWS_2, SHARD, VERSION_1, VERSION_2, WIDE, by_number


@pytest.fixture(autouse=True, params=["by this process", "by Spark"])
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Small shards are read by the driver, large ones by a scan."""
    if request.param == "by Spark":
        monkeypatch.setattr(frames, "MAX_LOCAL_BYTES", -1)
        monkeypatch.setattr(frames, "MAX_LOCAL_RETRACTION_BYTES", -1)
        monkeypatch.setattr(state_before, "SMALL_STASH_BYTES", -1)
        monkeypatch.setattr(batch, "SMALL_STATE_BYTES", -1)
        monkeypatch.setattr(batch, "LARGE_INDEX_BYTES", -1)
        monkeypatch.setattr(lookup, "FEW_RETRACTIONS_BYTES", -1)
    return str(request.param)


def check(shard: StagedShard) -> None:
    """Every read of the whole shard, at times in either version."""
    spark, location = shard.spark, shard.location
    for time, rows, errs in ((9, ROWS_1, ERRORS_1), (19, ROWS_2, ERRORS_2)):
        assert by_number([row.asDict() for row in snapshot(spark, location, SHARD, time).collect()]) == rows
        found = errors(spark, location, SHARD, time).collect()
        assert sorted((bytes(row[ERR_PAYLOAD]), row[TIME]) for row in found) == errs
    updates = [row.asDict() for row in changes(spark, location, SHARD, 9, 19).collect()]
    assert sorted((row.pop(DIFF), row.pop(TIME), row["number"], row) for row in updates) == sorted(
        (diff, 15, row["number"], row) for row, diff in CHANGES
    )


def merge_all(shard: StagedShard) -> None:
    state, attempt = shard.client.state(SHARD), shard.client.ids.uuid7()
    staged = stage_merge(shard.spark, shard.client, Merge.of(shard.client, state, state.batches), attempt)
    assert isinstance(replace_inputs(shard.client, staged, manifest_key(SHARD, attempt)), Replaced)


@pytest.mark.family("histories in Spark")
def test_two_versions_read_right_merged_or_not(spark: SparkSession, tmp_path: Path) -> None:
    shard = StagedShard(spark, tmp_path, VERSION_1)
    two_versions.write_both(shard.client)
    check(shard)
    merge_all(shard)
    check(shard)
    assert not fsck(shard.client, SHARD).violations


@pytest.mark.parametrize("seed", [100, 101])
@pytest.mark.family("histories in Spark")
def test_random_evolutions_read_in_spark_as_in_python(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    shard = StagedShard(spark, tmp_path, VERSION_1)
    evolving = Evolving(shard.client, Random(seed), "evolving")
    for _ in range(10):
        evolving.step()
    name, location = evolving.shard, shard.location
    assert evolving.past, "the seed has appended"
    for version in range(1, len(shard.client.state(name).schemas.versions) + 1):
        shown = evolving.shown(version)[-2:]
        for time, expected in shown:
            rows = [row.asDict() for row in snapshot(spark, location, name, time, schema=version).collect()]
            assert sorted(rows, key=lambda row: row["id"]) == expected
        for (low, before), (high, after) in itertools.pairwise(shown):
            found = changes(spark, location, name, low, high, schema=version).collect()
            check_changes(before, [row.asDict() for row in found], after)


def test_files_of_spark_have_the_ids_of_their_version(spark: SparkSession, tmp_path: Path) -> None:
    shard = StagedShard(spark, tmp_path, VERSION_1)
    manifest = shard.commit([_record(1, (*two_versions.OLD[0][1:],), None), _record(1, TOMBSTONE, 99)], 10)
    keys = [part.key for part in manifest.parts] + [each.key for each in manifest.operators[STASH_OPERATOR].artifacts]
    for key in keys:
        ids = {field.name: field_id(field) for field in pq.read_schema(pa.BufferReader(shard.blob.get(key)))}
        assert ids == {name: number for name, number in manifest.schema.field_ids.items() if name in ids}
        assert {"id", "name", TIME} < set(ids)


def test_a_file_without_ids_is_never_staged(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = StagedShard(spark, tmp_path, VERSION_1)
    monkeypatch.setattr("persist_spark.stage.with_field_ids", lambda rows, *_: rows)
    with pytest.raises(CorruptArtifact, match="field id None, expected"):
        shard.commit([_record(1, two_versions.OLD[0][1:], None)], 10)


_PLACES = itertools.count()


def _record(key: int, value: Any, time: int | None, seq: int | None = None) -> Record:
    return Record((key,), value, time, (seq, "f", 0, next(_PLACES)))


VARIANTS = [(order, is_delta) for order in (None, (Column("seq", "bigint"),)) for is_delta in (False, True)]


@pytest.mark.parametrize(("order", "is_delta"), sample(VARIANTS, 1, "older versions"))
@pytest.mark.family("histories in Spark")
def test_a_batch_meets_what_an_older_version_left(
    spark: SparkSession, tmp_path: Path, order: tuple[Column, ...] | None, is_delta: bool
) -> None:
    """Rows that did not change are not updated, the stash and the orders seen are read, by whatever name they have."""
    shard = StagedShard(spark, tmp_path, replace(VERSION_1, order=order))
    a, b, c = (row[1:] for row in two_versions.OLD)
    waiting = [_record(4, ("late", 0.1, "x", None), 15, 5), _record(5, ("later", None, None, None), 25, 5)]
    seen = [_record(6, c, None, 7), _record(6, TOMBSTONE, None, 8)]
    shard.commit([_record(1, a, None, 5), _record(2, b, None, 5), _record(3, c, None, 5), *waiting, *seen], 10)
    two_versions.evolve(shard.client, replace(VERSION_2, order=order))
    shard.schema = replace(VERSION_2, order=order)
    same, updated, new = (tuple(row.values())[1:] for row in (ROWS_1[0], ROWS_2[0], ROWS_2[2]))
    records = [_record(1, same, None, 6), _record(2, TOMBSTONE, None, 6), _record(3, updated, None, 6)]
    beaten = [_record(6, new, None, 4)] if order else []
    second = shard.commit([*records, _record(WIDE, new, None, 6), *beaten], 20, is_delta=is_delta)
    assert (second.counts.insertions, second.counts.retractions) == (3, 2), "key 1 is as it was"
    expected = {
        1: same,
        3: updated,
        4: (None, "late", two_versions.PRICE, None),
        WIDE: new,
    }
    names = [column.name for column in VERSION_2.columns]
    contents = [dict(zip(names, (key, *value), strict=True)) for key, value in expected.items()]
    assert by_number(shard.snapshot()) == contents
    assert by_number([row.asDict() for row in snapshot(spark, shard.location, SHARD).collect()]) == contents
    if order:
        assert [each.schema_version for each in shard.chains[LATE_OPERATOR]] == [2]
        assert {each.schema_version for each in shard.chains[ORDER_INDEX_OPERATOR]} >= {2}
    third = shard.commit([_record(6, new, None, 9)], 30)
    assert third.counts.insertions == 2
    late = dict(zip(names, (5, None, "later", None, None), strict=True))
    back = dict(zip(names, (6, *new), strict=True))
    assert by_number(shard.snapshot()) == by_number([*contents, late, back])
    merge_all(shard)
    assert by_number(shard.snapshot()) == by_number([*contents, late, back])
    assert {each.check for each in fsck(shard.client, SHARD).violations} <= {"manifest"}, "its deltas name no parent"


@pytest.mark.parametrize("order", sample([None, (Column("seq", "bigint"),)], 1, "errs of older versions"))
@pytest.mark.family("histories in Spark")
def test_an_err_of_an_older_version_says_what_is_known(
    spark: SparkSession, tmp_path: Path, order: tuple[Column, ...] | None
) -> None:
    """By the names and types that columns had when it was written; another column of such a name knows nothing."""
    types = {"one": "string", "two": "string", "gone": "string", "price": "float"}
    values = [Column(name, kind, id=place + 2, inherits=True) for place, (name, kind) in enumerate(types.items())]
    schema = replace(VERSION_1, values=tuple(values), order=order)
    shard = StagedShard(spark, tmp_path, schema)

    def deliver(value: tuple[Any, ...], upper: int, *, to: CollectionSchema) -> None:
        placed = replace(to, values=tuple(replace(each, id=place) for place, each in enumerate(to.values)))
        shard.commit(to_records(spark, placed, [_record(1, value, None, upper)]), upper, schema=to)

    deliver(("x", NOT_SENT, "old", 0.1), 10, to=schema)
    (one, two, _, price), gone = values, Column("gone", "string", id=6, inherits=True)
    after = (replace(one, name="first"), two, gone, replace(price, type="double"))
    second = replace(schema, key=(replace(schema.key[0], id=1),), values=after, version=2)
    two_versions.evolve(shard.client, second)
    deliver((NOT_SENT, "y", NOT_SENT, NOT_SENT), 20, to=second)
    assert shard.snapshot() == [{"id": 1, "first": "x", "two": "y", "gone": None, "price": two_versions.PRICE}]


@pytest.mark.family("histories in Spark")
def test_a_view_reads_inputs_and_itself_in_two_versions(spark: SparkSession, tmp_path: Path) -> None:
    shards = ViewShards(spark, tmp_path)
    two_versions.write_version_1(shards.client)
    shards.refresh(view("names", f"SELECT name, price FROM {SHARD}", [SHARD]))
    two_versions.evolve(shards.client)
    two_versions.write_version_2(shards.client)
    wider = CollectionSchema((), (Column("title", "string", id=1), Column("cost", "double", id=2)), version=2)
    two_versions.evolve(shards.client, wider, shard="names")
    renamed = view("names", f"SELECT title, price AS cost FROM {SHARD}", [SHARD])
    manifest = shards.refresh(renamed)
    expected = [text({"title": row["title"], "cost": row["price"]}) for row in ROWS_2]
    assert sorted(shards.rows("names")) == sorted(expected)
    assert (manifest.counts.insertions, manifest.counts.retractions) == (2, 2), "what did not change stays"
    assert not fsck(shards.client, "names").violations
