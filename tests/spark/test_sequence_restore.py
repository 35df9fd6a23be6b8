"""Restores and forks of a shard in `sequence` order that Spark has written: a twin, written by the oracle, goes the
same way, and decides every late record alike."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from persist_core.contents.batch import ORDER_INDEX_OPERATOR, BatchDescription
from persist_core.contents.parts import PARQUET
from persist_core.keys import manifest_key
from persist_core.location.file.blob import FileBlob
from persist_core.location.mem import MemConsensus
from persist_core.location.open import OpenLocation
from persist_core.protocol.fork import fork
from persist_core.schema import CollectionSchema
from persist_core.sources.natural_order import natural_key
from persist_spark.upsert.batch import UpsertRequest, stage_upserts
from tests.core.protocol import log_source
from tests.core.protocol.ordered_shard import OrderedCollection
from tests.core.protocol.restored_shard import SHARD, shown
from tests.oracle.consolidate import Slot
from tests.oracle.upsert import TOMBSTONE, Record
from tests.sampling import is_long, sample
from tests.spark.upsert_cases import to_records

FILE = natural_key("1.txt")
DELETED, RAISED, EMPTY, ENDED, BRIEF, NEVER, HIGH, BURIED = (("eu", number) for number in range(8))


class SparkCollection(OrderedCollection):
    """Its write stage is the Spark job's."""

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        shard: str = SHARD,
        location: OpenLocation | None = None,
        keep_deleted: str = "all",
        *,
        is_log: bool = False,
    ) -> None:
        location = location or OpenLocation(FileBlob(folder / "blobs"), MemConsensus())
        super().__init__(folder, location, shard, keep_deleted, is_log=is_log)
        self.spark, self.client.part_format = spark, PARQUET

    def beside(self, shard: str) -> SparkCollection:
        keep_deleted = self.config.order.keep_deleted or "all"
        other = SparkCollection(self.spark, self.folder, shard, self.location, keep_deleted, is_log=self.is_log)
        other.feed, other.client.ids = self.feed, self.client.ids
        return other

    @property
    def decoded(self) -> CollectionSchema:
        """The schema of a decoder's frame."""
        return self.schema

    def write(self, description: BatchDescription) -> str:
        records = [record for name in self.files_of(description) for record in self.feed[name]]
        attempt = self.client.ids.uuid7()
        request = UpsertRequest(description, self.schema, attempt, keep_deleted_ms=self.config.order.keep_deleted_ms)
        state = self.client.state(self.shard)
        stage_upserts(self.spark, self.client, state, request, to_records(self.spark, self.decoded, records))
        return manifest_key(self.shard, attempt)


def put(slot: Slot, order: int, name: str | None, time: int | None = None) -> Record:
    """A row, or (`None`) a delete."""
    return Record(slot, TOMBSTONE if name is None else (name, None, None), time, (order, FILE, 0, order))


def snapshot_every(shard: OrderedCollection, count: int) -> None:
    retention = shard.config.retention.model_copy(update={"snapshot_every": count})
    shard.config = shard.config.model_copy(update={"retention": retention})


FIRST = [
    *(put(slot, 1, "old") for slot in (DELETED, RAISED, ENDED)),
    *(put(slot, 4, None) for slot in (EMPTY, BURIED)),
    put(HIGH, 5, "old"),
]
SECOND = [
    put(DELETED, 5, None),
    put(RAISED, 7, "old"),
    put(EMPTY, 6, "new"),
    put(ENDED, 5, "old", 12),  # an equal value raises the order, and the delete follows in the same batch
    put(ENDED, 6, None, 14),
    put(BRIEF, 3, "made"),
]
THIRD = [put(BRIEF, 5, "made", 22), put(BRIEF, 6, None, 24), put(NEVER, 9, None), put(HIGH, 8, None)]
# What comes after the checkpoint of the first batch was restored: as it was then, not as it became.
LATER = [
    put(DELETED, 3, "now"),
    put(RAISED, 4, "now"),
    put(EMPTY, 5, "now"),
    put(ENDED, 3, None),
    put(BRIEF, 2, "now"),
    put(NEVER, 8, "now"),
    put(HIGH, 3, None),  # late: its row has a higher order
    put(BURIED, 3, "late"),  # late: so has its tombstone
]
AFTER = {DELETED: "now", RAISED: "now", EMPTY: "now", BRIEF: "now", NEVER: "now", HIGH: "old"}
IS_LONG = is_long()


