"""The parts of a simulated world: the product's stages, and what actors are given."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn, Protocol

import pyarrow as pa

from persist_core.compaction.merge import Merge, merge_here
from persist_core.config.collection import CollectionConfig
from persist_core.contents.batch import BatchDescription
from persist_core.contents.parts import updates_schema
from persist_core.errors import CorruptArtifact, ReadTooSlow, ShardNotFound, StorageError
from persist_core.gc.collect import Collected, collect
from persist_core.handles.client import PersistClient
from persist_core.maintenance.fsck import FsckReport, fsck
from persist_core.protocol import stages
from persist_core.protocol.fork import fork
from persist_core.protocol.restore import NothingToRestore, plan_restore, restore
from persist_core.protocol.stages import Conflict, NothingToDo
from persist_core.schema import DIFF, TIME
from persist_core.shard.state import Committed, UpperMismatch
from tests.sim.simulator.referee import Referee
from tests.sim.simulator.script import Scenario
from tests.sim.simulator.workload import FIRST_PLAIN_ID, SHARD
from tests.sim.simulator.write_stage import write

GRACE_MS = 600_000  # of GC: an era
INTENT_MS = 3 * GRACE_MS
MAX_ERAS = 10  # that end while an actor lingers: more than GC waits before it deletes anything
ERAS_END = 0.3  # of lingering actors in a simulation with `eras`
SLOW_ERAS_END, SLOW_MERGES = 0.15, 0.5  # of actors slow to commit: there are more, and merges need their inputs later
WITH_GRACES = 0.7  # of lingering actors: the others are overtaken by collectors within one grace


def collect_garbage(client: PersistClient) -> Collected:
    """GC of the simulated shard, with eras that last minutes. Truncates old versions more eagerly than the product."""
    client.location.consensus.truncate(SHARD, client.state(SHARD).seqno)
    return collect(client, SHARD, grace_ms=GRACE_MS, intent_ms=INTENT_MS)


def restore_to(client: PersistClient, checkpoint_id: str, writer: str) -> Committed | Conflict | NothingToRestore:
    """As `persist restore` does: plan, then carry it out."""
    plan = plan_restore(client, SHARD, checkpoint_id)
    return plan if isinstance(plan, NothingToRestore) else restore(client, plan, writer=writer)


def write_plainly(client: PersistClient, config: CollectionConfig, writer: str) -> Committed | UpperMismatch | None:
    """Append one row by a `WriteHandle`, as a program does that knows nothing of input or operator state."""
    lower = client.state(SHARD).upper.time
    assert lower is not None  # no simulation closes its shard
    description = BatchDescription(
        shard=SHARD,
        lower=lower,
        upper=lower + 1,
        token=client.ids.uuid7(),
        checkpoint_id=client.ids.uuid7(),
        epoch=next_epoch(client),
        parent_id=None,
        writer=writer,
    )
    return append_row(client, config, description)


def append_row(
    client: PersistClient, config: CollectionConfig, description: BatchDescription
) -> Committed | UpperMismatch | None:
    """Stage a row of a key that no input has, and append it. `None`: it took so long that GC has deleted the batch.

    Raises `StateNotRead` if there is operator state.
    """
    schema, lower, era = config.collection_schema(), description.lower, client.state(SHARD).era
    row = {"id": FIRST_PLAIN_ID + lower, "name": description.writer, TIME: lower, DIFF: 1}
    oks = pa.Table.from_pylist([row], schema=updates_schema(schema))
    handle = client.open_writer(SHARD)
    key = handle.stage(description, schema, client.ids.uuid7(), oks)
    try:
        manifest = client.staged_manifest(key)
    except CorruptArtifact:
        if client.state(SHARD).oldest_era <= era:
            raise
        return None
    return handle.compare_and_append(manifest, key)


def next_epoch(client: PersistClient) -> int:
    """The epoch of the next commit."""
    newest = client.state(SHARD).newest_commit
    return newest.epoch + 1 if newest else 1


@dataclass(frozen=True)
class Stages:
    """The parts of the protocol, so that a test can plant a defect in one of them."""

    mint: Callable[..., stages.Minted | NothingToDo] = stages.mint
    write: Callable[[PersistClient, CollectionConfig, BatchDescription], str] = write
    append: Callable[[PersistClient, BatchDescription, str], Committed | Conflict] = stages.append
    checkpoint: Callable[[PersistClient, CollectionConfig], object] = stages.checkpoint
    collect: Callable[[PersistClient], object] = collect_garbage
    restore: Callable[[PersistClient, str, str], object] = restore_to
    fork: Callable[..., Committed] = fork
    write_plainly: Callable[[PersistClient, CollectionConfig, str], Committed | UpperMismatch | None] = write_plainly
    fsck: Callable[[PersistClient, str], FsckReport] = fsck


class World(Protocol):
    """The things that actors are given."""

    scenario: Scenario
    config: CollectionConfig
    stages: Stages
    referee: Referee
    committed: dict[str, BatchDescription]  # commits that were acknowledged to dag runs, by token
    forks: dict[str, str]  # the checkpoint of each fork that was made, by name

    def client(self, name: str) -> PersistClient:
        """A client with its own random stream, on the simulated stores."""
        ...

    def backup(self, name: str) -> PersistClient:
        """A client of the other location, into which the shard is copied; its calls may fail too."""
        ...

    def now_ms(self) -> int:
        """The true time; the clock of a client may be wrong."""
        ...

    @property
    def clocks_jump(self) -> bool:
        """True if the clocks of clients are wrong: leases may then expire at any time."""
        ...

    def give_way(self) -> None:
        """Let another actor continue."""
        ...

    def fail(self, kind: str, message: str) -> NoReturn:
        """Note a finding and end the simulation."""
        ...


def linger(world: World, client: PersistClient, *, ends: float = ERAS_END, merges: float = 1) -> None:
    """Let others continue, some times. With `eras`, some eras of GC end meanwhile with probability `ends`; `merges`:
    the probability that all is merged before, so that what was there is deleted unless something keeps it."""
    for _ in range(1 + int(client.ids.jitter() * 4)):
        world.give_way()
    if world.scenario.eras and client.ids.jitter() < ends:
        has_graces = client.ids.jitter() < WITH_GRACES
        if client.ids.jitter() < merges:
            with suppress(StorageError, ShardNotFound, ReadTooSlow):
                _merge_all(client)
        for _ in range(int(client.ids.jitter() * MAX_ERAS)):
            with suppress(StorageError, ShardNotFound):
                world.stages.collect(client)
            client.clock.sleep_ms(GRACE_MS if has_graces else 1)


def _merge_all(client: PersistClient) -> None:
    state = client.state(SHARD)
    if len(state.batches) > 1:
        merge_here(client, Merge.of(client, state, state.batches), attempt=client.ids.uuid7())
