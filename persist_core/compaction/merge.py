"""One merge in this process: neighbors are read as Arrow tables, resolved, staged as a run, and replaced by it.

    inputs ──read──> updates ──resolve──> insertions, retractions ┐
              ├────> errs ──fold (bottom only)──────────────────> ├─ stage ─> manifest ─> replace_batches
              └────> history: carried over as files, or rewritten ┘

The files are an attempt like any other: nothing that a reader sees changes before the one compare-and-set, and a merge
that dies leaves garbage. Any number of merges may run side by side; of two that share an input, one is `NotReplaced`.

Memory is bounded for a keyed shard: a merge of more than `rows_at_once` rows sorts them on the local disk first
(`spill`), and then does the above for one range of keys after the other. Errs, and the rows of a view, must fit into
memory.

Two kinds of files go into the run as they are. *Insertions* of a run whose range of keys meets no other input: so if
keys rise with time, only what is new is rewritten. *History*, which is append-only by nature, as long as it has few
small files; then those are merged with what is rewritten anyway. So a shard that keeps all its history rewrites each of
its rows only logarithmically often.

A merge of more than its budget is done in steps (`steps`). Each is a merge like any other: the first puts one run in
the place of all inputs, and the next ones replace that run. From the key `until` on, a run of a step has the updates of
its inputs as they were, in whichever files: to every reader they add up to the same. So a merge may stop between steps,
for any time, and no step depends on where the one before has ended, but for the work that it finds done.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from persist_core.compaction.files import BYTES_AT_ONCE, MIN_FILE_BYTES, READ_ROWS, RunFiles, rows_per_file
from persist_core.compaction.spill import SAMPLED, Spill, scratch_folder
from persist_core.compaction.steps import BUDGET_BYTES, alone, budget_of, end_of_step
from persist_core.contents import pieces
from persist_core.contents.batch import BatchCounts, BatchManifest, HollowBatch, Part, PartKind, SourceFrontier
from persist_core.contents.derived import Run
from persist_core.contents.key_range import Key, KeyRange, is_within
from persist_core.contents.parts import ERR_IDENTITY, errs_schema, history_schema, nullable, updates_schema
from persist_core.contents.pieces import Piece
from persist_core.contents.row_versions import Versions, at_time, fold_errs, resolve, sum_diffs
from persist_core.errors import InvalidInput
from persist_core.handles.client import PersistClient
from persist_core.handles.load import batches_of, load_parts, read_part
from persist_core.handles.overtaken import named_if_slow
from persist_core.handles.read import ReadHandle
from persist_core.handles.write import stage_manifest
from persist_core.keys import owner_of
from persist_core.schema import DIFF, ENDED, TIME, CollectionSchema
from persist_core.shard.replace import NotReplaced, Replaced, replace_batches
from persist_core.shard.state import ShardState

ROWS_AT_ONCE = 500_000  # in memory: about 0.5 GB at 180 bytes a row
MAX_HISTORY_FILES = 16  # that are small: from here on they are merged
CARRIED_SHARE = 2  # a file is then carried over if it has at least this many times the rows that are rewritten


@dataclass(frozen=True)
class Merge:
    """The input of a merge: neighbors of one shard, oldest first, with their manifests; and what may be given up.

    One partial run alone is the input of the next step. `is_bottom`: nothing lies below the inputs. `since` and `era`:
    the shard's, when the merge was planned. A step rewrites at most `budget_bytes` of files.
    """

    shard: str
    inputs: tuple[HollowBatch, ...]
    manifests: tuple[BatchManifest, ...]
    since: int
    is_bottom: bool
    era: int
    budget_bytes: int = BUDGET_BYTES
    min_file_bytes: int = MIN_FILE_BYTES
    max_history_files: int = MAX_HISTORY_FILES
    sampled: int = SAMPLED

    @classmethod
    def of(
        cls,
        client: PersistClient,
        state: ShardState,
        inputs: Sequence[HollowBatch],
        *,
        budget_bytes: int = BUDGET_BYTES,
    ) -> Merge:
        """Read the manifests of `inputs`. Raises `InvalidInput` unless they are neighbors in `state`, and two or more,
        or a partial run; `CorruptArtifact` naming a manifest that is missing or damaged; `ReadTooSlow` if others have
        merged the inputs and GC has deleted some of them.

        `budget_bytes`: what a step may rewrite, unless `BUDGET_SHARE` of the shard is more."""
        batches = state.batches
        first = batches.index(inputs[0]) if inputs and inputs[0] in batches else 0
        is_enough = len(inputs) > 1 or any(batch.is_partial for batch in inputs)
        if not is_enough or batches[first : first + len(inputs)] != tuple(inputs):
            raise InvalidInput(f"shard {state.shard}: {len(inputs)} batches to merge are not neighbors in its state")
        if state.since.time is None:
            raise InvalidInput(f"shard {state.shard} is dropped; there is nothing to merge")
        with named_if_slow(client.machine, state.shard, inputs):
            manifests = client.manifests(inputs)
        budget = budget_of(sum(batch.size_bytes for batch in batches), budget_bytes)
        return cls(state.shard, tuple(inputs), tuple(manifests), state.since.time, first == 0, state.era, budget)

    @property
    def schema(self) -> CollectionSchema:
        return max((manifest.schema for manifest in self.manifests), key=lambda schema: schema.version)

    @property
    def rows(self) -> int:
        """How many rows the merge reads, errs aside."""
        return sum(part.rows or 0 for part in self._read)

    @property
    def size_bytes(self) -> int:
        """The bytes of the files that it reads, errs aside."""
        return sum(part.size_bytes for part in self._read)

    @property
    def _read(self) -> Iterator[Part]:
        found = [*self._oks, *(part for _, _, part in self.history())]
        return (part for part in found if part.key not in self.kept)

    @property
    def _oks(self) -> list[Part]:
        return [part for manifest in self.manifests for part in manifest.parts if part.kind in pieces.OKS]

    @property
    def _merged_to(self) -> Key:
        """The keys before this one have been merged by the steps before."""
        run = self.manifests[0].run
        return (run.merged_to or ()) if run and len(self.inputs) == 1 else ()

    @cached_property
    def until(self) -> Key | None:
        """The first key that is not merged in this step; `None` if it is the last step, or the only one.

        Files that are never kept are rewritten in one step, as are rows without a key, and files without a count.
        """
        parts = [part for manifest in self.manifests for part in manifest.parts]
        if not self.schema.key or self._never_kept or any(part.rows is None for part in parts):
            return None
        return end_of_step([(part.keys, part.size_bytes) for part in self._due], self.budget_bytes, self._merged_to)

    @cached_property
    def _due(self) -> list[Part]:
        if not self.schema.key:
            return self._oks
        runs = {part.key for manifest in self.manifests if manifest.run for part in manifest.parts}
        is_alone, rest = alone(part.keys for part in self._oks), KeyRange(self._merged_to)
        kept = {part.key for part, lies in zip(self._oks, is_alone, strict=True) if lies and self._is_done(part, runs)}
        return [part for part in self._oks if part.key not in kept and rest.meets(part.keys)]

    def _is_done(self, part: Part, runs: Collection[str]) -> bool:
        """True for insertions of a run that are not in much smaller files than new ones."""
        return part.kind is PartKind.INSERTIONS and part.key in runs and not _is_small(part, self.file_rows)

    @cached_property
    def _never_kept(self) -> frozenset[str]:
        """The files that are rewritten in any case: another shard's, and all files of a run that a fork clips.

        A clipped run has rows later than the fork's checkpoint. After an erasure its files are the fork's own."""
        return frozenset(
            part.key
            for batch, manifest in zip(self.inputs, self.manifests, strict=True)
            for part in manifest.parts
            if owner_of(part.key) != self.shard or batch.last_time < manifest.last_time
        )

    def history(self) -> Iterator[tuple[HollowBatch, BatchManifest, Part]]:
        """The files of history that hold anything later than `since`."""
        for batch, manifest in zip(self.inputs, self.manifests, strict=True):
            for part in manifest.parts:
                if part.kind is PartKind.HISTORY and not (part.last_time is not None and part.last_time <= self.since):
                    yield batch, manifest, part

    @cached_property
    def file_rows(self) -> int:
        return rows_per_file([part for manifest in self.manifests for part in manifest.parts], self.min_file_bytes)

    @cached_property
    def carried(self) -> tuple[Part, ...]:
        """The files that go into the run as they are.

        Files of another shard, and of a run that is clipped, are always rewritten.
        """
        taken = {part.key for part in self._due if self.until is None or part.keys.begin < self.until}
        found = [part for part in self._oks if part.key not in taken] if self.schema.key else []
        if self.until is not None:  # the last step merges the errs
            found += [part for manifest in self.manifests for part in manifest.parts if part.kind is PartKind.ERRS]
        return tuple(part for part in (*found, *self._old_history(self.file_rows)) if part.key not in self._never_kept)

    def _old_history(self, file_rows: int) -> Iterator[Part]:
        """All history, if its small files are few. Else, from the smallest file on, each that is not much larger than
        what is rewritten anyway is rewritten too; at most each retraction of an input becomes a row of history. A file
        that is not much smaller than a new one is never rewritten: that would not make the files fewer."""
        files = sorted((part for _, _, part in self.history()), key=lambda part: (part.rows or 0, part.key))
        small = [part for part in files if _is_small(part, file_rows)]
        yield from files[len(small) :]
        rewritten = sum(batch.counts.retractions for batch in self.inputs)
        for part in small:
            if len(small) < self.max_history_files or (part.rows or 0) >= CARRIED_SHARE * rewritten:
                yield part
            else:
                rewritten += part.rows or 0

    @cached_property
    def kept(self) -> frozenset[str]:
        return frozenset(part.key for part in self.carried)

    def contents(self) -> Iterator[Piece]:
        """The inputs' part of a read of the newest contents, without the files that are carried."""
        for batch, manifest in zip(self.inputs, self.manifests, strict=True):
            for piece in pieces.oks_as_of(batch, manifest, batch.last_time):
                if piece.part.key not in self.kept:
                    yield piece

    def raw_updates(self) -> Iterator[Piece]:
        """The updates after `since` of a multiset's raw inputs; runs keep theirs as history."""
        for batch, manifest in zip(self.inputs, self.manifests, strict=True):
            if manifest.run is None:
                yield from pieces.oks_between(batch, manifest, self.since, batch.last_time)

    def rewritten(self) -> Iterator[tuple[Part, int | None]]:
        """The files of history that are not carried over; of each, the last time that its batch still has if the state
        clips it."""
        for batch, manifest, part in self.history():
            if part.key not in self.kept:
                yield part, batch.last_time if batch.last_time < manifest.last_time else None

    def resolved(self, updates: pa.Table) -> Versions:
        """The versions of the keys before `until`, and the updates of the others as they are. Raises as `resolve`."""
        schema = self.schema
        if self.until is None:
            return resolve(updates, schema.key_names)
        is_later = is_within(updates, [KeyRange(self.until)], schema.key)
        done, later = resolve(updates.filter(pc.invert(is_later)), schema.key_names), updates.filter(is_later)
        later = _sorted(later, schema)
        inserts = pc.greater(later[DIFF], 0)
        return Versions(
            pa.concat_tables([done.insertions, later.filter(inserts)]),
            pa.concat_tables([done.retractions, later.filter(pc.invert(inserts))]),
            done.history,
        )

    def manifest(self, parts: tuple[Part, ...], counts: BatchCounts) -> BatchManifest:
        """The manifest of the run. Its progress is what its inputs say together, from the newest restore on."""
        sources: dict[str, SourceFrontier] = {}
        restored = None
        for each in self.manifests:
            sources = {**({} if each.restored else sources), **each.sources}
            restored = each.restored or restored
        changed = [batch.changed_at for batch in self.inputs if batch.changed_at is not None]
        inputs = tuple(batch.manifest_sha256 for batch in self.inputs)
        run = Run(inputs, self.since, max(changed, default=None), self.until)
        token = hashlib.sha256(json.dumps([self.shard, run.inputs, run.since, run.merged_to]).encode()).hexdigest()
        return replace(
            self.manifests[-1],
            shard=self.shard,
            lower=self.inputs[0].lower,
            upper=self.inputs[-1].upper,
            token=token,
            contents_digest=token,
            schema=self.schema,
            parts=parts,
            counts=counts,
            parent_id=None,
            writer="compaction",
            sources=sources,
            operators={},
            read_operators={},
            stats={},
            restored=restored,
            run=run,
            era=self.era,
        )


