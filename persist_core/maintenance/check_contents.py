"""Checks of a shard's contents: the bytes of its parts, and the invariants of the updates in them."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass

import pyarrow as pa
import pyarrow.compute as pc

from persist_core.contents import pieces
from persist_core.contents.batch import BatchCounts, BatchManifest, HollowBatch, Part, PartKind
from persist_core.contents.key_range import range_of
from persist_core.contents.parts import errs_schema, history_schema, nullable, updates_schema
from persist_core.contents.pieces import Piece
from persist_core.contents.row_versions import not_before
from persist_core.errors import CorruptArtifact
from persist_core.exact import exact_rows
from persist_core.handles.client import PersistClient
from persist_core.handles.load import decode_part, load_part
from persist_core.handles.side_by_side import side_by_side
from persist_core.maintenance.check_state import Examined
from persist_core.maintenance.violations import MAX_SHOWN, Violations
from persist_core.row_text import show_row
from persist_core.schema import (
    DIFF,
    ENDED,
    ERR_KEY,
    ERR_KIND,
    ERR_MESSAGE,
    ERR_PAYLOAD,
    ERR_POSITION,
    TIME,
    CollectionSchema,
)
from persist_core.time_text import show_interval

_BAD_SLOT = "_persist_bad_slot"  # what identifies an err whose key could not be decoded


@dataclass(frozen=True)
class Counted:
    """Counts of what was read: parts, their bytes according to their manifests, and updates."""

    parts: int
    size_bytes: int
    updates: int


def check_contents(examined: Examined, found: Violations) -> Counted:
    """Read every part whose manifest can be read: size and digest, format, bounds, counts; then all updates together.

    Invariants of the updates are checked only if all of them could be read: a missing batch breaks them all.
    """
    state, schema = examined.state, examined.state.schema
    manifests = [examined.manifests.get(batch.manifest_key) for batch in state.batches]
    parts = [part for manifest in manifests if manifest is not None for part in manifest.parts]
    if schema is None:
        return Counted(len(parts), sum(part.size_bytes for part in parts), 0)
    oks, errs = nullable(updates_schema(schema)), errs_schema(schema)
    fields = dict.fromkeys(pieces.OKS, oks) | {PartKind.ERRS: errs, PartKind.HISTORY: history_schema(schema)}
    read = _read(examined.client, parts, fields)
    is_whole = True
    for batch, manifest in zip(state.batches, manifests, strict=True):
        before = len(found)
        if manifest is not None:
            _check_batch(batch, manifest, read, schema, found)
        is_whole = is_whole and manifest is not None and len(found) == before
    known = [(batch, manifest) for batch, manifest in zip(state.batches, manifests, strict=True) if manifest]
    all_oks = _taken(oks, (piece for batch, manifest in known for piece in pieces.all_oks(batch, manifest)), read)
    all_errs = _taken(errs, (piece for batch, manifest in known for piece in pieces.all_errs(batch, manifest)), read)
    if is_whole:
        with found.checking("updates", f"the updates of shard {state.shard}"):
            check_updates(all_oks, all_errs, schema, state.since.time or 0, found)
    return Counted(len(parts), sum(part.size_bytes for part in parts), len(all_oks) + len(all_errs))


def _read(
    client: PersistClient, parts: list[Part], fields: Mapping[PartKind, pa.Schema]
) -> dict[str, pa.Table | Exception]:
    def attempt(part: Part) -> pa.Table | Exception:
        try:
            data = load_part(client.blob, part)
            table = decode_part(client.blob, part, data, fields[part.kind], client.part_format)
            if part.index is not None and part.index != client.part_format.index(data):
                return CorruptArtifact(f"{part.key}: the manifest has another digest of its page indexes")
            return table
        except Exception as error:  # noqa: BLE001 - damaged bytes can raise anything in a decoder; the caller reports it
            return error

    return dict(
        zip((part.key for part in parts), side_by_side(attempt, parts, threads=client.fetch_threads), strict=True)
    )


def _taken(schema: pa.Schema, chosen: Iterable[Piece], read: Mapping[str, pa.Table | Exception]) -> pa.Table:
    tables = [schema.empty_table()]
    for piece in chosen:
        table = read[piece.part.key]
        if not isinstance(table, Exception):
            tables.append(piece.of(table).select(schema.names))
    return pa.concat_tables(tables)


def _is_err(part: Part) -> bool:
    return part.kind is PartKind.ERRS


def _check_batch(
    batch: HollowBatch,
    manifest: BatchManifest,
    read: Mapping[str, pa.Table | Exception],
    schema: CollectionSchema,
    found: Violations,
) -> None:
    found_counts = dict.fromkeys(vars(BatchCounts()), 0)
    is_whole = True
    for part in manifest.parts:
        with found.checking("part", part.key):
            table = read[part.key]
            if isinstance(table, Exception):
                is_whole = False
                raise table
            _check_part(part, table, manifest, schema, found)
            inserted = pc.sum(pc.greater(table[DIFF], 0)).as_py() or 0
            if part.kind is PartKind.HISTORY:
                found_counts["history"] += len(table)
                continue
            prefix = "err_" if _is_err(part) else ""
            found_counts[f"{prefix}insertions"] += inserted
            found_counts[f"{prefix}retractions"] += len(table) - inserted
    if is_whole and BatchCounts(**found_counts) != manifest.counts:
        found.add(
            "counts",
            f"{batch.manifest_key}: found {show_row(found_counts)}; expected {show_row(asdict(manifest.counts))}",
        )


def _check_part(
    part: Part, table: pa.Table, manifest: BatchManifest, schema: CollectionSchema, found: Violations
) -> None:
    outside = table.filter(_is_outside(part, table, manifest))
    if len(outside):
        found.add(
            "bounds",
            f"{part.key}: {len(outside)} rows outside of {show_interval(manifest.lower, manifest.upper)} or later"
            f" than the manifest says, the first {show_row(next(exact_rows(outside.slice(0, 1))))}",
        )
    keys = range_of(table, schema.key)
    if not _is_err(part) and len(table) and not part.keys.covers(keys):
        found.add("bounds", f"{part.key}: keys {keys.first} to {keys.last}; the manifest says {part.keys}")
    if part.rows not in (None, len(table)):
        found.add("counts", f"{part.key}: {len(table)} rows, expected {part.rows}")
    expected = {PartKind.INSERTIONS: pc.greater, PartKind.RETRACTIONS: pc.less}.get(part.kind, pc.not_equal)
    if ENDED in table.column_names:
        expected = pc.greater
    others = pc.sum(pc.invert(pc.fill_null(expected(table[DIFF], 0), False))).as_py() or 0
    if others:
        found.add("counts", f"{part.key}: {others} updates whose diffs do not match {part.kind}")


def _is_outside(part: Part, table: pa.Table, manifest: BatchManifest) -> pa.ChunkedArray:
    """Rows earlier than the batch, or later than the file's last time: readers skip files by it."""
    latest = manifest.last_time if part.last_time is None else min(part.last_time, manifest.last_time)
    outside = pc.or_(pc.less(table[TIME], manifest.lower), pc.greater(table[TIME], latest))
    if ENDED in table.column_names:
        wrong_end = pc.or_(pc.less_equal(table[ENDED], table[TIME]), pc.greater(table[ENDED], latest))
        outside = pc.or_(outside, wrong_end)
    return pc.fill_null(outside, True)


