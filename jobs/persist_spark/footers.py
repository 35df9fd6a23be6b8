"""How many rows a Parquet file holds, by its footer: a few kilobytes at its end."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow.parquet as pq

from persist_core.errors import CorruptArtifact
from persist_core.location.blob import Blob, BlobMetadata, RangeReader

THREADS = 16  # a batch may have thousands of files, and each costs one round trip to the store
_FOOTER_BYTES = 64 << 10  # the first read of a Parquet reader; nearly every footer is shorter


def rows_of(blob: Blob, files: Sequence[BlobMetadata]) -> list[int | None]:
    """The rows of each file, in their order; all `None` if the store can only read whole values.

    Raises `CorruptArtifact` for a file that is missing or is not Parquet.
    """
    if blob.uri.startswith("file:"):
        return [_rows(file, lambda file: blob.uri_of(file.key).removeprefix("file://")) for file in files]
    if not isinstance(blob, RangeReader):
        return [None] * len(files)
    ends: RangeReader = blob
    with ThreadPoolExecutor(THREADS) as threads:
        return list(threads.map(lambda file: _rows(file, lambda file: _Tail(ends, file)), files))


def _rows(file: BlobMetadata, source: Callable[[BlobMetadata], str | io.RawIOBase]) -> int:
    try:
        rows: int = pq.read_metadata(source(file)).num_rows
    except (OSError, ValueError) as error:
        raise CorruptArtifact(f"staged file {file.key} cannot be read as Parquet: {error}; stage again") from error
    return rows


class _Tail(io.RawIOBase):
    """A file for a Parquet reader. Its end is fetched first, and the rest only if it is read."""

    def __init__(self, blob: RangeReader, file: BlobMetadata) -> None:
        super().__init__()
        self._blob, self._file = blob, file
        self._position = 0
        self._start = max(0, file.size_bytes - _FOOTER_BYTES)
        self._data = self._fetch(self._start, file.size_bytes - self._start)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = (
            offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file.size_bytes}[whence]
        )
        return self._position

    def read(self, size: int = -1) -> bytes:
        end = self._file.size_bytes if size < 0 else min(self._position + size, self._file.size_bytes)
        start, self._position = self._position, max(end, self._position)
        if start >= self._start:
            return self._data[start - self._start : end - self._start]
        return self._fetch(start, end - start)

    def _fetch(self, start: int, size_bytes: int) -> bytes:
        data = self._blob.get_range(self._file.key, start, size_bytes) if size_bytes > 0 else b""
        if data is None or len(data) != max(size_bytes, 0):
            raise OSError(f"{0 if data is None else len(data)} of {size_bytes} bytes at {start} are stored")
        return data
