"""Known defects, planted into the parts of a simulation: the simulator has to find each of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from persist_core.checkpoint.checkpointer import Listing
from persist_core.config.collection import CollectionConfig
from persist_core.contents.batch import LATE_OPERATOR, STASH_OPERATOR, BatchDescription
from persist_core.contents.operator_state import OperatorState, StateArtifact
from persist_core.gc.collect import collect
from persist_core.gc.needs import Needs
from persist_core.handles.client import PersistClient
from persist_core.handles.write import stage_manifest
from persist_core.keys import CheckpointLayout
from persist_core.location.consensus import CaSResult, VersionedData
from persist_core.location.mem import MemBlob, MemConsensus
from persist_core.maintenance.fsck import FsckReport, fsck
from persist_core.maintenance.violations import Violation
from persist_core.protocol import fork as fork_module
from persist_core.protocol import stages
from persist_core.protocol.restore import NothingToRestore, plan_restore, restore
from persist_core.protocol.restore_point import copy_operators
from persist_core.protocol.stages import Conflict
from persist_core.schema import ORDER
from persist_core.shard import state as transitions
from persist_core.shard.state import Committed, ShardState, UpperMismatch
from tests.oracle.sequence import OrderMemory
from tests.sim.simulator import orders
from tests.sim.simulator.reading import LEASE_MS
from tests.sim.simulator.simulation import Parts
from tests.sim.simulator.workload import SHARD
from tests.sim.simulator.world import GRACE_MS, INTENT_MS, Stages, append_row, write_plainly
from tests.sim.simulator.write_stage import SequenceMemory, write


class _Careless(MemConsensus):
    """Treats every third compare-and-set with a wrong expectation as a match."""

    _mismatches = 0

    def compare_and_set(self, key: str, expected: int | None, new: VersionedData) -> CaSResult:
        result = super().compare_and_set(key, expected, new)
        if result is CaSResult.EXPECTATION_MISMATCH:
            self._mismatches += 1
            if self._mismatches % 3 == 0:
                kept = [version for version in self._store.values[key] if version.seqno < new.seqno]
                self._store.values[key] = [*kept, new]
                return CaSResult.COMMITTED
        return result


class _Stale(MemConsensus):
    """Sometimes shows the version before the newest."""

    _heads = 0

    def head(self, key: str) -> VersionedData | None:
        self._heads += 1
        versions = self._store.values.get(key, [])
        return versions[-2] if self._heads % 7 == 0 and len(versions) > 1 else super().head(key)


class _Forgetful(MemBlob):
    """Acknowledges every 20th write without keeping it."""

    _writes = 0

    def __init__(self, inner: MemBlob) -> None:
        super().__init__()
        self._store = inner._store

    def set(self, key: str, data: bytes) -> None:
        self._writes += 1
        if self._writes % 20:
            super().set(key, data)


def _append_at_any_upper(client: PersistClient, description: BatchDescription, key: str) -> Committed | Conflict:
    """If the upper is not the expected one, appends from the actual upper."""

    def transition(state: ShardState) -> tuple[ShardState, Committed | UpperMismatch]:
        manifest = client.staged_manifest(key)
        upper = state.upper.time or 0
        if upper > manifest.lower and manifest.upper is not None and upper < manifest.upper:
            manifest = replace(manifest, lower=upper)
        return transitions.compare_and_append(
            state, manifest, key, expected_upper=manifest.lower, now_ms=client.clock.now_ms()
        )

    _, result = client.machine.apply(description.shard, transition)
    return result if isinstance(result, Committed) else stages.append(client, description, key)


def _append_without_token(client: PersistClient, description: BatchDescription, key: str) -> Committed | Conflict:
    """Gives each try its own token."""
    staged = client.staged_manifest(key)
    manifest = replace(staged, token=client.ids.uuid7())
    vars(manifest)["sha256"] = staged.sha256  # what is stored stays as it is
    result = client.open_writer(description.shard).compare_and_append(manifest, key)
    return result if isinstance(result, Committed) else stages.append(client, replace(description), key)


def _write_without_stash(client: PersistClient, config: CollectionConfig, description: BatchDescription) -> str:
    """Forgets what earlier runs have stashed."""
    return write(client, config, replace(description, operators={}))


def _write_only_what_is_new(client: PersistClient, config: CollectionConfig, description: BatchDescription) -> str:
    """Stages only what is new where the full stash is due, and says that it is the full one."""
    key = write(client, config, replace(description, saves_deltas=True))
    manifest = client.staged_manifest(key)
    state = manifest.operators.get(STASH_OPERATOR)
    if state is None or not state.is_delta or description.saves_deltas:
        return key
    full = {STASH_OPERATOR: replace(state, is_delta=False)} if state.artifacts else {}
    return stage_manifest(client.blob, replace(manifest, operators=full), client.ids.uuid7())


def _write_unchecked(client: PersistClient, config: CollectionConfig, description: BatchDescription) -> str:
    """Mints for itself instead of writing what was described: its input is another one."""
    minted = stages.mint(client, config, until=description.upper, writer=description.writer)
    newer = minted.description if isinstance(minted, stages.Minted) else description
    return write(client, config, replace(description, input_key=newer.input_key, operators=newer.operators))


def _pointer_first(client: PersistClient, config: CollectionConfig) -> object:
    """Moves `_latest` before the checkpoint is there."""
    newest = client.state(SHARD).newest_commit
    if newest is not None:
        client.blob.set(CheckpointLayout(SHARD).latest, newest.checkpoint_id.encode())
    return stages.checkpoint(client, config)


def _pointer_always(client: PersistClient, config: CollectionConfig) -> object:
    """Moves `_latest` to what was the newest when it began, though a newer one is known by now."""
    newest = client.state(SHARD).newest_commit
    report = stages.checkpoint(client, config)
    client.blob.get(CheckpointLayout(SHARD).latest)
    if newest is not None:
        client.blob.set(CheckpointLayout(SHARD).latest, newest.checkpoint_id.encode())
    return report


def _collect_by_old_state(client: PersistClient) -> None:
    """Reads the state first and lists afterwards: what is committed in between is garbage to it."""
    named = {batch.manifest_key.rpartition("/")[0] for batch in client.state(SHARD).batches}
    for entry in list(client.blob.list_keys_and_metadata(f"{SHARD}/batches/")):
        if "/".join(entry.key.split("/")[:3]) not in named:
            client.blob.delete(entry.key)


class _WithoutForks(Needs):
    """Forgets what forks share."""

    def of_forks(self, state: ShardState, candidates: Collection[str] | None) -> set[str]:
        del state, candidates
        return set()


class _WithoutCheckpoints(Needs):
    """Forgets that a restore to a checkpoint needs the progress that it names."""

    def of_checkpoints(self, shard: str, listing: Listing) -> set[str]:
        del shard, listing
        return set()

    def of_commits(self, state: ShardState) -> set[str]:
        newest = state.newest_commit
        return super().of_commits(replace(state, commits=(newest,) if newest else ()))


def _collect_with(needs: Callable[[PersistClient, str], Needs]) -> Parts:
    def collect_so(client: PersistClient) -> object:
        return collect(client, SHARD, grace_ms=GRACE_MS, intent_ms=INTENT_MS, needs=needs(client, SHARD))

    return Parts(Stages(collect=collect_so))


def _expire_early(client: PersistClient) -> None:
    """Treats leases as expired that have some time left."""
    soon_ms = client.clock.now_ms() + LEASE_MS + 1
    client.machine.apply(SHARD, lambda state: transitions.expire_leases(state, now_ms=soon_ms))


def _write_plainly_over_stash(
    client: PersistClient, config: CollectionConfig, writer: str
) -> Committed | UpperMismatch | None:
    """Says that it has read the operator state, and saves none."""
    state = client.state(SHARD)
    minted = stages.mint(client, config, until=(state.upper.time or 0) + 1, writer=writer)
    if not isinstance(minted, stages.Minted):
        return write_plainly(client, config, writer)
    return append_row(client, config, replace(minted.description, input_key=None, sources={}))


def _restore_contents_only(client: PersistClient, checkpoint_id: str, writer: str) -> object:
    """Goes back with the contents and leaves the progress where it is: what was consumed since is lost."""
    plan = plan_restore(client, SHARD, checkpoint_id)
    if isinstance(plan, NothingToRestore):
        return plan
    point = replace(plan.point, sources=client.state(SHARD).sources)
    return restore(client, replace(plan, point=point), writer=writer)


def _restore_without_stash(client: PersistClient, checkpoint_id: str, writer: str) -> object:
    """Forgets what the checkpoint had stashed."""
    plan = plan_restore(client, SHARD, checkpoint_id)
    if isinstance(plan, NothingToRestore):
        return plan
    return restore(client, replace(plan, point=replace(plan.point, operators={})), writer=writer)


def _restore_with_new_orders(client: PersistClient, checkpoint_id: str, writer: str) -> object:
    """Brings rows back with orders that are higher than they were."""
    plan = plan_restore(client, SHARD, checkpoint_id)
    if isinstance(plan, NothingToRestore):
        return plan
    rows = [{**row, ORDER: row[ORDER] and {**row[ORDER], "by0": 1_000}} for row in plan.updates.oks.to_pylist()]
    oks = pa.Table.from_pylist(rows, schema=plan.updates.oks.schema)
    return restore(client, replace(plan, updates=replace(plan.updates, oks=oks)), writer=writer)


def _rows_only(client: PersistClient, description: BatchDescription, rows: orders.Rows) -> OrderMemory:
    """Forgets the orders of deleted keys, and orders that equal values have raised."""
    return orders.memory(client, replace(description, operators={}), rows)


def _without_floor(client: PersistClient, description: BatchDescription, rows: orders.Rows) -> OrderMemory:
    """Forgets truncates: what comes later and is older brings rows back."""
    return replace(orders.memory(client, description, rows), floor=None)


def _no_late_records(client: PersistClient, description: BatchDescription) -> list[orders.Late]:
    """Forgets late records where the full state is due."""
    del client, description
    return []


def _late_records_twice(client: PersistClient, description: BatchDescription) -> list[orders.Late]:
    """Adds late records to the full state once more than there are."""
    return 2 * orders.late_before(client, description)


def _write_with(memory: SequenceMemory) -> Parts:
    return Parts(Stages(write=partial(write, memory=memory)))


def _restore_without_late_records(client: PersistClient, checkpoint_id: str, writer: str) -> object:
    """Goes back to no late records at all."""
    plan = plan_restore(client, SHARD, checkpoint_id)
    if isinstance(plan, NothingToRestore):
        return plan
    operators = {name: chain for name, chain in plan.point.operators.items() if name != LATE_OPERATOR}
    return restore(client, replace(plan, point=replace(plan.point, operators=operators)), writer=writer)


def _fork_with_the_first_artifacts(*args: Any, **options: Any) -> Committed:
    """Copies the full state of an operator, and not the deltas that continue it."""

    def copy_first(
        client: PersistClient, operators: Mapping[str, tuple[StateArtifact, ...]], shard: str, attempt: str
    ) -> dict[str, OperatorState]:
        return copy_operators(client, {name: chain[:1] for name, chain in operators.items()}, shard, attempt)

    with patch.object(fork_module, "copy_operators", copy_first):
        return fork_module.fork(*args, **options)


def _scrub_unnamed(client: PersistClient, shard: str) -> FsckReport:
    """Reports every attempt that no commit names as damage, though a task may be about to append it."""
    report = fsck(client, shard)
    named = {batch.manifest_key.rpartition("/")[0] for batch in client.state(shard).batches}
    unnamed = [
        Violation(shard, "unnamed", entry.key)
        for entry in client.blob.list_keys_and_metadata(f"{shard}/batches/")
        if "/".join(entry.key.split("/")[:3]) not in named
    ]
    return replace(report, violations=(*report.violations, *unnamed))


PLANTED: dict[str, Parts] = {
    "consensus ignores what is expected": Parts(consensus=_Careless),
    "consensus shows old versions": Parts(consensus=_Stale),
    "blob store loses writes": Parts(blob=_Forgetful),
    "append at any upper": Parts(Stages(append=_append_at_any_upper)),
    "append without a token": Parts(Stages(append=_append_without_token)),
    "write without the stash": Parts(Stages(write=_write_without_stash)),
    "write a delta where the full state is due": Parts(Stages(write=_write_only_what_is_new)),
    "write something else than described": Parts(Stages(write=_write_unchecked)),
    "pointer before the checkpoint": Parts(Stages(checkpoint=_pointer_first)),
    "pointer goes back": Parts(Stages(checkpoint=_pointer_always)),
    "collector reads the state first": Parts(Stages(collect=_collect_by_old_state)),
    "GC forgets forks": _collect_with(_WithoutForks),
    "GC forgets checkpoints": _collect_with(_WithoutCheckpoints),
    "leases expire early": Parts(Stages(collect=_expire_early)),
    "restore keeps the progress": Parts(Stages(restore=_restore_contents_only)),
    "restore loses the stash": Parts(Stages(restore=_restore_without_stash)),
    "restore raises orders": Parts(Stages(restore=_restore_with_new_orders)),
    "write without the orders of deleted keys": _write_with(SequenceMemory(remember=_rows_only)),
    "write without the orders of truncates": _write_with(SequenceMemory(remember=_without_floor)),
    "late records forgotten, in sequence order": _write_with(SequenceMemory(late=_no_late_records)),
    "late records doubled, in sequence order": _write_with(SequenceMemory(late=_late_records_twice)),
    "restore without late records, in sequence order": Parts(Stages(restore=_restore_without_late_records)),
    "fork without the newest orders": Parts(Stages(fork=_fork_with_the_first_artifacts)),
    "plain writer ends the stash": Parts(Stages(write_plainly=_write_plainly_over_stash)),
    "scrub takes what is staged for damage": Parts(Stages(fsck=_scrub_unnamed)),
}
