"""Inherited values go through merges, restores and forks: a late record gives its value as it did before. A truncate
ends them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from persist_core.compaction.merge import Merge, merge_here
from persist_core.inspection.late import late_records
from persist_core.protocol.fork import fork
from persist_core.schema import INDEX_KIND, RAISED, CollectionSchema, Column
from persist_core.shard.replace import Replaced
from tests.core.protocol.ordered_shard import ORDERED
from tests.core.protocol.restored_shard import SHARD, shown
from tests.oracle.consolidate import NOT_SENT, Err, Slot
from tests.oracle.upsert import TOMBSTONE, TRUNCATE, Record
from tests.sampling import is_long
from tests.spark.test_sequence_oracle import OLD, A, B, SequenceShard
from tests.spark.test_sequence_restore import FILE, SparkCollection
from tests.spark.upsert_cases import INHERITING_DOMAIN

SCHEMA = replace(ORDERED, values=tuple(replace(c, inherits=c.name == "name") for c in ORDERED.values))
GIVEN, EQUAL, LOST = (("eu", number) for number in range(3))


class InheritingCollection(SparkCollection):
    """Records may leave out a name."""

    def beside(self, shard: str) -> InheritingCollection:
        other = InheritingCollection(self.spark, self.folder, shard, self.location)
        other.feed, other.client.ids = self.feed, self.client.ids
        return other

    @property
    def schema(self) -> CollectionSchema:
        return SCHEMA

    @property
    def decoded(self) -> CollectionSchema:
        """A decoder names columns by their places among the values."""
        return replace(SCHEMA, values=tuple(replace(column, id=place) for place, column in enumerate(SCHEMA.values)))

    def names(self) -> dict[Slot, object]:
        """The name of each row; of an err its payload."""
        found = self.contents(self.upper() - 1)
        assert found == self.read(self.upper() - 1)
        self.check()
        return {slot: value.payload if isinstance(value, Err) else value for slot, value in found.items()}


def put(slot: Slot, order: int, name: object) -> Record:
    return Record(slot, (name, 7, None), None, (order, FILE, 0, order))


def row(name: str) -> object:
    return shown((name, 7, None))


@pytest.mark.skipif(not is_long(), reason="takes six batches (PERSIST_PROFILE=nightly)")
def test_a_late_record_gives_its_value_after_a_restore(spark: SparkSession, tmp_path: Path) -> None:
    shard = InheritingCollection(spark, tmp_path)
    shard.drop("0.txt", [put(GIVEN, 1, "one"), put(EQUAL, 1, "one")])
    shard.run(10)
    shard.drop("1.txt", [put(slot, 9, NOT_SENT) for slot in (GIVEN, EQUAL, LOST)])
    inherited = shard.run(20)
    lost = b'{"amount":"7","rate":null}'
    assert shard.names() == {GIVEN: row("one"), EQUAL: row("one"), LOST: lost}
    state = shard.client.state(SHARD)
    merge = Merge.of(shard.client, state, state.batches)
    assert isinstance(merge_here(shard.client, merge, attempt=shard.client.ids.uuid7()), Replaced)

    shard.drop("2.txt", [put(GIVEN, 5, "five"), put(EQUAL, 5, "one")])
    shard.run(30)
    shard.drop("3.txt", [put(GIVEN, 3, "three"), put(EQUAL, 3, "three")])
    shard.run(40)
    assert shard.names() == {GIVEN: row("five"), EQUAL: row("one"), LOST: lost}
    assert [late.gave for late in late_records(shard.client, SHARD)] == [(), (), ("name",), ("name",)]

    shard.go_back(inherited)
    for number in (2, 3):
        shard.take_out(f"{number}.txt")
    fork(shard.client, SHARD, inherited, "twin", writer="test")
    shard.drop("4.txt", [put(GIVEN, 3, "three"), put(EQUAL, 3, "three"), put(LOST, 3, "three")])
    for each in (shard, shard.beside("twin")):
        assert each.names() == {GIVEN: row("one"), EQUAL: row("one"), LOST: lost}
        each.run(50)
        assert each.names() == {slot: row("three") for slot in (GIVEN, EQUAL, LOST)}


@pytest.mark.family("histories in Spark")
def test_a_deleted_row_below_a_truncate_takes_no_value(spark: SparkSession) -> None:
    """The order index leaves out its tombstone, so the newest entry of the slot says what the row once inherited."""
    domain = replace(INHERITING_DOMAIN, schema=replace(INHERITING_DOMAIN.schema, order=(Column("seq", "bigint"),)))
    shard = SequenceShard(spark, domain)
    shard.drain([Record(A, OLD, None, (1, "a", 0, 0))], 0, 1)
    shard.drain([Record(A, (NOT_SENT, *OLD[1:]), None, (3, "b", 0, 0))], 1, 2)
    assert [row[INDEX_KIND] for row in shard.index] == [RAISED]
    shard.drain([Record(A, TOMBSTONE, None, (4, "c", 0, 0)), Record(B, OLD, None, (4, "c", 0, 1))], 2, 3)
    shard.drain([Record(None, TRUNCATE, None, (9, "d", 0, 0))], 3, 4)
    late, unsent = ("late", *OLD[1:]), (NOT_SENT, *OLD[1:])
    outcome = shard.drain([Record(A, late, None, (2, "e", 0, 0)), Record(B, unsent, None, (10, "e", 0, 1))], 4, 5)
    assert (outcome.stats.late, outcome.stats.errors) == (1, 1)
