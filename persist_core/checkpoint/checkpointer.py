"""`Checkpointer`: the contract, and its implementation on any `Blob`.

Invariants, whoever calls what in whatever order:

1. `_latest` never goes back to an older (epoch, id) and never names a checkpoint whose artifacts, those of its delta
   chain included, are not all there. (A blob store can't compare and set: of two publishers that race, the slower one
   may put it back for a moment; `publish_and_retain` looks again and moves it on.)
2. Bytes of an artifact are never replaced by others, facts of a manifest neither: the same again succeeds, others fail.
3. A checkpoint without a manifest does not exist: the manifest is written last and deleted first.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Protocol

from persist_core.checkpoint.manifest import CheckpointManifest, PartitionState
from persist_core.errors import CorruptArtifact, InvalidInput
from persist_core.location.blob import Blob
from persist_core.shard.keys import MANIFEST, CheckpointLayout, check_checkpoint_id, is_checkpoint_id, state_path

MAX_CHAIN = 200  # deltas between two snapshots; `retention.snapshot_every` is at most 100


class Checkpointer(Protocol):
    """Stores checkpoints. `testing.checkpoint_conformance` is its suite."""

    def save_manifest(self, manifest: CheckpointManifest) -> None:
        """Write the manifest. The same facts again succeed, other facts are `InvalidInput`.

        Fields that this release doesn't know are kept. Bytes that are no manifest are replaced: it is derived data.
        """
        ...

    def load_manifest(self, checkpoint_id: str) -> CheckpointManifest:
        """The manifest; `CorruptArtifact` naming it where it is missing or unreadable."""
        ...

    def save_snapshot(self, checkpoint_id: str, operator: str, partition_id: int, data: bytes) -> str:
        """Write an operator's whole state and return the SHA-256 (hex) of the bytes."""
        ...

    def save_delta(self, checkpoint_id: str, operator: str, partition_id: int, data: bytes) -> str:
        """Write what changed in an operator's state since the parent; returns the SHA-256 (hex) of the bytes."""
        ...

    def load_artifact(self, checkpoint_id: str, artifact: PartitionState) -> bytes:
        """The artifact's bytes, their digest verified; `CorruptArtifact` naming it and both digests."""
        ...

    def update_latest(self, checkpoint_id: str) -> bool:
        """Move `_latest` forward to this checkpoint. False where it names this one or a newer one already.

        `CorruptArtifact` where an artifact of the checkpoint, or of the delta chain it ends, is missing or altered.
        """
        ...

    def read_latest(self) -> str | None:
        """The id that `_latest` names, or `None` before the first."""
        ...

    def list_checkpoints(self) -> list[str]:
        """Ids of all checkpoints with a manifest, oldest first by (epoch, id)."""
        ...

    def delete_checkpoint(self, checkpoint_id: str) -> bool:
        """Delete a checkpoint, manifest first. False where there was none.

        `InvalidInput` where it is `_latest`'s own or one that its delta chain needs, or where a user has pinned it.
        """
        ...


