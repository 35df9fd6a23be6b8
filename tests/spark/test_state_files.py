"""Operator state in files: what a batch leaves closed, what a full state carries over, and that neither changes it."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from persist_core.checkpoint.publish import publish_and_retain
from persist_core.config.collection import FILE_POSITION
from persist_core.config.shard import RetentionConfig
from persist_core.contents import operator_state
from persist_core.contents.batch import LATE_OPERATOR, ORDER_INDEX_OPERATOR, STASH_OPERATOR
from persist_core.contents.key_range import exactly
from persist_core.contents.operator_state import StateArtifact, chain_digest, to_fold
from persist_core.errors import CorruptArtifact
from persist_core.keys import part_key
from persist_core.schema import CollectionSchema, Column
from persist_spark.upsert import batch, fold, look, state_before
from tests.oracle.consolidate import UpsertDiff, as_of
from tests.oracle.sequence import OrderMemory
from tests.oracle.upsert import TOMBSTONE, Record, drain_sealed_input
from tests.sampling import is_long, sample
from tests.spark.staged_shard import SHARD, StagedShard

KEY, VALUES = (Column("id", "bigint", nullable=False),), (Column("name", "string"),)
LOG = CollectionSchema(KEY, VALUES, position=FILE_POSITION)
SEQUENCE = CollectionSchema(KEY, VALUES, order=(Column("seq", "bigint"),), position=FILE_POSITION)
DAY = 10


@pytest.fixture(autouse=True)
def all_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every limit below which a batch reads all."""
    monkeypatch.setattr(state_before, "SMALL_STASH_BYTES", -1)
    monkeypatch.setattr(batch, "SMALL_STATE_BYTES", -1)
    monkeypatch.setattr(batch, "LARGE_INDEX_BYTES", -1)


def spoil(shard: StagedShard, artifact: StateArtifact) -> None:
    """Other bytes of the same size: a reader of the file fails."""
    shard.blob.set(artifact.key, b"?" * artifact.size_bytes)


class Feed:
    """Records of a few keys, of times in the batch and up to `ahead` days after it."""

    def __init__(self, dice: random.Random, schema: CollectionSchema, keys: int = 12) -> None:
        self.dice, self.schema, self.keys, self.row = dice, schema, keys, 0

    def record(self, lower: int, upper: int, ahead: int) -> Record:
        self.row += 1
        time = self.dice.choice([None, self.dice.randrange(lower, upper + ahead * DAY)])
        value: Any = TOMBSTONE if self.dice.random() < 0.4 else (self.dice.choice("abc"),)
        position = ("f", 0, self.row)
        late = self.row + self.dice.choice([0, 0, -9])
        order = (None if self.schema.order is None else late, *position)
        return Record((self.dice.randrange(self.keys),), value, time, order)


@pytest.mark.parametrize("schema", [LOG, SEQUENCE], ids=["log", "sequence"])
@pytest.mark.parametrize("world", range(4 if is_long() else 1))
@pytest.mark.family("sizes")
def test_random_histories_with_carried_files_are_the_oracles(
    spark: SparkSession,
    tmp_path: Path,
    persist_seed: int,
    monkeypatch: pytest.MonkeyPatch,
    schema: CollectionSchema,
    world: int,
) -> None:
    dice = random.Random(f"{persist_seed}/{schema.order}/{world}")
    monkeypatch.setattr(operator_state, "FOLD_BYTES", dice.choice([0, 4000, 1 << 20]))
    monkeypatch.setattr(fold, "FILE_BYTES", 3000)
    keep = dice.choice([None, DAY, 3 * DAY])
    shard, feed = StagedShard(spark, tmp_path, schema), Feed(dice, schema)
    updates: list[UpsertDiff] = []
    waiting: list[Record] = []
    orders = None if schema.order is None else OrderMemory()
    for number in range(12 if is_long() else 5):
        lower, upper = shard.upper, shard.upper + DAY
        count = dice.choice([0, 3, 12])
        records = [feed.record(lower, upper, dice.choice([0, 3])) for _ in range(count)]
        wanted = drain_sealed_input(
            records, waiting, updates, lower=lower, upper=upper, schema=schema, orders=orders, keep_deleted_ms=keep
        )
        manifest = shard.commit(records, upper, is_delta=number % 3 != 2, keep_deleted_ms=keep)
        assert manifest.stats == wanted.stats.to_json(), number
        updates, waiting, orders = [*updates, *wanted.updates], list(wanted.stash), wanted.orders
        contents = [dict(zip(["id", "name"], [*slot, *value], strict=True)) for slot, value in _tuples(updates, upper)]
        assert shard.snapshot() == sorted(contents, key=repr), number
        assert (STASH_OPERATOR in shard.chains) == bool(waiting)


