"""A `PostgresConsensus` in a schema of its own, the way past it, and another client that competes with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from persist_core.location import Consensus, open_consensus
from tests.servers.lifeline import wait_until
from tests.servers.postgres import PostgresServer


class PostgresStore:
    """A consensus in a schema of its own. In SQL, `{table}` is its table."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self.schema = server.new_schema()
        self.consensus = open_consensus(self.uri())

    def uri(self, **parameters: Any) -> str:
        """Its URI, with other parameters of `PostgresServer.uri`."""
        return self.server.uri(**({"schema": self.schema} | parameters))

    def sql(self, statement: str, arguments: Any = None) -> list[Any]:
        """Run one statement as superuser; its rows, if it has any."""
        return self.server.query(statement.replace("{table}", f"{self.schema}.consensus"), arguments)

    def sessions(self) -> list[int]:
        """Process ids of the server's sessions that served this store last."""
        mine = "application_name = 'airflow-persist' AND query LIKE %s"
        return [pid for (pid,) in self.sql(f"SELECT pid FROM pg_stat_activity WHERE {mine}", (f"%{self.schema}%",))]


class OtherClient:
    """Another client's session in the store's schema, within a transaction that stays open."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self.connection = store.server.connect()
        self.run(f"SET search_path TO {store.schema}", "BEGIN")

    def run(self, *statements: str) -> None:
        """Run statements one after the other."""
        for statement in statements:
            self.connection.execute(statement.encode())

    def blocks(self, thread: ThreadPoolExecutor, call: Callable[[], Any]) -> Future[Any]:
        """`call`, begun on the thread and waiting for a lock of this transaction's."""
        future = thread.submit(call)
        wait_until(lambda: future.done() or self._is_waited_for(), what="waiting for a lock")
        assert not future.done()
        return future

    def _is_waited_for(self) -> bool:
        waits = "wait_event_type = 'Lock' AND query LIKE %s"
        return bool(self._store.sql(f"SELECT 1 FROM pg_stat_activity WHERE {waits}", (f"%{self._store.schema}%",)))


@pytest.fixture
def postgres_store(postgres: PostgresServer) -> Iterator[PostgresStore]:
    """See `PostgresStore`."""
    made = PostgresStore(postgres)
    yield made
    made.consensus.close()


@pytest.fixture
def other_client(postgres_store: PostgresStore) -> Iterator[OtherClient]:
    """See `OtherClient`."""
    client = OtherClient(postgres_store)
    yield client
    client.connection.close()


@pytest.fixture
def one_thread() -> Iterator[ThreadPoolExecutor]:
    """One more thread. Its work must have ended, or be about to."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


def impatient(uri: str, silence_grace_s: float) -> Consensus:
    """A consensus that gives up a silent server soon."""
    from persist_core.location.postgres.consensus import PostgresConsensus  # an extra

    with closing(open_consensus(uri)) as opened:
        assert isinstance(opened, PostgresConsensus)
        return PostgresConsensus(opened._address, silence_grace_s=silence_grace_s)
