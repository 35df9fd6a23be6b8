"""`limits:` of a collection. `max_errors` and `max_changed`: how many errors a run may have, or rows a correction may
change; as a number, a share, or both."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from persist_core.config.model import ConfigModel, Whole
from persist_core.config.problems import refuse

ErrorLimits = tuple[int | str, ...] | None
DEFAULT: ErrorLimits = (1000, "5 %")
DEFAULT_CHANGED: ErrorLimits = ("10 %",)
SHARE_FROM = 100  # records: a share of fewer says little
_SHARE = re.compile(r"(\d{1,3}(?:\.\d{1,3})?) ?%")


def read_limits(data: Any) -> ErrorLimits:
    """A number, a share as text (`5 %`), a list of both, or nothing, as a list. Raises by `refuse`."""
    if data is None:
        return None
    found = tuple(data) if isinstance(data, list | tuple) else (data,)
    for limit in found:
        is_share = isinstance(limit, str) and (match := _SHARE.fullmatch(limit)) and float(match[1]) <= 100
        if not is_share and (not isinstance(limit, int) or isinstance(limit, bool)):
            raise refuse(limit, "a whole number, or a share of 0 to 100 %", 'write 1000, "5 %" or [1000, "5 %"]')
        if isinstance(limit, int) and limit < 0:
            raise refuse(limit, "at least 0", "change the number")
    if not 1 <= len(found) <= 2 or len({isinstance(limit, str) for limit in found}) < len(found):
        raise refuse(f"{len(found)} limits", "one number, one share, or one of each", 'write [1000, "5 %"]')
    return found


LimitsField = Annotated[ErrorLimits, BeforeValidator(read_limits)]


class LimitsConfig(ConfigModel):
    """Bounds of one run. `None`: no bound. `max_record_bytes` is of one line of a text file, decompressed."""

    max_errors: LimitsField = DEFAULT
    max_changed: LimitsField = DEFAULT_CHANGED
    max_files: Annotated[Whole, Field(ge=1)] = 100_000
    max_bytes: Annotated[Whole, Field(ge=1)] | None = None
    max_record_bytes: Annotated[Whole, Field(ge=1 << 20, le=1 << 30)] = 64 << 20


def reached_limit(limits: ErrorLimits, *, errors: int, bad_records: int, records: int) -> str | None:
    """The limit that a run reaches, for a message; `None` if it may commit.

    `errors` are all its errs. `bad_records` of its `records` are errs because of what they say; files that were set
    aside and late times are none of both.
    """
    if limits is None:
        return None
    for limit in limits:
        if isinstance(limit, int) and errors > limit:
            return f"at most {limit} are allowed"
        if isinstance(limit, str) and records >= SHARE_FROM and bad_records * 100 > _percent(limit) * records:
            return f"at most {limit} are allowed"
    if bad_records and bad_records == records:
        return "a run in which no record is good does not commit"
    return None


def exceeded_limit(limits: ErrorLimits, count: int, of: int) -> str | None:
    """The limit that `count` of `of` things exceed, for a message; `None` if it exceeds none."""
    for limit in limits or ():
        if count > limit if isinstance(limit, int) else count * 100 > _percent(limit) * of:
            return str(limit)
    return None


def _percent(share: str) -> float:
    return float(share.rstrip("% "))
