"""The sessions of `PostgresConsensus`: shared by calls and threads, not by forks, and clean for PgBouncer."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Any

import psycopg
import pytest
from psycopg import waiting

from persist_core.errors import Determinate
from persist_core.location import VersionedData, open_consensus
from persist_core.location.postgres.connections import MAX_CONNECTIONS
from tests.servers.lifeline import wait_until
from tests.servers.postgres import PgBouncer
from tests.servers.postgres_store import OtherClient, PostgresStore, impatient
from tests.suites.consensus_conformance import fill
from tests.suites.races import in_threads, increment

ONE = VersionedData(1, b"one")


def test_calls_in_a_row_share_one_session_until_it_is_closed(postgres_store: PostgresStore) -> None:
    fill(postgres_store.consensus, "k", [VersionedData(seqno, b"") for seqno in range(20)])
    assert len(postgres_store.sessions()) == 1
    postgres_store.consensus.close()
    wait_until(lambda: postgres_store.sessions() == [], what="the end of a closed session")
    with pytest.raises(Determinate, match="was closed; open the location again"):
        postgres_store.consensus.head("k")


def test_many_threads_share_few_sessions(postgres_store: PostgresStore) -> None:
    consensus = postgres_store.consensus
    in_threads([partial(increment, consensus, "k", worker, 3) for worker in range(3 * MAX_CONNECTIONS)])
    assert 1 <= len(postgres_store.sessions()) <= MAX_CONNECTIONS
    head = consensus.head("k")
    assert head is not None
    assert head.data.endswith(b":72")


def test_threads_wait_for_a_free_session_only_so_long(postgres_store: PostgresStore, other_client: OtherClient) -> None:
    fill(postgres_store.consensus, "k", [ONE])
    other_client.run("LOCK TABLE consensus")
    with (
        closing(impatient(postgres_store.uri(statement_timeout_ms=2_000), 0.0)) as consensus,
        ThreadPoolExecutor(MAX_CONNECTIONS + 1) as pool,
    ):
        answers = [pool.submit(consensus.head, "k") for _ in range(MAX_CONNECTIONS + 1)]
        errors = [str(answer.exception(30)) for answer in answers]
    assert sum(f"all {MAX_CONNECTIONS} connections of this process were busy" in error for error in errors) <= 1
    assert all("this call changed nothing" in error for error in errors)


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """A session of tests that runs in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("wait", [waiting.wait, waiting.wait_poll], ids=["chosen", "pure Python"])
def test_ctrl_c_cancels_no_statement(wait: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A canceled commit that waits for a standby is committed, but not replicated as required."""
    monkeypatch.setattr(waiting, "wait", wait)
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        session = pool.submit(_interrupt_at_the_first_statement, server)
        uri = f"postgresql://u@127.0.0.1:{server.getsockname()[1]}/d?sslmode=disable&gssencmode=disable"
        with closing(open_consensus(uri)) as consensus, pytest.raises(KeyboardInterrupt):
            consensus.head("k")
        with session.result():
            assert not select.select([server], [], [], 0)[0], "psycopg cancels by another connection"


def _interrupt_at_the_first_statement(server: socket.socket) -> socket.socket:
    """As much of PostgreSQL as one session needs; then Ctrl-C for the main thread."""
    session, _ = server.accept()
    session.recv(1000)
    session.sendall(b"R\0\0\0\x08\0\0\0\0" + b"K\0\0\0\x0c" + b"\0\0\0\1" * 2 + b"Z\0\0\0\5I")
    session.recv(1000)
    os.kill(os.getpid(), signal.SIGINT)
    return session


def test_a_forked_child_leaves_its_parents_session_alone(postgres_store: PostgresStore) -> None:
    """In a separate process: a fork of the whole test session would copy every thread's locks."""
    script = (
        "import os, sys\n"
        "from persist_core.location import open_consensus\n"
        "consensus = open_consensus(sys.argv[1])\n"
        "consensus.head('k')\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    assert consensus.head('k').seqno == 1\n"
        "    consensus.close()\n"
        "    sys.exit()\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "print(consensus.head('k').seqno)\n"
        "sys.stdin.read()\n"
    )
    fill(postgres_store.consensus, "k", [ONE])
    (ours,) = postgres_store.sessions()
    command = [sys.executable, "-W", "error", "-c", script, postgres_store.uri()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"1\n"
        wait_until(lambda: len(postgres_store.sessions()) == 2, what="the end of the child's session, and of no other")
        parents = f"[{next(session for session in postgres_store.sessions() if session != ours)}]"
        parent.communicate(timeout=30)
        assert parent.returncode == 0
    # Sessions of other tests, whose processes were killed, are in the same log.
    log = "\n".join(line for line in postgres_store.server.log().splitlines() if parents in line)
    assert "unexpected EOF" not in log
    assert "invalid message" not in log
    assert postgres_store.sessions() == [ours]


def test_nothing_stays_in_a_shared_session(postgres_store: PostgresStore, pgbouncer: PgBouncer) -> None:
    with closing(open_consensus(postgres_store.uri(port=pgbouncer.port, statement_timeout_ms=1234))) as consensus:
        fill(consensus, "k", [VersionedData(seqno, b"") for seqno in range(20)])
        consensus.truncate("k", 19)
    plain = postgres_store.server.uri(port=pgbouncer.port)
    query = "SELECT current_setting('statement_timeout'), (SELECT count(*) FROM pg_prepared_statements)"
    with closing(psycopg.connect(plain, autocommit=True, prepare_threshold=None)) as connection:
        assert {connection.execute(query).fetchone() for _ in range(20)} == {("0", 0)}


def test_what_pgbouncer_refuses_is_said(postgres_store: PostgresStore, pgbouncer: PgBouncer) -> None:
    settings = "-c work_mem=1MB"
    with closing(open_consensus(postgres_store.uri(options=settings))) as consensus:
        fill(consensus, "k", [ONE])
    uri = postgres_store.uri(port=pgbouncer.port, options=settings)
    with closing(open_consensus(uri)) as consensus, pytest.raises(Determinate, match="unsupported startup parameter"):
        consensus.head("k")
