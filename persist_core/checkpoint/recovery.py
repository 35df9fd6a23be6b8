"""From a checkpoint to the operator state to start from. Nothing ever starts afresh in silence.

A run starts from the checkpoint that the shard's newest commit names. Its state is a chain: the artifacts of the last
full snapshot and of every delta since, oldest first. Every digest is verified before the bytes are used; a missing or
corrupt one is named. With an empty stash there is no state, and nothing to recover: in `log` order everything else
comes from the shard itself.
"""

from __future__ import annotations

from collections.abc import Iterable

from persist_core.batch import StateArtifact
from persist_core.checkpoint.checkpointer import BlobCheckpointer, load_verified, manifest_chain
from persist_core.errors import CorruptArtifact
from persist_core.location.blob import Blob


def stash_chain(checkpointer: BlobCheckpointer, checkpoint_id: str) -> tuple[StateArtifact, ...]:
    """The artifacts to read the operator state from, oldest first, every digest verified.

    Raises `CorruptArtifact` naming the first artifact or manifest of the chain that is missing or altered.
    """
    artifacts = tuple(
        StateArtifact(
            operator=operator,
            partition_id=part.partition_id,
            is_delta=part.is_delta,
            key=checkpointer.layout.artifact(manifest.checkpoint_id, part.path),
            size_bytes=part.size_bytes,
            sha256=part.sha256,
        )
        for manifest in manifest_chain(checkpointer, checkpoint_id)
        for operator, state in sorted(manifest.operators.items())
        for part in state.partitions
    )
    verify_artifacts(checkpointer.blob, artifacts)
    return artifacts


def verify_artifacts(blob: Blob, artifacts: Iterable[StateArtifact]) -> None:
    """Read every artifact and verify its digest; `CorruptArtifact` names the first that is missing or altered."""
    for artifact in artifacts:
        try:
            load_verified(blob, artifact.key, artifact.sha256)
        except CorruptArtifact as error:
            raise CorruptArtifact(
                f"{error}. It holds records that are not in the shard yet (the stash), so the run stops here."
                " Put the artifact back from a copy of the location, or load the input into a new collection"
            ) from error
