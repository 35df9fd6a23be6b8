"""Rows, counts and other mappings as a person reads them in a message: `id 7, name 'red apple'`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from persist_core.schema import TIME
from persist_core.time_text import show_time

NOTHING = "nothing"


def show_row(row: Mapping[str, Any]) -> str:
    """`name value` for each item, separated by commas. Texts are quoted, a time of the shard is also shown as ISO."""
    return ", ".join(f"{name} {_value(name, value)}" for name, value in row.items()) or NOTHING


def _value(name: str, value: Any) -> str:
    if name == TIME and isinstance(value, int):
        return show_time(value)
    return "null" if value is None else repr(value) if isinstance(value, str | bytes) else str(value)
