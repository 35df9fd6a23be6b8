"""Who takes part: dag runs that write, readers, checkpointers, collectors of garbage, holders of `since`.

Each is an ordinary user of `persist_core`: nothing here knows of faults but by what it raises. A dag run's tasks are
tried again as Airflow does it: what finished tasks returned is kept, the task that died starts anew, and a try that was
taken for dead may still be running (a zombie), but nobody listens to it any more.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NoReturn, Protocol

from persist_core.config.collection import CollectionConfig
from persist_core.errors import CorruptArtifact, LeaseExpired, OutdatedDescription, ShardNotFound, StorageError
from persist_core.frontier import Frontier
from persist_core.handles.client import PersistClient
from persist_core.handles.read import ReadHandle
from persist_core.ids import Ids
from persist_core.protocol import stages
from persist_core.protocol.stages import Conflict, NothingToDo
from persist_core.shard import state as transitions
from persist_core.shard.batch import BatchDescription, BatchManifest
from persist_core.shard.state import Commit, Committed, HoldMismatch, ShardState
from tests.sim.simulator.referee import Referee
from tests.sim.simulator.workload import SHARD, row_of
from tests.sim.simulator.write_stage import write

MAX_TRIES = 8  # of one task, and of one reader's call
MAX_ROUNDS = 30  # of one dag run: mint, write, append; more than the files there are
LEASE_MS = 3_600_000
STAGING_INTENT_MS = 3_600_000  # younger attempts are nobody's garbage


def collect(client: PersistClient, collected: set[str]) -> None:
    """A stand-in for GC: expires leases, truncates old versions of the state (more eagerly than the product does),
    deletes attempts that no commit names and none can name any more.

    An attempt can't be appended any more where the shard's upper is beyond its lower; it may still be asked for while
    its staging intent lasts, by a task that is tried again. What has no manifest yet is left alone. Manifests that are
    deleted are added to `collected`.
    """
    now_ms = client.clock.now_ms()
    client.machine.apply(SHARD, lambda state: transitions.expire_leases(state, now_ms=now_ms))
    listed = [entry.key for entry in client.blob.list_keys_and_metadata(f"{SHARD}/batches/")]
    state = client.state(SHARD)  # read after the listing: no commit of a listed attempt is missed
    client.location.consensus.truncate(SHARD, state.seqno)
    named = {_attempt(key) for key in state.manifest_keys}
    for key in listed:
        attempt = _attempt(key)
        if not key.endswith("/manifest.json") or attempt in named or _age_ms(attempt, now_ms) <= STAGING_INTENT_MS:
            continue
        data = client.blob.get(key)
        if data is not None and Frontier(BatchManifest.decode(data).lower) < state.upper:
            collected.add(key)
            for garbage in [key, *(other for other in listed if _attempt(other) == attempt and other != key)]:
                client.blob.delete(garbage)


def _attempt(key: str) -> str:
    return key.split("/")[2]


def _age_ms(attempt: str, now_ms: int) -> int:
    """By the time in the attempt's UUIDv7."""
    return now_ms - (uuid.UUID(attempt).int >> 80)


@dataclass(frozen=True)
class Stages:
    """The parts of the protocol, so that a test can plant a defect in one of them."""

    mint: Callable[..., stages.Minted | NothingToDo] = stages.mint
    write: Callable[[PersistClient, CollectionConfig, BatchDescription], str] = write
    append: Callable[[PersistClient, BatchDescription, str], Committed | Conflict] = stages.append
    checkpoint: Callable[[PersistClient, CollectionConfig], object] = stages.checkpoint
    collect: Callable[[PersistClient, set[str]], None] = collect


class World(Protocol):
    """What actors are given."""

    config: CollectionConfig
    stages: Stages
    referee: Referee
    collected: set[str]

    def client(self, name: str) -> PersistClient:
        """A client of one's own, with its own chance, on the simulated stores."""
        ...

    def fail(self, kind: str, message: str) -> NoReturn:
        """Note a finding and end the simulation."""
        ...


@dataclass(frozen=True)
class _Task:
    """Where a dag run stands: the task to do next, and what finished tasks have returned."""

    name: str = "mint"
    description: BatchDescription | None = None
    manifest_key: str | None = None
    tries: int = 0
    rounds: int = 0


class DagRuns:
    """One writer: dag runs one after the other, each up to its own end."""

    def __init__(self, world: World, name: str, ends: list[int]) -> None:
        self._world = world
        self._name = name
        self._ends = ends
        self._task = _Task()
        self._try = 0

    @property
    def tries(self) -> int:
        """How often somebody has begun to work on these dag runs."""
        return self._try

    def work(self) -> None:
        """Go on where the dag runs stand, until they are done or somebody else has taken over."""
        self._try += 1
        own_try, client = self._try, self._world.client(f"{self._name}+{self._try}")
        while self._ends:  # bounded by tries and rounds
            done = self._next(client, self._task, self._ends[0])
            if self._try != own_try:
                return
            if done is None:
                self._ends, self._task = self._ends[1:], _Task()
            else:
                self._task = done

    def _next(self, client: PersistClient, task: _Task, end: int) -> _Task | None:
        """Do one task: the next one, or `None` where the dag run is over."""
        try:
            return self._done(client, task, end)
        except StorageError:
            return None if task.tries >= MAX_TRIES else replace(task, tries=task.tries + 1)
        except OutdatedDescription:
            return self._again(task)
        except CorruptArtifact:
            if task.manifest_key in self._world.collected:
                return self._again(task)  # slept past its staging intent: cleared from mint
            raise

    def _done(self, client: PersistClient, task: _Task, end: int) -> _Task | None:
        world, stages, description = self._world, self._world.stages, task.description
        if task.name == "mint" or description is None:
            minted = stages.mint(client, world.config, until=end, writer=f"{self._name}/{end}")
            if isinstance(minted, NothingToDo):
                return None
            return replace(task, name="write", description=minted.description, tries=0)
        if task.name == "write":
            key = stages.write(client, world.config, description)
            return replace(task, name="append", manifest_key=key, tries=0)
        if task.name == "append":
            assert task.manifest_key is not None
            result = stages.append(client, description, task.manifest_key)
            logged = [c for c in self._commits() if c.checkpoint_id == description.checkpoint_id]
            if isinstance(result, Committed) and result.commit not in logged:
                world.fail("not committed", f"{self._name} was told {result}; the log has {logged}")
            if isinstance(result, Conflict) and logged:
                world.fail("own conflict", f"{self._name} was told {result.record}, and it is its own commit {logged}")
            return self._again(task) if isinstance(result, Conflict) else replace(task, name="checkpoint", tries=0)
        stages.checkpoint(client, world.config)
        return self._again(task)

    def _commits(self) -> tuple[Commit, ...]:
        state = self._world.referee.state
        return state.commits if state else ()

    def _again(self, task: _Task) -> _Task | None:
        """Mint what is left: after a conflict, and where the limits or the stash leave more to do."""
        return None if task.rounds >= MAX_ROUNDS else _Task(rounds=task.rounds + 1)


