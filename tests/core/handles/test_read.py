"""Snapshots and changes of a shard against a brute-force multiset, over random histories of staged batches."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from persist_core.contents.batch import BatchDescription, BatchManifest
from persist_core.contents.key_range import KeyRange, exactly
from persist_core.contents.parts import errs_schema, updates_schema
from persist_core.errors import (
    BadBounds,
    CorruptArtifact,
    InvalidInput,
    LeaseExpired,
    OutsideFrontiers,
    SchemaMismatch,
)
from persist_core.frontier import Frontier
from persist_core.handles.client import PersistClient
from persist_core.handles.read import ReadHandle
from persist_core.handles.since import SinceHandle
from persist_core.handles.write import WriteHandle
from persist_core.location.mem import MemBlob, MemConsensus
from persist_core.location.open import OpenLocation
from persist_core.schema import DIFF, ERR_KEY, ERR_KIND, ERR_MESSAGE, ERR_PAYLOAD, TIME, CollectionSchema, Column
from persist_core.shard.history import advance_since, set_history
from persist_core.shard.state import Committed
from tests.plain_commit import table_of
from tests.virtual import ManualClock, SeededIds

SCHEMA = CollectionSchema(
    key=(Column("id", "bigint", nullable=False), Column("row", "string", nullable=False)),  # a name of a reader's own
    values=(Column("amount", "decimal(12,2)"), Column("note", "string")),
)
Row = tuple[Any, ...]


class Shard:
    """One shard in memory, with the objects that the tests use."""

    def __init__(self, schema: CollectionSchema = SCHEMA) -> None:
        self.clock = ManualClock(1_000)
        self.ids = SeededIds(1, self.clock)
        self.client = PersistClient(OpenLocation(MemBlob(), MemConsensus()), self.clock, self.ids)
        self.blob, self.machine = self.client.blob, self.client.machine
        self.machine.apply("s", lambda state: (state, None), create=True)
        self.writer = WriteHandle(self.client, "s")
        self.reader = ReadHandle(self.client, "s")
        self.schema = schema
        self.epoch = 0

    def keep(self, history_ms: int) -> int | None:
        """Let `since` follow the upper at this distance; returns it."""
        self.machine.apply("s", lambda state: set_history(state, history_ms))
        _, advance = self.machine.apply("s", lambda state: advance_since(state, now_ms=self.clock.now_ms()))
        return advance.since.time

    def append(
        self,
        lower: int,
        upper: int | None,
        oks: list[Row],
        errs: list[Row] | None = None,
        schema: CollectionSchema | None = None,
    ) -> None:
        schema = schema or self.schema
        self.epoch += 1
        description = BatchDescription(
            "s", lower, upper, token=f"t{self.epoch}", checkpoint_id="c", epoch=self.epoch, parent_id=None, writer="w"
        )
        key = self.writer.stage(
            description,
            schema,
            self.ids.uuid7(),
            table_of(oks, updates_schema(schema)),
            table_of(errs or [], errs_schema(schema)),
        )
        data = self.blob.get(key)
        assert data is not None
        result = self.writer.compare_and_append(BatchManifest.decode(data), key)
        assert isinstance(result, Committed)


def rows(found: pa.Table) -> Counter[Row]:
    return Counter(tuple(row.values()) for row in found.to_pylist())


def history(seed: int, times: int) -> list[Row]:
    """Random consolidated updates that keep the invariants: (id, region, amount, note, time, diff)."""
    chance = random.Random(seed)
    live: dict[Row, Row] = {}
    updates: list[Row] = []
    for time in range(times):
        for key in {(chance.randrange(6), chance.choice(["", "eu", "ü"])) for _ in range(chance.randrange(6))}:
            before = live.pop(key, None)
            after = (
                None
                if chance.random() < 0.3
                else (Decimal(chance.randrange(300)) / 100, chance.choice([None, "a", "b"]))
            )
            if after is not None:
                live[key] = after
            if before != after:
                if before is not None:
                    updates.append((*key, *before, time, -1))
                if after is not None:
                    updates.append((*key, *after, time, 1))
    return updates


@pytest.mark.parametrize("seed", range(12))
def test_snapshots_and_changes_are_right_at_every_time(seed: int) -> None:
    times, chance = 20, random.Random(seed)
    updates = history(seed, times)
    shard = Shard()
    cuts = sorted({0, times, *(chance.randrange(1, times) for _ in range(4))})
    for lower, upper in itertools.pairwise(cuts):
        shard.append(lower, upper, [row for row in updates if lower <= row[4] < upper])
    expected: dict[int, Counter[Row]] = {}
    for time in range(times):
        expected[time] = Counter()
        for row in updates:
            if row[4] <= time:
                expected[time][row[:4]] += row[5]
        expected[time] = +expected[time]
        assert rows(shard.reader.snapshot(time)) == expected[time]
    for _ in range(20):
        after, through = sorted((chance.randrange(times), chance.randrange(times)))
        changed = shard.reader.changes(after, through)
        assert rows(changed) == Counter(row for row in updates if after < row[4] <= through)
        total = Counter(expected[after])
        for row in changed.to_pylist():
            *data, _, diff = row.values()
            total[tuple(data)] += diff
        assert +total == expected[through]
    assert rows(shard.reader.snapshot()) == expected[times - 1]


def test_errs_are_read_like_oks_without_comparing_messages() -> None:
    shard = Shard()
    shard.append(
        0,
        5,
        [],
        [(1, "eu", "value", "first wording", b"k1", b"p1", 3, 1), (None, None, "key", "m", None, b"junk", 4, 1)],
    )
    shard.append(5, 9, [], [(1, "eu", "value", "other wording", b"k1", b"p1", 6, -1)])
    assert set(shard.reader.errors(4)[ERR_PAYLOAD].to_pylist()) == {b"p1", b"junk"}
    assert shard.reader.errors(6).select([ERR_KIND, ERR_MESSAGE, ERR_KEY, ERR_PAYLOAD, TIME]).to_pylist() == [
        {ERR_KIND: "key", ERR_MESSAGE: "m", ERR_KEY: None, ERR_PAYLOAD: b"junk", TIME: 4}
    ]
    assert shard.reader.error_changes(4, 8)[DIFF].to_pylist() == [-1]


def test_a_multiset_without_key_counts_its_rows() -> None:
    schema = CollectionSchema(key=(), values=(Column("a", "int"), Column("b", "string")))
    shard = Shard(schema)
    shard.append(0, 5, [(1, "x", 0, 3), (1, None, 1, 1), (2, "y", 2, 1)])
    shard.append(5, 9, [(1, "x", 6, -2), (2, "y", 6, -1), (1, None, 7, 1)])
    assert rows(shard.reader.snapshot(4)) == Counter({(1, "x"): 3, (1, None): 1, (2, "y"): 1})
    assert rows(shard.reader.snapshot(8)) == Counter({(1, "x"): 1, (1, None): 2})


def test_reads_outside_the_frontiers_print_both() -> None:
    shard = Shard()
    with pytest.raises(OutsideFrontiers, match="no data yet"):
        shard.reader.snapshot()
    shard.append(0, 10, [(1, "eu", None, None, 0, 1)])
    with pytest.raises(OutsideFrontiers, match=r"\[since 0, upper 10\); the read asked for 10"):
        shard.reader.snapshot(10)
    shard.keep(5)
    with pytest.raises(
        OutsideFrontiers, match=r"\[since 5, upper 10\); the read asked for 4.*before since is gone.*persist holds s`"
    ):
        shard.reader.changes(4, 8)
    with pytest.raises(InvalidInput, match="expected after <= through"):
        shard.reader.changes(8, 6)
    assert len(shard.reader.snapshot(5)) == 1


def test_a_closed_shard_is_read_at_its_end() -> None:
    shard = Shard()
    shard.append(0, None, [(1, "eu", None, "x", 77, 1)])
    assert len(shard.reader.snapshot()) == 1
    assert len(shard.reader.snapshot(76)) == 0


def test_an_added_column_is_null_in_older_parts() -> None:
    shard = Shard()
    shard.append(0, 5, [(1, "eu", None, "old", 0, 1)])
    wider = CollectionSchema(SCHEMA.key, (*SCHEMA.values, Column("age", "int")))
    shard.append(5, 9, [(2, "eu", None, "new", 40, 6, 1)], schema=wider)
    assert {row["note"]: row["age"] for row in shard.reader.snapshot().to_pylist()} == {"old": None, "new": 40}


def test_a_lease_holds_since_and_its_end_is_said() -> None:
    shard = Shard()
    shard.append(0, 10, [(1, "eu", None, None, 0, 1)])
    leased = ReadHandle(shard.client, "s", reader="r1")
    for wrong in (-1, 1.5):
        with pytest.raises(InvalidInput, match="lease_ms is"):
            leased.register(lease_ms=wrong)  # type: ignore[arg-type] # - a mistake
    leased.register(lease_ms=50)
    hold = SinceHandle.open(shard.client, "s", "h")
    hold.downgrade(Frontier(8))
    assert shard.keep(0) == 0
    leased.heartbeat(since=Frontier(3))
    assert shard.keep(0) == 3
    shard.clock.sleep_ms(51)
    with pytest.raises(LeaseExpired):
        leased.snapshot(5)
    assert leased.expire() is True
    assert leased.expire() is False
    assert shard.keep(0) == 8


def test_a_lease_is_renewed_after_a_third_of_it() -> None:
    shard = Shard()
    shard.append(0, 10, [(1, "eu", None, None, 0, 1)])
    leased = ReadHandle(shard.client, "s", reader="r1")
    leased.register(lease_ms=300)
    versions = [shard.reader.state().seqno]
    for _ in range(30):
        leased.snapshot()
        leased.changes(0)
        shard.clock.sleep_ms(50)
        versions.append(shard.reader.state().seqno)
    assert versions[-1] - versions[0] == 30 * 50 // 100 - 1, "one for each third that the clock has passed"
    leased.heartbeat()
    assert shard.reader.state().seqno == versions[-1] + 1
    shard.clock.sleep_ms(301)
    with pytest.raises(LeaseExpired):
        leased.snapshot()


def test_missing_and_broken_parts_are_named() -> None:
    shard = Shard()
    shard.append(0, 10, [(1, "eu", None, None, 0, 1)])
    (part,) = [entry.key for entry in shard.blob.list_keys_and_metadata("s/") if entry.key.endswith(".parquet")]
    shard.blob.set(part, b"not parquet")
    with pytest.raises(CorruptArtifact, match=part):
        shard.reader.snapshot()
    shard.blob.delete(part)
    with pytest.raises(CorruptArtifact, match=part):
        shard.reader.snapshot()


def test_staging_refuses_what_a_batch_may_not_hold() -> None:
    shard = Shard()
    with pytest.raises(BadBounds, match=r"lie outside of 0 -> 10"):
        shard.append(0, 10, [(1, "eu", None, None, 10, 1)])
    with pytest.raises(BadBounds, match="diff 0"):
        shard.append(0, 10, [(1, "eu", None, None, 5, 0)])
    with pytest.raises(SchemaMismatch):
        shard.writer.stage(BatchDescription("s", 0, 10, "t", "c", 1, None, "w"), SCHEMA, "a", pa.table({"id": [1]}))


@pytest.mark.parametrize("wrong", ["many", b"\xff", [1], {"x": 1}, 1.5, None])
@pytest.mark.parametrize("name", ["id", TIME, DIFF])
def test_staging_refuses_columns_of_other_types(name: str, wrong: object) -> None:
    row = {"id": 1, "row": "eu", "amount": None, "note": None, TIME: 1, DIFF: 1, name: wrong}
    table = pa.Table.from_pylist([row]).select(updates_schema(SCHEMA).names)
    with pytest.raises(SchemaMismatch, match=rf"expected \{{'id': 'int64', .*: |column {name} has nulls"):
        Shard().writer.stage(BatchDescription("s", 0, 10, "t", "c", 1, None, "w"), SCHEMA, "a", table)


def test_contents_do_not_depend_on_row_order_but_on_every_update() -> None:
    updates = [(1, "eu", None, "a", 0, 1), (2, "eu", Decimal("1.00"), "b", 1, 1)]

    def contents(oks: list[Row]) -> str:
        shard = Shard()
        shard.append(0, 10, oks)
        commit = shard.reader.state().newest_commit
        assert commit is not None
        return commit.contents_digest

    assert contents(updates) == contents(updates[::-1])
    assert contents(updates) != contents(updates[:1])
    assert contents(updates) != contents([updates[0], (2, "eu", Decimal("1.01"), "b", 1, 1)])


def test_only_files_that_can_hold_the_keys_are_opened() -> None:
    shard = Shard()
    for number in range(3):
        shard.append(number, number + 1, [(10 * number + i, "eu", None, "x", number, 1) for i in range(5)])
    parts = [part for m in shard.client.manifests(shard.reader.state().batches) for part in m.parts]
    assert [(part.first_key, part.last_key) for part in parts] == [
        ((10 * number, "eu"), (10 * number + 4, "eu")) for number in range(3)
    ]
    for part in (parts[0], parts[2]):
        shard.blob.delete(part.key)
    (row,) = shard.reader.snapshot(keys=[exactly((12, "eu"))]).to_pylist()
    assert row["id"] == 12
    assert shard.reader.snapshot(keys=[KeyRange((5,), (9, "zz")), KeyRange((15,), (19,))]).num_rows == 0
    assert shard.reader.changes(0, keys=[exactly((13,))])[TIME].to_pylist() == [1]
    with pytest.raises(CorruptArtifact, match=f"{parts[2].key} is missing"):
        shard.reader.snapshot(keys=[KeyRange((14, "eu"), None)])
    flat = Shard(CollectionSchema((), (Column("a", "int"),)))
    flat.append(0, 1, [(1, 0, 1)])
    with pytest.raises(InvalidInput, match="shard s has no key"):
        flat.reader.snapshot(keys=[exactly((1,))])
