"""Rebuild, swap and swap back in random histories: contents, fsck and GC agree with a model at every step."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from persist_core.compaction.merge import Merge, merge_here
from persist_core.errors import InvalidInput
from persist_core.gc.collect import GRACE_MS, INTENT_MS
from persist_core.handles.client import PersistClient
from persist_core.location.mem import MemBlob, MemConsensus
from persist_core.location.open import OpenLocation
from persist_core.maintenance.copy import Copier
from persist_core.maintenance.fsck import fsck
from persist_core.maintenance.hidden import kept_generations
from persist_core.maintenance.maintain import maintain
from persist_core.maintenance.reprocess import Request as Reprocess
from persist_core.maintenance.reprocess import reprocess
from persist_core.protocol.fork import fork
from persist_core.protocol.restore_point import FIRST_UPPER
from tests.core.maintenance.rebuilt_shard import KEYS, Keyed, names, ok, rebuilt
from tests.core.protocol.ordered_shard import OrderedCollection
from tests.core.protocol.restored_shard import SHARD, Collection
from tests.oracle.strategies import STRAY, History, histories
from tests.oracle.upsert import Record
from tests.sim.simulator.write_stage import ArrowParts

SLOTS = (("eu", 1), ("eu", 2), ("", 0))
STEPS = ("append", "append", "merge", "gc", "restore", "fork", "reprocess", "rebuild", "rebuild", "back")
Consumed = tuple[tuple[str, tuple[Record, ...]], ...]


@dataclass
class Model:
    """The files that each generation has consumed, in order, and its key. `points`: of the present one, by checkpoint;
    `at`: its contents at times since it began."""

    consumed: Consumed = ()
    key: int = 0
    points: dict[str, Consumed] = field(default_factory=dict)
    at: dict[int, dict[Any, str]] = field(default_factory=dict)
    kept: dict[int, tuple[int, Consumed]] = field(default_factory=dict)
    generation: int = 0
    back: int | None = None  # the newest swap brought it back

    def names(self) -> dict[Any, str]:
        return {record.slot: name_of(record) for _, records in self.consumed for record in records}

    def swapped(self, key: int, consumed: Consumed, back: int | None = None) -> None:
        self.kept[self.generation] = (self.key, self.consumed)
        self.generation += 1
        self.back = back
        self.key, self.consumed, self.points, self.at = key, consumed, {}, {}


def name_of(record: Record) -> str:
    assert isinstance(record.value, tuple)
    return str(record.value[0])


class World:
    """The shard, its files and the model."""

    def __init__(self, folder: Path) -> None:
        self.shard, self.model = Keyed(folder), Model()
        self.forks: dict[str, dict[Any, str]] = {}
        self.numbers = 0

    @property
    def files(self) -> Consumed:
        """As they are now, in natural order."""
        return tuple(sorted(self.shard.feed.items(), key=lambda each: int(each[0].split(".")[0])))

    @property
    def consumed(self) -> Consumed:
        """The files that the shard has consumed, as they are now: others are left to its next run."""
        known = {name for name, _ in self.model.consumed}
        return tuple(each for each in self.files if each[0] in known)

    def drop(self, slot: int, name: str) -> None:
        self.shard.drop(f"{self.numbers}.txt", (ok(SLOTS[slot], name, self.numbers),))
        self.numbers += 1

    def run(self) -> None:
        checkpoint = self.shard.run((self.shard.client.ensure_shard(SHARD).upper.time or 0) + 10)
        known = {name for name, _ in self.model.consumed}
        self.model.consumed += tuple(each for each in self.files if each[0] not in known)
        self.model.points[checkpoint] = self.model.consumed
        self.note()

    def note(self) -> None:
        self.model.at[self.shard.upper() - 1] = self.model.names()

    def check(self) -> None:
        shard, model = self.shard, self.model
        state = shard.client.state(SHARD)
        assert state.origin.generation == model.generation
        assert names(shard) == model.names()
        for time, expected in model.at.items():
            if (state.since.time or 0) <= time:
                rows = shard.client.open_reader(SHARD).snapshot(time).to_pylist()
                assert {(row["region"], row["id"]): row["name"] for row in rows} == expected
        for name, expected in self.forks.items():
            assert names(shard.beside(name)) == expected
        assert state.schema is not None
        assert state.schema.key_names == KEYS[model.key]
        shard.check()


def step(world: World, kind: str, data: st.DataObject) -> None:
    shard, model = world.shard, world.model
    if kind == "append":
        world.drop(data.draw(st.integers(0, 2), label="slot"), data.draw(st.sampled_from("xyz"), label="name"))
        world.run()
    elif kind == "merge":
        state = shard.client.state(SHARD)
        if len(state.batches) > 1:
            merge_here(shard.client, Merge.of(shard.client, state, state.batches), attempt=shard.client.ids.uuid7())
    elif kind == "gc":
        for _ in range(data.draw(st.integers(1, 6), label="eras")):
            shard.clock.sleep_ms(GRACE_MS + 1)
            maintain(shard.client, SHARD)
        for number in [number for number in model.kept if is_over(world, number)]:
            del model.kept[number]
    elif kind == "restore" and model.points:
        point = data.draw(st.sampled_from(sorted(model.points)), label="checkpoint")
        newest = shard.client.state(SHARD).newest_commit
        if newest is not None and point not in (newest.checkpoint_id, newest.restored_from):
            shard.go_back(point)
            model.consumed = model.points[point]
            world.note()
    elif kind == "fork" and model.points:
        point = data.draw(st.sampled_from(sorted(model.points)), label="checkpoint")
        name = f"fork{len(world.forks)}"
        fork(shard.client, SHARD, point, name, writer="test")
        world.forks[name] = replace(model, consumed=model.points[point]).names()
    elif kind == "reprocess":
        replaced(world, data)
        before = shard.upper()
        with suppress(InvalidInput):  # the order of what was consumed before a swap is not known
            corrected(shard)
        if shard.upper() > before:
            model.consumed = world.consumed
            world.note()
    elif kind == "rebuild":
        key = data.draw(st.integers(0, 1), label="key")
        shard.define(key)
        found = rebuilt(shard)
        if found.is_new:
            model.swapped(key, world.consumed)
            world.note()
        else:
            assert shard.client.state(SHARD).newest_commit == found.commit, "repeated"
    elif kind == "back" and model.kept:
        number = data.draw(st.sampled_from(sorted(model.kept)), label="generation")
        key, consumed = model.kept[number]
        shard.define(key)
        if rebuilt(shard, back_to=number).is_new:
            known = {name for name, _ in consumed}
            taken_in = tuple(each for each in world.consumed if each[0] not in known)
            model.swapped(key, consumed + taken_in, back=number)
            world.note()
        else:
            assert model.back == number, "repeated"


def corrected(shard: Keyed) -> None:
    reprocess(
        shard.client,
        shard.config,
        Reprocess(0, is_confirmed=True),
        write=lambda config, description: shard.beside(config.name).write(description),
        writer="test",
        say=lambda _: None,
    )


def replaced(world: World, data: st.DataObject) -> None:
    """Other bytes under a name that was consumed."""
    name = data.draw(st.sampled_from([name for name, _ in world.files]), label="file")
    (old,) = world.shard.feed[name]
    world.shard.feed[name] = (replace(old, value=(f"{name_of(old)}'", None, None)),)
    file = world.shard.folder / name
    file.write_text(f"{file.read_text()}, replaced")


def is_over(world: World, number: int) -> bool:
    swap = world.shard.client.state(SHARD).origin.swaps[number]
    return swap.kept_until_ms is not None and swap.kept_until_ms <= world.shard.clock.now_ms()


@settings(max_examples=settings().max_examples // 4)
@given(st.lists(st.sampled_from(STEPS), min_size=1, max_size=8), st.data())
def test_random_histories_of_generations(steps: list[str], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        world.drop(0, "first")
        world.run()
        for kind in ("append", *steps, "append"):
            step(world, kind, data)
            world.check()
        numbers = [each.number for each in kept_generations(world.shard.client, world.shard.client.state(SHARD))]
        assert numbers == sorted(world.model.kept)
        shard = world.shard
        for _ in range(2 * INTENT_MS // GRACE_MS + 8):
            shard.clock.sleep_ms(GRACE_MS + 1)
            maintain(shard.client, SHARD)
        world.check()
        assert not kept_generations(shard.client, shard.client.state(SHARD))


@settings(max_examples=settings().max_examples // 8)
@given(histories(may_close=False), st.data())
def test_a_rebuild_gives_what_a_fresh_load_gives(history: History, data: st.DataObject) -> None:
    """With times and orders of records, stash and order index."""
    kind = data.draw(st.sampled_from((Collection, OrderedCollection)), label="kind")
    if history.batches[0].upper == FIRST_UPPER:  # one turn takes what is before it and just after it
        return
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as beside:
        shard, fresh = kind(Path(folder)), kind(Path(beside))
        for each in (shard, fresh):
            for number, batch in enumerate(history.batches):
                each.drop(f"{number}.txt", batch.records)
                each.run(batch.upper)
        upper = shard.upper()
        for back_to in (None, -1):
            if back_to:
                fresh.run(upper + 1)  # what the swap has made final
            rebuilt(shard, back_to=back_to)
            shard.check()
            assert shard.read(shard.upper() - 1) == fresh.contents(fresh.upper() - 1)
            assert sorted(map(repr, shard.updates())) == sorted(map(repr, fresh.updates()))
        for each in (shard, fresh):
            each.drop("later.txt", history.batches[0].records)
            each.run(upper + 100 + STRAY)
        assert shard.contents(shard.upper() - 1) == fresh.contents(fresh.upper() - 1)
        shard.check()


def test_a_copy_of_a_location_follows_the_generations() -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        shard, there = world.shard, OpenLocation(MemBlob(clock=world.shard.clock), MemConsensus())
        target = PersistClient(there, shard.clock, shard.client.ids, fetch_threads=1, part_format=ArrowParts())
        world.drop(0, "first")
        world.run()
        for key, back_to in ((0, None), (1, None), (0, -1)):
            shard.define(key)
            if shard.client.state(SHARD).origin.generation or key:
                rebuilt(shard, back_to=back_to)
            (copied,) = Copier(shard.client, target, threads=1).copy([SHARD])
            assert copied.is_new
            assert fsck(target, SHARD).is_clean, fsck(target, SHARD).violations
            found = target.open_reader(SHARD).snapshot()
            assert found.equals(shard.client.open_reader(SHARD).snapshot())
            assert target.state(SHARD).origin.generation == shard.client.state(SHARD).origin.generation
