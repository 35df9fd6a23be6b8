"""The actors beside dag runs and readers. Each is an ordinary user of `persist_core`: nothing here knows of
faults but by what it raises.
"""

from __future__ import annotations

from contextlib import suppress

from persist_core.checkpoint.checkpointer import Checkpointer
from persist_core.compaction.merge import Merge, merge_here
from persist_core.errors import (
    CheckpointNotFound,
    Corruption,
    OutsideFrontiers,
    ReadTooSlow,
    RunFailed,
    ShardNotFound,
    StateNotRead,
    StorageError,
)
from persist_core.frontier import Frontier
from persist_core.handles.client import PersistClient
from persist_core.maintenance.copy import Copier
from persist_core.maintenance.violations import STORAGE, Violation
from persist_core.shard.state import HoldMismatch
from tests.sim.simulator.reading import check_snapshot
from tests.sim.simulator.workload import SHARD
from tests.sim.simulator.world import GRACE_MS, World, collect_garbage

MAX_LOOKS = 10  # of an actor that waits for others


def checkpoint_some(world: World, name: str, times: int) -> None:
    """A checkpoint task beside the dag runs' own."""
    client = world.client(name)
    for _ in range(times):
        try:
            world.stages.checkpoint(client, world.config)
            world.referee.stage_ended()
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
            world.stages.collect(client)
            client.clock.sleep_ms(GRACE_MS)
        except (StorageError, ShardNotFound):
            client.clock.sleep_ms(1_000)


def _wait_for_a_commit(world: World, client: PersistClient) -> None:
    """Let others continue until they have made one to three commits, or seem to make no more."""
    there = _commits(world)
    wanted = there + 1 + int(client.ids.jitter() * 3)
    for _ in range(MAX_LOOKS):
        if _commits(world) >= wanted:
            return
        world.give_way()


def _commits(world: World) -> int:
    state = world.referee.state
    return len(state.commits) if state else 0


def restore_some(world: World, name: str, times: int) -> None:
    """An actor that restores an existing checkpoint."""
    client = world.client(name)
    for _ in range(times):
        _wait_for_a_commit(world, client)
        try:
            _restore(world, client, name)
        except (StorageError, ShardNotFound):
            client.clock.sleep_ms(1_000)


def _restore(world: World, client: PersistClient, name: str) -> None:
    checkpointer = Checkpointer(client.blob, SHARD)
    there = checkpointer.list_checkpoints()
    if not there:
        return
    older = there[:-1] or there  # a restore of the newest changes nothing
    checkpoint_id = older[int(client.ids.jitter() * len(older))]
    try:
        world.stages.restore(client, checkpoint_id, name)
        world.referee.stage_ended()
    except OutsideFrontiers:
        client.clock.sleep_ms(1_000)  # `since` has passed it
    except (CheckpointNotFound, Corruption):
        if checkpoint_id not in world.referee.deleted_checkpoints:
            raise  # else retention has deleted it since it was listed


def write_some(world: World, name: str, times: int) -> None:
    """A program that appends rows and knows nothing of operator state: it is refused if there is any."""
    client = world.client(name)
    for _ in range(times):
        _wait_for_a_commit(world, client)
        try:
            world.stages.write_plainly(client, world.config, name)
        except (StateNotRead, StorageError, ShardNotFound):
            client.clock.sleep_ms(1_000)


def merge_some(world: World, name: str, times: int) -> None:
    """An actor that merges any neighbors, at any moment."""
    client = world.client(name)
    for _ in range(times):
        _wait_for_a_commit(world, client)
        try:
            state = client.state(SHARD)
            if len(state.batches) > 1:
                first = int(client.ids.jitter() * (len(state.batches) - 1))
                count = 2 + int(client.ids.jitter() * (len(state.batches) - first - 1))
                merge = Merge.of(client, state, state.batches[first : first + count])
                merge_here(client, merge, attempt=client.ids.uuid7())
                world.referee.stage_ended()
        except (StorageError, ShardNotFound, ReadTooSlow):
            client.clock.sleep_ms(1_000)


