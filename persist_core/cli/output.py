"""Output of the command line: tables for people, JSON for programs, errors as one line and an exit code.

1. With `--json` stdout holds JSON alone: one object, or one object a line (NDJSON). Field names are stable.
2. Nothing that was stored can move the cursor, color or retitle the terminal: what is not printable is escaped.
3. Errors go to stderr; the exit code says what to do next (`exit_code`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias, TypeVar

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from persist_core.errors import Corruption, InvalidInput, NotReadable, PersistError, RunFailed, StorageError
from persist_core.inspection.values import json_value
from persist_core.maintenance.actions import Done
from persist_core.schema import RESERVED_PREFIX

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_Record = TypeVar("_Record", bound="DataclassInstance")
Columns: TypeAlias = Sequence[tuple[str, Callable[[_Record], Any]]]
"""Of a table for people: the title of each column, and its value of a record."""
EXIT_CODES: tuple[tuple[type[PersistError], int], ...] = (
    (InvalidInput, 2),
    (NotReadable, 3),
    (Corruption, 4),
    (RunFailed, 5),
    (StorageError, 6),
)
COUNT, POSITIVE = (click.IntRange(least, 10**15) for least in (0, 1))  # libraries cannot count to any number
MAX_CELL_CHARS = 120  # of a table for people; JSON has all
_WIDTH_WITHOUT_TERMINAL = 200
_LEAST_WIDTH = 80  # of a table: in a narrower one columns vanish. The terminal breaks its lines
_LINE_ENDS = {ord(c): f"\\u{ord(c):04x}" for c in "\x85\u2028\u2029"}  # of Unicode: many tools split lines there


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


class Tries:
    """The turns of several shards: an error is printed, the others still have theirs; `end` exits as the first says."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._first: PersistError | None = None

    @contextmanager
    def one(self) -> Iterator[None]:
        try:
            yield
        except PersistError as error:
            self._first = self._first or error
            print_error(error, as_json=self._as_json)

    def print_done(self, done: Sequence[_Record], columns: Columns[_Record], empty: str) -> None:
        """The table of what was done; after errors `empty` would not be true."""
        if done or self._first is None:
            print_records(done, columns, as_json=self._as_json, empty=empty)

    def end(self) -> None:
        """Exit with the code of the first error, if there was one."""
        if self._first is not None:
            sys.exit(exit_code(self._first))


def printable(text: str) -> str:
    """`text` with everything escaped that would control a terminal (controls, direction marks, line ends)."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def print_done(done: Done, *, as_json: bool) -> None:
    if as_json:
        print_json(done.facts)
        return
    for line in done.lines:
        print_line(line)


def print_json(body: Mapping[str, Any]) -> None:
    _write_line(sys.stdout, body)


def print_ndjson(bodies: Iterable[Mapping[str, Any]]) -> None:
    for body in bodies:
        _write_line(sys.stdout, body)


def _write_line(stream: TextIO, body: Mapping[str, Any]) -> None:
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    stream.write(text.translate(_LINE_ENDS) + "\n")


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
        width = None if sys.stdout.isatty() else _WIDTH_WITHOUT_TERMINAL
        console = Console(markup=False, emoji=False, highlight=False, width=width)
        console.width = max(console.width, _LEAST_WIDTH)
        with console.capture() as captured:
            console.print(drawn)
        sys.stdout.write(captured.get())  # a closed pipe is ours: rich would exit with 1


def short_names(columns: Sequence[str]) -> list[str]:
    """`_persist_err_kind` -> `kind`, unless a column is called so."""
    short = [each.removeprefix(RESERVED_PREFIX).removeprefix("err_") for each in columns]
    return [
        s if name.startswith(RESERVED_PREFIX) and s not in columns else name
        for s, name in zip(short, columns, strict=True)
    ]


def print_records(found: Iterable[_Record], columns: Columns[_Record], *, as_json: bool, empty: str = "") -> None:
    """Dataclasses: all their fields as NDJSON, or for people a table of `columns`, each a title and how to read it."""
    if as_json:
        print_ndjson(asdict(each) for each in found)
        return
    rows = ([read(each) for _, read in columns] for each in found)
    print_table([title for title, _ in columns], rows, empty=empty)


def _cell(value: Any) -> Text:
    if value is None:
        return Text("null", style="dim")
    text = printable(value if isinstance(value, str) else str(json_value(value)))
    if len(text) > MAX_CELL_CHARS:
        text = f"{text[:MAX_CELL_CHARS]}... ({len(text)} characters)"
    numeric = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    return Text(text, justify="right" if numeric else "left")


def print_line(text: str, *, to_stderr: bool = False) -> None:
    stream = sys.stderr if to_stderr else sys.stdout
    stream.write(printable(text) + "\n")
    stream.flush()


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """`name: value` lines for people, aligned."""
    pairs = list(facts)
    width = max((len(name) for name, _ in pairs), default=0) + 1
    for name, value in pairs:
        print_line(f"{name + ':':<{width}} {value}")