def _is_small(part: Part, file_rows: int) -> bool:
    return 2 * (part.rows or 0) < file_rows


def merge_here(
    client: PersistClient, merge: Merge, *, attempt: str, rows_at_once: int = ROWS_AT_ONCE
) -> Replaced | NotReplaced:
    """Do the merge in this process. `attempt` is a fresh UUIDv7.

    Raises `InvariantViolation` if the updates of a key do not alternate, `CorruptArtifact` naming a damaged file,
    `ReadTooSlow` if others have merged the inputs and GC has deleted some of them; nothing is changed then.
    """
    with named_if_slow(client.machine, merge.shard, merge.inputs):
        manifest = stage_here(client, merge, attempt, rows_at_once)
    return replace_inputs(client, manifest, stage_manifest(client.blob, manifest, attempt))


def replace_inputs(client: PersistClient, manifest: BatchManifest, key: str) -> Replaced | NotReplaced:
    """Put a staged run in the place of its inputs. `key` is its manifest's."""
    _, result = client.machine.apply(
        manifest.shard,
        lambda state: replace_batches(state, manifest, key),
    )
    return result


def finished(client: PersistClient, merge: Merge, files: RunFiles) -> BatchManifest:
    """Stage the errs of a run whose other files are there; what its manifest is."""
    if merge.until is not None:
        before = [manifest.counts for manifest in merge.manifests]
        errs = errs_schema(merge.schema).empty_table()
    else:
        before = []
        errs = client.open_reader(merge.shard).read(merge.inputs, errs_schema(merge.schema), pieces.all_errs)
    if merge.is_bottom:
        errs = fold_errs(errs, [*merge.schema.key_names, *ERR_IDENTITY], merge.since)
    files.finish(errs)
    return merge.manifest((*files.parts, *merge.carried), files.batch_counts(errs, merge.carried, before))


