"""Manifests and parts from blob storage: their digests verified, their rows decoded.

Damage is `CorruptArtifact` naming the object, never another exception.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from persist_core.errors import CorruptArtifact
from persist_core.location.blob import Blob
from persist_core.shard.batch import BatchManifest, Part
from persist_core.shard.parts import PARQUET, PartFormat


def load_manifest(blob: Blob, key: str, *, sha256: str | None = None) -> BatchManifest:
    """Read a batch's manifest; `sha256` is the digest that the state binds (`None`: not committed yet).

    Raises `CorruptArtifact` naming the key if it is missing or damaged, or another manifest than the one committed.
    """
    data = blob.get(key)
    if data is None and sha256 is None:
        raise CorruptArtifact(
            f"staged manifest {key} is missing in {blob.uri}: the write did not end, or GC has deleted what it staged"
            " because it was not committed in time. Nothing was committed; write the batch again"
        )
    if data is None:
        raise CorruptArtifact(f"manifest {key} is missing in {blob.uri}; run `persist fsck`")
    manifest = BatchManifest.decode(data, what=f"manifest {key} in {blob.uri}")
    if sha256 is not None and manifest.sha256 != sha256:
        raise CorruptArtifact(
            f"manifest {key} in {blob.uri} has SHA-256 {manifest.sha256}; the shard's state says {sha256}, so it was"
            " replaced. Run `persist fsck`"
        )
    return manifest


def load_part(blob: Blob, part: Part) -> bytes:
    """The bytes of a part, their size and SHA-256 verified; `CorruptArtifact` naming the part and both digests."""
    data = blob.get(part.key)
    if data is None:
        raise CorruptArtifact(f"part {part.key} is missing in {blob.uri}; run `persist fsck`")
    if len(data) != part.size_bytes:
        raise CorruptArtifact(
            f"part {part.key} in {blob.uri} has {len(data)} bytes, expected {part.size_bytes}; run `persist fsck`"
        )
    found = hashlib.sha256(data).hexdigest()
    if found != part.sha256:
        raise CorruptArtifact(
            f"part {part.key} in {blob.uri} has SHA-256 {found}, expected {part.sha256}; run `persist fsck`"
        )
    return data


def read_part(blob: Blob, part: Part, schema: pa.Schema, part_format: PartFormat = PARQUET) -> pa.Table:
    """One part with exactly the columns of `schema`; a column added after it was written is null."""
    data = load_part(blob, part)
    with _decoding(blob, part):
        return _with_columns(part_format.decode(data, schema.names), schema)


def read_part_batches(
    blob: Blob, part: Part, schema: pa.Schema, part_format: PartFormat = PARQUET, *, rows: int, is_packed: bool = False
) -> Iterator[pa.Table]:
    """The same, at most `rows` rows at a time; `is_packed`: as `PartFormat.batches` says, else exactly `schema`."""
    data = load_part(blob, part)
    with _decoding(blob, part):
        for table in part_format.batches(data, schema.names, rows, is_packed=is_packed):
            yield _with_columns(table, schema)


def _with_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    there = set(table.column_names)
    columns = [_column(table[f.name], f.type) if f.name in there else pa.nulls(table.num_rows, f.type) for f in schema]
    return pa.table(columns, schema=pa.schema([f.with_type(c.type) for f, c in zip(schema, columns, strict=True)]))


def _column(column: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    is_packed = pa.types.is_dictionary(column.type) and column.type.value_type == wanted
    return column if is_packed else column.cast(wanted)


@contextmanager
def _decoding(blob: Blob, part: Part) -> Iterator[None]:
    """Damage is reported as `CorruptArtifact`."""
    try:
        yield
    except Exception as error:
        raise CorruptArtifact(
            f"part {part.key} in {blob.uri} has the bytes that its writer staged, but cannot be read:"
            f" {error!r}. Run `persist fsck`"
        ) from error
