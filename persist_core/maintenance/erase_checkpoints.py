"""Checkpoints without erased keys: their manifests name rewritten files of operator state, and copies are deleted.

What a known commit determines is derived from it again. Of others, the copies are rewritten here.
"""

from __future__ import annotations

import posixpath
from dataclasses import replace

from persist_core.checkpoint.checkpointer import Checkpointer
from persist_core.checkpoint.manifest import CheckpointManifest, PartitionState, SavedOperator
from persist_core.checkpoint.publish import manifest_of
from persist_core.handles.client import PersistClient
from persist_core.maintenance.erase_files import Rewriting


def rewrite_checkpoints(client: PersistClient, rewriting: Rewriting) -> None:
    """Rewrite all that hold a key. A manifest is replaced whole, then the copies that it named are deleted."""
    state = client.state(rewriting.shard)
    commits = {commit.checkpoint_id: commit for commit in state.commits}
    checkpointer = Checkpointer(client.blob, state.shard, state.origin.life)
    layout = checkpointer.layout
    for found in checkpointer.listing().manifests:
        commit = commits.get(found.checkpoint_id)
        if commit is not None:
            expected = manifest_of(client.manifest(commit), commit, state.origin.life)
        else:
            operators = {
                name: _operator(rewriting, checkpointer, found, name, saved) for name, saved in found.operators.items()
            }
            total = sum(operator.total_bytes for operator in operators.values())
            expected = replace(found, operators=operators, total_size_bytes=total)
        if expected.differences(found):
            client.blob.set(layout.manifest(found.checkpoint_id), expected.encode())
        kept = {artifact.path for artifact in expected.artifacts}
        for artifact in found.artifacts:
            if not artifact.is_carried and artifact.path not in kept:
                client.blob.delete(layout.artifact(found.checkpoint_id, artifact.path))


def _operator(
    rewriting: Rewriting, checkpointer: Checkpointer, manifest: CheckpointManifest, name: str, saved: SavedOperator
) -> SavedOperator:
    parts = tuple(_partition(rewriting, checkpointer, manifest, name, part) for part in saved.partitions)
    return replace(saved, partitions=parts, total_bytes=sum(part.size_bytes for part in parts))


def _partition(
    rewriting: Rewriting, checkpointer: Checkpointer, manifest: CheckpointManifest, name: str, part: PartitionState
) -> PartitionState:
    layout, checkpoint_id = checkpointer.layout, manifest.checkpoint_id
    artifact = part.artifact(layout.artifact(checkpoint_id, part.path))
    new = rewriting.artifact(name, artifact)
    if new is None:
        return part
    path = posixpath.relpath(new.key, layout.folder(checkpoint_id))
    if new.key == artifact.key:  # only its bounds have changed
        path = part.path
    return replace(part, path=path, size_bytes=new.size_bytes, sha256=new.sha256, facts=new.facts)