def _tuples(updates: list[UpsertDiff], upper: int) -> list[tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """Keys and values of the contents before `upper`; none is an err."""
    contents = as_of(updates, upper).items()
    found = [(slot, value) for slot, value in contents if isinstance(slot, tuple) and isinstance(value, tuple)]
    assert len(found) == len(contents)
    return found


def _waiting(shard: StagedShard, per_day: int, days: range) -> None:
    """A stash with so many records for each of some days, in one file a day; it goes through two full states."""
    rows = [
        Record((day * per_day + n,), (f"{day}-{n}",), day * DAY, (None, "f", 0, day * per_day + n))
        for day in days
        for n in range(per_day)
    ]
    shard.commit(rows, shard.upper + DAY)
    shard.commit([], shard.upper + DAY, may_stash=False)
    shard.commit([], shard.upper + DAY, may_stash=False)


@pytest.mark.family("sizes")
def test_a_batch_opens_only_stash_files_due_or_touched(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold, "FILE_BYTES", 600)
    monkeypatch.setattr(operator_state, "FOLD_BYTES", 1)
    shard = StagedShard(spark, tmp_path, LOG)
    _waiting(shard, 100, range(4, 10))
    files = shard.stash
    assert len(files) > 3
    assert sum(each.rows or 0 for each in files) == 600
    due = [each for each in files if each.first_time is not None and each.first_time < shard.upper + 2 * DAY]
    assert 0 < len(due) < len(files) / 2, "sorted by time"
    # Nothing is due, and nothing arrives that waits: no file is opened.
    kept = {each.key: shard.blob.get(each.key) for each in files}
    for each in files:
        spoil(shard, each)
    first = shard.commit([Record((1,), ("new",), None, (None, "g", 0, 0))], shard.upper + 1, is_delta=True)
    assert (first.stats["stash_before"], first.stats["stashed"]) == (600, 600)
    assert first.operators[STASH_OPERATOR].artifacts == ()
    # A record that waits meets its own key's file only.
    met = next(each for each in files if each.keys.meets(exactly((950,))))
    shard.blob.set(met.key, kept[met.key] or b"")
    again = Record((950,), ("newer",), 9 * DAY, (None, "g", 0, 1))
    second = shard.commit([again], shard.upper + 1, is_delta=True)
    assert (second.stats["stashed"], second.stats["duplicates"]) == (600, 1)
    assert [each.rows for each in second.operators[STASH_OPERATOR].artifacts] == [1], "written: what is new"
    # What is due is opened, and the rest is carried over.
    for each in due:
        shard.blob.set(each.key, kept[each.key] or b"")
    before = len(shard.snapshot())
    third = shard.commit([], shard.upper + DAY, is_delta=True)
    assert third.stats["inserts"] == len(shard.snapshot()) - before == 100
    assert third.stats["stashed"] == 500


@pytest.mark.family("sizes")
def test_a_full_state_carries_large_files_over(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold, "FILE_BYTES", 600)
    monkeypatch.setattr(operator_state, "FOLD_BYTES", 1)
    shard = StagedShard(spark, tmp_path, LOG)
    _waiting(shard, 100, range(4, 10))
    files = shard.stash
    whole = {each.key: shard.blob.get(each.key) or b"" for each in files}
    for each in files:
        spoil(shard, each)
    full = shard.commit([Record((5000,), ("one",), 9 * DAY, (None, "g", 0, 0))], shard.upper + 1)
    state = full.operators[STASH_OPERATOR]
    assert not state.is_delta
    *carried, added = state.artifacts
    assert [each.key for each in carried] == [each.key for each in files]
    assert all(each.is_carried for each in carried)
    assert (added.is_carried, added.rows) == (False, 1)
    assert [each.partition_id for each in state.artifacts] == list(range(len(state.artifacts)))
    assert full.operators_after() == {STASH_OPERATOR: chain_digest([*files, added])}
    for each in files:
        shard.blob.set(each.key, whole[each.key])
    last = shard.write([], shard.description(6 * DAY))  # whole days are over
    kept = last.operators[STASH_OPERATOR].artifacts
    assert all((each.last_time or 0) >= 6 * DAY for each in kept)
    assert len(kept) < len(state.artifacts)


def _artifact(attempt: str, number: int, size_bytes: int) -> StateArtifact:
    return StateArtifact(number, part_key("s", attempt, STASH_OPERATOR, number), size_bytes, f"{attempt}{number}")


def test_what_is_folded_is_bounded_by_what_came_since() -> None:
    """10,000 deltas of 1 MB: each byte is rewritten some times, and there are a few files."""
    one = 1 << 20
    attempts = [f"018f0000-0000-7000-8000-{n:012d}" for n in range(40_000)]
    chain: tuple[StateArtifact, ...] = ()
    written = 0
    for n in range(10_000):
        chain = (*chain, _artifact(attempts[2 * n], 0, one))
        if n % 10 == 9:
            carried, folded = to_fold(chain)
            size = sum(each.size_bytes for each in folded)
            written += size
            chain = (*carried, replace(_artifact(attempts[2 * n + 1], 0, size), is_sorted=True))
            assert len(chain) <= 12
            assert to_fold(chain)[1] == (), "nothing came since"
    assert sum(each.size_bytes for each in chain) == 10_000 * one
    assert written < 12 * 10_000 * one
    copy = StateArtifact(0, "s/checkpoints/018f0000-0000-7000-8000-000000000001/operators/x/partition-0.snap", 9, "d")
    assert to_fold((copy,)) == ((), (copy,)), "retention deletes it"


@pytest.mark.family("sizes")
def test_index_files_that_no_key_meets_stay_closed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold, "FILE_BYTES", 2000)
    shard = StagedShard(spark, tmp_path, SEQUENCE)
    gone = [Record((n,), TOMBSTONE, None, (n, "f", 0, n)) for n in range(800)]
    shard.commit(gone[::2], DAY)
    shard.commit(gone[1::2], 2 * DAY)
    shard.commit([], 3 * DAY, may_stash=False)
    files = shard.chains[ORDER_INDEX_OPERATOR]
    assert len(files) > 3
    assert sum(each.rows or 0 for each in files) == 800
    met = [each for each in files if each.keys.first is not None and each.keys.first <= (10,)]
    assert len(met) == 1, "sorted by key"
    read: list[str] = []
    monkeypatch.setattr(type(shard.blob), "get", _counting(type(shard.blob).get, read))
    for each in files:
        if each not in met:
            spoil(shard, each)
    late = [Record((10,), ("late",), None, (9, "g", 0, 0)), Record((11,), ("new",), None, (5000, "g", 0, 1))]
    manifest = shard.commit(late, 4 * DAY, is_delta=True)
    assert (manifest.stats["late"], manifest.stats["inserts"]) == (1, 1)
    assert not [key for key in read if key in {each.key for each in files}], "the driver opens none"


