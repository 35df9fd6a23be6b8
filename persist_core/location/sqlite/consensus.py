"""`sqlite:` consensus: one SQLite database file, shared by all processes of one machine. The embedded default.

    compare_and_set:  open - BEGIN IMMEDIATE - read head - INSERT - COMMIT - close
                             '-- Determinate if it fails here --'   '-- Indeterminate unless SQLite says "busy"

Decisions, and why:

* **A connection per call.** Nothing is held between calls, so the object may be shared by threads and inherited by a
  forked child (a connection carried over a fork can roll back its parent's transaction). It costs about 0.2 ms beside
  a commit's disk flush.
* **Rollback journal, not WAL.** Commits are rare (a few per dag run), so WAL's concurrency has no benefit, while it
  needs shared memory, leaves two more files, and SQLite before 3.51.3 could corrupt a WAL database when two processes
  reset the log at the same moment.
* **synchronous=EXTRA**: FULL, and the directory is synced after the journal is unlinked. With FULL alone a power cut
  right after the commit can restore the journal and roll back an acknowledged commit.

Do not use it on network file systems: SQLite's locks do not work there.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from persist_core.clock import Clock
from persist_core.errors import Corruption, Determinate, Indeterminate, InvalidUri, PersistError, UnknownVersion
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
from persist_core.location.file.folder import (
    NETWORK_FILE_SYSTEM,
    create_directory,
    diagnose_file_system,
    file_system_of,
)
from persist_core.location.finding import Finding, grade_if
from persist_core.location.uri import LocationUri

# How long a call waits for another process's transaction, in seconds. A transaction takes milliseconds; this leaves
# room for a disk that stalls, and is still well below any task's own timeout.
BUSY_TIMEOUT_S = 30.0

_APPLICATION_ID = 0x50525354  # "PRST": tells our files from other programs'
_FORMAT_VERSION = 1
_CREATE_TABLE = """
CREATE TABLE consensus (
    key TEXT NOT NULL,
    seqno INTEGER NOT NULL CHECK (seqno >= 0),
    data BLOB NOT NULL,
    PRIMARY KEY (key, seqno)
)
"""

# SQLite's primary result codes that say that the statement did nothing, when they come before COMMIT.
_DID_NOTHING = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_AUTH,
    sqlite3.SQLITE_TOOBIG,
    sqlite3.SQLITE_NOMEM,
}
_CORRUPT = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


class SqliteConsensus:
    """`Consensus`, `Erasable` and `Examinable` in an SQLite database file.

    The first `compare_and_set` creates it with its parent folders.
    """

    def __init__(self, path: str | Path, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> None:
        self._path = Path(path).absolute()
        self._busy_timeout_s = busy_timeout_s

    def list_keys(self) -> Iterator[str]:
        with self._reading("list_keys") as connection:
            if connection is None:
                return iter(())
            return iter([key for (key,) in connection.execute("SELECT DISTINCT key FROM consensus").fetchall()])

    def head(self, key: str) -> VersionedData | None:
        check_consensus_key(key)
        with self._reading(f"head of {key!r}") as connection:
            if connection is None:
                return None
            row = connection.execute(
                "SELECT seqno, data FROM consensus WHERE key = ? ORDER BY seqno DESC LIMIT 1", (key,)
            ).fetchone()
            return None if row is None else VersionedData(row[0], row[1])

    def compare_and_set(self, key: str, expected: int | None, new: VersionedData) -> CaSResult:
        check_cas(key, expected, new)
        with self._writing(f"compare_and_set of {key!r}") as connection:
            if _head_seqno(connection, key) != expected:
                return CaSResult.EXPECTATION_MISMATCH
            connection.execute("INSERT INTO consensus (key, seqno, data) VALUES (?, ?, ?)", (key, new.seqno, new.data))
        return CaSResult.COMMITTED

    def scan(self, key: str, from_seqno: int, limit: int = SCAN_ALL) -> list[VersionedData]:
        limit = check_scan(key, from_seqno, limit)
        with self._reading(f"scan of {key!r}") as connection:
            if connection is None:
                return []
            rows = connection.execute(
                "SELECT seqno, data FROM consensus WHERE key = ? AND seqno >= ? ORDER BY seqno LIMIT ?",
                (key, from_seqno, limit),
            ).fetchall()
            return [VersionedData(seqno, data) for seqno, data in rows]

    def truncate(self, key: str, seqno: int) -> int:
        check_truncation(key, seqno)
        with self._writing(f"truncate of {key!r}") as connection:
            check_truncate(key, seqno, _head_seqno(connection, key))
            return connection.execute("DELETE FROM consensus WHERE key = ? AND seqno < ?", (key, seqno)).rowcount

    def erase(self, key: str) -> None:
        check_consensus_key(key)
        with self._writing(f"erase {key!r}") as connection:
            connection.execute("DELETE FROM consensus WHERE key = ?", (key,))

    def diagnose(self, clock: Clock) -> Iterator[Finding]:
        del clock  # it is ours
        yield from diagnose_file_system(self._path)
        kind = file_system_of(self._path)
        yield grade_if(
            NETWORK_FILE_SYSTEM.fullmatch(kind or "") is not None,
            "file_locks",
            f"{self._path} is on {kind or 'an unknown file system'}",
            expected="a local disk: SQLite's locks do not work on network file systems",
            remedy="keep the database on a local disk, or use postgresql: for several machines",
        )

    def close(self) -> None:
        """No-op: no connection outlives its call."""

    @property
    def uri(self) -> str:
        return f"sqlite:///{quote(str(self._path))}"

    @property
    def path(self) -> Path:
        """The database file, whether or not it exists yet."""
        return self._path

    @contextmanager
    def _reading(self, action: str) -> Iterator[sqlite3.Connection | None]:
        """A read transaction, or `None` if the database does not exist yet. All failures change nothing."""
        try:
            if not self._path.exists():
                yield None
                return
            with closing(self._connect("rw")) as connection:
                connection.execute("BEGIN")  # so that the check and the read see the same state
                yield connection if self._is_initialised(connection) else None
        except (sqlite3.Error, OSError) as error:
            raise self._read_error(error, action) from error

    @contextmanager
    def _writing(self, action: str) -> Iterator[sqlite3.Connection]:
        """One transaction that holds the write lock throughout; commits on normal exit, rolls back on an error."""
        try:
            create_directory(self._path.parent)
            with suppress(OSError):  # SQLite's own would be closed to the group, whatever the umask allows
                os.mknod(self._path, 0o666)  # not opened: to close a file ends this process's locks on it
            connection = self._connect("rwc")
        except (sqlite3.Error, OSError) as error:
            raise self._read_error(error, action) from error  # nothing was begun: the same verdict as for a read
        with closing(connection):
            try:
                connection.execute("BEGIN IMMEDIATE")
                self._initialise(connection)
                yield connection
            except sqlite3.Error as error:
                raise self._write_error(error, action) from error
            self._commit(connection, action)

    def _commit(self, connection: sqlite3.Connection, action: str) -> None:
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            if _code(error) == sqlite3.SQLITE_FULL:  # before the journal was deleted, so what was written is undone
                raise self._read_error(error, action) from error
            if _code(error) == sqlite3.SQLITE_BUSY and _rolls_back(connection):
                raise Determinate(self._busy_message(action)) from error
            raise Indeterminate(
                f"{self.uri}: {action}: SQLite failed to commit ({error}): it may or may not have happened; "
                "read the head to find out"
            ) from error

    def _connect(self, mode: str) -> sqlite3.Connection:
        """A connection in autocommit mode: transactions begin only where we say BEGIN."""
        connection = sqlite3.connect(
            f"file:{quote(str(self._path))}?mode={mode}", uri=True, timeout=self._busy_timeout_s, isolation_level=None
        )
        try:
            connection.execute("PRAGMA synchronous = EXTRA")
        except BaseException:
            connection.close()
            raise
        return connection

    def _is_initialised(self, connection: sqlite3.Connection) -> bool:
        """False for an empty database. Raises `InvalidUri` for another program's, `UnknownVersion` for a newer one."""
        (application_id,) = connection.execute("PRAGMA application_id").fetchone()
        if application_id == _APPLICATION_ID:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version != _FORMAT_VERSION:
                raise UnknownVersion(
                    f"{self.uri} has format {version}; this release reads {_FORMAT_VERSION}: upgrade airflow-persist"
                )
            return True
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if application_id or tables:
            raise InvalidUri(
                f"{self.uri} is another program's database (application_id {application_id}, {tables} tables); "
                "name a separate file for the consensus"
            )
        return False

    def _initialise(self, connection: sqlite3.Connection) -> None:
        """Create the table within the current transaction, so that no other process sees half of it."""
        if not self._is_initialised(connection):
            connection.execute(_CREATE_TABLE)
            connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {_FORMAT_VERSION}")

    def _read_error(self, error: Exception, action: str) -> PersistError:
        if isinstance(error, sqlite3.Error):
            if _code(error) in _CORRUPT:
                return Corruption(f"{self.uri}: {action}: {error}; stop writing and restore the file from a copy")
            if _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                return Determinate(self._busy_message(action))
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_READONLY_ROLLBACK:
                return Determinate(
                    f"{self.uri}: {action}: a process was killed while it committed, and this user may not undo what it"
                    " left; this call changed nothing; run a command such as `persist shards` as a user who may write"
                )
        return Determinate(
            f"{self.uri}: {action}: {error}; this call changed nothing; check the folder, its permissions and free"
            " space"
        )

    def _write_error(self, error: sqlite3.Error, action: str) -> PersistError:
        if _code(error) in _CORRUPT or _code(error) in _DID_NOTHING:
            return self._read_error(error, action)
        return Indeterminate(
            f"{self.uri}: {action}: unknown SQLite error ({error}): it may or may not have happened; "
            "read the head to find out"
        )

    def _busy_message(self, action: str) -> str:
        return (
            f"{self.uri}: {action}: another process held the database's lock for more than {self._busy_timeout_s:g} s; "
            "this call changed nothing; try again, or look for a suspended process that has the file open"
        )


