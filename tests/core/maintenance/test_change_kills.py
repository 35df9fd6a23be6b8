"""kill -9 of reprocess, rebuild and swap-back at any call of a store; kills beside concurrent appends and commands.

The oracle is the shard's own progress: a state is whole if it holds just what the files that it has consumed say, each
as it was when it was consumed. So nothing is lost or doubled if in the end all files are consumed, each once.
"""

from __future__ import annotations

import itertools
import multiprocessing
import random
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from persist_core.config.collection import FILES
from persist_core.contents.batch import BatchDescription
from persist_core.errors import InvalidInput, PersistError
from persist_core.gc.collect import GRACE_MS
from persist_core.handles.client import PersistClient
from persist_core.location.open import OpenLocation, open_location
from persist_core.location.settings import PersistLocation
from persist_core.maintenance.fsck import fsck
from persist_core.maintenance.hidden import hidden_of, kept_generations
from persist_core.maintenance.maintain import maintain
from persist_core.maintenance.rebuild import Request as Rebuild
from persist_core.maintenance.rebuild import rebuild
from persist_core.maintenance.reprocess import Request as Reprocess
from persist_core.maintenance.reprocess import reprocess
from persist_core.sources.collection import CollectionSource
from tests.core.maintenance.rebuilt_shard import KEYS, Keyed, check_only_left, fill, names, ok
from tests.core.protocol.restored_shard import SHARD
from tests.dying_store import Crash, DyingStore, crash, kill_process
from tests.oracle.upsert import Record
from tests.sampling import is_long, sample
from tests.sim.simulator.write_stage import ArrowParts
from tests.virtual import SeededIds

KINDS = ("reprocess", "rebuild", "back")
KILLS, AT_ONCE = 2, 4  # of each kind
HISTORIES = 1_000 if is_long() else 8
MAX_CALLS = 500
SECONDS = 120  # a bound on each child, which takes about one
SLOTS = (("eu", 1), ("eu", 2), ("", 0))


def do(shard: Keyed, kind: str, client: PersistClient, number: int = -1) -> Any:
    """The command, confirmed. `number`: the generation to swap back."""

    def write(config: Any, description: BatchDescription) -> str:
        return shard.beside(config.name).write(description)

    more: dict[str, Any] = {"write": write, "writer": f"test/{kind}", "say": lambda _: None}
    if kind == "reprocess":
        return reprocess(client, shard.config, Reprocess(0, is_confirmed=True), **more)
    back_to = number if kind == "back" else None
    return rebuild(client, shard.config, Rebuild(back_to=back_to, is_confirmed=True), **more)


def dying(shard: Keyed, calls: list[int], at: int, *, is_late: bool, die: Callable[[], None]) -> PersistClient:
    blob, consensus = (
        DyingStore(store, calls, at, is_late=is_late, die=die)
        for store in (shard.location.blob, shard.location.consensus)
    )
    ids = shard.client.ids  # or two would draw the same
    return PersistClient(OpenLocation(blob, consensus), shard.clock, ids, fetch_threads=1, part_format=ArrowParts())


def opened(feed: Path, stores: Path, records: dict[str, tuple[Record, ...]]) -> Keyed:
    where = PersistLocation(f"file://{stores}/blobs", f"sqlite:///{stores}/consensus.db")
    shard = Keyed(feed, open_location(where))
    shard.feed = records
    return shard


def prepared(feed: Path, stores: Path, kind: str) -> dict[str, tuple[Record, ...]]:
    """A shard on real stores, and files of which the command has something to do; the records of the files."""
    shard = opened(feed, stores, {})
    fill(shard, is_swapped=kind == "back")
    if kind == "reprocess":
        shard.feed["1.txt"] = (ok(SLOTS[2], "right", 1), ok(SLOTS[0], "right", 1))
        (feed / "1.txt").write_text("replaced")
    shard.location.close()
    return shard.feed


def killed(feed: Path, stores: Path, records: dict[str, tuple[Record, ...]], kind: str, at: int, is_late: bool) -> None:
    """The child's work."""
    shard = opened(feed, stores, records)
    shard.client.ids = SeededIds(1_000, shard.clock)
    shard.define(int(kind == "rebuild"))
    do(shard, kind, dying(shard, [0], at, is_late=is_late, die=kill_process))


