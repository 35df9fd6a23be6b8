"""Spilled rows come back once, in ranges of bounded size, in the order of keys."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from persist_core.compaction.spill import Spill
from persist_core.contents.key_range import Key, key_at
from persist_core.schema import Column

KEY = (Column("a", "string", nullable=False), Column("b", "bigint", nullable=False))


@pytest.mark.parametrize("seed", range(10))
def test_ranges_are_ordered_bounded_and_whole(seed: int, tmp_path: Path) -> None:
    batch_rows = random.Random(seed).choice([1, 16, 1_000])
    chance = random.Random(seed)
    most = chance.choice([0, 64, 2_000])
    spill = Spill(tmp_path, KEY, most, 1 << 20, sampled=8, batch_rows=batch_rows)
    added, chunks = Counter[tuple[str, str, int]](), 0
    for _ in range(chance.randrange(12)):
        tag, rows = chance.choice(["x", "y"]), chance.choice([0, 1, 50, 300])
        table = pa.table(
            {"a": chance.choices(["", "k", "ü"], k=rows), "b": [chance.randrange(500) for _ in range(rows)]}
        )
        added.update((tag, *row.values()) for row in table.to_pylist())
        chunks += bool(rows)
        spill.add(tag, table.cast(pa.schema([("a", pa.string()), ("b", pa.int64())])))
    found, last = Counter[tuple[str, str, int]](), Key()
    for tables in spill.ranges():
        keys = {key_at(table, row, KEY) for table in tables.values() for row in range(len(table))}
        assert not keys or min(keys) > last or not found
        last = max(keys, default=last)
        most_of_a_key = max(added.values(), default=0) * 2
        assert sum(map(len, tables.values())) <= most + 8 * (chunks + 1) + most_of_a_key
        found.update((tag, *row.values()) for tag, table in tables.items() for row in table.to_pylist())
    assert found == added
    assert len(list(tmp_path.iterdir())) <= chunks
