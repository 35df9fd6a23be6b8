"""The objects that a state names, with the digests that name them, and moving them from one blob store to another.

`gc.needs` says which keys a shard needs; this is the same for one state, with what `persist copy` has to verify.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from urllib.parse import unquote

from persist_core.checkpoint.checkpointer import Checkpointer
from persist_core.checkpoint.manifest import CheckpointManifest
from persist_core.contents.batch import HollowBatch, SourceFrontier
from persist_core.contents.erased import ErasedList
from persist_core.errors import CorruptArtifact, Corruption
from persist_core.handles.client import PersistClient
from persist_core.keys import CheckpointLayout, conflict_alerts_prefix, conflicts_prefix, digest_in, list_key
from persist_core.location.blob import Blob
from persist_core.sealed import is_sealed, verified_digest
from persist_core.shard.history import PIN
from persist_core.shard.receive import ErasedLists
from persist_core.shard.state import Commit, ShardState
from persist_core.sources.registry import progress_of

LARGE_BYTES = 64 * 1024**2  # an object is in memory as a whole while it is moved
MAX_LARGE = 2  # such objects at a time, whatever the number of threads


def are_apart(source: Blob, target: Blob, probe: str) -> bool:
    """False if the stores are one, or one lies within the other: an object written at the target is at the source too.

    `probe` is a key for that object, which is deleted again.
    """
    ours, theirs = _folder(source.uri), _folder(target.uri)
    written = (ours.removeprefix(theirs) if ours.startswith(theirs) else "") + probe
    found = (theirs.removeprefix(ours) if theirs.startswith(ours) else "") + probe
    target.set(written, b"")
    is_found = source.get(found) is not None
    target.delete(written)
    return not is_found


def _folder(uri: str) -> str:
    """Where a store is, without how to connect to it: of two prefixes of a bucket one may be given with a region."""
    path = unquote(uri.partition("?")[0])
    return f"{os.path.realpath(path.removeprefix('file://')) if path.startswith('file://') else path}/"


@dataclass(frozen=True)
class Named:
    """An object, and its size and SHA-256 (of a sealed object: the digest that it carries) as far as what names it
    says them."""

    key: str
    size_bytes: int | None = None
    sha256: str | None = None

    def is_in(self, sizes: Mapping[str, int]) -> bool:
        """True if the store holds it; an object is written whole, so its size is enough."""
        return self.key in sizes and self.size_bytes in (None, sizes[self.key])

    def check(self, data: bytes) -> None:
        """Raise `CorruptArtifact` unless these are its bytes."""
        found = verified_digest(data, what=self.key) if is_sealed(data) else hashlib.sha256(data).hexdigest()
        if self.sha256 not in (None, found) or self.size_bytes not in (None, len(data)):
            raise CorruptArtifact(
                f"{self.key} has SHA-256 {found} and {len(data)} bytes; expected {self.sha256} and {self.size_bytes}."
                " It was not copied; run `persist fsck`"
            )


@dataclass(frozen=True)
class SavedCheckpoint:
    """The objects of one checkpoint, and of the progress that it names. It exists once its manifest does."""

    files: tuple[Named, ...]
    manifest: Named


@dataclass(frozen=True)
class Inventory:
    """The objects of one state of a shard. `needed`: without these the state cannot be read; also of other shards, if
    it is a fork. `records`: of lost appends. `checkpoints`: of the state's past, by id; `pinned`: ids that the state
    holds; `known_checkpoints`: ids of all, damaged ones too."""

    needed: tuple[Named, ...]
    records: tuple[Named, ...]
    checkpoints: Mapping[str, SavedCheckpoint]
    pinned: frozenset[str]
    known_checkpoints: frozenset[str]

    @property
    def objects(self) -> list[Named]:
        """All of them, in the order in which they are moved."""
        saved = self.checkpoints.values()
        files = [file for each in saved for file in each.files]
        objects = (*self.needed, *self.records, *files, *(each.manifest for each in saved))
        return list({each.key: each for each in objects}.values())


def inventory_of(client: PersistClient, state: ShardState) -> Inventory:
    """The objects of the state. Raises `CorruptArtifact` for a manifest that is missing or damaged."""
    commits = {commit.manifest_key for commit in state.commits}
    batches = [batch.manifest_key for batch in state.batches]
    both: tuple[Commit | HollowBatch, ...] = (*state.commits, *state.batches)
    naming = {each.manifest_key: each for each in both}
    needed: list[Named] = []
    progress = [state.sources]
    whole = dict(zip(batches, client.manifests(state.batches), strict=True))
    for each in naming.values():
        manifest = whole.get(each.manifest_key) or client.manifest(each)
        needed.append(Named(each.manifest_key, None, each.manifest_sha256))
        if each.manifest_key in batches:
            lists = enumerate(manifest.lists)
            needed += (Named(list_key(each.manifest_key, number), None, found.sha256) for number, found in lists)
            needed += (Named(part.key, part.size_bytes, part.sha256) for part in manifest.parts)
        if each.manifest_key in commits:
            progress.append(manifest.sources)
            for operator in manifest.operators.values():
                needed += (Named(file.key, file.size_bytes, file.sha256) for file in operator.artifacts)
    listing = Checkpointer(client.blob, state.shard, state.origin.life).listing(threads=client.fetch_threads)
    newest = state.newest_commit
    past = [each for each in listing.manifests if newest is not None and each.epoch <= newest.epoch]
    needed += (Named(key, None, digest_in(key)) for sources in progress for key in _named_by(client, state, sources))
    layout = CheckpointLayout(state.shard)
    for checkpoint in past:
        for file in checkpoint.artifacts:
            if file.is_carried:
                key = layout.artifact(checkpoint.checkpoint_id, file.path)
                needed.append(Named(key, file.size_bytes, file.sha256))
    held = {holder.removeprefix(PIN) for holder in state.holds if holder.startswith(PIN)}
    records = [
        Named(entry.key, entry.size_bytes)
        for prefix in (conflicts_prefix(state.shard), conflict_alerts_prefix(state.shard))
        for entry in client.blob.list_keys_and_metadata(prefix)
    ]
    if state.erased is not None:
        needed.append(Named(state.erased, None, digest_in(state.erased)))
    return Inventory(
        tuple({each.key: each for each in needed}.values()),
        tuple(records),
        {each.checkpoint_id: _saved(client, state, each, listing.sizes) for each in past},
        frozenset(held & listing.pinned),
        frozenset({*(each.checkpoint_id for each in listing.manifests), *listing.unreadable, *listing.unfinished}),
    )


def lists_of_erasures(places: Iterable[tuple[PersistClient, ShardState | None]]) -> ErasedLists:
    """The lists that the states name, by key, if they can be read: only they say which of two is the later one."""
    found: dict[str, ErasedList] = {}
    for client, state in places:
        key = state.erased if state else None
        data = client.blob.get(key) if key else None
        if key and data:
            with suppress(Corruption):
                found[key] = ErasedList.read(data, key)
    return found


def _named_by(client: PersistClient, state: ShardState, sources: Mapping[str, SourceFrontier]) -> list[str]:
    progress = progress_of(client.blob, state.shard, sources).values()
    return [key for each in progress for key in sorted(each.needed_keys())]


def _saved(
    client: PersistClient, state: ShardState, manifest: CheckpointManifest, sizes: Mapping[str, int]
) -> SavedCheckpoint:
    layout = CheckpointLayout(state.shard)
    folder, last = layout.folder(manifest.checkpoint_id), layout.manifest(manifest.checkpoint_id)
    known = {layout.artifact(manifest.checkpoint_id, each.path): each.sha256 for each in manifest.artifacts}
    files = [
        Named(key, size_bytes, known.get(key))
        for key, size_bytes in sizes.items()
        if key.startswith(folder) and key not in (last, layout.pin(manifest.checkpoint_id))
    ]
    files += (Named(key, None, digest_in(key)) for key in _named_by(client, state, manifest.sources))
    return SavedCheckpoint(tuple(files), Named(last, sizes.get(last)))


@dataclass
class Mover:
    """Moves objects with several threads, and counts them. `beat` is called after each, in the caller's thread.

    `verifies`: what the target holds is read, and moved again if its digest is not the named one. `found`: sizes of
    what the target holds, by key; it grows with what is moved. `missing`, `damaged`: what could not be moved, with the
    reason.
    """

    source: Blob
    target: Blob
    threads: int
    verifies: bool = False
    beat: Callable[[], None] = lambda: None
    found: dict[str, int] = field(default_factory=dict)
    moved: int = 0
    moved_bytes: int = 0
    missing: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    _verified: set[str] = field(default_factory=set)
    _large: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(MAX_LARGE))

    def look(self, prefixes: Iterable[str]) -> None:
        self.found = {
            entry.key: entry.size_bytes for prefix in prefixes for entry in self.target.list_keys_and_metadata(prefix)
        }

    def move(self, objects: Iterable[Named]) -> None:
        """Move the objects that the target does not hold."""
        missing = {each.key: each for each in objects if self._is_looked_at(each) or not each.is_in(self.found)}
        for named, size_bytes in self._moved(list(missing.values())):
            if size_bytes is not None:
                self.found[named.key] = size_bytes
                self.moved, self.moved_bytes = self.moved + 1, self.moved_bytes + size_bytes
            self.beat()

    def _is_looked_at(self, named: Named) -> bool:
        return self.verifies and named.key not in self._verified

    def _moved(self, objects: list[Named]) -> Iterator[tuple[Named, int | None]]:
        if self.threads == 1:
            for each in objects:
                yield each, self._move(each)
            return
        with ThreadPoolExecutor(self.threads) as pool:
            running = {pool.submit(self._move, each): each for each in objects}
            try:
                for done in as_completed(running):
                    yield running[done], done.result()
            finally:
                pool.shutdown(wait=True, cancel_futures=True)  # after an error no further one is begun

    def _move(self, named: Named) -> int | None:
        """Its size; `None` if it is there, or the source does not hold it, or holds other bytes."""
        with self._large if (named.size_bytes or 0) >= LARGE_BYTES else nullcontext():
            return self._move_now(named)

    def _move_now(self, named: Named) -> int | None:
        if self.verifies:
            self._verified.add(named.key)
            with suppress(CorruptArtifact):
                there = self.target.get(named.key)
                if there is not None:
                    named.check(there)
                    return None
        data = self.source.get(named.key)
        if data is None:
            self.missing.append(f"{named.key} is missing in {self.source.uri}")
            return None
        try:
            named.check(data)
        except CorruptArtifact as error:
            self.damaged.append(str(error))
            return None
        self.target.set(named.key, data)
        return len(data)
