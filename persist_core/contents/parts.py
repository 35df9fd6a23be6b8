"""The format of parts: their columns, how rows become bytes and back, and the digest of a batch's rows."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from persist_core.errors import InvalidInput
from persist_core.schema import (
    ACTED,
    BAD_KEY,
    BEATEN_BY,
    DIFF,
    ENDED,
    ERR_KEY,
    ERR_KIND,
    ERR_MESSAGE,
    ERR_PAYLOAD,
    ERR_POSITION,
    INHERITED,
    OP,
    ORDER,
    SYSTEM_IDS,
    TIME,
    CollectionSchema,
    field_id,
    inherited_type,
    order_type,
    system_field,
)

ERR_IDENTITY = (ERR_KIND, ERR_KEY, ERR_PAYLOAD)  # what makes two errs equal: all else is for people

_DIGESTED_AT_ONCE = 10_000  # rows as Python objects: some 20 times what they take in Arrow
_DICTIONARY_BYTES = 64 << 10  # keys and measures hardly repeat: their dictionaries would cost time and save nothing
_ROWS_OF_TEXTS = 4_096
BATCH_BYTES = 8 << 20  # of a batch, as stored: what a limited read, or a merge, takes at a time
_SMALL_PART_BYTES = 1 << 20  # is decoded by its caller: handing it to other threads costs more than it saves

_ERR_FIELDS = tuple(map(system_field, (ERR_KIND, ERR_MESSAGE, ERR_KEY, ERR_PAYLOAD, ERR_POSITION)))


def updates_schema(schema: CollectionSchema, *, orders: bool = True) -> pa.Schema:
    """The columns of an oks table: the user's, then time and diff; and, if `orders` and the shard is in
    `sequence` order, the orders of the records that made the rows."""
    return pa.schema([*schema.arrow(), *_update_fields(schema, orders=orders)])


def errs_schema(schema: CollectionSchema, *, orders: bool = True) -> pa.Schema:
    """The columns of an errs table: key columns (nullable), the `_persist_err_*` columns, then an update's."""
    return pa.schema([*_slot_keys(schema), *_ERR_FIELDS, *_update_fields(schema, orders=orders)])


def late_schema(schema: CollectionSchema) -> pa.Schema:
    """The columns of late records, operator state of a shard in `sequence` order."""
    orders = [system_field(name, order_type(schema)) for name in (ORDER, BEATEN_BY)]
    orders += [system_field(INHERITED, inherited_type(schema))] if schema.inherits else []
    return pa.schema([*_slot_keys(schema), *map(system_field, (BAD_KEY, OP, TIME)), *orders, system_field(ACTED)])


def _slot_keys(schema: CollectionSchema) -> list[pa.Field]:
    return list(nullable(CollectionSchema(key=schema.key).arrow()))


def _update_fields(schema: CollectionSchema, *, orders: bool) -> list[pa.Field]:
    """Time, diff and, in `sequence` order, the order; null if it is not known. If columns inherit, `INHERITED`."""
    known = [system_field(ORDER, order_type(schema))] if orders and schema.order is not None else []
    inherited = [system_field(INHERITED, inherited_type(schema))] if orders and schema.inherits else []
    return [system_field(TIME), system_field(DIFF), *known, *inherited]


def history_schema(schema: CollectionSchema) -> pa.Schema:
    """The columns of a part of history: of a keyed shard, versions with both times; of a multiset, updates."""
    return nullable([*updates_schema(schema), *([system_field(ENDED)] if schema.key else [])])


def part_schema(schema: CollectionSchema) -> pa.Schema:
    """The columns of every part: the superset of oks and errs, all nullable."""
    return nullable([*schema.arrow(), *_ERR_FIELDS, *_update_fields(schema, orders=True)])


def nullable(fields: Iterable[pa.Field]) -> pa.Schema:
    """These columns, which may be null."""
    return pa.schema([field.with_nullable(True) for field in fields])


