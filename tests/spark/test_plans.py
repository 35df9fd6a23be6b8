"""Which plan a batch gets, and what that reads: by a look at its keys and at what the shard holds."""

from __future__ import annotations

import contextlib
import io
import itertools
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from persist_core.contents import part_lists
from persist_core.contents.batch import BatchCounts, BatchManifest, Part, PartKind
from persist_core.contents.derived import Run
from persist_core.contents.key_range import KeyRange, exactly, key_at
from persist_core.errors import CorruptArtifact
from persist_core.keys import manifest_of_list
from persist_core.schema import INHERITED, CollectionSchema, Column
from persist_spark import frame, session
from persist_spark.upsert import batch as upsert_batch
from persist_spark.upsert import lookup
from persist_spark.upsert.look import MAX_CUTS, cuts_of, look_at
from persist_spark.upsert.lookup import committed_updates, expected_hits, expects_few_files
from persist_spark.upsert.plan import PlannedUpsert, persistent_upsert
from tests.oracle.consolidate import NOT_SENT
from tests.oracle.upsert import (
    TOMBSTONE,
    TRUNCATE,
    Err,
    Record,
)
from tests.sampling import sample
from tests.spark.staged_shard import SHARD, StagedShard
from tests.spark.upsert_cases import KEYS, ONE_KEY, to_records


def _record(key: int, value: Any, row: int, time: int | None = None) -> Record:
    return Record((key,), value, time, (None, "f", 0, row))


def _ok(name: str) -> tuple[str, None, None]:
    return (name, None, None)


@pytest.fixture
def shard(spark: SparkSession, tmp_path: Path) -> StagedShard:
    return StagedShard(spark, tmp_path / "location", ONE_KEY)


@dataclass
class _Plans:
    """The plans of a batch: whether each is thorough, has registers, and looks up the batch's slots only."""

    thorough: list[bool] = field(default_factory=list)
    inheriting: list[bool] = field(default_factory=list)
    keyed: list[bool] = field(default_factory=list)
    made: list[PlannedUpsert] = field(default_factory=list)

    def newest_reads(self, column: str) -> bool:
        """True if the newest plan reads such a column of a file."""
        schemas = [line for line in self.newest_text("formatted").splitlines() if line.startswith("ReadSchema: ")]
        assert schemas
        return any(column in schema for schema in schemas)

    def newest_text(self, mode: str) -> str:
        """The newest plan as Spark shows it, uncut."""
        updates = self.made[-1].updates
        names = ("spark.sql.maxMetadataStringLength", "spark.sql.debug.maxToStringFields")
        for name in names:
            updates.sparkSession.conf.set(name, "100000")
        with contextlib.redirect_stdout(io.StringIO()) as shown:
            updates.explain(mode)
        for name in names:
            updates.sparkSession.conf.unset(name)
        return shown.getvalue()


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> _Plans:
    """Thresholds of a large shard: no byte of it is few. A partition has 1,000 bytes."""
    seen = _Plans()

    def planned(*arguments: Any, **options: Any) -> Any:
        seen.thorough.append(options["is_thorough"])
        seen.inheriting.append(options["inherits"])
        seen.made.append(persistent_upsert(*arguments, **options))
        return seen.made[-1]

    def committed(*arguments: Any, **options: Any) -> Any:
        seen.keyed.append(options["slots"] is not None)
        return committed_updates(*arguments, **options)

    monkeypatch.setattr(upsert_batch, "persistent_upsert", planned)
    monkeypatch.setattr(upsert_batch, "committed_updates", committed)
    for module in (session, upsert_batch):
        monkeypatch.setattr(module, "ONE_TASK_BYTES", 1000)
    monkeypatch.setattr(session, "_BYTES_PER_PARTITION", 1000)
    monkeypatch.setattr(upsert_batch, "SMALL_STATE_BYTES", 0)
    return seen


