"""A shard in two schema versions, and what every reader must show of it. No command changes a schema yet, so the second
version is put into the registry by hand.

    version 1    id: int          name: string    price: float     gone: string    amount: decimal(10,2)
    version 2    number: bigint   title: string   price: double    gone: int       amount: decimal(12,2)
                 the key          the name        widened          another column  widened, and first
"""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

from persist_core.config.collection import FILE_POSITION
from persist_core.handles.client import PersistClient
from persist_core.schema import CollectionSchema, Column
from persist_core.shard.state import ShardState
from tests.plain_commit import commit

SHARD = "things"
VALUES_1 = (
    Column("name", "string"),
    Column("price", "float"),
    Column("gone", "string"),
    Column("amount", "decimal(10,2)"),
)
VERSION_1 = CollectionSchema((Column("id", "int", nullable=False),), VALUES_1, position=FILE_POSITION)
VALUES_2 = (
    Column("amount", "decimal(12,2)", id=5),
    Column("title", "string", id=2),
    Column("price", "double", id=3),
    Column("gone", "int", id=6),
)
VERSION_2 = CollectionSchema(
    (Column("number", "bigint", nullable=False, id=1),), VALUES_2, position=FILE_POSITION, version=2
)
WIDE = 1 << 40  # a key and an amount that version 1 could not hold
PRICE = 0.10000000149011612  # the double that is the float 0.1
UPPER_1, UPPER_2 = 10, 20
OLD = [(1, "a", 0.1, "x", Decimal("1.10")), (2, "b", None, None, None), (3, "c", 0.5, "z", Decimal("3.00"))]
Row = dict[str, Any]
ROWS_1: list[Row] = [
    {"number": 1, "amount": Decimal("1.10"), "title": "a", "price": PRICE, "gone": None},
    {"number": 2, "amount": None, "title": "b", "price": None, "gone": None},
    {"number": 3, "amount": Decimal("3.00"), "title": "c", "price": 0.5, "gone": None},
]
ROWS_2: list[Row] = [
    {"number": 1, "amount": Decimal("1.10"), "title": "A", "price": 0.1, "gone": 7},
    ROWS_1[2],
    {"number": WIDE, "amount": Decimal(f"{10**9}.25"), "title": "d", "price": 1.0, "gone": None},
]
CHANGES = [(ROWS_1[0], -1), (ROWS_1[1], -1), (ROWS_2[0], 1), (ROWS_2[2], 1)]
ERRORS_1, ERRORS_2 = [(b"\x01", 5)], [(b"\x01", 5), (b"\x02", 15)]


def evolve(client: PersistClient, schema: CollectionSchema = VERSION_2, shard: str = SHARD) -> None:
    """Put one more version into the registry of the shard."""

    def change(state: ShardState) -> tuple[ShardState, None]:
        return replace(
            state, schemas=state.schemas.with_version(schema, seqno=state.seqno + 1, lower=state.upper.time or 0)
        ), None

    client.machine.apply(shard, change)


def write_version_1(client: PersistClient) -> None:
    """Three rows and an err."""
    errs = [("value", b"k", b"\x01", 5, 1)]
    commit(client, SHARD, VERSION_1, UPPER_1, [(row, 5, 1) for row in OLD], errs)


def write_version_2(client: PersistClient) -> None:
    """An update, a delete, a new row and an err, as any writer says them in the new schema."""
    old, new = (tuple(row.values()) for row in (ROWS_1[0], ROWS_2[0]))
    updates = [(old, 15, -1), (new, 15, 1), (tuple(ROWS_1[1].values()), 15, -1), (tuple(ROWS_2[2].values()), 15, 1)]
    commit(client, SHARD, VERSION_2, UPPER_2, updates, [("value", b"l", b"\x02", 15, 1)])


def write_both(client: PersistClient) -> None:
    """The whole shard."""
    write_version_1(client)
    evolve(client)
    write_version_2(client)


def by_number(rows: list[Row]) -> list[Row]:
    """In the order of the key."""
    return sorted(rows, key=lambda row: row["number"])
