"""A bounded sample of files: the first records of the oldest and of the newest ones, as they lie there and as fields.

A text file gives whole lines from its start, a Parquet file rows. All of it fits in memory (`MAX_BYTES`). The copy of a
file has its relative path and its compression, so that the date in its path and its position stay what they are. Raw
rows are the fields before any type; what cannot be read as its format is left out, as the job reports it as an err.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from persist_core.config.collection import CollectionConfig, SourceConfig
from persist_core.errors import Determinate
from persist_core.exact import exact_rows
from persist_core.sample.csv_records import csv_rows, null_text, whole_records
from persist_core.sources.feed import Feed
from persist_core.sources.input_file import InputFile
from persist_core.sources.root import relative_to

MAX_FILES = 20
MAX_BYTES = 32 << 20  # of text, decompressed; of rows the last few may exceed it
_ROWS_AT_ONCE = 64  # of Parquet: they may be large
CODECS = {".gz": "gzip", ".gzip": "gzip", ".bz2": "bz2", ".zst": "zstd", ".zstd": "zstd"}
_DAMAGED = (OSError, EOFError, zlib.error, pa.ArrowException)


@dataclass(frozen=True)
class SampledFile:
    """The start of a file: its `lines` (with line ends; of CSV whole records, `header`: the first names fields), or the
    `table` of a Parquet file. `problem`: why it ends.
    """

    file: InputFile
    lines: tuple[bytes, ...] = ()
    table: pa.Table | None = None
    header: bool = False
    is_whole: bool = False
    problem: str | None = None

    @property
    def size_bytes(self) -> int:
        """The bytes taken, decompressed."""
        return sum(map(len, self.lines)) if self.table is None else int(self.table.nbytes)

    @property
    def is_full_load(self) -> bool:
        """True if its name is one that DMS gives to a file of a full load."""
        return _FULL_LOAD.match(self.file.path.rpartition("/")[2]) is not None

    @property
    def records(self) -> int:
        """The number of lines that are not blank, without the header, or rows."""
        lines = sum(bool(line.strip()) for line in self.lines)
        return max(lines - self.header, 0) if self.table is None else len(self.table)


def take(
    feed: Feed, files: Sequence[InputFile], limit: int, source: SourceConfig | None = None
) -> tuple[SampledFile, ...]:
    """Take at most `limit` records: of the first file, of the newest, of the second, and so on inwards.

    One file gives at most half of them, if there are others. Without a `source`, which says the format, Parquet files
    are known by their first bytes, and any other line is a record.
    """
    inwards = [each for pair in zip(files, reversed(files), strict=True) for each in pair][: len(files)]
    share, left, bytes_left = limit if len(files) < 2 else -(-limit // 2), limit, MAX_BYTES
    found = []
    for file in inwards[:MAX_FILES]:
        if left <= 0 or bytes_left <= 0:
            break
        taken = _start_of(feed, file, min(share, left), bytes_left, source)
        left, bytes_left = left - taken.records, bytes_left - taken.size_bytes
        found.append(taken)
    return tuple(sorted(found, key=lambda each: each.file.order))


def _start_of(feed: Feed, file: InputFile, limit: int, max_bytes: int, source: SourceConfig | None) -> SampledFile:
    tabular = source if source is not None and source.format in ("csv", "dms-csv") else None
    is_text = source is not None and not source.format.endswith("parquet")
    empty = SampledFile(file, header=tabular is not None and tabular.header)
    try:
        with feed.opened(file) as opened:
            if not is_text and opened.read(4) == b"PAR1":
                return _rows(file, pq.ParquetFile(opened, coerce_int96_timestamp_unit="us"), limit, max_bytes)
            opened.seek(0)
            codec = CODECS.get(Path(file.path).suffix.lower())
            text = pa.PythonFile(opened, "r") if codec is None else pa.CompressedInputStream(opened, codec)
            return _lines(empty, text, limit + empty.header, max_bytes, None if tabular is None else tabular.delimiter)
    except _DAMAGED as error:
        return replace(empty, problem=f"it cannot be read: {error}")


def _rows(file: InputFile, parquet: Any, limit: int, max_bytes: int) -> SampledFile:
    batches: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for batch in parquet.iter_batches(batch_size=min(limit, _ROWS_AT_ONCE)):
        batches.append(batch)
        rows, size_bytes = rows + len(batch), size_bytes + batch.nbytes
        if rows >= limit or size_bytes >= max_bytes:
            break
    schema, leaves = parquet.schema_arrow, map(parquet.schema.column, range(len(parquet.schema)))
    in_utc = pa.schema([each.with_type(_in_utc(each.type, leaves)) for each in schema], schema.metadata)
    table = pa.Table.from_batches(batches, schema).slice(0, limit).cast(in_utc)
    return SampledFile(file, table=table, is_whole=parquet.metadata.num_rows <= len(table))


def _in_utc(kind: pa.DataType, leaves: Iterator[pq.ColumnSchema]) -> pa.DataType:
    """A type with the times of INT96 as UTC, as Spark reads them: in the copy they would be local ones."""
    if not pa.types.is_nested(kind):
        return pa.timestamp("us", "UTC") if next(leaves).physical_type == "INT96" else kind
    fields = [kind.field(place) for place in range(kind.num_fields)]
    inner = [each.with_type(_in_utc(each.type, leaves)) for each in fields]
    if inner == fields:
        return kind
    if pa.types.is_struct(kind):
        return pa.struct(inner)
    return pa.map_(*inner[0].type) if pa.types.is_map(kind) else pa.list_(inner[0])


def _lines(empty: SampledFile, opened: Any, limit: int, max_bytes: int, delimiter: str | None) -> SampledFile:
    """The first records of a text; `delimiter`: of CSV, in which a record may have several lines."""
    text, problem, chunk = b"", None, b"\n"
    try:
        while chunk and text.count(b"\n") <= limit and len(text) < max_bytes:  # bounded: by `max_bytes`
            chunk = opened.read(1 << 20)
            text += chunk
    except _DAMAGED as error:
        problem, chunk = f"it is damaged or incomplete: {error}", b"\n"
    found = text.split(b"\n")
    last, is_cut = found.pop(), bool(chunk)
    if last and not is_cut:
        found.append(last)
    if delimiter is not None:
        found = list(whole_records(found, delimiter, max_bytes=max_bytes, is_cut=is_cut))
    is_whole = not is_cut and len(found) <= limit
    lines = [line + b"\n" for line in found[:limit]]
    if last and is_whole:
        lines[-1] = lines[-1].removesuffix(b"\n")
    return replace(empty, lines=tuple(lines), is_whole=is_whole, problem=problem)


def copied(config: CollectionConfig, found: Sequence[SampledFile], folder: Path) -> CollectionConfig:
    """Write the sample below `folder`: the collection with it as its source, without limits; no check ends its run.

    Raises `Determinate` if the disk cannot take a file, as one with the name of an object that no folder can have.
    """
    source, root = config.source, config.source_pattern().root
    for each in found:
        path = folder / relative_to(each.file.path, root)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if each.table is not None:
                pq.write_table(each.table, path)
            else:
                _write(path, each.lines)
        except OSError as error:
            raise Determinate(
                f"the sample of {each.file.path} cannot be copied to {folder}: {error.strerror or error}. Make room"
                " there, or give other files with --input"
            ) from error
    fixed = re.split(r"[*?\[{]", source.path)[0].rpartition("/")[0]
    below = source.path[len(fixed) :].lstrip("/")
    changed: dict[str, Any] = {
        "path": f"{folder}/{below}",
        "connection": None,
        "look_back": None,
        "requester_pays": False,
    }
    changed |= {"moved_from": (), "replaces": ()}
    limits = config.limits.model_copy(update={"max_errors": None, "max_files": MAX_FILES, "max_bytes": None})
    checks = {
        name: check.model_copy(update={"on_fail": "warn"}) if check.on_fail == "fail" else check
        for name, check in config.checks.items()
    }
    return config.model_copy(update={"source": source.model_copy(update=changed), "limits": limits, "checks": checks})


def _write(path: Path, lines: Sequence[bytes]) -> None:
    codec = CODECS.get(path.suffix.lower())
    with path.open("wb") as file:
        if codec is None:
            file.writelines(lines)
        else:
            with pa.CompressedOutputStream(file, codec) as stream:
                stream.write(b"".join(lines))


DMS_OP, DMS_OPS = "Op", ("I", "U", "D")
_FULL_LOAD = re.compile(r"LOAD[0-9A-F]{8}\.")  # as DMS numbers them; a name with fewer digits may be another's
DOCUMENT = (
    "after is a text, not an object: flatten MongoDB's documents with ExtractNewDocumentState, and set capture.mode:"
    " change_streams_update_full"
)
_NO_MESSAGE = ("op", "__op", "__deleted", "payload", "before", "after")  # fields of what a Debezium message holds


@dataclass(frozen=True)
class RawRow:
    """`row`: the fields of a row (for Debezium: after the change, else before it). `message`: what it came in.

    `key`: the names of the fields of the message's key, if it has one.
    """

    row: Mapping[str, Any]
    message: Mapping[str, Any]
    key: tuple[str, ...] = ()

    @property
    def has_schema(self) -> bool:
        """True if the message says its own types."""
        return isinstance(self.message.get("schema"), dict)

    @property
    def is_unwrapped(self) -> bool:
        """True for a row that Debezium's ExtractNewRecordState has taken out of its envelope."""
        return is_flat(payload_of(self.message))


