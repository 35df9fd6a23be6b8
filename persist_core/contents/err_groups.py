"""Errs in groups: of one kind, with one message but for what differs from record to record; the most frequent first.

    9,058 errs `column 'at' is '1767225600000'; expected an ISO timestamp` ... ─> one group, 9,058 times, and a sample

A group takes one record in memory, and there is a bound on groups: errs beyond it are counted together.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from persist_core.schema import ERR_KIND, ERR_MESSAGE, ERR_PAYLOAD, ERR_POSITION

MAX_GROUPS = 10  # that a manifest keeps
MAX_READ = 50_000  # errs that are read for a report of a run: enough to show what is frequent
_MAX_KNOWN = 1_000  # messages in memory
_MAX_CHARS = 300  # of a message
_PAYLOAD_BYTES = 200
_AT_ONCE = 1_000  # rows as Python objects
_COLUMNS = (ERR_KIND, ERR_MESSAGE, ERR_POSITION, ERR_PAYLOAD)
_OTHERS = "errors with other messages, or not looked at"
# The name of a column or field stays; a bad value, which may hold quotes, other quoted texts, and numbers do not.
_VARIES = re.compile(
    r"(?P<name>\b(?:column|field) '[^']*'|\b1970\b)|(?P<value>(?<=\bis )'.*?'(?=; expected|$))|'[^']*'|\(\d+\)"
    r"|(?<![\w,.])(?<!\w\()-?\d[\w:.,-]*\b",
    re.DOTALL,
)


@dataclass(frozen=True)
class ErrGroup:
    """Errs of one `kind` and `message`, in which `...` stands for what differs; and the facts of the first one.

    `position` is `None` for a record that was good by itself. Payload and messages may be cut.
    """

    kind: str
    message: str
    count: int
    first: str = ""
    position: str | None = None
    payload: str = ""


def grouped(errs: Iterable[Mapping[str, Any]], most: int | None = None, *, of: int = 0) -> tuple[ErrGroup, ...]:
    """The groups of errs, rows by the names of the err columns; of all `of`, if these are not all.

    With `most`, that many groups: the rest, and what is not among `errs`, is one group more.
    """
    known: dict[tuple[str, str], ErrGroup] = {}
    for err in errs:
        kind, text = err[ERR_KIND], (err[ERR_MESSAGE] or "")[:_MAX_CHARS]
        message = pattern_of(text)
        if (kind, message) not in known and len(known) >= _MAX_KNOWN:
            kind, message = "other", _OTHERS
        if (kind, message) not in known:
            payload = bytes(err.get(ERR_PAYLOAD) or b"")[:_PAYLOAD_BYTES].decode("utf-8", "replace")
            known[kind, message] = ErrGroup(kind, message, 0, text, err.get(ERR_POSITION), payload)
        group = known[kind, message]
        known[kind, message] = replace(group, count=group.count + 1)
    total = max(of, sum(group.count for group in known.values()))
    named = (group for group in known.values() if group.message != _OTHERS)
    shown = sorted(named, key=lambda group: -group.count)[:most]
    return (*shown, *_rest(total - sum(group.count for group in shown)))


def _rest(count: int) -> list[ErrGroup]:
    return [ErrGroup("other", _OTHERS, count, _OTHERS)] if count else []


def pattern_of(message: str) -> str:
    """A message without what differs from record to record."""
    return _VARIES.sub(lambda found: found["name"] or _mark(found[0]), message)


def _mark(text: str) -> str:
    return {"'": "'...'", "(": "(...)"}.get(text[0], "...")


def rows_of_errs(table: pa.Table) -> Iterator[Mapping[str, Any]]:
    """The rows of a table of errs, as `grouped` takes them, few at a time."""
    columns = [name for name in _COLUMNS if name in table.column_names]
    for batch in table.select(columns).to_batches(max_chunksize=_AT_ONCE):
        yield from batch.to_pylist()


def lines_of(groups: Sequence[ErrGroup], *, has_payloads: bool = True) -> list[str]:
    """A line for each of the first groups: how many, what is wrong, where the first one is; and one for the rest."""
    return [
        f"{group.count} {group.kind}: {group.message}"
        + (f"; the first: {group.position}" if group.position else "")
        + (f", {group.payload!r}" if group.payload and has_payloads else "")
        for group in (*groups[:MAX_GROUPS], *_rest(sum(group.count for group in groups[MAX_GROUPS:])))
    ]
