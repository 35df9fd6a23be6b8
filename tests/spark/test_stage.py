"""The write stage against a location of files: what is staged, what the manifest says, what is refused."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from persist_core.config.collection import FILE_POSITION
from persist_core.contents.batch import STASH_OPERATOR, BatchCounts, BatchManifest, PartKind
from persist_core.contents.key_range import range_of
from persist_core.contents.parts import updates_schema
from persist_core.contents.schema_versions import SchemaVersions
from persist_core.errors import (
    InvalidInput,
    InvariantViolation,
    SchemaMismatch,
    TooManyErrors,
)
from persist_core.keys import PART, manifest_key
from persist_core.location.file.blob import FileBlob
from persist_core.schema import CollectionSchema, Column
from persist_spark import stage
from persist_spark.footers import Footer, footers_of
from persist_spark.frame import ERR_COLUMNS, part_type, with_field_ids
from tests.oracle.upsert import (
    TOMBSTONE,
    TRUNCATE,
    Err,
    Record,
)
from tests.spark.s3_store import s3_blob, shard_on_one_store
from tests.spark.staged_shard import SHARD, StagedShard
from tests.spark.upsert_cases import KEYS, ONE_KEY

HOSTILE_NAME = "we [ird] {a,b} *?% ü"
HOSTILE = CollectionSchema(
    key=(Column("Part", "string", nullable=False), Column("k1", "bigint", nullable=False)),
    values=(
        Column("x.y", "string"),
        Column("a`b", "string"),
        Column("'; DROP TABLE x --", "string"),
        Column("v0", "decimal(38,10)"),
        Column("time", "timestamp"),
        Column('ключ ="\U0001f511"', "json"),
    ),
    position=FILE_POSITION,
)


def _record(key: int, value: Any, row: int, time: int | None = None) -> Record:
    return Record((key,), value, time, (None, "f", 0, row))


def _ok(name: str) -> tuple[str, None, None]:
    return (name, None, None)


pytest_generate_tests = shard_on_one_store


@pytest.fixture
def shard(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Iterator[StagedShard]:
    """An empty shard in a folder, then below a prefix, whose name has characters that globs and URIs must escape."""
    where = tmp_path / HOSTILE_NAME
    with closing(FileBlob(where) if request.param == "file" else s3_blob(request, HOSTILE_NAME)) as blob:
        yield StagedShard(spark, blob, ONE_KEY)


def test_manifest_says_what_is_there(shard: StagedShard) -> None:
    err = Err("value", b"k", b"raw", "message")
    records = [
        _record(1, _ok("a"), 1, time=1),
        _record(1, _ok("b"), 2, time=2),
        _record(2, err, 3),
        _record(3, _ok("later"), 4, time=99),
    ]
    manifest = shard.write(records, shard.description(10))
    found = shard.blob.get(manifest_key(SHARD, shard.attempt))
    assert found is not None
    assert BatchManifest.decode(found) == manifest
    assert manifest.counts == BatchCounts(insertions=2, retractions=1, err_insertions=1)
    assert {part.kind: part.rows for part in manifest.parts} == {
        PartKind.INSERTIONS: 2,
        PartKind.RETRACTIONS: 1,
        PartKind.ERRS: 1,
    }
    for part in manifest.parts:
        data = shard.blob.get(part.key)
        assert data is not None
        assert (len(data), f"/{PART}={part.kind}/" in part.key) == (part.size_bytes, True)
        assert hashlib.sha256(data).hexdigest() == part.sha256
    (artifact,) = manifest.operators[STASH_OPERATOR].artifacts
    stash = shard.blob.get(artifact.key)
    assert stash is not None
    assert (artifact.sha256, artifact.size_bytes) == (hashlib.sha256(stash).hexdigest(), len(stash))
    assert not manifest.operators[STASH_OPERATOR].is_delta
    named = {part.key for part in manifest.parts} | {artifact.key}
    assert {f"{SHARD}/batches/{shard.attempt}/{key}" for key in shard.staged_keys()} == {
        *named,
        manifest_key(SHARD, shard.attempt),
    }
    assert manifest.stats["stashed"] == 1


def test_restaged_batch_has_the_same_contents_digest(shard: StagedShard) -> None:
    records = [_record(key, _ok(str(key)), key) for key in range(50)]
    description = shard.description(10)
    first = shard.write(records, description)
    again = shard.write(records[::-1], description)
    other = shard.write([*records[1:], _record(0, _ok("other"), 51)], description)
    assert again.contents_digest == first.contents_digest != other.contents_digest
    assert {part.key for part in again.parts}.isdisjoint(part.key for part in first.parts)


def test_used_attempt_is_refused(shard: StagedShard) -> None:
    shard.write([_record(1, _ok("a"), 1)], shard.description(10))
    with pytest.raises(InvalidInput, match="was used before"):
        shard.write([_record(1, _ok("a"), 1)], shard.description(10), attempt=shard.attempt)


def test_too_many_errors_write_no_manifest(shard: StagedShard) -> None:
    records = [_record(key, Err("value", b"k", b"raw"), key) for key in range(3)]
    with pytest.raises(TooManyErrors, match=r"3 of 3 processed records of things 0 -> 10 are errors; at most 2"):
        shard.write(records, shard.description(10), max_errors=(2,))
    assert "manifest.json" not in shard.staged_keys()
    assert shard.write(records, shard.description(10), max_errors=None).counts.err_insertions == 3


def test_thorough_plan_leaves_only_its_own_files(shard: StagedShard) -> None:
    shard.commit([_record(1, _ok("a"), 1), _record(2, _ok("b"), 2)], 10)
    truncate = Record(None, TRUNCATE, 15, (None, "f", 0, 5))
    tied = [Record((4,), _ok(name), 16, (None, "f", 0, 9)) for name in ("lesser", "most")]
    manifest = shard.commit([_record(3, _ok("c"), 4), truncate, _record(2, _ok("d"), 6, time=15), *tied], 20)
    assert (manifest.stats["truncated"], manifest.stats["order_ties"]) == (2, 1)
    staged = [key for key in shard.staged_keys() if key != "manifest.json"]
    assert len(staged) == len(manifest.parts)
    assert [row["name"] for row in shard.snapshot()] == ["d", "c", "most"]
    assert shard.snapshot(14) == shard.snapshot(9)


def test_broken_history_fails_with_key_and_both_values(shard: StagedShard) -> None:
    writer = shard.client.open_writer(SHARD)
    rows = {"id": [7, 7], "name": ["one", "two"], "amount": [1, 2], "rate": [None, None]}
    oks = pa.table({**rows, "_persist_time": [1, 2], "_persist_diff": [1, 1]}).cast(updates_schema(ONE_KEY))
    description = shard.description(10)
    shard.attempt = shard.client.ids.uuid7()
    key = writer.stage(description, ONE_KEY, shard.attempt, oks)
    shard.append(shard.client.staged_manifest(key))
    shard.upper, shard.epoch = 10, 2
    with pytest.raises(InvariantViolation, match=r'"k0":7.*"one".*|.*persist fsck things') as failure:
        shard.write([_record(7, _ok("three"), 1)], shard.description(20))
    assert all(text in str(failure.value) for text in ('"one"', '"two"', "at time 2", "persist fsck things"))
    assert "manifest.json" not in shard.staged_keys()


def test_schema_must_fit_before_a_byte_is_staged(shard: StagedShard) -> None:
    shard.commit([_record(1, _ok("a"), 1)], 10)
    other = replace(ONE_KEY, values=(replace(ONE_KEY.values[0], type="int"), *ONE_KEY.values[1:]))
    with pytest.raises(SchemaMismatch):
        shard.write([Record((1,), (5, None, None), None, (None, "f", 0, 2))], shard.description(20), schema=other)
    assert shard.staged_keys() == []


def test_added_column_is_null_in_older_parts(shard: StagedShard) -> None:
    shard.commit([_record(1, _ok("a"), 1), _record(2, _ok("b"), 2)], 10)
    wider = replace(ONE_KEY, values=(*ONE_KEY.values, Column("more", "date")))
    same = Record((2,), (*_ok("b"), None), None, (None, "f", 0, 4))
    manifest = shard.commit([Record((1,), (*_ok("c"), None), None, (None, "f", 0, 3)), same], 20, schema=wider)
    assert (manifest.stats["updates"], manifest.stats["result_count"]) == (1, 2)
    assert [(row["name"], row["more"]) for row in shard.snapshot()] == [("c", None), ("b", None)]


def test_a_stash_continues_through_deltas_to_the_inputs_end(shard: StagedShard) -> None:
    shard.commit([_record(1, _ok("at 12"), 1, time=12), _record(1, _ok("at 25"), 2, time=25)], 10)
    assert shard.snapshot() == []
    second = shard.commit(
        [_record(1, _ok("at 40"), 3, time=40), _record(1, _ok("newer"), 4, time=25)], 20, is_delta=True
    )
    assert (second.stats["stash_before"], second.stats["stashed"], len(shard.stash)) == (2, 2, 2)
    assert [row["name"] for row in shard.snapshot()] == ["at 12"]
    third = shard.commit([_record(2, _ok("last"), 5)], None)
    assert (third.stats["stash_before"], third.stats["stashed"], third.operators) == (2, 0, {})
    history = [shard.snapshot(time) for time in (11, 12, 24, 25, 39, 40)]
    assert [[row["name"] for row in rows if row["id"] == 1] for rows in history] == [
        [],
        ["at 12"],
        ["at 12"],
        ["newer"],
        ["newer"],
        ["at 40"],
    ]


def test_hostile_column_names_are_only_names(spark: SparkSession, tmp_path: Path) -> None:
    shard = StagedShard(spark, tmp_path / "location", HOSTILE)
    width = len(HOSTILE.values)
    value = ("dot", "tick", "drop", None, None, "{}")
    first = Record(("../..", 1), value, 1, (None, "f", 0, 1))
    second = Record(("../..", 1), (None,) * width, 2, (None, "f", 0, 2))
    shard.commit([first, second], 10)
    shard.commit([Record(("../..", 1), TOMBSTONE, None, (None, "f", 0, 3))], 20)
    (row,) = shard.snapshot(1)
    assert list(row.values()) == ["../..", 1, *value]
    assert shard.snapshot(2)[0]["x.y"] is None
    assert shard.snapshot() == []
    assert [path.name for path in tmp_path.iterdir()] == ["location"]


def test_rows_that_nobody_counted_fail_the_run() -> None:
    outcome = stage.Written(counts=BatchCounts(insertions=1))
    names = ("task", "speculative-task")
    files = [stage.StagedFile("insertions", f"x/{name}.parquet", 10, "", Footer(1), ONE_KEY) for name in names]
    stage.check_rows(files[:1], outcome, "x")
    with pytest.raises(InvariantViolation, match="the insertions files hold 2 rows; the action counted 1"):
        stage.check_rows(files, outcome, "x")


def test_footers_of_spark_bound_keys_as_arrow_sorts_them(spark: SparkSession, tmp_path: Path) -> None:
    """The footer of a single column says what the rows say; a file without rows says nothing."""
    blob = FileBlob(tmp_path)
    for number, (type_name, values) in enumerate(KEYS.items()):
        schema = SchemaVersions().placed(CollectionSchema((Column("the.key", type_name, nullable=False),)))
        rows = [(value, 0, 1, *[None] * len(ERR_COLUMNS)) for value in values]
        for name, found in ((f"{number}-full", rows), (f"{number}-none", [])):
            given = spark.createDataFrame(found, part_type(schema))
            frame = with_field_ids(given, given.columns, schema).coalesce(1)
            frame.write.parquet(f"file://{tmp_path}/{name}")
        full, none = (
            [file for file in blob.list_keys_and_metadata(f"{number}-{name}/") if file.key.endswith(".parquet")]
            for name in ("full", "none")
        )
        table = pa.table({"the.key": pa.array(values, schema.arrow()[0].type)})
        (footer,) = footers_of(blob, full, schema)
        bounds = Footer(len(values), range_of(table, schema.key), last_time=0, first_time=0, inherits=False)
        assert replace(footer, index=None) == bounds
        assert [replace(each, index=None) for each in footers_of(blob, none, schema)] == [Footer(0, inherits=False)]
        assert range_of(table, schema.key).first is not None
