"""Input that is not read: files whose bytes are at fault, and records that are too long for any job.

Files that cannot be read are cut off, damaged or of another format, as our libraries find them. Spark is stopped by the
first such file that it meets. What the job reads itself, headers, footers and compressed text, is read of all files,
and all that are unreadable are named in one error.

Records that are too long are found before Spark opens a file, left out of what it reads, and kept as errs:

    file --scan, 1 MiB at a time--> its lines above `limits.max_record_bytes` --none: Spark reads the file itself
                                                             '-- some: Spark reads a copy without them

Spark's text source takes a line into memory whole, or drops it silently, and fails at 2 GiB; so the lines are
looked for here. What is read for that, in one thread a file and in bounded memory:

| file | read |
| --- | --- |
| plain, up to the limit; gzip that cannot expand to it (deflate: 1,032 times) | the first bytes |
| plain | a few kilobytes of each half of a limit: if each has a line end, no line is longer than the limit |
| gzip, bzip2, zstd | all, at the speed of the library (docs/reference/formats.md has measured it) |
| Parquet | the footer, in `persist_spark.decode.parquet` |
"""

from __future__ import annotations

import bz2
import gzip
import json
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from persist_core.config.collection import CollectionConfig
from persist_core.errors import SourceChanged, UnreadableFiles
from persist_core.handles.side_by_side import side_by_side
from persist_core.schema import ERR_KEY, ERR_KIND, ERR_MESSAGE, ERR_PAYLOAD, ERR_POSITION, MISSING_ORDER, TIME
from persist_core.sources.feed import Feed
from persist_core.sources.input_file import InputFile
from persist_spark.frame import BAD_KEY, OP, ORDER, UPSERT, known_records

_BAD_BYTES = (OSError, EOFError, zlib.error, pa.ArrowException)
_THREADS = 16  # of short reads, which wait for the store
_MAX_NAMED = 5  # in one message
_MAX_REASON_CHARS = 300
START_BYTES = 1_000  # of a record that is too long, kept as the payload of its err
_CHUNK_BYTES = 1 << 20  # not above the least `max_record_bytes`: so no line that is too long lies in one chunk
_PEEK_BYTES = 1 << 14
_DEFLATE_RATIO = 1_032  # the most that deflate can do
_UNPACKERS = 4  # the libraries decompress without Python's lock
_NO_TEXT = {  # what no text in UTF-8 starts with, or by no chance
    b"\x1f\x8b": "gzip", b"BZh91AY&SY": "bzip2", b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ\0": "xz", b"PK\3\4": "zip",
    b"PAR1\x15": "Parquet", b"Obj\1": "Avro", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16",
}  # fmt: skip
_GZIP, _BZIP2, _ZSTD, _OTHER = (".gz", ".gzip"), (".bz2",), (".zst", ".zstd"), (".lz4", ".snappy", ".deflate")
_Found = TypeVar("_Found")


def of_each(
    read: Callable[[InputFile], _Found], files: Sequence[InputFile], *, threads: int = _THREADS
) -> list[_Found]:
    """The result of `read` for each file, in their order.

    Raises `UnreadableFiles` naming all files whose bytes are at fault, and `SourceChanged` for one that the system does
    not give.
    """
    bad: dict[str, str] = {}

    def tried(file: InputFile) -> list[_Found]:
        try:
            return [read(file)]
        except _BAD_BYTES as error:
            if isinstance(error, OSError) and error.errno is not None:  # libraries that dislike the bytes set none
                raise SourceChanged(
                    f"input file {file.path} can no longer be read ({error.strerror}); nothing was committed: make it"
                    " readable, or remove it"
                ) from error
            bad[file.path] = as_reason(str(error))
            return []

    found = side_by_side(tried, files, threads=threads)
    if bad:
        raise unreadable_files({file.path: bad[file.path] for file in files if file.path in bad})
    return [each for result in found for each in result]


