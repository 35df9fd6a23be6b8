"""The Spark upsert against the oracle (`tests.oracle.upsert.drain_sealed_input`) on random histories."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from persist_core.config.collection import FILE_POSITION
from persist_core.schema import CollectionSchema, Column, Late
from persist_spark.counted import limb_sums, whole_sum
from persist_spark.session import stage_settings, use
from persist_spark.upsert.outcome import Outcome
from persist_spark.upsert.plan import persistent_upsert
from tests.oracle.consolidate import Err, UpsertDiff, as_of, check_collection
from tests.oracle.upsert import (
    TOMBSTONE,
    Record,
    drain_sealed_input,
)
from tests.sampling import is_long
from tests.spark.upsert_cases import (
    INHERITING_DOMAIN,
    MANY_KEYS_DOMAIN,
    ONE_KEY_DOMAIN,
    WHOLE_DOMAIN,
    Domain,
    Feed,
    Written,
    collected,
    comparable,
    needed_of,
    to_records,
    to_state,
    until_kept,
    without_beaten,
)

BATCHES: tuple[tuple[int, int | None], ...] = ((0, 3), (3, 4), (4, 9), (9, None))
WORLDS = 40
PER_BATCH = 150


@dataclass
class Shard:
    """A shard by hand: what was written so far. `drain` runs a batch through Spark and through the oracle."""

    spark: SparkSession
    domain: Domain
    updates: list[UpsertDiff] = field(default_factory=list)
    stash: list[Record] = field(default_factory=list)
    stash_rows: int = 0
    leaves_out: bool = False  # what hot keys have too much

    def drain(
        self,
        records: list[Record],
        lower: int,
        upper: int | None,
        *,
        late: Late = "lift",
        in_time_from: int | None = None,
        as_of_frontier: int | None = None,
        stash_frontier: int | None = None,
        is_restricted: bool = False,
    ) -> tuple[Written, Outcome]:
        """The batch `[lower, upper)`; asserts that updates, stash and stats are the oracle's, and keeps them."""
        bounds: dict[str, Any] = {"lower": lower, "upper": upper, "late": late, "as_of_frontier": as_of_frontier}
        bounds |= {"stash_frontier": stash_frontier, "in_time_from": in_time_from}
        wanted = drain_sealed_input(records, self.stash, self.updates, schema=self.domain.schema, **bounds)
        written, outcome = self._run(records, is_restricted=is_restricted, **bounds)
        assert comparable(written.updates) == comparable(wanted.updates)
        assert outcome.stats == wanted.stats
        self.updates += written.updates
        self.stash += written.stash
        self.stash_rows = outcome.stats.stashed
        assert all(record in comparable(self.stash) for record in comparable(wanted.stash))
        return written, outcome

    def _run(self, records: list[Record], *, is_restricted: bool, **bounds: Any) -> tuple[Written, Outcome]:
        schema = self.domain.schema
        frame = to_records(self.spark, schema, records)
        state = to_state(self.spark, schema, self.updates) if self.updates else None
        whole = to_records(self.spark, schema, self.stash) if self.stash else None
        needed = needed_of(self.stash, records, bounds["upper"])
        rows: list[Row] = []

        def drain(is_thorough: bool, inherits: bool) -> Outcome:
            given: dict[str, Any] = {"stash": whole, "is_thorough": is_thorough, "inherits": inherits}
            given["has_times"] = any(record.time is not None for record in records)
            if is_restricted and not is_thorough:
                given["stash"] = to_records(self.spark, schema, needed) if needed else None
                given["stash_rows"] = self.stash_rows
            read, given["beaten"] = without_beaten(frame, schema, leaves_out=self.leaves_out and not is_thorough)
            drained = persistent_upsert(read, state, schema=schema, **given, **bounds)
            rows[:] = drained.updates.collect()
            return drained.outcome(drained.updates)

        outcome = until_kept(drain)
        assert outcome.counted["broken"] == 0
        return collected(schema, rows), outcome


