"""The part of the order index that belongs to no slot: the floor, and the highest order that is forgotten.

    a file of the index, when it is staged ──four columns──> `OrderFacts`, in the manifest
    facts of all files of the chain ───────────────────────> `Memory`: a few values, literals in the plan of a batch

So a batch opens no file of the index for them, whatever the index's size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from persist_core.contents.key_range import key_at, value_at
from persist_core.contents.operator_state import OrderFacts, OrderKey
from persist_core.schema import (
    BAD_KEY,
    DELETED,
    FLOOR,
    FORGOTTEN,
    INDEX_KIND,
    ORDER,
    TIME,
    CollectionSchema,
    Column,
    order_cells,
)

MEMORY_COLUMNS = (INDEX_KIND, TIME, ORDER, BAD_KEY)
Order = tuple[Any, ...]  # the values of an order struct
STEPS = 8  # of tombstones by time, in the facts of a file: one more order each in every manifest that names it


@dataclass(frozen=True)
class Memory:
    """The highest orders of their kinds, with the times (ms) at which they acted; `None`: the index has none.

    `floor`: of truncates. `marked`: of tombstones that the index says are forgotten. `forgotten`: the highest order
    that may be forgotten, marked or only old; it may be too high, because a tombstone can be void, or remembered for
    the stash, or a little younger than what is forgotten.
    """

    floor: tuple[Order, int] | None = None
    marked: tuple[Order, int] | None = None
    forgotten: Order | None = None
    has_bad_keys: bool = True

    @classmethod
    def of(
        cls,
        facts: Iterable[OrderFacts],
        schema: CollectionSchema,
        forgets_before: int | None,
        ranked: Callable[[Order], Order] | None = None,
    ) -> Memory:
        """From what is known of the files of the index. Tombstones that acted before `forgets_before` (ms; `None`:
        no time) are old. `ranked`: a stored order as it is compared now (`persist_spark.upsert.eras`).
        """
        known, as_now = list(facts), ranked or (lambda order: order)
        floor = _highest([(as_now(each.floor[0]), each.floor[1]) for each in known if each.floor])
        marked = _highest([(as_now(each.forgotten[0]), each.forgotten[1]) for each in known if each.forgotten])
        steps = [(as_now(order), time) for each in known for order, time in each.deleted]
        old = [step for step in steps if forgets_before is not None and step[1] < forgets_before]
        forgotten = _highest([*old, *([marked] if marked else [])])
        return cls(
            None if floor is None else (values_of(floor[0], schema), floor[1]),
            None if marked is None else (values_of(marked[0], schema), marked[1]),
            None if forgotten is None else values_of(forgotten[0], schema),
            any(each.has_bad_keys for each in known),
        )


NOTHING = Memory()


def facts_of(entries: Iterable[pa.Table], schema: CollectionSchema, first_time: int, last_time: int) -> OrderFacts:
    """The facts of a file of the index from its entries, in `MEMORY_COLUMNS`, which lie between these times."""
    has_bad_keys = False
    found: dict[str, list[tuple[OrderKey, int]]] = {FLOOR: [], FORGOTTEN: []}
    steps: dict[int, list[tuple[OrderKey, int]]] = {}
    width = (last_time - first_time) // STEPS + 1
    for table in entries:
        has_bad_keys = has_bad_keys or table[BAD_KEY].null_count < len(table)
        for kind, orders in found.items():
            orders += _highest_row(table.filter(pc.equal(table[INDEX_KIND], kind)), schema)
        deleted = table.filter(pc.equal(table[INDEX_KIND], DELETED))
        step_of = pc.divide(pc.subtract(deleted[TIME], first_time), width)
        for step in pc.unique(step_of).to_pylist():
            of_step = deleted.filter(pc.equal(step_of, step))
            since = pc.min(of_step[TIME]).as_py()
            steps.setdefault(step, []).extend((order, since) for order, _ in _highest_row(of_step, schema))
    rising: list[tuple[OrderKey, int]] = []  # a step that is not above those before it says nothing
    for _, in_step in sorted(steps.items()):
        highest = _highest([(order, min(since for _, since in in_step)) for order, _ in in_step])
        if highest and (not rising or _highest([(rising[-1][0], highest[1]), highest]) is highest):
            rising.append(highest)
    return OrderFacts(_highest(found[FLOOR]), _highest(found[FORGOTTEN]), tuple(rising), has_bad_keys)


def values_of(order: OrderKey, schema: CollectionSchema) -> Order:
    """The order as Python's values; dates and timestamps as texts."""
    columns = zip(order, order_cells(schema).values(), strict=True)
    return tuple(None if scalar is None else value_at(scalar, column) for scalar, column in columns)


def _highest(orders: Sequence[tuple[OrderKey, int]]) -> tuple[OrderKey, int] | None:
    """The highest order, then time; null is the least, as in Spark."""
    return max(orders, key=lambda each: ([(cell is not None, cell) for cell in each[0]], each[1]), default=None)


def _highest_row(rows: pa.Table, schema: CollectionSchema) -> list[tuple[OrderKey, int]]:
    if not len(rows):
        return []
    columns = order_cells(schema).values()
    for place in range(len(columns)):
        rows = _where_highest(rows, pc.struct_field(rows[ORDER], [place]))
    row = _where_highest(rows, rows[TIME]).slice(0, 1)
    cells = {str(place): pc.struct_field(row[ORDER], [place]) for place in range(len(columns))}
    named = [Column(str(place), column.type) for place, column in enumerate(columns)]
    return [(key_at(pa.table(cells), 0, named), row[TIME][0].as_py())]


def _where_highest(rows: pa.Table, values: pa.ChunkedArray) -> pa.Table:
    highest = pc.max(values)
    return rows.filter(pc.equal(values, highest)) if highest.is_valid else rows