def unreadable_files(reasons: Mapping[str, str], more: str = "") -> UnreadableFiles:
    """The error that names files and what is wrong with each, in one line. `more`: why the run did not go on."""
    named = [f"{path}: {reason}" for path, reason in list(reasons.items())[:_MAX_NAMED]]
    if len(reasons) > _MAX_NAMED:
        named.append(f"and {len(reasons) - _MAX_NAMED} more")
    count, remedy = f"{len(reasons)} input files", "put complete files in their places, or remove them"
    if len(reasons) == 1:
        count, remedy = "an input file", "put a complete file in its place, or remove it"
    return UnreadableFiles(
        f"{count} cannot be read: {'; '.join(named)}. Nothing was committed: {remedy}{more}", dict(reasons)
    )


def as_reason(text: str) -> str:
    """A reason: the words of a library about bytes, in one line without a stop at its end."""
    line = " ".join(text.split())[:_MAX_REASON_CHARS].rstrip(".")
    return "".join(char if char.isprintable() else "?" for char in line) or "its bytes are not of its format"


@dataclass(frozen=True)
class TooLong:
    """A record, or a whole file, that is not read: where it starts, in decompressed bytes, its first bytes and line."""

    file: InputFile
    message: str
    offset: int = 0
    size_bytes: int = 0
    start: bytes = b""
    line: int = 0  # from 1 on


@contextmanager
def opened(feed: Feed, file: InputFile) -> Iterator[IO[bytes]]:
    """The bytes of a file, decompressed by its suffix."""
    suffix = Path(file.path).suffix.lower()
    with ExitStack() as stack:
        found = stack.enter_context(feed.opened(file))
        if suffix in _GZIP:
            found = stack.enter_context(cast(IO[bytes], gzip.GzipFile(fileobj=found)))
        elif suffix in _BZIP2 and file.size_bytes:  # without a byte it is an empty file, as with the other suffixes
            found = stack.enter_context(bz2.BZ2File(found))
        elif suffix in _ZSTD:
            found = stack.enter_context(cast(IO[bytes], pa.CompressedInputStream(found, "zstd")))
        yield found


def long_records(
    feed: Feed, files: Sequence[InputFile], limit: int, *, is_json: bool = False
) -> dict[InputFile, list[TooLong]]:
    """The lines above `limit` bytes, of the files that have some.

    Raises `UnreadableFiles` for damaged files, and for files that hold no text, or (`is_json`) an array.
    """
    of_each(lambda file: _check_start(feed, file, is_json), files)
    found = of_each(lambda file: _of_file(feed, file, limit), files, threads=_UNPACKERS)
    return {file: lines for file, lines in zip(files, found, strict=True) if lines}


def text_without(feed: Feed, file: InputFile, lines: Sequence[TooLong], *, keeps_first: bool) -> Iterator[bytes]:
    """A text file whose lines `lines` are empty, in pieces of at most 1 MiB. `keeps_first`: of its first line the start
    stays."""
    ranges = [(line.offset, line.offset + line.size_bytes) for line in lines]
    if keeps_first and ranges and ranges[0][0] == 0:  # a header
        ranges[0] = (START_BYTES, ranges[0][1])
    with opened(feed, file) as source:
        position = 0
        while chunk := source.read(_CHUNK_BYTES):
            kept = 0
            for start, end in ranges:
                if start < position + len(chunk) and end > position:
                    yield chunk[kept : max(start - position, 0)]
                    kept = min(end - position, len(chunk))
            yield chunk[kept:]
            position += len(chunk)
            ranges = [each for each in ranges if each[1] > position]


def long_records_frame(spark: SparkSession, config: CollectionConfig, lost: Sequence[TooLong], order: Any) -> DataFrame:
    """An err for each: a row of the records frame, in a slot of its own, which is its position.

    In `sequence` order its kind is `missing_order`: nothing of it has been read. `order` is the order struct's type.
    """
    schema = config.collection_schema()
    kind = "key" if schema.order is None else MISSING_ORDER
    rows = []
    for each in lost:
        place = dict(zip([column.name for column in schema.position], (each.file.order, each.offset, -1), strict=True))
        slot = f"{'too_long' if schema.order is None else kind} {json.dumps(place, separators=(',', ':'))}".encode()
        row = {
            OP: UPSERT,
            TIME: each.file.date_ms if config.time.source == "path" else None,
            ORDER: place,
            BAD_KEY: slot,
            ERR_KIND: kind,
            ERR_MESSAGE: each.message,
            ERR_KEY: slot,
            ERR_PAYLOAD: each.start,
            ERR_POSITION: f"{each.file.relative}, line {each.line}" if each.line else each.file.relative,
        }
        rows.append(row)
    return known_records(spark, schema, order, rows)