@pytest.fixture
def dice(request: pytest.FixtureRequest, persist_seed: int) -> random.Random:
    """Random choices of the session's seed, other ones for each test."""
    return random.Random(f"{persist_seed}/{request.node.name}")


@pytest.mark.parametrize(
    "domain", [ONE_KEY_DOMAIN, MANY_KEYS_DOMAIN, WHOLE_DOMAIN], ids=["one key", "many keys", "all sent"]
)
def test_random_history_is_the_oracles(spark: SparkSession, dice: random.Random, domain: Domain) -> None:
    feed, shard = Feed(domain, dice, WORLDS), Shard(spark, domain)
    for number, (lower, upper) in enumerate(BATCHES):
        records = feed.records(PER_BATCH, lower, upper or lower + 4)
        _, outcome = shard.drain(records, lower, upper, is_restricted=number in (1, 2))
        assert outcome.counted.get("unsent") == (0 if domain is WHOLE_DOMAIN else None)  # there are no registers
    check_collection(shard.updates)


@pytest.mark.family("histories in Spark")
def test_values_that_were_not_sent_are_the_oracles(spark: SparkSession, dice: random.Random) -> None:
    feed, shard = Feed(INHERITING_DOMAIN, dice, WORLDS, has_ties=is_long()), Shard(spark, INHERITING_DOMAIN)
    for number, (lower, upper) in enumerate(BATCHES):
        records = feed.records(2 * PER_BATCH, lower, upper or lower + 4, truncates=int(number == 2))
        _, outcome = shard.drain(records, lower, upper, is_restricted=number in (1, 2))
    check_collection(shard.updates)
    assert outcome.stats.stash_before > 0
    assert any(isinstance(update.value, Err) and update.value.cells for update in shard.updates)


@pytest.mark.parametrize("domain", [ONE_KEY_DOMAIN, WHOLE_DOMAIN], ids=["one key", "all sent"])
@pytest.mark.parametrize("has_ties", [False, True])
@pytest.mark.family("histories in Spark")
def test_first_batches_of_one_time_are_the_oracles(
    spark: SparkSession, dice: random.Random, domain: Domain, *, has_ties: bool
) -> None:
    feed, shard = Feed(domain, dice, WORLDS, has_ties=has_ties), Shard(spark, domain)
    for lower, upper in ((0, 4), (4, 7)):
        records = [replace(record, time=None) for record in feed.records(2 * PER_BATCH, lower, upper)]
        shard.drain(records, lower, upper)
    check_collection(shard.updates)


def test_a_first_batch_of_one_time_looks_at_no_row_before(spark: SparkSession, dice: random.Random) -> None:
    schema = ONE_KEY_DOMAIN.schema
    records = to_records(spark, schema, Feed(ONE_KEY_DOMAIN, dice, WORLDS).records(2, 0, 3))

    def windows(*, has_times: bool) -> int:
        drained = persistent_upsert(records, None, schema=schema, lower=0, upper=3, has_times=has_times, inherits=False)
        return str(drained.updates._jdf.queryExecution().optimizedPlan().toString()).count("Window [")

    assert (windows(has_times=False), windows(has_times=True)) == (1, 2)


@pytest.mark.family("histories in Spark")
def test_truncates_are_the_oracles(spark: SparkSession, dice: random.Random) -> None:
    feed, shard = Feed(ONE_KEY_DOMAIN, dice, WORLDS), Shard(spark, ONE_KEY_DOMAIN)
    for lower, upper, truncates in ((0, 3, 0), (3, 9, 3), (9, None, 1)):
        _, outcome = shard.drain(feed.records(PER_BATCH, lower, upper or lower + 4, truncates=truncates), lower, upper)
        assert outcome.is_thorough == (outcome.counted["truncates"] > 0)
    check_collection(shard.updates)


@pytest.mark.family("histories in Spark")
def test_ties_are_the_oracles(spark: SparkSession, dice: random.Random) -> None:
    feed, shard = Feed(ONE_KEY_DOMAIN, dice, WORLDS, has_ties=True), Shard(spark, ONE_KEY_DOMAIN)
    outcomes = [
        shard.drain(feed.records(4 * PER_BATCH, lower, upper or lower + 4), lower, upper)[1]
        for lower, upper in BATCHES[:2]
    ]
    # The same record twice takes the thorough plan too, which does not count it as a tie.
    assert all(each.is_thorough for each in outcomes if each.stats.order_ties)


