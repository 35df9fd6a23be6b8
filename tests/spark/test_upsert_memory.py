"""What of the order index belongs to no slot, against the obvious way to find it."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from persist_core.schema import BAD_KEY, DELETED, FLOOR, FORGOTTEN, IN_ROW, INDEX_KIND, ORDER, RAISED, TIME
from persist_spark.upsert.memory import Memory

_ORDER = pa.struct(
    [("by0", pa.string()), ("by1", pa.timestamp("us", "UTC")), ("file", pa.string()), ("row", pa.int64())]
)
_SCHEMA = pa.schema([(INDEX_KIND, pa.string()), (TIME, pa.int64()), (ORDER, _ORDER), (BAD_KEY, pa.binary())])


def _entries(dice: random.Random, count: int) -> list[dict[str, Any]]:
    return [
        {
            INDEX_KIND: dice.choice([DELETED, DELETED, RAISED, IN_ROW, FLOOR, FORGOTTEN]),
            TIME: dice.randrange(9),
            ORDER: {
                "by0": dice.choice([None, "", "a", "é", "z"]),
                "by1": dice.choice([None, 0, 1]),
                "file": dice.choice(["a", "b"]),
                "row": dice.randrange(3),
            },
            BAD_KEY: b"?" if dice.random() < 1 / 50 else None,
        }
        for _ in range(count)
    ]


def _rank(order: dict[str, Any]) -> Any:
    """Null is the least, texts are compared by their bytes."""
    cells = [cell.encode() if isinstance(cell, str) else cell for cell in order.values()]
    return [(cell is not None, cell) if cell is not None else (False,) for cell in cells]


def _highest(entries: list[dict[str, Any]]) -> dict[str, Any] | None:
    return max(entries, key=lambda entry: (_rank(entry[ORDER]), entry[TIME]), default=None)


@pytest.mark.parametrize("forgets_before", [None, 0, 4, 99])
@pytest.mark.parametrize("count", [0, 1, 5, 60])
def test_memory_is_that_of_all_entries(persist_seed: int, forgets_before: int | None, count: int) -> None:
    dice = random.Random(f"{persist_seed}/{forgets_before}/{count}")
    table = pa.Table.from_pylist(_entries(dice, count), _SCHEMA)
    entries = table.to_pylist()
    cut = dice.randrange(count + 1)

    found = Memory.of([table.slice(0, cut), table.slice(cut)], forgets_before)

    floor, marked = ([e for e in entries if e[INDEX_KIND] == kind] for kind in (FLOOR, FORGOTTEN))
    old = [e for e in entries if e[INDEX_KIND] == DELETED and e[TIME] < (forgets_before or 0)]
    for entry, among in ((found.floor, floor), (found.marked, marked)):
        highest = _highest(among)
        assert entry == (None if highest is None else (highest[ORDER], highest[TIME]))
    forgotten = _highest([{**entry, TIME: 0} for entry in marked + old])
    assert found.forgotten == (None if forgotten is None else forgotten[ORDER])
    assert found.has_bad_keys == any(entry[BAD_KEY] is not None for entry in entries)
