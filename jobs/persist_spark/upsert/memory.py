"""What of the order index belongs to no slot: the floor, and the highest order that is forgotten.

    order index, file by file ──four columns──> `Memory`: a few values, which the plan of a batch gets as literals

Found in the process that plans, because it takes milliseconds for 100,000 entries: as a part of Spark's plan it took
three jobs before the main one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from persist_core.schema import BAD_KEY, DELETED, FLOOR, FORGOTTEN, INDEX_KIND, ORDER, TIME

MEMORY_COLUMNS = (INDEX_KIND, TIME, ORDER, BAD_KEY)
Order = Mapping[str, Any]  # the fields of an order struct by name


@dataclass(frozen=True)
class Memory:
    """The highest orders of their kinds, with the times (ms) at which they acted; `None`: the index has none.

    `floor`: of truncates. `marked`: of tombstones that the index says are forgotten. `forgotten`: the highest order
    that may be forgotten, marked or only old; it may be too high, because a tombstone can be void, or remembered for
    the stash.
    """

    floor: tuple[Order, int] | None = None
    marked: tuple[Order, int] | None = None
    forgotten: Order | None = None
    has_bad_keys: bool = True

    @classmethod
    def of(cls, entries: Iterable[pa.Table], forgets_before: int | None) -> Memory:
        """From entries of the index, in `MEMORY_COLUMNS`. Tombstones that acted before `forgets_before` (ms; `None`:
        no time) are old."""
        floor: pa.Table | None = None
        marked: pa.Table | None = None
        old: pa.Table | None = None
        has_bad_keys = False
        for table in entries:
            has_bad_keys = has_bad_keys or table[BAD_KEY].null_count < len(table)
            kind = table[INDEX_KIND]
            floor = _highest(floor, table.filter(pc.equal(kind, FLOOR)))
            marked = _highest(marked, table.filter(pc.equal(kind, FORGOTTEN)))
            if forgets_before is not None:
                is_old = pc.and_(pc.equal(kind, DELETED), pc.less(table[TIME], forgets_before))
                old = _highest(old, table.filter(is_old))
        forgotten = old if marked is None else _highest(old, marked)
        highest = None if forgotten is None else forgotten[ORDER][0].as_py()
        return cls(_entry(floor), _entry(marked), highest, has_bad_keys)


NOTHING = Memory()


def _highest(known: pa.Table | None, found: pa.Table) -> pa.Table | None:
    """The row with the highest order, then time, of both; null is the least, as in Spark."""
    if not found.num_rows:
        return known
    rows = found if known is None else pa.concat_tables([known, found])
    for place in range(rows.schema.field(ORDER).type.num_fields):
        rows = _where_highest(rows, pc.struct_field(rows[ORDER], [place]))
    return _where_highest(rows, rows[TIME]).slice(0, 1)


def _where_highest(rows: pa.Table, values: pa.ChunkedArray) -> pa.Table:
    highest = pc.max(values)
    return rows.filter(pc.equal(values, highest)) if highest.is_valid else rows


def _entry(row: pa.Table | None) -> tuple[Order, int] | None:
    return None if row is None else (row[ORDER][0].as_py(), row[TIME][0].as_py())
