"""`persist fsck`: does a shard keep its promises? Reads everything, changes nothing.

    state decodes, invariants hold -> every manifest is there and says what the state says -> every part is there with
    its size -> operator state, source progress and `_latest` have their digests -> the updates keep the invariants of
    a keyed collection at every time

A finding names the artifact, or the key with both values. No finding means that all of the above held.
"""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from persist_core.checkpoint.checkpointer import BlobCheckpointer
from persist_core.checkpoint.recovery import operator_chains
from persist_core.errors import Corruption
from persist_core.handles.client import PersistClient
from persist_core.handles.read import ReadHandle
from persist_core.protocol.fork_records import unrecorded
from persist_core.schema import DIFF, ERR_KEY, ERR_KIND, ERR_MESSAGE, ERR_PAYLOAD, TIME, CollectionSchema
from persist_core.shard.batch import BatchCounts, BatchManifest, HollowBatch, PartKind
from persist_core.shard.keys import batches_prefix
from persist_core.shard.state import ShardState
from persist_core.sources.ledger import SOURCE_TYPE, Ledger
from persist_core.sources.shards import Refreshed, load_frozen

MAX_FINDINGS_SHOWN = 20  # of one kind: a broken shard repeats itself
_BAD_SLOT = "_persist_bad_slot"  # what identifies an err whose key could not be decoded


@dataclass(frozen=True)
class Finding:
    """One broken promise: what kind, and what was found where."""

    shard: str
    check: str
    message: str


@dataclass(frozen=True)
class FsckReport:
    """What was looked at, and what was found."""

    shard: str
    batches: int
    parts: int
    updates: int
    size_bytes: int
    findings: tuple[Finding, ...]

    @property
    def is_clean(self) -> bool:
        """True where nothing was found."""
        return not self.findings


def fsck(client: PersistClient, shard: str) -> FsckReport:
    """Check one shard whole. `ShardNotFound` where there is none; broken bytes are findings, not errors."""
    try:
        state = client.state(shard)
    except Corruption as error:
        return FsckReport(shard, 0, 0, 0, 0, (Finding(shard, "state", str(error)),))
    findings: list[Finding] = []
    manifests = list(_manifests(client, state, findings))
    parts = [part for manifest in manifests for part in manifest.parts]
    findings += _missing_parts(client, shard, manifests)
    findings += _damaged_operator_state(client, state)
    findings += _damaged_progress(client, state)
    findings += _unrecorded_shares(client, state)
    updates = 0
    if not findings and state.schema is not None:
        reader = client.open_reader(shard)
        oks, errs = reader.all_updates(state)
        updates = len(oks) + len(errs)
        findings += _outside_bounds(state, manifests, reader)
        findings += check_updates(shard, oks, errs, state.schema)
    return FsckReport(
        shard, len(state.batches), len(parts), updates, sum(part.size_bytes for part in parts), tuple(findings)
    )


def _manifests(client: PersistClient, state: ShardState, findings: list[Finding]) -> Iterator[BatchManifest]:
    for batch in state.batches:
        try:
            manifest = client.manifest(batch)
        except Corruption as error:
            findings.append(Finding(state.shard, "manifest", str(error)))
            continue
        says = manifest.hollow(batch.manifest_key)
        if manifest.run is not None and batch.last_time < says.last_time:
            says = replace(says, upper=batch.upper)  # a fork shares a run up to its checkpoint
        if says != batch:
            findings.append(
                Finding(state.shard, "manifest", f"{batch.manifest_key} says {says}; the state says {batch}")
            )
        yield manifest


def _missing_parts(client: PersistClient, shard: str, manifests: list[BatchManifest]) -> Iterator[Finding]:
    owners = sorted({shard, *(manifest.shard for manifest in manifests)})  # a fork has parts of other shards
    sizes = {
        entry.key: entry.size_bytes
        for owner in owners
        for entry in client.blob.list_keys_and_metadata(batches_prefix(owner))
    }
    for manifest in manifests:
        for part in manifest.parts:
            if sizes.get(part.key) != part.size_bytes:
                found = "nothing" if part.key not in sizes else f"{sizes[part.key]} bytes"
                yield Finding(shard, "part", f"{part.key}: found {found}; wanted {part.size_bytes} bytes")