def _head_seqno(connection: sqlite3.Connection, key: str) -> int | None:
    (seqno,) = connection.execute("SELECT max(seqno) FROM consensus WHERE key = ?", (key,)).fetchone()
    assert seqno is None or isinstance(seqno, int)
    return seqno


def _code(error: sqlite3.Error) -> int | None:
    """The low byte of the extended result code; `None` for an error of the Python layer."""
    extended: int | None = getattr(error, "sqlite_errorcode", None)
    return None if extended is None else extended & 0xFF


def _rolls_back(connection: sqlite3.Connection) -> bool:
    """Roll back after a failed COMMIT; whether that is certain to have undone everything."""
    if not connection.in_transaction:
        return False  # SQLite ended the transaction by itself: do not guess how
    try:
        connection.execute("ROLLBACK")
    except sqlite3.Error:
        return False
    return not connection.in_transaction


def parse_sqlite_uri(uri: LocationUri) -> Path:
    """The database file, relative to the working directory if the URI's is. Raises `InvalidUri`."""
    if not uri.path.startswith("///"):
        raise InvalidUri(f"{uri.text!r}: expected sqlite:////absolute/file.db or sqlite:///relative/file.db")
    path = uri.path[3:]
    if path in ("", ":memory:") or path.endswith("/"):
        raise InvalidUri(f"{uri.text!r}: expected a database file; for a store in memory use mem:")
    return Path(path)
