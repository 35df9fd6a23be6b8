"""Every consensus backend passes the one suite."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest

from persist_core.location import Consensus, MemConsensus, SqliteConsensus, VersionedData, open_consensus
from tests.servers.postgres import PgBouncer, PostgresServer
from tests.suites.consensus_conformance import ConsensusConformance


class TestMemConsensus(ConsensusConformance):
    def make(self, folder: Path) -> Consensus:
        return MemConsensus(folder.name)

    def reopen(self, consensus: Consensus) -> Consensus:
        return open_consensus(consensus.uri)

    def raw_read(self, consensus: Consensus, key: str) -> list[VersionedData]:
        return list(cast(MemConsensus, consensus)._store.values.get(key, []))

    def raw_write(self, consensus: Consensus, key: str, version: VersionedData) -> None:
        versions = cast(MemConsensus, consensus)._store.values
        versions[key] = [*versions.get(key, []), version]

    def address(self, consensus: Consensus) -> str | None:
        assert consensus.uri.startswith("mem:")
        return None


class TestSqliteConsensus(ConsensusConformance):
    def make(self, folder: Path) -> Consensus:
        return SqliteConsensus(folder / "sub folder %41#?" / "consensus.db")

    def reopen(self, consensus: Consensus) -> Consensus:
        return open_consensus(consensus.uri)

    def raw_read(self, consensus: Consensus, key: str) -> list[VersionedData]:
        path = cast(SqliteConsensus, consensus).path
        if not path.exists():
            return []
        with closing(sqlite3.connect(path)) as connection:
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'consensus'").fetchall():
                return []
            rows = connection.execute("SELECT seqno, data FROM consensus WHERE key = ? ORDER BY seqno", (key,))
            return [VersionedData(*row) for row in rows]

    def raw_write(self, consensus: Consensus, key: str, version: VersionedData) -> None:
        with closing(sqlite3.connect(cast(SqliteConsensus, consensus).path)) as connection, connection:
            connection.execute("INSERT INTO consensus VALUES (?, ?, ?)", (key, version.seqno, version.data))

    def address(self, consensus: Consensus) -> str | None:
        return consensus.uri


class TestPostgresConsensus(ConsensusConformance):
    server: PostgresServer
    port: int
    schema: str

    @pytest.fixture(autouse=True)
    def _server(self, postgres: PostgresServer) -> None:
        self.server, self.port, self.schema = postgres, postgres.port, postgres.new_schema()

    def make(self, folder: Path) -> Consensus:
        assert folder.is_dir()
        return open_consensus(self._uri())

    def reopen(self, consensus: Consensus) -> Consensus:
        assert self.schema in consensus.uri
        return open_consensus(self._uri())

    def raw_read(self, consensus: Consensus, key: str) -> list[VersionedData]:
        assert self.schema in consensus.uri
        if self.server.query("SELECT to_regclass(%s)", (f"{self.schema}.consensus",)) == [(None,)]:
            return []
        statement = f"SELECT seqno, data FROM {self.schema}.consensus WHERE key = %s ORDER BY seqno"
        return [VersionedData(*row) for row in self.server.query(statement, (key,))]

    def raw_write(self, consensus: Consensus, key: str, version: VersionedData) -> None:
        assert self.schema in consensus.uri
        self.server.query(f"UPDATE {self.schema}.consensus SET is_head = false WHERE key = %s", (key,))
        row = (key, version.seqno, version.data)
        self.server.query(f"INSERT INTO {self.schema}.consensus VALUES (%s, %s, %s, true)", row)

    def address(self, consensus: Consensus) -> str | None:
        assert self.schema in consensus.uri
        return self._uri()

    def _uri(self) -> str:
        return self.server.uri(port=self.port, schema=self.schema)


class TestPostgresConsensusThroughPgBouncer(TestPostgresConsensus):
    @pytest.fixture(autouse=True)
    def _bouncer(self, _server: None, pgbouncer: PgBouncer) -> None:
        self.port = pgbouncer.port
