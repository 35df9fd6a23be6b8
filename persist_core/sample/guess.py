"""Guesses at the type of a column, from values of a sample. Only for people: no run uses them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from persist_core.config.column import ColumnConfig, Unit
from persist_core.schema import decimal_of

_FROM_YEAR, _TO_YEAR = 2000, 2036  # integers in between are taken for times (seconds by name only)
_SECONDS = 946_684_800, 2_082_758_400
_UNITS: dict[Unit, int] = {"ms": 10**3, "us": 10**6, "ns": 10**9, "s": 1}
_TIME_NAME = re.compile(r"(?:^|_)(?:ts|time|timestamp|date|at|on|created|updated|modified)(?:_|$)", re.IGNORECASE)
_DATE = re.compile(r"(\d{4}-\d{2}-\d{2})Z?", re.ASCII)
_TIMESTAMP = re.compile(
    r"(\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2})(:\d{2})?(?:(?<=:\d\d:\d\d)\.\d{1,6}0*)?"
    r"(?: ?(?:Z|UTC|[+-](?:(?:0\d|1[0-7])(?::?[0-5]\d)?|18(?::?00)?)))?",
    re.ASCII,
)
_INTEGER = re.compile(r"-?(?:0|[1-9]\d{0,999})", re.ASCII)  # Python reads no longer ones than 4,300 digits
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?", re.ASCII)
_MAX_SCALE = 9  # more digits after the point come from a float, unless it would not keep them
_MAX_DIGITS = 38
_BOOLEANS = {"true", "false", "t", "f", "yes", "no"}


@dataclass(frozen=True)
class Guess:
    """A type that all values have, and why."""

    type: str
    reason: str
    unit: Unit | None = None


def guess(name: str, values: Iterable[Any], *, is_text: bool = False) -> Guess | None:
    """The type of a column called `name`; `None` if no value says anything. `is_text`: all values are texts (CSV)."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    kinds = {bool if isinstance(v, bool) else type(v) for v in known}
    if kinds <= {int}:
        unit = unit_of(name, known)
        if unit is not None:
            reason = f"always a whole number between {_FROM_YEAR} and {_TO_YEAR} in {unit} since 1970"
            return Guess("timestamp", reason, unit)
        if max(map(abs, known)) < 2**63:
            return Guess("bigint", "whole numbers")
    if kinds <= {int, Decimal}:
        return _decimal([Decimal(value) for value in known])
    if kinds <= {str}:
        return _text(name, known, is_text)
    plain = {bool: "boolean", float: "double", bytes: "binary", datetime: "timestamp", date: "date"}
    if len(kinds) == 1 and (found := plain.get(next(iter(kinds)))):
        return Guess(found, f"always a {found}")
    return Guess("json", "objects or lists") if kinds & {dict, list} else Guess("string", "values of several kinds")


def unit_of(name: str, values: Sequence[int]) -> Unit | None:
    """The unit in which all of these integers are times in this century."""
    for unit, factor in _UNITS.items():
        if all(_SECONDS[0] * factor <= value < _SECONDS[1] * factor for value in values):
            if unit == "ns" and any(value % 1_000 for value in values):
                return None  # a timestamp has microseconds
            return unit if unit != "s" or _TIME_NAME.search(name) else None
    return None


def _decimal(values: Sequence[Decimal]) -> Guess:
    parts = [value.as_tuple() for value in values if value.is_finite()]
    scale = max((-int(part.exponent) for part in parts), default=0)
    whole = max((len(part.digits) + int(part.exponent) for part in parts), default=1)
    scale = max(scale, 0)
    fits = len(parts) == len(values) and whole + scale <= _MAX_DIGITS
    if not fits or scale > _MAX_SCALE:
        if all(not value.is_finite() or Decimal(repr(float(value))) == value for value in values):
            return Guess("double", "numbers with many digits after the point")
        if not fits:
            return Guess("string", "numbers with more digits than a number column keeps")
    digits = max(18, whole + scale) if scale <= _MAX_SCALE else _MAX_DIGITS
    return Guess(f"decimal({digits},{scale})", f"numbers with at most {scale} digits after the point")


def _text(name: str, values: Sequence[str], is_text: bool) -> Guess:
    if all(_is_time(_DATE.fullmatch(value)) for value in values):
        return Guess("date", "always a date")
    if all(_is_time(_TIMESTAMP.fullmatch(value)) for value in values):
        return Guess("timestamp", "always a date and a time")
    if is_text and all(_INTEGER.fullmatch(value) for value in values):
        return guess(name, [int(value) for value in values]) or Guess("string", "text")
    if all(_NUMBER.fullmatch(value) for value in values) and any("." in value for value in values):
        return _decimal([Decimal(value) for value in values])
    if is_text and {value.lower() for value in values} <= _BOOLEANS:
        return Guess("boolean", "always true or false")
    return Guess("string", "text")


def _is_time(found: re.Match[str] | None) -> bool:
    """True if what a pattern has found is a date, or a date and a time, that there is."""
    try:
        return found is not None and bool(datetime.fromisoformat("".join(found.groups(""))))
    except ValueError:
        return False


def better(name: str, column: ColumnConfig, values: Sequence[Any], *, is_text: bool, in_schema: bool) -> str | None:
    """A question if the values fit another type better than the column's; `in_schema`: messages say their units."""
    found = guess(name, values, is_text=is_text)
    if found is None:
        return None
    meant = f"{found.reason}: did you mean `{found.type}`{f', `unit: {found.unit}`' if found.unit else ''}?"
    given, is_time = column.type, found.type in ("timestamp", "date")
    if given in ("timestamp", "date"):
        is_wrong = found.unit is not None and found.unit != column.unit and not in_schema
        return f"`{name}` is {meant}" if is_wrong else None
    if is_time and given in ("string", "int", "bigint") and not in_schema:
        return f"`{name}` is {meant}"
    if given == "int" and found.type == "bigint" and any(abs(int(v)) >= 2**31 for v in values if v is not None):
        return f"`{name}` has whole numbers beyond 32 bits: did you mean `bigint`?"
    decimals, scale = decimal_of(found.type), decimal_of(given)
    if decimals and (scale or given in ("int", "bigint", "string")) and decimals[1] > (scale or (0, 0))[1]:
        return f"`{name}` has {meant}"
    return None
