"""An actor that shortens the history, moves `since`, pins, holds and releases while all others are at work.

Whatever the order: what is pinned can be restored, and every read at or after `since` has the answer that the input
says, before and after batches were merged at the new `since`.
"""

from __future__ import annotations

from persist_core.checkpoint.checkpointer import Checkpointer
from persist_core.checkpoint.pins import pin, unpin
from persist_core.compaction.merge import Merge, merge_here
from persist_core.errors import (
    CheckpointNotFound,
    Corruption,
    InvalidInput,
    NotReadable,
    OutsideFrontiers,
    ReadTooSlow,
    ShardNotFound,
    StorageError,
)
from persist_core.frontier import Frontier
from persist_core.handles.client import PersistClient
from persist_core.inspection.holders import release
from persist_core.protocol.restore import plan_restore
from tests.sim.simulator.workload import SHARD, row_of
from tests.sim.simulator.world import World

MAX_LOOKS = 5  # while it waits for a commit


def keep_some(world: World, name: str, times: int) -> None:
    """Do one of these a few times: give up history, pin a checkpoint for a while, hold for a while."""
    client = world.client(name)
    for _ in range(times):
        for _ in range(MAX_LOOKS):
            if world.referee.state is not None and world.referee.state.batches:
                break
            world.give_way()
        act = (_give_up, _give_up, _pin, _hold)[int(client.ids.jitter() * 4)]
        try:
            act(world, client, name)
        except (StorageError, ShardNotFound, ReadTooSlow):  # `read_without_lease` checks how slow is too slow
            client.clock.sleep_ms(1_000)


def _give_up(world: World, client: PersistClient, name: str) -> None:
    """Keep less, move `since`, merge everything at it; then read from there on. The next mint keeps all again."""
    upper = client.state(SHARD).upper.time or 0
    before, _ = client.set_history(SHARD, int(client.ids.jitter() * (upper + 1)))
    advance = client.advance_since(SHARD)
    if advance.since < before.since:
        world.fail("since", f"{name} saw since at {before.since} and then at {advance.since}")
    _check_reads(world, client)
    state = client.state(SHARD)
    if len(state.batches) > 1:
        merge_here(client, Merge.of(client, state, state.batches), attempt=client.ids.uuid7())
        world.referee.stage_ended()
    _check_reads(world, client)


def _check_reads(world: World, client: PersistClient) -> None:
    """The contents at `since` and at a later time; other actors may move `since` meanwhile."""
    state = client.state(SHARD)
    first, upper = state.since.time or 0, state.upper.time or 0
    if state.schema is None or first >= upper:
        return
    reader = client.open_reader(SHARD)
    for time in (first, first + int(client.ids.jitter() * (upper - first))):
        try:
            found = sorted((row["id"], row["name"]) for row in reader.snapshot(time).to_pylist())
        except OutsideFrontiers:
            if client.state(SHARD).since <= Frontier(time):
                raise
            return
        rows = [row_of(slot, value) for slot, value in world.referee.expected.as_of(time).items()]
        wanted = sorted((row["id"], row["name"]) for row in rows)
        if found != wanted:
            world.fail("history", f"as of {time}, since {first}: found {found}; the input says {wanted}")


def _pin(world: World, client: PersistClient, name: str) -> None:
    """A pinned checkpoint can be restored, whatever the others do; after it is unpinned, that is over."""
    there = Checkpointer(client.blob, SHARD).list_checkpoints()
    if not there:
        return
    checkpoint_id = there[int(client.ids.jitter() * len(there))]
    try:
        pin(client, SHARD, checkpoint_id)
        client.set_history(SHARD, 0)
        client.advance_since(SHARD)
        plan_restore(client, SHARD, checkpoint_id)
    except OutsideFrontiers as error:
        # A program that leaves out the progress of sources (the plain writer) makes checkpoints that a merge ends.
        is_told = any(words in str(error) for words in ("can't be pinned", "does not say how far"))
        if not is_told and not _shared(world, checkpoint_id):
            world.fail("pin", f"{name} pinned {checkpoint_id}, and can't restore it: {error}")
    except (CheckpointNotFound, Corruption, InvalidInput):
        if checkpoint_id not in world.referee.deleted_checkpoints:
            raise  # else retention has deleted it since it was listed
    unpin(client, SHARD, checkpoint_id)


def _shared(world: World, checkpoint_id: str) -> bool:
    """True if another actor has ended this pin: they pin and unpin the same checkpoints."""
    state = world.referee.state
    return state is None or f"pin/{checkpoint_id}" not in state.holds


def _hold(world: World, client: PersistClient, name: str) -> None:
    """A hold of a view that does not exist: it keeps its time readable until a user ends it."""
    holder = f"view/{name}"
    try:
        hold = client.open_since(SHARD, holder)
        if hold.hold.since < client.state(SHARD).since:
            world.fail("hold", f"{name} holds {hold.hold.since}; since is {client.state(SHARD).since}")
        hold.downgrade(Frontier(int(client.ids.jitter() * ((client.state(SHARD).upper.time or 0) + 1))))
        release(client, SHARD, holder, by=name, reason="simulated")
    except NotReadable:
        if holder in client.state(SHARD).holds:
            raise  # else an earlier try of this actor has released it