def _damaged_operator_state(client: PersistClient, state: ShardState) -> Iterator[Finding]:
    """What commits have left of operator state, from the newest restore on: nothing starts from what lies before it."""
    restores = [number for number, commit in enumerate(state.commits) if commit.restored_from]
    for commit in state.commits[restores[-1] if restores else 0 :]:
        try:
            manifest = client.manifest(commit)
        except Corruption as error:
            yield Finding(state.shard, "manifest", str(error))
            continue
        for artifact in (each for operator in manifest.operators.values() for each in operator.artifacts):
            data = client.blob.get(artifact.key)
            digest = None if data is None else hashlib.sha256(data).hexdigest()
            if digest != artifact.sha256:
                yield Finding(
                    state.shard, "operator_state", f"{artifact.key}: SHA-256 {digest}; wanted {artifact.sha256}"
                )


def _unrecorded_shares(client: PersistClient, state: ShardState) -> Iterator[Finding]:
    """Of a fork: what it shares must be written down beside the shard that it shares with."""
    try:
        for key in unrecorded(client.blob, state.shard, state.batches):
            yield Finding(
                state.shard, "fork", f"{key} is shared, and no record beside its shard says so; GC may take it"
            )
    except Corruption as error:
        yield Finding(state.shard, "fork", str(error))


def _damaged_progress(client: PersistClient, state: ShardState) -> Iterator[Finding]:
    """The ledger of consumed files, what a view's newest refresh read, and the checkpoint of the newest commit."""
    source = state.sources.get(SOURCE_TYPE)
    refreshed = Refreshed.of(state.sources)
    try:
        Ledger(client.blob, state.shard).consumed(source)
        if refreshed is not None:
            load_frozen(client, refreshed.input_key)
    except Corruption as error:
        yield Finding(state.shard, "source_progress", str(error))
    checkpointer = BlobCheckpointer(client.blob, state.shard)
    try:
        latest = checkpointer.read_latest()
        if latest is not None:
            operator_chains(checkpointer, latest)
    except Corruption as error:
        yield Finding(state.shard, "checkpoint", str(error))


def _outside_bounds(state: ShardState, manifests: list[BatchManifest], reader: ReadHandle) -> Iterator[Finding]:
    for batch, manifest in zip(state.batches, manifests, strict=True):
        oks, errs = reader.updates_of([batch], manifest.schema)
        for table in (oks, errs):
            outside = table.filter(_is_outside(table, batch))
            if len(outside):
                yield Finding(
                    state.shard,
                    "bounds",
                    f"{batch.manifest_key}: {len(outside)} updates outside of [{batch.lower}, {batch.upper}),"
                    f" the first {outside.slice(0, 1).to_pylist()[0]}",
                )
        yield from _miscounted(state.shard, batch, manifest, reader)


def _miscounted(shard: str, batch: HollowBatch, manifest: BatchManifest, reader: ReadHandle) -> Iterator[Finding]:
    """Rows by kind, and the latest time of each file that names one: readers skip files by it."""
    found: Counter[str] = Counter()
    for part in manifest.parts:
        stored = reader.stored(part)
        inserted = int(pc.sum(pc.greater(stored[DIFF], 0)).as_py() or 0)
        names = ("err_insertions", "err_retractions") if part.kind is PartKind.ERRS else (part.kind, part.kind)
        found[names[0]] += inserted
        found[names[1]] += len(stored) - inserted
        latest = pc.max(stored[TIME]).as_py() if len(stored) else None
        limit = manifest.last_time if part.last_time is None else part.last_time
        if manifest.run is not None and manifest.run.changed_at is not None:
            limit = min(limit, manifest.run.changed_at)
        if latest is not None and latest > limit:
            yield Finding(shard, "bounds", f"{part.key}: an update at {latest}; its manifest says none after {limit}")
    counts = BatchCounts(**{name: rows for name, rows in found.items() if rows})
    if counts != manifest.counts:
        yield Finding(shard, "counts", f"{batch.manifest_key}: found {counts}; expected {manifest.counts}")


