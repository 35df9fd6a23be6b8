"""Values of Arrow tables as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from persist_core.exact import ROWS_AT_ONCE, exact_rows
from persist_core.schema import ERR_KEY, ERR_PAYLOAD


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


def json_rows(table: pa.Table, *, rows_at_once: int = ROWS_AT_ONCE) -> Iterator[dict[str, Any]]:
    """The rows as JSON objects. Error keys and payloads are bytes: text if they are UTF-8, else `{"hex": ...}`."""
    for row in exact_rows(table, rows_at_once=rows_at_once):
        yield {
            name: _raw(value) if name in (ERR_KEY, ERR_PAYLOAD) else json_value(value) for name, value in row.items()
        }


def _raw(value: bytes | None) -> Any:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"hex": value.hex()}
