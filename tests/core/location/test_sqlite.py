"""The specifics of `SqliteConsensus`: foreign and damaged files, locks, and the verdict on each error."""

from __future__ import annotations

import functools
import resource
import sqlite3
import subprocess
import sys
import tempfile
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from persist_core.errors import Corruption, Determinate, Indeterminate, InvalidUri, StorageError, UnknownVersion
from persist_core.location import CaSResult, SqliteConsensus, VersionedData
from tests.core.sources.test_scan import only_root, unprivileged
from tests.suites.consensus_conformance import fill

ONE, TWO = VersionedData(1, b"one"), VersionedData(2, b"two")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sub" / "consensus.db"


@pytest.fixture
def consensus(path: Path) -> SqliteConsensus:
    return SqliteConsensus(path)


IMPATIENT_S = 0.05


@pytest.fixture
def impatient(path: Path) -> SqliteConsensus:
    return SqliteConsensus(path, busy_timeout_s=IMPATIENT_S)


def test_only_writing_creates_the_file(consensus: SqliteConsensus, path: Path) -> None:
    assert consensus.head("k") is None
    assert consensus.scan("k", 0) == []
    assert list(consensus.list_keys()) == []
    assert not path.parent.exists()
    fill(consensus, "k", [ONE])
    assert [file.name for file in path.parent.iterdir()] == ["consensus.db"]  # no journal left, no WAL beside it


def test_an_empty_file_is_an_empty_store(consensus: SqliteConsensus, path: Path) -> None:
    path.parent.mkdir()
    path.touch()
    assert consensus.head("k") is None
    assert list(consensus.list_keys()) == []
    fill(consensus, "k", [ONE])
    assert consensus.head("k") == ONE


def test_it_commits_as_durably_as_sqlite_can(consensus: SqliteConsensus, path: Path) -> None:
    fill(consensus, "k", [ONE])
    with closing(consensus._connect("rw")) as connection:
        assert connection.execute("PRAGMA synchronous").fetchone() == (3,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_relative_path_is_fixed_when_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    consensus = SqliteConsensus("c.db")
    monkeypatch.chdir("/")
    fill(consensus, "k", [ONE])
    assert (tmp_path / "c.db").exists()


# files that are not ours


@pytest.mark.parametrize("statement", ["CREATE TABLE consensus (x)", "PRAGMA application_id = 7", "CREATE TABLE t (x)"])
def test_another_programs_database_is_refused_and_left_alone(
    consensus: SqliteConsensus, path: Path, statement: str
) -> None:
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)
    before = path.read_bytes()
    for call in (
        lambda: consensus.head("k"),
        lambda: consensus.scan("k", 0),
        lambda: consensus.list_keys(),
        lambda: consensus.truncate("k", 0),
        lambda: consensus.compare_and_set("k", None, ONE),
    ):
        with pytest.raises(InvalidUri, match="another program's database"):
            call()
    assert path.read_bytes() == before


def test_a_newer_format_is_refused(consensus: SqliteConsensus, path: Path) -> None:
    fill(consensus, "k", [ONE])
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA user_version = 2")
    with pytest.raises(UnknownVersion, match="format 2; this release reads 1: upgrade"):
        consensus.head("k")
    with pytest.raises(UnknownVersion):
        consensus.compare_and_set("k", 1, TWO)


def test_a_damaged_file_is_corruption(consensus: SqliteConsensus, path: Path) -> None:
    fill(consensus, "k", [VersionedData(seqno, bytes(3000)) for seqno in range(20)])
    whole = path.read_bytes()
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(Corruption, match=r"consensus\.db"):
        consensus.head("k")
    with pytest.raises(Corruption, match=r"consensus\.db"):
        consensus.compare_and_set("k", 19, VersionedData(20, b""))
    path.write_bytes(whole[:4096] + b"\xa5" * (len(whole) - 4096))
    with pytest.raises(Corruption):
        consensus.scan("k", 0)
    with pytest.raises(Corruption):
        consensus.compare_and_set("k", 19, VersionedData(20, b""))