def check_updates(oks: pa.Table, errs: pa.Table, schema: CollectionSchema, since: int, found: Violations) -> None:
    """The invariants of a shard's contents at every time; for a multiset, that no row has a negative count at `since`
    or later (merges drop earlier updates file by file, so what is left of them need not add up to a contents).

    For a keyed collection: at every time every diff is 1 or 0, and a key has at most one value. Sorted by slot, time
    and diff, the updates of a slot must alternate: inserted, retracted, inserted ..., and a retraction must carry the
    value that it retracts. `oks` and `errs` are all updates that the shard still has.
    """
    if not schema.key:
        for updates in (oks, errs.drop_columns([ERR_MESSAGE, ERR_POSITION])):
            _check_counts_not_negative(not_before(updates, since), found)
        return
    slot = [*schema.key_names, _BAD_SLOT]
    value = [*(column.name for column in schema.values), ERR_KIND, ERR_KEY, ERR_PAYLOAD]
    everything = pa.concat_tables([oks, errs], promote_options="default")
    keyless = pc.is_null(everything[schema.key_names[0]])
    bad = pc.if_else(keyless, pc.coalesce(everything[ERR_KEY], everything[ERR_PAYLOAD]), None)
    everything = everything.append_column(_BAD_SLOT, bad.cast(pa.binary())).sort_by(
        [*((name, "ascending") for name in slot), (TIME, "ascending"), (DIFF, "ascending")]
    )
    everything = everything.combine_chunks()
    if not len(everything):
        return
    before, after = everything.slice(0, len(everything) - 1), everything.slice(1)
    same_slot = _all([_same(before[name], after[name]) for name in slot])
    starts = pa.concat_arrays([pa.array([True]), pc.invert(same_slot)])
    previous = pa.concat_arrays([pa.array([0], pa.int64()), before[DIFF].combine_chunks()])
    expected = pc.if_else(starts, 1, pc.negate(previous))
    alternates = pc.equal(everything[DIFF].combine_chunks(), expected)
    same_value = pa.concat_arrays([pa.array([True]), _all([_same(before[name], after[name]) for name in value])])
    carries = pc.or_(pc.equal(everything[DIFF].combine_chunks(), 1), same_value)
    for check, holds in (("one_value_per_key", alternates), ("retraction_carries_its_value", carries)):
        broken = pc.indices_nonzero(pc.invert(holds)).to_pylist()
        for row in broken[:MAX_SHOWN]:
            pair = list(exact_rows(everything.slice(max(row - 1, 0), 2 if row else 1)))
            found.add(check, f"does not hold at {show_row(pair[-1])}; the update before it is {show_row(pair[0])}")
        found.count(check, len(broken[MAX_SHOWN:]))


