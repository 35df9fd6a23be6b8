"""Keys in stored objects: found wherever they can be, and files, manifests and operator state without them.

Parquet       rows by their key columns, whatever their names were; errs by the bytes of their key; and a record whose
              key could not be decoded, if its bytes hold each text of the key as a word
sealed JSON   bounds of files; texts for people: samples of errs and warnings
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from persist_core.checkpoint.checkpointer import load_verified
from persist_core.contents.batch import BatchManifest, HollowBatch, Part, PartKind
from persist_core.contents.erased import key_texts
from persist_core.contents.key_range import EVERYTHING, Key, KeyRange, exactly, is_within, key_at, meets_any, range_of
from persist_core.contents.operator_state import OrderKey, StateArtifact
from persist_core.contents.parts import PARQUET
from persist_core.handles.client import PersistClient
from persist_core.handles.load import load_part
from persist_core.keys import owner_of, part_key
from persist_core.schema import (
    BAD_KEY,
    DIFF,
    ERR_KEY,
    ERR_PAYLOAD,
    ORDER,
    CollectionSchema,
    Column,
    arrow_type,
    field_id,
    order_cells,
)

MIN_WORD = 4  # characters of a key's text: a shorter one is in many records
_PARQUET = b"PAR1"
_RAW = (ERR_KEY, BAD_KEY, ERR_PAYLOAD)
_BOUNDS = ("first_key", "last_key")
_TEXTS = ("samples", "sample", "first", "payload")  # for people: to delete one too many costs nothing


@dataclass(frozen=True)
class Sought:
    """Keys of a shard to look for."""

    keys: tuple[Key, ...]
    columns: tuple[Column, ...]
    _words: tuple[tuple[re.Pattern[bytes], ...], ...]
    _texts: tuple[Mapping[str, str], ...]
    _bounds: frozenset[Key]

    @classmethod
    def of(cls, keys: Sequence[Key], columns: Sequence[Column]) -> Sought:
        """From whole keys."""
        texts = tuple(key_texts(key, columns) for key in keys)
        ranges = [each for key in keys for each in (exactly(key), exactly(key).shortened())]
        bounds = {bound for each in ranges for bound in (each.first, each.last) if bound is not None}
        return cls(tuple(keys), tuple(columns), tuple(map(_words_of, texts)), texts, frozenset(bounds))

    @property
    def ranges(self) -> list[KeyRange]:
        """The ranges of the keys."""
        return list(map(exactly, self.keys))

    def may_be_within(self, keys: KeyRange) -> bool:
        """True unless the bounds of a file rule all keys out."""
        return meets_any(keys, self.ranges)

    def is_bound(self, keys: KeyRange) -> bool:
        """True if a bound is the text of a key, or the beginning of one."""
        return keys.first in self._bounds or keys.last in self._bounds

    def rows_of(self, table: pa.Table) -> pa.ChunkedArray | pa.Array:
        """For each row of a stored file, whether it is of one of the keys."""
        names = {field_id(column): column.name for column in table.schema}
        return self._rows_by(table, [names.get(column.id) for column in self.columns])

    def is_in_rows(self, table: pa.Table) -> bool:
        """True if the file may hold a row of the keys, whichever generation of the shard has written it."""
        by_name = [column.name if column.name in table.column_names else None for column in self.columns]
        with suppress(pa.ArrowException):  # a column of another type
            if pc.any(self.rows_of(table)).as_py():
                return True
        with suppress(pa.ArrowException):
            return bool(pc.any(self._rows_by(table, by_name)).as_py())
        return False

    def _rows_by(self, table: pa.Table, stored: Sequence[str | None]) -> pa.ChunkedArray | pa.Array:
        if None in stored:
            return pa.repeat(False, len(table))
        cells = {
            column.name: table[name].cast(arrow_type(column.type))
            for column, name in zip(self.columns, stored, strict=True)
        }
        found = is_within(pa.table(cells), self.ranges, self.columns)
        raw = [name for name in _RAW if name in table.column_names]
        unread = pc.is_null(table[stored[0]])
        if not raw or not pc.any(unread).as_py():
            return found
        rows = table.select(raw).append_column("row", pa.array(range(len(table)), pa.int64())).filter(unread)
        hits = [row["row"] for row in rows.to_pylist() if any(self._is_in(row[name]) for name in raw)]
        return pc.or_(found, pc.is_in(pa.array(range(len(table)), pa.int64()), pa.array(hits, pa.int64())))

    def _is_in(self, raw: bytes | None) -> bool:
        """True if bytes from a feed are a key, or hold one as words that are not short."""
        if raw is None:
            return False
        long = [max(map(len, texts.values())) >= MIN_WORD for texts in self._texts]
        if any(is_long and _all_in(words, raw) for is_long, words in zip(long, self._words, strict=True)):
            return True
        try:
            return json.loads(raw) in self._texts
        except ValueError:
            return False

    def is_said(self, value: Any) -> bool:
        """True if a JSON value for people mentions a key."""
        raw = json.dumps(value, ensure_ascii=False).encode()
        return any(_all_in(words, raw) for words in self._words)

    def is_in_object(self, data: bytes) -> bool:
        """True if a stored object, of any kind, holds one of the keys."""
        if data.startswith(_PARQUET):
            file = pq.ParquetFile(io.BytesIO(data))
            names = {column.name for column in self.columns}
            return self.is_in_rows(file.read(columns=_columns_of(file, self, names)))
        try:
            return self._is_in_json(json.loads(data))
        except ValueError:
            return self._is_in(data)

    def _is_in_json(self, body: Any) -> bool:
        if isinstance(body, list):
            return any(map(self._is_in_json, body))
        if not isinstance(body, dict):
            return False
        bounds = [tuple(body[name]) for name in _BOUNDS if body.get(name)]
        said = [body[name] for name in _TEXTS if body.get(name)]
        is_here = not self._bounds.isdisjoint(bounds) or any(map(self.is_said, said))
        return is_here or any(map(self._is_in_json, body.values()))


def _all_in(words: tuple[re.Pattern[bytes], ...], raw: bytes) -> bool:
    return all(word.search(raw) for word in words)


def _words_of(texts: Mapping[str, str]) -> tuple[re.Pattern[bytes], ...]:
    return tuple(re.compile(rb"(?<![\w-])%s(?![\w-])" % re.escape(text.encode())) for text in texts.values())


@dataclass(frozen=True)
class Without:
    """A file without the keys: `data` is `None` if no row is left. `kept`, `removed`: its rows."""

    data: bytes | None
    kept: pa.Table
    removed: pa.Table


def without(data: bytes, sought: Sought) -> Without | None:
    """A Parquet file without the rows of the keys, its columns as they were; `None` if it has none of them."""
    file = pq.ParquetFile(io.BytesIO(data))
    looked_at = _columns_of(file, sought, ())
    if not looked_at:
        return None
    found = sought.rows_of(file.read(columns=looked_at))
    if not pc.any(found).as_py():
        return None
    table = file.read()
    kept, removed = table.filter(pc.invert(found)), table.filter(found)
    return Without(None if not len(kept) else PARQUET.encode(kept), kept, removed)


def _columns_of(file: pq.ParquetFile, sought: Sought, names: Collection[str]) -> list[str]:
    ids = {column.id for column in sought.columns}
    return [each.name for each in file.schema_arrow if each.name in {*_RAW, *names} or field_id(each) in ids]


def orders_of(tables: Sequence[pa.Table], schema: CollectionSchema) -> list[OrderKey]:
    """The orders of the rows that have one."""
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
    rows: int = 0  # versions and errors removed
    files: int = 0
    has_errs: bool = False  # of the keys: samples in manifests may be of them
    removed: list[pa.Table] = field(default_factory=list)  # of operator state
    _artifacts: dict[str, StateArtifact | None] = field(default_factory=dict)
    _number: int = 0

    def manifest(self, manifest: BatchManifest, batch: HollowBatch | None, *, is_commit: bool) -> BatchManifest | None:
        """The manifest without the keys; `None` if it holds none. `batch`: the state's, if its files are read.

        `is_commit`: the state still has its commit, so its operator state is kept.
        """
        parts: list[Part] = []
        counts = dict.fromkeys(vars(manifest.counts), 0)
        for part in manifest.parts:
            new, gone = self._part(part, counts) if batch is not None else (self._named(part), None)
            parts += [] if new is None else [new]
            if gone is not None and part.kind is PartKind.ERRS:
                self.has_errs = True
        operators = {
            name: replace(state, artifacts=tuple(self._saved(name, each, is_commit) for each in state.artifacts))
            for name, state in manifest.operators.items()
        }
        after = replace(manifest, parts=tuple(parts), operators=operators)
        after = self._without_samples(after)
        if after == manifest:
            return None
        if batch is not None:
            counted = {name: number - counts[name] for name, number in vars(manifest.counts).items()}
            self.rows += sum(counts.values())
            after = replace(after, counts=type(manifest.counts)(**counted), changed_at=_changed_at(manifest))
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
        return replace(new, first_key=keys.first, last_key=keys.last), gone

    def _named(self, part: Part) -> Part:
        """A file that stays, without bounds that are a key."""
        return replace(part, first_key=None, last_key=None) if self.sought.is_bound(part.keys) else part

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
        return replace(artifact, first_key=None, last_key=None) if self.sought.is_bound(artifact.keys) else artifact

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
        self.files += 1
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
        """Write a file; its name counts all of this attempt's."""
        self._number += 1
        key = part_key(self.shard, self.attempt, kind, self._number)
        if not self.is_dry_run:
            self.client.blob.set(key, data)
        return key

    def _without_samples(self, manifest: BatchManifest) -> BatchManifest:
        """Texts for people that mention a key are removed; all that may be of an err of the keys, if there was one."""
        warnings = tuple(
            replace(each, samples=()) if self.sought.is_said(each.samples) else each for each in manifest.warnings
        )
        groups = tuple(
            replace(each, first="", position=None, payload="")
            if self.has_errs or self.sought.is_said([each.first, each.payload])
            else each
            for each in manifest.err_groups
        )
        return replace(manifest, warnings=warnings, err_groups=groups)


def _changed_at(manifest: BatchManifest) -> int | None:
    return None if manifest.run else manifest.hollow("").changed_at
