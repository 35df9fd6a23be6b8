"""`postgresql:` consensus: one table in a PostgreSQL database, for as many machines as can reach it.

    key   seqno  data  is_head      compare_and_set(key, 7, new seqno 9), one statement, one round trip:
    ----  -----  ----  -------        UPDATE the row (key, 7, is_head) to is_head = false    -- the compare
    "s"       6  ...   false          INSERT (key, 9, data, is_head = true)                  -- the set, if it matched
    "s"       7  ...   true

Why it is correct under READ COMMITTED, with seqnos that jump and rows that are truncated at the same time:

1. A key with data has exactly one row with `is_head`, and it is the newest: a commit moves the mark from one row to the
   next within one transaction, `truncate` leaves the marked row alone, and a unique index forbids a second one.
2. Of several that expect the same seqno one gets the row's lock. The others wait for it, and PostgreSQL then looks at
   the row's *newest* version: no longer `is_head` (or gone), so their UPDATE matches nothing and they insert nothing.
   (`INSERT ... WHERE max(seqno) = expected` would not do: two writers that jump to different seqnos both see the same
   maximum in their snapshots, and no unique key stops them. Nor would a key on the predecessor: it can be truncated.)
3. `expected=None` inserts the first row and leaves it to the unique index that there is no other.
4. Readers see committed rows only, and a commit is visible only after its record is on disk: `synchronous_commit = off`
   is lifted for our transactions. With `fsync = off` there is no guarantee: the log has one warning.
5. Readers ask the primary only (see `uri`): a standby lags.

Every call is one message, which the server runs as one transaction: isolation level and settings for just this
transaction, then the statement. So nothing is left in the session, and PgBouncer may pool transactions.

An error is `Determinate` if the server says with a known code that the statement failed, or if nothing was sent;
a connection that broke during a commit is `Indeterminate`, and so is everything unknown.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg.rows import TupleRow

from persist_core.clock import Clock
from persist_core.errors import Corruption, Determinate, Indeterminate, InvalidUri, PersistError
from persist_core.location.consensus import (
    SCAN_ALL,
    CaSResult,
    VersionedData,
    check_cas,
    check_consensus_key,
    check_scan,
    check_truncate,
    check_truncation,
)
from persist_core.location.finding import Finding
from persist_core.location.postgres.connections import Connections, NoConnection
from persist_core.location.postgres.diagnosis import diagnose
from persist_core.location.postgres.uri import PostgresAddress

# How much longer than the server we wait before we give up, in seconds: the server should report the timeout.
SILENCE_GRACE_S = 15.0

# Classes (two characters) and codes of SQLSTATE that say that a statement was rolled back or never begun.
_DID_NOTHING_CLASSES = frozenset({"0A", "21", "22", "23", "25", "28", "3D", "3F", "42", "53", "54", "55"})
_DID_NOTHING = frozenset({"40000", "40001", "40002", "40P01", "57014", "57P03"})
_CORRUPT = frozenset({"XX001", "XX002"})
_NOT_THERE = (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName)
_NOT_OURS = (
    psycopg.errors.UndefinedColumn,
    psycopg.errors.UndefinedFunction,  # a column of another type has no operator for our values
    psycopg.errors.DatatypeMismatch,
    psycopg.errors.InvalidColumnReference,  # the unique index is missing
    psycopg.errors.WrongObjectType,
)
_CREATED_MEANWHILE = (
    psycopg.errors.DuplicateTable,
    psycopg.errors.DuplicateSchema,
    psycopg.errors.DuplicateObject,
    psycopg.errors.UniqueViolation,
)

_SETTINGS = """
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
SELECT set_config('statement_timeout', '{timeout_ms}', true),
       CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', true) END,
       current_setting('fsync');