def index_of(metadata: pq.FileMetaData, file: BinaryIO | io.RawIOBase) -> tuple[int, str]:
    """The size of what follows the last page of a file, page indexes and footer, and its SHA-256 (hex)."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    columns = [group.column(place) for group in groups for place in range(metadata.num_columns)]
    starts = [column.dictionary_page_offset or column.data_page_offset for column in columns]
    ends = (at + column.total_compressed_size for at, column in zip(starts, columns, strict=True))
    file.seek(max(ends, default=0))
    found = file.read()
    return len(found), hashlib.sha256(found).hexdigest()


class PartFormat:
    """How rows become bytes of a part: Parquet, zstd. Simulations, which read nothing else, have a fast format instead.

    Sorted rows with their times take 0.97 of what plain Parquet (zstd) of the rows alone takes. Higher levels of zstd
    and smaller row groups made files larger, not smaller.
    """

    def encode(self, table: pa.Table) -> bytes:
        """The bytes of a part."""
        out = io.BytesIO()
        pq.write_table(
            table,
            out,
            compression="zstd",
            dictionary_pagesize_limit=_DICTIONARY_BYTES,
            write_page_checksum=True,  # Spark verifies pages
            write_page_index=True,  # by which Spark passes over pages
        )
        return out.getvalue()

    def index(self, data: bytes) -> tuple[int, str] | None:
        """The size of the page indexes and footer that end a part, and their SHA-256 (hex); `None` if it has none."""
        return index_of(pq.read_metadata(io.BytesIO(data)), io.BytesIO(data))

    def decode(self, data: bytes, columns: list[str], written: CollectionSchema) -> pa.Table:
        """The columns of `columns`, by their names in `written`, that the part has.

        Raises `pa.ArrowInvalid` or `OSError` for bytes that are not a part, and as `check_field_ids`.
        """
        file, there = _opened(data, columns, written)
        return file.read(columns=there, use_threads=len(data) > _SMALL_PART_BYTES)

    def batches(
        self, data: bytes, columns: list[str], written: CollectionSchema, rows: int, *, is_packed: bool = False
    ) -> Iterator[pa.Table]:
        """Like `decode`, in tables of at most `rows` rows; fewer if rows are large, about `BATCH_BYTES`.

        `is_packed`: texts and bytes may be dictionaries, so that a text which is stored once and used often is in
        memory once.
        """
        file, there = _opened(data, columns, written)
        packed, row_bytes = packing(file, there)
        if packed and not is_packed:  # a text in a dictionary is stored once, and decoded for each row
            rows = min(rows, _ROWS_OF_TEXTS)
        rows = max(1, min(rows, int(BATCH_BYTES / max(row_bytes, 1))))
        if is_packed:
            file = pq.ParquetFile(io.BytesIO(data), metadata=file.metadata, read_dictionary=packed)
        for batch in file.iter_batches(rows, columns=there):
            yield pa.Table.from_batches([batch])


def _opened(data: bytes, columns: list[str], written: CollectionSchema) -> tuple[pq.ParquetFile, list[str]]:
    file = pq.ParquetFile(io.BytesIO(data))
    found = file.schema_arrow  # pyarrow makes it at each access
    check_field_ids(found, written)
    there = set(found.names)
    return file, [name for name in columns if name in there]


def check_field_ids(found: pa.Schema, written: CollectionSchema) -> None:
    """Raise `pa.ArrowInvalid` naming a column of a file whose field id is not the one that it has in `written`."""
    expected = written.field_ids
    for column in found:
        if (number := field_id(column)) is None or number != expected.get(column.name):
            raise pa.ArrowInvalid(
                f"column {column.name!r} has field id {number}, expected {expected.get(column.name)} of schema version"
                f" {written.version}"
            )


def read_as(
    part_format: PartFormat,
    data: bytes,
    columns: pa.Schema,
    written: CollectionSchema,
    *,
    rows: int | None = None,
    is_packed: bool = False,
) -> Iterator[pa.Table]:
    """A file of schema version `written` with exactly `columns`: found by their ids, renamed, and cast.

    A column that the version does not have is null. `rows`, `is_packed`: as `PartFormat.batches` says; without `rows`
    one table.
    """
    names = {column.id: column.name for column in written.columns}
    there = {each.name: each.name if each.name in SYSTEM_IDS else names.get(_id_of(each)) for each in columns}
    wanted = [name for name in there.values() if name is not None]
    if rows is None:
        tables = iter([part_format.decode(data, wanted, written)])
    else:
        tables = part_format.batches(data, wanted, written, rows, is_packed=is_packed)
    for table in tables:
        cells = [_cell(table, there[each.name], each.type) for each in columns]
        yield pa.table(cells, pa.schema([f.with_type(cell.type) for f, cell in zip(columns, cells, strict=True)]))


def _id_of(column: pa.Field) -> int:
    found = field_id(column)
    if found is None:
        raise InvalidInput(f"column {column.name!r} has no id; read a shard with the schema of its state")
    return found


def _cell(table: pa.Table, name: str | None, wanted: pa.DataType) -> pa.ChunkedArray | pa.Array:
    """A column of a file as that type. Files leave out system columns that they do not need, never a user's."""
    if name is None or (name in SYSTEM_IDS and name not in table.column_names):
        return pa.nulls(len(table), wanted)
    found = table[name]
    is_packed = pa.types.is_dictionary(found.type) and found.type.value_type == wanted
    return found if is_packed else found.cast(wanted)


def packing(file: pq.ParquetFile, columns: list[str]) -> tuple[list[str], float]:
    """Which texts and bytes among the columns have a dictionary, and the bytes of a row, encoded but not compressed."""
    packed, row_bytes = set(), 0.0
    for group in map(file.metadata.row_group, range(file.metadata.num_row_groups)):
        chunks = [chunk for chunk in map(group.column, range(group.num_columns)) if chunk.path_in_schema in columns]
        packed |= {c.path_in_schema for c in chunks if c.physical_type == "BYTE_ARRAY" and c.has_dictionary_page}
        row_bytes = max(row_bytes, sum(chunk.total_uncompressed_size for chunk in chunks) / max(group.num_rows, 1))
    return sorted(packed), row_bytes


PARQUET = PartFormat()


def _with_numbers(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Dates and timestamps as days and microseconds: Python has no years before 1 or after 9999."""
    cells = [
        cell.cast(pa.int32())
        if pa.types.is_date(cell.type)
        else cell.cast(pa.int64())
        if pa.types.is_timestamp(cell.type)
        else cell
        for cell in batch.columns
    ]
    return pa.RecordBatch.from_arrays(cells, names=batch.schema.names)


def rows_digest(oks: pa.Table, errs: pa.Table) -> str:
    """Order-independent: the sum, modulo 2**256, of every update's SHA-256.

    Messages, positions, orders and `INHERITED` do not enter.
    """
    total = 0
    for tag, found in (("ok", oks), ("err", errs.drop_columns([ERR_MESSAGE, ERR_POSITION]))):
        table = found.drop_columns([name for name in (ORDER, INHERITED) if name in found.column_names])
        for batch in table.to_batches(max_chunksize=_DIGESTED_AT_ONCE):
            for row in _with_numbers(batch).to_pylist():
                total += int.from_bytes(hashlib.sha256(repr((tag, sorted(row.items()))).encode()).digest())
    return f"sha256-sum:{total % 2**256:064x}"