def test_a_path_that_can_hold_no_database_is_determinate(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for consensus in (SqliteConsensus(tmp_path / "file" / "c.db"), SqliteConsensus(tmp_path)):
        with pytest.raises(Determinate, match="this call changed nothing"):
            consensus.compare_and_set("k", None, ONE)
    with pytest.raises(Determinate):
        SqliteConsensus(tmp_path).head("k")


# locks


def test_a_reader_beside_the_first_writer_sees_all_or_nothing(path: Path) -> None:
    """Between two looks of the reader the writer creates the table: it must wait, or the reader sees two states."""
    path.parent.mkdir()
    path.touch()
    refused: list[Determinate] = []

    def write(statement: str) -> None:
        if "sqlite_master" in statement:
            try:
                SqliteConsensus(path, busy_timeout_s=IMPATIENT_S).compare_and_set("k", None, ONE)
            except Determinate as error:
                refused.append(error)

    class Traced(SqliteConsensus):
        def _connect(self, mode: str) -> sqlite3.Connection:
            connection = super()._connect(mode)
            connection.set_trace_callback(write)
            return connection

    assert Traced(path).head("k") is None
    assert len(refused) == 1
    fill(SqliteConsensus(path), "k", [ONE])


def test_a_lock_held_by_another_is_determinate(impatient: SqliteConsensus, path: Path) -> None:
    fill(impatient, "k", [ONE])
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        for call in (lambda: impatient.head("k"), lambda: impatient.truncate("k", 1)):
            with pytest.raises(Determinate, match=r"lock for more than 0\.05 s; this call changed nothing"):
                call()
        with pytest.raises(Determinate, match="lock"):
            impatient.compare_and_set("k", 1, TWO)
        other.execute("COMMIT")
    assert impatient.scan("k", 0) == [ONE]
    fill(impatient, "k", [TWO])


def test_a_reader_that_blocks_the_commit_makes_it_determinate(impatient: SqliteConsensus, path: Path) -> None:
    """SQLite refuses COMMIT itself here: the insert was made, and must be rolled back before the error is raised."""
    fill(impatient, "k", [ONE])
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM consensus").fetchall()
        with pytest.raises(Determinate, match="lock"):
            impatient.compare_and_set("k", 1, TWO)
        assert impatient.scan("k", 0) == [ONE]
    assert impatient.scan("k", 0) == [ONE]
    assert impatient.compare_and_set("k", 1, TWO) is CaSResult.COMMITTED


def test_a_short_lock_is_waited_for(consensus: SqliteConsensus, path: Path) -> None:
    fill(consensus, "k", [ONE])
    script = (
        "import sqlite3, sys\n"
        "connection = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "connection.execute('BEGIN EXCLUSIVE')\n"
        "print('locked', flush=True)\n"
        "sys.stdin.read()\n"
        "connection.execute('COMMIT')\n"
    )
    command = [sys.executable, "-c", script, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        threading.Timer(0.2, other.kill).start()
        assert consensus.compare_and_set("k", 1, TWO) is CaSResult.COMMITTED


# a disk that is full


class FullAtCommit(sqlite3.Connection):
    """SQLite finds out at COMMIT that its disk is full; then it may have rolled back by itself."""

    rolls_back = True

    def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        if sql != "COMMIT":
            return super().execute(sql, *arguments)
        if self.rolls_back:
            super().execute("ROLLBACK")
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error


@pytest.mark.parametrize("rolls_back", [False, True])
def test_a_disk_that_is_full_at_the_commit_is_determinate(
    consensus: SqliteConsensus, monkeypatch: pytest.MonkeyPatch, *, rolls_back: bool
) -> None:
    fill(consensus, "k", [ONE])
    with monkeypatch.context() as patch:
        patch.setattr(FullAtCommit, "rolls_back", rolls_back)
        patch.setattr(sqlite3, "connect", functools.partial(sqlite3.connect, factory=FullAtCommit))
        with pytest.raises(Determinate, match="free space"):
            consensus.compare_and_set("k", 1, TWO)
    assert consensus.scan("k", 0) == [ONE]
    assert consensus.compare_and_set("k", 1, TWO) is CaSResult.COMMITTED


def test_a_full_disk_is_a_verdict_that_holds(consensus: SqliteConsensus) -> None:
    """The real thing: the kernel refuses writes past a size, at any point of SQLite's work."""
    fill(consensus, "k", [ONE])
    verdicts: set[type[StorageError]] = set()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit_bytes in (0, 512, 4096, 8192, 20_000, 100_000):
        head = consensus.head("k")
        assert head is not None
        new = VersionedData(head.seqno + 1, bytes(200_000))
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
        try:
            with pytest.raises(StorageError) as caught:
                consensus.compare_and_set("k", head.seqno, new)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        verdicts.add(type(caught.value))
        found = consensus.head("k")
        if isinstance(caught.value, Determinate):
            assert found == head
        else:
            assert found in (head, new)
    assert verdicts <= {Determinate, Indeterminate}
    fill(consensus, "k", [VersionedData(99, b"well again")])


_KILLED = """
import os, signal, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA cache_size = 1")  # so that what is not committed reaches the file
connection.execute("BEGIN IMMEDIATE")
for seqno in range(1, 99):
    connection.execute("INSERT INTO consensus (key, seqno, data) VALUES ('k', ?, ?)", (seqno, bytes(9_000)))
os.kill(os.getpid(), signal.SIGKILL)
"""


@only_root
def test_what_a_killed_writer_left_is_named_to_a_reader() -> None:
    with tempfile.TemporaryDirectory(prefix="persist-readers-") as name:  # `tmp_path` is closed to other users
        (folder := Path(name)).chmod(0o755)
        fill(consensus := SqliteConsensus(folder / "consensus.db"), "k", [VersionedData(0, b"")])
        subprocess.run([sys.executable, "-c", _KILLED, consensus.path], check=False)
        for file in folder.iterdir():
            file.chmod(0o644)
        with unprivileged(), pytest.raises(Determinate, match=r"killed while it committed.* as a user who may write"):
            consensus.head("k")
        assert consensus.head("k") == VersionedData(0, b"")
        with unprivileged():
            assert consensus.head("k") == VersionedData(0, b"")
