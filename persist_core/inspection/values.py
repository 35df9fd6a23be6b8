"""Values of Arrow tables as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from persist_core.schema import ERR_KEY, ERR_PAYLOAD

_ROWS_AT_ONCE = 10_000  # Arrow rows turned into Python objects at a time
_DAY_MICROS = 86_400_000_000
_ERA_DAYS = 146_097  # of 400 years, after which the calendar is the same


def json_value(value: Any) -> Any:
    """A value of an Arrow table as JSON: decimals, dates and timestamps as text, bytes as lower-case hex."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    return str(value)


def json_rows(table: pa.Table, *, rows_at_once: int = _ROWS_AT_ONCE) -> Iterator[dict[str, Any]]:
    """The rows as JSON objects. Error keys and payloads are bytes: text if they are UTF-8, else `{"hex": ...}`."""
    for batch in table.to_batches(max_chunksize=rows_at_once):
        columns = [_column(field, column) for field, column in zip(batch.schema, batch.columns, strict=True)]
        for values in zip(*columns, strict=True):
            yield {
                name: _raw(value) if name in (ERR_KEY, ERR_PAYLOAD) else json_value(value)
                for name, value in zip(batch.schema.names, values, strict=True)
            }


def _column(field: pa.Field, column: pa.Array) -> list[Any]:
    """Python values. Dates and timestamps outside of Python's range of years become a text."""
    try:
        return list(column.to_pylist())
    except (ValueError, OverflowError):
        if not pa.types.is_temporal(field.type):
            raise
        return [_time(value) for value in column]


def _time(value: pa.Scalar) -> Any:
    try:
        return value.as_py()
    except (ValueError, OverflowError):  # Arrow's own text has a year of 16 bits, which wraps around
        is_date = pa.types.is_date32(value.type)
        days, micros = (value.value, 0) if is_date else divmod(value.value, _DAY_MICROS)
        eras, days = divmod(days, _ERA_DAYS)
        near = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=days, microseconds=micros)
        text = json_value(near.date() if is_date else near)
        return f"{near.year + 400 * eras:+05d}{text[4:]}"


def _raw(value: bytes | None) -> Any:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"hex": value.hex()}