def _counting(get: Any, read: list[str]) -> Any:
    def counted(self: Any, key: str) -> bytes | None:
        read.append(key)
        found: bytes | None = get(self, key)
        return found

    return counted


def test_a_damaged_file_of_a_full_state_is_named(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator_state, "FOLD_BYTES", 1)
    shard = StagedShard(spark, tmp_path, LOG)
    _waiting(shard, 10, range(4, 6))
    (file,) = shard.stash
    assert not shard.blob.get(f"{SHARD}/batches/{file.attempt}/manifest.json"), "the batch's own manifest names it"
    spoil(shard, file)
    with pytest.raises(CorruptArtifact, match=file.key):
        shard.write([], shard.description(5 * DAY, is_delta=True))


def test_a_full_state_gives_damage_no_new_digest(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator_state, "FOLD_BYTES", 1)
    shard = StagedShard(spark, tmp_path, LOG)
    shard.commit([Record((1,), ("a",), 9 * DAY, (None, "f", 0, 0))], DAY)
    (file,) = shard.stash
    path = tmp_path / file.key
    path.with_name(f".{path.name}.crc").unlink()  # S3 has none
    path.write_bytes(b"?" + path.read_bytes()[1:])  # Spark reads on
    with pytest.raises(CorruptArtifact, match=file.key):
        shard.write([], shard.description(2 * DAY))


