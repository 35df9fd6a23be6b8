"""A reader of a simulation, with a lease."""

from __future__ import annotations

from persist_core.errors import LeaseExpired, OutsideFrontiers, ReadTooSlow, ShardNotFound, StorageError
from persist_core.frontier import Frontier
from persist_core.handles.client import PersistClient
from persist_core.handles.read import ReadHandle
from persist_core.shard.state import ShardState
from tests.sim.simulator.workload import SHARD, row_of
from tests.sim.simulator.world import GRACE_MS, World, linger

MAX_TRIES = 8  # of one reader's call
LEASE_MS = 4 * 3_600_000  # longer than GC keeps files for readers without a lease
SLOW_READS = 0.3


def read_some(world: World, name: str, looks: int) -> None:
    """A reader with a lease: reads from time to time, compares with the input, moves its hold up."""
    client, tries = world.client(name), 0
    while looks and tries < MAX_TRIES:
        session = _Session(world, client)
        try:
            session.open()
            while looks and session.look():
                looks -= 1
            session.reader.expire()
            tries += 1  # the shard is still empty, and in a replay no other actor may get a turn before this one ends
        except (StorageError, ShardNotFound):
            tries += 1
            client.clock.sleep_ms(1_000)
        except (LeaseExpired, ReadTooSlow) as error:
            tries += 1
            if not session.may_have_expired():
                world.fail("lease", f"{name}: {error}, though {LEASE_MS} ms have not gone by")


def read_without_lease(world: World, name: str, looks: int) -> None:
    """A reader without a lease: what it reads stays for a grace after it began."""
    client = world.client(name)
    for _ in range(looks):
        began_ms = world.now_ms()
        try:
            reader = _slow(world, client, client.open_reader(SHARD))
            upper = reader.state().upper.time
            if upper:
                began_ms = world.now_ms()
                check_snapshot(world, reader, upper - 1)
        except (StorageError, ShardNotFound, OutsideFrontiers):
            client.clock.sleep_ms(1_000)
        except ReadTooSlow as error:
            if world.now_ms() - began_ms < GRACE_MS:
                world.fail("too slow", f"{name}: {error}, after {world.now_ms() - began_ms} ms")


def _slow(world: World, client: PersistClient, reader: ReadHandle) -> ReadHandle:
    """The reader, which sometimes lets others continue between reading the state and reading files."""
    state = reader.state

    def slow_state() -> ShardState:
        found = state()
        if client.ids.jitter() < SLOW_READS:
            linger(world, client)
        return found

    reader.state = slow_state  # type: ignore[method-assign]  # to be slow where a real reader may be
    return reader


def check_snapshot(world: World, reader: ReadHandle, time: int) -> dict[tuple[int, str], int]:
    """Read as of `time` and compare with the input; how often each row is there."""
    found: dict[tuple[int, str], int] = {}
    for row in reader.snapshot(time).to_pylist():
        found[row["id"], row["name"]] = found.get((row["id"], row["name"]), 0) + 1
    rows = [row_of(slot, value) for slot, value in world.referee.expected.as_of(time).items()]
    wanted = {(row["id"], row["name"]): 1 for row in rows}
    if found != wanted:
        world.fail("snapshot", f"as of {time} a reader sees {found}; the input says {wanted}")
    return found


class _Session:
    """One lease of a reader."""

    reader: ReadHandle

    def __init__(self, world: World, client: PersistClient) -> None:
        self._world, self._client = world, client
        self._heard_ms = world.now_ms()  # the lease lasts at least from here
        self._held = 0  # the shard's since may be lower, as long as others hold it there

    def open(self) -> None:
        reader = self._client.open_leased_reader(SHARD, lease_ms=LEASE_MS)
        self.reader = _slow(self._world, self._client, reader)

    def may_have_expired(self) -> bool:
        return self._world.clocks_jump or self._world.now_ms() > self._heard_ms + LEASE_MS

    def look(self) -> bool:
        """Read as of two times; False if the shard is still empty."""
        state = self._heartbeat()
        if state.schema is None or not state.upper.time:
            return False
        ids = self._client.ids
        newest = state.upper.time - 1
        held = max(self._held, state.since.time or 0)
        if held > newest:
            return False
        low = held + int(ids.jitter() * (newest - held + 1))
        old = check_snapshot(self._world, self.reader, low)
        new = check_snapshot(self._world, self.reader, newest)
        for row in self.reader.changes(low, newest).to_pylist():
            old[row["id"], row["name"]] = old.get((row["id"], row["name"]), 0) + row["_persist_diff"]
        if {pair: count for pair, count in old.items() if count} != new:
            self._world.fail("changes", f"snapshot({low}) + changes({low}, {newest}) is {old}; snapshot has {new}")
        if ids.jitter() < 0.5:
            self._held = low
            self._heartbeat(Frontier(low))
        return True

    def _heartbeat(self, since: Frontier | None = None) -> ShardState:
        asked_ms = self._world.now_ms()
        state = self.reader.heartbeat(since)
        self._heard_ms = asked_ms
        return state