def _check_counts_not_negative(updates: pa.Table, found: Violations) -> None:
    for row, count in _negative_counts(updates):
        found.add("counts_not_negative", f"a row has the count {count}: {show_row(row)}")


def _negative_counts(updates: pa.Table) -> Iterator[tuple[dict[str, object], int]]:
    names = [name for name in updates.column_names if name not in (TIME, DIFF)]
    order = [(name, "ascending") for name in [*names, TIME]]
    # One diff per row and time, so that the order of equal times does not matter.
    summed = updates.group_by([*names, TIME], use_threads=False).aggregate([(DIFF, "sum")])
    summed = summed.rename_columns([*names, TIME, DIFF]).sort_by(order).combine_chunks()
    if not len(summed):
        return
    before, after = summed.slice(0, len(summed) - 1), summed.slice(1)
    same_row = _all([_same(before[name], after[name]) for name in names])
    count = 0
    for number, (continues, diff) in enumerate(
        zip([False, *same_row.to_pylist()], summed[DIFF].to_pylist(), strict=True)
    ):
        count = (count if continues else 0) + diff
        if count < 0:
            yield next(exact_rows(summed.slice(number, 1))), count


def _same(left: pa.ChunkedArray, right: pa.ChunkedArray) -> pa.Array:
    """Null equals null; NaN equals NaN."""
    left, right = left.combine_chunks(), right.combine_chunks()
    same = pc.equal(left, right)
    if pa.types.is_floating(left.type):
        same = pc.or_kleene(same, pc.and_(pc.is_nan(left), pc.is_nan(right)))
    both_null = pc.and_(pc.is_null(left), pc.is_null(right))
    return pc.or_(both_null, pc.fill_null(same, False))


def _all(holds: list[pa.Array]) -> pa.Array:
    return functools.reduce(pc.and_, holds)
