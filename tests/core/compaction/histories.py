"""Random histories of shards with merges, and what every read of them must answer: brute force over all updates."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from persist_core.checkpoint.publish import publish_missing
from persist_core.compaction.merge import Merge, merge_here
from persist_core.config.collection import FILE_POSITION
from persist_core.contents.batch import BatchDescription, HollowBatch
from persist_core.contents.key_range import KeyRange, exactly, meets_any
from persist_core.contents.parts import PARQUET, errs_schema, updates_schema
from persist_core.frontier import Frontier
from persist_core.handles.client import PersistClient
from persist_core.handles.read import ReadHandle
from persist_core.location.mem import MemBlob
from persist_core.location.open import OpenLocation
from persist_core.maintenance.fsck import fsck
from persist_core.protocol.fork import fork
from persist_core.protocol.restore import RestorePlan, plan_restore, restore
from persist_core.schema import CollectionSchema, Column
from persist_core.shard.replace import Replaced
from persist_core.shard.state import Committed, ShardState, expire_leases
from tests.core.compaction.expected import Contents, Expected, Row
from tests.core.world import all_updates
from tests.sim.simulator.write_stage import ArrowParts
from tests.virtual import ManualClock, SeededIds

KEYED = CollectionSchema(
    key=(Column("id", "bigint", nullable=False), Column("region", "string", nullable=False)),
    values=(Column("amount", "double"), Column("note", "string")),
)
SEQUENCED = replace(KEYED, order=(Column("seq", "bigint"),), position=FILE_POSITION)
MULTISET = CollectionSchema(key=(), values=(Column("a", "int"), Column("b", "string")))

_ORDER_FIELDS = ["by0", *(column.name for column in FILE_POSITION)]


class FrozenReader(ReadHandle):
    """A reader that has fetched the state long ago and goes on with it."""

    frozen: ShardState

    def state(self) -> ShardState:
        return self.frozen


class History:
    """One shard under test. `step` does one random thing to it; `check` reads all there is to read."""

    def __init__(
        self,
        location: OpenLocation,
        schema: CollectionSchema,
        seed: int,
        *,
        shard: str = "s",
        origin: History | None = None,
        sizes: Mapping[str, Any] | None = None,
        ids: int = 4,
    ) -> None:
        self.sizes: Mapping[str, Any] = origin.sizes if origin else sizes or {}  # of merges
        self.chance = random.Random(f"{shard} {seed}")
        self.client: PersistClient = origin.client if origin else _client(location, seed)
        self.shard, self.schema, self.seed = shard, schema, seed
        self.expected = Expected(schema, ids=ids)
        self.checkpoints: list[tuple[str, int]] = []
        self.forks: list[History] = []
        self.old_readers: list[FrozenReader] = []
        self.merges = self.steps = 0
        self.client.ensure_shard(shard)

    @property
    def state(self) -> ShardState:
        return self.client.state(self.shard)

    def step(self) -> None:
        """One random action."""
        actions: list[Callable[[], None]] = [self.append] * 5 + [self.merge] * 4
        actions += [self.seal, self.move_since, self.lease, self.keep_reader]
        if self.schema.key:
            actions += [self.restore, self.fork]
        self.chance.choice(actions)()

    def append(self, updates: bool = True, *, close: bool = False) -> None:
        lower = self.state.upper.time
        if lower is None:
            return
        upper = None if close else lower + self.chance.randrange(1, 4)
        times = range(lower, lower + 3 if upper is None else upper)
        oks, errs = _random_updates(self.chance, self.expected, times) if updates else ([], [])
        self.commit(lower, upper, oks, errs)

    def seal(self) -> None:
        self.append(updates=False)

    def commit(self, lower: int, upper: int | None, oks: list[Any], errs: list[Any]) -> None:
        newest = self.state.newest_commit
        description = BatchDescription(
            shard=self.shard,
            lower=lower,
            upper=upper,
            token=self.client.ids.uuid7(),
            checkpoint_id=self.client.ids.uuid7(),
            epoch=newest.epoch + 1 if newest else 1,
            parent_id=newest.checkpoint_id if newest else None,
            writer="test",
        )
        if self.schema.order:
            inserted = ((row, at) for row, at, diff in (*oks, *errs) if diff > 0)
            self.expected.orders.update((each, self.chance.randrange(100)) for each in inserted)
        tables = [
            _table([(*row, at, diff, *self._order(row, at, diff)) for row, at, diff in updates], columns)
            for updates, columns in ((oks, updates_schema(self.schema)), (errs, errs_schema(self.schema)))
        ]
        writer = self.client.open_writer(self.shard)
        key = writer.stage(description, self.schema, self.client.ids.uuid7(), *tables)
        assert isinstance(writer.compare_and_append(self.client.staged_manifest(key), key), Committed)
        self.expected.oks += oks
        self.expected.errs += errs
        self._publish()

    def _order(self, row: Row, at: int, diff: int) -> tuple[Any, ...]:
        """The cell of an update's order, if there is one: a retraction's is null."""
        if not self.schema.order:
            return ()
        seq = self.expected.orders[row, at] if diff > 0 else None
        return (None if seq is None else dict(zip(_ORDER_FIELDS, (seq, "file", 0, seq), strict=True)),)

    def _publish(self) -> None:
        publish_missing(self.client, self.state)
        commit = self.state.newest_commit
        assert commit is not None
        if commit.upper is not None:
            self.checkpoints.append((commit.checkpoint_id, commit.upper))

    def merge(self) -> None:
        """Any neighbors, at any level, or a step more of a merge."""
        batches = self.state.batches
        begun = [batch for batch in batches if batch.is_partial]
        if begun and self.chance.random() < 0.7:
            self.steps += 1
            self.merge_these((self.chance.choice(begun),))
        elif len(batches) > 1:
            count = self.chance.randrange(2, len(batches) + 1)
            first = self.chance.randrange(len(batches) - count + 1)
            self.merge_these(batches[first : first + count])

    def merge_these(self, inputs: tuple[HollowBatch, ...]) -> None:
        merge = replace(Merge.of(self.client, self.state, inputs), **self.sizes)
        at_once = self.chance.choice([3, 20, 1_000])
        done = merge_here(self.client, merge, attempt=self.client.ids.uuid7(), rows_at_once=at_once)
        assert isinstance(done, Replaced)
        self.merges += 1

    def move_since(self) -> None:
        upper = self.state.upper.time or 1
        hold = self.client.open_since(self.shard, "history")
        hold.downgrade(Frontier(self.chance.randrange(upper)))
        self.client.set_history(self.shard, self.chance.choice([0, upper // 2, None]))
        self.client.advance_since(self.shard)

    def lease(self) -> None:
        """Hold `since` for a while; the clock goes on."""
        self.client.open_leased_reader(self.shard, lease_ms=1_000)
        clock = self.client.clock
        assert isinstance(clock, ManualClock)
        clock.sleep_ms(self.chance.randrange(700))
        self.client.machine.apply(self.shard, lambda state: expire_leases(state, now_ms=clock.now_ms()))

    def keep_reader(self) -> None:
        reader = FrozenReader(self.client, self.shard)
        reader.frozen = self.state
        self.old_readers = [*self.old_readers[-1:], reader]

    def restore(self) -> None:
        if (point := self._checkpoint()) is None or self.state.upper.time is None:
            return
        checkpoint_id, upper = point
        plan = plan_restore(self.client, self.shard, checkpoint_id)
        if not isinstance(plan, RestorePlan):
            return
        before, errs_before = self.expected.snapshot(upper - 1), self.expected.errors(upper - 1)
        assert isinstance(restore(self.client, plan, writer="test"), Committed)
        reader = self.client.open_reader(self.shard)
        width = len(self.schema.columns)
        changed = _rows(reader.changes(plan.lower - 1) if plan.lower else plan.updates.oks)
        oks = [(row[:width], row[-2], row[-1]) for row in changed.elements()]
        found = _rows(reader.error_changes(plan.lower - 1) if plan.lower else plan.updates.errs)
        errs = [(row[:-2], row[-2], row[-1]) for row in found.elements()]
        if self.schema.order:
            self._take_back_orders(upper, oks, errs)
        self.expected.oks += oks
        self.expected.errs += errs
        assert self.expected.snapshot(plan.lower) == before
        assert _identities(self.expected, plan.lower) == Counter(
            {self.expected.identity(row[:-1]): count for row, count in errs_before.items()}
        )
        self._publish()

    def _take_back_orders(self, upper: int, oks: list[Any], errs: list[Any]) -> None:
        """A restore gives its insertions the orders as of the checkpoint, and leaves all others."""
        for updates, known in ((oks, self.expected.oks), (errs, self.expected.errs)):
            for row, at, diff in updates:
                if diff > 0:
                    self.expected.orders[row, at] = self.expected.order(known, row, upper - 1)

    def fork(self) -> None:
        if len(self.forks) == 2 or (point := self._checkpoint()) is None:
            return
        checkpoint_id, upper = point
        name = f"{self.shard}-fork{len(self.forks)}"
        made = type(self)(self.client.location, self.schema, self.seed, shard=name, origin=self)
        fork(self.client, self.shard, checkpoint_id, name, writer="test")
        made.expected = self.expected.until(upper)
        made._publish()
        self.forks.append(made)

    def _checkpoint(self) -> tuple[str, int] | None:
        since = self.state.since.time or 0
        readable = [(name, upper) for name, upper in self.checkpoints if upper > since]
        return self.chance.choice(readable) if readable else None

    def check(self) -> None:
        """Every read at every time, by a new reader and by old ones; and fsck."""
        if self.state.schema is None:
            return
        for reader in (self.client.open_reader(self.shard), *self.old_readers):
            self._check_reads(reader)
        report = fsck(self.client, self.shard)
        assert report.is_clean, report.violations

    def _check_reads(self, reader: ReadHandle) -> None:
        state = reader.state()
        if state.schema is None or not state.batches:
            return
        last = max([0, *(each[1] for each in (*self.expected.oks, *self.expected.errs))])
        since, end = state.since.time or 0, last if state.upper.time is None else state.upper.time - 1
        expected = self.expected.until(end + 1)
        for time in range(since, end + 1):
            assert _rows(reader.snapshot(time)) == expected.snapshot(time), (self.shard, time)
            assert _rows(reader.errors(time)) == expected.errors(time), (self.shard, time)
        if self.schema.order:
            self._check_orders(reader, state, expected, since, end)
        for _ in range(4):
            low, high = sorted(self.chance.randrange(since, end + 1) for _ in range(2))
            assert _rows(reader.changes(low, high)) == expected.changes(expected.oks, low, high)
            assert _rows(reader.error_changes(low, high)) == expected.changes(expected.errs, low, high)
            if self.schema.key:
                keys = self._some_keys()
                found = {
                    row: count for row, count in expected.snapshot(high).items() if meets_any(exactly(row[:2]), keys)
                }
                assert _rows(reader.snapshot(high, keys=keys)) == found
                changed = expected.changes(expected.oks, low, high)
                found = {row: count for row, count in changed.items() if meets_any(exactly(row[:2]), keys)}
                assert _rows(reader.changes(low, high, keys=keys)) == found

    def _check_orders(self, reader: ReadHandle, state: ShardState, expected: Expected, since: int, end: int) -> None:
        """Every insertion since has its order, and so has every row that is there, whenever it was inserted."""
        for changes in (reader.changes(since, end, orders=True), reader.error_changes(since, end, orders=True)):
            for *row, at, diff, order in (tuple(each.values()) for each in changes.to_pylist()):
                found = (order or {}).get("by0")
                assert diff < 0 or found == expected.orders[tuple(row), at], (self.shard, row, at)
        oks, _ = all_updates(reader, state)
        newest: dict[Row, tuple[int, int, Any]] = {}
        for *row, at, diff, order in (tuple(each.values()) for each in oks.to_pylist()):
            known = newest.get(tuple(row), (-1, 0, None))
            newest[tuple(row)] = max(known, (at, diff, order), key=lambda each: each[:2])
        for there in expected.snapshot(end):
            found = (newest[there][2] or {}).get("by0")
            assert found == expected.order(expected.oks, there, end), (self.shard, there)

    def _some_keys(self) -> list[KeyRange]:
        number = self.chance.randrange(self.expected.ids + 1)
        return self.chance.choice([[exactly((number, ""))], [KeyRange((number,), None), KeyRange(None, (0, "ü"))], []])


def _identities(expected: Expected, time: int) -> Counter[Row]:
    return Counter({expected.identity(row[:-1]): count for row, count in expected.errors(time).items()})


def _client(location: OpenLocation, seed: int) -> PersistClient:
    clock = ManualClock(1_700_000_000_000)
    is_mem = isinstance(location.blob, MemBlob)
    return PersistClient(
        location, clock, SeededIds(seed, clock), fetch_threads=1, part_format=ArrowParts() if is_mem else PARQUET
    )


def _random_updates(chance: random.Random, expected: Expected, times: range) -> tuple[list[Any], list[Any]]:
    return (
        _keyed_updates(chance, expected, times) if expected.schema.key else _multiset_updates(chance, expected, times)
    )


def _keyed_updates(chance: random.Random, expected: Expected, times: range) -> tuple[list[Any], list[Any]]:
    """A slot holds a row, an err, or nothing; every few slots change at every time."""
    oks: list[tuple[Row, int, int]] = []
    errs: list[tuple[Row, int, int]] = []
    held: dict[Row, tuple[list[Any], Row]] = {}
    for row in expected.snapshot(times.start - 1):
        held[row[:2]] = (oks, row)
    for err in expected.errors(times.start - 1):
        held[err[:2] if err[0] is not None else (err[4],)] = (errs, err[:-1])
    for time in times:
        for _ in range(chance.randrange(5 * expected.ids // 4)):
            is_bad = chance.random() >= 0.9
            slot: Row = (b"bad",) if is_bad else (chance.randrange(expected.ids), chance.choice(["", "ü"]))
            if any(at == time and self_slot == slot for self_slot, at in _touched(oks, errs)):
                continue
            before = held.pop(slot, None)
            after = _new_value(chance, slot, oks, errs, time)
            if before == after and before is not None:
                held[slot] = before
                continue
            if before is not None:
                before[0].append((before[1], time, -1))
            if after is not None:
                after[0].append((after[1], time, 1))
                held[slot] = after
    return oks, errs


def _new_value(chance: random.Random, slot: Row, oks: list[Any], errs: list[Any], time: int) -> Any:
    kind = chance.random()
    if len(slot) == 1:
        return (
            (errs, (None, None, "key", f"wording {time}", slot[0], b"raw", f"feed, line {time}"))
            if kind < 0.6
            else None
        )
    if kind < 0.2:
        return None
    if kind < 0.35:
        key = repr(slot).encode()
        return (errs, (*slot, "value", f"wording {time}", key, chance.choice([b"x", b"y"]), f"feed, line {time}"))
    return (oks, (*slot, chance.choice([None, 1.5, -0.25]), chance.choice([None, "a", "b"])))


def _touched(oks: list[Any], errs: list[Any]) -> list[tuple[Row, int]]:
    slots = [(row[:2], at) for row, at, _ in oks]
    return slots + [((row[:2] if row[0] is not None else (row[4],)), at) for row, at, _ in errs]


def _multiset_updates(chance: random.Random, expected: Expected, times: range) -> tuple[list[Any], list[Any]]:
    oks: list[tuple[Row, int, int]] = []
    errs: list[tuple[Row, int, int]] = []
    counts = expected.snapshot(times.start - 1)
    bad = Counter({row[:-1]: count for row, count in expected.errors(times.start - 1).items()})
    known = {expected.identity(row): row for row in bad}
    for time in times:
        for row in dict.fromkeys((chance.randrange(3), chance.choice([None, "x"])) for _ in range(3)):
            diff = chance.randrange(-counts[row], 4)
            if diff:
                counts[row] += diff
                oks.append((row, time, diff))
        if chance.random() < 0.4:
            err = ("view", f"wording {time}", chance.choice([None, b"k"]), b"p", None)
            err = known.setdefault(expected.identity(err), err)
            diff = chance.randrange(-bad[err], 3)
            if diff:
                bad[err] += diff
                errs.append((err, time, diff))
    return oks, errs


def _table(rows: list[Row], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema)


def _rows(table: pa.Table) -> Contents:
    return Counter(tuple(row.values()) for row in table.to_pylist())
