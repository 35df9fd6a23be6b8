"""A MariaDB whose changes Debezium reads, with a value of every type that docs/debezium.md lists."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

from tests.e2e.source_tables import Kind, Row, SourceTable, json_text, large, moment, number, text
from tests.servers.debezium import MARKS
from tests.servers.mariadb import PASSWORD, USER, MariaDbServer

DATABASE = "shop"


def _text(draw: Any) -> Kind:
    return Kind(draw, "HEX({})", lambda shown: bytes.fromhex(shown).decode())


def _either(*literals: str) -> Kind:
    return _text(lambda chance: f"'{chance.choice(literals)}'")


def _bytes(*lengths: int) -> Kind:
    def draw(chance: Random) -> str:
        return f"x'{chance.randbytes(chance.choice(lengths)).hex()}'"

    return Kind(draw, "HEX({})")


KINDS = {
    "boolean": Kind(lambda chance: chance.choice(["true", "false"])),
    "tinyint": Kind(number(-(2**7), 2**7 - 1)),
    "smallint": Kind(number(-(2**15), 2**15 - 1)),
    "mediumint": Kind(number(-(2**23), 2**23 - 1)),
    "int": Kind(number(-(2**31), 2**31 - 1)),
    "int unsigned": Kind(number(0, 2**32 - 1)),
    "bigint": Kind(number(-(2**63), 2**63 - 1)),
    "bigint unsigned": Kind(number(0, 2**64 - 1)),
    "decimal(12,2)": Kind(number(-(10**12) + 1, 10**12 - 1, 2)),
    "float": Kind(number(-(10**6) + 1, 10**6 - 1, 3)),  # six digits, which is what a snapshot has
    "double": Kind(lambda chance: repr(chance.uniform(-1e9, 1e9))),
    "char(5)": _either("ab", "", "12345"),
    "varchar(20)": _text(text),
    "text": _text(large),
    "longtext": _text(large),
    "json": _text(json_text),
    "enum('small','large')": _either("small", "large"),
    "set('a','b','c')": _either("a", "a,c", "", "a,b,c"),
    "uuid": Kind(lambda chance: f"'{chance.randbytes(6).hex()}4abc8abc{chance.randbytes(5).hex()}01'"),
    "binary(5)": _bytes(5),
    "varbinary(20)": _bytes(0, 1, 20),
    "blob": _bytes(0, 1, 5, 5_000),
    "bit(1)": Kind(lambda chance: chance.choice(["b'0'", "b'1'"]), "{} + 0"),
    "bit(12)": Kind(
        lambda chance: f"b'{chance.getrandbits(12):b}'",
        "BIN({} + 0)",
        lambda shown: int(shown, 2).to_bytes(2, "little"),
    ),
    "date": Kind(moment("'%Y-%m-%d'")),
    "datetime": Kind(moment("'%Y-%m-%d %H:%M:%S'")),
    "datetime(6)": Kind(moment("'%Y-%m-%d %H:%M:%S.%f'")),
    "timestamp": Kind(lambda chance: f"from_unixtime({chance.randint(1, 2**31 - 1)})"),
    "timestamp(6)": Kind(lambda chance: f"from_unixtime({chance.randint(1, 2**31 - 1)}.{chance.randrange(10**6):06})"),
    "time": Kind(moment("'%H:%M:%S'"), "TIME_TO_SEC({}) * 1000000"),
    "time(6)": Kind(moment("'%H:%M:%S.%f'"), "CAST(TIME_TO_SEC({}) * 1000000 AS SIGNED)"),
    "year": Kind(lambda chance: str(chance.randint(1901, 2155))),
}


class MariaDbSource:
    """One database of a server, which another server may replace."""

    insert = "INSERT IGNORE INTO {table} VALUES {values}"

    def __init__(self, server: MariaDbServer) -> None:
        self.server = server
        server.query(f"CREATE DATABASE {DATABASE}")
        self.query(f"CREATE TABLE {MARKS} (day varchar(20) PRIMARY KEY)")

    @property
    def settings(self) -> dict[str, str]:
        """The connector's."""
        return {
            "connector.class": "io.debezium.connector.mariadb.MariaDbConnector",
            "database.hostname": "127.0.0.1",
            "database.port": str(self.server.port),
            "database.user": USER,
            "database.password": PASSWORD,
            "database.server.id": "9999",
            "database.ssl.mode": "disable",
            "database.include.list": DATABASE,
            "bigint.unsigned.handling.mode": "precise",
        }

    def query(self, *statements: str) -> list[list[str]]:
        """Run statements; what the last one printed."""
        return [self.server.query(each, database=DATABASE) for each in statements][-1]

    def run(self, *transactions: Iterable[str]) -> None:
        """Run transactions, one after the other; the binlog has them in this form anyway. Now and then it rotates."""
        for statements in transactions:
            self.query("; ".join(("BEGIN", *statements)))

    def rows(self, table: SourceTable) -> list[Row]:
        """All rows of a table now."""
        found = self.query(table.select())
        return table.rows([tuple(None if text == "NULL" else text for text in row) for row in found])

    def mark(self, day: str) -> None:
        """Begin a day, in a binlog of its own."""
        self.query(f"INSERT INTO {MARKS} VALUES ('{day}'); FLUSH BINARY LOGS")

    def is_free(self) -> bool:
        """True: the binlog has any number of readers."""
        return True