def check_later(shards: Iterable[OrderedCollection]) -> None:
    """A batch of `LATER` decides the same in both, and as the comments above say."""
    found = []
    for shard in shards:
        shard.run(40)
        newest = shard.client.state(shard.shard).newest_commit
        assert newest is not None
        found.append((shard.client.manifest(newest).stats, [shard.contents(time) for time in (9, 29, 39)]))
        assert shard.contents(39) == {slot: shown((name, None, None)) for slot, name in AFTER.items()}
        assert shard.contents(39) == shard.read(39)
        shard.check()
    assert found[0] == found[1]
    assert found[0][0]["late"] == 2


@pytest.mark.family("commands")
@pytest.mark.parametrize(
    ("full_every", "full_every_on_the_fork"),
    [
        (10, 1),
        pytest.param(1, 10, marks=pytest.mark.skipif(not IS_LONG, reason="PERSIST_PROFILE=nightly has both")),
    ],
    ids=["deltas, then full state on the fork", "full state, then deltas on the fork"],
)
@pytest.mark.parametrize("source", sample(("files", "log"), 1, "sources"))
def test_a_restore_and_a_fork_know_the_checkpoints_orders(
    spark: SparkSession, tmp_path: Path, source: str, full_every: int, full_every_on_the_fork: int
) -> None:
    with log_source.known():
        go_back_and_fork(spark, tmp_path, full_every, full_every_on_the_fork, is_log=source == "log")


def go_back_and_fork(
    spark: SparkSession, tmp_path: Path, full_every: int, full_every_on_the_fork: int, *, is_log: bool
) -> None:
    folders = [tmp_path / "spark", tmp_path / "oracle"]
    for folder in folders:
        folder.mkdir()
    shards = [SparkCollection(spark, folders[0], is_log=is_log), OrderedCollection(folders[1], is_log=is_log)]
    for shard in shards:
        snapshot_every(shard, full_every)
        for number, records in enumerate((FIRST, SECOND, THIRD)):
            shard.drop(f"{number}.txt", records)
            shard.run(10 * number + 10)
        first = shard.client.state(SHARD).commits[0].checkpoint_id
        assert (len(shard.mint(40).operators[ORDER_INDEX_OPERATOR]) < 3) == (full_every == 1)
        shard.go_back(first)
        for number in (1, 2):
            shard.take_out(f"{number}.txt")
        shard.drop("later.txt", LATER)
        fork(shard.client, SHARD, first, "twin", writer="test")
    forks = [shard.beside("twin") for shard in shards]
    for each in forks:
        snapshot_every(each, full_every_on_the_fork)
    check_later(shards)
    check_later(forks)


MINUTE = 60_000  # the shortest time for which deleted keys are kept


@pytest.mark.skipif(not IS_LONG, reason="as the test above, but for `keep_deleted` (PERSIST_PROFILE=nightly)")
def test_restores_and_forks_remember_tombstones(spark: SparkSession, tmp_path: Path) -> None:
    folders = [tmp_path / "spark", tmp_path / "oracle"]
    for folder in folders:
        folder.mkdir()
    kept = "1 minutes"
    shards = [SparkCollection(spark, folders[0], keep_deleted=kept), OrderedCollection(folders[1], keep_deleted=kept)]
    found = []
    for shard in shards:
        awaited = put(DELETED, 5, "waits", 4 * MINUTE + 1)
        shard.drop("0.txt", [put(DELETED, 9, None, 1), awaited, put(EMPTY, 9, None, 1), put(HIGH, 1, "old")])
        first = shard.run(MINUTE)
        shard.drop("1.txt", [put(HIGH, 2, "new")])
        second = shard.run(3 * MINUTE)
        shard.drop("2.txt", [put(EMPTY, 5, "waits", 9 * MINUTE)])
        shard.run(5 * MINUTE)
        shard.go_back(second)
        shard.take_out("1.txt")
        shard.take_out("2.txt")
        shard.drop("later.txt", [put(DELETED, 8, "late"), put(EMPTY, 8, "forgotten")])
        fork(shard.client, SHARD, first, "twin", writer="test")
        twin = shard.beside("twin")
        shard.run(6 * MINUTE)
        twin.run(MINUTE + 10)
        for each in (shard, twin):
            each.check()
            newest = each.client.state(each.shard).newest_commit
            assert newest is not None
            found.append((each.client.manifest(newest).stats, each.contents(each.upper() - 1)))
    assert found[:2] == found[2:]
    restored, forked = (stats for stats, _ in found[:2])
    assert (restored["late"], restored["late_beyond_memory"]) == (2, 1), "of the stash, and of the same key"
    assert (forked["late"], forked["late_beyond_memory"]) == (2, 0)
