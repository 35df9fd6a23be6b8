"""The format of parts: their columns, how rows become bytes and back, and the digest of a batch's rows."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from persist_core.schema import (
    DIFF,
    ENDED,
    ERR_KEY,
    ERR_KIND,
    ERR_MESSAGE,
    ERR_PAYLOAD,
    ORDER,
    TIME,
    CollectionSchema,
    order_type,
)

ERR_IDENTITY = (ERR_KIND, ERR_KEY, ERR_PAYLOAD)  # what makes two errs equal: the message is for people

_DIGESTED_AT_ONCE = 10_000  # rows as Python objects: some 20 times what they take in Arrow
_DICTIONARY_BYTES = 64 << 10  # keys and measures hardly repeat: their dictionaries would cost time and save nothing
PACKED_BYTES = 8 << 20  # of a packed batch, as stored: what a limited read takes at a time
_SMALL_PART_BYTES = 1 << 20  # is decoded by its caller: handing it to other threads costs more than it saves

_ERR_FIELDS = (
    pa.field(ERR_KIND, pa.string()),
    pa.field(ERR_MESSAGE, pa.string()),
    pa.field(ERR_KEY, pa.binary()),
    pa.field(ERR_PAYLOAD, pa.binary()),
)


def updates_schema(schema: CollectionSchema, *, orders: bool = True) -> pa.Schema:
    """The columns of an oks table: the user's, then time and diff; and, if `orders` and the shard is in
    `sequence` order, the orders of the records that made the rows."""
    return pa.schema([*schema.arrow(), *_update_fields(schema, orders=orders)])


def errs_schema(schema: CollectionSchema, *, orders: bool = True) -> pa.Schema:
    """The columns of an errs table: key columns (nullable), the `_persist_err_*` columns, then those of an update."""
    keys = [field.with_nullable(True) for field in CollectionSchema(key=schema.key).arrow()]
    return pa.schema([*keys, *_ERR_FIELDS, *_update_fields(schema, orders=orders)])


def _update_fields(schema: CollectionSchema, *, orders: bool) -> list[pa.Field]:
    """Time, diff and, in `sequence` order, the order; null if it is not known."""
    known = [pa.field(ORDER, order_type(schema))] if orders and schema.order is not None else []
    return [pa.field(TIME, pa.int64()), pa.field(DIFF, pa.int64()), *known]


def history_schema(schema: CollectionSchema) -> pa.Schema:
    """The columns of a part of history: of a keyed shard, versions with both times; of a multiset, updates."""
    fields = [*updates_schema(schema), *([pa.field(ENDED, pa.int64())] if schema.key else [])]
    return pa.schema([field.with_nullable(True) for field in fields])


def part_schema(schema: CollectionSchema) -> pa.Schema:
    """The columns of every part: the superset of oks and errs, all nullable."""
    fields = [*schema.arrow(), *_ERR_FIELDS, *_update_fields(schema, orders=True)]
    return pa.schema([field.with_nullable(True) for field in fields])


class PartFormat(Protocol):
    """How a part's rows become bytes. Shards hold Parquet; simulations, which read nothing else, take a fast format."""

    def encode(self, table: pa.Table) -> bytes:
        """The bytes of a part."""
        ...

    def decode(self, data: bytes, columns: list[str]) -> pa.Table:
        """Those of `columns` that the part has. Raises `pa.ArrowInvalid` or `OSError` for bytes that are not a part."""
        ...

    def batches(self, data: bytes, columns: list[str], rows: int, *, is_packed: bool = False) -> Iterator[pa.Table]:
        """The same, at most `rows` rows at a time.

        `is_packed`: fewer if rows are large, about `PACKED_BYTES`; texts and bytes may be dictionaries, so that a text
        which is stored once and used often is in memory once.
        """
        ...


class ParquetParts:
    """Parquet, zstd: what every shard is made of.

    Sorted rows with their times take 0.97 of what plain Parquet (zstd) of the rows alone takes. Higher levels of zstd
    and smaller row groups made files larger, not smaller.
    """

    def encode(self, table: pa.Table) -> bytes:
        out = io.BytesIO()
        pq.write_table(
            table,
            out,
            compression="zstd",
            dictionary_pagesize_limit=_DICTIONARY_BYTES,
            write_page_checksum=True,  # Spark verifies pages
        )
        return out.getvalue()

    def decode(self, data: bytes, columns: list[str]) -> pa.Table:
        file = pq.ParquetFile(io.BytesIO(data))
        there = [name for name in columns if name in file.schema_arrow.names]
        return file.read(columns=there, use_threads=len(data) > _SMALL_PART_BYTES)

    def batches(self, data: bytes, columns: list[str], rows: int, *, is_packed: bool = False) -> Iterator[pa.Table]:
        file = pq.ParquetFile(io.BytesIO(data))
        there = [name for name in columns if name in file.schema_arrow.names]
        if is_packed:
            packed, row_bytes = _packing(file, there)
            rows = max(1, min(rows, int(PACKED_BYTES / max(row_bytes, 1))))
            file = pq.ParquetFile(io.BytesIO(data), metadata=file.metadata, read_dictionary=packed)
        for batch in file.iter_batches(rows, columns=there):
            yield pa.Table.from_batches([batch])


def _packing(file: pq.ParquetFile, columns: list[str]) -> tuple[list[str], float]:
    """Which texts and bytes among the columns have a dictionary, and the bytes of a row, encoded but not compressed."""
    packed, row_bytes = set(), 0.0
    for group in map(file.metadata.row_group, range(file.metadata.num_row_groups)):
        chunks = [chunk for chunk in map(group.column, range(group.num_columns)) if chunk.path_in_schema in columns]
        packed |= {c.path_in_schema for c in chunks if c.physical_type == "BYTE_ARRAY" and c.has_dictionary_page}
        row_bytes = max(row_bytes, sum(chunk.total_uncompressed_size for chunk in chunks) / max(group.num_rows, 1))
    return sorted(packed), row_bytes


PARQUET = ParquetParts()


def rows_digest(oks: pa.Table, errs: pa.Table) -> str:
    """Order-independent: the sum, modulo 2**256, of every update's SHA-256. Messages and orders do not enter."""
    total = 0
    for tag, found in (("ok", oks), ("err", errs.drop_columns([ERR_MESSAGE]))):
        table = found.drop_columns([ORDER]) if ORDER in found.column_names else found
        for batch in table.to_batches(max_chunksize=_DIGESTED_AT_ONCE):
            for row in batch.to_pylist():
                total += int.from_bytes(hashlib.sha256(repr((tag, sorted(row.items()))).encode()).digest())
    return f"sha256-sum:{total % 2**256:064x}"
