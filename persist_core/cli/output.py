"""What the command line prints: tables for people, JSON for programs, errors as one line and an exit code.

1. With `--json` stdout holds JSON alone: one object, or one object a line (NDJSON). Field names are stable.
2. Nothing that was stored can move the cursor, color or retitle the terminal: what is not printable is escaped.
3. Errors go to stderr; the exit code says what to do next (`exit_code`).
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, TextIO

import pyarrow as pa
from rich.console import Console
from rich.table import Table
from rich.text import Text

from persist_core.errors import Corruption, InvalidInput, NotReadable, PersistError, RunFailed, StorageError
from persist_core.frontier import Frontier
from persist_core.schema import ERR_KEY, ERR_PAYLOAD
from persist_core.time_text import format_time

EXIT_CODES: tuple[tuple[type[PersistError], int], ...] = (
    (InvalidInput, 2),
    (NotReadable, 3),
    (Corruption, 4),
    (RunFailed, 5),
    (StorageError, 6),
)
MAX_CELL_CHARS = 120  # of a table for people; JSON has all
_ROWS_AT_ONCE = 10_000  # Arrow rows turned into Python objects at a time
_WIDTH_WITHOUT_TERMINAL = 200
_DAY_MS = 86_400_000  # times in the first day of 1970 are counters, not clock times


def exit_code(error: PersistError) -> int:
    """2 wrong arguments, 3 not readable, 4 corruption, 5 nothing was committed, 6 the store failed, 1 anything else."""
    return next((code for kind, code in EXIT_CODES if isinstance(error, kind)), 1)


def print_error(error: PersistError, *, as_json: bool) -> None:
    """The error on stderr: `persist: <message>`, or `{"error": {"kind", "message"}}`."""
    if as_json:
        body = {"error": {"kind": error.kind, "message": str(error)}}
        _write_line(sys.stderr, body)
    else:
        lines = [printable(line) for line in str(error).splitlines()]
        sys.stderr.write("persist: " + "\n".join(lines) + "\n")


def printable(text: str) -> str:
    """`text` with everything escaped that would control a terminal (controls, direction marks, line ends)."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def show_time(time: int | None) -> str:
    """A time for people: ISO if it is a clock time, else the integer."""
    if time is None:
        return "closed"
    return str(time) if time < _DAY_MS else format_time(time)


def show_frontier(frontier: Frontier) -> str:
    """A frontier for people, with the integer beside the ISO text."""
    shown = show_time(frontier.time)
    return shown if shown == str(frontier) else f"{shown} ({frontier})"


def show_bytes(size_bytes: int) -> str:
    """A size for people, in powers of 1024."""
    size, units = float(size_bytes), ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size_bytes} B" if units[0] == "B" else f"{size:.1f} {units[0]}"


def json_value(value: Any) -> Any:
    """A value of an Arrow table as JSON: decimals, dates and timestamps as text, bytes as lower-case hex."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    return str(value)


def rows_of(table: pa.Table) -> Iterator[dict[str, Any]]:
    """The rows as JSON objects. Error keys and payloads are bytes: text if they are UTF-8, else `{"hex": ...}`."""
    for batch in table.to_batches(max_chunksize=_ROWS_AT_ONCE):
        columns = [_column(field, column) for field, column in zip(batch.schema, batch.columns, strict=True)]
        for values in zip(*columns, strict=True):
            yield {
                name: _raw(value) if name in (ERR_KEY, ERR_PAYLOAD) else json_value(value)
                for name, value in zip(batch.schema.names, values, strict=True)
            }


def _column(field: pa.Field, column: pa.Array) -> list[Any]:
    """Python values. Dates and timestamps outside of Python's range of years become Arrow's text."""
    values: list[Any]
    try:
        values = column.to_pylist()
    except (ValueError, OverflowError):
        if not pa.types.is_temporal(field.type):
            raise
        values = column.cast(pa.string()).to_pylist()
    return values


def _raw(value: bytes | None) -> Any:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"hex": value.hex()}


def print_json(body: Mapping[str, Any]) -> None:
    """One JSON object on stdout."""
    _write_line(sys.stdout, body)


def print_ndjson(bodies: Iterable[Mapping[str, Any]]) -> None:
    """One JSON object a line on stdout."""
    for body in bodies:
        _write_line(sys.stdout, body)


def _write_line(stream: TextIO, body: Mapping[str, Any]) -> None:
    stream.write(json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False) + "\n")


def console() -> Console:
    """The console for people's output on stdout; styles only in a terminal."""
    width = None if sys.stdout.isatty() else _WIDTH_WITHOUT_TERMINAL
    return Console(markup=False, emoji=False, highlight=False, soft_wrap=False, width=width)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str = "", empty: str = "") -> None:
    """A table for people; `empty` is printed if there are no rows. Numbers are aligned right, nulls are dim."""
    drawn = Table(title=Text(printable(title)) if title else None, title_justify="left", header_style="bold")
    for name in columns:
        drawn.add_column(Text(printable(name)), overflow="fold")
    for row in rows:
        drawn.add_row(*(_cell(value) for value in row))
    if not drawn.row_count and empty:
        print_line(empty)
    else:
        console().print(drawn)


def _cell(value: Any) -> Text:
    if value is None:
        return Text("null", style="dim")
    text = printable(value if isinstance(value, str) else str(json_value(value)))
    if len(text) > MAX_CELL_CHARS:
        text = f"{text[:MAX_CELL_CHARS]}... ({len(text)} characters)"
    numeric = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    return Text(text, justify="right" if numeric else "left")


def print_line(text: str, *, to_stderr: bool = False) -> None:
    """One line for people."""
    stream = sys.stderr if to_stderr else sys.stdout
    stream.write(printable(text) + "\n")
    stream.flush()


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """`name: value` lines for people, aligned."""
    pairs = list(facts)
    width = max((len(name) for name, _ in pairs), default=0) + 1
    for name, value in pairs:
        print_line(f"{name + ':':<{width}} {value}")
