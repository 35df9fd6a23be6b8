"""`WriteHandle`: stage a batch from Arrow tables, append a staged batch by compare-and-set.

Spark stages its batches itself (persist_spark.stage); this is the same in plain Python, for small writers, seals,
tools and tests. Staging changes nothing that a reader sees.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, replace

import pyarrow as pa
import pyarrow.compute as pc

from persist_core.contents.batch import (
    BatchCounts,
    BatchDescription,
    BatchManifest,
    Part,
    PartKind,
    SourceFrontier,
)
from persist_core.contents.derived import Restored
from persist_core.contents.key_range import EVERYTHING, KeyRange, range_of
from persist_core.contents.operator_state import OperatorState
from persist_core.contents.parts import (
    PartFormat,
    errs_schema,
    history_schema,
    part_schema,
    rows_digest,
    updates_schema,
)
from persist_core.contents.schema_versions import SchemaVersions
from persist_core.errors import BadBounds, SchemaMismatch
from persist_core.handles.store import Store
from persist_core.keys import list_key, manifest_key, part_key
from persist_core.location.blob import Blob
from persist_core.schema import DIFF, INHERITED, TIME, CollectionSchema
from persist_core.shard import state as transitions
from persist_core.shard.state import Committed, UpperMismatch
from persist_core.time_text import show_time


class WriteHandle:
    """Writes one shard. Any number of handles, threads and machines may do so concurrently."""

    def __init__(self, store: Store, shard: str) -> None:
        self._store = store
        self.shard = shard

    def stage(
        self,
        description: BatchDescription,
        schema: CollectionSchema,
        attempt: str,
        oks: pa.Table | None = None,
        errs: pa.Table | None = None,
        *,
        operators: Mapping[str, OperatorState] | None = None,
        stats: Mapping[str, int] | None = None,
        restored: Restored | None = None,
    ) -> str:
        """Stage consolidated updates for `description` and return the manifest's key.

        `oks` has the columns of `updates_schema`, `errs` of `errs_schema`; both consolidated, times within the
        bounds (`BadBounds`), diffs not zero. `attempt` is a fresh UUIDv7. `operators`: their state after the batch, its
        artifacts staged already; `stats`: `DrainStats.to_json()`; `restored`: what a restore goes back to.

        Raises `SchemaMismatch` before anything is staged if `schema` does not fit the shard's.
        """
        state = self._store.machine.fetch(self.shard)
        schema = (state.schemas if state else SchemaVersions()).placed(schema)
        if state is not None and description.era is None:  # before anything is staged
            description = replace(description, era=state.era)
        oks = _checked(oks, updates_schema(schema), description)
        errs = _checked(errs, errs_schema(schema), description)
        forward = pc.greater(oks[DIFF], 0)
        pieces = {
            PartKind.INSERTIONS: oks.filter(forward),
            PartKind.RETRACTIONS: oks.filter(pc.invert(forward)),
            PartKind.ERRS: errs,
        }
        parts = tuple(
            stage_part(
                self._store.blob,
                self.shard,
                attempt,
                kind,
                piece,
                schema,
                self._store.part_format,
                keys=EVERYTHING if kind is PartKind.ERRS else range_of(piece, schema.key),
            )
            for kind, piece in pieces.items()
            if len(piece)
        )
        inserted = len(errs.filter(pc.greater(errs[DIFF], 0)))
        counts = BatchCounts(
            insertions=len(pieces[PartKind.INSERTIONS]),
            retractions=len(pieces[PartKind.RETRACTIONS]),
            err_insertions=inserted,
            err_retractions=len(errs) - inserted,
        )
        manifest = manifest_for(description, schema, parts, counts, rows=rows_digest(oks, errs))
        manifest = replace(manifest, operators=operators or {}, stats=stats or {}, restored=restored)
        return stage_manifest(self._store.blob, manifest, attempt)

    def compare_and_append(self, manifest: BatchManifest, manifest_key: str) -> Committed | UpperMismatch:
        """Append a staged batch iff the shard's upper is the batch's lower. Idempotent by token."""
        _, result = self._store.machine.apply(
            self.shard,
            lambda state: transitions.compare_and_append(
                state, manifest, manifest_key, expected_upper=manifest.lower, now_ms=self._store.clock.now_ms()
            ),
        )
        return result


def stage_part(
    blob: Blob,
    shard: str,
    attempt: str,
    kind: PartKind,
    table: pa.Table,
    schema: CollectionSchema,
    part_format: PartFormat,
    *,
    number: int = 0,
    last_time: int | None = None,
    keys: KeyRange = EVERYTHING,
) -> Part:
    """Write one part of a schema with ids; columns of its kind that `table` does not have are null.

    `last_time`, `keys`: bounds of its times and keys.
    """
    fields = history_schema(schema) if kind is PartKind.HISTORY else part_schema(schema)
    columns = [
        table[field.name].cast(field.type) if field.name in table.column_names else pa.nulls(len(table), field.type)
        for field in fields
    ]
    data = part_format.encode(pa.table(columns, schema=fields))
    key = part_key(shard, attempt, kind, number)
    blob.set(key, data)
    digest = hashlib.sha256(data).hexdigest()
    inherits = INHERITED in table.column_names and table[INHERITED].null_count < len(table)
    bounds = (last_time, keys.first, keys.last)
    return Part(key, kind, len(data), digest, schema, len(table), *bounds, inherits, part_format.index(data))


def contents_digest(
    *, lower: int, upper: int | None, rows: str, sources: Mapping[str, SourceFrontier], schema: CollectionSchema
) -> str:
    """The digest that binds a token to contents. `rows` is an order-independent digest of all consolidated updates.

    File names, part sizes and row order do not enter, so that a restaged retry has the same digest.
    """
    body = {
        "lower": lower,
        "upper": upper,
        "rows": rows,
        "sources": {name: asdict(source) for name, source in sources.items()},
        "schema": schema.to_json(),
    }
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


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
        contents_digest=contents_digest(
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
        read_operators=description.read_operators,
        era=description.era or 0,
        is_change=description.is_change,
        in_time_from=description.in_time_from if description.is_change else None,
    )


def stage_manifest(blob: Blob, manifest: BatchManifest, attempt: str) -> str:
    """Write the manifest, last of its attempt's files, after its lists, and return its key."""
    key = manifest_key(manifest.shard, attempt)
    for number, (_, data) in enumerate(manifest.split):
        blob.set(list_key(key, number), data)
    blob.set(key, manifest.encode())
    return key


def _checked(table: pa.Table | None, schema: pa.Schema, description: BatchDescription) -> pa.Table:
    if table is None:
        return pa.table([pa.array([], field.type) for field in schema], schema=schema)
    if table.column_names != schema.names:
        raise SchemaMismatch(f"columns {table.column_names}; expected {schema.names}")
    try:
        table = table.cast(schema)
    except (pa.ArrowException, ValueError) as error:  # `ValueError`: a null in a column of the key
        found, wanted = (dict(zip(each.names, map(str, each.types), strict=True)) for each in (table.schema, schema))
        raise SchemaMismatch(f"columns {found}; expected {wanted}: {error}") from error
    for name in (TIME, DIFF):
        if table[name].null_count:
            raise SchemaMismatch(f"column {name} has nulls; expected none")
    if len(table):
        low, high = pc.min(table[TIME]).as_py(), pc.max(table[TIME]).as_py()
        if low < description.lower or (description.upper is not None and high >= description.upper):
            raise BadBounds(
                f"updates at times {show_time(low)} to {show_time(high)} lie outside of {description.interval}"
            )
        if pc.any(pc.equal(table[DIFF], 0)).as_py():
            raise BadBounds("updates with diff 0: consolidate before staging")
    return table
