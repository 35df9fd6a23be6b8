"""The files that a `source.path` means: a glob below a fixed folder, with at most one date in it.

    dags/feed/customers/date={date:%Y-%m-%d}/*.jsonl
    '------- root -----' '------- segments -------'

    s3://bucket/feed/orders/{date:%Y/%m/%d}/*.parquet
    '-------- root -------' '------ segments ------'

Within one segment `*`, `?` and `[...]` work as in the shell; the segment `**` matches any number of folders.
`{date:...}` accepts `%Y %m %d %H` and literal text, which may contain `/` (`{date:year=%Y/month=%m}`). A path is
matched in two steps: a *loose* match accepts anything in place of the date, then the date is parsed *strictly*. So a
file with an invalid date is found and reported.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import PurePosixPath

from persist_core.errors import InvalidInput
from persist_core.time_text import DAY_MS, UTC_ZONE, first_instant, local_of

MAX_PATTERN_CHARS = 4096  # PATH_MAX on Linux
MAX_PREFIXES = 1000  # of one listing by date; a longer range is listed whole
S3 = "s3://"  # how a pattern on S3 starts, and its root
HIDDEN = (".", "_")  # first characters of names that writers use for unfinished or private files (as Spark does)

_DATE = re.compile(r"\{date:([^{}]*)\}")
_DIRECTIVES = {"Y": r"[0-9]{4}", "m": r"[0-9]{2}", "d": r"[0-9]{2}", "H": r"[0-9]{2}"}
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_BUCKET = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](?=/|$)")


class BadPattern(InvalidInput):
    """An invalid `source.path`. The message is `expected ...; <remedy>`."""


@dataclass(frozen=True)
class PathSegment:
    """One folder or file name of the pattern: loose match of a name. `any_depth` is `**`."""

    loose: re.Pattern[str]
    any_depth: bool = False
    bare: bool = False


@dataclass(frozen=True)
class PathPattern:
    """A parsed pattern. `segments` lie below `root`; `strict` matches whole paths relative to it, with the date.

    Dates are in `zone`. `head`: the plain text that all paths below `root` start with. `is_dated_first`: the date
    follows it.
    """

    text: str
    root: str
    segments: tuple[PathSegment, ...]
    strict: re.Pattern[str] | None
    date_format: str | None
    zone: str = UTC_ZONE
    head: str = ""
    is_dated_first: bool = False

    def prefixes(self, start_ms: int, end_ms: int) -> list[str] | None:
        """The beginnings of all paths dated in `[start_ms, end_ms)`, by whole days; `None` if only `head` is known of
        them, or the range is too long."""
        if not self.is_dated_first or self.date_format is None or end_ms - start_ms > MAX_PREFIXES * DAY_MS:
            return None
        # the day before a midnight too: a day that the clocks skip has the same first instant
        first, last = (local_of(max(time - 1, 0), self.zone).date() for time in (start_ms, end_ms))
        if self.zone == UTC_ZONE:
            first = local_of(start_ms, UTC_ZONE).date()
        text = self.date_format.partition("%H")[0]
        dates = ((first + timedelta(days=day)).strftime(text) for day in range((last - first).days + 1))
        return list(dict.fromkeys(f"{self.head}{date}" for date in dates))

    @property
    def loose(self) -> re.Pattern[str]:
        """The whole path relative to `root`, with anything in place of the date. Names of folders may be empty."""
        parts = [s.loose.pattern for s in self.segments]
        folders = ["(?:[^/]*/)*" if s.any_depth else f"{part}/" for s, part in zip(self.segments, parts, strict=True)]
        return re.compile("".join(folders[:-1]) + parts[-1])

    def period_start(self, now_ms: int) -> int:
        """The start of the hour, day, month or year of `now_ms`, as fine as the dates are; `now_ms` without dates."""
        if self.date_format is None:
            return now_ms
        local = local_of(now_ms, self.zone)
        fields = (("%m", local.month, 1), ("%d", local.day, 1), ("%H", local.hour, 0))
        month, day, hour = (value if text in self.date_format else first for text, value, first in fields)
        return first_instant(datetime(local.year, month, day, hour), self.zone)

    def date_ms(self, below_root: str) -> int | None:
        """When the file at this path (relative to `root`) is dated, or `None` if its date cannot be parsed.

        It is the first instant at which the clocks show that date and hour or a later one.
        """
        found = self.strict.fullmatch(below_root) if self.strict else None
        if found is None:
            return None
        parts = {name: int(value) for name, value in found.groupdict().items()}
        try:
            local = datetime(parts["Y"], parts.get("m", 1), parts.get("d", 1), parts.get("H", 0))
        except ValueError:
            return None
        time = first_instant(local, self.zone)
        return time if time >= 0 else None


@dataclass(frozen=True)
class _Token:
    """A piece of one segment: its regex, of a date for the strict match only; `literal` if it is plain text."""

    regex: str
    literal: str | None = None
    is_date: bool = False


_STAR = _Token("[^/]*")


def parse_pattern(path: str, base_dir: str, *, zone: str = UTC_ZONE) -> PathPattern:
    """Parse `path`; a relative one lies below `base_dir`. Dates are in `zone`. Raises `BadPattern`."""
    _check_text(path)
    scheme = "s3:/" if path.startswith(S3) else ""
    text, path = path, path.removeprefix(scheme)
    dates = _DATE.findall(path)
    if len(dates) > 1:
        raise BadPattern("expected at most one {date:...}; write one with literals: {date:year=%Y/month=%m}")
    root = PurePosixPath("/" if path.startswith("/") else base_dir)
    segments: list[list[_Token]] = []
    for tokens in _split(path):
        name = "".join(token.literal or "" for token in tokens)
        fixed = all(token.literal is not None for token in tokens)
        if fixed and name == "..":
            if segments:
                raise BadPattern("expected '..' only before the first wildcard; write the path without it")
            root = root.parent if root.is_absolute() or root.name not in ("", "..") else root / ".."
        elif fixed and not segments:
            root = root / name
        else:
            segments.append(tokens)
    if not segments:  # no wildcard at all: one file
        segments.append([_Token(re.escape(root.name), root.name)])
        root = root.parent
    if scheme and len(root.parts) < 2:
        raise BadPattern("expected a file below s3://bucket/; add a pattern for its objects, such as *.parquet")
    last = segments[-1]
    if _is_any_depth(last):
        raise BadPattern("expected a file name after '**'; for example **/*.jsonl")
    if any(tokens[0].regex.removeprefix("\\").startswith(HIDDEN) for tokens in segments):
        raise BadPattern(
            "expected no name that starts with '.' or '_' from the first wildcard on: these mark unfinished files, and"
            " folders that are not entered"
        )
    strict = re.compile(_strict(segments)) if dates else None
    plain = list(itertools.takewhile(lambda token: token.literal is not None, segments[0]))
    return PathPattern(
        text,
        f"{scheme}{root}",
        tuple(_segment(s) for s in segments),
        strict,
        dates[0] if dates else None,
        zone,
        head="".join(token.literal or "" for token in plain),
        is_dated_first=any(token.is_date for token in segments[0][len(plain) :][:1]),
    )


def _check_text(path: str) -> None:
    if not path or len(path) > MAX_PATTERN_CHARS:
        raise BadPattern(f"expected 1 to {MAX_PATTERN_CHARS} characters")
    if any(ord(c) < 32 or c in "\\\x7f" or 0xD800 <= ord(c) < 0xE000 for c in path):
        raise BadPattern("expected no control characters and no backslash; use '/' between folders, [*] for a plain *")
    if path.startswith(S3):
        if not _BUCKET.match(path):
            raise BadPattern("expected a bucket's name after s3://, of 3 to 63 of a-z 0-9 . -; correct it")
        if set(path.removeprefix(S3).split("/")) & {"", ".", ".."}:
            raise BadPattern("expected no empty, '.' or '..' part in a path on S3; write it without, and end it in a"
                             " pattern for objects, such as *.parquet")  # fmt: skip
    elif _SCHEME.match(path):
        raise BadPattern("expected a path on this machine's file system, or s3://bucket/...; mount the folder")
    if path.startswith("~"):
        raise BadPattern("expected no '~'; write ${HOME}/...")
    if path.endswith("/"):
        raise BadPattern("expected a pattern for files, not a folder; for example add *.jsonl")


def _split(path: str) -> list[list[_Token]]:
    segments: list[list[_Token]] = [[]]
    seen: set[str] = set()
    position = 0
    while position < len(path):
        date = _DATE.match(path, position)
        if date:
            first, *rest = _date_pieces(date[1], seen)
            segments[-1].append(first)
            segments += [[piece] for piece in rest]
            position = date.end()
        elif path[position] == "/":
            segments.append([])
            position += 1
        else:
            token, position = _token(path, position)
            segments[-1].append(token)
    return [tokens for tokens in segments if tokens and [token.literal for token in tokens] != ["."]]


def _token(path: str, position: int) -> tuple[_Token, int]:
    char = path[position]
    if char == "*":
        return _STAR, position + 1
    if char == "?":
        return _Token("[^/]"), position + 1
    if char == "[":
        negated = path.startswith(("!", "^"), position + 1)
        start = position + 1 + negated
        end = path.find("]", start + 1)  # the first character is a member, also if it is a ]
        if end < 0 or "/" in path[position:end] or "{date:" in path[position:end]:
            raise BadPattern("expected a set of characters between '[' and ']'; write [[] for a plain [")
        members = re.sub(r"([\\\[\]^&~|])", r"\\\1", path[start:end])
        regex = f"(?!/)[{'^' if negated else ''}{members}]"
        try:
            re.compile(regex)
        except re.error:
            raise BadPattern(f"expected a set of characters, found {path[position : end + 1]!r}") from None
        return _Token(regex), end + 1
    if char in "{}":
        raise BadPattern("expected braces only as {date:%Y-%m-%d}; write [{] and [}] for plain ones")
    return _Token(re.escape(char), char), position + 1


def _date_pieces(text: str, seen: set[str]) -> list[_Token]:
    """One token for each segment of the date: the strict match needs its digits, the loose match accepts anything."""

    def expression(found: re.Match[str]) -> str:
        directive = found[1]
        if directive is None:
            return re.escape(found[0])
        if directive not in _DIRECTIVES:
            raise BadPattern(f"expected only %Y, %m, %d and %H in {{date:...}}, found {'%' + directive!r}")
        if directive in seen:  # it must have the same value (year=2026/2026-01-31)
            return f"(?P={directive})"
        seen.add(directive)
        return f"(?P<{directive}>{_DIRECTIVES[directive]})"

    pieces = [re.sub(r"%(.?)|[^%]+", expression, part) for part in text.split("/")]
    finest = max((index for index, directive in enumerate("YmdH") if directive in seen), default=-1)
    if not set("YmdH"[: finest + 1]) <= seen or finest < 0:
        raise BadPattern("expected a date that starts with the year: %Y, %Y %m, %Y %m %d or %Y %m %d %H, in any order")
    if not all(pieces):
        raise BadPattern("expected no empty folder name in {date:...}; remove the extra '/'")
    return [_Token(piece, is_date=True) for piece in pieces]


def _is_any_depth(tokens: list[_Token]) -> bool:
    return len(tokens) == 2 and all(token is _STAR for token in tokens)


def _segment(tokens: list[_Token]) -> PathSegment:
    loose = _joined([_STAR.regex if token.is_date else token.regex for token in tokens])
    bare = all(token is _STAR for token in tokens)
    return PathSegment(re.compile(loose), any_depth=_is_any_depth(tokens), bare=bare)


def _joined(tokens: list[str]) -> str:
    """One segment's expression, which takes at most the square of a name's length, whatever its number of stars.

    Each text between two stars is taken where it first fits, for good: what follows it then has the most room. Only the
    date is looked for from the end: of several the last is the file's.
    """
    chunks = [""]
    for token in tokens:
        chunks = [*chunks, ""] if token == _STAR.regex else [*chunks[:-1], chunks[-1] + token]
    found = chunks[0]
    for chunk in chunks[1:-1]:
        found += f"[^/]*{chunk}" if "(?P" in chunk else f"(?>[^/]*?{chunk})"
    return found + (f"[^/]*{chunks[-1]}" if len(chunks) > 1 else "")


def _strict(segments: list[list[_Token]]) -> str:
    text = ""
    for index, tokens in enumerate(segments):
        if _is_any_depth(tokens):
            text += "(?:[^/]+/)*"
        else:
            text += _joined([token.regex for token in tokens]) + ("" if index == len(segments) - 1 else "/")
    return text
