"""Checks of a shard's contents: the bytes of its parts, and the invariants of the updates in them.

parts ──decode, table by table──> checks of each part
             └──> updates by key (`Spill`) ──range by range──> checks of all updates of a key
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from persist_core.compaction.files import BYTES_AT_ONCE, READ_ROWS
from persist_core.compaction.merge import ROWS_AT_ONCE
from persist_core.compaction.spill import Spill, on_local_disk, scratch_folder
from persist_core.contents import pieces
from persist_core.contents.batch import BatchCounts, BatchManifest, HollowBatch, Part, PartKind
from persist_core.contents.key_range import EVERYTHING, KeyRange, range_of, spanning
from persist_core.contents.parts import errs_schema, history_schema, nullable, updates_schema
from persist_core.contents.pieces import Piece
from persist_core.contents.row_versions import not_before, same_as_before, shifted
from persist_core.errors import CorruptArtifact
from persist_core.exact import exact_rows
from persist_core.handles.client import PersistClient
from persist_core.handles.load import batches_of, fetched_together, load_part
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

OKS, ERRS = "oks", PartKind.ERRS
_BAD_SLOT = "_persist_bad_slot"  # what identifies an err whose key could not be decoded


@dataclass(frozen=True)
class Counted:
    """Counts of what was read: parts, their bytes according to their manifests, and updates."""

    parts: int
    size_bytes: int
    updates: int


@dataclass
class _Updates:
    """All updates of a shard, by key; on the local disk if they are many. What has no key stays in memory: the rows of
    a view, and errs whose key could not be decoded. `is_whole`: no update is known to be missing; else all are counted
    only.
    """

    schema: CollectionSchema
    spill: Spill
    keyless: dict[str, list[pa.Table]] = field(default_factory=lambda: {OKS: [], ERRS: []})
    is_whole: bool = True
    count: int = 0

    def add(self, tag: str, table: pa.Table) -> None:
        self.count += len(table)
        if not self.is_whole:
            return
        rows = table.select(self.columns[tag].names)
        if not self.schema.key:
            self.keyless[tag].append(rows)
            return
        has_key = functools.reduce(pc.and_, [pc.is_valid(rows[name]) for name in self.schema.key_names])
        if not pc.all(has_key).as_py():
            self.keyless[tag].append(rows.filter(pc.invert(has_key)))
            rows = rows.filter(has_key)
        self.is_whole = False  # until the disk has taken them
        with on_local_disk():
            self.spill.add(tag, rows)
        self.is_whole = True

    def ranges(self) -> Iterator[tuple[pa.Table, pa.Table]]:
        """Oks and errs by ranges of keys, each in one, in any order; those without a key at the end."""
        with on_local_disk():
            for found in self.spill.ranges():
                yield tuple(found.get(tag, self.columns[tag].empty_table()) for tag in (OKS, ERRS))
        yield tuple(pa.concat_tables([self.columns[tag].empty_table(), *self.keyless[tag]]) for tag in (OKS, ERRS))

    @cached_property
    def columns(self) -> Mapping[str, pa.Schema]:
        """The columns of a file by its kind, and of oks."""
        oks = nullable(updates_schema(self.schema))
        others = {ERRS: errs_schema(self.schema), PartKind.HISTORY: history_schema(self.schema)}
        return dict.fromkeys((*pieces.OKS, OKS), oks) | others


def check_contents(examined: Examined, found: Violations) -> Counted:
    """Read every part whose manifest can be read: size and digest, format, bounds, counts; then all updates together.

    Invariants of the updates are checked only if all of them could be read: a missing batch breaks them all.
    """
    state, schema = examined.state, examined.state.schema
    manifests = [examined.manifests.get(batch.manifest_key) for batch in state.batches]
    parts = [part for manifest in manifests if manifest is not None for part in manifest.parts]
    size_bytes = sum(part.size_bytes for part in parts)
    if schema is None:
        return Counted(len(parts), size_bytes, 0)
    loaded = _loaded(examined.client, parts)
    with scratch_folder("fsck") as folder:
        updates = _Updates(schema, Spill(folder, schema.key, ROWS_AT_ONCE, BYTES_AT_ONCE))
        for batch, manifest in zip(state.batches, manifests, strict=True):
            before = len(found)
            if manifest is not None:
                _check_batch(examined.client, batch, manifest, loaded, updates, found)
            updates.is_whole = updates.is_whole and manifest is not None and len(found) == before
        if updates.is_whole:
            with found.checking("updates", f"the updates of shard {state.shard}"):
                for oks, errs in updates.ranges():
                    _check_updates(oks, errs, schema, state.since.time or 0, found)
    return Counted(len(parts), size_bytes, updates.count)


def _loaded(client: PersistClient, parts: list[Part]) -> Iterator[bytes | Exception]:
    """The bytes of each part, or why they cannot be read."""

    def attempt(part: Part) -> bytes | Exception:
        try:
            return load_part(client.blob, part)
        except Exception as error:  # noqa: BLE001 - the caller reports it
            return error

    for group in fetched_together(parts):
        yield from side_by_side(attempt, group, threads=client.fetch_threads)


def _check_batch(
    client: PersistClient,
    batch: HollowBatch,
    manifest: BatchManifest,
    loaded: Iterator[bytes | Exception],
    updates: _Updates,
    found: Violations,
) -> None:
    found_counts = dict.fromkeys(vars(BatchCounts()), 0)
    is_whole = True
    taken = defaultdict[str, list[tuple[str, Piece]]](list)
    for tag, chosen in ((OKS, pieces.all_oks), (ERRS, pieces.all_errs)):
        for piece in chosen(batch, manifest):
            taken[piece.part.key].append((tag, piece))
    for part in manifest.parts:
        data, rows = next(loaded), None
        with found.checking("part", part.key):
            if isinstance(data, Exception):
                raise data
            tables = _tables(client, part, data, taken[part.key], updates)
            read = _check_part(part, tables, manifest, updates.schema, found)
            if part.index is not None and part.index != client.part_format.index(data):
                raise CorruptArtifact(f"{part.key}: the manifest has another digest of its page indexes")
            rows = read
        if rows is None:
            is_whole = False
        elif part.kind is PartKind.HISTORY:
            found_counts["history"] += rows.count
        else:
            prefix = "err_" if part.kind is PartKind.ERRS else ""
            found_counts[f"{prefix}insertions"] += rows.inserted
            found_counts[f"{prefix}retractions"] += rows.count - rows.inserted
    if is_whole and BatchCounts(**found_counts) != manifest.counts:
        found.add(
            "counts",
            f"{batch.manifest_key}: found {show_row(found_counts)}; expected {show_row(asdict(manifest.counts))}",
        )


def _tables(
    client: PersistClient, part: Part, data: bytes, taken: list[tuple[str, Piece]], updates: _Updates
) -> Iterator[pa.Table]:
    """The rows of a part, table by table. What the shard takes of them is added to `updates`."""
    for table in batches_of(client.blob, part, data, updates.columns[part.kind], client.part_format, rows=READ_ROWS):
        for tag, piece in taken:
            updates.add(tag, piece.of(table))
        yield table


@dataclass
class _Rows:
    """The findings in the rows of a part."""

    count: int = 0
    inserted: int = 0
    others: int = 0  # whose diffs do not match the kind
    outside: int = 0
    first_outside: str = ""


def _check_part(
    part: Part, tables: Iterable[pa.Table], manifest: BatchManifest, schema: CollectionSchema, found: Violations
) -> _Rows:
    rows, ranges = _Rows(), list[KeyRange]()
    for table in tables:
        outside = table.filter(_is_outside(part, table, manifest))
        if len(outside) and not rows.outside:
            rows.first_outside = show_row(next(exact_rows(outside.slice(0, 1))))
        rows.outside += len(outside)
        ranges.append(range_of(table, schema.key))
        rows.count += len(table)
        rows.inserted += pc.sum(pc.greater(table[DIFF], 0)).as_py() or 0
        expected = {PartKind.INSERTIONS: pc.greater, PartKind.RETRACTIONS: pc.less}.get(part.kind, pc.not_equal)
        if ENDED in table.column_names:
            expected = pc.greater
        rows.others += pc.sum(pc.invert(pc.fill_null(expected(table[DIFF], 0), False))).as_py() or 0
    if rows.outside:
        found.add(
            "bounds",
            f"{part.key}: {rows.outside} rows outside of {show_interval(manifest.lower, manifest.upper)} or later"
            f" than the manifest says, the first {rows.first_outside}",
        )
    keys = spanning([each for each in ranges if each != EVERYTHING])
    if part.kind is not PartKind.ERRS and not part.keys.covers(keys):
        found.add("bounds", f"{part.key}: keys {keys.first} to {keys.last}; the manifest says {part.keys}")
    if part.rows not in (None, rows.count):
        found.add("counts", f"{part.key}: {rows.count} rows, expected {part.rows}")
    if rows.others:
        found.add("counts", f"{part.key}: {rows.others} updates whose diffs do not match {part.kind}")
    return rows


def _is_outside(part: Part, table: pa.Table, manifest: BatchManifest) -> pa.ChunkedArray:
    """Rows earlier than the batch, or later than the file's last time: readers skip files by it."""
    latest = manifest.last_time if part.last_time is None else min(part.last_time, manifest.last_time)
    outside = pc.or_(pc.less(table[TIME], manifest.lower), pc.greater(table[TIME], latest))
    if ENDED in table.column_names:
        wrong_end = pc.or_(pc.less_equal(table[ENDED], table[TIME]), pc.greater(table[ENDED], latest))
        outside = pc.or_(outside, wrong_end)
    return pc.fill_null(outside, True)


