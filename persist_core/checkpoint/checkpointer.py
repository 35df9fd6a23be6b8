"""`Checkpointer`: checkpoints of a shard in a blob store (docs/semantics.md, section 7).

Invariants, for any callers in any order:

1. `update_latest` is the only writer of `_latest`. It never moves it to an older (epoch, id) than it found there, nor
   to a checkpoint with a missing artifact, including the artifacts of its delta chains. A blob store has no
   compare-and-set, so the slower of two racing publishers can still move it back. Each publisher therefore reads it
   again after its write, until it names the newest published commit (`publish.settle_latest`).
2. Bytes of an artifact and facts of a manifest never change: saving the same again succeeds, saving others fails.
   Only `write_derived` replaces bytes: the caller has derived them from the commit, so different bytes are damage.
3. A checkpoint without a manifest does not exist: the manifest is written last and deleted first.
4. A publisher may write the manifest of a checkpoint that another task is deleting. So each looks once more: the
   publisher deletes the checkpoint if it is not complete after its write, and the deletion lists the folder until it
   is empty. Once both have returned, the checkpoint is complete or gone. If one of them dies in between, it may stay
   incomplete until the next checkpoint task, which writes it again from its commit or deletes it.
5. One damaged checkpoint affects no other: a listing names unreadable ones and skips them.
"""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from persist_core.checkpoint.deletion import delete_checkpoints
from persist_core.checkpoint.manifest import CheckpointManifest, PartitionState, walk
from persist_core.contents.operator_state import StateArtifact
from persist_core.contents.parts import PARQUET, PartFormat, read_as
from persist_core.contents.schema_versions import SchemaVersions
from persist_core.errors import CheckpointNotFound, CorruptArtifact, Corruption, InvalidInput
from persist_core.handles.side_by_side import side_by_side
from persist_core.keys import (
    MANIFEST,
    CheckpointLayout,
    check_checkpoint_id,
    is_checkpoint_id,
    state_path,
)
from persist_core.location.blob import Blob
from persist_core.sealed import check_in_place
from persist_core.shard.state import Commit


@dataclass(frozen=True)
class Listing:
    """All checkpoints of a shard. `manifests`: oldest first by (epoch, id). `unreadable`: the reason, by id;
    `other_lives`: the life (`OfAnotherLife`). `unfinished`: ids that have objects but no manifest. `sizes` in bytes.
    """

    manifests: tuple[CheckpointManifest, ...]
    unreadable: Mapping[str, Corruption]
    other_lives: Mapping[str, str | None]
    unfinished: tuple[str, ...]
    pinned: frozenset[str]
    sizes: Mapping[str, int]

    def left_behind(self, commits: Sequence[Commit]) -> list[str]:
        """The unfinished ones that no publisher completes: checkpoints are published from old to new, so one that is
        older than a published one was published too. `commits`: the shard's, read after the listing.
        """
        newest = max((manifest.position for manifest in self.manifests), default=(0, ""))
        coming = {each.checkpoint_id for each in commits if (each.epoch, each.checkpoint_id) > newest}
        return [each for each in self.unfinished if each not in coming]


class OfAnotherLife(CorruptArtifact):
    """The checkpoint is of another `life`: of a dropped shard of this name, or of an earlier generation."""

    def __init__(self, checkpoint_id: str, shard: str, life: str | None) -> None:
        self.life = life
        super().__init__(
            f"checkpoint {checkpoint_id} is of another shard {shard}, which was dropped, or of an earlier generation;"
            " the next checkpoint task deletes it"
        )