def test_files_of_a_large_first_batch_share_no_keys(
    shard: StagedShard, plans: _Plans, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upsert_batch, "LARGE_STATE_BYTES", 1000)
    records = [_record(key * 7 % 500, _ok("a"), key) for key in range(500)]
    manifest = shard.write(records, shard.description(10, input_bytes=4000))
    files = sorted((part.keys.first or (), part.keys.last or ()) for part in manifest.parts)
    assert len(files) == 4
    assert all(low[1] < high[0] for low, high in itertools.pairwise(files))
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        plans.made[-1].updates.explain()
    assert shown.getvalue().count("Exchange ") == 1


@pytest.mark.parametrize(("files", "exchanges"), [(256, 0), (257, 1)])
def test_many_tiny_files_are_not_of_one_task(shard: StagedShard, plans: _Plans, files: int, exchanges: int) -> None:
    shard.write([_record(1, _ok("a"), 1)], replace(shard.description(10, input_bytes=500), input_files=files))
    assert plans.newest_text("simple").count("Exchange ") == exchanges


def test_the_exchange_moves_no_copies_of_orders(spark: SparkSession, tmp_path: Path, plans: _Plans) -> None:
    schema = replace(ONE_KEY, order=(Column("seq", "bigint"),))
    shard = StagedShard(spark, tmp_path / "location", schema)
    for upper in (10, 20):
        rows = [Record((key,), _ok(f"at {upper}"), None, (upper, "f", 0, key)) for key in range(500)]
        shard.commit(to_records(spark, schema, rows), upper)
    above, below = plans.newest_text("simple").split("Exchange ", 1)
    assert ("_w0#" in above, "_w0#" in below) == (True, False)  # Spark's name of an argument of a window
    assert above.count("Sort [") == 1


def test_a_truncate_of_a_large_shard_is_written_once(shard: StagedShard, plans: _Plans) -> None:
    shard.commit([_record(key, _ok("a"), key) for key in range(500)], 10)
    truncate = Record(None, TRUNCATE, 15, (None, "f", 0, 501))
    manifest = shard.commit([truncate, _record(7, _ok("b"), 502, time=16)], 20)
    assert (plans.thorough, plans.keyed) == ([False, True], [False, False])
    assert (manifest.counts.insertions, manifest.counts.retractions) == (1, 500)
    read_bytes = shard.client.manifest(shard.client.state(SHARD).batches[0]).size_bytes
    tasks = [part for part in manifest.parts if part.kind is PartKind.RETRACTIONS]
    assert len(tasks) == read_bytes // 1000 > 1  # one file each
    assert [row["name"] for row in shard.snapshot()] == ["b"]


@pytest.mark.family("histories in Spark")
def test_a_truncate_in_a_large_batch_is_found_before_writing(
    shard: StagedShard, plans: _Plans, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upsert_batch, "MAX_LOOK_BYTES", -1)  # as if all batches were larger
    shard.commit([_record(key, _ok("a"), key) for key in range(50)], 10)
    later = Record(None, TRUNCATE, 25, (None, "f", 0, 51))
    shard.commit([later, _record(7, _ok("b"), 52, time=16)], 20)  # which is not due
    assert (plans.thorough, plans.keyed) == ([False, False], [False, False])
    assert len(shard.snapshot()) == 50
    shard.commit([], 30)
    assert (plans.thorough, plans.keyed) == ([False, False, True], [False, False, False])
    assert shard.snapshot() == []
    shard.commit([_record(1, _ok("a"), 60, time=31)], 40)
    shard.commit([Record(None, TRUNCATE, 45, (None, "f", 0, 61))], 50, may_truncate=False)
    assert plans.thorough == [False, False, True, False, False, True]  # found by the plan that is discarded
    assert shard.snapshot() == []