@pytest.mark.family("histories in Spark")
@pytest.mark.parametrize(("late", "changed_ms"), [("error", 0), ("error", 1), ("lift", 1), ("persisted", 1)])
def test_late_records_are_the_oracles(spark: SparkSession, dice: random.Random, late: Late, changed_ms: int) -> None:
    """`changed_ms`: so far changes have moved the upper; what is dated in between is not late."""
    feed, shard = Feed(ONE_KEY_DOMAIN, dice, WORLDS), Shard(spark, ONE_KEY_DOMAIN)
    for lower, upper in BATCHES[1:3]:
        records, begun = feed.records(PER_BATCH, lower, upper or lower + 4), lower - changed_ms
        _, outcome = shard.drain(records, lower, upper, late=late, in_time_from=begun)
        assert (outcome.stats.already_persisted if late == "persisted" else outcome.stats.late_times) > 0


@pytest.mark.family("histories in Spark")
def test_redelivered_records_count_once_for_each_key_and_time(spark: SparkSession, dice: random.Random) -> None:
    feed, shard = Feed(ONE_KEY_DOMAIN, dice, WORLDS), Shard(spark, ONE_KEY_DOMAIN)
    first = feed.records(PER_BATCH, 0, 3)
    shard.drain(first, 0, 3)
    again = [*first, *feed.records(PER_BATCH, 3, 6, truncates=2)]
    _, outcome = shard.drain(again, 3, 6, late="persisted")
    assert 0 < outcome.stats.already_persisted < len(first)
    assert outcome.is_thorough


@pytest.mark.parametrize("late", ["lift", "error"])
def test_a_stash_that_a_restore_brought_back_is_the_oracles(
    spark: SparkSession, dice: random.Random, late: Late
) -> None:
    feed, shard = Feed(ONE_KEY_DOMAIN, dice, WORLDS), Shard(spark, ONE_KEY_DOMAIN)
    shard.drain(feed.records(PER_BATCH, 0, 3), 0, 3)
    waiting = [record for record in shard.stash if (record.time or 0) < 6]
    _, outcome = shard.drain([], 6, 9, stash_frontier=3, late=late)
    assert outcome.stats.late_times > 0
    assert outcome.stats.stash_before >= len(waiting) > 0
    assert {update.time for update in shard.updates if update.time > 3} <= {6, 7, 8}
    check_collection(shard.updates)


def test_advancing_times_is_the_oracles(spark: SparkSession, dice: random.Random) -> None:
    feed, shard = Feed(ONE_KEY_DOMAIN, dice, WORLDS), Shard(spark, ONE_KEY_DOMAIN)
    shard.drain(feed.records(PER_BATCH, 0, 4), 0, 4, as_of_frontier=2)
    shard.drain(feed.records(PER_BATCH, 4, 9), 4, 9, as_of_frontier=8)
    assert {update.time for update in shard.updates} == {2, 3, 8}


def _deliveries(feed: Feed, cuts: tuple[int, ...]) -> tuple[list[Record], list[list[Record]]]:
    """Records with times below the last cut, and a delivery of each before its time is final: never too late."""
    records = [r for r in feed.records(2 * PER_BATCH, 0, cuts[-1], strays=False) if r.time is not None]
    batches: list[list[Record]] = [[] for _ in cuts]
    for record in records:
        latest = next(number for number, upper in enumerate(cuts) if (record.time or 0) < upper)
        batches[feed.rng.randint(0, latest)].append(record)
    for batch in batches:
        feed.rng.shuffle(batch)
    return records, batches