def _is_outside(table: pa.Table, batch: HollowBatch) -> pa.ChunkedArray:
    before = pc.less(table[TIME], batch.lower)
    return before if batch.upper is None else pc.or_(before, pc.greater_equal(table[TIME], batch.upper))


def check_updates(shard: str, oks: pa.Table, errs: pa.Table, schema: CollectionSchema) -> list[Finding]:
    """The invariants of a shard's contents at every time; of a multiset, that no row is there less than no times.

    Of a keyed collection: at every time every diff is 1 or 0, and a key has at most one value. Sorted by slot, time and
    diff, the updates of a slot must alternate: inserted, retracted, inserted ..., and a retraction must carry the value
    that it retracts. `oks` and `errs` as `ReadHandle.all_updates` gives them.
    """
    if not schema.key:
        return [*_negative_counts(shard, oks), *_negative_counts(shard, errs.drop_columns([ERR_MESSAGE]))]
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
        return []
    before, after = everything.slice(0, len(everything) - 1), everything.slice(1)
    same_slot = _all([_same(before[name], after[name]) for name in slot])
    starts = pa.concat_arrays([pa.array([True]), pc.invert(same_slot)])
    previous = pa.concat_arrays([pa.array([0], pa.int64()), before[DIFF].combine_chunks()])
    expected = pc.if_else(starts, 1, pc.negate(previous))
    alternates = pc.equal(everything[DIFF].combine_chunks(), expected)
    same_value = pa.concat_arrays([pa.array([True]), _all([_same(before[name], after[name]) for name in value])])
    carries = pc.or_(pc.equal(everything[DIFF].combine_chunks(), 1), same_value)
    findings = []
    for check, holds in (("one_value_per_key", alternates), ("retraction_carries_its_value", carries)):
        broken = pc.indices_nonzero(pc.invert(holds)).to_pylist()
        for row in broken[:MAX_FINDINGS_SHOWN]:
            pair = everything.slice(max(row - 1, 0), 2 if row else 1).to_pylist()
            findings.append(Finding(shard, check, f"does not hold at {pair[-1]}; the update before it is {pair[0]}"))
        if len(broken) > MAX_FINDINGS_SHOWN:
            findings.append(Finding(shard, check, f"and {len(broken) - MAX_FINDINGS_SHOWN} more"))
    return findings


def _negative_counts(shard: str, updates: pa.Table) -> Iterator[Finding]:
    """Rows whose diffs add up to less than zero at some time."""
    names = [name for name in updates.column_names if name not in (TIME, DIFF)]
    order = [(name, "ascending") for name in [*names, TIME]]
    # One diff a row and time, so that the order of equal times says nothing.
    summed = updates.group_by([*names, TIME], use_threads=False).aggregate([(DIFF, "sum")])
    summed = summed.rename_columns([*names, TIME, DIFF]).sort_by(order).combine_chunks()
    if not len(summed):
        return
    before, after = summed.slice(0, len(summed) - 1), summed.slice(1)
    same_row = _all([_same(before[name], after[name]) for name in names])
    count, broken = 0, []
    for number, (continues, diff) in enumerate(
        zip([False, *same_row.to_pylist()], summed[DIFF].to_pylist(), strict=True)
    ):
        count = (count if continues else 0) + diff
        if count < 0:
            broken.append((number, count))
    for number, count in broken[:MAX_FINDINGS_SHOWN]:
        row = summed.slice(number, 1).to_pylist()[0]
        yield Finding(shard, "counts_not_negative", f"as of {row[TIME]} a row is there {count} times: {row}")
    if len(broken) > MAX_FINDINGS_SHOWN:
        yield Finding(shard, "counts_not_negative", f"and {len(broken) - MAX_FINDINGS_SHOWN} more")


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
