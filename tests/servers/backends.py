"""Which consensus a test of the whole path runs on: SQLite unless it says otherwise.

@on_each_consensus     one run each; for tests that are quick or that show the whole path
@on_postgresql         where one run is dear and the same path runs on SQLite in a test beside it
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.servers.postgres import PostgresServer

on_each_consensus = pytest.mark.parametrize("consensus_uri", ["sqlite", "postgresql"], indirect=True)
on_postgresql = pytest.mark.parametrize("consensus_uri", ["postgresql"], indirect=True)


@pytest.fixture
def consensus_uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URI of a fresh consensus that other processes reach too."""
    if getattr(request, "param", "sqlite") == "sqlite":
        return f"sqlite:///{tmp_path}/consensus.db"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.uri(schema=server.new_schema())
