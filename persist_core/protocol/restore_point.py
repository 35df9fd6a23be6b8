"""A checkpoint to go back to: found, all its digests verified. Restores and forks both start from one.

    checkpoint ──> batches up to its upper            (the state)
               ──> progress of every source           (the checkpoint, the manifests before it)
               ──> operator state, verified           (the checkpoint's chain)

Reads no data: the cost does not depend on the size of the shard.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from persist_core.checkpoint.checkpointer import Checkpointer, load_verified
from persist_core.checkpoint.manifest import CheckpointManifest
from persist_core.checkpoint.recovery import recover
from persist_core.contents.batch import HollowBatch, SourceFrontier, last_time
from persist_core.contents.operator_state import OperatorState, StateArtifact
from persist_core.errors import CorruptArtifact, InvalidInput, OutsideFrontiers
from persist_core.frontier import Frontier
from persist_core.handles.client import PersistClient
from persist_core.handles.erased import last_erased
from persist_core.handles.read import check_as_of
from persist_core.ids import uuid7_of
from persist_core.keys import part_key
from persist_core.shard.state import ShardState
from persist_core.sources.registry import progress_of
from persist_core.time_text import show_time

FIRST_UPPER = 1  # of a fork from the beginning, whose one batch is empty


@dataclass(frozen=True)
class RestorePoint:
    """A checkpoint to go back to, all digests verified. `batches`: what it stands for.

    `sources` is the progress then; `operators` the operator state then: each operator's artifacts, oldest first.
    """

    checkpoint: CheckpointManifest
    batches: tuple[HollowBatch, ...]
    sources: Mapping[str, SourceFrontier]
    operators: Mapping[str, tuple[StateArtifact, ...]]

    @property
    def upper(self) -> int | None:
        """The shard's upper then."""
        return self.batches[-1].upper if self.batches else FIRST_UPPER

    @property
    def in_time_from(self) -> int | None:
        """The end of the newest commit then that took in input."""
        found = self.checkpoint.in_time_from
        return self.upper if found is None else found


def check_not_erased(client: PersistClient, state: ShardState, point: RestorePoint) -> None:
    """Raise `InvalidInput` if a key was erased since, and its records would count again when they are read again.

    In `sequence` order their orders say that they came before the erasure. In `log` order nothing does.
    """
    if state.schema is None or state.schema.order is not None:
        return
    erased_at = last_erased(client, state)
    if point.upper is not None and point.upper <= erased_at:
        raise InvalidInput(
            f"keys were erased from shard {state.shard} at {show_time(erased_at)}, after checkpoint"
            f" {point.checkpoint.checkpoint_id} (upper {show_time(point.upper)}). In log order the input since then"
            " would bring them back. Choose a newer checkpoint, or `persist reprocess` the days that are wrong"
        )


def beginning_of(shard: str) -> RestorePoint:
    """The point before anything was consumed. It needs no checkpoint, so that always exists."""
    empty = CheckpointManifest(
        uuid7_of(0, f"beginning {shard}"), epoch=1, timestamp_ms=0, watermark=FIRST_UPPER, in_time_from=0
    )
    return RestorePoint(empty, (), {}, {})


def point_of(client: PersistClient, state: ShardState, checkpoint_id: str) -> RestorePoint:
    """Find and verify a checkpoint of the shard. Reads no data.

    Raises `CheckpointNotFound`; `CorruptArtifact` naming what of it is missing or altered; `InvalidInput` for a view;
    `OutsideFrontiers` if the shard can no longer be read at that time.
    """
    for progress in progress_of(client.blob, state.shard, state.sources).values():
        progress.check_restorable()
    if state.schema is not None and not state.schema.key:
        raise InvalidInput(f"shard {state.shard} has no key; only a shard with a key can be restored or forked")
    checkpointer = Checkpointer(client.blob, state.shard, state.origin.life)
    checkpointer.check_known(checkpoint_id)
    checkpoint = checkpointer.load_manifest(checkpoint_id)
    if checkpoint.shard is None:
        raise CorruptArtifact(f"checkpoint {checkpoint_id} does not say which state of shard {state.shard} it is of")
    batches = _batches_until(state, checkpoint.shard.upper)
    _check_as_committed(client, state, checkpoint_id, checkpoint.sources)
    sources = _progress(client, state, checkpoint.sources, batches)
    for progress in progress_of(client.blob, state.shard, sources).values():
        for finding in progress.verify():
            raise CorruptArtifact(f"checkpoint {checkpoint_id} of shard {state.shard}: {finding}")
    return RestorePoint(checkpoint, batches, sources, recover(client, state, checkpoint_id).operators)


def _batches_until(state: ShardState, upper: int | None) -> tuple[HollowBatch, ...]:
    """The shard's batches up to the checkpoint's upper; of a run that goes on, what lies before it."""
    check_as_of(state, last_time(upper))
    batches = [batch for batch in state.batches if Frontier(batch.lower) < Frontier(upper)]
    return (*batches[:-1], replace(batches[-1], upper=upper))


def _check_as_committed(
    client: PersistClient, state: ShardState, checkpoint_id: str, sources: Mapping[str, SourceFrontier]
) -> None:
    """The checkpoint is derived from its commit. If the state still has the commit, their progress must be equal."""
    commit = next((commit for commit in state.commits if commit.checkpoint_id == checkpoint_id), None)
    if commit is not None and client.manifest(commit).sources != sources:
        raise CorruptArtifact(
            f"the source progress in checkpoint {checkpoint_id} of shard {state.shard} differs from its commit's"
            f" ({commit.manifest_key}); it was altered. Choose another checkpoint"
        )


def _progress(
    client: PersistClient, state: ShardState, said: Mapping[str, SourceFrontier], batches: tuple[HollowBatch, ...]
) -> dict[str, SourceFrontier]:
    """The whole progress at the end of `batches`: a commit of a plain writer names only the sources that it changed.

    Looks for the other sources in earlier commits, up to the last restore, which names all sources.
    """
    sources, missing = dict(said), set(state.sources) - set(said)
    for batch in reversed(batches):
        if not missing:
            break
        manifest = client.manifest(batch)
        if manifest.last_time > batch.last_time and batch.is_empty:
            continue  # of a later empty batch that this one was merged with
        if manifest.last_time > batch.last_time:
            raise OutsideFrontiers(
                f"the checkpoint of shard {state.shard} at {show_time(batch.upper)} does not say how far"
                f" {', '.join(sorted(missing))} had come, and its batch was merged with later ones, up to"
                f" {show_time(manifest.upper)}. Choose a newer checkpoint"
            )
        sources.update({name: source for name, source in manifest.sources.items() if name in missing})
        missing -= set(manifest.sources)
        if manifest.restored:
            break
    return sources


def restore_token(*identity: object) -> str:
    """The token of a restore or a fork. It depends on what is done, not on the caller."""
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()


def copy_operators(
    client: PersistClient, operators: Mapping[str, tuple[StateArtifact, ...]], shard: str, attempt: str
) -> dict[str, OperatorState]:
    """Stage each operator's whole chain for `attempt` on `shard`, in its order, as its full state."""
    copied = {}
    for operator, chain in operators.items():
        staged = []
        for number, artifact in enumerate(chain):
            key = part_key(shard, attempt, operator, number)
            client.blob.set(key, load_verified(client.blob, artifact.key, artifact.sha256))
            staged.append(replace(artifact, partition_id=number, key=key, is_carried=False))
        copied[operator] = OperatorState(is_delta=False, artifacts=tuple(staged))
    return copied
