"""Derive checkpoints from commits. Idempotent; any process may do it; repairs the effects of crashes and damage.

    commits of the state --publish--> missing or damaged checkpoints --settle_latest--> _latest --> retention

A checkpoint is derived data, so a damaged one never stops the task: it is written again if its commit is still known,
otherwise its manifest goes into the quarantine, and the report names it. Only damage to the newest commit itself, which
no other object can replace, stops the task.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass

from persist_core.checkpoint.checkpointer import Checkpointer, Listing, load_verified
from persist_core.checkpoint.deletion import delete_checkpoints
from persist_core.checkpoint.manifest import (
    CheckpointManifest,
    PartitionState,
    SavedOperator,
    ShardPin,
    SourceOffsets,
    path_of,
    walk,
)
from persist_core.checkpoint.quarantine import Quarantine
from persist_core.checkpoint.retention import plan_retention
from persist_core.config.shard import RetentionConfig
from persist_core.contents.batch import BatchManifest
from persist_core.errors import CorruptArtifact, Corruption, InvalidInput
from persist_core.handles.client import PersistClient
from persist_core.keys import CheckpointLayout, offsets_path, state_path
from persist_core.location.blob import Blob
from persist_core.shard.history import history_start
from persist_core.shard.state import Commit, ShardState

MAX_LOOKS = 3  # an error that persists in the third attempt does not come from a race with another publisher
MAX_POINTER_ROUNDS = 10  # each but the first because another publisher has written `_latest` in between
DELETED_TOGETHER = 100  # checkpoints; a pin that is set while they are deleted is looked for after the last manifest
VERSIONS_KEPT = 100  # of the shard's state, for audits and for reading back after a lost answer


@dataclass(frozen=True)
class CheckpointRepair:
    """The damage that was found. `published`: ids of checkpoints that were missing, oldest first.

    `repaired`: keys of damaged objects that were written again from their commit. `quarantined`: ids of checkpoints
    whose unreadable manifest was moved aside. `not_repaired`: the remaining damage, one message each; the shard and its
    newest state are not affected.
    """

    published: tuple[str, ...]
    repaired: tuple[str, ...] = ()
    quarantined: tuple[str, ...] = ()
    not_repaired: tuple[str, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """One message per damaged object. Callers log each."""
        return (
            *(f"{key} was damaged or missing and was written again from its commit" for key in self.repaired),
            *(f"checkpoint {each}: its damaged manifest was moved to the quarantine" for each in self.quarantined),
            *self.not_repaired,
        )


@dataclass(frozen=True, kw_only=True)
class CheckpointReport(CheckpointRepair):
    """The result of a checkpoint task. `deleted`: oldest first; `kept` counts all checkpoints that exist now."""

    checkpoint_id: str
    epoch: int
    deleted: tuple[str, ...]
    kept: int

    def __str__(self) -> str:
        deleted = f"; deleted {len(self.deleted)} that are not retained" if self.deleted else ""
        what = "published" if self.checkpoint_id in self.published else "was published before"
        return f"checkpoint {self.checkpoint_id} (epoch {self.epoch}) {what}; {self.kept} checkpoints kept{deleted}"


def manifest_of(manifest: BatchManifest, commit: Commit, life: str | None) -> CheckpointManifest:
    """The checkpoint manifest that a commit of a life of its shard determines."""
    operators, folder = {}, CheckpointLayout(manifest.shard).folder(commit.checkpoint_id)
    for name, state in manifest.operators.items():
        partitions = tuple(
            PartitionState(
                partition_id=each.partition_id,
                is_delta=state.is_delta,
                path=path_of(folder, name, each, is_delta=state.is_delta),
                size_bytes=each.size_bytes,
                sha256=each.sha256,
                facts=each.facts,
            )
            for each in state.artifacts
        )
        operators[name] = SavedOperator(partitions, sum(part.size_bytes for part in partitions), state.is_delta)
    return CheckpointManifest(
        checkpoint_id=commit.checkpoint_id,
        epoch=commit.epoch,
        timestamp_ms=commit.committed_ms,
        operators=operators,
        source_offsets={name: SourceOffsets.of(source, commit.epoch) for name, source in manifest.sources.items()},
        parent_id=manifest.parent_id,
        watermark=manifest.restored.watermark if manifest.restored else commit.upper,
        total_size_bytes=sum(operator.total_bytes for operator in operators.values()),
        shard=ShardPin(manifest.shard, commit.seqno, commit.since, commit.upper, life),
        restored_from=commit.restored_from,
        in_time_from=manifest.in_time_from,
    )


def publish(blob: Blob, manifest: BatchManifest, commit: Commit, life: str | None) -> tuple[str, ...]:
    """Write the whole checkpoint of one commit; returns the keys of damaged objects that it has replaced.

    If retention deletes the checkpoint meanwhile, it stays deleted. Never moves `_latest`: see `settle_latest`.

    Raises `CorruptArtifact` if an artifact of operator state and its copy are both missing or damaged. Then nothing
    changes for readers of checkpoints. Raises `InvalidInput` if the checkpoint was deleted meanwhile and pinned after
    that.
    """
    checkpointer = Checkpointer(blob, manifest.shard, life)
    checkpoint_id, expected = commit.checkpoint_id, manifest_of(manifest, commit, life)
    replaced = []
    for name, state in manifest.operators.items():
        for artifact in state.artifacts:
            if artifact.is_carried:
                continue
            path = state_path(name, artifact.partition_id, is_delta=state.is_delta)
            copy = blob.get(checkpointer.layout.artifact(checkpoint_id, path))
            if copy is None or hashlib.sha256(copy).hexdigest() != artifact.sha256:
                data = load_verified(blob, artifact.key, artifact.sha256)
                if checkpointer.write_derived(checkpoint_id, path, data):
                    replaced.append(checkpointer.layout.artifact(checkpoint_id, path))
    for name, offsets in expected.source_offsets.items():
        if checkpointer.write_derived(checkpoint_id, offsets_path(name), offsets.encode()):
            replaced.append(checkpointer.layout.artifact(checkpoint_id, offsets_path(name)))
    found = checkpointer.find_readable(checkpoint_id)
    if found is None or expected.differences(found):
        if Quarantine(blob, checkpointer.layout).copy(checkpoint_id):
            replaced.append(checkpointer.layout.manifest(checkpoint_id))
        blob.set(checkpointer.layout.manifest(checkpoint_id), expected.encode())
        if not checkpointer.is_complete(expected):  # retention has deleted it meanwhile: keep to that
            checkpointer.delete_checkpoint(checkpoint_id)
    return tuple(replaced)


def publish_missing(client: PersistClient, state: ShardState) -> tuple[str, ...]:
    """Publish every commit that is newer than the newest readable checkpoint; returns their ids, oldest first.

    Raises `CorruptArtifact` if the newest commit cannot be published; older ones that cannot are skipped.
    """
    task = _Publication(client, state)
    task.publish_missing()
    task.settle()
    return tuple(task.published)


def settle_latest(client: PersistClient, shard: str) -> None:
    """Make `_latest` name the newest published commit of the shard's state. The only caller that moves it.

    A blob store has no compare-and-set, so a slow publisher may overwrite a newer pointer. Therefore each publisher
    reads the state and the pointer again after its write, until the pointer names the newest published commit. The last
    of several racing writers does so too: when all have returned, the pointer names the newest commit. If a publisher
    crashes between its write and its second read, the pointer may be older until the next checkpoint task.

    Raises `CorruptArtifact` if operator state of that checkpoint is incomplete; the pointer then does not change.
    """
    for _ in range(MAX_POINTER_ROUNDS):
        state = client.state(shard)
        checkpointer = Checkpointer(client.blob, shard, state.origin.life)
        ids = (commit.checkpoint_id for commit in reversed(state.commits))
        newest = next((each for each in ids if checkpointer.find_readable(each) is not None), None)
        if newest is None or _latest_or_none(checkpointer) == newest:
            return
        checkpointer.update_latest(newest)


def publish_and_retain(client: PersistClient, shard: str, retention: RetentionConfig) -> CheckpointReport | None:
    """Publish what is missing, repair what is damaged, apply retention, and truncate old versions of the state.

    `None` before any commit. Several publishers may run at the same time, and retention of one may delete what a slower
    one is publishing. Such an error does not occur again in the next attempt; an error that persists is raised as
    `CorruptArtifact`.
    """
    for _ in range(MAX_LOOKS - 1):
        try:
            return _publish_and_retain(client, shard, retention)
        except (CorruptArtifact, InvalidInput):
            continue
    return _publish_and_retain(client, shard, retention)


def repair_checkpoints(client: PersistClient, shard: str) -> CheckpointRepair:
    """Verify every checkpoint byte for byte, and write again what its commit determines. Deletes no checkpoint.

    A manifest that cannot be read and that no known commit determines is moved into the quarantine. A shard whose state
    is gone begins again, empty.
    """
    is_gone = client.machine.fetch(shard) is None and client.blob.get(CheckpointLayout(shard).latest) is not None
    if is_gone:
        client.ensure_shard(shard)
    state = client.state(shard)
    task = _Publication(client, state)
    if is_gone:
        task.damaged.append(f"the state of {shard} was gone: the shard begins again, empty")
    try:
        task.publish_missing()
    except Corruption as error:
        task.damaged.append(str(error))
    listing = task.checkpointer.listing(threads=client.fetch_threads)
    task.repair(listing, thorough=True)
    task.settle(anew=True)
    return CheckpointRepair(*task.results())


def _publish_and_retain(client: PersistClient, shard: str, retention: RetentionConfig) -> CheckpointReport | None:
    state = client.state(shard)
    newest = state.newest_commit
    if newest is None:
        return None
    task = _Publication(client, state)
    task.publish_missing()
    listing = task.checkpointer.listing(threads=client.fetch_threads)
    if task.repair(listing):
        listing = task.checkpointer.listing(threads=client.fetch_threads)
    task.settle()
    task.sweep(listing)
    deleted = task.retain(listing, retention)
    client.machine.forget(state, kept=VERSIONS_KEPT)
    kept = len(listing.manifests) - len(deleted)
    return CheckpointReport(
        *task.results(), checkpoint_id=newest.checkpoint_id, epoch=newest.epoch, deleted=deleted, kept=kept
    )


class _Publication:
    def __init__(self, client: PersistClient, state: ShardState) -> None:
        self._client = client
        self._state = state
        self._commits = {commit.checkpoint_id: commit for commit in state.commits}
        self.checkpointer = Checkpointer(client.blob, state.shard, state.origin.life)
        self._quarantine = Quarantine(client.blob, self.checkpointer.layout)
        self.published: list[str] = []
        self.repaired: list[str] = []
        self.quarantined: list[str] = []
        self.damaged: list[str] = []

    def results(self) -> tuple[tuple[str, ...], ...]:
        """The fields of a `CheckpointRepair`."""
        return tuple(self.published), tuple(self.repaired), tuple(self.quarantined), tuple(dict.fromkeys(self.damaged))

    def publish_missing(self) -> None:
        """Publish from old to new. So a commit that is older than a published one was published too, and if its
        checkpoint does not exist, retention has deleted it. No run starts from commits before a restore.
        """
        latest = _latest_or_none(self.checkpointer)
        missing: list[Commit] = []
        for commit in reversed(self._state.commits):
            if self.checkpointer.find_readable(commit.checkpoint_id) is not None:
                break
            missing.insert(0, commit)
            if commit.checkpoint_id == latest or commit.restored_from is not None:
                break
        for commit in missing:
            if self._publish(commit, is_newest=commit == self._state.newest_commit):
                self.published.append(commit.checkpoint_id)

    def repair(self, listing: Listing, *, thorough: bool = False) -> bool:
        """Write damaged checkpoints again from their commits; move the manifests of others aside. True if it did.

        Finds manifests that cannot be read, and files that are missing or have a wrong size; if `thorough`, any
        difference from the commit.
        """
        for manifest in listing.manifests:
            is_damaged = not self.checkpointer.is_complete(manifest, listing.sizes)
            if is_damaged or (thorough and manifest.checkpoint_id in self._commits):
                checkpoint_id = manifest.checkpoint_id
                self._repair(checkpoint_id, f"checkpoint {checkpoint_id}: a file is missing or has another size")
        for checkpoint_id, error in listing.unreadable.items():
            if isinstance(error, CorruptArtifact):
                self._repair(checkpoint_id, str(error))
            else:
                self.damaged.append(str(error))  # from a newer release: not damaged, so this release does not move it
        relinked = [each for each in self._missing_links(listing) if self._publish(self._commits[each])]
        self.published += relinked
        return bool(self.repaired or self.quarantined or relinked)

    def _missing_links(self, listing: Listing) -> list[str]:
        """Known commits without a checkpoint, although a delta chain of a listed checkpoint needs it.

        A checkpoint that only a newer one keeps does not count: its chains of other operators may be deleted already.
        """
        by_id = {manifest.checkpoint_id: manifest for manifest in listing.manifests}
        needed: set[str] = set()
        missing: set[str] = set()

        def load(checkpoint_id: str) -> CheckpointManifest:
            if checkpoint_id not in by_id:
                commit = None if checkpoint_id in listing.unreadable else self._commits.get(checkpoint_id)
                if commit is None:
                    raise CorruptArtifact(f"checkpoint {checkpoint_id} is missing, and its commit is no longer known")
                by_id[checkpoint_id] = manifest_of(self._client.manifest(commit), commit, self._state.origin.life)
                missing.add(checkpoint_id)
            return by_id[checkpoint_id]

        for manifest in reversed(listing.manifests):
            if manifest.checkpoint_id not in needed:
                with suppress(Corruption):  # fsck reports the broken chain
                    needed.update(link.checkpoint_id for link, _ in walk(manifest, load))
        return sorted(missing)

    def _repair(self, checkpoint_id: str, damage: str) -> None:
        """Publish the checkpoint again. If that fails and it is incomplete, move its manifest aside."""
        newest, commit = self._state.newest_commit, self._commits.get(checkpoint_id)
        if commit is not None and self._publish(commit):
            return
        if commit is None:
            self.damaged.append(f"{damage}, and its commit is no longer known")
        is_newest = newest is not None and newest.checkpoint_id == checkpoint_id
        if not is_newest and not self._is_whole(checkpoint_id) and self._quarantine.move(checkpoint_id):
            self.quarantined.append(checkpoint_id)

    def _is_whole(self, checkpoint_id: str) -> bool:
        try:
            for artifact in self.checkpointer.load_manifest(checkpoint_id).artifacts:
                self.checkpointer.load_artifact(checkpoint_id, artifact)
        except Corruption:
            return False
        return True

    def settle(self, *, anew: bool = False) -> None:
        """Move `_latest`: needed after a crash just before it, and after a race with a slower publisher.

        `anew`: also if it names something newer than any commit, which no race explains.
        """
        try:
            if anew and _latest_or_none(self.checkpointer) not in self._commits:
                self._client.blob.delete(self.checkpointer.layout.latest)
            settle_latest(self._client, self._state.shard)
        except CorruptArtifact as error:
            self.damaged.append(f"{error}. `_latest` is unchanged")

    def sweep(self, listing: Listing) -> None:
        """Delete the rest of a crashed deletion, and what a slow task of another life of the shard has published."""
        doomed = set(listing.other_lives)
        if listing.unfinished:
            commits = self._client.state(self._state.shard).commits
            doomed |= set(listing.left_behind(commits)) - self._quarantine.ids()
        for checkpoint_id in sorted(doomed):
            with suppress(InvalidInput):  # the latest needs it, or it is pinned: damage, which fsck reports
                self.checkpointer.delete_checkpoint(checkpoint_id)

    def retain(self, listing: Listing, retention: RetentionConfig) -> tuple[str, ...]:
        """Apply retention; returns the deleted ids, oldest first."""
        doomed = plan_retention(
            listing.manifests,
            retention,
            latest_id=_latest_or_none(self.checkpointer),
            pinned=listing.pinned,
            history_start=history_start(self._state),
        )
        for start in range(0, len(doomed), DELETED_TOGETHER):
            some = doomed[start : start + DELETED_TOGETHER]
            delete_checkpoints(self.checkpointer, some, spared=listing.pinned)
        return tuple(reversed(doomed))

    def _publish(self, commit: Commit, *, is_newest: bool = False) -> bool:
        """Publish one commit. False if it is damaged itself; for the newest commit the caller raises an error.

        If an erasure has replaced the commit's manifest meanwhile, the checkpoint may hold the key: publish it again.
        """
        shard, life = self._state.shard, self._state.origin.life
        try:
            for _ in range(MAX_LOOKS):  # each but the first because of an erasure during the one before
                self.repaired += publish(self._client.blob, self._client.manifest(commit), commit, life)
                now = {each.checkpoint_id: each for each in self._client.state(shard).commits}
                published, commit = commit, now.get(commit.checkpoint_id, commit)
                if commit.manifest_key == published.manifest_key:
                    break
        except Corruption as error:
            if is_newest:
                raise
            self.damaged.append(f"checkpoint {commit.checkpoint_id}: {error}")
            return False
        return True


def _latest_or_none(checkpointer: Checkpointer) -> str | None:
    try:
        return checkpointer.read_latest()
    except CorruptArtifact:
        return None