def stage_here(client: PersistClient, merge: Merge, attempt: str, rows_at_once: int) -> BatchManifest:
    """Stage the parts of the run, and say what its manifest is. Raises as `merge_here` does."""
    schema = merge.schema
    with scratch_folder("merge") as folder:
        files = RunFiles(client, merge.shard, attempt, schema, merge.file_rows, folder)
        if schema.key:
            found = _by_ranges(client, merge, Spill(folder, schema.key, rows_at_once, BYTES_AT_ONCE, merge.sampled))
        else:
            found = iter([(_multiset(client.open_reader(merge.shard), merge), _history(client, merge))])
        for versions, history in found:
            files.add(PartKind.INSERTIONS, versions.insertions)
            files.add(PartKind.RETRACTIONS, versions.retractions)
            all_history = _sorted(pa.concat_tables([versions.history, history]), schema)
            is_seen = pc.greater(_end(all_history), merge.since)  # by some reader: none is before `since`
            files.add(PartKind.HISTORY, all_history.filter(is_seen))
        return finished(client, merge, files)


def _by_ranges(client: PersistClient, merge: Merge, spill: Spill) -> Iterator[tuple[Versions, pa.Table]]:
    """The resolved versions of each range of keys, and the history that is rewritten with them."""
    columns, of_history = nullable(updates_schema(merge.schema)), history_schema(merge.schema)
    with_ends = columns.append(pa.field(ENDED, pa.int64()))
    chosen, rewritten = list(merge.contents()), list(merge.rewritten())
    parts = [*(piece.part for piece in chosen), *(part for part, _ in rewritten)]
    loaded = load_parts(client.blob, parts, threads=client.fetch_threads)

    def read(part: Part, needed: pa.Schema) -> Iterator[pa.Table]:
        return batches_of(client.blob, part, next(loaded), needed, client.part_format, rows=READ_ROWS)

    for piece in chosen:
        for rows in read(piece.part, with_ends if piece.has_ends else columns):
            spill.add("updates", piece.of(rows))
    for part, clip in rewritten:
        for rows in read(part, of_history):
            spill.add("history", _until(rows, clip))
    for found in spill.ranges():
        yield (
            merge.resolved(found.get("updates", columns.empty_table())),
            found.get("history", of_history.empty_table()),
        )


