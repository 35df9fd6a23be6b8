"""Files, manifests, operator state and checkpoints without erased keys."""

from __future__ import annotations

import hashlib
import io
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from persist_core.checkpoint.checkpointer import Checkpointer, load_verified
from persist_core.checkpoint.manifest import CheckpointManifest, PartitionState
from persist_core.checkpoint.publish import manifest_of
from persist_core.contents.batch import BatchManifest, HollowBatch, Part, PartKind
from persist_core.contents.derived import Run
from persist_core.contents.key_range import EVERYTHING, KeyRange, key_at, range_of
from persist_core.contents.operator_state import OrderKey, StateArtifact
from persist_core.contents.part_lists import PartList, UnreadParts
from persist_core.contents.parts import PARQUET
from persist_core.handles.client import PersistClient
from persist_core.handles.load import load_part
from persist_core.keys import CheckpointLayout, owner_of, part_key
from persist_core.maintenance.sought import Sought, columns_of
from persist_core.schema import (
    DIFF,
    ORDER,
    CollectionSchema,
    Column,
    arrow_type,
    field_id,
    order_cells,
)

_Bounded = TypeVar("_Bounded", Part, PartList)


@dataclass(frozen=True)
class Without:
    """A file without the keys: `data` is `None` if no row is left. `kept`, `removed`: its rows."""

    data: bytes | None
    kept: pa.Table
    removed: pa.Table


def without(data: bytes, sought: Sought) -> Without | None:
    """A Parquet file without the rows of the keys, its columns as they were; `None` if it has none of them."""
    file = pq.ParquetFile(io.BytesIO(data))
    looked_at = columns_of(file, sought, ())
    if not looked_at:
        return None
    found = sought.rows_of(file.read(columns=looked_at))
    if not pc.any(found).as_py():
        return None
    table = file.read()
    kept, removed = table.filter(pc.invert(found)), table.filter(found)
    return Without(None if not len(kept) else PARQUET.encode(kept), kept, removed)


def orders_of(tables: Sequence[pa.Table], schema: CollectionSchema) -> list[OrderKey]:
    found: list[OrderKey] = []
    named = [Column(str(place), column.type) for place, column in enumerate(order_cells(schema).values())]
    for table in tables:
        if schema.order is None or ORDER not in table.column_names:
            continue
        rows = table.filter(pc.is_valid(table[ORDER]))
        cells = {str(place): pc.struct_field(rows[ORDER], [place]) for place in range(len(named))}
        found += [key_at(pa.table(cells), row, named) for row in range(len(rows))]
    return found


