"""Manifests and parts from blob storage: their digests verified, their rows decoded.

Damage is `CorruptArtifact` naming the object, never another exception.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa

from persist_core.contents.batch import BatchManifest, HollowBatch, Part
from persist_core.contents.key_range import KeyRange, meets_any
from persist_core.contents.part_lists import UnreadParts
from persist_core.contents.parts import PARQUET, PartFormat, read_as
from persist_core.errors import CorruptArtifact, InvalidInput
from persist_core.handles.side_by_side import side_by_side
from persist_core.keys import list_key, owner_of
from persist_core.location.blob import Blob
from persist_core.sealed import check_in_place
from persist_core.shard.state import Commit

_FETCHED_BYTES = 32 << 20  # of small parts that are fetched side by side


def load_head(blob: Blob, key: str, *, sha256: str | None = None) -> BatchManifest:
    """Read a batch's manifest without its lists; `sha256` is the digest that the state binds (`None`: not committed
    yet).

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
    check_in_place(manifest.shard, owner_of(key), what=f"manifest {key} in {blob.uri}")
    if sha256 is not None and manifest.sha256 != sha256:
        raise CorruptArtifact(
            f"manifest {key} in {blob.uri} has SHA-256 {manifest.sha256}; the shard's state says {sha256}, so it was"
            " replaced. Run `persist fsck`"
        )
    return manifest


def load_manifest(blob: Blob, key: str, *, sha256: str | None = None, threads: int = 1) -> BatchManifest:
    """Read a batch's manifest with its parts. Raises as `load_head`, and of its lists too."""
    return load_lists(blob, key, load_head(blob, key, sha256=sha256), threads=threads)


def load_lists(
    blob: Blob,
    key: str,
    manifest: BatchManifest,
    ranges: Sequence[KeyRange] | None = None,
    *,
    threads: int = 1,
    skips_missing: bool = False,
) -> BatchManifest:
    """The manifest under `key` with its parts, if those were not read. Raises `CorruptArtifact` naming a list.

    `ranges`: without the parts in lists that hold no key of these. `skips_missing`: without those in missing lists.
    """
    if not isinstance(manifest.parts, UnreadParts):
        return manifest
    wanted = [
        (each, list_key(key, number))
        for number, each in enumerate(manifest.lists)
        if ranges is None or meets_any(each.keys, ranges)
    ]
    found = side_by_side(lambda each: blob.get(each[1]), wanted, threads=threads)
    lists = []
    for (each, name), data in zip(wanted, found, strict=True):
        if data is not None:
            lists.append((each, data, f"list of parts {name} in {blob.uri}"))
        elif not skips_missing:
            raise CorruptArtifact(f"list of parts {name} is missing in {blob.uri}; run `persist fsck`")
    return manifest.with_lists(lists)


def load_manifests(blob: Blob, named: Iterable[HollowBatch | Commit], *, threads: int) -> list[BatchManifest]:
    """The manifests of batches and commits of a state, in their order. Raises as `load_manifest`."""
    return side_by_side(
        lambda each: load_manifest(blob, each.manifest_key, sha256=each.manifest_sha256, threads=threads),
        named,
        threads=threads,
    )


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


def load_parts(blob: Blob, parts: Iterable[Part], *, threads: int) -> Iterator[bytes]:
    """The bytes of these parts, in their order; small ones are fetched side by side. Raises as `load_part`."""
    for group in fetched_together(parts):
        yield from side_by_side(lambda each: load_part(blob, each), group, threads=threads)


def fetched_together(parts: Iterable[Part]) -> Iterator[list[Part]]:
    """These parts, in their order, in groups whose bytes fit into memory; a large part is one alone."""
    group, size_bytes = list[Part](), 0
    for part in parts:
        if group and size_bytes + part.size_bytes > _FETCHED_BYTES:
            yield group
            group, size_bytes = [], 0
        group.append(part)
        size_bytes += part.size_bytes
    if group:
        yield group


def read_part(blob: Blob, part: Part, columns: pa.Schema, part_format: PartFormat = PARQUET) -> pa.Table:
    """One part with exactly `columns`, in whatever schema version it was written (`contents.parts.read_as`)."""
    data = load_part(blob, part)
    with _decoding(blob, part):
        return next(read_as(part_format, data, columns, part.schema))


def batches_of(
    blob: Blob,
    part: Part,
    data: bytes,
    columns: pa.Schema,
    part_format: PartFormat,
    *,
    rows: int,
    is_packed: bool = False,
) -> Iterator[pa.Table]:
    """Like `read_part`, of a part whose bytes were loaded, in tables of at most `rows` rows. `is_packed`: see
    `PartFormat.batches`."""
    with _decoding(blob, part):
        yield from read_as(part_format, data, columns, part.schema, rows=rows, is_packed=is_packed)


@contextmanager
def _decoding(blob: Blob, part: Part) -> Iterator[None]:
    try:
        yield
    except InvalidInput:  # the caller's, not the file's
        raise
    except Exception as error:
        raise CorruptArtifact(
            f"part {part.key} in {blob.uri} has the bytes that its writer staged, but cannot be read:"
            f" {error!r}. Run `persist fsck`"
        ) from error
