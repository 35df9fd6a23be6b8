"""Rows of any number, sorted by key in bounded memory: sorted chunks on the local disk, read range by range.

    add(table) ──sort──> chunk 0 │ chunk 1 │ chunk 2      each a file, sorted by key
                           └──────────┴─────────┘
    ranges()                 keys < b1, keys < b2, ...    of each chunk its next rows

The boundaries are chosen from a sample of the sorted chunks: every `SAMPLED`-th key of each. So a range holds at most
`SAMPLED` rows of each chunk more than was asked for, and all rows of one key, which are never divided.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from persist_core.contents.key_range import Key, key_at
from persist_core.schema import Column

SAMPLED = 1_024
BATCH_ROWS = 4_096  # of a chunk's file that are read together


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
    """Tables in a folder, which the caller removes. Tables with one `tag` have the same columns."""

    folder: Path
    key: Sequence[Column]
    sampled: int = SAMPLED
    batch_rows: int = BATCH_ROWS
    _chunks: list[tuple[str, _Chunk]] = field(default_factory=list)
    _sample: list[Key] = field(default_factory=list)

    def add(self, tag: str, table: pa.Table) -> None:
        """Sort the table and write it to disk."""
        if not len(table):
            return
        ordered = table.sort_by([(column.name, "ascending") for column in self.key])
        path = self.folder / f"{len(self._chunks)}.arrow"
        self._chunks.append((tag, _Chunk.of(ordered, path, self.key, self.batch_rows)))
        self._sample += [key_at(ordered, row, self.key) for row in range(self.sampled // 2, len(ordered), self.sampled)]

    def ranges(self, rows: int) -> Iterator[dict[str, pa.Table]]:
        """All rows by tag, range by range in the order of keys, about `rows` at a time. Each row once."""
        for boundary in [*self._boundaries(rows), None]:
            found: dict[str, list[pa.Table]] = {}
            for tag, chunk in self._chunks:
                found.setdefault(tag, []).append(chunk.until(boundary))
            yield {tag: pa.concat_tables(tables) for tag, tables in found.items()}

    def _boundaries(self, rows: int) -> list[Key]:
        step = max(1, rows // self.sampled)
        return sorted(set(sorted(self._sample)[step::step]))