"""
_LIST_KEYS = "SELECT key FROM {table} WHERE is_head"
_HEAD = "SELECT seqno, data FROM {table} WHERE key = %(key)s::text AND is_head"
_SCAN = """
SELECT seqno, data FROM {table} WHERE key = %(key)s::text AND seqno >= %(from)s ORDER BY seqno LIMIT %(limit)s
"""
_SET_FIRST = """
INSERT INTO {table} (key, seqno, data, is_head) VALUES (%(key)s::text, %(new)s, %(data)s, true)
ON CONFLICT (key) WHERE is_head DO NOTHING RETURNING seqno
"""
_SET_NEXT = """
WITH before AS (
    UPDATE {table} SET is_head = false WHERE key = %(key)s::text AND seqno = %(expected)s AND is_head RETURNING seqno
)
INSERT INTO {table} (key, seqno, data, is_head) SELECT %(key)s::text, %(new)s, %(data)s, true FROM before
RETURNING seqno
"""
_TRUNCATE = """
WITH head AS (
    SELECT seqno FROM {table} WHERE key = %(key)s::text AND is_head
), deleted AS (
    DELETE FROM {table} USING head
    WHERE key = %(key)s::text AND {table}.seqno < %(seqno)s AND %(seqno)s <= head.seqno AND NOT is_head
    RETURNING 1
)
SELECT (SELECT seqno FROM head), (SELECT count(*) FROM deleted)
"""
_ERASE = "DELETE FROM {table} WHERE key = %(key)s::text RETURNING 1"
# Keys compare byte by byte, whatever the database's collation.
_CREATE_TABLE = """
CREATE TABLE {table} (
    key text COLLATE "C" NOT NULL,
    seqno bigint NOT NULL CHECK (seqno >= 0),
    data bytea NOT NULL,
    is_head boolean NOT NULL,
    PRIMARY KEY (key, seqno)
);
CREATE UNIQUE INDEX {index} ON {table} (key) WHERE is_head;
"""

_FIND_SCHEMA = "SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = %(schema)s"

_REMEDIES = {
    "25006": "this server or user is read-only: name the primary, or a user with write permission",
    "42501": "grant the rights that docs/locations.md lists",
    "53100": "the server's disk is full: free some space",
    "53300": "the server has no connection left: raise max_connections, or put PgBouncer in front of it",
    "57014": "the statement took longer than statement_timeout_ms: look for locks on the table, or raise it in the URI",
}

_logger = logging.getLogger(__name__)


class PostgresConsensus:
    """`Consensus`, `Erasable` and `Examinable` in a table of a PostgreSQL database.

    The first `compare_and_set` creates it. Safe to share between threads, and to go on with in a forked child. Closing
    it ends its connections.
    """

    def __init__(self, address: PostgresAddress, *, silence_grace_s: float = SILENCE_GRACE_S) -> None:
        self._address = address
        silence_s = address.statement_timeout_ms / 1000 + silence_grace_s
        self._connections = Connections(address.libpq, silence_s=silence_s)
        self._settings = _SETTINGS.format(timeout_ms=address.statement_timeout_ms)
        self._fsync_checked = False

    def list_keys(self) -> Iterator[str]:
        try:
            return iter([key for (key,) in self._run("list_keys", _LIST_KEYS, {})])
        except _NotThere:
            return iter(())

    def head(self, key: str) -> VersionedData | None:
        check_consensus_key(key)
        try:
            rows = self._run(f"head of {key!r}", _HEAD, {"key": key})
        except _NotThere:
            return None
        return VersionedData(*rows[0]) if rows else None

    def compare_and_set(self, key: str, expected: int | None, new: VersionedData) -> CaSResult:
        check_cas(key, expected, new)
        action = f"compare_and_set of {key!r}"
        arguments = {"key": key, "expected": expected, "new": new.seqno, "data": new.data}
        statement = _SET_FIRST if expected is None else _SET_NEXT
        try:
            try:
                rows = self._run(action, statement, arguments, writes=True)
            except _NotThere:
                if expected is not None:
                    return CaSResult.EXPECTATION_MISMATCH
                self._create(action)
                rows = self._run(action, statement, arguments, writes=True)
        except Determinate as error:
            # Two first versions with one seqno at the same moment: the loser may meet the primary key, which is not the
            # index that ON CONFLICT names, after the winner has committed.
            if expected is None and isinstance(error.__cause__, psycopg.errors.UniqueViolation):
                return CaSResult.EXPECTATION_MISMATCH
            raise
        return CaSResult.COMMITTED if rows else CaSResult.EXPECTATION_MISMATCH

    def scan(self, key: str, from_seqno: int, limit: int = SCAN_ALL) -> list[VersionedData]:
        arguments = {"key": key, "from": from_seqno, "limit": check_scan(key, from_seqno, limit)}
        try:
            return [VersionedData(*row) for row in self._run(f"scan of {key!r}", _SCAN, arguments)]
        except _NotThere:
            return []

    def truncate(self, key: str, seqno: int) -> int:
        check_truncation(key, seqno)
        try:
            ((head, deleted),) = self._run(f"truncate of {key!r}", _TRUNCATE, {"key": key, "seqno": seqno}, writes=True)
        except _NotThere:
            head, deleted = None, 0
        check_truncate(key, seqno, head)
        return int(deleted)

    def close(self) -> None:
        self._connections.close()

    @property
    def uri(self) -> str:
        return self._address.text

    def erase(self, key: str) -> None:
        check_consensus_key(key)
        with suppress(_NotThere):
            self._run(f"erase {key!r}", _ERASE, {"key": key}, writes=True)

    def diagnose(self, clock: Clock) -> Iterator[Finding]:
        action = "diagnose"
        with self._connection(action) as connection:

            def ask(query: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
                try:
                    cursor = connection.execute(query.encode(), arguments)
                    row = cursor.fetchone()
                except psycopg.Error as error:
                    raise self._verdict(error, action, writes=False) from error
                assert row is not None  # they are asked so that there is always one
                return dict(zip((column.name for column in cursor.description or ()), row, strict=True))

            yield from diagnose(ask, connection, self._address, clock)

    @property
    def create_statements(self) -> str:
        """The SQL that makes our table; for administrators who do not let users create tables."""
        index = f'"{self._address.table}_head"'
        return _CREATE_TABLE.format(table=self._address.qualified, index=index)

    def _run(self, action: str, statement: str, arguments: Mapping[str, Any], *, writes: bool = False) -> list[Any]:
        """The rows of `statement`, run in a transaction of its own. Raises the error that `_verdict` gives."""
        query = (self._settings + statement.format(table=self._address.qualified)).encode()
        with self._connection(action) as connection:
            self._check_encoding(connection)
            try:
                cursor = connection.execute(query, arguments)
                cursor.nextset()  # the isolation level has no row
                settings = cursor.fetchone()
                while cursor.nextset():  # bounded by the statements sent; the rows are the last one's
                    pass
                rows = cursor.fetchall()
            except psycopg.Error as error:
                raise self._verdict(error, action, writes=writes) from error
        self._check_fsync(settings)
        return rows

    @contextmanager
    def _connection(self, action: str) -> Iterator[psycopg.Connection[TupleRow]]:
        try:
            with self._connections.one() as connection:
                yield connection
        except NoConnection as error:
            remedy = "check host, database, user and password, and whether the server is up"
            if "certificate" in str(error) or "SSL error" in str(error):
                remedy = (
                    "the server's certificate must name the URI's host; set sslrootcert=FILE in the URI to "
                    "the certificate of the authority that signed it"
                )
            message = f"{self.uri}: {action}: no connection: {error}; this call changed nothing; {remedy}"
            raise Determinate(message) from error

    def _create(self, action: str) -> None:
        """Create the table, and its schema if it is missing. Another process may do so at the same time."""
        schema = self._address.schema
        has_schema = self._run(action, _FIND_SCHEMA, {"schema": schema})
        statements = self.create_statements if has_schema else f'CREATE SCHEMA "{schema}";' + self.create_statements
        try:
            self._run(action, statements + "SELECT 1", {}, writes=True)
        except Determinate as error:
            if isinstance(error.__cause__, psycopg.errors.InsufficientPrivilege):
                raise Determinate(
                    f"{self.uri}: {action}: table {self._address.qualified} does not exist, and this user may not "
                    f"create it ({_said(error.__cause__)}); this call changed nothing; an administrator has to run the "
                    "statements in docs/locations.md once"
                ) from error
            if not isinstance(error.__cause__, _CREATED_MEANWHILE):
                raise

    def _check_encoding(self, connection: psycopg.Connection[Any]) -> None:
        """Refuse a database that cannot hold every key."""
        encoding = connection.info.parameter_status("server_encoding")
        if encoding not in (None, "UTF8", "SQL_ASCII"):
            raise InvalidUri(
                f"{self.uri}: the database's encoding is {encoding}; expected UTF8 (keys are Unicode): create a "
                "database with ENCODING 'UTF8' TEMPLATE template0"
            )

    def _check_fsync(self, settings: tuple[Any, ...] | None) -> None:
        """Warn once about a server that does not wait for its disks: no setting of a transaction changes that."""
        if settings is None or self._fsync_checked:
            return
        self._fsync_checked = True
        if settings[-1] == "off":
            _logger.warning(
                "%s: the server runs with fsync = off: a crash of its machine can undo commits; set it to on", self.uri
            )

    def _verdict(self, error: psycopg.Error, action: str, *, writes: bool) -> PersistError:
        where, said = f"{self.uri}: {action}", _said(error)
        code = error.sqlstate or ""
        if code in _CORRUPT:
            return Corruption(f"{where}: {said}; stop writing and restore the database from a copy")
        if isinstance(error, _NOT_THERE):
            return _NotThere(f"{where}: table {self._address.qualified} does not exist; this call changed nothing")
        if isinstance(error, _NOT_OURS):
            return InvalidUri(
                f"{where}: table {self._address.qualified} does not have the columns that this release expects "
                f"({said}); it belongs to another program or a newer release: name another table or schema, or "
                "upgrade airflow-persist"
            )
        if not writes or _did_nothing(error):
            remedy = _REMEDIES.get(code, "try again, or check the server's log")
            return Determinate(f"{where}: {said} ({code or 'no SQLSTATE'}); this call changed nothing; {remedy}")
        return Indeterminate(
            f"{where}: {said} ({code or 'no SQLSTATE'}): it may or may not have happened; read the head to find out"
        )


class _NotThere(Determinate):
    """The table (or its schema) does not exist: nothing was written here yet."""


def _did_nothing(error: psycopg.Error) -> bool:
    """True if the server itself says that the statement failed, and goes on with the session.

    A FATAL error ends the session at any point, also between a commit and its answer: that proves nothing.
    """
    severity = error.diag.severity_nonlocalized or error.diag.severity
    code = error.sqlstate or ""
    return severity == "ERROR" and (code in _DID_NOTHING or code[:2] in _DID_NOTHING_CLASSES)


def _said(error: psycopg.Error) -> str:
    """The error in one line. Not the server's whole answer: that may quote the statement, and with it the data."""
    return " ".join((error.diag.message_primary or str(error)).split())