@pytest.mark.family("sizes")
def test_a_tie_in_a_large_shard_reads_its_slots_only(shard: StagedShard, plans: _Plans) -> None:
    shard.commit([_record(key, _ok("a"), key) for key in range(50)], 10)
    tied = [Record((4,), _ok(name), None, (None, "f", 0, 60)) for name in ("lesser", "most")]
    manifest = shard.commit([*tied, _record(5, TOMBSTONE, 61)], 20)
    assert manifest.stats["order_ties"] == 1
    assert (plans.thorough, plans.keyed) == ([False, False, True], [False, True, True])
    assert {row["id"]: row["name"] for row in shard.snapshot()} == {key: "a" for key in range(50) if key != 5} | {
        4: "most"
    }


@pytest.mark.parametrize("looks", sample([True, False], 1, "registers"))
@pytest.mark.family("sizes")
def test_only_batches_that_meet_a_value_left_out_have_registers(
    spark: SparkSession, tmp_path: Path, plans: _Plans, monkeypatch: pytest.MonkeyPatch, looks: bool
) -> None:
    monkeypatch.setattr(upsert_batch, "SMALL_STATE_BYTES", 0 if looks else 1 << 30)
    values = tuple(replace(column, inherits=column.name == "name") for column in ONE_KEY.values)
    schema = replace(ONE_KEY, values=values, order=(Column("seq", "bigint"),))
    # A decoder names columns by their places among the values.
    decoded = replace(schema, values=tuple(replace(column, id=place) for place, column in enumerate(values)))
    shard = StagedShard(spark, tmp_path / "location", schema)

    def commit(upper: int, *records: tuple[int, Any]) -> list[bool]:
        plans.inheriting.clear()
        rows = [Record((key,), value, None, (upper, "f", 0, row)) for row, (key, value) in enumerate(records)]
        shard.commit(to_records(spark, decoded, rows), upper)
        return list(plans.inheriting)

    def rows() -> dict[int, Any]:
        return {row["id"]: row["name"] for row in shard.snapshot()}

    assert commit(10, (1, ("one", 1, 0.5)), (2, ("two", 2, 0.5))) == [False]
    assert commit(20, (1, ("other", 1, 0.5))) == [False]
    assert not plans.newest_reads(INHERITED)
    unsent = (1, (NOT_SENT, 3, 0.25))
    assert commit(30, unsent) == ([True] if looks else [False, True])
    assert rows() == {1: "other", 2: "two"}
    assert plans.newest_reads(INHERITED)
    assert commit(40, (1, ("one", 4, 0.5)), (2, ("two", 9, 0.5))) == [True]  # of what the shard holds
    assert rows() == {1: "one", 2: "two"}


def test_a_truncate_that_is_not_due_changes_no_plan(shard: StagedShard, plans: _Plans) -> None:
    shard.commit([_record(1, _ok("a"), 1), _record(2, _ok("b"), 2)], 10)
    shard.commit([Record(None, TRUNCATE, 25, (None, "f", 0, 5))], 20)
    assert (plans.thorough, plans.keyed) == ([False, False], [False, True])
    shard.commit([], 30)
    assert (plans.thorough, plans.keyed) == ([False, False, True], [False, True, False])
    assert shard.snapshot() == []


