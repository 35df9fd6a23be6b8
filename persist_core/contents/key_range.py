"""Ranges of keys: what a file holds at most, and what a read asks for.

    rows, or the footer of a file ──> the range of its keys, in the manifest ─┐
    a read or a look-up ────────────> ranges of keys ─────────────────────────┴─ meets? ──> the file is read

A key is compared as a tuple with one scalar for each key column: lexicographically, as runs are sorted. That is tighter
for sorted files than bounds of each column. The scalars are plain JSON, in the order in which Arrow, Spark and
Parquet sort the column:

    boolean, int, bigint   as they are
    date, timestamp        days, microseconds since 1970
    decimal(p,s)           the integer that its digits make, at the column's scale
    string                 the text: the order of code points is the order of UTF-8 bytes
    binary                 hexadecimal digits

A bound may have fewer scalars than the key has columns: it then bounds the first columns only. `None`: no bound.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from persist_core.errors import InvalidInput
from persist_core.exact import DAY_MICROS, ERA_DAYS, date_text, timestamp_text
from persist_core.schema import Column, arrow_type, decimal_of

Scalar = bool | int | str
Key = tuple[Scalar, ...]

MAX_TEXT_CHARS = 64  # of a scalar in a manifest: enough for UUIDs, and a manifest of 1,000 files stays below 1 MB
_LAST_CHARACTER, _SURROGATES = 0x10FFFF, range(0xD800, 0xE000)
_FAR = re.compile(r"(?P<year>[+-][0-9]{4,7})(?P<rest>-.*)", re.ASCII)
_INTEGERS = {"date": pa.int32(), "timestamp": pa.int64()}


class _Beyond:
    """A scalar after all others: it ends the keys that begin with a bound."""

    def __lt__(self, other: object) -> bool:
        return False

    def __gt__(self, other: object) -> bool:
        return self is not other


_BEYOND = _Beyond()


@dataclass(frozen=True)
class KeyRange:
    """The keys from `first` to `last`, both included."""

    first: Key | None = None
    last: Key | None = None

    @property
    def begin(self) -> Key:
        """A tuple that no key in it is before, to be compared with keys and with an `end`."""
        return self.first or ()

    @property
    def end(self) -> tuple[Any, ...]:
        """A tuple that all keys in it are before, and those with other scalars after the same first ones."""
        return (*(self.last or ()), _BEYOND)

    def meets(self, other: KeyRange) -> bool:
        """True if a key can be in both."""
        return not (_is_before(self.last, other.first) or _is_before(other.last, self.first))

    def covers(self, other: KeyRange) -> bool:
        """True if all keys of `other`, whose bounds are keys, are in it."""
        return not (_is_before(other.first, self.first) or _is_before(self.last, other.last))

    def shortened(self) -> KeyRange:
        """A range that holds all its keys, with texts of at most `MAX_TEXT_CHARS`: the first is cut, the last rounded
        up."""
        return KeyRange(
            None if self.first is None else _shortened(self.first, is_last=False),
            None if self.last is None else _shortened(self.last, is_last=True),
        )


EVERYTHING = KeyRange()


def exactly(key: Key) -> KeyRange:
    """The range of one key; of all keys that start like it, if it has fewer scalars."""
    return KeyRange(key, key)


def range_of(table: pa.Table, key: Sequence[Column]) -> KeyRange:
    """The smallest and largest key of the rows, in any order. No bounds if there are no rows or no key columns, or for
    keys that a shard may not hold: nulls, invalid text."""
    if not key or not len(table):
        return EVERYTHING
    first, last = (
        pc.select_k_unstable(table, k=1, sort_keys=[(column.name, order) for column in key])[0].as_py()
        for order in ("ascending", "descending")
    )
    try:
        found = KeyRange(key_at(table, first, key), key_at(table, last, key))
    except UnicodeDecodeError:
        return EVERYTHING
    return EVERYTHING if None in (*(found.first or ()), *(found.last or ())) else found.shortened()


def spanning(ranges: Sequence[KeyRange]) -> KeyRange:
    """The least range that holds all of these; no bounds for none."""
    lowest = min(ranges, key=lambda each: each.begin, default=EVERYTHING)
    highest = max(ranges, key=lambda each: each.end, default=EVERYTHING)
    return KeyRange(lowest.first, highest.last)


def key_at(table: pa.Table, row: int, key: Sequence[Column]) -> Key:
    return tuple(_scalar(table[column.name].slice(row, 1), column) for column in key)


def value_at(scalar: Scalar, column: Column) -> Any:
    """The value of a column that a scalar stands for; of a date or a timestamp its text, which is exact."""
    if column.type == "date":
        return date_text(int(scalar))
    return timestamp_text(int(scalar)) if column.type == "timestamp" else _arrow(scalar, column).as_py()


def range_of_statistics(lowest: Sequence[Any], highest: Sequence[Any], key: Sequence[Column]) -> KeyRange:
    """The range between the lowest and the highest value of each key column, as Parquet stores them: integers,
    booleans, and bytes. Looser than `range_of` for more than one column."""
    try:
        return KeyRange(*(tuple(map(_stored, values, key)) for values in (lowest, highest))).shortened()
    except UnicodeDecodeError:
        return EVERYTHING


def parse_key(texts: Sequence[str], key: Sequence[Column]) -> Key:
    """The key, or the start of one, that a user has typed: one text for each column. Raises `InvalidInput`."""
    if not 1 <= len(texts) <= len(key):
        raise InvalidInput(f"found {len(texts)} key values; expected 1 to {len(key)}: {', '.join(c.name for c in key)}")
    return tuple(_parsed(text, column) for text, column in zip(texts, key, strict=False))


def is_within(table: pa.Table, ranges: Sequence[KeyRange], key: Sequence[Column]) -> pa.ChunkedArray | pa.Array:
    """For each row, whether its key is in one of the ranges. Rows with null keys are in none."""
    if len(key) == 1 and all(each.first is not None and each.first == each.last for each in ranges):
        wanted = _arrow_values([each.first[0] for each in ranges if each.first], key[0])
        return pc.is_in(table[key[0].name], wanted.cast(table[key[0].name].type))
    masks = [_mask(table, each, key) for each in ranges]
    return pc.fill_null(functools.reduce(pc.or_, masks), False) if masks else pa.repeat(False, len(table))


def meets_any(held: KeyRange, ranges: Iterable[KeyRange]) -> bool:
    """True if a key of `held` can be in one of the ranges."""
    return any(held.meets(each) for each in ranges)


def _is_before(one: Key | None, other: Key | None) -> bool:
    """True if all keys up to `one` are before all keys from `other` on."""
    if one is None or other is None:
        return False
    both = min(len(one), len(other))
    return one[:both] < other[:both]


def _shortened(key: Key, *, is_last: bool) -> Key | None:
    for place, scalar in enumerate(key):
        if isinstance(scalar, str) and len(scalar) > MAX_TEXT_CHARS:
            cut: str | None = scalar[:MAX_TEXT_CHARS]
            if is_last:
                cut = _next_text(scalar[:MAX_TEXT_CHARS])
            return None if cut is None else (*key[:place], cut)
    return key


def _next_text(text: str) -> str | None:
    """The least text of at most the same length that is after everything that starts with `text`."""
    start = text.rstrip(chr(_LAST_CHARACTER))
    if not start:
        return None
    following = ord(start[-1]) + 1
    return start[:-1] + chr(_SURROGATES.stop if following in _SURROGATES else following)


def _scalar(value: pa.ChunkedArray, column: Column) -> Scalar:
    found: Scalar | bytes | Decimal = value.cast(_INTEGERS.get(column.type, value.type))[0].as_py()
    if isinstance(found, bytes):
        return found.hex()
    return _unscaled(found, column) if isinstance(found, Decimal) else found


def _unscaled(value: Decimal, column: Column) -> int:
    """Without a decimal context, which would round long numbers."""
    sign, digits, exponent = value.as_tuple()
    decimal = decimal_of(column.type)
    assert decimal is not None
    assert isinstance(exponent, int)
    number = int("".join(map(str, digits))) * int(10 ** (exponent + decimal[1]))
    return -number if sign else number


def _stored(value: bool | int | bytes, column: Column) -> Scalar:
    if not isinstance(value, bytes):
        return value
    if decimal_of(column.type):
        return int.from_bytes(value, "big", signed=True)
    return value.hex() if column.type == "binary" else value.decode()


def _parsed(text: str, column: Column) -> Scalar:
    try:
        if column.type == "binary":
            return bytes.fromhex(text).hex()
        if column.type in _INTEGERS and (far := _FAR.fullmatch(text)):
            return _far(int(far["year"]), far["rest"], column)
        return _scalar(pa.chunked_array([_cast(pa.array([text]), arrow_type(column.type))]), column)
    except (ValueError, OverflowError, pa.ArrowException) as error:
        wanted = f"a value of type {column.type}{', in hex' if column.type == 'binary' else ''}"
        raise InvalidInput(f"key column {column.name}: found {text!r}; expected {wanted}") from error


def _far(year: int, rest: str, column: Column) -> Scalar:
    """Arrow reads years of four digits: an equal one of the calendar is read, and the eras between are added."""
    eras, year = divmod(year - 2000, 400)
    near = int(_parsed(f"{2000 + year}{rest}", column))
    moved = near + eras * ERA_DAYS * (1 if column.type == "date" else DAY_MICROS)
    return _scalar(pa.chunked_array([_arrow_values([moved], column)]), column)


def _cast(texts: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Times without a zone are in UTC."""
    if pa.types.is_timestamp(wanted):
        with suppress(pa.ArrowInvalid):
            return texts.cast(pa.timestamp(wanted.unit)).cast(wanted)
    return texts.cast(wanted)


