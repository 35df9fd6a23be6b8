"""The Spark upsert in `sequence` order against the oracle, on random histories: updates, stash, orders seen, counts."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import types as T

from persist_core.contents.batch import LATE_OPERATOR, ORDER_INDEX_OPERATOR, PartKind
from persist_core.keys import PART
from persist_core.schema import (
    BAD_KEY,
    BEATEN_BY,
    DELETED,
    DIFF,
    ERR_KEY,
    ERR_KIND,
    ERR_PAYLOAD,
    FLOOR,
    FORGOTTEN,
    INDEX_KIND,
    MISSING_ORDER,
    ORDER,
    RAISED,
    TIME,
    Column,
    order_type,
)
from persist_spark.frame import inherited_fields, part_type
from persist_spark.order_memory import Memory, facts_of
from persist_spark.upsert.arguments import SeenBefore
from persist_spark.upsert.outcome import Outcome
from persist_spark.upsert.plan import persistent_upsert
from persist_spark.upsert.sequence import index_type
from tests.oracle.consolidate import Err, Slot, UpsertDiff, as_of, check_collection
from tests.oracle.sequence import OrderMemory
from tests.oracle.upsert import TOMBSTONE, TRUNCATE, Record, drain_sealed_input
from tests.sampling import is_long, sample
from tests.spark.upsert_cases import (
    INHERITING_DOMAIN,
    MANY_KEYS_DOMAIN,
    ONE_KEY_DOMAIN,
    WHOLE_DOMAIN,
    Domain,
    Feed,
    collected,
    comparable,
    needed_of,
    order_struct,
    to_records,
    until_kept,
    without_beaten,
)

Batches = tuple[tuple[int, int | None], ...]
OLD = ("old", 1, 0.5)
A, B = (1,), (2,)


@dataclass
class SequenceShard:
    """A shard by hand. `drain` runs a batch through Spark and through the oracle, and keeps what Spark wrote."""

    spark: SparkSession
    domain: Domain
    keep_deleted_ms: int | None = None
    updates: list[UpsertDiff] = field(default_factory=list)
    stash: list[Record] = field(default_factory=list)
    memory: OrderMemory = field(default_factory=OrderMemory)  # the oracle's
    parts: list[Row] = field(default_factory=list)
    index: list[Row] = field(default_factory=list)
    late: list[Row] = field(default_factory=list)
    stash_rows: int = 0
    leaves_out: bool = False  # what hot keys have too much

    def drain(
        self,
        records: Iterable[Record],
        lower: int,
        upper: int | None,
        *,
        is_restricted: bool = False,
    ) -> Outcome:
        """The batch `[lower, upper)`; asserts that all of it is the oracle's."""
        given = list(records)
        wanted = drain_sealed_input(
            given,
            self.stash,
            self.updates,
            lower=lower,
            upper=upper,
            schema=self.domain.schema,
            orders=self.memory,
            keep_deleted_ms=self.keep_deleted_ms,
        )
        rows, outcome = self._run(given, lower, upper, is_restricted=is_restricted)
        by_part: dict[str, list[Row]] = {}
        for row in rows:
            by_part.setdefault(row[PART], []).append(row)
        entries, late = by_part.pop(ORDER_INDEX_OPERATOR, []), by_part.pop(LATE_OPERATOR, [])
        written = collected(self.domain.schema, [row for found in by_part.values() for row in found])
        assert comparable(written.updates) == comparable(wanted.updates)
        assert outcome.stats == wanted.stats
        assert outcome.counted["broken"] == 0
        assert (outcome.counted["index_rows"], outcome.counted["late_rows"]) == (len(entries), len(late))
        self.stash += written.stash
        self.stash_rows = outcome.stats.stashed
        assert all(record in comparable(self.stash) for record in comparable(wanted.stash))
        self.updates += written.updates
        self.index += entries
        assert len(late) == wanted.stats.late
        assert all(row[ORDER] < row[BEATEN_BY] for row in late if None not in (*row[ORDER], *row[BEATEN_BY]))
        self.late += late
        self.parts += [row for kind in PartKind for row in by_part.get(kind, [])]
        self.memory = wanted.orders or OrderMemory()
        if upper is not None:
            self._check_memory(upper)
        return outcome

    def _run(
        self, records: Sequence[Record], lower: int, upper: int | None, *, is_restricted: bool
    ) -> tuple[list[Row], Outcome]:
        schema, before = self.domain.schema, None if self.keep_deleted_ms is None else lower - self.keep_deleted_ms
        frame = to_records(self.spark, schema, records)
        whole = to_records(self.spark, schema, self.stash) if self.stash else None
        needed = needed_of(self.stash, records, upper, all_meet=before is not None)
        few = to_records(self.spark, schema, needed) if needed else None
        rows: list[Row] = []

        def drain(is_thorough: bool, inherits: bool) -> Outcome:
            slots, stash, stash_rows = None, whole, None
            if is_restricted and not is_thorough:
                stash, stash_rows = few, self.stash_rows
                names = [*schema.key_names, BAD_KEY]
                slots = frame.select(*names) if stash is None else frame.select(*names).union(stash.select(*names))
            read, beaten = without_beaten(frame, schema, leaves_out=self.leaves_out and not is_thorough)
            drained = persistent_upsert(
                read,
                self._state() if self.parts else None,
                schema=schema,
                lower=lower,
                upper=upper,
                stash=stash,
                stash_rows=stash_rows,
                beaten=beaten,
                is_thorough=is_thorough,
                inherits=inherits,
                seen=SeenBefore(
                    self._frame(self.index, index_type(schema, order_struct(schema))),
                    self._memory(before),
                    slots,
                    has_index=bool(self.index),
                    has_late=bool(self.late),
                    forgets_before=before,
                ),
            )
            rows[:] = drained.updates.collect()
            return drained.outcome(drained.updates)

        return rows, until_kept(drain)

    def _frame(self, rows: Sequence[Row], columns: T.StructType) -> DataFrame | None:
        if not rows:
            return None
        return self.spark.createDataFrame([tuple(row[name] for name in columns.names) for row in rows], columns)

    def _memory(self, before: int | None) -> Memory:
        times = [row[TIME] for row in self.index]
        schema = replace(self.domain.schema, order=(Column("seq", "bigint"),))
        facts = [facts_of([self._entries()], schema, min(times), max(times))] if times else []
        return Memory.of(facts, schema, before)

    def _entries(self) -> pa.Table:
        """The index as its files hold it."""
        own = [("seq", pa.int64())] if self.domain.schema.order is None else []
        order = pa.struct([*own, *order_type(self.domain.schema)])
        schema = pa.schema([(INDEX_KIND, pa.string()), (TIME, pa.int64()), (ORDER, order), (BAD_KEY, pa.binary())])
        rows = [{**row.asDict(), ORDER: row[ORDER].asDict()} for row in self.index]
        return pa.Table.from_pylist([{name: row[name] for name in schema.names} for row in rows], schema)

    def _state(self) -> DataFrame:
        """The rows that a look-up finds: values of retracted oks are not read."""
        schema = self.domain.schema
        columns = part_type(schema).add(ORDER, order_struct(schema)).add(BAD_KEY, T.BinaryType())
        columns = T.StructType([*columns.fields, *inherited_fields(schema)])
        values = {column.name for column in schema.values}
        rows = []
        for row in self.parts:
            cells = {name: row[name] for name in columns.names}
            cells[BAD_KEY] = None
            if all(row[name] is None for name in schema.key_names):
                cells[BAD_KEY] = row[ERR_KEY] if row[ERR_KEY] is not None else row[ERR_PAYLOAD]
            if row[DIFF] < 0 and row[ERR_KIND] is None:
                cells |= dict.fromkeys(values)
            rows.append(tuple(cells.values()))
        return self.spark.createDataFrame(rows, columns)

    def _check_memory(self, upper: int) -> None:
        """The next batch sees exactly what the oracle remembers."""
        wanted = self.memory
        contents = as_of(self.updates, upper)
        orders = {
            self._slot(row): row[ORDER]
            for row in sorted(self.parts, key=lambda row: (row[TIME], row[DIFF]))
            if row[DIFF] > 0
        }
        found: dict[Slot, Any] = {slot: orders[slot] for slot in contents}
        newest: dict[Slot, Row] = {}
        for row in sorted(self.index, key=lambda row: row[TIME]):
            if row[INDEX_KIND] not in (FLOOR, FORGOTTEN):
                newest[self._slot(row)] = row
        floors, forgotten = (
            [_comparable(row[ORDER]) for row in self.index if row[INDEX_KIND] == kind] for kind in (FLOOR, FORGOTTEN)
        )
        floor = max(floors, default=None)
        awaited = {record.slot for record in self.stash if (record.time or 0) >= upper}
        for slot, row in newest.items():
            if row[INDEX_KIND] == RAISED:
                assert slot in contents
                found[slot] = row[ORDER]
            elif row[INDEX_KIND] == DELETED:
                is_old = self.keep_deleted_ms is not None and row[TIME] < upper - self.keep_deleted_ms
                if floor is not None and _comparable(row[ORDER]) <= floor:
                    continue
                assert slot not in contents
                if is_old and slot not in awaited:
                    forgotten.append(_comparable(row[ORDER]))
                else:
                    found[slot] = row[ORDER]
                    assert wanted.slots[slot].time == row[TIME]
        assert floor == (None if wanted.floor is None else wanted.floor[0][0])
        assert {slot: _comparable(order) for slot, order in found.items()} == {
            slot: _plain(seen.precedence[0][0]) for slot, seen in wanted.slots.items()
        }
        highest = None if wanted.forgotten is None else wanted.forgotten[0][0]
        if (highest or (0,)) > (floor or (0,)) or max(forgotten, default=(0,)) > (floor or (0,)):
            assert max(forgotten, default=None) == highest

    def _slot(self, row: Row) -> Slot:
        columns = self.domain.schema.key_names
        if row[BAD_KEY] is not None:
            return bytes(row[BAD_KEY])
        if all(row[name] is None for name in columns):
            return bytes(row[ERR_KEY] if row[ERR_KEY] is not None else row[ERR_PAYLOAD])
        return tuple(_python(row[name]) for name in columns)