def raw_rows(
    files: Sequence[SampledFile],
    format: str,
    *,
    delimiter: str = ",",
    names: Sequence[str] | None = None,
    null_value: str | None = None,
) -> list[RawRow]:
    """The records of all files. `names`: of the fields of files without a header line. `null_value`: the source's."""
    found: list[RawRow] = []
    for file in files:
        if file.table is not None:
            found += [RawRow(row, row) for row in exact_rows(file.table)]
        elif format.endswith("csv"):
            found += _csv(file.lines, delimiter, names, ("", null_text(format, null_value)))
        else:
            found += [_of_message(message, format) for message in messages(file.lines)]
    return found


def messages(lines: Sequence[bytes]) -> Iterator[dict[str, Any]]:
    """The lines that are JSON objects; numbers with a point or an exponent are decimals, if they can be."""
    for line in lines:
        try:
            found = json.loads(line, parse_float=Decimal)
        except (ValueError, ArithmeticError, RecursionError):  # a decimal has an exponent of 18 digits at most
            continue
        if isinstance(found, dict):
            yield found


def _of_message(message: Mapping[str, Any], format: str) -> RawRow:
    if format == "debezium-json":
        key, message = _key_of(message), without_key(message)
        payload = payload_of(message)
        if is_flat(payload):
            return RawRow(payload, message, key)
        return RawRow(_object(payload.get("after")) or _object(payload.get("before")), message, key)
    return RawRow(_object(message.get("data")) if format == "dms-json" else message, message)