def _arrow(scalar: Scalar, column: Column) -> pa.Scalar:
    wanted = arrow_type(column.type)
    decimal = decimal_of(column.type)
    if decimal:
        digits = tuple(map(int, str(abs(int(scalar)))))
        return pa.scalar(Decimal((int(int(scalar) < 0), digits, -decimal[1])), wanted)
    if column.type == "binary":
        return pa.scalar(bytes.fromhex(str(scalar)), wanted)
    return pa.scalar(scalar, _INTEGERS.get(column.type, wanted)).cast(wanted)


def _arrow_values(scalars: Sequence[Scalar], column: Column) -> pa.Array:
    if column.type in _INTEGERS:  # Python's dates end with the year 9999
        return pa.array(scalars, _INTEGERS[column.type]).cast(arrow_type(column.type))
    return pa.array([_arrow(scalar, column).as_py() for scalar in scalars], arrow_type(column.type))


def _mask(table: pa.Table, keys: KeyRange, key: Sequence[Column]) -> pa.ChunkedArray:
    sides = [(keys.first, pc.greater), (keys.last, pc.less)]
    masks = [_compared(table, bound, key, beyond) for bound, beyond in sides if bound is not None]
    everything = pc.is_valid(table[key[0].name])
    return functools.reduce(pc.and_, masks, everything)


def _compared(table: pa.Table, bound: Key, key: Sequence[Column], beyond: Any) -> pa.ChunkedArray:
    """True if each key, up to the length of the bound, is equal to it or `beyond` it."""
    mask = None
    for scalar, column in reversed(list(zip(bound, key, strict=False))):
        value = _arrow(scalar, column)
        values = table[column.name]
        rest = pc.equal(values, value) if mask is None else pc.and_(pc.equal(values, value), mask)
        mask = pc.or_(beyond(values, value), rest)
    assert mask is not None
    return mask