def _python(cell: Any) -> Any:
    if isinstance(cell, bytearray):
        return bytes(cell)
    return cell.astimezone(UTC) if isinstance(cell, datetime) else cell


def _comparable(order: Any) -> Any:
    return (1, tuple((0,) if part is None else (1, part) for part in order))


def _plain(rank: Any) -> Any:
    """The order of a record without one, too."""
    return rank[1] if rank[0] == 2 else rank


@pytest.fixture
def dice(request: pytest.FixtureRequest, persist_seed: int) -> random.Random:
    return random.Random(f"{persist_seed}/{request.node.name}")


def _unordered(feed: Feed, count: int) -> list[Record]:
    """Records without an order, each in a slot of its own position."""
    found = []
    for _ in range(count):
        order = (None, "unordered", 0, feed.rng.randrange(5))
        slot = f"{MISSING_ORDER} {order}".encode()
        found.append(Record(slot, Err(MISSING_ORDER, slot, b"raw", "no order"), None, order))
    return found


SHORT: Batches = ((0, 3), (3, 7), (7, 12), (12, None))
LONG: Batches = ((0, 3), (3, 4), (4, 9), (9, 12), (12, 14), (14, 15), (15, 20), (20, None))


def _drain_all(shard: SequenceShard, feed: Feed, batches: Batches, *, has_truncates: bool) -> int:
    """Drain random records batch by batch; how many lost to an order seen before."""
    late = 0
    for number, (lower, upper) in enumerate(batches):
        is_odd = bool(number % 2)
        truncates = int(has_truncates and is_odd)
        records = feed.records(10 * feed.worlds, lower, upper or lower + 4, truncates=truncates)
        records += _unordered(feed, 3) if is_odd else []
        outcome = shard.drain(records, lower, upper, is_restricted=not is_odd)
        late += outcome.stats.late
    check_collection(shard.updates)
    return late