def _check_updates(oks: pa.Table, errs: pa.Table, schema: CollectionSchema, since: int, found: Violations) -> None:
    """The invariants of a shard's contents at every time; for a multiset, that no row has a negative count at `since`
    or later (merges drop earlier updates file by file, so what is left of them need not add up to a contents).

    For a keyed collection: at every time every diff is 1 or 0, and a key has at most one value. Sorted by slot, time
    and diff, the updates of a slot must alternate: inserted, retracted, inserted ..., and a retraction must carry the
    value that it retracts. `oks` and `errs` are all updates of their keys that the shard still has.
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
    diffs, goes_on = everything[DIFF].combine_chunks(), same_as_before(everything.select(slot))
    alternates = pc.equal(diffs, pc.if_else(goes_on, pc.negate(shifted(diffs, -1)), 1))
    carries = pc.or_(pc.or_(pc.invert(goes_on), pc.equal(diffs, 1)), same_as_before(everything.select(value)))
    for check, holds in (("one_value_per_key", alternates), ("retraction_carries_its_value", carries)):
        broken = pc.indices_nonzero(pc.invert(holds)).to_pylist()
        for row in broken[:MAX_SHOWN]:
            pair = list(exact_rows(everything.slice(max(row - 1, 0), 2 if row else 1)))
            found.add(check, f"does not hold: at {show_row(pair[-1])}; the update before it is {show_row(pair[0])}")
        found.count(check, len(broken[MAX_SHOWN:]))


def _check_counts_not_negative(updates: pa.Table, found: Violations) -> None:
    names = [name for name in updates.column_names if name not in (TIME, DIFF)]
    order = [(name, "ascending") for name in [*names, TIME]]
    # One diff per row and time, so that the order of equal times does not matter.
    summed = updates.group_by([*names, TIME], use_threads=False).aggregate([(DIFF, "sum")])
    summed = summed.rename_columns([*names, TIME, DIFF]).sort_by(order).combine_chunks()
    if not len(summed):
        return
    same_row = same_as_before(summed.select(names)).to_pylist()
    count = 0
    for number, (continues, diff) in enumerate(zip(same_row, summed[DIFF].to_pylist(), strict=True)):
        count = (count if continues else 0) + diff
        if count < 0:
            row = next(exact_rows(summed.slice(number, 1)))
            found.add("counts_not_negative", f"a row has the count {count}: {show_row(row)}")