class BlobCheckpointer:
    """Checkpoints of one shard in a blob store."""

    def __init__(self, blob: Blob, shard: str) -> None:
        self._blob = blob
        self.layout = CheckpointLayout(shard)

    @property
    def blob(self) -> Blob:
        """Where everything lies."""
        return self._blob

    def save_manifest(self, manifest: CheckpointManifest) -> None:
        key = self.layout.manifest(manifest.checkpoint_id)
        known = self.find_readable(manifest.checkpoint_id)
        if known is not None:
            found, wanted = known.facts(), manifest.facts()
            others = [
                f"{name} is {found[name]!r}, not {wanted[name]!r}" for name in wanted if found[name] != wanted[name]
            ]
            if others:
                raise InvalidInput(
                    f"checkpoint {manifest.checkpoint_id} is saved already with other facts:"
                    f" {'; '.join(others)[:500]}. Save it under a new id"
                )
            manifest = replace(known, unknown={**manifest.unknown, **known.unknown})
            if manifest == known:
                return
        self._blob.set(key, manifest.encode())

    def load_manifest(self, checkpoint_id: str) -> CheckpointManifest:
        found = self._find(checkpoint_id)
        if found is None:
            raise CorruptArtifact(f"checkpoint manifest {self.layout.manifest(checkpoint_id)} is missing")
        return found

    def save_snapshot(self, checkpoint_id: str, operator: str, partition_id: int, data: bytes) -> str:
        return self._save(checkpoint_id, state_path(operator, partition_id, is_delta=False), data)

    def save_delta(self, checkpoint_id: str, operator: str, partition_id: int, data: bytes) -> str:
        return self._save(checkpoint_id, state_path(operator, partition_id, is_delta=True), data)

    def save_artifact(self, checkpoint_id: str, path: str, data: bytes) -> str:
        """Write any artifact below the checkpoint's folder; returns the SHA-256 (hex) of the bytes."""
        return self._save(checkpoint_id, path, data)

    def load_artifact(self, checkpoint_id: str, artifact: PartitionState) -> bytes:
        key = self.layout.artifact(checkpoint_id, artifact.path)
        return load_verified(self._blob, key, artifact.sha256)

    def update_latest(self, checkpoint_id: str) -> bool:
        *ancestors, manifest = manifest_chain(self, checkpoint_id)
        if not self._is_newer_than_latest(manifest):
            return False
        for ancestor in ancestors:
            self._check_sizes(ancestor)
        for artifact in manifest.artifacts:
            self.load_artifact(checkpoint_id, artifact)
        self._blob.set(self.layout.latest, checkpoint_id.encode())
        if self._blob.get(self.layout.manifest(checkpoint_id)) is None:
            # A faster publisher has gone further meanwhile, and its retention has taken this one.
            self._blob.set(self.layout.latest, self.manifests()[-1].checkpoint_id.encode())
        return True

    def read_latest(self) -> str | None:
        data = self._blob.get(self.layout.latest)
        if data is None:
            return None
        try:
            return check_checkpoint_id(data.decode().strip())
        except (InvalidInput, UnicodeDecodeError) as error:
            raise CorruptArtifact(f"{self.layout.latest} holds {data[:80]!r}; wanted a checkpoint id") from error

    def list_checkpoints(self) -> list[str]:
        return [manifest.checkpoint_id for manifest in self.manifests()]

    def manifests(self) -> list[CheckpointManifest]:
        """All manifests, oldest first by (epoch, id). `CorruptArtifact` where one can't be read."""
        found = [self._find(checkpoint_id) for checkpoint_id, names in self._folders() if MANIFEST in names]
        return sorted((manifest for manifest in found if manifest is not None), key=lambda manifest: manifest.position)

    def listing(self) -> tuple[list[CheckpointManifest], list[str]]:
        """All manifests that can be read, oldest first by (epoch, id), and the ids of those that can't."""
        ids = [checkpoint_id for checkpoint_id, names in self._folders() if MANIFEST in names]
        found = {checkpoint_id: self.find_readable(checkpoint_id) for checkpoint_id in ids}
        readable = [manifest for manifest in found.values() if manifest is not None]
        unreadable = [checkpoint_id for checkpoint_id, manifest in found.items() if manifest is None]
        return sorted(readable, key=lambda manifest: manifest.position), unreadable

    def unfinished(self) -> list[str]:
        """Ids without a manifest that something was saved for: being written, or half deleted."""
        return [checkpoint_id for checkpoint_id, names in self._folders() if MANIFEST not in names]

    def delete_checkpoint(self, checkpoint_id: str) -> bool:
        key = self.layout.manifest(checkpoint_id)
        latest = self.read_latest()
        if latest is not None and checkpoint_id in [
            manifest.checkpoint_id for manifest in manifest_chain(self, latest)
        ]:
            raise InvalidInput(f"checkpoint {checkpoint_id} can't be deleted: the latest, {latest}, needs it")
        data = self._blob.get(key)
        if data is not None:
            self._check_not_pinned(checkpoint_id)
            self._blob.delete(key)
            try:  # a pin that came in between was told that the checkpoint is there: keep that promise
                self._check_not_pinned(checkpoint_id)
            except InvalidInput:
                self._blob.set(key, data)
                raise
        for entry in list(self._blob.list_keys_and_metadata(self.layout.folder(checkpoint_id))):
            self._blob.delete(entry.key)
        return data is not None

    def pin(self, checkpoint_id: str) -> None:
        """Keep this checkpoint whatever retention says. `CorruptArtifact` where there is no such checkpoint."""
        self.load_manifest(checkpoint_id)
        self._blob.set(self.layout.pin(checkpoint_id), b"")
        if self._blob.get(self.layout.manifest(checkpoint_id)) is None:  # deleted meanwhile
            self.unpin(checkpoint_id)
            raise CorruptArtifact(f"checkpoint {checkpoint_id} was deleted while it was being pinned; it is not pinned")

    def unpin(self, checkpoint_id: str) -> bool:
        """Leave this checkpoint to retention again. False where it was not pinned."""
        return self._blob.delete(self.layout.pin(checkpoint_id)) is not None

    def pinned(self) -> frozenset[str]:
        """Ids of all pinned checkpoints."""
        return frozenset(checkpoint_id for checkpoint_id, names in self._folders() if "pinned" in names)

    def find_readable(self, checkpoint_id: str) -> CheckpointManifest | None:
        """The manifest, or `None` where it is missing or its bytes are no manifest."""
        try:
            return self._find(checkpoint_id)
        except CorruptArtifact:
            return None

    def _is_newer_than_latest(self, manifest: CheckpointManifest) -> bool:
        try:
            latest = self.read_latest()
        except CorruptArtifact:  # a pointer is derived data: it may be written anew
            return True
        if latest is None:
            return True
        known = self.find_readable(latest)
        if known is None and self._blob.get(self.layout.manifest(latest)) is not None:
            return latest < manifest.checkpoint_id  # without its epoch the time in its id has to do
        if known is None:  # it names what retention has deleted: a crash between the two writes of `update_latest`
            return latest < manifest.checkpoint_id or manifest == self.manifests()[-1]
        return known.position < manifest.position

    def _folders(self) -> list[tuple[str, frozenset[str]]]:
        """Every checkpoint id that has keys, with the names right below its folder."""
        folders: dict[str, set[str]] = {}
        for entry in self._blob.list_keys_and_metadata(self.layout.root):
            checkpoint_id, slash, rest = entry.key.removeprefix(self.layout.root).partition("/")
            if slash and is_checkpoint_id(checkpoint_id):
                folders.setdefault(checkpoint_id, set()).add(rest.partition("/")[0])
        return [(checkpoint_id, frozenset(names)) for checkpoint_id, names in folders.items()]

    def _check_sizes(self, manifest: CheckpointManifest) -> None:
        """Artifacts whose digests were verified when their own checkpoint became the latest: are they still there?"""
        folder = self.layout.folder(manifest.checkpoint_id)
        sizes = {entry.key: entry.size_bytes for entry in self._blob.list_keys_and_metadata(folder)}
        for artifact in manifest.artifacts:
            key = self.layout.artifact(manifest.checkpoint_id, artifact.path)
            if sizes.get(key) != artifact.size_bytes:
                found = "missing" if key not in sizes else f"{sizes[key]} bytes"
                raise CorruptArtifact(
                    f"artifact {key} in {self._blob.uri} is {found}; wanted {artifact.size_bytes} bytes with SHA-256"
                    f" {artifact.sha256}"
                )

    def _check_not_pinned(self, checkpoint_id: str) -> None:
        if self._blob.get(self.layout.pin(checkpoint_id)) is not None:
            raise InvalidInput(f"checkpoint {checkpoint_id} is pinned; unpin it before deleting it")

    def _find(self, checkpoint_id: str) -> CheckpointManifest | None:
        key = self.layout.manifest(checkpoint_id)
        data = self._blob.get(key)
        if data is None:
            return None
        manifest = CheckpointManifest.decode(data, what=f"checkpoint manifest {key}")
        if manifest.checkpoint_id != checkpoint_id:
            raise CorruptArtifact(f"checkpoint manifest {key} says it is {manifest.checkpoint_id}")
        return manifest

    def _save(self, checkpoint_id: str, path: str, data: bytes) -> str:
        self._set_once(self.layout.artifact(checkpoint_id, path), data)
        return hashlib.sha256(data).hexdigest()

    def _set_once(self, key: str, data: bytes) -> None:
        known = self._blob.get(key)
        if known == data:
            return
        if known is not None:
            raise InvalidInput(
                f"{key} holds other bytes ({len(known)}, SHA-256 {hashlib.sha256(known).hexdigest()[:16]}) than those"
                f" to be saved ({len(data)}, {hashlib.sha256(data).hexdigest()[:16]}); bytes are never replaced"
            )
        self._blob.set(key, data)


def load_verified(blob: Blob, key: str, sha256: str) -> bytes:
    """Bytes under `key`, if their digest is `sha256`; else `CorruptArtifact` naming the key and both digests."""
    data = blob.get(key)
    if data is None:
        raise CorruptArtifact(f"artifact {key} is missing in {blob.uri}; wanted SHA-256 {sha256}")
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise CorruptArtifact(f"artifact {key} in {blob.uri} has SHA-256 {found}; wanted {sha256}")
    return data


def manifest_chain(checkpointer: Checkpointer, checkpoint_id: str) -> list[CheckpointManifest]:
    """The manifests of the chain that ends in this checkpoint, oldest (the full snapshot) first.

    Raises `CorruptArtifact` naming the manifest that is missing or unreadable, or a chain that has no start.
    """
    chain = [checkpointer.load_manifest(checkpoint_id)]
    while chain[-1].is_delta and chain[-1].parent_id is not None:
        if len(chain) >= MAX_CHAIN:
            raise CorruptArtifact(f"checkpoint {checkpoint_id}: a chain of {MAX_CHAIN} deltas has no full snapshot")
        chain.append(checkpointer.load_manifest(chain[-1].parent_id))
    return chain[::-1]
