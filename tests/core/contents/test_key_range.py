"""Ranges of keys: every key lies within the bounds of its file, and no range that holds a key of a file misses it."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from persist_core.contents.key_range import (
    EVERYTHING,
    MAX_TEXT_CHARS,
    KeyRange,
    exactly,
    is_within,
    key_at,
    meets_any,
    parse_key,
    range_of,
    range_of_statistics,
    spanning,
)
from persist_core.errors import InvalidInput
from persist_core.schema import CollectionSchema, Column

LONG = MAX_TEXT_CHARS + 3
VALUES: dict[str, Any] = {
    "boolean": lambda chance: chance.random() < 0.5,
    "int": lambda chance: chance.randrange(-3, 3),
    "bigint": lambda chance: chance.choice([-(2**63), -1, 0, 2**63 - 1]),
    "string": lambda chance: "".join(
        chance.choice("a\uffff\U00010000\U0010ffff\ud7ff") for _ in range(chance.choice([0, 1, 2, LONG, LONG + 1]))
    ),
    "binary": lambda chance: bytes(chance.choice([0, 127, 255]) for _ in range(chance.choice([0, 1, 2, LONG]))),
    "date": lambda chance: date(1970, 1, 1) + timedelta(days=chance.randrange(-3, 3)),
    "timestamp": lambda chance: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=chance.randrange(-3, 3)),
    "decimal(38,2)": lambda chance: Decimal(
        (chance.randrange(2), tuple(map(int, str(chance.choice([0, 5, 10**37 + 1])))), -2)
    ),
}


def key_columns(*types: str) -> tuple[Column, ...]:
    return tuple(Column(f"k{i}", name, nullable=False) for i, name in enumerate(types))


def random_table(chance: random.Random, key: tuple[Column, ...], rows: int) -> pa.Table:
    schema = CollectionSchema(key).arrow()
    return pa.table([[VALUES[column.type](chance) for _ in range(rows)] for column in key], schema=schema)


@pytest.mark.parametrize("seed", range(60))
def test_bounds_hold_every_key_and_keep_the_order_of_arrow(seed: int) -> None:
    chance = random.Random(seed)
    key = key_columns(*(chance.choice(list(VALUES)) for _ in range(chance.randrange(1, 4))))
    table = random_table(chance, key, 12).sort_by([(column.name, "ascending") for column in key])
    keys = [key_at(table, row, key) for row in range(len(table))]
    assert keys == sorted(keys)
    for start in range(len(table)):
        file = range_of(table.slice(start, 4), key)
        for each in keys[start : start + 4]:
            assert file.meets(exactly(each))
            assert file.covers(exactly(each))
            assert file.meets(exactly(each[:1]))
        for one, other in zip(keys[start:], keys[start + 1 :], strict=False):
            assert range_of(table.slice(start, 4), key).meets(KeyRange(one, other)) or one > keys[start:][:4][-1]


@pytest.mark.parametrize("seed", range(60))
def test_rows_are_selected_as_keys_are_compared(seed: int) -> None:
    chance = random.Random(f"rows {seed}")
    key = key_columns(*(chance.choice(list(VALUES)) for _ in range(chance.randrange(1, 4))))
    table = random_table(chance, key, 15)
    keys = [key_at(table, row, key) for row in range(len(table))]
    ranges = []
    for _ in range(chance.randrange(4)):
        low, high = sorted(chance.sample(keys, 2))
        ends = [None if chance.random() < 0.2 else each[: chance.randrange(1, len(key) + 1)] for each in (low, high)]
        ranges.append(KeyRange(*ends))
    expected = [row for row, each in enumerate(keys) if meets_any(exactly(each), ranges)]
    assert (
        table.filter(is_within(table, ranges, key)).to_pylist()
        == table.take(pa.array(expected, pa.int64())).to_pylist()
    )
    for each in ranges:
        if pc.any(is_within(table, [each], key)).as_py():
            assert range_of(table, key).meets(each)


def test_long_texts_are_cut_below_and_rounded_up_above() -> None:
    text = "a" * 70
    assert exactly((text, 1)).shortened() == KeyRange(("a" * 64,), ("a" * 63 + "b",))
    assert exactly(("x", "\ud7ff" * 70)).shortened().last == ("x", "\ud7ff" * 63 + "\ue000")
    assert exactly(("\U0010ffff" * 65, 1)).shortened() == KeyRange(("\U0010ffff" * 64,), None)
    assert exactly(("a" + "\U0010ffff" * 65,)).shortened().last == ("b",)
    assert exactly(("a" * 64, 1)).shortened() == exactly(("a" * 64, 1))


def test_statistics_are_bounds_of_each_column() -> None:
    key = key_columns("decimal(38,2)", "string", "binary")
    low, high = [(-150).to_bytes(16, "big", signed=True), b"a", b"\x00"], [b"\x01", "ü".encode(), b"\xff"]
    assert range_of_statistics(low, high, key) == KeyRange((-150, "a", "00"), (1, "ü", "ff"))
    assert range_of_statistics([b"", b"\xff", b""], high, key) == EVERYTHING
    assert spanning([KeyRange((1,), (3,)), KeyRange((0,), (2,))]) == KeyRange((0,), (3,))
    assert spanning([KeyRange((1,), None), KeyRange((0,), (2,))]) == KeyRange((0,), None)
    assert spanning([]) == EVERYTHING


def test_keys_that_no_shard_may_hold_give_no_bounds() -> None:
    key = key_columns("string")
    assert range_of(pa.table({"k0": pa.array([None], pa.string())}), key) == EVERYTHING
    half = pa.table({"k0": ["a", "a"], "k1": pa.array([None, None], pa.int32())})
    assert range_of(half, key_columns("string", "int")) == EVERYTHING
    invalid = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")])
    assert range_of(pa.table({"k0": invalid}), key) == EVERYTHING
    assert range_of(pa.table({"k0": pa.array([], pa.string())}), key) == EVERYTHING
    assert range_of(pa.table({"k0": ["a"]}), ()) == EVERYTHING


def test_keys_as_users_type_them() -> None:
    key = key_columns("bigint", "decimal(9,2)", "date", "timestamp", "binary", "boolean", "string")
    texts = ["-5", "1.5", "1970-01-02", "1970-01-01 00:00:00.000001Z", "FF00", "true", "ü"]
    assert parse_key(texts, key) == (-5, 150, 1, 1, "ff00", True, "ü")
    assert parse_key(texts[:1], key) == (-5,)
    at = key_columns("timestamp")  # without a zone in UTC, as they are shown
    for text, days in (("1970-01-02", 1), ("1970-01-02 00:00:00", 1), ("1970-01-02T02:00:00+02:00", 1)):
        assert parse_key([text], at) == (days * 86_400_000_000,)
    with pytest.raises(InvalidInput, match=r"found .2026-01-02T25:00.; expected a value of type timestamp$"):
        parse_key(["2026-01-02T25:00"], at)
    with pytest.raises(InvalidInput, match="key column k0: found 'x'; expected a value of type bigint"):
        parse_key(["x"], key)
    with pytest.raises(InvalidInput, match=r"key column k0: found 'AP8='; expected a value of type binary, in hex$"):
        parse_key(["AP8="], key_columns("binary"))
    with pytest.raises(InvalidInput, match="found 2 key values; expected 1 to 1: k0"):
        parse_key(["1", "2"], key_columns("int"))
