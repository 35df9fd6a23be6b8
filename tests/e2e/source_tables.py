"""Tables of a source database with columns of every type that docs/debezium.md lists, and random transactions on them.

`SourceTable` is one of them: how to create it, how to read it as we should, and the collection file of its feed.
`changes` draws the statements of a transaction. It takes keys of one parity only, so that two transactions that are
open at the same time never wait for each other.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

Row = tuple[Any, ...]
LARGE_CHARS = 6_000  # of random text: PostgreSQL stores more than 2,000 bytes apart (TOAST)
KEYS = 30  # few, so that changes meet


@dataclass(frozen=True)
class Kind:
    """A type of the database: how to draw a value as an SQL literal, and how to write the stored one as text.

    `shown` has the column as `{}`. Its text is read by the collection's type, or by `read`.
    """

    draw: Callable[[Random], str]
    shown: str = "{}"
    read: Callable[[str], Any] | None = None
    is_large: bool = False  # so that PostgreSQL may store a value apart from its row


@dataclass(frozen=True)
class SourceColumn:
    """A column: its type in the database, and as the collection file has it."""

    name: str
    sql: str
    column: dict[str, Any]
    kind: Kind
    default: str = ""

    def value(self, text: str | None) -> Any:
        """The value of the text that the database shows, comparable with one of ours."""
        if text is None:
            return None
        return comparable((self.kind.read or READ[self.column["type"].partition("(")[0]])(text))


@dataclass(frozen=True)
class SourceTable:
    """A table; the first `keys` columns are its key, and `key` gives the literals of the key with a number.

    `sends_all`: Debezium gets all values of a row that changes. If not, a row under a new key has no value to keep, and
    a change of the key sets the large ones too.
    """

    name: str
    columns: tuple[SourceColumn, ...]
    keys: int
    key: Callable[[int], tuple[str, ...]]
    sends_all: bool = True

    @property
    def key_names(self) -> list[str]:
        """The names of the key's columns."""
        return [column.name for column in self.columns[: self.keys]]

    def create(self) -> str:
        """The statement that creates it."""
        columns = [f"{column.name} {column.sql} {column.default}" for column in self.columns]
        return f"CREATE TABLE {self.name} ({', '.join(columns)}, PRIMARY KEY ({', '.join(self.key_names)}))"

    def select(self) -> str:
        """The query for all its rows, each value as text."""
        shown = [column.kind.shown.format(column.name) for column in self.columns]
        return f"SELECT {', '.join(shown)} FROM {self.name}"

    def rows(self, found: list[tuple[str | None, ...]]) -> list[Row]:
        """The result of `select`, as values, sorted."""
        values = [tuple(c.value(text) for c, text in zip(self.columns, row, strict=True)) for row in found]
        return sorted(values, key=repr)

    def ours(self, rows: list[dict[str, Any]]) -> list[Row]:
        """Rows of the collection in the same form."""
        return sorted((tuple(comparable(row[c.name]) for c in self.columns) for row in rows), key=repr)

    def collection(self, path: str, source: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
        """The body of its collection file."""
        return {
            "source": {"path": path, "format": "debezium-json", **source},
            "key": self.key_names,
            "columns": {column.name: column.column for column in self.columns},
            "time": "path",
            "limits": {"max_errors": 0},
            **fields,
        }

    def row(self, chance: Random, number: int) -> list[str]:
        """The literals of a new row."""
        return [*self.key(number), *(_drawn(chance, column) for column in self.columns[self.keys :])]

    def where(self, number: int) -> str:
        """The condition that holds for the row with this number."""
        pairs = zip(self.key_names, self.key(number), strict=True)
        return " AND ".join(f"{name} = {literal}" for name, literal in pairs)

    def change(self, chance: Random, *numbers: int) -> str:
        """An update of some columns of some rows; it leaves large values alone more often than not."""
        free = self.columns[self.keys :]
        chosen = chance.sample(free, chance.randint(1, min(3, len(free))))
        sets = [f"{column.name} = {_drawn(chance, column)}" for column in chosen]
        where = " OR ".join(f"({self.where(number)})" for number in numbers)
        return f"UPDATE {self.name} SET {', '.join(sets)} WHERE {where}"

    def move(self, chance: Random, old: int, new: int) -> str:
        """A change of the key, unless a row has the new one."""
        changed = list(zip(self.key_names, self.key(new), strict=True))
        if not self.sends_all:
            changed += [(c.name, _drawn(chance, c)) for c in self.columns[self.keys :] if c.kind.is_large]
        sets = ", ".join(f"{name} = {literal}" for name, literal in changed)
        taken = f"EXISTS (SELECT 1 FROM (SELECT * FROM {self.name}) AS other WHERE {self.where(new)})"
        return f"UPDATE {self.name} SET {sets} WHERE {self.where(old)} AND NOT {taken}"


def changes(table: SourceTable, chance: Random, parity: int, insert: str) -> Iterator[str]:
    """The statements of a transaction: `insert` is the database's INSERT that leaves a row alone that is there."""
    for _ in range(chance.randint(1, 6)):
        number, other = (chance.randrange(KEYS) * 2 + parity for _ in range(2))
        into = insert.format(table=table.name, values=f"({', '.join(table.row(chance, number))})")
        both = insert.format(
            table=table.name, values=", ".join(f"({', '.join(table.row(chance, each))})" for each in (number, other))
        )
        undo = [into, table.change(chance, number), f"DELETE FROM {table.name} WHERE {table.where(other)}"]
        yield from chance.choices(
            [
                [into],
                [both],
                [table.change(chance, number)],
                [table.change(chance, number, other)],
                [f"DELETE FROM {table.name} WHERE {table.where(number)}"],
                [table.move(chance, number, other)],
                [f"DELETE FROM {table.name} WHERE {table.where(number)}", into],
                ["SAVEPOINT here", *undo, "ROLLBACK TO SAVEPOINT here"],
            ],
            weights=[6, 1, 6, 1, 2, 2, 1, 1],
        )[0]
    yield chance.choices(["COMMIT", "ROLLBACK"], weights=[6, 1])[0]


def comparable(value: Any) -> Any:
    """A value that is equal to itself: NaN is a text, a float has no sign of zero, and text shows its type."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return bytes(value) if isinstance(value, bytearray | memoryview) else value


def _drawn(chance: Random, column: SourceColumn) -> str:
    return "NULL" if chance.random() < 0.15 else column.kind.draw(chance)


def text(chance: Random, length: int = 12) -> str:
    """A literal with quotes, line ends of Unicode and characters beyond 16 bits in it."""
    return "'" + "".join(chance.choices('abc XYZ09"{}[]:,é漢😀\u2028\x85\n\t', k=chance.randint(0, length))) + "'"


def large(chance: Random) -> str:
    """A text literal, sometimes one that is stored apart from its row."""
    return f"'{chance.randbytes(LARGE_CHARS // 2).hex()}'" if chance.random() < 0.6 else text(chance)


def json_text(chance: Random) -> str:
    """A literal of a JSON document."""
    many = f', "more": "{chance.randbytes(LARGE_CHARS // 2).hex()}"' if chance.random() < 0.4 else ""
    return f"""'{{"n": {chance.randrange(99)}, "text": "é {chance.randrange(9)}"{many}}}'"""


def number(low: int, high: int, scale: int = 0) -> Callable[[Random], str]:
    """Draws an integer or a decimal, the bounds included more often than by chance."""
    return lambda chance: str(Decimal(chance.choice([low, high, 0, chance.randint(low, high)])).scaleb(-scale))


def real(chance: Random) -> str:
    """A literal of a floating point number."""
    return repr(struct.unpack("<f", chance.randbytes(3) + chance.choice([b"\x3f", b"\xc0", b"\x50"]))[0])


def moment(form: str, first: int = 1600) -> Callable[[Random], str]:
    """Draws a literal by a format of `strftime`, from the year `first` on."""

    def draw(chance: Random) -> str:
        year = chance.choice([first, 1969, 1970, 2026, 9998, chance.randint(first, 9998)])
        at = datetime(year, 1, 1) + timedelta(chance.randrange(365), chance.randrange(86_400), chance.randrange(10**6))
        return at.strftime(form.replace("%Y", f"{at.year:04}"))

    return draw


def float32(text: str) -> float:
    """The nearest float of 32 bits."""
    found = float(text)
    return float(struct.unpack("<f", struct.pack("<f", found))[0]) if math.isfinite(found) else found


def low_first(text: str) -> bytes:
    """Bits as Debezium writes them: the lowest byte first, no more bytes than needed."""
    found = int(text, 2)
    return found.to_bytes((found.bit_length() + 7) // 8, "little")


def _instant(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


READ: dict[str, Callable[[str], Any]] = {
    "boolean": lambda text: text in ("true", "t", "1"),
    "int": int,
    "bigint": int,
    "decimal": Decimal,
    "float": float32,
    "double": float,
    "string": str,
    "json": str,
    "binary": bytes.fromhex,
    "date": date.fromisoformat,
    "timestamp": _instant,
}