@dataclass
class Rewriting:
    """Stages what replaces files that hold the keys, under one attempt; each file once. With `is_dry_run` it only
    looks."""

    client: PersistClient
    shard: str
    attempt: str
    era: int
    sought: Sought
    is_dry_run: bool = False
    rows: int = 0  # versions and errors removed, each counted where it was inserted
    files: int = 0  # of contents: commits that name operator state may be forgotten meanwhile
    has_errs: bool = False  # of the keys: samples in manifests may be of them
    removed: list[pa.Table] = field(default_factory=list)  # of operator state
    _artifacts: dict[str, StateArtifact | None] = field(default_factory=dict)
    _number: int = 0

    def manifest(self, manifest: BatchManifest, batch: HollowBatch | None, *, is_commit: bool) -> BatchManifest | None:
        """The manifest without the keys; `None` if it holds none. `batch`: the state's, if its files are read.

        `is_commit`: the state still has its commit, so its operator state is kept.
        """
        parts: list[Part] = []
        is_of_keys = False
        counts = dict.fromkeys(vars(manifest.counts), 0)
        unread = manifest.parts if isinstance(manifest.parts, UnreadParts) else None
        for part in () if unread else manifest.parts:
            new, gone = self._part(part, counts) if batch is not None else (self._named(part), None)
            parts += [] if new is None else [new]
            is_of_keys |= gone is not None
            self.has_errs |= gone is not None and part.kind is PartKind.ERRS
        operators = {
            name: replace(state, artifacts=tuple(self._saved(name, each, is_commit) for each in state.artifacts))
            for name, state in manifest.operators.items()
        }
        listed = unread and replace(unread, lists=tuple(map(self._named, unread.lists)))
        after = replace(
            manifest, parts=listed or tuple(parts), operators=operators, run=self._begun_again(manifest.run)
        )
        after = self._without_samples(after, is_of_keys)
        if after == manifest:
            return None
        if batch is not None:
            counted = {name: number - counts[name] for name, number in vars(manifest.counts).items()}
            self.rows += counts["insertions"] + counts["err_insertions"]
            changed_at = None if manifest.run else manifest.hollow("").changed_at
            after = replace(after, counts=type(manifest.counts)(**counted), changed_at=changed_at)
            after = self._owned(after)
        stats = {name: count for name, count in after.stats.items() if name != "output_count"}
        return replace(after, shard=self.shard, stats=stats, era=self.era)

    def _part(self, part: Part, counts: dict[str, int]) -> tuple[Part | None, pa.Table | None]:
        if part.kind is not PartKind.ERRS and not self.sought.may_be_within(part.keys):
            return part, None
        found = without(load_part(self.client.blob, part), self.sought)
        if found is None:
            return self._named(part), None
        self.files += 1
        gone = found.removed
        if part.kind is PartKind.ERRS:
            inserted = pc.sum(pc.greater(gone[DIFF], 0)).as_py() or 0
            counts["err_insertions"] += inserted
            counts["err_retractions"] += len(gone) - inserted
        else:
            counts[part.kind.value] += len(gone)
        if found.data is None:
            return None, gone
        keys = EVERYTHING if part.kind is PartKind.ERRS else self._range(found.kept)
        key = self._staged(part.kind, found.data)
        sha256 = hashlib.sha256(found.data).hexdigest()
        new = replace(part, key=key, size_bytes=len(found.data), sha256=sha256, rows=len(found.kept))
        return replace(new, first_key=keys.first, last_key=keys.last, index=PARQUET.index(found.data)), gone

    def _named(self, part: _Bounded) -> _Bounded:
        """A file, or a list of files, that stays, without bounds that are a key."""
        return replace(part, first_key=None, last_key=None) if self.sought.is_bound(part.keys) else part

    def _begun_again(self, run: Run | None) -> Run | None:
        """A merge that has reached a key begins again: only work is lost."""
        is_there = run is not None and run.merged_to is not None and self.sought.is_bound(KeyRange(run.merged_to))
        return replace(run, merged_to=()) if run is not None and is_there else run

    def _owned(self, manifest: BatchManifest) -> BatchManifest:
        """With copies of files of another shard: GC there knows only of the manifests that a fork shares."""
        return replace(
            manifest,
            parts=tuple(
                part
                if owner_of(part.key) == self.shard
                else replace(part, key=self._staged(part.kind, load_part(self.client.blob, part)))
                for part in manifest.parts
            ),
        )

    def _saved(self, operator: str, artifact: StateArtifact, is_commit: bool) -> StateArtifact:
        """A file of operator state as a manifest is to name it. Without a commit it may be gone."""
        if is_commit:
            return self.artifact(operator, artifact) or artifact
        is_bound = self.sought.is_bound(artifact.keys)
        return replace(artifact, first_key=None, last_key=None) if is_bound else artifact

    def artifact(self, operator: str, artifact: StateArtifact) -> StateArtifact | None:
        """The file of operator state without the keys, named as one that an earlier batch has staged.

        `None` if it holds none of them.
        """
        if not self.sought.may_be_within(artifact.keys):
            return None
        if artifact.sha256 not in self._artifacts:
            self._artifacts[artifact.sha256] = self._rewritten(operator, artifact)
        new = self._artifacts[artifact.sha256]
        return None if new is None else replace(new, partition_id=artifact.partition_id)

    def _rewritten(self, operator: str, artifact: StateArtifact) -> StateArtifact | None:
        data = load_verified(self.client.blob, artifact.key, artifact.sha256)
        found = without(data, self.sought)
        if found is None and not self.sought.is_bound(artifact.keys):
            return None
        if found is None:
            return replace(artifact, first_key=None, last_key=None)
        self.removed.append(found.removed)
        data, keys = found.data or PARQUET.encode(found.kept), self._range(found.kept)
        return replace(
            artifact,
            key=self._staged(operator, data),
            size_bytes=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
            rows=len(found.kept),
            first_key=keys.first,
            last_key=keys.last,
            is_carried=True,
        )

    def _range(self, table: pa.Table) -> KeyRange:
        names = {field_id(column): column.name for column in table.schema}
        stored = [replace(column, name=names[column.id]) for column in self.sought.columns]
        cells = {c.name: table[c.name].cast(arrow_type(c.type)) for c in stored}
        return range_of(pa.table(cells), stored)

    def _staged(self, kind: str, data: bytes) -> str:
        self._number += 1
        key = part_key(self.shard, self.attempt, kind, self._number)
        if not self.is_dry_run:
            self.client.blob.set(key, data)
        return key

    def _without_samples(self, manifest: BatchManifest, is_of_keys: bool) -> BatchManifest:
        """Texts for people that mention a key are removed; all samples that may be of the keys, if the batch held one,
        or if there was an err of them."""
        warnings = tuple(
            replace(each, samples=()) if is_of_keys or self.sought.is_said(each.samples) else each
            for each in manifest.warnings
        )
        groups = tuple(
            replace(each, first="", position=None, payload="")
            if is_of_keys or self.has_errs or self.sought.is_said([each.first, each.payload])
            else each
            for each in manifest.err_groups
        )
        restored = manifest.restored
        if restored and restored.correction and self.sought.is_said(restored.correction.reason):
            restored = replace(restored, correction=replace(restored.correction, reason=""))
        return replace(manifest, warnings=warnings, err_groups=groups, restored=restored)


