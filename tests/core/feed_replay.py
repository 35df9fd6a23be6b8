"""The bundled feed replayed by plain Python, for tests that load it with Spark."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from persist_core.sources.natural_order import natural_key
from tests.core.make_feed import DAYS, HEALED, STAYS_BAD, make_feed

COLUMNS = ("id", "name", "email", "city", "balance", "tier", "updated_at")
Rows = dict[int, dict[str, Any]]
ByDay = Mapping[int, Sequence[dict[str, Any]]]


def check_days(rows: ByDay, errors: ByDay) -> None:
    """Assert the rows, as the command line prints them, and the errs at the end of each day."""
    expected = replay()
    assert rows.keys() == errors.keys() == expected.keys()
    for day, wanted in expected.items():
        assert {row["id"]: row for row in rows[day]} == wanted, f"day {day}"
        assert len(rows[day]) == len(wanted), f"day {day}"
    assert [len(errors[day]) for day in sorted(errors)] == [0, 0, 1, 2, 3, 3, 3]
    assert [row["id"] for row in errors[5] if row["_persist_err_kind"] == "value"] == [HEALED]
    assert [row["id"] for row in errors[6] if row["_persist_err_kind"] == "value"] == [STAYS_BAD]


def replay() -> dict[int, Rows]:
    """The rows at the end of each day: within a day, of each customer the record of the greatest (LSN, position)."""
    rows: Rows = {}
    by_day: dict[int, Rows] = {}
    files = make_feed()
    for day in range(1, DAYS + 1):
        newest: dict[int, tuple[tuple[int, str, int], dict[str, Any] | None]] = {}
        for name in (name for name in files if name.startswith(f"date=2026-01-0{day}/")):
            for number, line in enumerate(files[name].splitlines()):
                change = change_of(line)
                if change is not None:
                    key, lsn, row = change
                    order = (lsn, natural_key(name), number)
                    if key not in newest or newest[key][0] < order:
                        newest[key] = (order, row)
        for key, (_, row) in newest.items():
            rows.pop(key, None)
            if row is not None:
                rows[key] = row
        by_day[day] = dict(rows)
    return by_day


def change_of(line: bytes) -> tuple[int, int, dict[str, Any] | None] | None:
    """Key, LSN, and the row (`None` if it is deleted or can't be decoded); `None` for a record without a row change."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    event = event.get("payload", event)
    if "value" in event:
        return event["key"]["id"], -1, None
    image = event["after"] or event["before"]
    if event["op"] == "m" or "id" not in image:
        return None
    row = None if event["op"] == "d" else {**{name: image[name] for name in COLUMNS}, "balance": _balance(image)}
    return image["id"], event["source"]["lsn"], row if row is None or row["balance"] is not None else None


def _balance(image: dict[str, Any]) -> str | None:
    try:
        unscaled = int.from_bytes(base64.b64decode(image["balance"], validate=True), "big", signed=True)
    except ValueError:
        return None
    return format(Decimal(unscaled).scaleb(-2), ".2f") if abs(unscaled) < 10**12 else None
