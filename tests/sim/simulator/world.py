"""What a simulated world consists of: the product's stages, a stand-in for GC, and what actors are given."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn, Protocol

import pyarrow as pa

from persist_core.config.collection import CollectionConfig
from persist_core.frontier import Frontier
from persist_core.handles.client import PersistClient
from persist_core.maintenance.fsck import FsckReport, fsck
from persist_core.protocol import stages
from persist_core.protocol.restore import NothingToRestore, plan_restore, restore
from persist_core.protocol.stages import Conflict, NothingToDo
from persist_core.schema import DIFF, TIME
from persist_core.shard import state as transitions
from persist_core.shard.batch import BatchDescription, BatchManifest
from persist_core.shard.parts import updates_schema
from persist_core.shard.state import Committed, UpperMismatch
from tests.sim.simulator.referee import Referee
from tests.sim.simulator.workload import FIRST_PLAIN_ID, SHARD
from tests.sim.simulator.write_stage import write

STAGING_INTENT_MS = 3_600_000  # younger attempts are not garbage


def collect(client: PersistClient, collected: set[str]) -> None:
    """A stand-in for GC: expires leases, truncates old versions of the state (more eagerly than the product does),
    deletes attempts that no commit names and none can name any more.

    An attempt can no longer be appended if the shard's upper is beyond its lower; it may still be asked for while
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
        if data is not None and BatchManifest.decode(data).run:
            continue  # a reader may be at it, and this collector gives no grace
        if data is not None and Frontier(BatchManifest.decode(data).lower) < state.upper:
            collected.add(key)
            for garbage in [key, *(other for other in listed if _attempt(other) == attempt and other != key)]:
                client.blob.delete(garbage)


def _attempt(key: str) -> str:
    return key.split("/")[2]


def _age_ms(attempt: str, now_ms: int) -> int:
    """By the time in the attempt's UUIDv7."""
    return now_ms - (uuid.UUID(attempt).int >> 80)


def restore_to(client: PersistClient, checkpoint_id: str, writer: str) -> Committed | Conflict | NothingToRestore:
    """As `persist restore` does: plan, then carry it out."""
    plan = plan_restore(client, SHARD, checkpoint_id)
    return plan if isinstance(plan, NothingToRestore) else restore(client, plan, writer=writer)


def write_plainly(client: PersistClient, config: CollectionConfig, writer: str) -> Committed | UpperMismatch:
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
) -> Committed | UpperMismatch:
    """Stage a row of a key that no input has, and append it. Raises `StateNotRead` if there is operator state."""
    schema, lower = config.collection_schema(), description.lower
    row = {"id": FIRST_PLAIN_ID + lower, "name": description.writer, TIME: lower, DIFF: 1}
    oks = pa.Table.from_pylist([row], schema=updates_schema(schema))
    handle = client.open_writer(SHARD)
    key = handle.stage(description, schema, client.ids.uuid7(), oks)
    return handle.compare_and_append(client.staged_manifest(key), key)


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
    collect: Callable[[PersistClient, set[str]], None] = collect
    restore: Callable[[PersistClient, str, str], object] = restore_to
    write_plainly: Callable[[PersistClient, CollectionConfig, str], Committed | UpperMismatch] = write_plainly
    fsck: Callable[[PersistClient, str], FsckReport] = fsck


class World(Protocol):
    """What actors are given."""

    config: CollectionConfig
    stages: Stages
    referee: Referee
    collected: set[str]
    committed: dict[str, BatchDescription]  # commits that were acknowledged to dag runs, by token

    def client(self, name: str) -> PersistClient:
        """A client with its own random stream, on the simulated stores."""
        ...

    def give_way(self) -> None:
        """Let another actor continue."""
        ...

    def fail(self, kind: str, message: str) -> NoReturn:
        """Note a finding and end the simulation."""
        ...