def test_an_input_much_larger_than_the_stash_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, spark: SparkSession
) -> None:
    shard = StagedShard(spark, tmp_path, LOG)
    shard.commit([Record((1,), ("a",), 9 * DAY, (None, "f", 0, 0))], DAY)
    assert state_before.may_look(shard.description(2 * DAY, input_bytes=look.MAX_LOOK_BYTES))
    large = shard.description(2 * DAY, input_bytes=look.MAX_LOOK_BYTES + 1)
    assert not state_before.may_look(large)
    again = Record((1,), ("b",), 9 * DAY, (None, "g", 0, 0))
    monkeypatch.setattr(state_before, "look_at", None)
    assert shard.write([again], large).stats["duplicates"] == 1, "the whole stash is read"


@pytest.mark.parametrize("is_delta", sample([True, False], 1, "flips in state"))
@pytest.mark.family("sizes")
def test_a_flipped_byte_of_operator_state_heals_from_a_copy(
    spark: SparkSession,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    is_delta: bool,
) -> None:
    """Each file that is opened, flipped where Spark reads on; what is not opened waits for the batch that opens it."""
    shards = [StagedShard(spark, tmp_path / name, SEQUENCE) for name in ("damaged", "whole")]
    later = [
        Record((3,), ("early",), 5, (1, "g", 0, 2)),
        Record((2,), ("later",), 6, (3, "g", 0, 3)),
        Record((1,), ("last",), 5 * DAY, (9, "g", 0, 4)),
    ]
    for shard in shards:
        position = ("f", 0, 0)
        shard.commit([Record((2,), ("b",), 1, (4, *position)), Record((3,), ("c",), 1, (5, *position))], DAY)
        lost = Record((2,), ("late",), DAY + 1, (2, "g", 0, 0))
        deleted = Record((3,), TOMBSTONE, DAY + 1, (6, "g", 0, 1))
        shard.commit([lost, deleted, Record((1,), ("a",), 3 * DAY, (7, "g", 0, 2))], 2 * DAY)
        publish_and_retain(shard.client, SHARD, RetentionConfig())
    damaged = shards[0]
    assert set(damaged.chains) == {STASH_OPERATOR, ORDER_INDEX_OPERATOR, LATE_OPERATOR}
    files = [each for chain in damaged.chains.values() for each in chain]
    for file in files:
        path = tmp_path / "damaged" / file.key
        path.with_name(f".{path.name}.crc").unlink()  # S3 has none
        path.write_bytes(b"?" + path.read_bytes()[1:])
    for shard in shards:
        shard.commit(later, 4 * DAY, is_delta=is_delta)
    first, second = ([shard.snapshot(time) for time in range(0, 4 * DAY, 3)] for shard in shards)
    assert first == second
    assert {row["name"] for row in damaged.snapshot()} == {"a", "b"}, "the stash, the index, and orders are there"
    assert len([line for line in caplog.messages if "Its copy" in line]) == len(files)
    keys = {each.key for chain in damaged.chains.values() for each in chain}
    assert keys.isdisjoint(each.key for each in files) is not is_delta
