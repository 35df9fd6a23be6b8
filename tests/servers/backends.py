"""The consensus that a test of the whole path runs on: SQLite unless it is marked otherwise.

@on_each_consensus     SQLite and one of the servers by the session's seed, another one for each test; all at night
@on_servers            one of the servers in the same way
@on_sqlite_and_s3, @on_postgresql, @on_s3     if one run is expensive, and other tests cover the rest

docs/testing.md has a table of what runs where.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.sampling import sample
from tests.servers.postgres import PostgresServer
from tests.servers.s3 import S3Server

Test = Callable[..., Any]
SERVERS = ("postgresql", "s3")

on_sqlite_and_s3 = pytest.mark.parametrize("consensus_uri", ["sqlite", "s3"], indirect=True)
on_postgresql = pytest.mark.parametrize("consensus_uri", ["postgresql"], indirect=True)
on_s3 = pytest.mark.parametrize("consensus_uri", ["s3"], indirect=True)


def on_each_consensus(test: Test) -> Test:
    """Mark a test that is quick or that shows the whole path."""
    return _on(["sqlite", *_servers_for(test)], test)


def on_servers(test: Test) -> Test:
    """Mark a test of which another one shows the same on SQLite."""
    return _on(_servers_for(test), test)


def _on(kinds: list[str], test: Test) -> Test:
    marked: Test = pytest.mark.parametrize("consensus_uri", kinds, indirect=True)(test)
    return marked


def _servers_for(test: Test) -> list[str]:
    return sample(SERVERS, 1, test.__qualname__)


@pytest.fixture
def consensus_uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URI of a fresh consensus that other processes can reach too."""
    kind = getattr(request, "param", "sqlite")
    if kind == "sqlite":
        return f"sqlite:///{tmp_path}/consensus.db"
    if kind == "s3":
        gateway: S3Server = request.getfixturevalue("versitygw")
        return gateway.new_uri("persist")
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.uri(schema=server.new_schema())


def blob_uri_beside(consensus_uri: str, folder: Path) -> str:
    """Where the blobs go: into the same place of the same bucket, or into a folder of this machine."""
    return consensus_uri if consensus_uri.startswith("s3:") else f"file://{folder}"
