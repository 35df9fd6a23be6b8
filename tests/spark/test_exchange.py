"""The exchange of a large first batch by ranges of keys, which a sample of the batch gives."""

from __future__ import annotations

import bisect
import itertools
import random
from collections import Counter
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from persist_core.contents.batch import BatchManifest
from persist_core.contents.key_range import Scalar
from persist_core.schema import CollectionSchema, Column
from persist_spark import session
from persist_spark.compat import REPARTITIONS_BY_ID
from persist_spark.upsert import batch as upsert_batch
from persist_spark.upsert import exchange, hot_keys
from persist_spark.upsert.arguments import KEY_RANGE
from persist_spark.upsert.exchange import by_ranges, cuts_of
from persist_spark.upsert.plan import PlannedUpsert, persistent_upsert
from tests.oracle.consolidate import check_collection
from tests.oracle.upsert import Record
from tests.sampling import sample
from tests.spark import test_sequence_oracle, test_upsert_oracle
from tests.spark.staged_shard import StagedShard
from tests.spark.test_sequence_oracle import SequenceShard
from tests.spark.test_upsert_oracle import Shard
from tests.spark.upsert_cases import (
    INHERITING_DOMAIN,
    MANY_KEYS_DOMAIN,
    ONE_KEY,
    ONE_KEY_DOMAIN,
    Domain,
    Feed,
)

pytestmark = pytest.mark.skipif(not REPARTITIONS_BY_ID, reason="this Spark sends no row to a task by its number")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
WORLDS = 10
ORACLES = [
    pytest.param(order, domain, cuts, id=f"{order}-{name}")
    for order in ("log", "sequence")
    for name, domain, cuts in (
        ("one key", ONE_KEY_DOMAIN, (-101, 0, 50, 2**63 - 1)),
        ("many keys", MANY_KEYS_DOMAIN, ("", "a", "ü")),
        ("not sent", INHERITING_DOMAIN, (10,)),
    )
]
TWO_KEYS = CollectionSchema(
    key=(Column("tenant", "string", nullable=False), Column("id", "bigint", nullable=False)),
    values=ONE_KEY.values,
    position=ONE_KEY.position,
)


@pytest.mark.family("histories in Spark")
@pytest.mark.parametrize(("order", "domain", "cuts"), sample(ORACLES, 2, "known ranges"))
def test_batches_in_known_ranges_are_the_oracles(
    spark: SparkSession,
    persist_seed: int,
    monkeypatch: pytest.MonkeyPatch,
    order: str,
    domain: Domain,
    cuts: tuple[Scalar, ...],
) -> None:
    for module in (test_upsert_oracle, test_sequence_oracle):
        monkeypatch.setattr(module, "persistent_upsert", partial(persistent_upsert, cuts=cuts))
    if order == "sequence" and domain is INHERITING_DOMAIN:
        domain = replace(domain, schema=replace(domain.schema, order=(Column("seq", "bigint"),)))
    feed = Feed(domain, random.Random(f"{persist_seed}/ranges"), WORLDS, has_ties=True)
    shard = Shard(spark, domain) if order == "log" else SequenceShard(spark, domain)
    for number, (lower, upper) in enumerate(((0, 4), (4, 8), (8, None))):
        shard.drain(feed.records(80, lower, upper or lower + 4, truncates=int(number == 1)), lower, upper)
    check_collection(shard.updates)