class Checkpointer:
    """Checkpoints of one shard in a blob store; with `life` (`Origin.life`), of that life only."""

    def __init__(self, blob: Blob, shard: str, life: str | None = None) -> None:
        self.blob = blob
        self._shard = shard
        self._life = life
        self.layout = CheckpointLayout(shard)

    def save_manifest(self, manifest: CheckpointManifest) -> None:
        """Write the manifest. Saving the same facts again succeeds; other facts raise `InvalidInput`.

        Keeps fields that this release does not know. Replaces bytes that cannot be read as a manifest: it is derived
        data.
        """
        known = self.find_readable(manifest.checkpoint_id)
        if known is not None:
            others = manifest.differences(known)
            if others:
                raise InvalidInput(
                    f"checkpoint {manifest.checkpoint_id} is already saved with other facts:"
                    f" {'; '.join(others)[:500]}. Save it under a new id"
                )
            manifest = replace(known, unknown={**manifest.unknown, **known.unknown})
            if manifest == known:
                return
        self.blob.set(self.layout.manifest(manifest.checkpoint_id), manifest.encode())

    def check_known(self, checkpoint_id: str) -> None:
        """Raise `CheckpointNotFound` if there is no manifest of this id, which a user has given."""
        if self.blob.get(self.layout.manifest(checkpoint_id)) is None:
            raise CheckpointNotFound(
                f"shard {self._shard} has no checkpoint {checkpoint_id}; `persist checkpoints {self._shard}` lists them"
            )

    def load_manifest(self, checkpoint_id: str) -> CheckpointManifest:
        """The manifest. Raises `CorruptArtifact` naming it if it is missing or unreadable."""
        key = self.layout.manifest(checkpoint_id)
        data = self.blob.get(key)
        if data is None:
            raise CorruptArtifact(f"checkpoint manifest {key} is missing")
        manifest = CheckpointManifest.decode(data, what=f"checkpoint manifest {key}")
        check_in_place(manifest.checkpoint_id, checkpoint_id, what=f"checkpoint manifest {key}")
        if manifest.shard is not None:  # other writers leave it out
            check_in_place(manifest.shard.shard, self._shard, what=f"checkpoint manifest {key}")
            if self._life is not None and manifest.shard.life != self._life:
                raise OfAnotherLife(checkpoint_id, self._shard, manifest.shard.life)
        return manifest

    def save_snapshot(self, checkpoint_id: str, operator: str, partition_id: int, data: bytes) -> str:
        """Write an operator's whole state and return the SHA-256 (hex) of the bytes."""
        return self._save(checkpoint_id, state_path(operator, partition_id, is_delta=False), data)

    def save_delta(self, checkpoint_id: str, operator: str, partition_id: int, data: bytes) -> str:
        """Write what changed in an operator's state since the parent; returns the SHA-256 (hex) of the bytes."""
        return self._save(checkpoint_id, state_path(operator, partition_id, is_delta=True), data)

    def write_derived(self, checkpoint_id: str, path: str, data: bytes) -> bool:
        """Write bytes that the checkpoint's commit determines. True if they replace other, damaged bytes."""
        key = self.layout.artifact(checkpoint_id, path)
        known = self.blob.get(key)
        if known != data:
            self.blob.set(key, data)
        return known not in (None, data)

    def load_artifact(self, checkpoint_id: str, artifact: PartitionState) -> bytes:
        """The artifact's bytes, with the digest verified. Raises `CorruptArtifact` naming it and both digests."""
        key = self.layout.artifact(checkpoint_id, artifact.path)
        return load_verified(self.blob, key, artifact.sha256)

    def update_latest(self, checkpoint_id: str) -> bool:
        """Move `_latest` forward to this checkpoint. False if it already names this one or a newer one.

        Raises `CorruptArtifact` if an artifact of the checkpoint or of its delta chains is missing or altered.
        """
        *ancestors, manifest = manifest_chain(self, checkpoint_id)
        if not self._is_newer_than_latest(manifest):
            return False
        sizes = Sizes(self.blob)  # digests were verified when the first checkpoint with the bytes became the latest
        for link in (*ancestors, manifest):
            for artifact in link.artifacts:
                if link is manifest and not artifact.is_carried:
                    self.load_artifact(checkpoint_id, artifact)
                else:
                    sizes.check(self.layout.artifact(link.checkpoint_id, artifact.path), artifact)
        self.blob.set(self.layout.latest, checkpoint_id.encode())
        return True

    def read_latest(self) -> str | None:
        """The id that `_latest` names, or `None` before the first."""
        data = self.blob.get(self.layout.latest)
        if data is None:
            return None
        try:
            return check_checkpoint_id(data.decode().strip())
        except (InvalidInput, UnicodeDecodeError) as error:
            raise CorruptArtifact(f"{self.layout.latest} holds {data[:80]!r}; expected a checkpoint id") from error

    def list_checkpoints(self) -> list[str]:
        """Ids of all checkpoints with a readable manifest, oldest first by (epoch, id)."""
        return [manifest.checkpoint_id for manifest in self.listing().manifests]

    def listing(self, *, threads: int = 1) -> Listing:
        """All checkpoints, including damaged ones; so many manifests are read at a time. Raises only what the store
        raises."""
        entries = {entry.key: entry.size_bytes for entry in self.blob.list_keys_and_metadata(self.layout.root)}
        folders: dict[str, set[str]] = {}
        for key in entries:
            checkpoint_id, slash, rest = key.removeprefix(self.layout.root).partition("/")
            if slash and is_checkpoint_id(checkpoint_id):
                folders.setdefault(checkpoint_id, set()).add(rest.partition("/")[0])
        manifests: list[CheckpointManifest] = []
        unreadable: dict[str, Corruption] = {}
        other_lives: dict[str, str | None] = {}
        listed = sorted(name for name, names in folders.items() if MANIFEST in names)
        for checkpoint_id, found in zip(listed, side_by_side(self._found, listed, threads=threads), strict=True):
            if isinstance(found, OfAnotherLife):
                other_lives[checkpoint_id] = found.life
            elif isinstance(found, Corruption):
                unreadable[checkpoint_id] = found
            elif found is not None:
                manifests.append(found)
        return Listing(
            manifests=tuple(sorted(manifests, key=lambda manifest: manifest.position)),
            unreadable=unreadable,
            other_lives=other_lives,
            unfinished=tuple(sorted(name for name, names in folders.items() if MANIFEST not in names)),
            pinned=frozenset(name for name, names in folders.items() if "pinned" in names),
            sizes=entries,
        )

    def _found(self, checkpoint_id: str) -> CheckpointManifest | Corruption | None:
        """The manifest, or why it can't be read; `None` if it is not there any more."""
        try:
            return self.load_manifest(checkpoint_id)
        except OfAnotherLife as error:
            return error
        except Corruption as error:
            return None if self.blob.get(self.layout.manifest(checkpoint_id)) is None else error

    def delete_checkpoint(self, checkpoint_id: str) -> bool:
        """Delete a checkpoint, manifest first. False if it did not exist.

        Raises `InvalidInput` if it is pinned or `_latest` names it, or if a delta chain of such a checkpoint needs it.
        """
        return bool(delete_checkpoints(self, [checkpoint_id]))

    def is_complete(self, manifest: CheckpointManifest, sizes: Mapping[str, int] | None = None) -> bool:
        """True if every object in its folder but its manifest is there, in its size: artifacts and offsets files.

        `sizes`: size in bytes of every object, by key; by default a new listing.
        """
        if sizes is None:
            entries = self.blob.list_keys_and_metadata(self.layout.folder(manifest.checkpoint_id))
            sizes = {entry.key: entry.size_bytes for entry in entries}
        return all(
            sizes.get(self.layout.artifact(manifest.checkpoint_id, path)) == size
            for path, size in manifest.paths.items()
        )

    def needed_by(self, checkpoint_id: str) -> frozenset[str]:
        """Ids of the checkpoint and of all that its delta chains need, if their manifests can be read."""
        needed = {checkpoint_id}
        try:
            for manifest, names in walk(self.load_manifest(checkpoint_id), self.load_manifest):
                if manifest.parent_id is not None and any(manifest.operators[name].is_delta for name in names):
                    needed.add(manifest.parent_id)  # even if its own manifest cannot be read
        except Corruption:
            return frozenset(needed)
        return frozenset(needed)

    def pin(self, checkpoint_id: str) -> None:
        """Exempt this checkpoint from retention. Raises `CorruptArtifact` if it does not exist or is damaged."""
        manifest_chain(self, checkpoint_id)
        self.blob.set(self.layout.pin(checkpoint_id), b"")
        try:
            manifest_chain(self, checkpoint_id)
        except CorruptArtifact as error:  # deleted meanwhile
            self.unpin(checkpoint_id)
            raise CorruptArtifact(
                f"checkpoint {checkpoint_id} was deleted while it was being pinned; it is not pinned"
            ) from error

    def unpin(self, checkpoint_id: str) -> bool:
        """Make this checkpoint subject to retention again. False if it was not pinned."""
        return self.blob.delete(self.layout.pin(checkpoint_id)) is not None

    def pinned(self) -> frozenset[str]:
        entries = self.blob.list_keys_and_metadata(self.layout.root)
        found = (entry.key.removeprefix(self.layout.root).partition("/") for entry in entries)
        return frozenset(each for each, _, rest in found if rest == "pinned" and is_checkpoint_id(each))

    def find_readable(self, checkpoint_id: str) -> CheckpointManifest | None:
        """The manifest, or `None` if it is missing or its bytes cannot be read as one."""
        try:
            return self.load_manifest(checkpoint_id)
        except Corruption:
            return None

    def _is_newer_than_latest(self, manifest: CheckpointManifest) -> bool:
        try:
            latest = self.read_latest()
        except CorruptArtifact:  # a pointer is derived data: it may be written again
            return True
        if latest is None:
            return True
        try:
            known = self.load_manifest(latest)
        except OfAnotherLife:
            return True
        except Corruption:
            known = None
        if known is not None:
            return known.position < manifest.position
        if self.blob.get(self.layout.manifest(latest)) is not None:
            return latest < manifest.checkpoint_id  # its epoch cannot be read; the time in its id decides
        # It names a checkpoint that retention has deleted, or that never existed.
        return latest < manifest.checkpoint_id or manifest == self.listing().manifests[-1]

    def _save(self, checkpoint_id: str, path: str, data: bytes) -> str:
        key = self.layout.artifact(checkpoint_id, path)
        known = self.blob.get(key)
        if known is None:
            self.blob.set(key, data)
        elif known != data:
            raise InvalidInput(
                f"{key} contains other bytes ({len(known)}, SHA-256 {hashlib.sha256(known).hexdigest()[:16]}) than the"
                f" new ones ({len(data)}, {hashlib.sha256(data).hexdigest()[:16]}); stored bytes are never replaced"
            )
        return hashlib.sha256(data).hexdigest()