@pytest.mark.family("histories in Spark")
def test_contents_do_not_depend_on_batches_order_or_repetition(spark: SparkSession, dice: random.Random) -> None:
    feed = Feed(ONE_KEY_DOMAIN, dice, WORLDS)
    records, batches = _deliveries(feed, (4, 7, 12))
    in_steps, at_once = Shard(spark, ONE_KEY_DOMAIN), Shard(spark, ONE_KEY_DOMAIN)
    lower = 0
    for upper, batch in zip((4, 7, 12), batches, strict=True):
        repeated = batch + feed.rng.choices(batch, k=len(batch) // 4)
        in_steps.drain(repeated, lower, upper)
        lower = upper
    at_once.drain(records, 0, 12)
    assert comparable(in_steps.updates) == comparable(at_once.updates)


def test_digest_is_of_contents_not_of_order(spark: SparkSession, dice: random.Random) -> None:
    feed = Feed(ONE_KEY_DOMAIN, dice, WORLDS)
    records = feed.records(PER_BATCH, 0, 3)

    def digest(given: Iterable[Record], partitions: int) -> str:
        frame = to_records(spark, ONE_KEY_DOMAIN.schema, given).repartition(partitions)
        drained = persistent_upsert(frame, None, schema=ONE_KEY_DOMAIN.schema, lower=0, upper=3)
        drained.updates.collect()
        return drained.outcome(drained.updates).rows_digest

    first = digest(records, 1)
    assert digest(feed.rng.sample(records, len(records)), 3) == first
    value = next(r.value for r in records if isinstance(r.value, tuple))
    another = Record((1_000_000,), value, 0, (None, "z", 0, 0))  # of a key that no record has
    assert digest([*records, another], 1) != first


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_sums_of_hashes_of_2_to_the_40_updates_are_exact(spark: SparkSession, dice: random.Random, ansi: str) -> None:
    hashes, copies = [-1, -(2**63), 2**63 - 1, 0, *(dice.getrandbits(63) for _ in range(4))], 2**38 - 1
    session = spark.newSession()
    session.conf.set("spark.sql.ansi.enabled", ansi)
    sums = limb_sums("digest", "hash", f"{copies}L")
    frame = session.createDataFrame([(number,) for number in hashes], "hash bigint")
    (found,) = frame.selectExpr(*[f"{sql} AS {name}" for name, sql in sums.items()]).collect()
    assert whole_sum(found.asDict(), "digest") == copies * sum(number % 2**64 for number in hashes)


@pytest.mark.parametrize("late", ["lift", "error", "persisted"])
def test_each_batch_runs_the_same_generated_code(spark: SparkSession, dice: random.Random, late: Late) -> None:
    """Bounds in the code would make the JVM compile and optimize it again for each batch."""
    schema, spark = ONE_KEY_DOMAIN.schema, spark.newSession()
    use(spark, stage_settings(0))  # adaptive execution would show code only while it runs
    records = to_records(spark, schema, Feed(ONE_KEY_DOMAIN, dice, WORLDS).records(2, 0, 3))
    state = to_state(spark, schema, [])

    def code(lower: int, upper: int) -> list[str]:
        drained = persistent_upsert(
            records,
            state,
            schema=schema,
            lower=lower,
            upper=upper,
            stash=records,
            stash_frontier=lower - 1,
            as_of_frontier=upper - 2,
            late=late,
            in_time_from=lower - 1,
        )
        found = drained.updates._jdf.queryExecution().debug().codegenToSeq()
        return [found.apply(number)._2() for number in range(found.size())]

    first = code(3, 7)
    assert sum(map(len, first)) > 10_000
    assert code(1_700_000_000_000, 1_700_000_086_400) == first


def test_collection_of_keys_alone(spark: SparkSession) -> None:
    schema = CollectionSchema(key=(Column("id", "bigint", nullable=False),), position=FILE_POSITION)
    shard = Shard(spark, Domain(schema, slots=lambda _: [], values=[()]))
    order = (None, "f", 0, 0)
    shard.drain([Record((1,), (), 0, order), Record((1,), (), 0, order), Record((2,), (), None, order)], 0, 3)
    shard.drain([Record((1,), (), 3, order), Record((2,), TOMBSTONE, 3, order)], 3, 9)
    assert as_of(shard.updates, 5) == {(1,): ()}