@pytest.mark.family("commands")
@pytest.mark.parametrize("kind", KINDS)
def test_kill_9_at_any_call_is_ended_by_the_next_command(tmp_path: Path, kind: str) -> None:
    (feed := tmp_path / "feed").mkdir()
    (stores := tmp_path / "stores").mkdir()
    records, calls = prepared(feed, stores, kind), [0]

    def copied(name: str) -> Keyed:
        shutil.copytree(stores, tmp_path / name)
        shard = opened(feed, tmp_path / name, records)
        shard.define(int(kind == "rebuild"))
        shard.client.ids = SeededIds(2_000, shard.clock)
        return shard

    whole = copied("whole")
    before, generation = names(whole), whole.client.state(SHARD).origin.generation
    do(whole, kind, dying(whole, calls, MAX_CALLS, is_late=False, die=crash))
    after, uppers = names(whole), [each.upper for each in whole.client.state(SHARD).commits]
    assert 50 < calls[0] < MAX_CALLS
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # so that a child does not import everything again
    points = sample(itertools.product(range(1, calls[0] + 1), (False, True)), KILLS, f"kill -9/{kind}")
    for some in (points[at : at + AT_ONCE] for at in range(0, len(points), AT_ONCE)):
        shards = [copied(str(point)) for point in some]
        children = [
            context.Process(target=killed, args=(feed, tmp_path / str(point), records, kind, *point)) for point in some
        ]
        for child in children:
            child.start()
        for point, shard, child in zip(some, shards, children, strict=True):
            child.join(SECONDS)
            assert child.exitcode == -signal.SIGKILL, point
            assert names(shard) in (before, after), point
            check_but_for_left(shard)
            do(shard, kind, shard.client)
            assert names(shard) == after, point
            state = shard.client.state(SHARD)
            assert [each.upper for each in state.commits] == uppers, point
            assert state.origin.generation == generation + (kind != "reprocess"), point
            assert not shard.client.state(hidden_of(SHARD, "reprocess" if kind == "reprocess" else "rebuild")).commits
            shard.check()
            shard.location.close()


def check_but_for_left(shard: Keyed) -> None:
    """`fsck` finds nothing but derived objects that the next checkpoint task makes or deletes."""
    check_only_left(each for each in fsck(shard.client, SHARD).violations if each.check != "latest")


def name_of(record: Record) -> str:
    assert isinstance(record.value, tuple)
    return str(record.value[0])


