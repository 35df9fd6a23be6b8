"""Facts about files that Spark has written: by its footer how many rows one holds, between which keys and until when;
its SHA-256, without holding the file in memory; and the first errs.

In a file system files are read from the page cache, where they were just written. S3 has no such digest: the magic
committer uploads in several parts, and of such an object S3 knows a digest of the parts' digests only. So there each
byte is read back once, `THREADS` files at a time (figures: docs/benchmarks.md), by executors if there are many
(`persist_spark.digests`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from persist_core.contents.err_groups import MAX_READ
from persist_core.contents.key_range import EVERYTHING, KeyRange, range_of_statistics, spanning
from persist_core.contents.parts import BATCH_BYTES, check_field_ids, index_of, packing
from persist_core.errors import CorruptArtifact
from persist_core.handles.side_by_side import side_by_side
from persist_core.location.blob import Blob, BlobMetadata, RangeFile, RangeReader
from persist_core.schema import (
    DIFF,
    ENDED,
    ERR_KEY,
    ERR_KIND,
    ERR_MESSAGE,
    ERR_PAYLOAD,
    ERR_POSITION,
    INHERITED,
    TIME,
    CollectionSchema,
    Column,
)

THREADS = 16  # a batch may have thousands of files, and each costs one round trip to the store
_CHUNK_BYTES = 8 << 20
# The first read of a Parquet reader: nearly every footer is shorter, and of a file of some MB it is below 1 %.
_MIN_FOOTER_BYTES, _MAX_FOOTER_BYTES = 8 << 10, 64 << 10
_MAX_ERR_FILES = 16  # of one attempt, the largest: each costs a round trip or two
_ERRS_AT_ONCE = 1_000
_ERR_COLUMNS = (ERR_KIND, ERR_MESSAGE, ERR_POSITION, ERR_KEY, ERR_PAYLOAD, TIME, DIFF)


@dataclass(frozen=True)
class Footer:
    """A footer's facts: the number of rows; the range of their keys; the latest time,
    of a version the time of its end; the earliest time; whether a row may have inherited values; the bytes behind its
    pages, and their digest."""

    rows: int
    keys: KeyRange = EVERYTHING
    last_time: int | None = None
    first_time: int | None = None
    inherits: bool = True
    index: tuple[int, str] | None = None


def footers_of(blob: Blob, files: Sequence[BlobMetadata], schema: CollectionSchema) -> list[Footer]:
    """The footer of each file, in their order.

    Raises `CorruptArtifact` for a file that is missing, is not Parquet, or has other field ids than `schema`.
    """
    threads = 1 if blob.uri.startswith("file:") else THREADS
    return side_by_side(lambda file: _footer(blob, file, schema), files, threads=threads)


def read_rows(blob: Blob, file: BlobMetadata, columns: Sequence[str], rows: int) -> Iterator[pa.Table]:
    """These columns of a file that was just staged, at most `rows` rows at a time, fewer if rows are large, about
    `BATCH_BYTES`. Fetches no other columns."""
    with pq.ParquetFile(_opened(blob, file)) as opened:
        _, row_bytes = packing(opened, list(columns))
        most = min(rows, max(1, int(BATCH_BYTES / max(row_bytes, 1))))
        for batch in opened.iter_batches(most, columns=list(columns)):
            yield pa.Table.from_batches([batch])


def local_path(blob: Blob, key: str) -> Path | None:
    """The path of a file in a blob store that is a folder."""
    return Path(blob.uri_of(key).removeprefix("file://")) if blob.uri.startswith("file:") else None


def _range(blob: Blob, file: BlobMetadata, start: int, size_bytes: int) -> bytes:
    """Some bytes of a file on S3, the only other store that Spark reaches; fewer if it is shorter, or gone."""
    assert isinstance(blob, RangeReader)
    return blob.get_range(file.key, start, size_bytes) or b""


def _footer(blob: Blob, file: BlobMetadata, schema: CollectionSchema) -> Footer:
    try:
        opened = _opened(blob, file)
        metadata = pq.read_metadata(opened)
        check_field_ids(metadata.schema.to_arrow_schema(), schema)
        times = (_last_time(metadata), _first_time(metadata))
        with opened.open("rb") if isinstance(opened, Path) else nullcontext(opened) as whole:
            index = index_of(metadata, whole)
        return Footer(metadata.num_rows, _keys(metadata, schema.key), *times, _inherits(metadata), index)
    except (OSError, ValueError) as error:
        raise CorruptArtifact(f"staged file {file.key} cannot be read as Parquet: {error}; stage again") from error


def end_digests_of(blob: Blob, ends: Sequence[tuple[BlobMetadata, int]]) -> list[str]:
    """The SHA-256 (hex) of the end of each file: so many bytes, or fewer if the file is shorter than was listed."""
    return side_by_side(lambda end: hashlib.sha256(_end(blob, *end)).hexdigest(), ends, threads=THREADS)


def _end(blob: Blob, file: BlobMetadata, size_bytes: int) -> bytes:
    start, path = file.size_bytes - size_bytes, local_path(blob, file.key)
    if path is None:
        return _range(blob, file, start, size_bytes)
    with path.open("rb") as source:
        source.seek(start)
        return source.read()


def _statistics(metadata: pq.FileMetaData, path: str) -> list[Any] | None:
    """The statistics of a column, by row groups; `None` if the file does not have it."""
    place = next((i for i in range(metadata.num_columns) if metadata.schema.column(i).path == path), None)
    groups = range(metadata.num_row_groups)
    return None if place is None else [metadata.row_group(number).column(place).statistics for number in groups]


def _keys(metadata: pq.FileMetaData, key: Sequence[Column]) -> KeyRange:
    """The range of the keys, by the statistics of the row groups."""
    columns = [found for column in key if (found := _statistics(metadata, column.name)) is not None]
    if not key or len(columns) < len(key):
        return EVERYTHING
    groups = list(zip(*columns, strict=True))
    if any(each is None or not each.has_min_max for group in groups for each in group):
        return EVERYTHING
    ranges = [range_of_statistics([e.min_raw for e in group], [e.max_raw for e in group], key) for group in groups]
    return spanning(ranges)


def _last_time(metadata: pq.FileMetaData) -> int | None:
    columns = [found for name in (ENDED, TIME) if (found := _statistics(metadata, name)) is not None]
    latest = []
    for number, statistics in enumerate(map(list, zip(*columns, strict=True))):
        rows = metadata.row_group(number).num_rows
        while statistics and statistics[0] is not None and statistics[0].null_count == rows:
            statistics.pop(0)  # no version in it has ended
        if not statistics or statistics[0] is None or not statistics[0].has_min_max:
            return None
        latest.append(int(statistics[0].max_raw))
    return max(latest, default=None)


def _first_time(metadata: pq.FileMetaData) -> int | None:
    found = _statistics(metadata, TIME)
    if found is None or any(each is None or not each.has_min_max or each.null_count for each in found):
        return None
    return min((int(each.min_raw) for each in found), default=None)


def _inherits(metadata: pq.FileMetaData) -> bool:
    leaves = [i for i in range(metadata.num_columns) if metadata.schema.column(i).path.startswith(f"{INHERITED}.")]
    found = [metadata.row_group(number).column(place) for number in range(metadata.num_row_groups) for place in leaves]
    return any(each.statistics is None or each.statistics.null_count != each.num_values for each in found)


def _opened(blob: Blob, file: BlobMetadata) -> Path | RangeFile:
    """A file for a Parquet reader. On S3 its end is fetched first, and the rest only if it is read."""
    path = local_path(blob, file.key)
    if path is not None:
        return path

    def fetch(start: int, size_bytes: int) -> bytes:
        data = _range(blob, file, start, size_bytes)
        if len(data) != size_bytes:
            raise OSError(f"{len(data)} of {size_bytes} bytes at {start} are stored")
        return data

    tail_start = max(0, file.size_bytes - min(max(file.size_bytes >> 7, _MIN_FOOTER_BYTES), _MAX_FOOTER_BYTES))
    tail = fetch(tail_start, file.size_bytes - tail_start) if file.size_bytes else b""

    def read(start: int, size_bytes: int) -> bytes:
        start_in_tail = start - tail_start
        return tail[start_in_tail : start_in_tail + size_bytes] if start_in_tail >= 0 else fetch(start, size_bytes)

    return RangeFile(file.size_bytes, read)


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
    check_size(file, size_bytes)
    return digest.hexdigest()


def check_size(file: BlobMetadata, size_bytes: int) -> None:
    """Raise `CorruptArtifact` unless a file, 0 bytes if it is gone, has the size that was listed."""
    if size_bytes != file.size_bytes:
        raise CorruptArtifact(
            f"{file.key}: found {size_bytes} bytes, expected {file.size_bytes}; if it was just staged, stage again"
        )


def _chunks(blob: Blob, file: BlobMetadata) -> Iterator[bytes]:
    """The bytes of a file, to its listed size at most; nothing for a file that is gone."""
    path = local_path(blob, file.key)
    if path is not None:
        with suppress(FileNotFoundError), path.open("rb") as source:
            while chunk := source.read(_CHUNK_BYTES):
                yield chunk
        return
    for start in range(0, file.size_bytes, _CHUNK_BYTES):
        chunk = _range(blob, file, start, min(_CHUNK_BYTES, file.size_bytes - start))
        yield chunk
        if not chunk:
            return


def inserted_errs(blob: Blob, files: Sequence[BlobMetadata]) -> Iterator[Mapping[str, Any]]:
    """At most `MAX_READ` errs that the files insert, as rows by the names of their columns."""
    left = MAX_READ
    for file in sorted(files, key=lambda file: -file.size_bytes)[:_MAX_ERR_FILES]:
        for table in read_rows(blob, file, _ERR_COLUMNS, _ERRS_AT_ONCE):
            found = table.filter(pc.greater(table[DIFF], 0)).slice(0, left)
            left -= len(found)
            yield from found.to_pylist()
            if left == 0:
                return
