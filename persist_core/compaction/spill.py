"""Rows of any number, sorted by key in bounded memory: sorted chunks on the local disk, read range by range.

    add(table) ──sort──> chunk 0 │ chunk 1 │ chunk 2      each sorted by key, memory-mapped
                           └──────────┴─────────┘
    ranges()                 keys < b1, keys < b2, ...    of each chunk a slice, found by bisection

The boundaries are chosen from a sample of the sorted chunks: every `SAMPLED`-th key of each. So a range holds at most
`SAMPLED` rows of each chunk more than was asked for, and all rows of one key, which are never divided.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from persist_core.schema import Column
from persist_core.shard.key_range import Key, key_at

SAMPLED = 1_024


@dataclass
class Spill:
    """Tables in a folder, which the caller removes. Tables with one `tag` have the same columns."""

    folder: Path
    key: Sequence[Column]
    _chunks: list[tuple[str, pa.Table]] = field(default_factory=list)
    _sample: list[Key] = field(default_factory=list)

    def add(self, tag: str, table: pa.Table) -> None:
        """Sort the table and write it to disk."""
        if not len(table):
            return
        ordered = table.sort_by([(column.name, "ascending") for column in self.key])
        path = self.folder / f"{len(self._chunks)}.arrow"
        with pa.OSFile(str(path), "wb") as out, pa.ipc.new_file(out, ordered.schema) as file:
            file.write_table(ordered)
        chunk = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        self._chunks.append((tag, chunk))
        self._sample += [key_at(chunk, row, self.key) for row in range(SAMPLED // 2, len(chunk), SAMPLED)]

    def ranges(self, rows: int) -> Iterator[dict[str, pa.Table]]:
        """All rows by tag, range by range in the order of keys, about `rows` at a time. Each row once."""
        starts = [0] * len(self._chunks)
        for boundary in [*self._boundaries(rows), None]:
            found: dict[str, list[pa.Table]] = {}
            for number, (tag, chunk) in enumerate(self._chunks):
                end = len(chunk) if boundary is None else self._place(chunk, boundary, starts[number])
                found.setdefault(tag, []).append(chunk.slice(starts[number], end - starts[number]))
                starts[number] = end
            yield {tag: pa.concat_tables(tables) for tag, tables in found.items()}

    def _boundaries(self, rows: int) -> list[Key]:
        """The first keys of all ranges but the first."""
        step = max(1, rows // SAMPLED)
        return sorted(set(sorted(self._sample)[step::step]))

    def _place(self, chunk: pa.Table, boundary: Key, start: int) -> int:
        return bisect.bisect_left(range(len(chunk)), boundary, start, key=lambda row: key_at(chunk, row, self.key))
