"""Rights in PostgreSQL: the statements of docs/locations.md are sufficient, and each is necessary."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from persist_core.clock import SystemClock
from persist_core.errors import Determinate
from persist_core.location import CaSResult, VersionedData, open_consensus
from persist_core.location.postgres.consensus import PostgresConsensus
from tests.servers.postgres import PASSWORD, PgBouncer, PostgresServer
from tests.suites.consensus_conformance import fill

COMMITTED = CaSResult.COMMITTED
ONE, TWO, FIVE = VersionedData(1, b"one"), VersionedData(2, b"two"), VersionedData(5, b"five")
DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "locations.md"


def documented_sql() -> str:
    """The block of SQL that the document tells administrators to run."""
    found = re.search(r"<!-- grants: a test runs this -->\n```sql\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[str]:
    """A database set up as documented, with a writer and a reader."""
    name = f"rights_{postgres.new_schema()}"
    postgres.query(f"CREATE DATABASE {name}")
    with postgres.connect(database=name) as connection:
        for role in ("persist_writer", "persist_reader"):
            connection.execute(f"DROP ROLE IF EXISTS {role}".encode())
            connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD.replace(chr(39), chr(39) * 2)}'".encode())
        connection.execute(documented_sql().encode())
    yield name
    postgres.query(f"DROP DATABASE {name} WITH (FORCE)")
    for role in ("persist_writer", "persist_reader"):
        postgres.query(f"DROP ROLE {role}")


def test_the_document_shows_the_table_that_we_create() -> None:
    consensus = open_consensus("postgresql://host/database")
    assert isinstance(consensus, PostgresConsensus)
    ours, documented = (
        " ".join(sql.replace('"', "").split()) for sql in (consensus.create_statements, documented_sql())
    )
    assert ours in documented


def test_the_documented_rights_are_enough(postgres: PostgresServer, database: str) -> None:
    with (
        closing(open_consensus(postgres.uri(database=database, user="persist_writer"))) as writer,
        closing(open_consensus(postgres.uri(database=database, user="persist_reader"))) as reader,
    ):
        fill(writer, "k", [ONE, TWO, FIVE])
        assert writer.truncate("k", 5) == 2
        assert writer.scan("k", 0) == reader.scan("k", 0) == [FIVE]
        assert list(writer.list_keys()) == list(reader.list_keys()) == ["k"]
        assert reader.head("k") == FIVE
        for call in (
            lambda: reader.compare_and_set("k", 5, VersionedData(6, b"")),
            lambda: reader.compare_and_set("new", None, ONE),
            lambda: reader.truncate("k", 5),
        ):
            with pytest.raises(Determinate, match=r"permission denied.*grant the rights that docs/locations\.md lists"):
                call()
        assert reader.scan("k", 0) == [FIVE]


def test_doctor_counts_the_connections_of_other_users(postgres: PostgresServer) -> None:
    role, clock = postgres.new_role(), SystemClock()
    with ExitStack() as stack:
        consensus = stack.enter_context(closing(open_consensus(postgres.uri(user=role))))
        assert isinstance(consensus, PostgresConsensus)
        for _ in range(3):
            stack.enter_context(postgres.connect())
        (found,) = (each.found for each in consensus.diagnose(clock) if each.check == "connections")
    assert int(found.split()[0]) >= 4


@pytest.mark.parametrize("right", ["SELECT", "INSERT", "UPDATE (is_head)", "DELETE"])
def test_each_documented_right_is_needed(postgres: PostgresServer, database: str, right: str) -> None:
    postgres.query(f"REVOKE {right} ON persist.consensus FROM persist_writer", database=database)

    def commit_and_truncate() -> None:
        with closing(open_consensus(postgres.uri(database=database, user="persist_writer"))) as writer:
            fill(writer, "k", [ONE, TWO])
            writer.truncate("k", 2)

    with pytest.raises(Determinate, match="permission denied"):
        commit_and_truncate()


def test_a_user_who_may_not_create_is_told_what_to_do(postgres: PostgresServer) -> None:
    """On a new PostgreSQL database: only its owner may create a schema."""
    role = postgres.new_role()
    uri = postgres.uri(user=role, schema=postgres.new_schema())
    with closing(open_consensus(uri)) as consensus:
        assert consensus.head("k") is None
        assert consensus.compare_and_set("k", 1, TWO) is CaSResult.EXPECTATION_MISMATCH
        with pytest.raises(Determinate, match=r"does not exist, and this user may not create it .*docs/locations\.md"):
            consensus.compare_and_set("k", None, ONE)


@pytest.mark.parametrize("may", ["CREATE ON DATABASE postgres", "USAGE, CREATE ON SCHEMA {schema}"])
def test_the_right_to_create_is_all_that_an_owner_needs(postgres: PostgresServer, may: str) -> None:
    schema = postgres.new_schema()
    if "{schema}" in may:
        postgres.query(f"CREATE SCHEMA {schema}")
    role = postgres.new_role(f"GRANT {may.replace('{schema}', schema)} TO {{role}}")
    with closing(open_consensus(postgres.uri(user=role, schema=schema))) as consensus:
        fill(consensus, "k", [ONE, TWO])
        assert consensus.truncate("k", 2) == 1
    assert postgres.query("SELECT tableowner FROM pg_tables WHERE schemaname = %s", (schema,)) == [(role,)]


def test_a_forbidden_schema_is_not_an_empty_one(postgres: PostgresServer) -> None:
    schema = postgres.new_schema()
    with closing(open_consensus(postgres.uri(schema=schema))) as owner:
        fill(owner, "k", [ONE])
    with closing(open_consensus(postgres.uri(user=postgres.new_role(), schema=schema))) as stranger:
        for call in (lambda: stranger.head("k"), lambda: list(stranger.list_keys()), lambda: stranger.scan("k", 0)):
            with pytest.raises(Determinate, match="permission denied for schema"):
                call()


def test_through_pgbouncer_other_users_need_to_be_known_there(postgres: PostgresServer, pgbouncer: PgBouncer) -> None:
    uri = postgres.uri(port=pgbouncer.port, user=postgres.new_role())
    with closing(open_consensus(uri)) as consensus, pytest.raises(Determinate, match="no connection"):
        consensus.head("k")