@given(
    st.dictionaries(st.integers() | st.none(), st.integers(1, 9), max_size=200),
    st.integers(0, 50 * exchange.RANGE_BYTES),
)
def test_ranges_of_a_sample_are_even(found: dict[Scalar | None, int], size_bytes: int) -> None:
    cuts = cuts_of(found, size_bytes)
    ranges, records = max(2, size_bytes // exchange.RANGE_BYTES), sum(found.values())
    assert cuts == sorted(set(cuts))
    assert len(cuts) < ranges
    if cuts:
        held = Counter[int]()
        for value, count in found.items():
            held[0 if value is None else bisect.bisect_right(cuts, value)] += count
        assert len(held) == len(cuts) + 1, "no range is empty"
        assert max(held.values()) <= 2 * records / ranges
    elif records:
        assert max(found.values()) * ranges > records


def _values(kind: str, rng: random.Random) -> dict[Scalar, Any]:
    """Scalars of a key column's type, with the values that they stand for."""
    match kind:
        case "string":
            texts = ["", "'", "\\", "\\n\n", "ü", "\uffff", "\U0001f600", *(f"{rng.random()}" for _ in range(50))]
            return {text: text for text in texts}
        case "date":
            return {days: date(1970, 1, 1) + timedelta(days) for days in rng.sample(range(-700_000, 2_900_000), 60)}
        case "timestamp":
            micros = rng.sample(range(-(10**15), 10**15), 60)
            return {each: _EPOCH + timedelta(microseconds=each) for each in micros}
        case "int":
            return {each: each for each in (-(2**31), -1, 0, 2**31 - 1, *rng.sample(range(-500, -1), 60))}
    return {each: each for each in (-(2**63), -1, 0, 2**63 - 1, *rng.sample(range(2**62), 2000))}


@pytest.mark.parametrize("kind", ["string", "date", "timestamp", "int", "bigint"])
def test_a_row_goes_to_the_task_of_its_range(spark: SparkSession, kind: str) -> None:
    values = _values(kind, random.Random(kind))
    cuts = sorted(values)[1::2]
    rows = spark.createDataFrame([(value,) for value in values.values()], f"k0 {kind}")
    with_null = rows.selectExpr("k0").union(spark.sql(f"SELECT CAST(NULL AS {kind.upper()})"))
    placed = by_ranges(with_null, "k0", Column("any", kind), cuts).selectExpr("*", "spark_partition_id() AS task")
    found = {row["k0"]: (row["task"], row[KEY_RANGE]) for row in placed.collect()}
    if kind == "timestamp":
        found = {value and value.replace(tzinfo=UTC): place for value, place in found.items()}
    wanted = {value: bisect.bisect_right(cuts, scalar) for scalar, value in values.items()}
    assert found == {value: (place, place) for value, place in {**wanted, None: 0}.items()}


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[PlannedUpsert]:
    """The plans of batches that all are large; all records are the sample."""
    made: list[PlannedUpsert] = []

    def planned(*arguments: Any, **options: Any) -> PlannedUpsert:
        made.append(persistent_upsert(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(upsert_batch, "persistent_upsert", planned)
    for name in ("LARGE_STATE_BYTES", "LARGE_INPUT_BYTES"):
        monkeypatch.setattr(upsert_batch, name, 0)
    for module in (session, upsert_batch):
        monkeypatch.setattr(module, "ONE_TASK_BYTES", 0)
    monkeypatch.setattr(session, "_BYTES_PER_PARTITION", 1000)
    monkeypatch.setattr(hot_keys, "LOOKED_AT", 1)
    monkeypatch.setattr(exchange, "RANGE_BYTES", 1000)
    return made


def _first(shard: StagedShard, records: list[Record], **options: Any) -> BatchManifest:
    return shard.write(records, shard.description(10, input_bytes=5000), has_times=False, **options)


@pytest.mark.parametrize("is_columnar", [True, False], ids=["Parquet", "text"])
def test_a_large_first_batch_is_sampled_once(
    spark: SparkSession,
    tmp_path: Path,
    plans: list[PlannedUpsert],
    capsys: pytest.CaptureFixture[str],
    is_columnar: bool,
) -> None:
    shard = StagedShard(spark, tmp_path / "location", ONE_KEY)
    rows = [Record((key * 7 % 500,), (f"{key}", None, None), None, (None, "f", 0, key)) for key in range(500)]
    manifest = _first(shard, rows, is_columnar=is_columnar)
    files = sorted((part.keys.first or (), part.keys.last or (), part.rows or 0) for part in manifest.parts)
    assert all(low[1] < high[0] for low, high in itertools.pairwise(files))
    assert [90 < rows < 110 for *_, rows in files] == [True] * 5
    plans[-1].updates.explain()
    shown = capsys.readouterr().out
    assert (shown.count("Exchange "), shown.count("direct_shuffle_partition_id")) == (1, 1)
    shard.append(manifest)
    assert len(shard.snapshot()) == 500


def test_few_values_of_the_first_key_column_make_no_ranges(
    spark: SparkSession, tmp_path: Path, plans: list[PlannedUpsert], capsys: pytest.CaptureFixture[str]
) -> None:
    shard = StagedShard(spark, tmp_path / "location", TWO_KEYS)
    rows = [Record((f"t{key % 2}", key), ("a", None, None), None, (None, "f", 0, key)) for key in range(500)]
    assert len(_first(shard, rows).parts) > 2, "more ranges than values"
    plans[-1].updates.explain()
    assert capsys.readouterr().out.count("rangepartitioning") == 1
