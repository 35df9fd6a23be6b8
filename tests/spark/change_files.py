"""The files of a changing collection in each format, and the rows of a view of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any


def loaded(row: Mapping[str, Any]) -> Any:
    """A row of the view, comparable: JSON has numbers only, and no nulls."""
    return tuple(
        (name, cell if isinstance(cell, str) else float(cell)) for name, cell in sorted(row.items()) if cell is not None
    )


def written(kind: str, records: Sequence[Mapping[str, Any]]) -> str:
    """A file of the records."""
    if kind == "csv":
        names = sorted({"id", "op", *(name for each in records for name in each)})
        rows: list[list[Any]] = [names, *([each.get(name) for name in names] for each in records)]
        return "".join(",".join("" if cell is None else f'"{cell}"' for cell in row) + "\n" for row in rows)
    if kind == "json":
        return "".join(f"{json.dumps(each)}\n" for each in records)
    sides = [("d", "before") if each.get("op") == "D" else ("u", "after") for each in records]
    events = [{"op": op, side: each, "ts_ms": each["seq"]} for (op, side), each in zip(sides, records, strict=True)]
    return "".join(f"{json.dumps(each)}\n" for each in events)
