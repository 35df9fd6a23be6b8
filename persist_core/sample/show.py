"""A preview as text for people: one line for each finding. The rows are a table of their own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from persist_core.sample.preview import Preview
from persist_core.time_text import show_time


def lines_of(found: Preview) -> list[str]:
    """All but the rows."""
    return [*_of_sample(found), *(_of_records(found) if found.records else ()), *_of_fields(found)]


def _of_sample(found: Preview) -> Iterator[str]:
    yield f"next run: {found.next_run.text}"
    yield from found.next_run.notices
    for each in found.files:
        part = "all" if each.is_whole else "the first"
        yield f"sample: {part} {each.records} records of {each.file.relative}"
        if each.problem is not None:
            yield f"problem: {each.file.relative}: {each.problem}"
    if not found.files:
        yield "sample: no file matches source.path"
    if found.stops is not None:
        yield f"a run would stop: {found.stops}"


def _of_records(found: Preview) -> Iterator[str]:
    records = found.records
    yield f"records: {_counts(records['operations']) or 'none'}"
    if found.stats:
        yield f"a run would report: {_counts(found.stats)}"
    yield from (f"warning {each}" for each in found.warnings)
    keys = records["keys"]
    most = ", ".join(f"{show_key(each['key'])} in {each['records']}" for each in keys["most"])
    yield f"keys: {keys['distinct']} distinct, {keys['repeated']} in several records{': ' if most else ''}{most}"
    times, orders = records["times"], records["orders"]
    if times["of"]:
        late = f"; {times['late']} of {times['of']} are earlier than one before them" if times["late"] else ""
        yield f"times: {show_time(times['first'])} to {show_time(times['last'])}{late}"
    if orders["of"]:
        first, last = (json.dumps([v for v in orders[name] if v is not None]) for name in ("first", "last"))
        backwards = f"{orders['out_of_order']} of {orders['of']} are lower than one of their key before them"
        yield f"orders: {first} to {last}; {backwards}"
    for each in records["errors"]:
        yield f"error {each['kind']}, {each['records']} records: {each['message']} (the first: {each['position']})"


def _of_fields(found: Preview) -> Iterator[str]:
    for each in found.unread:
        example = f", such as {each['example']}" if each["example"] is not None else ", always null"
        yield f"no column takes field {each['field']}: {each['records']} records have it{example}"
    for hint in found.hints:
        yield f"hint: {hint}"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items() if count)


def show_key(key: Mapping[str, Any]) -> str:
    """`id=1, day="2026-01-01"`."""
    return ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in key.items())
