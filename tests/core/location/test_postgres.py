"""The specifics of `PostgresConsensus`: creation, scripted races, foreign tables and settings, durability."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path

import psycopg
import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from persist_core.errors import InvalidSeqNo, InvalidUri, PersistError
from persist_core.location import CaSResult, Consensus, VersionedData, open_consensus
from tests.core.location.test_models import MemConsensusModel
from tests.servers.postgres import PASSWORD, PostgresServer, start_postgres
from tests.servers.postgres_store import OtherClient, PostgresStore
from tests.suites.consensus_conformance import HOSTILE_KEYS, fill
from tests.suites.races import in_threads

COMMITTED, MISMATCH = CaSResult.COMMITTED, CaSResult.EXPECTATION_MISMATCH
ONE, TWO, FIVE = VersionedData(1, b"one"), VersionedData(2, b"two"), VersionedData(5, b"five")


# creation


def test_only_the_first_write_creates_the_table(postgres_store: PostgresStore) -> None:
    consensus = postgres_store.consensus
    assert consensus.head("k") is None
    assert consensus.scan("k", 0) == []
    assert list(consensus.list_keys()) == []
    assert consensus.compare_and_set("k", 3, FIVE) is MISMATCH
    with pytest.raises(InvalidSeqNo, match="no data"):
        consensus.truncate("k", 0)
    assert postgres_store.sql("SELECT 1 FROM pg_namespace WHERE nspname = %s", (postgres_store.schema,)) == []
    assert consensus.compare_and_set("k", None, ONE) is COMMITTED
    assert postgres_store.sql("SELECT key, seqno, is_head FROM {table}") == [("k", 1, True)]


def test_the_table_may_have_another_name(postgres: PostgresServer) -> None:
    schema = postgres.new_schema()
    for table in ("consensus", "Other_1"):
        with closing(open_consensus(postgres.uri(schema=schema, table=table))) as consensus:
            assert list(consensus.list_keys()) == []
            fill(consensus, table, [ONE])
    rows = postgres.query("SELECT tablename FROM pg_tables WHERE schemaname = %s ORDER BY 1", (schema,))
    assert rows == [("Other_1",), ("consensus",)]


def test_creators_that_race_all_succeed(postgres: PostgresServer) -> None:
    def create(handle: Consensus, key: str) -> Iterator[int]:
        assert handle.compare_and_set(key, None, ONE) is COMMITTED
        yield int(handle.compare_and_set("shared", None, ONE) is COMMITTED)

    for _ in range(10):
        uri = postgres.uri(schema=postgres.new_schema())
        handles = [open_consensus(uri) for _ in range(6)]
        won = in_threads([partial(create, handle, f"k{number}") for number, handle in enumerate(handles)])
        assert sorted(won) == [[0], [0], [0], [0], [0], [1]]
        assert sorted(handles[0].list_keys()) == [*(f"k{number}" for number in range(6)), "shared"]
        for handle in handles:
            handle.close()


def test_first_versions_that_race_have_one_winner(postgres_store: PostgresStore) -> None:
    """All with one seqno, so that they also meet in the primary key."""
    fill(postgres_store.consensus, "another", [ONE])

    def commit(writer: int) -> Iterator[int]:
        for number in range(60):
            new = VersionedData(1, b"%d" % writer)
            if postgres_store.consensus.compare_and_set(f"k{number}", None, new) is COMMITTED:
                yield number

    won = in_threads([partial(commit, writer) for writer in range(6)])
    assert sorted(number for numbers in won for number in numbers) == list(range(60))
    for writer, numbers in enumerate(won):
        for number in numbers:
            assert postgres_store.consensus.scan(f"k{number}", 0) == [VersionedData(1, b"%d" % writer)]


# races, scripted: another client is half way when our call starts

MOVE = "UPDATE consensus SET is_head = false WHERE key = 'k' AND is_head"
SIX = "INSERT INTO consensus VALUES ('k', 6, 'x', true)"


@pytest.mark.parametrize(
    ("they", "ours"),
    [
        pytest.param(["COMMIT"], MISMATCH, id="they-jump-elsewhere"),
        pytest.param(["DELETE FROM consensus WHERE seqno < 6", "COMMIT"], MISMATCH, id="and-truncate"),
        pytest.param(["ROLLBACK"], COMMITTED, id="they-give-up"),
    ],
)
def test_of_two_that_expect_the_same_seqno_one_wins(
    postgres_store: PostgresStore,
    other_client: OtherClient,
    one_thread: ThreadPoolExecutor,
    they: list[str],
    ours: CaSResult,
) -> None:
    consensus = postgres_store.consensus
    fill(consensus, "k", [FIVE])
    other_client.run(MOVE, SIX)
    future = other_client.blocks(one_thread, lambda: consensus.compare_and_set("k", 5, VersionedData(7, b"seven")))
    other_client.run(*they)
    assert future.result(30) is ours
    assert postgres_store.sql("SELECT seqno FROM {table} WHERE is_head") == [(7 if ours is COMMITTED else 6,)]


@pytest.mark.parametrize(("they", "ours"), [("COMMIT", MISMATCH), ("ROLLBACK", COMMITTED)])
def test_of_two_first_versions_one_wins(
    postgres_store: PostgresStore,
    other_client: OtherClient,
    one_thread: ThreadPoolExecutor,
    they: str,
    ours: CaSResult,
) -> None:
    consensus = postgres_store.consensus
    fill(consensus, "another", [ONE])
    other_client.run(SIX)
    future = other_client.blocks(one_thread, lambda: consensus.compare_and_set("k", None, ONE))
    other_client.run(they)
    assert future.result(30) is ours
    rows = postgres_store.sql("SELECT seqno FROM {table} WHERE key = 'k'")
    assert rows == [(1 if ours is COMMITTED else 6,)]


def test_a_first_version_loses_on_the_primary_key(
    postgres_store: PostgresStore, other_client: OtherClient, one_thread: ThreadPoolExecutor
) -> None:
    """A race in which both read before either has written, made certain: here they write in two steps."""
    consensus = postgres_store.consensus
    fill(consensus, "another", [ONE])
    other_client.run("INSERT INTO consensus VALUES ('k', 1, 'x', false)")
    future = other_client.blocks(one_thread, lambda: consensus.compare_and_set("k", None, ONE))
    other_client.run("UPDATE consensus SET is_head = true WHERE key = 'k'", "COMMIT")
    assert future.result(30) is MISMATCH
    assert consensus.head("k") == VersionedData(1, b"x")


def test_a_first_version_waits_for_a_head_that_moves(
    postgres_store: PostgresStore, other_client: OtherClient, one_thread: ThreadPoolExecutor
) -> None:
    """While the mark moves from one row to the next, one row must always have it."""
    consensus = postgres_store.consensus
    fill(consensus, "k", [FIVE])
    other_client.run(MOVE, SIX)
    future = other_client.blocks(one_thread, lambda: consensus.compare_and_set("k", None, VersionedData(9, b"")))
    assert consensus.head("k") == FIVE  # readers do not wait
    other_client.run("COMMIT")
    assert future.result(30) is MISMATCH


def test_truncation_meets_commits_and_truncations(
    postgres_store: PostgresStore, other_client: OtherClient, one_thread: ThreadPoolExecutor
) -> None:
    consensus = postgres_store.consensus
    fill(consensus, "k", [ONE, TWO, FIVE])
    other_client.run(MOVE, SIX)
    assert consensus.truncate("k", 5) == 2  # a commit under way does not hold it up
    other_client.run("COMMIT", "BEGIN", "DELETE FROM consensus WHERE seqno < 6")
    assert consensus.compare_and_set("k", 6, VersionedData(7, b"")) is COMMITTED
    future = other_client.blocks(one_thread, lambda: consensus.truncate("k", 7))
    other_client.run("COMMIT")
    assert future.result(30) == 1  # the other counts what it deleted
    assert [version.seqno for version in consensus.scan("k", 0)] == [7]


def test_a_second_head_is_impossible(postgres_store: PostgresStore) -> None:
    fill(postgres_store.consensus, "k", [ONE])
    with pytest.raises(psycopg.errors.UniqueViolation):
        postgres_store.sql("INSERT INTO {table} VALUES ('k', 2, '', true)")


def test_against_a_dict(postgres: PostgresServer) -> None:
    """Random sequences of calls, compared with a plain dict after each."""

    class Model(MemConsensusModel):
        shared = True

        def make(self, folder: Path) -> Consensus:
            return open_consensus(postgres.uri(schema=f"model_{folder.name}"))

    run_state_machine_as_test(Model, settings=settings(stateful_step_count=20))


# tables and databases that differ from ours


@pytest.mark.parametrize(
    "columns",
    [
        "x int",
        "key text, seqno bigint, data bytea",
        "key text, seqno bigint, data bytea, is_head text",
        "key int, seqno bigint, data bytea, is_head boolean",
        "key text, seqno bigint, data bytea, is_head boolean",
    ],
)
def test_a_table_that_is_not_ours_is_refused_and_left_alone(postgres_store: PostgresStore, columns: str) -> None:
    postgres_store.sql(f"CREATE SCHEMA {postgres_store.schema}")
    postgres_store.sql(f"CREATE TABLE {{table}} ({columns})")
    with pytest.raises(InvalidUri, match="another program or a newer release"):
        postgres_store.consensus.compare_and_set("k", None, ONE)
    assert postgres_store.sql("SELECT 1 FROM {table}") == []


def test_a_view_is_no_table(postgres_store: PostgresStore) -> None:
    postgres_store.sql(f"CREATE SCHEMA {postgres_store.schema}")
    columns = "''::text AS key, 1::bigint AS seqno, ''::bytea AS data, true AS is_head"
    postgres_store.sql(f"CREATE VIEW {{table}} AS SELECT {columns}")
    for call in (_commit(postgres_store, None, ONE), _commit(postgres_store, 1, TWO)):
        with pytest.raises(PersistError, match="consensus"):
            call()


def _commit(store: PostgresStore, expected: int | None, new: VersionedData) -> Callable[[], CaSResult]:
    return lambda: store.consensus.compare_and_set("k", expected, new)


def test_an_encoding_that_lacks_characters_is_refused(postgres: PostgresServer) -> None:
    postgres.query("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0")
    postgres.query("CREATE DATABASE ascii ENCODING 'SQL_ASCII' TEMPLATE template0")
    with (
        closing(open_consensus(postgres.uri(database="latin"))) as consensus,
        pytest.raises(InvalidUri, match="encoding is LATIN1; expected UTF8"),
    ):
        consensus.head("k")
    with closing(open_consensus(postgres.uri(database="ascii"))) as consensus:
        for key in HOSTILE_KEYS:
            fill(consensus, key, [ONE])
        assert sorted(consensus.list_keys()) == sorted(HOSTILE_KEYS)


ODD_SETTINGS = {
    "standard_conforming_strings": "off",
    "bytea_output": "escape",
    "search_path": "nowhere",
    "DateStyle": "German",
    "statement_timeout": "1h",
    "client_min_messages": "debug5",
}


def test_a_role_with_odd_settings_is_served_as_well(postgres_store: PostgresStore) -> None:
    role = postgres_store.server.new_role("GRANT CREATE ON DATABASE postgres TO {role}", settings=ODD_SETTINGS)
    every_byte = bytes(range(256))
    with closing(open_consensus(postgres_store.uri(user=role))) as consensus:
        for key in HOSTILE_KEYS:
            fill(consensus, key, [VersionedData(1, every_byte), VersionedData(2, key.encode())])
        assert sorted(consensus.list_keys()) == sorted(HOSTILE_KEYS)
        assert consensus.scan("a\\b", 0) == [VersionedData(1, every_byte), VersionedData(2, b"a\\b")]


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_a_stricter_default_isolation_costs_no_tries(postgres_store: PostgresStore, isolation: str) -> None:
    fill(postgres_store.consensus, "k", [VersionedData(0, b"0")])
    role = postgres_store.server.new_role(
        "GRANT persist TO {role}", settings={"default_transaction_isolation": isolation}
    )

    def increment() -> Iterator[int]:
        with closing(open_consensus(postgres_store.uri(user=role))) as consensus:
            for _ in range(1_000):
                head = consensus.head("k")
                assert head is not None
                new = VersionedData(head.seqno + 1, b"%d" % (int(head.data) + 1))
                if consensus.compare_and_set("k", head.seqno, new) is COMMITTED:
                    yield new.seqno
                if new.seqno >= 40:
                    return

    won = [seqno for seqnos in in_threads([increment] * 4) for seqno in seqnos]
    stored = postgres_store.consensus.scan("k", 1)
    assert sorted(won) == [version.seqno for version in stored]
    assert [int(version.data) for version in stored] == [version.seqno for version in stored]


# durability


@pytest.mark.parametrize(
    ("given", "used"), [("off", "on"), ("local", "local"), ("on", "on"), ("remote_apply", "remote_apply")]
)
def test_commits_wait_for_the_disk_whatever_the_role_says(postgres_store: PostgresStore, given: str, used: str) -> None:
    fill(postgres_store.consensus, "k", [ONE])
    schema, sql = postgres_store.schema, postgres_store.sql
    sql(f"CREATE TABLE {schema}.seen (setting text)")
    note = f"INSERT INTO {schema}.seen VALUES (current_setting('synchronous_commit')); RETURN NULL;"
    sql(f"CREATE FUNCTION {schema}.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {note} END $$")
    sql(
        "CREATE CONSTRAINT TRIGGER note AFTER INSERT ON {table} DEFERRABLE INITIALLY DEFERRED"
        f" FOR EACH ROW EXECUTE FUNCTION {schema}.note()"
    )
    role = postgres_store.server.new_role("GRANT persist TO {role}", settings={"synchronous_commit": given})
    with closing(open_consensus(postgres_store.uri(user=role))) as consensus:
        assert consensus.compare_and_set("k", 1, TWO) is COMMITTED
    assert sql(f"SELECT setting FROM {schema}.seen") == [(used,)]


def test_a_server_without_fsync_gets_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    server = start_postgres(fsync="off")
    try:
        store = PostgresStore(server)
        with caplog.at_level(logging.WARNING), closing(store.consensus):
            fill(store.consensus, "k", [ONE, TWO, FIVE])
    finally:
        server.remove()
    (record,) = caplog.records
    assert "runs with fsync = off" in record.getMessage()
    assert PASSWORD not in record.getMessage()
