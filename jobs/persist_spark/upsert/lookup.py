"""Committed values of a batch's slots: the previous values that an upsert compares with.

    batches, manifests -> pieces of the newest contents -> files that can hold a slot's key -> one scan, or two
                                                                              -> only rows of the slots asked for

An old value becomes a retraction, so insertions are read with whole rows. Of retractions only key and time are needed.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence, Set

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from persist_core.contents.batch import BatchManifest, HollowBatch, PartKind
from persist_core.contents.key_range import KeyRange, meets_any
from persist_core.contents.pieces import OKS, Piece, all_errs, oks_as_of, within
from persist_core.location.blob import Blob
from persist_core.schema import DIFF, ERR_KEY, ERR_PAYLOAD, INHERITED, TIME, CollectionSchema
from persist_spark.frame import BAD_KEY, ERR_COLUMNS, ORDER, beside_fields, part_type, quoted
from persist_spark.read.damage import INDEXED, has_indexes
from persist_spark.read.parts import scan_pieces

# Retractions up to here are read together with insertions, values and all: a scan of their own costs more.
FEW_RETRACTIONS_BYTES = 4 << 20
# Errs up to here are all taken: a broadcast join costs more than to rank some rows that no record meets.
FEW_ERRS_BYTES = 256 << 10


def committed_updates(
    spark: SparkSession,
    blob: Blob,
    batches: Sequence[tuple[HollowBatch, BatchManifest]],
    schema: CollectionSchema,
    *,
    slots: DataFrame | None = None,
    ranges: Sequence[KeyRange] | None = None,
    few_keys: str | None = None,
) -> DataFrame | None:
    """The updates in these batches as `persistent_upsert` takes them, or `None` if none exist.

    History that no look-up of the newest contents needs is left out.

    Columns: the user's, time, diff, the err columns, in `sequence` order `ORDER`, `INHERITED` if a column inherits, and
    `BAD_KEY`. Value columns of retractions may be null. `slots` (key columns and `BAD_KEY`, small enough to be
    broadcast) selects only updates of these slots, and a few errs. `ranges`: every key of them is in one of these, so
    files that hold no such key are not opened. `few_keys`: a filter of these keys, so pages without one are not read.
    """
    oks = _newest_oks(batches, ranges)
    ends = [piece for piece in oks if piece.part.kind is PartKind.RETRACTIONS]
    if sum(piece.part.size_bytes for piece in ends) > FEW_RETRACTIONS_BYTES:
        oks = [piece for piece in oks if piece.part.kind is not PartKind.RETRACTIONS]
    else:
        ends = []
    errs = [piece for batch, manifest in batches for piece in all_errs(batch, manifest)]
    has_few_errs = sum(piece.part.size_bytes for piece in errs) <= FEW_ERRS_BYTES
    values = [column.name for column in schema.values]
    orders = () if schema.order is None else (ORDER, INHERITED)
    scans: tuple[tuple[list[Piece], Sequence[str], str | None], ...] = (
        (oks, [*values, *orders], few_keys),
        (ends, (), few_keys),
        (errs, [*ERR_COLUMNS, *orders, INHERITED], None),
    )
    frames = [
        of_slots(found, schema, None if pieces is errs and has_few_errs else slots, has_bad_keys=pieces is errs)
        for pieces, more, few in scans
        if (found := _scan(spark, blob, pieces, schema, {*schema.key_names, TIME, DIFF, *more}, few)) is not None
    ]
    return functools.reduce(DataFrame.union, frames) if frames else None


def stored_slots(
    spark: SparkSession,
    blob: Blob,
    batches: Sequence[tuple[HollowBatch, BatchManifest]],
    schema: CollectionSchema,
    slots: DataFrame,
    *,
    ranges: Sequence[KeyRange] | None = None,
    few_keys: str | None = None,
) -> DataFrame | None:
    """The keys of `slots` that these batches hold oks of, perhaps more than once. Reads key columns only.

    Arguments as of `committed_updates`; `None` if no file can hold one.
    """
    needed = {*schema.key_names, TIME, DIFF}
    found = _scan(spark, blob, _newest_oks(batches, ranges), schema, needed, few_keys)
    return None if found is None else of_slots(found, schema, slots, has_bad_keys=False)


def expected_hits(records: int, manifests: Sequence[BatchManifest]) -> int:
    """How many of so many records probably have a stored key, judged by the newest batch that is not a run.

    None without such a batch, and after a first load: to find out costs little, as the look-up ends early.
    """
    raw = [manifest.counts for manifest in manifests if manifest.run is None and manifest.counts.updates]
    return records * raw[-1].retractions // max(1, raw[-1].insertions) if raw else 0


def expects_few_files(manifests: Sequence[BatchManifest]) -> bool:
    """True if ranges of the next batch's keys will probably leave out half of the bytes: then finding them pays.

    Judged by the newest batch that is not a run, because the manifests say where its keys lay, and batches of a shard
    are mostly alike. True without such a batch.
    """
    oks = [[part for part in manifest.outline if part.kind in OKS] for manifest in manifests]
    raw = [parts for manifest, parts in zip(manifests, oks, strict=True) if manifest.run is None and parts]
    if not raw:
        return True
    newest = [part.keys for part in raw[-1]]
    older = [part for parts in oks if parts is not raw[-1] for part in parts]
    opened = sum(part.size_bytes for part in older if meets_any(part.keys, newest))
    return 2 * opened <= sum(part.size_bytes for part in older)


def _newest_oks(batches: Sequence[tuple[HollowBatch, BatchManifest]], ranges: Sequence[KeyRange] | None) -> list[Piece]:
    newest = (piece for batch, manifest in batches for piece in oks_as_of(batch, manifest, batch.last_time))
    return list(within(newest, ranges))


def _scan(
    spark: SparkSession,
    blob: Blob,
    pieces: Sequence[Piece],
    schema: CollectionSchema,
    needed: Set[str],
    few_keys: str | None,
) -> DataFrame | None:
    """The pieces' rows, in the columns of the part frame and `BAD_KEY`; those not `needed` are null, unread."""
    columns = [*part_type(schema).fields, *beside_fields(schema)]
    read = T.StructType([column for column in columns if column.name in needed])
    is_indexed = few_keys is not None and has_indexes(blob, [piece.part for piece in pieces])
    found = scan_pieces(spark, blob, pieces, read, INDEXED if is_indexed else None)
    if found is None:
        return None
    if few_keys is not None:
        found = found.where(few_keys)
    cells = [
        name if column.name in needed else f"CAST(NULL AS {column.dataType.simpleString()}) AS {name}"
        for column in columns
        for name in (quoted(column.name),)
    ]
    # Of an err whose key could not be decoded: the raw key, or the payload if there is no key.
    has_no_key = " AND ".join(f"{quoted(name)} IS NULL" for name in schema.key_names)
    bad_key = f"CASE WHEN {has_no_key} THEN coalesce({ERR_KEY}, {ERR_PAYLOAD}) END"
    return found.selectExpr(*cells, f"{bad_key if ERR_KEY in needed else 'CAST(NULL AS BINARY)'} AS {BAD_KEY}")


def of_slots(rows: DataFrame, schema: CollectionSchema, slots: DataFrame | None, *, has_bad_keys: bool) -> DataFrame:
    """Only rows of `slots`. Oks have a key, so plain equality is enough; it joins faster than null-safe equality."""
    if slots is None:
        return rows
    names = [quoted(name) for name in (*schema.key_names, *([BAD_KEY] if has_bad_keys else []))]
    wanted = slots.selectExpr(*[f"{name} AS _persist_slot{i}" for i, name in enumerate(names)])
    same = [f"{name} {'<=>' if has_bad_keys else '='} _persist_slot{i}" for i, name in enumerate(names)]
    return rows.join(F.broadcast(wanted), F.expr(" AND ".join(same)), "left_semi")