def _check_start(feed: Feed, file: InputFile, is_json: bool) -> None:
    """Raise `EOFError` if a file starts as no text does, or a JSON array: each of its lines would be an err, but maybe
    the last one."""
    if Path(file.path).suffix.lower() in _OTHER:
        return
    with opened(feed, file) as source:
        start = getattr(source, "raw", source).read(max(map(len, _NO_TEXT)))  # without a buffer's megabytes from S3
    if is_json and start.removeprefix(BOM_UTF8).lstrip().startswith(b"["):
        raise EOFError("it holds a JSON array; expected one object a line (JSON lines)")
    unmarked = {start[:1] + b"\0": "UTF-16", b"\0" + start[1:2]: "UTF-16"}
    for magic, name in (_NO_TEXT | unmarked).items():
        if start.startswith(magic) and start.strip(b"\0"):
            raise EOFError(f"it holds {name} where text is expected; give it the suffix of one compression, and UTF-8")


def _of_file(feed: Feed, file: InputFile, limit: int) -> list[TooLong]:
    suffix = Path(file.path).suffix.lower()
    if suffix in _OTHER:
        remedy = "compress it with gzip, bzip2 or zstd"
        return [TooLong(file, f"file {file.relative!r}: {suffix} is not read, as its size cannot be bounded; {remedy}")]
    ratio = _DEFLATE_RATIO if suffix in _GZIP else 1
    if suffix not in (*_BZIP2, *_ZSTD) and file.size_bytes * ratio <= limit:
        return []
    if ratio == 1 and suffix not in (*_BZIP2, *_ZSTD) and not _may_hold(feed, file, limit):
        return []
    with opened(feed, file) as source:
        return list(_scan(file, source, limit))


def _may_hold(feed: Feed, file: InputFile, limit: int) -> bool:
    """False if each half of a limit has a line end: then no line is longer than the limit."""
    half = limit // 2
    with feed.opened(file) as source:
        for first in range(0, file.size_bytes, half):
            source.seek(first)
            left = half
            while left > 0:
                piece = source.read(min(_PEEK_BYTES, left))
                if b"\n" in piece or not piece:
                    break
                left -= len(piece)
            if left <= 0:
                return True
    return False


def _scan(file: InputFile, source: IO[bytes], limit: int) -> Iterator[TooLong]:
    """The lines above `limit`, with the bytes of a chunk in memory."""
    position = offset = 0  # of the chunk, and of the line that it starts in
    number, start = 1, b""
    while chunk := source.read(_CHUNK_BYTES):
        end = chunk.find(b"\n")
        if len(start) < START_BYTES:
            start += chunk[: min(START_BYTES - len(start), end if end >= 0 else len(chunk))]
        if end >= 0:
            if position + end - offset > limit:
                yield _too_long(file, number, offset, position + end - offset, start, limit)
            number += chunk.count(b"\n")
            last = chunk.rfind(b"\n") + 1
            offset, start = position + last, chunk[last : last + START_BYTES]
        position += len(chunk)
    if position - offset > limit:
        yield _too_long(file, number, offset, position - offset, start, limit)


def _too_long(file: InputFile, number: int, offset: int, size_bytes: int, start: bytes, limit: int) -> TooLong:
    message = (
        f"line {number} of file {file.relative!r}, at byte {offset} of its text, has {size_bytes} bytes; expected at"
        f" most {limit} (limits.max_record_bytes). Its first bytes are kept"
    )
    return TooLong(file, message, offset, size_bytes, start, number)
