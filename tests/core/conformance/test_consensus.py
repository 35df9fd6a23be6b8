"""Every consensus backend passes the one suite."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import cast

from persist_core.location import Consensus, MemConsensus, SqliteConsensus, VersionedData, open_consensus
from persist_core.testing.consensus_conformance import ConsensusConformance


class TestMemConsensus(ConsensusConformance):
    def make(self, folder: Path) -> Consensus:
        return MemConsensus(folder.name)

    def reopen(self, consensus: Consensus) -> Consensus:
        return open_consensus(consensus.uri)

    def raw_read(self, consensus: Consensus, key: str) -> list[VersionedData]:
        return list(cast(MemConsensus, consensus)._store.versions.get(key, []))

    def raw_write(self, consensus: Consensus, key: str, version: VersionedData) -> None:
        versions = cast(MemConsensus, consensus)._store.versions
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
