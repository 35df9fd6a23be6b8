"""Rows of any number and size, sorted by key in bounded memory: sorted chunks on the local disk, read range by range.

    add(table) ──sort──> chunk 0 │ chunk 1 │ chunk 2      each a file, sorted by key
                           └──────────┴─────────┘
    ranges()                 keys < b1, keys < b2, ...    of each chunk its next rows

What fits into one range stays in memory. The boundaries are chosen from a sample of the sorted chunks: every
`SAMPLED`-th key of each, or more of them if the chunk has few rows. So a range holds at most that many rows of each
chunk more than was asked for, and all rows of one key, which are never divided.
"""

from __future__ import annotations

import bisect
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from persist_core.contents.key_range import Key, key_at
from persist_core.errors import StorageError
from persist_core.schema import Column

SAMPLED = 1_024
_LEAST_SAMPLES = 64  # of a chunk
BATCH_ROWS = 4_096  # that are read together, of a file and of a chunk
_BATCH_BYTES = 1 << 20  # if rows are large; each chunk has one in memory


@contextmanager
def scratch_folder(task: str) -> Iterator[Path]:
    """A folder on the local disk while the block runs. Raises as `on_local_disk`."""
    with on_local_disk(), tempfile.TemporaryDirectory(prefix=f"persist-scratch-{task}-") as folder:
        yield Path(folder)


@contextmanager
def on_local_disk() -> Iterator[None]:
    """Raise `StorageError` for a disk that is full or cannot be written: no stored object is damaged."""
    try:
        yield
    except OSError as error:
        folder = tempfile.tempdir or "a folder for temporary files"
        raise StorageError(f"rows are sorted on the local disk, in {folder}: {error}") from error


@dataclass
class _Chunk:
    """A sorted table in a file, which is read once from its start to its end. The next row is row `first` of batch
    `number`."""

    path: Path
    schema: pa.Schema
    key: Sequence[Column]
    number: int = 0
    first: int = 0

    @classmethod
    def of(cls, table: pa.Table, path: Path, key: Sequence[Column], batch_rows: int) -> _Chunk:
        batch_rows = max(1, min(batch_rows, _BATCH_BYTES * len(table) // max(table.nbytes, 1)))
        with pa.OSFile(str(path), "wb") as out, pa.ipc.new_file(out, table.schema) as file:
            file.write_table(table.combine_chunks(), max_chunksize=batch_rows)
        return cls(path, table.schema, key)

    def until(self, boundary: Key | None) -> pa.Table:
        """The next rows, with keys before the boundary; all the rest without one."""
        found = []
        with pa.OSFile(str(self.path)) as source:  # not left open: a large merge has thousands of chunks
            file = pa.ipc.open_file(source)
            while self.number < file.num_record_batches:
                batch = pa.Table.from_batches([file.get_batch(self.number)]).slice(self.first)
                end = len(batch) if boundary is None else self._place(batch, boundary)
                found.append(batch.slice(0, end))
                if end < len(batch):
                    self.first += end
                    break
                self.number, self.first = self.number + 1, 0
        return pa.concat_tables(found) if found else self.schema.empty_table()

    def _place(self, batch: pa.Table, boundary: Key) -> int:
        return bisect.bisect_left(range(len(batch)), boundary, key=lambda row: key_at(batch, row, self.key))


@dataclass
class Spill:
    """Tables in a folder, which the caller removes. Tables with one `tag` have the same columns.

    `rows`, `size_bytes`: of a range, and of what waits in memory.
    """

    folder: Path
    key: Sequence[Column]
    rows: int
    size_bytes: int
    sampled: int = SAMPLED
    batch_rows: int = BATCH_ROWS
    _waiting: dict[str, list[pa.Table]] = field(default_factory=dict)
    _waits: tuple[int, int] = 0, 0  # so many rows and bytes
    _chunks: list[tuple[str, _Chunk]] = field(default_factory=list)
    _sample: list[tuple[Key, int, float]] = field(default_factory=list)  # a key; how many rows and bytes it stands for

    def add(self, tag: str, table: pa.Table) -> None:
        """More rows. What waits is sorted and written to disk if it is more than a range."""
        self._waiting.setdefault(tag, []).append(table)
        rows, size_bytes = self._waits
        self._waits = rows + len(table), size_bytes + table.nbytes
        if self._waits[0] > self.rows or self._waits[1] > self.size_bytes:
            self._write()

    def ranges(self) -> Iterator[dict[str, pa.Table]]:
        """All rows by tag, range by range in the order of keys. Each row once. Not sorted if all fits into one."""
        if not self._chunks:
            yield {tag: pa.concat_tables(tables) for tag, tables in self._waiting.items()}
            return
        self._write()
        for boundary in [*self._boundaries(), None]:
            found: dict[str, list[pa.Table]] = {}
            for tag, chunk in self._chunks:
                found.setdefault(tag, []).append(chunk.until(boundary))
            yield {tag: pa.concat_tables(tables) for tag, tables in found.items()}

    def _write(self) -> None:
        """Write what waits to disk, a sorted chunk for each tag."""
        for tag, tables in self._waiting.items():
            table = pa.concat_tables(tables)
            if not len(table):
                continue
            ordered = table.sort_by([(column.name, "ascending") for column in self.key])
            path = self.folder / f"{len(self._chunks)}.arrow"
            self._chunks.append((tag, _Chunk.of(ordered, path, self.key, self.batch_rows)))
            step = max(1, min(self.sampled, len(ordered) // _LEAST_SAMPLES))
            part = step, step * ordered.nbytes / len(ordered)
            self._sample += [(key_at(ordered, row, self.key), *part) for row in range(step // 2, len(ordered), step)]
        self._waiting.clear()
        self._waits = 0, 0

    def _boundaries(self) -> list[Key]:
        found, rows, size_bytes = set(), 0, 0.0
        for key, more_rows, more_bytes in sorted(self._sample, key=lambda each: each[0]):
            if rows and (rows + more_rows > self.rows or size_bytes + more_bytes > self.size_bytes):
                found.add(key)
                rows, size_bytes = 0, 0.0
            rows, size_bytes = rows + more_rows, size_bytes + more_bytes
        return sorted(found)