def load_verified(blob: Blob, key: str, sha256: str) -> bytes:
    """Bytes under `key` with the digest `sha256`; else raises `CorruptArtifact` naming the key and both digests."""
    data = blob.get(key)
    if data is None:
        raise CorruptArtifact(f"artifact {key} is missing in {blob.uri}; expected SHA-256 {sha256}")
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise CorruptArtifact(f"artifact {key} in {blob.uri} has SHA-256 {found}; expected {sha256}")
    return data


class Sizes:
    """Sizes of stored artifacts. Lists each folder once."""

    def __init__(self, blob: Blob) -> None:
        self._blob = blob
        self._folders: dict[str, dict[str, int]] = {}

    def check(self, key: str, artifact: PartitionState | StateArtifact) -> None:
        """Raise `CorruptArtifact` unless an object of the artifact's size is under `key`."""
        folder = f"{posixpath.dirname(key)}/"
        if folder not in self._folders:
            entries = self._blob.list_keys_and_metadata(folder)
            self._folders[folder] = {entry.key: entry.size_bytes for entry in entries}
        found = self._folders[folder].get(key)
        if found != artifact.size_bytes:
            raise CorruptArtifact(
                f"artifact {key} in {self._blob.uri} is {'missing' if found is None else f'{found} bytes'}; expected"
                f" {artifact.size_bytes} bytes with SHA-256 {artifact.sha256}"
            )


