"""Failures of `PostgresConsensus`: the verdict on each error, dead servers, sessions that end."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from persist_core.errors import Corruption, Determinate, Indeterminate, PersistError, StorageError
from persist_core.location import CaSResult, Consensus, VersionedData, open_consensus
from tests.servers.lifeline import wait_until
from tests.servers.postgres import PASSWORD, PostgresServer
from tests.servers.postgres_store import OtherClient, PostgresStore, impatient
from tests.suites.consensus_conformance import fill
from tests.suites.races import Racer

COMMITTED = CaSResult.COMMITTED
ONE, TWO, FIVE = VersionedData(1, b"one"), VersionedData(2, b"two"), VersionedData(5, b"five")

DETERMINATE = (
    "0A000",
    "22012",
    "23514",
    "25006",
    "40001",
    "40P01",
    "42501",
    "53100",
    "53200",
    "54000",
    "55P03",
    "57014",
)
INDETERMINATE = ("40003", "08006", "57P01", "58030", "XX000", "P0001", "99999")


def writes(consensus: Consensus) -> list[Callable[[], object]]:
    """Every call that changes something, where `ONE` and `TWO` are stored under "k"."""
    return [
        lambda: consensus.compare_and_set("k", 2, FIVE),
        lambda: consensus.compare_and_set("new", None, FIVE),
        lambda: consensus.truncate("k", 2),
    ]


def reads(consensus: Consensus) -> list[Callable[[], object]]:
    """Every call that changes nothing."""
    return [lambda: consensus.head("k"), lambda: consensus.scan("k", 0), lambda: list(consensus.list_keys())]


# the server refuses


@pytest.mark.parametrize(
    "trigger",
    [
        "TRIGGER fail BEFORE INSERT OR DELETE ON {table}",
        "CONSTRAINT TRIGGER fail AFTER INSERT OR DELETE ON {table} DEFERRABLE INITIALLY DEFERRED",
    ],
    ids=["in-the-statement", "in-the-commit"],
)
@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        *((code, Determinate) for code in DETERMINATE),
        *((code, Indeterminate) for code in INDETERMINATE),
        *((code, Corruption) for code in ("XX001", "XX002")),
    ],
)
def test_each_sqlstate_has_a_verdict(
    postgres_store: PostgresStore, code: str, verdict: type[PersistError], trigger: str
) -> None:
    schema, sql, consensus = postgres_store.schema, postgres_store.sql, postgres_store.consensus
    fill(consensus, "k", [ONE, TWO])
    body = f"BEGIN RAISE EXCEPTION 'it said no' USING ERRCODE = '{code}'; END"
    sql(f"CREATE FUNCTION {schema}.fail() RETURNS trigger LANGUAGE plpgsql AS $$ {body} $$")
    sql(f"CREATE {trigger} FOR EACH ROW EXECUTE FUNCTION {schema}.fail()")
    for call in writes(consensus):
        with pytest.raises(PersistError, match="it said no") as caught:
            call()
        assert type(caught.value) is verdict
        assert "INSERT" not in str(caught.value)
    assert consensus.scan("k", 0) == [ONE, TWO]
    sql("DROP TRIGGER fail ON {table}")
    assert consensus.compare_and_set("k", 2, FIVE) is COMMITTED


def test_a_statement_that_takes_too_long_is_determinate(
    postgres_store: PostgresStore, other_client: OtherClient
) -> None:
    fill(postgres_store.consensus, "k", [ONE])
    too_long = r"\(57014\); this call changed nothing; .*longer than statement_timeout_ms"
    with closing(open_consensus(postgres_store.uri(statement_timeout_ms=200))) as impatient:
        other_client.run("SELECT FROM consensus WHERE key = 'k' FOR UPDATE")
        with pytest.raises(Determinate, match=too_long):
            impatient.compare_and_set("k", 1, TWO)
        assert impatient.head("k") == ONE
        other_client.run("LOCK TABLE consensus")
        for call in reads(impatient):
            with pytest.raises(Determinate, match=too_long):
                call()
        other_client.run("ROLLBACK")
        assert impatient.compare_and_set("k", 1, TWO) is COMMITTED


def test_a_read_only_user_may_read(postgres_store: PostgresStore) -> None:
    fill(postgres_store.consensus, "k", [ONE, TWO])
    role = postgres_store.server.new_role("GRANT persist TO {role}", settings={"default_transaction_read_only": "on"})
    with closing(open_consensus(postgres_store.uri(user=role))) as consensus:
        assert consensus.head("k") == TWO
        for call in writes(consensus):
            with pytest.raises(Determinate, match=r"\(25006\).*read-only: name the primary"):
                call()


def test_a_wrong_password_is_told_at_once_and_not_shown(
    postgres_store: PostgresStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with closing(open_consensus(postgres_store.uri(password="hunter2/hunter2@"))) as consensus:
        for call in reads(consensus) + writes(consensus):
            with pytest.raises(Determinate, match=r"no connection: .*password authentication failed") as caught:
                call()
            assert "hunter2" not in f"{caught.value!r} {caught.value.__cause__!r} {consensus!r} {consensus.uri}"
    fill(postgres_store.consensus, "k", [ONE])
    assert "hunter2" not in caplog.text
    assert PASSWORD not in caplog.text


# sessions and servers that end


def test_a_session_ended_between_two_calls_is_not_noticed(postgres_store: PostgresStore) -> None:
    fill(postgres_store.consensus, "k", [ONE])
    for seqno in (2, 3):
        (session,) = postgres_store.sessions()
        postgres_store.sql("SELECT pg_terminate_backend(%s, 10000)", (session,))
        assert postgres_store.consensus.compare_and_set("k", seqno - 1, VersionedData(seqno, b"")) is COMMITTED


def test_a_session_ended_within_a_write_is_indeterminate(
    postgres_store: PostgresStore, other_client: OtherClient, one_thread: ThreadPoolExecutor
) -> None:
    consensus = postgres_store.consensus
    fill(consensus, "k", [ONE])
    other_client.run("SELECT FROM consensus WHERE key = 'k' FOR UPDATE")
    future = other_client.blocks(one_thread, lambda: consensus.compare_and_set("k", 1, TWO))
    (session,) = postgres_store.sessions()
    postgres_store.sql("SELECT pg_terminate_backend(%s, 10000)", (session,))
    with pytest.raises(Indeterminate, match="may or may not have happened; read the head"):
        future.result(30)
    other_client.run("ROLLBACK")
    assert consensus.compare_and_set("k", 1, TWO) is COMMITTED


@pytest.mark.parametrize("write", [True, False])
def test_a_server_that_falls_silent_is_given_up(postgres_store: PostgresStore, write: bool) -> None:
    with closing(impatient(postgres_store.uri(statement_timeout_ms=100), 0.3)) as consensus:
        fill(consensus, "k", [ONE])
        (session,) = postgres_store.sessions()
        os.kill(session, signal.SIGSTOP)
        try:
            with pytest.raises(StorageError, match=r"did not answer for 0\.4 s") as caught:
                consensus.compare_and_set("k", 1, TWO) if write else consensus.head("k")
            assert type(caught.value) is (Indeterminate if write else Determinate)
            assert consensus.head("k") == ONE  # by another session
        finally:
            os.kill(session, signal.SIGCONT)


def test_a_killed_server_has_kept_what_it_acknowledged(own_postgres: PostgresServer) -> None:
    """kill -9 of the whole server under load, three times; afterwards every acknowledged commit is there."""
    store = PostgresStore(own_postgres)
    consensus = store.consensus
    assert consensus.head("k0") is None
    for number, acknowledgements in enumerate((1, 40, 150)):
        racer = Racer("race", store.uri(), f"k{number}", number, 100_000)
        racer.wait_ready()
        racer.go()
        lines = [racer.next_acknowledgement() for _ in range(acknowledgements)]
        own_postgres.kill()
        lines += racer.last_words()
        with pytest.raises(Determinate, match="no connection"):
            consensus.head("k0")
        own_postgres.start()
        versions = consensus.scan(f"k{number}", 0)
        assert [version.seqno for version in versions[: len(lines)]] == lines
        assert len(versions) - len(lines) in (0, 1)  # the last commit may not have been reported
        head = versions[-1].seqno
        assert consensus.compare_and_set(f"k{number}", head, VersionedData(head + 1, b"")) is COMMITTED
    consensus.close()


def test_a_server_killed_within_a_write_is_indeterminate(
    own_postgres: PostgresServer, one_thread: ThreadPoolExecutor
) -> None:
    store = PostgresStore(own_postgres)
    fill(store.consensus, "k", [ONE])
    other = OtherClient(store)
    other.run("SELECT FROM consensus WHERE key = 'k' FOR UPDATE")
    future = other.blocks(one_thread, lambda: store.consensus.compare_and_set("k", 1, TWO))
    own_postgres.kill()
    with pytest.raises(Indeterminate):
        future.result(30)
    own_postgres.start()
    assert store.consensus.head("k") == ONE
    assert store.consensus.compare_and_set("k", 1, TWO) is COMMITTED
    other.connection.close()
    store.consensus.close()


def test_a_fail_over_is_followed_and_a_standby_never_asked(own_postgres: PostgresServer) -> None:
    store = PostgresStore(own_postgres)
    fill(store.consensus, "k", [ONE])
    standby = own_postgres.standby()
    standby.start()
    one, other = f"127.0.0.1:{own_postgres.port}", f"127.0.0.1:{standby.port}"
    with closing(open_consensus(store.uri().replace(one, other))) as consensus:
        for call in reads(consensus) + writes(consensus):
            with pytest.raises(Determinate, match=r"no connection: .*hot standby"):
                call()
    own_postgres.query("ALTER SYSTEM SET synchronous_standby_names = 'standby'")
    own_postgres.query("SELECT pg_reload_conf()")
    is_synchronous = "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"
    wait_until(lambda: bool(own_postgres.query(is_synchronous)), what="a synchronous standby")
    with closing(open_consensus(store.uri().replace(one, f"{other},{one}"))) as consensus:
        assert consensus.head("k") == ONE
        assert consensus.compare_and_set("k", 1, TWO) is COMMITTED
        own_postgres.kill()
        with pytest.raises(Determinate, match="no connection"):
            consensus.head("k")
        standby.query("SELECT pg_promote()")
        assert consensus.head("k") == TWO
        assert consensus.compare_and_set("k", 2, FIVE) is COMMITTED
    standby.remove()
    store.consensus.close()


def test_encryption_that_is_asked_for_is_had_or_refused(postgres_store: PostgresStore) -> None:
    with (
        closing(open_consensus(postgres_store.uri(sslmode="require"))) as consensus,
        pytest.raises(Determinate, match="does not support SSL"),
    ):
        consensus.head("k")
