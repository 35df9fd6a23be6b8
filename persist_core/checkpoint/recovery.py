"""From a checkpoint to the operator state to start from. Nothing ever starts afresh in silence.

A run starts from the checkpoint that the shard's newest commit names. Its state is a chain: the artifacts of the last
full snapshot and of every delta since, oldest first. Every digest is verified before the bytes are used; a missing or
corrupt one is named, and with it the way back: `persist restore` to the newest older checkpoint that is whole. With an
empty stash there is no state, and nothing to recover: in `log` order everything else comes from the shard itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from persist_core.checkpoint.checkpointer import BlobCheckpointer, load_verified, manifest_chain
from persist_core.checkpoint.manifest import CheckpointManifest
from persist_core.errors import CorruptArtifact, Corruption, StorageError
from persist_core.location.blob import Blob
from persist_core.shard.batch import StateArtifact


def operator_chains(checkpointer: BlobCheckpointer, checkpoint_id: str) -> dict[str, tuple[StateArtifact, ...]]:
    """The artifacts to read each operator's state from, by operator, oldest first, every digest verified.

    An operator without state is left out. Raises `CorruptArtifact` naming the first artifact or manifest of a chain
    that is missing or altered.
    """
    manifests = manifest_chain(checkpointer, checkpoint_id)
    chains = {}
    for operator in sorted(manifests[-1].operators):
        chains[operator] = _chain(checkpointer, manifests, operator)
        verify_artifacts(checkpointer.blob, chains[operator])
    return chains


def _chain(
    checkpointer: BlobCheckpointer, manifests: list[CheckpointManifest], operator: str
) -> tuple[StateArtifact, ...]:
    """One operator's artifacts since its last full snapshot in `manifests`, oldest first."""
    chain: tuple[StateArtifact, ...] = ()
    for manifest in reversed(manifests):
        state = manifest.operators.get(operator)
        if state is None:
            break
        found = tuple(
            StateArtifact(
                part.partition_id,
                checkpointer.layout.artifact(manifest.checkpoint_id, part.path),
                part.size_bytes,
                part.sha256,
            )
            for part in state.partitions
        )
        chain = (*found, *chain)
        if not state.is_delta:
            return chain
    raise CorruptArtifact(
        f"checkpoint {manifests[-1].checkpoint_id}: the deltas of operator {operator} build on no full snapshot; the"
        f" chain starts at checkpoint {manifests[0].checkpoint_id}"
    )


def verify_artifacts(blob: Blob, artifacts: Iterable[StateArtifact]) -> None:
    """Read every artifact and verify its digest; `CorruptArtifact` names the first that is missing or altered."""
    for artifact in artifacts:
        load_verified(blob, artifact.key, artifact.sha256)


@contextmanager
def naming_the_way_back(checkpointer: BlobCheckpointer, shard: str, checkpoint_id: str) -> Iterator[None]:
    """Add to a `CorruptArtifact` of the checkpoint that a run starts from what it means, and what to do."""
    try:
        yield
    except CorruptArtifact as error:
        raise CorruptArtifact(
            f"{error}. It belongs to records that are not in the shard yet (the stash), so the run stops here. Put it"
            f" back from a copy of the location, or {_way_back(checkpointer, shard, checkpoint_id)}"
        ) from error


def newest_whole(checkpointer: BlobCheckpointer, *, except_for: str) -> CheckpointManifest | None:
    """The newest other checkpoint whose manifest can be read and whose artifacts, its chain's included, are whole."""
    manifests, _ = checkpointer.listing()
    for manifest in reversed(manifests):
        if manifest.checkpoint_id != except_for:
            try:
                operator_chains(checkpointer, manifest.checkpoint_id)
            except Corruption:
                continue
            return manifest
    return None


def _way_back(checkpointer: BlobCheckpointer, shard: str, checkpoint_id: str) -> str:
    try:
        whole = newest_whole(checkpointer, except_for=checkpoint_id)
    except (StorageError, Corruption):
        return f"go back to an older checkpoint (`persist checkpoints {shard}`) with `persist restore`"
    if whole is None:
        return "load the input into a new collection: no other checkpoint of this shard is whole"
    upper = whole.shard.upper if whole.shard else whole.watermark
    return (
        f"go back with `persist restore {shard} --to {whole.checkpoint_id}`: the newest checkpoint that is whole (epoch"
        f" {whole.epoch}, upper {upper}). What was consumed after it is then consumed again"
    )
