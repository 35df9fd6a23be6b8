"""`LimitedReader`: reads for people, which take a bounded share of the memory and time of the process that serves them.

    files --packed batches--> what the piece takes --charged to the `ReadBudget`, then unpacked--> a table in memory
    keyed shard:  keys, times, row numbers of all --live, sorted--> the rows of the page --> their other columns

1. Before each batch the budget says whether the read goes on: its time is over, or no one waits for its result.
2. What is held is counted in decoded bytes, before it is decoded: neither a footer nor a file's size tells, because a
   text that is stored once may be in every row.
3. Of a keyed shard only the keys of all rows are held, and of the page's rows everything. Rows without a key, and
   errors, differ in any of their columns, so all are held.
4. Files are read one after another: the memory of one batch at a time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from persist_core.contents import pieces
from persist_core.contents.key_range import KeyRange
from persist_core.contents.parts import nullable, updates_schema
from persist_core.contents.pieces import Piece
from persist_core.contents.stats import show_bytes
from persist_core.errors import InvalidInput
from persist_core.handles.client import PersistClient
from persist_core.handles.load import batches_of, load_part
from persist_core.handles.overtaken import named_if_slow
from persist_core.handles.read import ReadHandle, schema_of
from persist_core.schema import DIFF, ENDED, TIME, CollectionSchema
from persist_core.shard.state import ShardState

ROWS_AT_ONCE = 1 << 14
_PIECE, _ROW = pa.field("_persist_piece", pa.int32()), pa.field("_persist_place", pa.int64())  # where a row is stored


@dataclass
class ReadBudget:
    """The budget of a limited read, and `check`, which raises when it has to stop."""

    max_bytes: int
    check: Callable[[], None] = lambda: None
    held_bytes: int = 0

    def charge(self, shard: str, size_bytes: int) -> None:
        """Count bytes before they are decoded. Raises `InvalidInput` if they are too many."""
        self.held_bytes += size_bytes
        if self.held_bytes > self.max_bytes:
            raise InvalidInput(
                f"shard {shard}: the read holds {show_bytes(self.held_bytes)} of decoded rows so far, expected at most"
                f" {show_bytes(self.max_bytes)}. Give a key, a shorter interval or a smaller limit, or read it with"
                " Spark or from Python"
            )


class LimitedReader(ReadHandle):
    """Reads pages of one shard within one budget, which all its reads share."""

    def __init__(self, client: PersistClient, shard: str, budget: ReadBudget, *, generation: int | None = None) -> None:
        super().__init__(client, shard, generation=generation)
        self._budget = budget
        self._pieces: list[Piece] = []

    def page_of_rows(
        self, state: ShardState, time: int, keys: Sequence[KeyRange] | None, start: int, limit: int | None
    ) -> tuple[pa.Table, int]:
        """Rows `[start, start + limit)` of a keyed shard as of `time`, in the order of the key; how many there are."""
        schema = schema_of(state)
        live = self._as_of(state, time, _located(schema), keys)
        shown = live.sort_by([(name, "ascending") for name in schema.key_names]).slice(start, limit)
        with named_if_slow(self._store.machine, self.shard, state.batches):
            whole = self._whole(shown, updates_schema(schema, orders=False))
        return self._fit(whole, schema, time), len(live)

    def page_of_changes(
        self,
        after: int,
        through: int,
        keys: Sequence[KeyRange] | None,
        start: int,
        limit: int | None,
        version: int | None,
    ) -> tuple[pa.Table, int]:
        """Changes `[start, start + limit)` of a keyed shard, by time, key and diff; how many there are."""
        batches, schema, low, high = self._range(after, through, version)
        found = self._read_keys(
            batches, _located(schema), lambda b, m: pieces.oks_between(b, m, low, high), schema, keys
        )
        shown = found.sort_by([(name, "ascending") for name in (TIME, *schema.key_names, DIFF)]).slice(start, limit)
        with named_if_slow(self._store.machine, self.shard, batches):
            return self._whole(shown, updates_schema(schema, orders=False)), len(found)

    def read_pieces(self, chosen: list[Piece], schema: pa.Schema) -> pa.Table:
        columns = nullable(schema)
        tables = [table for piece in chosen for table in self._taken(piece, columns)]
        return pa.concat_tables(tables) if tables else columns.empty_table()

    def _taken(self, piece: Piece, schema: pa.Schema) -> Iterator[pa.Table]:
        self._pieces.append(piece)
        wanted = pa.schema([field for field in schema if field not in (_PIECE, _ROW)])
        if piece.has_ends:
            wanted = wanted.append(pa.field(ENDED, pa.int64()))
        start = 0
        for table in self._batches(piece, wanted):
            rows = len(table)
            if _ROW.name in schema.names:
                number = pa.scalar(len(self._pieces) - 1, _PIECE.type)
                table = table.append_column(_PIECE, pa.repeat(number, rows))
                table = table.append_column(_ROW, pa.array(range(start, start + rows), _ROW.type))
            yield self._unpacked(piece.of(table)).select(schema.names)
            start += rows

    def _batches(self, piece: Piece, columns: pa.Schema) -> Iterator[pa.Table]:
        self._budget.check()
        blob, part, part_format = self._store.blob, piece.part, self._store.part_format
        data = load_part(blob, part)
        for table in batches_of(blob, part, data, columns, part_format, rows=ROWS_AT_ONCE, is_packed=True):
            yield table
            self._budget.check()

    def _whole(self, shown: pa.Table, columns: pa.Schema) -> pa.Table:
        """The rows of `shown` with all of `columns`: missing ones are read from where the rows are stored."""
        others = nullable(field for field in columns if field.name not in shown.column_names)
        places: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        for at, (piece, row) in enumerate(zip(*(shown[f.name].to_pylist() for f in (_PIECE, _ROW)), strict=True)):
            places[piece].append((row, at))
        tables, order = [others.empty_table()], []
        for number, wanted in sorted(places.items()):
            wanted.sort()
            begin = done = 0
            for table in self._batches(self._pieces[number], others) if others.names else ():
                end = bisect_left(wanted, (begin + len(table),))
                if end > done:
                    rows = pa.array([row - begin for row, _ in wanted[done:end]], pa.int64())
                    tables.append(self._unpacked(table.take(rows)))
                begin, done = begin + len(table), end
                if done == len(wanted):
                    break
            order += [at for _, at in wanted]
        values = pa.concat_tables(tables)
        if others.names:
            values = values.take(pc.sort_indices(pa.array(order, pa.int64())))
        known = {name: shown[name] for name in shown.column_names} | {name: values[name] for name in others.names}
        return pa.table({name: known[name] for name in columns.names})

    def _unpacked(self, table: pa.Table) -> pa.Table:
        """The table without dictionaries, charged to the budget first."""
        self._budget.charge(self.shard, sum(map(_decoded_bytes, table.columns)))
        return pa.table(
            [c.cast(c.type.value_type) if pa.types.is_dictionary(c.type) else c for c in table.columns],
            names=table.column_names,
        )

    def _before_copies(self, counted: pa.Table) -> None:
        rows, copies = max(len(counted), 1), pc.sum(counted[DIFF]).as_py()
        self._budget.charge(self.shard, counted.nbytes // rows * copies)


def _located(schema: CollectionSchema) -> pa.Schema:
    """The columns that decide which rows of a keyed shard are shown, and where each is stored."""
    columns = updates_schema(schema, orders=False)
    return pa.schema([*(columns.field(name) for name in (*schema.key_names, TIME, DIFF)), _PIECE, _ROW])


def _decoded_bytes(column: pa.ChunkedArray) -> int:
    if not pa.types.is_dictionary(column.type):
        return int(column.nbytes)
    total = 0
    for chunk in column.chunks:
        lengths: Any = pc.binary_length(chunk.dictionary)
        total += 4 * len(chunk) + (pc.sum(lengths.take(chunk.indices)).as_py() or 0)
    return total