def _multiset(reader: ReadHandle, merge: Merge) -> Versions:
    """Rows as often as they are there (or missing) at the end, and the updates of raw inputs behind them."""
    contents = reader.read_pieces(list(merge.contents()), updates_schema(merge.schema))
    summed = at_time(sum_diffs(contents, merge.schema.arrow().names), merge.inputs[0].lower)
    inserted = pc.greater(summed[DIFF], 0)
    raw = reader.read_pieces(list(merge.raw_updates()), updates_schema(merge.schema))
    return Versions(summed.filter(inserted), summed.filter(pc.invert(inserted)), raw)


def _history(client: PersistClient, merge: Merge) -> pa.Table:
    columns = history_schema(merge.schema)
    rewritten = ((read_part(client.blob, part, columns, client.part_format), clip) for part, clip in merge.rewritten())
    tables = [_until(rows, clip) for rows, clip in rewritten]
    return pa.concat_tables(tables) if tables else columns.empty_table()


def _until(history: pa.Table, clip: int | None) -> pa.Table:
    return history if clip is None else history.filter(pc.less_equal(_end(history), clip))


def _end(history: pa.Table) -> pa.ChunkedArray:
    return history[ENDED if ENDED in history.column_names else TIME]


def _sorted(history: pa.Table, schema: CollectionSchema) -> pa.Table:
    return history.sort_by([*((name, "ascending") for name in schema.key_names), (TIME, "ascending")])
