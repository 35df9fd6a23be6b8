"""Rows, counts and other mappings as a person reads them in a message: `id 7, name 'red apple'`; and names of files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from persist_core.schema import TIME
from persist_core.time_text import show_time

NOTHING = "nothing"
_MAX_NAMES = 20  # the rest are counted


def show_row(row: Mapping[str, Any]) -> str:
    """`name value` for each item, separated by commas. Texts are quoted, a time of the shard is also shown as ISO."""
    return ", ".join(f"{name} {_value(name, value)}" for name, value in row.items()) or NOTHING


def show_names(names: Iterable[str]) -> str:
    """The first names, sorted. All but ASCII is escaped: a feed may have a file of any name."""
    listed = sorted(names)
    more = f" and {len(listed) - _MAX_NAMES} more" if len(listed) > _MAX_NAMES else ""
    return ", ".join(ascii(name)[1:-1] for name in listed[:_MAX_NAMES]) + more


def show_count(rows: int | None) -> str:
    """So many rows in words. `None`: nothing has counted them."""
    return f"{'an unknown number of' if rows is None else rows} rows"


def _value(name: str, value: Any) -> str:
    if name == TIME and isinstance(value, int):
        return show_time(value)
    return "null" if value is None else repr(value) if isinstance(value, str | bytes) else str(value)