def read_some(world: World, name: str, looks: int) -> None:
    """A reader with a lease: looks now and then, compares with what the input says, moves its hold up."""
    client, tries = world.client(name), 0
    while looks and tries < MAX_TRIES:
        session = _Session(world, client)
        try:
            session.open()
            while looks and session.look():
                looks -= 1
            session.reader.expire()
            tries += 1  # the shard is still empty, and in a replay nobody else may get a turn before this one ends
        except (StorageError, ShardNotFound):
            tries += 1
            client.clock.sleep_ms(1_000)
        except LeaseExpired as error:
            tries += 1
            if not session.may_have_expired():
                world.fail("lease", f"{name}: {error}, though {LEASE_MS} ms have not gone by")


class _Session:
    """One lease of a reader."""

    reader: ReadHandle

    def __init__(self, world: World, client: PersistClient) -> None:
        self._world, self._client = world, client
        self._heard_ms = client.clock.now_ms()  # the lease lasts at least from here
        self._held = 0  # the shard's since may be lower, as long as others hold it there

    def open(self) -> None:
        self.reader = self._client.open_leased_reader(SHARD, lease_ms=LEASE_MS)

    def may_have_expired(self) -> bool:
        return self._client.clock.now_ms() > self._heard_ms + LEASE_MS

    def look(self) -> bool:
        """Read as of two times; False where the shard is still empty."""
        state = self._heartbeat()
        if state.schema is None or not state.upper.time:
            return False
        ids = self._client.ids
        newest = state.upper.time - 1
        held = max(self._held, state.since.time or 0)
        if held > newest:
            return False
        low = held + int(ids.jitter() * (newest - held + 1))
        old, new = self._snapshot(low), self._snapshot(newest)
        for row in self.reader.changes(low, newest).to_pylist():
            old[row["id"], row["name"]] = old.get((row["id"], row["name"]), 0) + row["_persist_diff"]
        if {pair: count for pair, count in old.items() if count} != new:
            self._world.fail("changes", f"snapshot({low}) + changes({low}, {newest}) is {old}; snapshot has {new}")
        if ids.jitter() < 0.5:
            self._held = low
            self._heartbeat(Frontier(low))
        return True

    def _snapshot(self, time: int) -> dict[tuple[int, str], int]:
        found: dict[tuple[int, str], int] = {}
        for row in self.reader.snapshot(time).to_pylist():
            found[row["id"], row["name"]] = found.get((row["id"], row["name"]), 0) + 1
        rows = [row_of(slot, value) for slot, value in self._world.referee.expected.as_of(time).items()]
        wanted = {(row["id"], row["name"]): 1 for row in rows}
        if found != wanted:
            self._world.fail("snapshot", f"as of {time} a reader sees {found}; the input says {wanted}")
        return found

    def _heartbeat(self, since: Frontier | None = None) -> ShardState:
        asked_ms = self._client.clock.now_ms()
        state = self.reader.heartbeat(since)
        self._heard_ms = asked_ms
        return state


def checkpoint_some(world: World, name: str, times: int) -> None:
    """A checkpoint task beside those of the dag runs."""
    client = world.client(name)
    for _ in range(times):
        try:
            world.stages.checkpoint(client, world.config)
        except (StorageError, ShardNotFound):
            client.clock.sleep_ms(1_000)


def hold_some(world: World, name: str, times: int) -> None:
    """A critical reader whose hold several owners move up."""
    client = world.client(name)
    for _ in range(times):
        try:
            handle = client.open_since(SHARD, "critical")
            upper = client.state(SHARD).upper.time or 0
            moved = handle.downgrade(Frontier(int(client.ids.jitter() * max(upper, 1))))
            if isinstance(moved, HoldMismatch) and moved.found == handle.hold:
                world.fail("hold", f"{name} was told that somebody else moved the hold: {moved}; it is its own")
        except (StorageError, ShardNotFound):
            client.clock.sleep_ms(1_000)


def collect_some(world: World, name: str, times: int) -> None:
    """A collector of garbage."""
    client = world.client(name)
    for _ in range(times):
        try:
            world.stages.collect(client, world.collected)
        except (StorageError, ShardNotFound):
            client.clock.sleep_ms(1_000)


def ends_of(ids: Ids, ends: tuple[int, ...]) -> list[int]:
    """Some of these ends of dag runs, in order: at least one."""
    chosen = [end for end in ends if ids.jitter() < 0.5]
    return chosen or [ends[-1]]