@pytest.mark.parametrize("domain", sample([ONE_KEY_DOMAIN, WHOLE_DOMAIN], 1, "histories in sequence order"))
def test_random_history_is_the_oracles(spark: SparkSession, dice: random.Random, domain: Domain) -> None:
    domain = replace(domain, schema=replace(domain.schema, order=(Column("seq", "bigint"),)))
    feed, shard = Feed(domain, dice, 12), SequenceShard(spark, domain, 4)
    assert _drain_all(shard, feed, SHORT, has_truncates=True) > 0


def drain_inheriting(spark: SparkSession, dice: random.Random, keep: int | None, batches: Batches, worlds: int) -> None:
    """Drain records that leave out values; in every other batch some that came before come again, and a truncate."""
    order = (Column("seq", "bigint"),)
    domain = replace(INHERITING_DOMAIN, schema=replace(INHERITING_DOMAIN.schema, order=order))
    feed, shard = Feed(domain, dice, worlds), SequenceShard(spark, domain, keep)
    came: list[Record] = []
    for number, (lower, upper) in enumerate(batches):
        is_odd = bool(number % 2)
        records = feed.records(15 * worlds, lower, upper or lower + 4, truncates=int(is_odd))
        again = dice.sample(came, len(came) // 4) if is_odd else []
        came += [record for record in records if record.value is not TRUNCATE]
        shard.drain([*records, *again], lower, upper, is_restricted=not is_odd)
    check_collection(shard.updates)
    is_shown = any(isinstance(update.value, Err) and update.value.cells for update in shard.updates)
    assert is_shown or worlds == 1, "no err knows a part of its values: one world may have none"


@pytest.mark.family("histories in Spark")
def test_values_that_were_not_sent_are_the_oracles(spark: SparkSession, dice: random.Random) -> None:
    drain_inheriting(spark, dice, 4, SHORT, 8)


@pytest.mark.skipif(not is_long(), reason="takes minutes (PERSIST_PROFILE=nightly)")
@pytest.mark.parametrize("keep", [None, 0, 4])
@pytest.mark.parametrize("worlds", [1, 12])
def test_unsent_values_in_long_histories_are_the_oracles(
    spark: SparkSession, dice: random.Random, keep: int | None, worlds: int
) -> None:
    drain_inheriting(spark, dice, keep, LONG, worlds)


@pytest.mark.skipif(not is_long(), reason="takes minutes (PERSIST_PROFILE=nightly)")
@pytest.mark.parametrize("keep", [None, 0, 1, 4])
@pytest.mark.parametrize(("domain", "worlds"), [(ONE_KEY_DOMAIN, 1), (ONE_KEY_DOMAIN, 12), (MANY_KEYS_DOMAIN, 12)])
@pytest.mark.parametrize("has_truncates", [False, True])
@pytest.mark.parametrize("has_ties", [False, True])
def test_long_random_histories_are_the_oracles(
    spark: SparkSession,
    dice: random.Random,
    keep: int | None,
    domain: Domain,
    worlds: int,
    has_truncates: bool,
    has_ties: bool,
) -> None:
    feed, shard = Feed(domain, dice, worlds, has_ties=has_ties), SequenceShard(spark, domain, keep)
    _drain_all(shard, feed, LONG, has_truncates=has_truncates)


@pytest.mark.parametrize("domain", [ONE_KEY_DOMAIN, MANY_KEYS_DOMAIN], ids=["one-key", "many-keys"])
def test_the_oracle_answers_the_same_for_any_order_of_its_input(domain: Domain, dice: random.Random) -> None:
    """With ties: nothing, the counts included, depends on which of two equal records comes first."""
    feed, updates, stash, memory = (
        Feed(domain, dice, 12, has_ties=True),
        list[UpsertDiff](),
        list[Record](),
        OrderMemory(),
    )
    for lower, upper in LONG:
        records = [*feed.records(60, lower, upper or lower + 4, truncates=1), *_unordered(feed, 3)]
        drained = [
            drain_sealed_input(
                each, stash, updates, lower=lower, upper=upper, schema=domain.schema, orders=memory, keep_deleted_ms=4
            )
            for each in (records, records[::-1])
        ]
        assert drained[0] == drained[1]
        updates, stash = [*updates, *drained[0].updates], list(drained[0].stash)
        memory = drained[0].orders or OrderMemory()


@pytest.mark.family("histories in Spark")
def test_a_forgotten_tombstone_stays_forgotten(spark: SparkSession) -> None:
    shard = SequenceShard(spark, ONE_KEY_DOMAIN, 1)
    shard.drain([Record(A, TOMBSTONE, None, (9, "a", 0, 0)), Record(B, TOMBSTONE, None, (1, "a", 0, 1))], 0, 2)
    shard.drain([], 2, 4)
    shard.drain([Record(A, OLD, 9, (5, "b", 0, 0))], 4, 6)
    assert len(shard.index) > 2, "the tombstone is made void"
    outcome = shard.drain([], 6, 12)
    assert (outcome.stats.late, outcome.stats.late_beyond_memory, outcome.stats.inserts) == (0, 1, 1)


def test_a_late_record_loses_to_an_undecodable_keys_tombstone(spark: SparkSession) -> None:
    """Also where only entries of the batch's slots are read."""
    bad = Err("bad_key", b"x", b"raw", "not a number")
    shard = SequenceShard(spark, ONE_KEY_DOMAIN)
    deleted = [Record(b"x", TOMBSTONE, None, (9, "a", 0, 0)), Record(A, TOMBSTONE, None, (9, "a", 0, 1))]
    shard.drain([*deleted, Record(B, OLD, None, (1, "a", 0, 2))], 0, 2)
    late = [Record(b"x", bad, None, (5, "b", 0, 0)), Record(A, OLD, None, (5, "b", 0, 1))]
    outcome = shard.drain(late, 2, 4, is_restricted=True)
    assert outcome.stats.late == 2
