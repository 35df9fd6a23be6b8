"""`WriteHandle`: stage a batch from Arrow tables, append a staged batch by compare-and-set.

Spark stages its batches itself (persist_spark.stage); this is the same in plain Python, for small writers, seals,
tools and tests. Staging changes nothing that a reader sees.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from persist_core.clock import Clock
from persist_core.errors import BadBounds, SchemaMismatch
from persist_core.location.blob import Blob
from persist_core.schema import DIFF, ERR_KEY, ERR_KIND, ERR_MESSAGE, ERR_PAYLOAD, PART, TIME, CollectionSchema
from persist_core.shard import state as transitions
from persist_core.shard.batch import (
    BatchCounts,
    BatchDescription,
    BatchManifest,
    Part,
    PartKind,
    Restored,
    StateArtifact,
    attempt_prefix,
    contents_digest,
    manifest_key,
)
from persist_core.shard.machine import Machine
from persist_core.shard.state import Committed, UpperMismatch

_DIGESTED_AT_ONCE = 10_000  # rows as Python objects: some 20 times what they take in Arrow
_SMALL_PART_BYTES = 1 << 20  # is decoded by its caller: handing it to other threads costs more than it saves

_ERR_FIELDS = (
    pa.field(ERR_KIND, pa.string()),
    pa.field(ERR_MESSAGE, pa.string()),
    pa.field(ERR_KEY, pa.binary()),
    pa.field(ERR_PAYLOAD, pa.binary()),
)


def updates_schema(schema: CollectionSchema) -> pa.Schema:
    """The columns of an oks table: the user's, then time and diff."""
    return pa.schema([*schema.arrow(), pa.field(TIME, pa.int64()), pa.field(DIFF, pa.int64())])


def errs_schema(schema: CollectionSchema) -> pa.Schema:
    """The columns of an errs table: key columns (nullable), the `_persist_err_*` columns, time and diff."""
    keys = [field.with_nullable(True) for field in CollectionSchema(key=schema.key).arrow()]
    return pa.schema([*keys, *_ERR_FIELDS, pa.field(TIME, pa.int64()), pa.field(DIFF, pa.int64())])


def part_schema(schema: CollectionSchema) -> pa.Schema:
    """The columns of every part: the superset of oks and errs, all nullable."""
    fields = [*schema.arrow(), pa.field(TIME, pa.int64()), pa.field(DIFF, pa.int64()), *_ERR_FIELDS]
    return pa.schema([field.with_nullable(True) for field in fields])


class PartFormat(Protocol):
    """How a part's rows become bytes. Shards hold Parquet; simulations, which read nothing else, take what is fast."""

    def encode(self, table: pa.Table) -> bytes:
        """The bytes of a part."""
        ...

    def decode(self, data: bytes, columns: list[str]) -> pa.Table:
        """Those of `columns` that the part has. Raises `pa.ArrowInvalid` or `OSError` for bytes that are no part."""
        ...


class ParquetParts:
    """Parquet, zstd: what every shard is made of."""

    def encode(self, table: pa.Table) -> bytes:
        out = io.BytesIO()
        pq.write_table(table, out, compression="zstd")
        return out.getvalue()

    def decode(self, data: bytes, columns: list[str]) -> pa.Table:
        file = pq.ParquetFile(io.BytesIO(data))
        there = [name for name in columns if name in file.schema_arrow.names]
        return file.read(columns=there, use_threads=len(data) > _SMALL_PART_BYTES)


PARQUET = ParquetParts()


