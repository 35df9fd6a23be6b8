"""Records that others of their slot and time beat are left out before the exchange, and the result is the oracle's."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from persist_spark.frame import ORDER
from persist_spark.upsert import batch as upsert_batch
from persist_spark.upsert import hot_keys
from persist_spark.upsert.eras import FIELDS, Eras
from persist_spark.upsert.hot_keys import Beaten, find_beaten, take_sample
from tests.oracle.consolidate import check_collection
from tests.oracle.upsert import Record
from tests.sampling import sample
from tests.spark.staged_shard import StagedShard
from tests.spark.test_sequence_oracle import SequenceShard
from tests.spark.test_upsert_oracle import Shard
from tests.spark.upsert_cases import ONE_KEY, ONE_KEY_DOMAIN, WHOLE_DOMAIN, Domain, Feed, to_records

WORLDS = 3  # so that a slot and time has several records


@pytest.fixture
def all_are_hot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hot_keys, "SHARE", 1_000_000)
    monkeypatch.setattr(hot_keys, "LOOKED_AT", 1)


HOT = [
    pytest.param(order, domain, id=f"{order}-{name}")
    for order in ("log", "sequence")
    for name, domain in (("no column inherits", ONE_KEY_DOMAIN), ("all sent", WHOLE_DOMAIN))
]


@pytest.mark.family("histories in Spark")
@pytest.mark.usefixtures("all_are_hot")
@pytest.mark.parametrize(("order", "domain"), sample(HOT, 2, "hot keys"))
def test_batches_without_beaten_records_are_the_oracles(
    spark: SparkSession, persist_seed: int, order: str, domain: Domain
) -> None:
    feed = Feed(domain, random.Random(f"{persist_seed}/hot"), WORLDS)
    shard = Shard(spark, domain) if order == "log" else SequenceShard(spark, domain)
    shard.leaves_out = True
    for lower, upper in ((0, 4), (4, None)):
        shard.drain(feed.records(200, lower, upper or lower + 4), lower, upper)
    check_collection(shard.updates)


@pytest.mark.family("decoders")
def test_a_hot_key_of_a_large_batch_is_found(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Beaten | None] = []

    def find(*given: Any) -> Beaten | None:
        found.append(find_beaten(*given))
        return found[-1]

    monkeypatch.setattr(upsert_batch, "LARGE_INPUT_BYTES", 0)
    monkeypatch.setattr(upsert_batch, "find_beaten", find)
    shard = StagedShard(spark, tmp_path, ONE_KEY)

    def records(name: str) -> list[Record]:
        """A third of the records are of one key; one of them comes twice."""
        keys = [0 if row % 3 == 0 else row for row in range(300)]
        return [
            Record((key,), (f"{name} {row}", None, None), None, (None, "f", 0, row)) for row, key in enumerate(keys)
        ]

    shard.commit(records("one"), 10)
    assert found == []  # to look for hot keys would cost as much as to read the batch again
    manifest = shard.commit(records("two"), 20)  # but the batch before had many
    assert [each and each.count for each in found] == [99]
    assert (manifest.stats["records_read"], manifest.stats["duplicates"], manifest.stats["updates"]) == (300, 99, 201)
    again = [*records("three"), records("three")[297]]
    tied = shard.commit(again, 30, is_columnar=True)
    assert (tied.stats["records_read"], tied.stats["duplicates"]) == (301, 100)
    assert {row["name"] for row in shard.snapshot() if row["id"] == 0} == {"three 297"}


def test_few_records_of_each_key_are_not_left_out(spark: SparkSession) -> None:
    records = [Record((row // 2,), ("a", None, None), None, (None, "f", 0, row)) for row in range(400)]
    assert find_beaten(take_sample(to_records(spark, ONE_KEY, records), ONE_KEY, None)) is None


@pytest.mark.usefixtures("all_are_hot")
def test_names_of_columns_do_not_matter_to_hot_keys(spark: SparkSession) -> None:
    names = ("bucket", "count", "groups")
    values = tuple(replace(column, name=name) for column, name in zip(ONE_KEY.values, names, strict=True))
    schema = replace(ONE_KEY, key=(replace(ONE_KEY.key[0], name="by0"),), values=values)
    records = to_records(spark, schema, [Record((1,), ("a", 1, 1.0), None, (None, "f", 0, row)) for row in range(3)])
    found = find_beaten(take_sample(records, schema, None))
    assert found is not None
    assert (found.count, found.left_out(records).count()) == (2, 1)


@pytest.mark.usefixtures("all_are_hot")
@pytest.mark.parametrize(
    ("orders", "count"),
    [
        ([("a", 1, 1), ("a", 2, 2), ("a", 3, 3)], 2),
        ([("a", 1, 1), ("a", 2, 2), ("b", 3, 3)], 1),  # servers cannot be compared
        ([("a", 1, 5), ("a", 2, 6), ("a", 3, 3)], 0),  # the highest number is not the latest
        ([(None, 1, None), (None, 2, None)], 1),
    ],
)
def test_a_beaten_record_hides_no_other_era(
    spark: SparkSession, orders: list[tuple[str | None, int, int | None]], count: int
) -> None:
    frame = to_records(spark, ONE_KEY, [Record((1,), ("a", None, None), 5, (None, "f", 0, 0))]).drop(ORDER)
    given = {"server": "server", "number": "CAST(number AS BIGINT)", "source_ms": "CAST(ms AS BIGINT)"}
    given["seen_ms"] = given["source_ms"]
    cells = [f"'{field}', {given.get(name, 'CAST(NULL AS BIGINT)')}" for name, field in FIELDS.items()]
    cells += [f"'{column.name}', 0" for column in ONE_KEY.position]
    placed = spark.createDataFrame(orders, "server STRING, number INT, ms INT")
    records = frame.crossJoin(placed).selectExpr(*frame.columns, f"named_struct({', '.join(cells)}) AS {ORDER}")
    found = find_beaten(take_sample(records, ONE_KEY, Eras()))
    assert (found.count if found else 0) == count
    assert found is None or found.left_out(records).count() == len(orders) - count
