"""`Checkpointer`: the contract, and its implementation on any `Blob`.

Invariants, whoever calls what in whatever order:

1. `_latest` never goes back to an older (epoch, id) and never names a checkpoint whose artifacts are not all there.
2. Bytes of an artifact or a manifest are never replaced by others: saving the same again succeeds, other facts fail.
3. A checkpoint without a manifest does not exist: the manifest is written last and deleted first.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Protocol

from persist_core.checkpoint.layout import Layout, check_checkpoint_id, state_path
from persist_core.checkpoint.manifest import CheckpointManifest, PartitionState
from persist_core.errors import CorruptArtifact, InvalidInput
from persist_core.location.blob import Blob


class Checkpointer(Protocol):
    """Stores checkpoints. `testing.checkpoint_conformance` is its suite."""

    def save_manifest(self, manifest: CheckpointManifest) -> None:
        """Write the manifest. The same facts again succeed, other facts are `InvalidInput`."""
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
        """Move `_latest` forward to this checkpoint. False where it names this one or a newer one already."""
        ...

    def read_latest(self) -> str | None:
        """The id that `_latest` names, or `None` before the first."""
        ...

    def list_checkpoints(self) -> list[str]:
        """Ids of all checkpoints with a manifest, oldest first by (epoch, id)."""
        ...

    def delete_checkpoint(self, checkpoint_id: str) -> bool:
        """Delete a checkpoint, manifest first. False where there was none. `_latest`'s own is `InvalidInput`."""
        ...


class BlobCheckpointer:
    """Checkpoints of one shard in a blob store."""

    def __init__(self, blob: Blob, shard: str) -> None:
        self._blob = blob
        self.layout = Layout(shard)

    def save_manifest(self, manifest: CheckpointManifest) -> None:
        key = self.layout.manifest(manifest.checkpoint_id)
        known = self._find(manifest.checkpoint_id)
        if known is not None:
            if known.facts() != manifest.facts():
                raise InvalidInput(
                    f"checkpoint {manifest.checkpoint_id} is saved already with other facts:"
                    f" found {known.facts()}, wanted {manifest.facts()}. Save it under a new id"
                )
            manifest = replace(manifest, unknown={**manifest.unknown, **known.unknown})
        self._set_once(key, manifest.encode(), replace_equal=known is not None)

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
        manifest = self.load_manifest(checkpoint_id)
        current = self.read_latest()
        if current is not None:
            known = self._find(current)
            if known is not None and known.position >= manifest.position:
                return False
        for artifact in manifest.artifacts:
            self.load_artifact(checkpoint_id, artifact)
        self._blob.set(self.layout.latest, checkpoint_id.encode())
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
        """All manifests, oldest first by (epoch, id)."""
        ending = "/manifest.json"
        keys = [entry.key for entry in self._blob.list_keys_and_metadata(self.layout.root)]
        ids = [key.removeprefix(self.layout.root).removesuffix(ending) for key in keys if key.endswith(ending)]
        found = [self._find(checkpoint_id) for checkpoint_id in ids if "/" not in checkpoint_id]
        return sorted((manifest for manifest in found if manifest is not None), key=lambda manifest: manifest.position)

    def delete_checkpoint(self, checkpoint_id: str) -> bool:
        if self.read_latest() == checkpoint_id:
            raise InvalidInput(f"checkpoint {checkpoint_id} is the latest; it can't be deleted")
        existed = self._blob.delete(self.layout.manifest(checkpoint_id)) is not None
        for entry in list(self._blob.list_keys_and_metadata(self.layout.folder(checkpoint_id))):
            self._blob.delete(entry.key)
        return existed

    def pin(self, checkpoint_id: str) -> None:
        """Keep this checkpoint whatever retention says."""
        self.load_manifest(checkpoint_id)
        self._blob.set(self.layout.pin(checkpoint_id), b"")

    def unpin(self, checkpoint_id: str) -> bool:
        """Leave this checkpoint to retention again. False where it was not pinned."""
        return self._blob.delete(self.layout.pin(checkpoint_id)) is not None

    def pinned(self) -> frozenset[str]:
        """Ids of all pinned checkpoints."""
        ending = "/pinned"
        keys = (entry.key for entry in self._blob.list_keys_and_metadata(self.layout.root))
        return frozenset(
            key.removeprefix(self.layout.root).removesuffix(ending) for key in keys if key.endswith(ending)
        )

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

    def _set_once(self, key: str, data: bytes, *, replace_equal: bool = False) -> None:
        known = self._blob.get(key)
        if known == data:
            return
        if known is not None and not replace_equal:
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
