"""The consensus that a test of the whole path runs on: SQLite unless it is marked otherwise.

@on_each_consensus     one run each; for tests that are quick or that show the whole path
@on_sqlite_and_s3, @on_servers, @on_postgresql, @on_s3     if one run is expensive, and other tests cover the rest

docs/testing.md has a table of what runs where.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.servers.postgres import PostgresServer
from tests.servers.s3 import S3Server

on_each_consensus = pytest.mark.parametrize("consensus_uri", ["sqlite", "postgresql", "s3"], indirect=True)
on_sqlite_and_s3 = pytest.mark.parametrize("consensus_uri", ["sqlite", "s3"], indirect=True)
on_servers = pytest.mark.parametrize("consensus_uri", ["postgresql", "s3"], indirect=True)
on_postgresql = pytest.mark.parametrize("consensus_uri", ["postgresql"], indirect=True)
on_s3 = pytest.mark.parametrize("consensus_uri", ["s3"], indirect=True)


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
