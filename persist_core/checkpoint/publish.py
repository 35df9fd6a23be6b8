"""Derive a checkpoint from a commit: idempotent, callable by anybody, repairs whatever a crash left undone."""

from __future__ import annotations

from dataclasses import dataclass

from persist_core.checkpoint.checkpointer import BlobCheckpointer, load_verified
from persist_core.checkpoint.manifest import (
    CheckpointManifest,
    OperatorState,
    PartitionState,
    ShardPin,
    SourceOffsets,
)
from persist_core.checkpoint.retention import plan_retention
from persist_core.config.shard import RetentionConfig
from persist_core.errors import CorruptArtifact, InvalidInput
from persist_core.handles.client import PersistClient
from persist_core.location.blob import Blob
from persist_core.shard.batch import BatchManifest
from persist_core.shard.batch import OperatorState as StagedState
from persist_core.shard.keys import offsets_path, state_path
from persist_core.shard.sealed import seal
from persist_core.shard.state import Commit, ShardState

MAX_LOOKS = 3  # an error that is still there then is none of the races that publishers run

OFFSETS_VERSION = 1
_OFFSETS = "source_offsets"

VERSIONS_KEPT = 100  # of the shard's state, for audits and for whoever reads back a lost answer


@dataclass(frozen=True)
class CheckpointReport:
    """What a checkpoint task did. Ids, oldest first; `kept` counts all checkpoints that there are now."""

    checkpoint_id: str
    epoch: int
    published: tuple[str, ...]
    deleted: tuple[str, ...]
    kept: int
    versions_truncated: int


def publish(blob: Blob, manifest: BatchManifest, commit: Commit) -> CheckpointManifest:
    """Write the whole checkpoint of one commit: artifacts, offsets, manifest; then move `_latest` if it is newer."""
    checkpointer = BlobCheckpointer(blob, manifest.shard)
    operators = {
        name: _copied(blob, checkpointer, commit.checkpoint_id, name, state)
        for name, state in manifest.operators.items()
    }
    sources = {name: SourceOffsets.of(source, commit.epoch) for name, source in manifest.sources.items()}
    for name, offsets in sources.items():
        body = {"source_type": offsets.source_type, "offsets": offsets.offsets, "epoch": offsets.epoch}
        data = seal(_OFFSETS, OFFSETS_VERSION, body)
        checkpointer.save_artifact(commit.checkpoint_id, offsets_path(name), data)
    saved = CheckpointManifest(
        checkpoint_id=commit.checkpoint_id,
        epoch=commit.epoch,
        timestamp_ms=commit.committed_ms,
        operators=operators,
        source_offsets=sources,
        parent_id=manifest.parent_id,
        watermark=manifest.restored.watermark if manifest.restored else commit.upper,
        total_size_bytes=sum(state.total_bytes for state in operators.values()),
        shard=ShardPin(manifest.shard, commit.seqno, commit.since, commit.upper),
        restored_from=commit.restored_from,
    )
    checkpointer.save_manifest(saved)
    checkpointer.update_latest(commit.checkpoint_id)
    return saved


def _copied(
    blob: Blob, checkpointer: BlobCheckpointer, checkpoint_id: str, operator: str, state: StagedState
) -> OperatorState:
    save = checkpointer.save_delta if state.is_delta else checkpointer.save_snapshot
    partitions = []
    for artifact in state.artifacts:
        data = load_verified(blob, artifact.key, artifact.sha256)
        digest = save(checkpoint_id, operator, artifact.partition_id, data)
        path = state_path(operator, artifact.partition_id, is_delta=state.is_delta)
        partitions.append(PartitionState(artifact.partition_id, state.is_delta, path, len(data), digest))
    total_bytes = sum(partition.size_bytes for partition in partitions)
    return OperatorState(tuple(partitions), total_bytes, is_delta=state.is_delta)