def rewrite_checkpoints(client: PersistClient, rewriting: Rewriting) -> None:
    """Rewrite all that hold a key. A manifest is replaced whole, then the copies that it named are deleted."""
    state = client.state(rewriting.shard)
    commits = {commit.checkpoint_id: commit for commit in state.commits}
    checkpointer = Checkpointer(client.blob, state.shard, state.origin.life)
    layout = checkpointer.layout
    for found in checkpointer.listing(threads=client.fetch_threads).manifests:
        commit = commits.get(found.checkpoint_id)
        if commit is not None:
            expected = manifest_of(client.manifest(commit), commit, state.origin.life)
        else:
            expected = _without_keys(rewriting, layout, found)
        if expected.differences(found):
            client.blob.set(layout.manifest(found.checkpoint_id), expected.encode())
        kept = {artifact.path for artifact in expected.artifacts}
        for artifact in found.artifacts:
            if not artifact.is_carried and artifact.path not in kept:
                client.blob.delete(layout.artifact(found.checkpoint_id, artifact.path))


def _without_keys(rewriting: Rewriting, layout: CheckpointLayout, found: CheckpointManifest) -> CheckpointManifest:
    folder, operators = layout.folder(found.checkpoint_id), {}
    for name, saved in found.operators.items():
        parts: list[PartitionState] = []
        for part in saved.partitions:
            artifact = part.artifact(layout.artifact(found.checkpoint_id, part.path))
            new = rewriting.artifact(name, artifact)
            if new is not None:
                is_there = new.key == artifact.key  # only its bounds have changed
                path = part.path if is_there else posixpath.relpath(new.key, folder)
                part = replace(part, path=path, size_bytes=new.size_bytes, sha256=new.sha256, facts=new.facts)
            parts.append(part)
        total_bytes = sum(part.size_bytes for part in parts)
        operators[name] = replace(saved, partitions=tuple(parts), total_bytes=total_bytes)
    return replace(found, operators=operators, total_size_bytes=sum(saved.total_bytes for saved in operators.values()))