def manifest_chain(checkpointer: Checkpointer, checkpoint_id: str) -> list[CheckpointManifest]:
    """The checkpoints that make up the operator state of this one, oldest first; the last is this one.

    Raises `CorruptArtifact` naming the manifest that is missing or unreadable, or a chain that has no full snapshot.
    """
    newest = checkpointer.load_manifest(checkpoint_id)
    return [manifest for manifest, _ in walk(newest, checkpointer.load_manifest)][::-1]


ROWS_AT_ONCE = 1 << 16


def state_rows(
    blob: Blob, artifact: StateArtifact, columns: pa.Schema, schemas: SchemaVersions, part_format: PartFormat = PARQUET
) -> Iterator[pa.Table]:
    """These columns of one artifact, at most `ROWS_AT_ONCE` rows at a time. `schemas`: the shard's.

    Raises `CorruptArtifact` naming the artifact if it is missing or damaged.
    """
    data = load_verified(blob, artifact.key, artifact.sha256)
    written = schemas.of(artifact.schema_version, what=f"artifact {artifact.key}")
    try:
        yield from read_as(part_format, data, columns, written, rows=ROWS_AT_ONCE)
    except (pa.ArrowException, OSError, KeyError) as error:
        raise CorruptArtifact(
            f"artifact {artifact.key} has the bytes that its writer staged, but cannot be read: {error!r}"
        ) from error