class World:
    """A shard, every version of its files, and what readers saw at times since the present generation began."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.shard, self.chance = Keyed(folder), chance
        self.versions: dict[tuple[str, int], tuple[Record, ...]] = {}
        self.seen: dict[tuple[str | None, int], dict[Any, str]] = {}
        self.known: set[str] = set()
        self.told: list[str] = []
        for _ in range(3):
            self.append()

    def say(self, text: str) -> None:
        self.told.append(text)

    def put(self, name: str, text: str) -> None:
        number, slot = int(name.partition(".")[0]), self.chance.choice(SLOTS)
        self.shard.feed[name] = (ok(slot, text, number),)
        file = self.shard.folder / name
        file.write_text(f"{file.read_text() if file.exists() else ''}{text}\n")
        self.versions[name, file.stat().st_size] = self.shard.feed[name]

    def replace(self) -> None:
        name = self.chance.choice(sorted(self.shard.feed))
        self.put(name, f"{name} again")

    def append(self) -> None:
        """A new file and a run, by the definition that the shard has."""
        name, config = f"{len(self.shard.feed)}.txt", self.shard.config
        self.put(name, name)
        self.define_as_is()
        self.shard.run((self.shard.client.ensure_shard(SHARD).upper.time or 0) + 10)
        self.known.add(name)
        self.shard.config = config

    def define_as_is(self) -> None:
        schema = self.shard.client.ensure_shard(SHARD).schema
        self.shard.define(0 if schema is None else KEYS.index(schema.key_names))

    def consumed(self) -> dict[str, int]:
        """The size of each file when the shard consumed it."""
        progress = self.shard.client.state(SHARD).sources.get(FILES)
        known = CollectionSource(self.shard.client, self.shard.config).files.consumed(progress, like=progress)
        return {name: facts[0] for name, facts in known.items()}

    def check(self) -> None:
        """The state is whole, and what was seen before of its history is still so."""
        sizes = self.consumed()
        assert self.known <= sizes.keys(), "progress does not go back"
        self.known = set(sizes)
        inputs = [self.versions[name, sizes[name]] for name in sorted(sizes, key=lambda each: int(each[:-4]))]
        expected = {record.slot: name_of(record) for records in inputs for record in records}
        assert names(self.shard) == expected
        state = self.shard.client.state(SHARD)
        self.seen[state.origin.life, (state.upper.time or 0) - 1] = expected
        for (life, time), rows in self.seen.items():
            if life == state.origin.life and time >= (state.since.time or 0):
                found = self.shard.client.open_reader(SHARD).snapshot(time).to_pylist()
                assert {(row["region"], row["id"]): row["name"] for row in found} == rows, time
        check_but_for_left(self.shard)

    def other(self) -> None:
        """Act as another process meanwhile; it may be refused."""
        kind = self.chance.choice(("append", "append", "maintain", *KINDS))
        config = self.shard.config
        self.say(f"  meanwhile {kind}")
        with suppress(PersistError):
            if kind == "append":
                self.append()
            elif kind == "maintain":
                self.shard.clock.sleep_ms(self.chance.choice((0, GRACE_MS + 1)))
                maintain(self.shard.client, SHARD)
            else:
                do(self.shard, kind, self.shard.client)
        self.shard.config = config

    def asked(self) -> tuple[str, int]:
        """A command with something to do; the file is as it needs it."""
        kept = kept_generations(self.shard.client, self.shard.client.state(SHARD))
        kind = self.chance.choice(KINDS if kept else KINDS[:2])
        self.define_as_is()
        number = -1
        if kind == "back":
            chosen = self.chance.choice(kept)
            assert chosen.state.schema is not None
            number = chosen.number
            self.shard.define(KEYS.index(chosen.state.schema.key_names))
        elif kind == "rebuild":
            self.shard.define(self.chance.randrange(2))
        if kind == "reprocess" or self.chance.random() < 0.3:
            self.replace()
        return kind, number

    def turn(self) -> None:
        """A command that is interrupted twice: another process comes in between, and it is killed, or not."""
        kind, number = self.asked()
        between, at = sorted(self.chance.randrange(1, 250) for _ in range(2))
        is_late, interrupts = self.chance.random() < 0.5, [self.other]
        self.say(f"{kind} {number}, interrupted at {between}, killed {'after' if is_late else 'before'} {at}")
        calls = [0]
        inner = dying(
            self.shard, calls, between, is_late=is_late, die=lambda: interrupts.pop()() if interrupts else None
        )
        blob, consensus = (
            DyingStore(store, [0], at, is_late=is_late) for store in (inner.location.blob, inner.location.consensus)
        )
        client = PersistClient(
            OpenLocation(blob, consensus), self.shard.clock, inner.ids, fetch_threads=1, part_format=ArrowParts()
        )
        try:
            do(self.shard, kind, client, number)
            self.say("  it ended")
        except Crash:
            self.say("  it was killed")
        except PersistError as error:
            self.say(f"  {error.kind}: {str(error)[:100]}")
        self.check()
        if self.chance.random() < 0.3:
            self.say("  append")
            self.append()
            self.check()
        config = self.shard.config
        if kind == "reprocess":
            self.define_as_is()
        try:
            do(self.shard, kind, self.shard.client, number)
        except InvalidInput as error:  # after a swap the turns are not known; or the generation is no longer kept
            self.say(f"  repeated: {str(error)[:100]}")
        self.shard.config = config
        self.check()


@pytest.mark.family("commands")
@pytest.mark.parametrize("number", range(HISTORIES))
def test_kills_appends_and_commands_at_once_lose_nothing(number: int, tmp_path: Path, persist_seed: int) -> None:
    world = World(tmp_path, random.Random(persist_seed + number))
    try:
        for _ in range(3):
            world.turn()
        world.append()
        world.check()
        assert world.consumed().keys() == world.shard.feed.keys(), "nothing is lost"
        world.shard.check()
    except BaseException as error:
        error.add_note("\n".join(world.told))
        raise