class WriteHandle:
    """Writes one shard. Any number of handles, threads and machines may do so at once."""

    def __init__(
        self, machine: Machine, blob: Blob, clock: Clock, shard: str, *, part_format: PartFormat = PARQUET
    ) -> None:
        self._machine = machine
        self._blob = blob
        self._clock = clock
        self._part_format = part_format
        self.shard = shard

    def stage(
        self,
        description: BatchDescription,
        schema: CollectionSchema,
        attempt: str,
        oks: pa.Table | None = None,
        errs: pa.Table | None = None,
        *,
        operator_state: tuple[StateArtifact, ...] = (),
        stats: Mapping[str, int] | None = None,
        restored: Restored | None = None,
    ) -> str:
        """Stage consolidated updates for `description` and return the manifest's key.

        `oks` has the columns of `updates_schema`, `errs` those of `errs_schema`; both consolidated, times within the
        bounds (`BadBounds`), diffs not zero. `attempt` is a fresh UUIDv7. `operator_state`: artifacts that are staged
        already; `stats`: `DrainStats.to_json()`; `restored`: what this batch goes back to, where it is a restore.
        """
        oks = _checked(oks, updates_schema(schema), description)
        errs = _checked(errs, errs_schema(schema), description)
        forward = pc.greater(oks[DIFF], 0)
        pieces = {
            PartKind.INSERTIONS: oks.filter(forward),
            PartKind.RETRACTIONS: oks.filter(pc.invert(forward)),
            PartKind.ERRS: errs,
        }
        parts = tuple(
            self._stage_part(kind, piece, part_schema(schema), attempt) for kind, piece in pieces.items() if len(piece)
        )
        inserted = len(errs.filter(pc.greater(errs[DIFF], 0)))
        counts = BatchCounts(
            insertions=len(pieces[PartKind.INSERTIONS]),
            retractions=len(pieces[PartKind.RETRACTIONS]),
            err_insertions=inserted,
            err_retractions=len(errs) - inserted,
        )
        manifest = manifest_for(description, schema, parts, counts, rows=_rows_digest(oks, errs))
        manifest = replace(manifest, operator_state=operator_state, stats=stats or {}, restored=restored)
        return stage_manifest(self._blob, manifest, attempt)

    def _stage_part(self, kind: PartKind, table: pa.Table, schema: pa.Schema, attempt: str) -> Part:
        columns = [
            table[field.name].cast(field.type) if field.name in table.column_names else pa.nulls(len(table), field.type)
            for field in schema
        ]
        data = self._part_format.encode(pa.table(columns, schema=schema))
        key = f"{attempt_prefix(self.shard, attempt)}/{PART}={kind}/part-0.parquet"
        self._blob.set(key, data)
        return Part(key=key, kind=kind, size_bytes=len(data), rows=len(table))

    def compare_and_append(
        self, manifest: BatchManifest, manifest_key: str, *, bookmark: str | None = None
    ) -> Committed | UpperMismatch:
        """Append a staged batch iff the shard's upper is the batch's lower. Idempotent by token.

        `bookmark`: the description's, which saves a remote store a request.
        """
        _, result = self._machine.apply(
            self.shard,
            lambda state: transitions.compare_and_append(
                state, manifest, manifest_key, expected_upper=manifest.lower, now_ms=self._clock.now_ms()
            ),
            bookmark=bookmark,
        )
        return result


def manifest_for(
    description: BatchDescription,
    schema: CollectionSchema,
    parts: tuple[Part, ...],
    counts: BatchCounts,
    *,
    rows: str,
) -> BatchManifest:
    """The manifest of a batch for `description`; `rows` is the order-independent digest of its updates."""
    return BatchManifest(
        shard=description.shard,
        lower=description.lower,
        upper=description.upper,
        token=description.token,
        contents=contents_digest(
            lower=description.lower, upper=description.upper, rows=rows, sources=description.sources, schema=schema
        ),
        schema=schema,
        parts=parts,
        counts=counts,
        checkpoint_id=description.checkpoint_id,
        epoch=description.epoch,
        parent_id=description.parent_id,
        writer=description.writer,
        sources=description.sources,
        is_delta=description.is_delta,
    )


def stage_manifest(blob: Blob, manifest: BatchManifest, attempt: str) -> str:
    """Write the manifest, last of its attempt's files, and return its key."""
    key = manifest_key(manifest.shard, attempt)
    blob.set(key, manifest.encode())
    return key


def _checked(table: pa.Table | None, schema: pa.Schema, description: BatchDescription) -> pa.Table:
    if table is None:
        return pa.table([pa.array([], field.type) for field in schema], schema=schema)
    if table.column_names != schema.names:
        raise SchemaMismatch(f"columns {table.column_names}; wanted {schema.names}")
    table = table.cast(schema)
    if len(table):
        low, high = pc.min(table[TIME]).as_py(), pc.max(table[TIME]).as_py()
        if low < description.lower or (description.upper is not None and high >= description.upper):
            raise BadBounds(f"updates at times {low} to {high} lie outside of {description.interval}")
        if pc.any(pc.equal(table[DIFF], 0)).as_py():
            raise BadBounds("updates with diff 0: consolidate before staging")
    return table


def _rows_digest(oks: pa.Table, errs: pa.Table) -> str:
    """Order-independent: the sum, modulo 2**256, of every update's SHA-256. Messages of errs do not enter."""
    total = 0
    for tag, table in (("ok", oks), ("err", errs.drop_columns([ERR_MESSAGE]))):
        for batch in table.to_batches(max_chunksize=_DIGESTED_AT_ONCE):
            for row in batch.to_pylist():
                total += int.from_bytes(hashlib.sha256(repr((tag, sorted(row.items()))).encode()).digest())
    return f"sha256-sum:{total % 2**256:064x}"
