"""The part of the order index that belongs to no slot, against the obvious way to find it."""

from __future__ import annotations

import json
import random
from dataclasses import asdict
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from persist_core.config.collection import FILE_POSITION
from persist_core.contents.operator_state import OperatorState, OrderFacts, StateArtifact
from persist_core.exact import timestamp_text
from persist_core.schema import (
    BAD_KEY,
    DELETED,
    FLOOR,
    FORGOTTEN,
    IN_ROW,
    INDEX_KIND,
    ORDER,
    RAISED,
    TIME,
    CollectionSchema,
    Column,
    order_type,
)
from persist_core.sealed import from_plain
from persist_spark.order_memory import STEPS, Memory, facts_of

_COLLECTION = CollectionSchema(
    key=(Column("id", "bigint", nullable=False),),
    order=(Column("text", "string"), Column("at", "timestamp"), Column("price", "decimal(9,2)")),
    position=FILE_POSITION,
)
_ORDER = order_type(_COLLECTION)
_SCHEMA = pa.schema([(INDEX_KIND, pa.string()), (TIME, pa.int64()), (ORDER, _ORDER), (BAD_KEY, pa.binary())])


def _entries(dice: random.Random, count: int) -> list[dict[str, Any]]:
    return [
        {
            INDEX_KIND: dice.choice([DELETED, DELETED, RAISED, IN_ROW, FLOOR, FORGOTTEN]),
            TIME: dice.randrange(9),
            ORDER: {
                "by0": dice.choice([None, "", "a", "é", "z"]),
                "by1": dice.choice([None, 0, 1, 2**63 - 1, -(2**62)]),  # no time of Python's
                "by2": dice.choice([None, Decimal("-1.50"), Decimal("0.01")]),
                "file": dice.choice(["a", "b"]),
                "block": 0,
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


def _values(order: dict[str, Any]) -> tuple[Any, ...]:
    at = order["by1"]
    return tuple({**order, "by1": None if at is None else timestamp_text(at)}.values())


def _facts(table: pa.Table) -> OrderFacts:
    """Through the JSON of a manifest."""
    times = table[TIME].to_pylist()
    found = facts_of([table.slice(0, 7), table.slice(7)], _COLLECTION, min(times), max(times))
    artifact = StateArtifact(0, "key", 1, "digest", orders=found)
    stored = json.loads(json.dumps(asdict(OperatorState(True, (artifact,)))))
    (read,) = from_plain(OperatorState, stored, what="").artifacts
    assert read == artifact
    assert read.orders is not None
    return read.orders


def _highest(entries: list[dict[str, Any]]) -> dict[str, Any] | None:
    return max(entries, key=lambda entry: (_rank(entry[ORDER]), entry[TIME]), default=None)


@pytest.mark.parametrize("forgets_before", [None, 0, 4, 99])
@pytest.mark.parametrize("count", [0, 1, 5, 60])
def test_memory_is_that_of_all_entries(persist_seed: int, forgets_before: int | None, count: int) -> None:
    dice = random.Random(f"{persist_seed}/{forgets_before}/{count}")
    entries = _entries(dice, count)
    table = pa.Table.from_pylist(entries, _SCHEMA)
    cut = dice.randrange(count + 1)

    files = [file for file in (table.slice(0, cut), table.slice(cut)) if len(file)]
    found = Memory.of(map(_facts, files), _COLLECTION, forgets_before)

    floor, marked = ([e for e in entries if e[INDEX_KIND] == kind] for kind in (FLOOR, FORGOTTEN))
    old = [e for e in entries if e[INDEX_KIND] == DELETED and e[TIME] < (forgets_before or 0)]
    for entry, among in ((found.floor, floor), (found.marked, marked)):
        highest = _highest(among)
        assert entry == (None if highest is None else (_values(highest[ORDER]), highest[TIME]))
    forgotten = _highest([{**entry, TIME: 0} for entry in marked + old])
    assert found.forgotten == (None if forgotten is None else _values(forgotten[ORDER]))
    assert found.has_bad_keys == any(entry[BAD_KEY] is not None for entry in entries)


def test_facts_stay_small_and_forget_at_most_a_step_too_much() -> None:
    """10,000 tombstones, one each ms, of rising orders: the bound is never too low, and less than a step too high."""
    order = {"by0": "a", "by1": None, "by2": None, "file": "f", "block": 0}
    rows = [{INDEX_KIND: DELETED, TIME: t, ORDER: {**order, "row": t}, BAD_KEY: None} for t in range(10_000)]
    facts = _facts(pa.Table.from_pylist(rows, _SCHEMA))
    assert len(facts.deleted) == STEPS
    for before in (1, 4_321, 9_999, 20_000):
        forgotten = Memory.of([facts], _COLLECTION, before).forgotten
        assert forgotten is not None
        assert min(before, 10_000) - 1 <= forgotten[-1] <= before + 10_000 // STEPS
    assert Memory.of([facts], _COLLECTION, 0).forgotten is None