def without_key(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """The value of a message that was landed with its key, as an object or as a text; any other message itself."""
    if any(name in message for name in _NO_MESSAGE):
        return message
    return _opened(message.get("value")) or message


def _key_of(message: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the fields of a message's key; none if it was landed without it, or with a plain value."""
    key = {} if any(name in message for name in _NO_MESSAGE) else _opened(message.get("key"))
    return tuple(_object(key.get("payload")) or key)


def _opened(value: Any) -> Mapping[str, Any]:
    """A part of a message, which is an object or the text of one; empty if it is neither."""
    return _object(next(messages([value.encode("utf-8", "replace")]), None) if isinstance(value, str) else value)


def payload_of(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A Debezium message without the schema around it. An unwrapped row may have a column `payload`."""
    return message if is_flat(message) else _object(message.get("payload")) or message


def is_flat(found: Mapping[str, Any]) -> bool:
    """True for an unwrapped row, as `persist_spark.decode.debezium` knows it."""
    return found.get("__op") is not None or found.get("__deleted") is not None


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _csv(
    lines: Sequence[bytes], delimiter: str, names: Sequence[str] | None, nulls: Sequence[str | None]
) -> list[RawRow]:
    whole = whole_records((line.removesuffix(b"\n") for line in lines), delimiter, max_bytes=MAX_BYTES)
    texts = [line.decode("utf-8-sig", "replace").removesuffix("\r") for line in whole if line.strip()]
    rows = list(csv_rows(texts, delimiter))
    header, rows = (rows[0], rows[1:]) if names is None and rows else (list(names or ()), rows)
    if names is not None and header[:1] == [DMS_OP] and rows and not has_op(rows[0], len(header) - 1):
        header = header[1:]
    found = (dict(zip(header, (None if value in nulls else value for value in row), strict=False)) for row in rows)
    return [RawRow(row, row) for row in found]


def has_op(first: Sequence[str], columns: int) -> bool:
    """True if the first line of a DMS file without a header line starts with the operation."""
    return len(first) > columns and first[0] in DMS_OPS


def value_at(row: Mapping[str, Any], path: Sequence[str]) -> Any:
    """The value at a path of names; `None` if it is not there."""
    found: Any = row
    for name in path:
        if not isinstance(found, Mapping):
            return None
        found = found.get(name)
    return found
