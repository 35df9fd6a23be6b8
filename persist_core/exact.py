"""Python values of Arrow tables. Dates and times outside of Python's years 1 to 9999 become texts, which are exact."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, timedelta
from typing import Any

import pyarrow as pa

ROWS_AT_ONCE = 10_000  # Arrow rows turned into Python objects at a time
DAY_MICROS = 86_400_000_000
ERA_DAYS = 146_097  # of 400 years, after which the calendar is the same
_MICROS = {"s": 1_000_000, "ms": 1000, "us": 1}


def date_text(days: int) -> str:
    """A date, in days since 1970, as Spark writes it: a year outside of 0 to 9999 has a sign."""
    eras, days = divmod(days, ERA_DAYS)
    near = date(1970, 1, 1) + timedelta(days=days)
    year = near.year + 400 * eras
    return f"{year:04d}{near:-%m-%d}" if 0 <= year <= 9999 else f"{year:+05d}{near:-%m-%d}"


def timestamp_text(micros: int) -> str:
    """A time, in microseconds since 1970, in UTC with 6 digits; its date as `date_text`."""
    days, micros = divmod(micros, DAY_MICROS)
    return f"{date_text(days)}{datetime(1970, 1, 1) + timedelta(microseconds=micros):T%H:%M:%S.%f}Z"


def exact_rows(table: pa.Table, *, rows_at_once: int = ROWS_AT_ONCE) -> Iterator[dict[str, Any]]:
    """The rows as Python objects, few at a time."""
    for batch in table.to_batches(max_chunksize=rows_at_once):
        for values in zip(*map(_values, batch.columns), strict=True):
            yield dict(zip(batch.schema.names, values, strict=True))


def _values(column: pa.Array) -> list[Any]:
    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":  # Python has no type for it, pandas its own
        counts = column.cast("int64").to_pylist()
        return [None if ns is None else f"{timestamp_text(ns // 1000)[:-1]}{ns % 1000:03d}Z" for ns in counts]
    try:
        return list(column.to_pylist())
    except (ValueError, OverflowError):
        return [_value(value) for value in column]


def _value(value: pa.Scalar) -> Any:
    """Arrow's own text of such a time has a year of 16 bits, which wraps around."""
    try:
        return value.as_py()
    except (ValueError, OverflowError):
        if pa.types.is_struct(value.type):
            return {name: _value(cell) for name, cell in value.items()}
        if pa.types.is_list(value.type):
            return [_value(cell) for cell in value]
        if pa.types.is_map(value.type):
            return [tuple(_value(cell) for _, cell in entry.items()) for entry in value.values]
        if pa.types.is_date32(value.type):
            return date_text(value.value)
        if pa.types.is_timestamp(value.type) and value.type.unit in _MICROS:
            return timestamp_text(value.value * _MICROS[value.type.unit])
        raise
