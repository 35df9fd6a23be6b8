"""One merge in this process: neighbors are read as Arrow tables, resolved, staged as a run, and replaced by it.

    inputs ──read──> updates ──resolve──> insertions, retractions ┐
              ├────> errs ──fold (bottom only)──────────────────> ├─ stage ─> manifest ─> replace_batches
              └────> history: carried over as files, or rewritten ┘

The files are an attempt like any other: nothing that a reader sees changes before the one compare-and-set, and a merge
that dies leaves garbage. Any number of merges may run side by side; of two that share an input, one is `NotReplaced`.

History is append-only by nature: a file of it is carried into the run as it is, unless the history rewritten by this
merge is more than half its size. So a shard that keeps all its history rewrites each of its rows only
logarithmically often.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from persist_core.errors import InvalidInput
from persist_core.handles.client import PersistClient
from persist_core.handles.read import ReadHandle, read_part
from persist_core.handles.write import stage_manifest, stage_part
from persist_core.schema import DIFF, ENDED, TIME, CollectionSchema
from persist_core.shard import pieces
from persist_core.shard.batch import BatchCounts, BatchManifest, HollowBatch, Part, PartKind, Run, SourceFrontier
from persist_core.shard.keys import owner_of
from persist_core.shard.parts import ERR_IDENTITY, errs_schema, history_schema, part_schema, updates_schema
from persist_core.shard.replace import NotReplaced, Replaced, replace_batches
from persist_core.shard.state import ShardState
from persist_core.shard.versions import Versions, at_time, fold_errs, resolve, sum_diffs

MAX_PART_ROWS = 1_000_000  # of one file: a read decodes files side by side, each in memory as a whole
CARRIED_SHARE = 2  # a file of history is carried over if it has at least this many times the rows that are rewritten


@dataclass(frozen=True)
class Merge:
    """What to merge: neighbors of one shard, oldest first, with their manifests; and what may be given up.

    `is_bottom`: nothing lies below the inputs. `since`: the shard's, when the merge was planned.
    """

    shard: str
    inputs: tuple[HollowBatch, ...]
    manifests: tuple[BatchManifest, ...]
    since: int
    is_bottom: bool

    @classmethod
    def of(cls, client: PersistClient, state: ShardState, inputs: Sequence[HollowBatch]) -> Merge:
        """Read the manifests of `inputs`. Raises `InvalidInput` unless they are neighbors in `state`, and two or more;
        `CorruptArtifact` naming a manifest that is missing or damaged."""
        batches = state.batches
        first = batches.index(inputs[0]) if inputs and inputs[0] in batches else 0
        if len(inputs) < 2 or batches[first : first + len(inputs)] != tuple(inputs):
            raise InvalidInput(f"shard {state.shard}: {len(inputs)} batches to merge are not neighbors in its state")
        if state.since.time is None:
            raise InvalidInput(f"shard {state.shard} is dropped; there is nothing to merge")
        manifests = client.open_reader(state.shard).manifests(inputs)
        return cls(state.shard, tuple(inputs), tuple(manifests), state.since.time, first == 0)

    @property
    def schema(self) -> CollectionSchema:
        """That of the inputs; only nullable columns are ever added, so the widest has them all."""
        return max((manifest.schema for manifest in self.manifests), key=lambda schema: len(schema.columns))

    @property
    def rows(self) -> int:
        """At most how many rows the merge reads."""
        return sum(batch.counts.rows + batch.counts.history for batch in self.inputs)

    def history(self) -> Iterator[tuple[HollowBatch, BatchManifest, Part]]:
        """The files of history that hold anything later than `since`."""
        for batch, manifest in zip(self.inputs, self.manifests, strict=True):
            for part in manifest.parts:
                if part.kind is PartKind.HISTORY and not (part.last_time is not None and part.last_time <= self.since):
                    yield batch, manifest, part

    def carried(self, rewritten: int) -> tuple[Part, ...]:
        """The files of history that go into the run as they are, given how many rows of new history there are.

        From the smallest file on, each that is not much larger than what is rewritten anyway is rewritten too. Files of
        another shard (in a fork, which may clip them) are always rewritten.
        """
        files = sorted(self.history(), key=lambda each: (each[2].rows or 0, each[2].key))
        kept: list[Part] = []
        for _, _, part in files:
            if (part.rows or 0) >= CARRIED_SHARE * rewritten and owner_of(part.key) == self.shard:
                kept.append(part)
            else:
                rewritten += part.rows or 0
        return tuple(kept)

    def manifest(self, parts: tuple[Part, ...], counts: BatchCounts) -> BatchManifest:
        """The manifest of the run. Its progress is what its inputs say together, from the newest restore on."""
        sources: dict[str, SourceFrontier] = {}
        restored = None
        for each in self.manifests:
            sources = {**({} if each.restored else sources), **each.sources}
            restored = each.restored or restored
        changed = [batch.changed_at for batch in self.inputs if batch.changed_at is not None]
        run = Run(tuple(batch.manifest_sha256 for batch in self.inputs), self.since, max(changed, default=None))
        token = hashlib.sha256(json.dumps([self.shard, run.inputs, run.since]).encode()).hexdigest()
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
        )


def merge_here(client: PersistClient, merge: Merge, *, attempt: str) -> Replaced | NotReplaced:
    """Do the merge in this process, in memory. `attempt` is a fresh UUIDv7.

    Raises `InvariantViolation` if the updates of a key do not alternate, `CorruptArtifact` naming a damaged file;
    nothing is changed then.
    """
    began_ms = client.clock.now_ms()
    manifest = _staged(client, merge, attempt)
    key = stage_manifest(client.blob, manifest, attempt)
    _, result = client.machine.apply(
        merge.shard,
        lambda state: replace_batches(state, manifest, key, staged_ms=began_ms, now_ms=client.clock.now_ms()),
    )
    return result


def _staged(client: PersistClient, merge: Merge, attempt: str) -> BatchManifest:
    """Stage the parts of the run, and say what its manifest is."""
    schema, reader = merge.schema, client.open_reader(merge.shard)
    versions = _keyed(reader, merge) if schema.key else _multiset(reader, merge)
    carried = merge.carried(len(versions.history))
    history = [versions.history, *_rewritten(client, merge, carried)]
    errs = reader.read(merge.inputs, errs_schema(schema), pieces.all_errs)
    if merge.is_bottom:
        errs = fold_errs(errs, [*schema.key_names, *ERR_IDENTITY], merge.since)
    kinds = {
        PartKind.INSERTIONS: (versions.insertions, part_schema(schema)),
        PartKind.RETRACTIONS: (versions.retractions, part_schema(schema)),
        PartKind.ERRS: (errs, part_schema(schema)),
        PartKind.HISTORY: (_since(_sorted(pa.concat_tables(history), schema), merge.since), history_schema(schema)),
    }
    parts = [
        stage_part(
            client.blob,
            merge.shard,
            attempt,
            kind,
            rows,
            columns,
            client.part_format,
            number=number,
            last_time=pc.max(rows[ENDED if ENDED in rows.column_names else TIME]).as_py(),
        )
        for kind, (table, columns) in kinds.items()
        for number, rows in enumerate(_cut(table))
    ]
    inserted = int(pc.sum(pc.greater(errs[DIFF], 0)).as_py() or 0)
    counts = BatchCounts(
        len(versions.insertions),
        len(versions.retractions),
        inserted,
        len(errs) - inserted,
        len(kinds[PartKind.HISTORY][0]) + sum(part.rows or 0 for part in carried),
    )
    return merge.manifest((*parts, *carried), counts)


def _contents(reader: ReadHandle, merge: Merge) -> pa.Table:
    """What the inputs contribute to a read of the newest contents."""
    return reader.read(merge.inputs, updates_schema(merge.schema), lambda b, m: pieces.oks_as_of(b, m, b.last_time))


def _keyed(reader: ReadHandle, merge: Merge) -> Versions:
    return resolve(_contents(reader, merge), merge.schema.key_names)


def _multiset(reader: ReadHandle, merge: Merge) -> Versions:
    """Rows as often as they are there (or missing) at the end, and the updates of raw inputs behind them."""
    summed = at_time(sum_diffs(_contents(reader, merge), merge.schema.arrow().names), merge.inputs[0].lower)
    inserted = pc.greater(summed[DIFF], 0)
    raw = reader.read(
        merge.inputs,
        updates_schema(merge.schema),
        lambda b, m: () if m.run else pieces.oks_between(b, m, merge.since, b.last_time),
    )
    return Versions(summed.filter(inserted), summed.filter(pc.invert(inserted)), raw)


def _rewritten(client: PersistClient, merge: Merge, carried: tuple[Part, ...]) -> list[pa.Table]:
    """The rows of the files of history that are not carried over; of a clipped input, what ended by its upper."""
    columns, kept = history_schema(merge.schema), {part.key for part in carried}
    tables = []
    for batch, _, part in merge.history():
        if part.key not in kept:
            rows = read_part(client.blob, part, columns, client.part_format)
            tables.append(rows.filter(pc.less_equal(_end(rows), batch.last_time)))
    return tables


def _end(history: pa.Table) -> pa.ChunkedArray:
    return history[ENDED if ENDED in history.column_names else TIME]


def _since(history: pa.Table, since: int) -> pa.Table:
    """History without what no reader at or after `since` can see."""
    return history.filter(pc.greater(_end(history), since))


def _sorted(history: pa.Table, schema: CollectionSchema) -> pa.Table:
    return history.sort_by([*((name, "ascending") for name in schema.key_names), (TIME, "ascending")])


def _cut(table: pa.Table) -> Iterator[pa.Table]:
    for start in range(0, len(table), MAX_PART_ROWS):
        yield table.slice(start, MAX_PART_ROWS)
