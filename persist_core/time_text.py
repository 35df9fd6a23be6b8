"""Times and durations as users write and read them. Internally a time is an int, milliseconds since 1970 in UTC.

    text --parse_time, in a zone--> int --show_time, format_time, show_local--> text
    text --parse_duration--> ms --show_duration--> text
    local date and hour --first_instant, in a zone--> int --local_of--> local date and hour

A message never prints a bare integer of a clock time: `show_time` puts the ISO text first and the integer beside it,
`show_interval` does so for two times, and `format_time` prints a moment of the wall clock. Integers in the first day of
1970 are counters and stay as they are. See docs/semantics.md, section 1.

Where the clocks of a zone skip or repeat a local time, a text with a time of day is refused, since it could be read in
two ways. A date or an hour of a path is the first instant at which the clocks show it or a later time. So each instant
belongs to exactly one day and one hour: a day has 23 to 25 hours, and a repeated hour is one hour that lasts two.
"""

from __future__ import annotations

import difflib
import functools
import re
from bisect import bisect_left
from datetime import UTC, datetime, timedelta, tzinfo

from persist_core.errors import InvalidTime

UTC_ZONE = "UTC"  # the zone of a collection that names none

MAX_TIME = 2**63 - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST_ISO_MS = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
LAST_ISO_MS = (datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
_INTEGER = re.compile(r"[0-9]{1,19}", re.ASCII)
_COMPACT = re.compile(r"((?:19[7-9]|20[0-9])[0-9])(0[1-9]|1[0-2])(0[1-9]|[12][0-9]|3[01])", re.ASCII)  # 20260103
_OFFSET = re.compile(r"(?<=[0-9]) (?=(?:[+-][0-9:]+|Z)$)", re.ASCII)  # the blank before it
_ISO = re.compile(r"[0-9]{4}-?(?:[0-9]{2}-?[0-9]{2}|W[0-9]{2}(?:-?[0-9])?)(?:[T ][0-9].*)?", re.ASCII)
_ZONED = re.compile(r"(?P<local>.*) (?P<zone>[A-Z][A-Za-z_]{2,}(?:/[A-Za-z0-9_+/-]+)?)", re.ASCII)
_DAYS_AGO = {"today": 0, "yesterday": 1}
_DURATION = re.compile(r"([0-9]{1,9}) *([a-z]+)", re.ASCII)
_UNIT_MS = {"weeks": 604_800_000, "days": 86_400_000, "hours": 3_600_000, "minutes": 60_000}
UNITS = tuple(_UNIT_MS)  # of a duration
_SHORT_UNITS = {"w": "weeks", "d": "days", "h": "hours", "m": "minutes", "min": "minutes"}
HOUR_MS = 3_600_000
DAY_MS = 86_400_000  # times in the first day of 1970 are counters, not clock times
LAST_DAY = LAST_ISO_MS - 3 * DAY_MS  # whose next day has a date in every zone
_MAX_CHARS = 100  # longer than any text of a time; keeps messages short


def check_time(value: object, *, what: str = "time") -> int:
    """Return `value` if it is a timestamp, else raise `InvalidTime` naming `what`."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_TIME:
        raise InvalidTime(f"{what} is {value!r}; expected an integer in [0, {MAX_TIME}]")
    return value


def parse_time(
    text: str, *, what: str = "time", zone: str = UTC_ZONE, now_ms: int | None = None, counters: bool = True
) -> int:
    """The time that `text` represents, in milliseconds since the Unix epoch, UTC.

    A text of digits only is the integer itself (so `20260103` is a number, not a date; unless `counters`, what could be
    a date is refused). Otherwise it is an ISO 8601 date (its first instant) or datetime, with an offset or the name of
    a zone behind it; without either it is local time of `zone`. With `now_ms` it may also be `now`, `today`,
    `yesterday` (the start of that day in `zone`) or `2 hours ago`. Raises `InvalidTime` for anything else, for local
    times that the clocks skip or repeat, for times before 1970 and for fractions finer than a millisecond.
    """
    text = " ".join(text.split())
    if not counters and (date := _COMPACT.fullmatch(text)):
        meant = "-".join(date.groups())
        raise InvalidTime(f"{what} is {text}, which may be a date or milliseconds since 1970; expected {meant}")
    if _INTEGER.fullmatch(text):
        return check_time(int(text), what=what)
    relative = None if now_ms is None else _relative(text.lower(), zone, now_ms)
    if relative is not None:
        return check_time(max(0, relative), what=what)
    zoned = _ZONED.fullmatch(text[:_MAX_CHARS])
    given, zone = (zoned["local"], _known_zone(zoned["zone"], what)) if zoned else (text, zone)
    try:
        if len(text) > _MAX_CHARS or not _ISO.fullmatch(given):  # fromisoformat accepts any sign before the time
            raise ValueError("too long, or no date")
        moment = datetime.fromisoformat(_OFFSET.sub("", given))
        if zoned and moment.tzinfo is not None:
            raise ValueError("an offset and a zone")
    except ValueError:
        words = "" if now_ms is None else ", now, today, yesterday, `2 hours ago`"
        raise InvalidTime(
            f"{what} is {text[:_MAX_CHARS]!r}; expected an ISO date (2026-01-31), an ISO datetime"
            f" (2026-01-31T12:00:00Z){words} or an integer in [0, {MAX_TIME}]"
        ) from None
    micros = _micros(moment) if moment.tzinfo else _instant(given, moment, zone, what)
    time, rest = divmod(micros, 1000)
    if rest:
        raise InvalidTime(f"{what} is {text!r}; expected at most 3 digits after the second: times are milliseconds")
    if time < 0:
        raise InvalidTime(f"{what} is {text!r}; expected a time at or after 1970-01-01T00:00:00Z")
    return time


def _relative(text: str, zone: str, now_ms: int) -> int | None:
    if text in _DAYS_AGO:
        return day_of(now_ms, zone, moved_by=-_DAYS_AGO[text])
    if text == "now":
        return now_ms
    found = parse_duration(text.removesuffix(" ago")) if text.endswith(" ago") else None
    return None if found is None else now_ms - found[1]


def _known_zone(name: str, what: str) -> str:
    if name not in zones():
        close = difflib.get_close_matches(name, zones(), n=1)
        remedy = f"did you mean {close[0]}?" if close else "for example Europe/Berlin"
        raise InvalidTime(f"{what} is in the time zone {name!r}; expected a name of area and place, or UTC; {remedy}")
    return name


def _instant(text: str, local: datetime, zone: str, what: str) -> int:
    """A local time in microseconds. Raises `InvalidTime` for a time of day that the clocks skip or repeat."""
    first, second = _readings(local, zone)
    if first == second:
        return first
    if not {"T", " "} & {*text}:
        return first_instant(local, zone) * 1000
    verb = "repeat" if first < second else "skip"
    raise InvalidTime(f"{what} is {text!r}, which the clocks of {zone} {verb}; expected an offset: {text}+01:00")


@functools.lru_cache(maxsize=4096)  # of a path's date; there are many files of few dates
def first_instant(local: datetime, zone: str) -> int:
    """The first instant (ms) at which the clocks of `zone` show `local` or a later time. May lie before 1970."""
    first, second = (micros // 1000 for micros in _readings(local, zone))
    if first <= second:
        return first
    skipped = range(second, first + 1)  # the clocks go forward within it
    return skipped[bisect_left(skipped, True, key=lambda time: local_of(time, zone) >= local)]


def local_of(time: int, zone: str) -> datetime:
    """The date and time that the clocks of `zone` show at `time`."""
    moment = _EPOCH + timedelta(milliseconds=time)
    return (moment if zone == UTC_ZONE else moment.astimezone(_zone(zone))).replace(tzinfo=None)


def day_of(time: int, zone: str, *, moved_by: int = 0) -> int:
    """The first instant of the day in which the clocks of `zone` are at `time`, or of the day `moved_by` days later."""
    midnight = local_of(time, zone).replace(hour=0, minute=0, second=0, microsecond=0)
    return first_instant(midnight + timedelta(days=moved_by), zone)


def _readings(local: datetime, zone: str) -> tuple[int, int]:
    """Both readings of a local time, in microseconds: equal, unless the clocks skip (first > second) or repeat it."""
    first, second = (local.replace(tzinfo=_zone(zone), fold=fold) for fold in (0, 1))
    return _micros(first), _micros(second)


def _micros(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _zone(name: str) -> tzinfo:
    import pendulum  # not at the top: most commands need no zone but UTC

    return UTC if name == UTC_ZONE else pendulum.timezone(name)


@functools.cache
def zones() -> frozenset[str]:
    """The names of zones that mean the same everywhere: `Europe/Berlin`, `UTC`.

    Not `CET` or `EST`: Java reads some abbreviations as another zone than Python does, and releases of the time zone
    database have changed what others mean. Not `Etc/GMT+1`, which is an hour behind UTC.
    """
    import pendulum

    return frozenset({UTC_ZONE, *(name for name in pendulum.timezones() if "/" in name and name[:4] != "Etc/")})


def parse_duration(text: str) -> tuple[str, int] | None:
    """The plain form of a duration (`2h`: `2 hours`), and its milliseconds; else `None`. A day has 24 hours."""
    found = _DURATION.fullmatch(" ".join(text.lower().split()))
    unit = "" if found is None else _SHORT_UNITS.get(found[2], f"{found[2].removesuffix('s')}s")
    if found is None or unit not in UNITS:
        return None
    return f"{int(found[1])} {unit}", int(found[1]) * _UNIT_MS[unit]


def show_duration(duration_ms: int, *, units: int = 2) -> str:
    """`7 hours 12 minutes`, `30 days`, `45 seconds`: the largest `units` units, from the first that is not 0."""
    import pendulum

    length = pendulum.duration(milliseconds=max(0, duration_ms))
    parts = {"day": length.days, "hour": length.hours, "minute": length.minutes, "second": length.remaining_seconds}
    first = next((place for place, count in enumerate(parts.values()) if count), len(parts) - 1)
    named = [(count, f"{unit}s" if count > 1 else unit) for unit, count in parts.items()][first : first + units]
    return " ".join(f"{count} {unit}" for count, unit in named if count) or "0 seconds"


def show_ago(time: int, now_ms: int) -> str:
    """`3 hours ago`, `2 days ahead`: the largest unit alone."""
    return f"{show_duration(abs(now_ms - time), units=1)} {'ago' if time <= now_ms else 'ahead'}"


def format_time(time: int) -> str:
    """`time` (ms) as ISO 8601 in UTC, or as the integer if ISO has no year for it. `parse_time` reads it back."""
    if not FIRST_ISO_MS <= time <= LAST_ISO_MS:
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
    return str(time) if 0 <= time < DAY_MS else format_time(time)


def show_local(time: int, zone: str) -> str:
    """`2026-01-02T01:00:00+01:00 in Europe/Berlin`: what the clocks of `zone` show at `time`."""
    moment = (_EPOCH + timedelta(milliseconds=time)).astimezone(_zone(zone))
    return f"{moment.isoformat(timespec='milliseconds' if time % 1000 else 'seconds')} in {zone}"
