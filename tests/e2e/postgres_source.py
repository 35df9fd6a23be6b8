"""A PostgreSQL whose changes Debezium reads, with a value of every type that docs/debezium.md lists."""

from __future__ import annotations

import base64
import itertools
import json
import struct
from collections.abc import Iterable
from contextlib import ExitStack
from random import Random
from typing import Any

from tests.e2e.source_tables import Kind, SourceTable, json_text, large, low_first, moment, number, real, text
from tests.servers.debezium import MARKS, postgres_settings
from tests.servers.postgres import PASSWORD, SUPERUSER, PostgresServer


def _of(draw: Any, shown: str = "{}::text", read: Any = None, *, is_large: bool = False) -> Kind:
    return Kind(draw, shown, read, is_large)


def _either(*literals: str) -> Kind:
    return _of(lambda chance: f"'{chance.choice(literals)}'")


def _bits(length: int, *, varying: bool) -> Kind:
    def draw(chance: Random) -> str:
        count = chance.randint(1, length) if varying else length
        return f"B'{chance.getrandbits(count):0{count}b}'"

    return _of(draw, read=low_first)


def _floats(chance: Random) -> str:
    return chance.choice([real(chance), "'NaN'", "'Infinity'", "'-Infinity'", "'-0'"])


def _point(shown: str) -> str:
    x, y = map(float, shown.strip("()").split(","))
    wkb = base64.b64encode(struct.pack("<BIdd", 1, 1, x, y)).decode()
    return json.dumps({"x": x, "y": y, "wkb": wkb, "srid": None}, separators=(",", ":"))


def _integers(chance: Random) -> str:
    return f"'{{{','.join(str(chance.randrange(9)) for _ in range(chance.randrange(4)))}}}'"


_MICROS = "(extract(epoch from {}) * 1000000)::bigint::text"
KINDS = {
    "boolean": _of(lambda chance: chance.choice(["true", "false"])),
    "smallint": _of(number(-(2**15), 2**15 - 1)),
    "integer": _of(number(-(2**31), 2**31 - 1)),
    "bigint": _of(number(-(2**63), 2**63 - 1)),
    "real": _of(_floats),
    "double precision": _of(_floats),
    "numeric(12,2)": _of(number(-(10**12) + 1, 10**12 - 1, 2)),
    "numeric": _of(lambda chance: number(-(10**28), 10**28, chance.randint(0, 9))(chance)),
    "money": _of(number(-(10**13), 10**13, 2), "{}::numeric::text"),
    "text": _of(large, is_large=True),
    "varchar(20)": _of(text),
    "char(5)": _of(lambda chance: chance.choice(["'ab'", "''", "'12345'"]), "rpad({}::text, 5)"),
    "uuid": _of(lambda chance: f"'{chance.randbytes(16).hex()}'"),
    "inet": Kind(_either("10.0.0.1", "10.0.0.1/8", "::1").draw, "nullif(format('%s', {}), '')"),
    "cidr": _either("10.0.0.0/8", "::1/128"),
    "macaddr": _either("08:00:2b:01:02:03"),
    "tsvector": _either("fat cat", "a:1 b:2"),
    "int4range": _either("[1,5)", "empty", "(,7)"),
    "mood": _either("happy", "sad, or not", "é"),
    "json": _of(json_text, is_large=True),
    "jsonb": _of(json_text, is_large=True),
    "integer[]": _of(_integers, "array_to_json({})::text"),
    "text[]": Kind(_either('{a,"b c","é"}', "{}").draw, "array_to_json({})::text"),
    "bytea": _of(
        lambda chance: f"'\\x{chance.randbytes(chance.choice([0, 1, 5, 5_000])).hex()}'",
        "encode({}, 'hex')",
        is_large=True,
    ),
    "bit(12)": _bits(12, varying=False),
    "bit varying(20)": _bits(20, varying=True),
    "date": _of(moment("'%Y-%m-%d'")),
    "timestamp": _of(moment("'%Y-%m-%d %H:%M:%S.%f'")),
    "timestamp(3)": _of(moment("'%Y-%m-%d %H:%M:%S.%f'")),
    "timestamptz": _of(moment("'%Y-%m-%d %H:%M:%S.%f+05:30'")),
    "time": _of(moment("'%H:%M:%S.%f'"), _MICROS),
    "time(3)": _of(moment("'%H:%M:%S.%f'"), "(extract(epoch from {}) * 1000)::int::text"),
    "timetz": _of(moment("'%H:%M:%S+02'"), "to_char(({} at time zone 'UTC')::time, 'HH24:MI:SS') || 'Z'"),
    "interval": _of(lambda chance: f"'{chance.randrange(99)} days {chance.randrange(999)} seconds'", _MICROS),
    "point": _of(lambda chance: f"'({chance.randrange(9)},{chance.randrange(9)})'", read=_point),
}
BEFORE = ("CREATE TYPE mood AS ENUM ('happy', 'sad, or not', 'é')",)
INSERT = "INSERT INTO {table} VALUES {values} ON CONFLICT DO NOTHING"


class PostgresSource:
    """One database of a server. Its name is also the slot's."""

    insert = INSERT

    def __init__(self, server: PostgresServer, database: str) -> None:
        self._server, self._database = server, database
        server.query(f"CREATE DATABASE {database}")
        self.query(f"CREATE TABLE {MARKS} (day text PRIMARY KEY)", *BEFORE)

    @property
    def settings(self) -> dict[str, str]:
        """The connector's."""
        return postgres_settings(self._server.port, SUPERUSER, PASSWORD, self._database)

    def query(self, *statements: str) -> list[Any]:
        """Run statements, each as a transaction; the rows of the last."""
        return [self._server.query(each, database=self._database) for each in statements][-1]

    def run(self, *transactions: Iterable[str]) -> None:
        """Run transactions at the same time, each in a session of its own, a statement of each in turn."""
        with ExitStack() as stack:
            sessions = [stack.enter_context(self._server.connect(database=self._database)) for _ in transactions]
            for session in sessions:
                session.execute("BEGIN")
            for turn in itertools.zip_longest(*transactions):
                for session, statement in zip(sessions, turn, strict=True):
                    if statement is not None:
                        session.execute(statement.encode())

    def rows(self, table: SourceTable) -> list[Any]:
        """All rows of a table now."""
        return table.rows(self.query(table.select()))

    def mark(self, day: str) -> None:
        """Begin a day."""
        self.query(f"INSERT INTO {MARKS} VALUES ('{day}')")

    def is_free(self) -> bool:
        """True if no engine holds the slot, so that one can start."""
        return not self.query(f"SELECT 1 FROM pg_replication_slots WHERE active AND slot_name = '{self._database}'")