def fork_some(world: World, name: str, times: int) -> None:
    """An actor that forks the shard at a checkpoint, forks the fork, and merges what they share."""
    client = world.client(name)
    for number in range(times):
        _wait_for_a_commit(world, client)
        fork_name = f"{name}-{number}"
        try:
            _fork(world, client, fork_name)
            if fork_name in world.forks:
                _fork_again(world, client, fork_name)
            for made in sorted(world.forks.keys() & {fork_name, f"{fork_name}-again"}):
                if client.ids.jitter() < 0.5:
                    _merge(client, made)
        except (StorageError, ShardNotFound, ReadTooSlow):
            client.clock.sleep_ms(1_000)


def _fork(world: World, client: PersistClient, fork_name: str) -> None:
    there = Checkpointer(client.blob, SHARD).list_checkpoints()
    if not there:
        return
    checkpoint_id = there[int(client.ids.jitter() * len(there))]
    try:
        world.stages.fork(client, SHARD, checkpoint_id, fork_name, writer=fork_name)
    except (OutsideFrontiers, RunFailed):
        client.clock.sleep_ms(1_000)  # `since` has passed it, or its batches were merged meanwhile
    except (CheckpointNotFound, Corruption):
        if checkpoint_id not in world.referee.deleted_checkpoints:
            raise  # else retention has deleted it since it was listed
    else:
        world.forks[fork_name] = checkpoint_id


def _fork_again(world: World, client: PersistClient, fork_name: str) -> None:
    (commit,) = client.state(fork_name).commits
    with suppress(CheckpointNotFound, RunFailed):  # it was not published yet, or GC has given the fork up
        world.stages.fork(client, fork_name, commit.checkpoint_id, f"{fork_name}-again", writer=fork_name)
        world.forks[f"{fork_name}-again"] = world.forks[fork_name]


def _merge(client: PersistClient, shard: str) -> None:
    state = client.state(shard)
    if len(state.batches) > 1:
        merge_here(client, Merge.of(client, state, state.batches), attempt=client.ids.uuid7())


def copy_some(world: World, name: str, times: int) -> None:
    """A copier, which also collects garbage where it copies to. What it has copied is a state of the shard."""
    client, backup = world.client(name), world.backup(name)
    for _ in range(times):
        _wait_for_a_commit(world, client)
        try:
            Copier(client, backup, threads=1).copy([SHARD])
            upper = backup.state(SHARD).upper.time
            if upper:
                check_snapshot(world, backup.open_reader(SHARD), upper - 1)
            collect_garbage(backup)
        except (StorageError, ShardNotFound, ReadTooSlow, RunFailed):
            client.clock.sleep_ms(1_000)


def scrub_some(world: World, name: str, times: int) -> None:
    """A scrub at any moment: nothing in this shard is damaged, so it finds nothing, and it never raises."""
    client = world.client(name)
    for _ in range(times):
        _wait_for_a_commit(world, client)
        try:
            report = world.stages.fsck(client, SHARD)
        except (StorageError, ShardNotFound):
            client.clock.sleep_ms(1_000)
            continue
        damage = [violation for violation in report.violations if not _is_unfinished(world, violation)]
        if damage:
            world.fail("scrub", f"{name} found {damage}")


def _is_unfinished(world: World, violation: Violation) -> bool:
    """True if this is what tasks leave behind while they work or when they die. The end of the run finds none of it.

    The store did not answer; `_latest` is older than the newest manifest; or a publisher has written the manifest of a
    checkpoint that retention has deleted, and has not looked again yet (the referee checks that it does).
    """
    is_put_back = violation.message.partition(":")[0] in world.referee.deleted_checkpoints
    return violation.check in (STORAGE, "latest") or (violation.check == "checkpoint" and is_put_back)
