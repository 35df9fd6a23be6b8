"""SHA-256 of files that Spark has written, without holding a file in memory.

In a file system they are read from the page cache, where they were just written. S3 has no such digest: the magic
committer uploads in several parts, and of such an object S3 knows a digest of the parts' digests only. So there each
byte is read back once, `THREADS` files at a time (figures: docs/benchmarks.md).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from persist_core.errors import CorruptArtifact
from persist_core.handles.side_by_side import side_by_side
from persist_core.location.blob import Blob, BlobMetadata, RangeReader

THREADS = 16  # a batch may have thousands of files, and each costs a round trip to the store
_CHUNK_BYTES = 8 << 20


def digests_of(blob: Blob, files: Sequence[BlobMetadata]) -> list[str]:
    """The SHA-256 (hex) of each file, in their order.

    Raises `CorruptArtifact` for a file that is gone or has another size than was listed.
    """
    return side_by_side(lambda file: _digest(blob, file), files, threads=THREADS)


def _digest(blob: Blob, file: BlobMetadata) -> str:
    digest, size_bytes = hashlib.sha256(), 0
    for chunk in _chunks(blob, file):
        digest.update(chunk)
        size_bytes += len(chunk)
    if size_bytes != file.size_bytes:
        raise CorruptArtifact(
            f"{file.key}: found {size_bytes} bytes, expected {file.size_bytes}; if it was just staged, stage again"
        )
    return digest.hexdigest()


def _chunks(blob: Blob, file: BlobMetadata) -> Iterator[bytes]:
    """The bytes of a file, to its listed size at most; nothing for a file that is gone."""
    if blob.uri.startswith("file:"):
        try:
            with Path(blob.uri_of(file.key).removeprefix("file://")).open("rb") as source:
                while chunk := source.read(_CHUNK_BYTES):
                    yield chunk
        except FileNotFoundError:
            return
    elif isinstance(blob, RangeReader):
        for start in range(0, file.size_bytes, _CHUNK_BYTES):
            chunk = blob.get_range(file.key, start, min(_CHUNK_BYTES, file.size_bytes - start)) or b""
            yield chunk
            if not chunk:
                return
    else:
        yield blob.get(file.key) or b""