def publish_missing(client: PersistClient, state: ShardState) -> tuple[str, ...]:
    """Publish every commit that is newer than the newest readable checkpoint; returns their ids, oldest first.

    Publishing goes from old to new, so whatever is older than a checkpoint that is there was there before it, and is
    gone only because retention took it. Commits before a restore are nobody's start any more, and what a restore is for
    may be that their state is damaged: those that were not published until then never are.
    """
    checkpointer = BlobCheckpointer(client.blob, state.shard)
    try:
        latest = checkpointer.read_latest()
    except CorruptArtifact:
        latest = None
    missing: list[Commit] = []
    for commit in reversed(state.commits):
        if checkpointer.find_readable(commit.checkpoint_id) is not None:
            break
        missing.insert(0, commit)
        if commit.checkpoint_id == latest or commit.restored_from is not None:
            break
    for commit in missing:
        publish(client.blob, client.manifest(commit), commit)
    return tuple(commit.checkpoint_id for commit in missing)


def publish_and_retain(client: PersistClient, shard: str, retention: RetentionConfig) -> CheckpointReport | None:
    """Publish what is missing, apply retention, and truncate old versions of the state. `None` before any commit.

    Others may do the same at once, and whoever is overtaken finds that retention has taken what it is publishing. An
    error that is gone when one looks again came from that; `CorruptArtifact` is raised where it stays.
    """
    for _ in range(MAX_LOOKS - 1):
        try:
            return _publish_and_retain(client, shard, retention)
        except (CorruptArtifact, InvalidInput):
            continue
    return _publish_and_retain(client, shard, retention)


def _publish_and_retain(client: PersistClient, shard: str, retention: RetentionConfig) -> CheckpointReport | None:
    state = client.state(shard)
    newest = state.newest_commit
    if newest is None:
        return None
    published = publish_missing(client, state)
    checkpointer = BlobCheckpointer(client.blob, shard)
    _discard_unreadable(checkpointer, state)
    manifests = checkpointer.manifests()
    if not manifests:
        raise CorruptArtifact(f"shard {shard} has commits and no checkpoint, though they were published just now")
    # Needed after a crash just before it, and after a race with a slower publisher.
    checkpointer.update_latest(manifests[-1].checkpoint_id)
    _sweep(client, checkpointer, shard)
    doomed = plan_retention(
        manifests,
        keep_last=retention.keep_last,
        keep_daily=retention.keep_daily,
        keep_weekly=retention.keep_weekly,
        latest_id=checkpointer.read_latest(),
        pinned=checkpointer.pinned(),
    )
    for checkpoint_id in doomed:
        checkpointer.delete_checkpoint(checkpoint_id)
    oldest_kept = state.seqno - VERSIONS_KEPT + 1
    truncated = client.location.consensus.truncate(shard, oldest_kept) if oldest_kept > 0 else 0
    return CheckpointReport(
        newest.checkpoint_id,
        newest.epoch,
        published,
        tuple(reversed(doomed)),
        len(manifests) - len(doomed),
        truncated,
    )


def _discard_unreadable(checkpointer: BlobCheckpointer, state: ShardState) -> None:
    """Delete checkpoints that can't be read and that a restore has left behind: nothing will ever start from them."""
    restores = [number for number, commit in enumerate(state.commits) if commit.restored_from is not None]
    if restores:
        left_behind = {commit.checkpoint_id for commit in state.commits[: restores[-1]]}
        _, unreadable = checkpointer.listing()
        for checkpoint_id in unreadable:
            if checkpoint_id in left_behind:
                checkpointer.delete_checkpoint(checkpoint_id)


def _sweep(client: PersistClient, checkpointer: BlobCheckpointer, shard: str) -> None:
    """Delete what a crashed deletion has left. Ids of known commits stay: somebody may be publishing them."""
    unfinished = checkpointer.unfinished()
    if not unfinished:
        return
    known = {commit.checkpoint_id for commit in client.state(shard).commits}  # read after the listing: none is missed
    for checkpoint_id in unfinished:
        if checkpoint_id not in known:
            checkpointer.delete_checkpoint(checkpoint_id)