@pytest.mark.family("sizes")
def test_keys_that_do_not_fit_a_broadcast_are_not_broadcast(
    shard: StagedShard, plans: _Plans, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard.commit([_record(key, _ok("a"), key) for key in range(50)], 10)
    monkeypatch.setattr(frame, "MAX_BROADCAST_BYTES", 1000)
    shard.commit([_record(key, _ok("b"), 50 + key) for key in range(20)], 20)
    shard.commit([_record(key, _ok("b"), 50 + key) for key in range(9)], 30)
    assert plans.keyed == [False, False, True]
    wide = b"a key that cannot be decoded" * 20
    shard.commit([Record(wide, Err("key", wide, b"p"), None, (None, "f", 0, 99))], 40)
    assert plans.keyed == [False, False, True, False]


@pytest.mark.family("sizes")
def test_looking_up_only_the_batchs_slots_gives_the_same(shard: StagedShard, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = b"bad key"
    broken = Record(bad, Err("key", bad, b"p"), 1, (None, "f", 0, 30))
    shard.commit([*[_record(key, _ok("a"), key) for key in range(30)], broken], 10)
    shard.commit([_record(1, TOMBSTONE, 31), _record(2, _ok("b"), 32)], 20)
    records = [
        _record(1, _ok("again"), 41),
        _record(2, _ok("b"), 42),
        _record(3, _ok("c"), 43, time=21),
        _record(3, _ok("d"), 44, time=22),
        Record(bad, TOMBSTONE, None, (None, "f", 0, 45)),
    ]
    description = shard.description(30)
    whole = shard.write(records, description)
    monkeypatch.setattr(upsert_batch, "SMALL_STATE_BYTES", 0)
    monkeypatch.setattr(upsert_batch, "LARGE_STATE_BYTES", 0)
    monkeypatch.setattr(upsert_batch, "expects_few_files", lambda _: True)
    for few_errs_bytes in (0, 1 << 20):
        monkeypatch.setattr(lookup, "FEW_ERRS_BYTES", few_errs_bytes)
        keyed = shard.write(records, description)
        assert keyed.contents_digest == whole.contents_digest
        assert keyed.stats == whole.stats
        assert keyed.counts == BatchCounts(insertions=3, retractions=2, err_retractions=1)


@pytest.mark.family("sizes")
def test_a_look_up_opens_only_files_that_can_hold_the_keys(spark: SparkSession, tmp_path: Path) -> None:
    shard = StagedShard(spark, tmp_path / "location", ONE_KEY)
    for number in range(3):
        shard.commit([_record(10 * number + key, _ok("a"), key) for key in range(5)], number + 1)
    batches = shard.client.state(SHARD).batches
    committed = [(batch, shard.client.manifest(batch)) for batch in batches]
    slots = _waiting(spark, ONE_KEY, [3, 21, None])
    ranges = look_at(
        slots, ONE_KEY, 4, cuts_of(part.keys for _, manifest in committed for part in manifest.parts)
    ).ranges
    assert ranges == [KeyRange((3,), (3,)), KeyRange((21,), (21,))]
    found = committed_updates(spark, shard.blob, committed, ONE_KEY, slots=slots, ranges=ranges)
    assert found is not None
    assert sorted(row["id"] for row in found.collect()) == [3, 21]
    opened = {Path(path).parts[-3] for path in found.inputFiles()}
    assert opened == {Path(committed[number][1].parts[0].key).parts[-3] for number in (0, 2)}


@pytest.mark.family("sizes")
def test_a_write_reads_only_lists_that_can_hold_its_keys(shard: StagedShard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_lists, "MAX_PARTS", 1)
    shard.commit([_record(key, _ok("a"), key) for key in range(30)], 10)
    shard.commit([_record(1, _ok("b"), 31), _record(2, TOMBSTONE, 32)], 20)
    lists = [key for entry in shard.blob.list_keys_and_metadata("") if manifest_of_list(key := entry.key)]
    assert len(lists) == 2
    records, description = [_record(20, _ok("c"), 41)], shard.description(30)
    whole = shard.write(records, description)
    for key in lists:
        shard.blob.delete(key)
    with pytest.raises(CorruptArtifact, match=lists[0]):
        shard.write(records, description)
    monkeypatch.setattr(upsert_batch, "SMALL_STATE_BYTES", 0)
    monkeypatch.setattr(upsert_batch, "LARGE_STATE_BYTES", 0)
    monkeypatch.setattr(upsert_batch, "expects_few_files", lambda _: True)
    assert shard.write(records, description).contents_digest == whole.contents_digest


@pytest.mark.parametrize(
    ("newest", "expected"),
    [((35, 50), True), ((5, 50), False), ((None, None), False), ((100, 120), True)],
)
def test_ranges_pay_if_the_newest_raw_batch_met_few_files(
    newest: tuple[int | None, int | None], expected: bool
) -> None:
    run = [_manifest_of(*[(10 * n, 10 * n + 9) for n in range(4)], run=Run((), 0, 0))]
    assert expects_few_files(run)
    later = [*run, _manifest_of(newest), _manifest_of()]
    assert expects_few_files(later) is expected


@pytest.mark.parametrize(
    ("newest", "expected"),
    [(BatchCounts(40), 0), (BatchCounts(40, 10), 25), (BatchCounts(40, 50), 125), (BatchCounts(0, 3), 300)],
)
def test_hits_are_expected_as_in_the_newest_raw_batch(newest: BatchCounts, expected: int) -> None:
    run, sealed = _manifest_of(run=Run((), 0, 0)), _manifest_of()
    assert expected_hits(100, [run, sealed]) == 0
    counted = [replace(run, counts=BatchCounts(9, 9)), replace(sealed, counts=newest), sealed]
    assert expected_hits(100, counted) == expected


def _manifest_of(*bounds: tuple[int | None, int | None], run: Run | None = None) -> BatchManifest:
    """A batch with a file of 100 bytes for each of these ranges of keys."""
    keys = [(None if low is None else (low,), None if high is None else (high,)) for low, high in bounds]
    parts = tuple(Part(f"{n}", PartKind.INSERTIONS, 100, "", ONE_KEY, None, None, *each) for n, each in enumerate(keys))
    return BatchManifest(SHARD, 0, 1, "token", "", ONE_KEY, parts, BatchCounts(), "c", 1, None, "test", run=run)


def _waiting(spark: SparkSession, schema: CollectionSchema, keys: list[Any]) -> DataFrame:
    """Records as a look sees them: of keys, and of a key that cannot be decoded."""
    rows = [(key, None if key is not None else b"bad", "u", None) for key in keys]
    key = schema.key[0]
    types = f"`{key.name}` {key.type}, _persist_bad_key binary, _persist_op string, _persist_time bigint"
    return spark.createDataFrame(rows, types)


def test_ranges_of_a_batchs_keys_hold_them_all(spark: SparkSession) -> None:
    for type_name in ("int", "string", "date", "timestamp"):
        values = KEYS[type_name] if type_name != "int" else list(range(0, 10_000, 7))
        schema = CollectionSchema((Column("the.key", type_name, nullable=False),))
        keys = pa.table({"the.key": pa.array(values, schema.arrow()[0].type)})
        cuts = sorted({key_at(keys, row, schema.key)[0] for row in range(len(values))})[::23]
        look = look_at(_waiting(spark, schema, [*values, None, *values]), schema, 9, cuts)
        assert look.ranges is not None
        assert len(look.ranges) == (63 if type_name == "int" else 1)
        found = [key_at(keys, row, schema.key) for row in range(len(values))]
        assert all(any(each.covers(exactly(key)) for each in look.ranges) for key in found)
        assert look_at(_waiting(spark, schema, [None]), schema, 9, cuts).ranges == []
    decimal = CollectionSchema((Column("the.key", "decimal(9,2)", nullable=False),))
    assert look_at(_waiting(spark, decimal, []), decimal, 9, []).ranges is None


def test_a_far_key_opens_no_files_between(spark: SparkSession) -> None:
    manifest = _manifest_of(*[(100 * n, 100 * n + 99) for n in range(300)])
    cuts = cuts_of(part.keys for part in manifest.parts)
    assert 31 < len(cuts) <= MAX_CUTS
    assert cuts_of([]) == []
    assert len(cuts_of([KeyRange((n,), (n,)) for n in range(MAX_CUTS)])) == MAX_CUTS
    look = look_at(_waiting(spark, ONE_KEY, [5, 29_990, 29_999, 29_991]), ONE_KEY, 9, cuts)
    assert look.ranges == [KeyRange((5,), (5,)), KeyRange((29_990,), (29_999,))]
