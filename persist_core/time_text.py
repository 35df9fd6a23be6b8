"""Times as users write and read them: ISO dates and datetimes, or integers. Internally a time is an int.

A message never prints a bare integer of a clock time: `show_time` puts the ISO text first and the integer beside it,
`show_interval` does so for two times, and `format_time` prints a moment of the wall clock. Integers in the first day of
1970 are counters and stay as they are. See docs/semantics.md, section 1.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from persist_core.errors import InvalidTime

MAX_TIME = 2**63 - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAST_ISO_MS = (datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
_INTEGER = re.compile(r"[0-9]{1,19}", re.ASCII)
DAY_MS = 86_400_000  # times in the first day of 1970 are counters, not clock times
_MAX_CHARS = 64  # longer than any ISO text; keeps messages short


def check_time(value: object, *, what: str = "time") -> int:
    """Return `value` if it is a timestamp, else raise `InvalidTime` naming `what`."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_TIME:
        raise InvalidTime(f"{what} is {value!r}; expected an integer in [0, {MAX_TIME}]")
    return value


def parse_time(text: str, *, what: str = "time") -> int:
    """The time that `text` represents, in milliseconds since the Unix epoch, UTC.

    A text of digits only is the integer itself (so `20260103` is a number, not a date). Otherwise it is an ISO 8601
    date (its midnight) or datetime; without an offset it is UTC. Raises `InvalidTime` for anything else, for times
    before 1970 and for fractions finer than a millisecond.
    """
    text = text.strip()
    if _INTEGER.fullmatch(text):
        return check_time(int(text), what=what)
    try:
        if len(text) > _MAX_CHARS:
            raise ValueError("too long")
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidTime(
            f"{what} is {text[:_MAX_CHARS]!r}; expected an ISO date (2026-01-31), an ISO datetime"
            f" (2026-01-31T12:00:00Z) or an integer in [0, {MAX_TIME}]"
        ) from None
    since_epoch = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH
    time, rest = divmod(since_epoch, timedelta(milliseconds=1))
    if rest:
        raise InvalidTime(f"{what} is {text!r}; expected at most 3 digits after the second: times are milliseconds")
    if time < 0:
        raise InvalidTime(f"{what} is {text!r}; expected a time at or after 1970-01-01T00:00:00Z")
    return time


def format_time(time: int) -> str:
    """`time` (ms) as ISO 8601 in UTC, or as the integer if ISO has no year for it. `parse_time` reads it back."""
    if time > LAST_ISO_MS:
        return str(time)
    moment = _EPOCH + timedelta(milliseconds=time)
    return moment.isoformat(timespec="milliseconds" if time % 1000 else "seconds").replace("+00:00", "Z")


def show_interval(lower: int, upper: int | None) -> str:
    """`2026-01-02 -> 2026-01-03 (1767312000000 -> 1767398400000)`; of counters the integers alone.

    `lower` belongs to the interval, `upper` does not; `None` is closed.
    """
    days = " -> ".join(_iso(time).removesuffix("T00:00:00Z") for time in (lower, upper))
    numbers = f"{lower} -> {_iso(None) if upper is None else upper}"
    return days if days == numbers else f"{days} ({numbers})"


def show_time(time: int | None) -> str:
    """`2026-01-02T00:00:00Z (1767312000000)`; of a counter the integer alone; `closed` for a closed frontier."""
    iso = _iso(time)
    return iso if time is None or iso == str(time) else f"{iso} ({time})"


def _iso(time: int | None) -> str:
    if time is None:
        return "closed"
    return str(time) if time < DAY_MS else format_time(time)
