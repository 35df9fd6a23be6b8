"""The files of a run: sorted rows cut into files of a target size, each with the bounds of its keys and times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from persist_core.contents.batch import BatchCounts, Part, PartKind
from persist_core.contents.key_range import EVERYTHING, range_of
from persist_core.handles.client import PersistClient
from persist_core.handles.write import stage_part
from persist_core.schema import DIFF, ENDED, TIME, CollectionSchema

# A look-up opens few files, and a merge carries over unchanged ones: so a run has about `FILES`, unless they were too
# small to be worth opening, or too large to be decoded in memory. A run of very many files has larger ones
# (docs/decisions/storage.md).
FILES = 32
MIN_FILE_BYTES = 32 << 20
MAX_FILE_BYTES = 64 << 20
MANY_FILES = 2048
MAX_LARGE_FILE_BYTES = 512 << 20
_BYTES_PER_ROW = 64  # of a run whose inputs are unknown
READ_ROWS = 1 << 16  # of a file that are decoded together; fewer if rows are large
BYTES_AT_ONCE = 128 << 20  # of decoded rows in memory; a merge needs about five times as much


def target_bytes(run_bytes: float, min_file_bytes: int = MIN_FILE_BYTES) -> float:
    usual = min(max(run_bytes / FILES, min_file_bytes), MAX_FILE_BYTES)
    return max(usual, min(run_bytes / MANY_FILES, MAX_LARGE_FILE_BYTES))


def rows_per_file(parts: Sequence[Part], min_file_bytes: int) -> int:
    """How many rows a file of insertions is to hold, given the insertions of the inputs."""
    counted = [part for part in parts if part.kind is PartKind.INSERTIONS and part.rows]
    size_bytes, rows = sum(part.size_bytes for part in counted), sum(part.rows or 0 for part in counted)
    per_row = size_bytes / rows if rows else _BYTES_PER_ROW
    return max(1, int(target_bytes(size_bytes, min_file_bytes) / per_row))


@dataclass
class RunFiles:
    """The parts of one attempt. Rows are added in the order of their keys; a file is staged as soon as it is full.

    `folder`: where rows wait for their file that are too many bytes for memory. The caller removes it.
    """

    client: PersistClient
    shard: str
    attempt: str
    schema: CollectionSchema
    rows: int  # of each file
    folder: Path | None = None
    parts: list[Part] = field(default_factory=list)
    counts: dict[PartKind, int] = field(default_factory=lambda: dict.fromkeys(PartKind, 0))
    _waiting: dict[PartKind, pa.Table] = field(default_factory=dict)
    _spooled: int = 0

    def add(self, kind: PartKind, table: pa.Table) -> None:
        before = self._waiting.get(kind, table.slice(0, 0))
        if self.folder is not None and before.nbytes + table.nbytes > BYTES_AT_ONCE:
            table = self._on_disk(table, self.folder)
        waiting = pa.concat_tables([before, table])
        while 2 * len(waiting) >= 3 * self.rows:  # so that no file, the last one included, is much smaller
            self._stage(kind, waiting.slice(0, self.rows))
            waiting = waiting.slice(self.rows)
        self._waiting[kind] = waiting

    def _on_disk(self, table: pa.Table, folder: Path) -> pa.Table:
        """The table in a file that is mapped into memory: the system reads its pages as they are needed."""
        path = folder / f"waiting-{self._spooled}.arrow"
        self._spooled += 1
        with pa.OSFile(str(path), "wb") as out, pa.ipc.new_file(out, table.schema) as file:
            file.write_table(table)
        mapped = pa.memory_map(str(path))
        path.unlink()  # the space is free once the last slice of it is gone
        return pa.ipc.open_file(mapped).read_all()

    def adopt(self, parts: Sequence[Part], counts: BatchCounts) -> None:
        """Files that were written elsewhere under the same attempt."""
        self.parts += parts
        self.counts[PartKind.INSERTIONS] += counts.insertions
        self.counts[PartKind.RETRACTIONS] += counts.retractions
        self.counts[PartKind.HISTORY] += counts.history

    def finish(self, errs: pa.Table) -> None:
        """The rest of all kinds, and the errs."""
        for kind, table in [*self._waiting.items(), (PartKind.ERRS, errs)]:
            if len(table):
                self._stage(kind, table)
        self._waiting.clear()

    def batch_counts(self, errs: pa.Table, carried: Sequence[Part], with_errs_of: Sequence[BatchCounts]) -> BatchCounts:
        """The counts of the run: of new files, of `carried` ones, and of the errs of batches whose errs are carried."""
        rows = dict(self.counts)
        for part in carried:
            rows[part.kind] += part.rows or 0
        inserted = int(pc.sum(pc.greater(errs[DIFF], 0)).as_py() or 0)
        return BatchCounts(
            rows[PartKind.INSERTIONS],
            rows[PartKind.RETRACTIONS],
            inserted + sum(counts.err_insertions for counts in with_errs_of),
            len(errs) - inserted + sum(counts.err_retractions for counts in with_errs_of),
            rows[PartKind.HISTORY],
        )

    def _stage(self, kind: PartKind, rows: pa.Table) -> None:
        part = stage_part(
            self.client.blob,
            self.shard,
            self.attempt,
            kind,
            rows,
            self.schema,
            self.client.part_format,
            number=sum(each.kind is kind for each in self.parts),
            last_time=pc.max(rows[ENDED if ENDED in rows.column_names else TIME]).as_py(),
            keys=EVERYTHING if kind is PartKind.ERRS else range_of(rows, self.schema.key),
        )
        self.parts.append(part)
        self.counts[kind] += len(rows)
