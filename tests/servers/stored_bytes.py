"""A location on each kind of backend, whose stored bytes a test can read and replace behind its back.

    @on_each_backend
    def test_damage(stored: StoredBytes) -> None:
        with open_location(stored.location) as location: ...
        stored.write_version(shard, flipped(stored.read_version(shard), bit=7))

Backends by what holds the blobs and the state: `mem`, `file+sqlite`, `file+postgresql`, `s3` (both).
"""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from persist_core.location import MemBlob, MemConsensus, PersistLocation, VersionedData, open_consensus
from persist_core.location.mem import forget_mem
from tests.servers.postgres import PostgresServer
from tests.servers.s3 import S3Server
from tests.servers.s3_raw import raw_names

BACKENDS = ("mem", "file+sqlite", "file+postgresql", "s3")
on_each_backend = pytest.mark.parametrize("stored", BACKENDS, indirect=True)


def flipped(data: bytes, bit: int) -> bytes:
    """`data` with one bit, counted from its beginning, the other way round."""
    byte, mask = divmod(bit, 8)
    return data[:byte] + bytes([data[byte] ^ 1 << mask]) + data[byte + 1 :]


class StoredBytes(ABC):
    """See the module's first lines. No method goes through the code under test."""

    location: PersistLocation

    @abstractmethod
    def read_blob(self, key: str) -> bytes:
        """The stored bytes of a blob that is there."""

    @abstractmethod
    def write_blob(self, key: str, data: bytes | None) -> None:
        """Replace them; `None`: remove the blob."""

    @abstractmethod
    def read_version(self, key: str) -> bytes:
        """All stored bytes of a consensus key's newest version, those that only the backend knows of included."""

    @abstractmethod
    def write_version(self, key: str, data: bytes) -> None:
        """Replace them."""


class _Mem(StoredBytes):
    def __init__(self, name: str) -> None:
        self.location = PersistLocation(f"mem:{name}", f"mem:{name}")
        self._blobs, self._versions = MemBlob(name)._store.values, MemConsensus(name)._store.versions

    def read_blob(self, key: str) -> bytes:
        return self._blobs[key]

    def write_blob(self, key: str, data: bytes | None) -> None:
        if data is None:
            del self._blobs[key]
        else:
            self._blobs[key] = data

    def read_version(self, key: str) -> bytes:
        return self._versions[key][-1].data

    def write_version(self, key: str, data: bytes) -> None:
        *older, newest = self._versions[key]
        self._versions[key] = [*older, VersionedData(newest.seqno, data)]


class _Files(StoredBytes):
    def __init__(self, folder: Path) -> None:
        self._blobs, self._database = folder / "blobs", folder / "consensus.db"
        self.location = PersistLocation(f"file://{self._blobs}", f"sqlite:///{self._database}")

    def read_blob(self, key: str) -> bytes:
        return (self._blobs / key).read_bytes()

    def write_blob(self, key: str, data: bytes | None) -> None:
        if data is None:
            (self._blobs / key).unlink()
        else:
            (self._blobs / key).write_bytes(data)

    def read_version(self, key: str) -> bytes:
        statement = "SELECT data FROM consensus WHERE key = ? ORDER BY seqno DESC LIMIT 1"
        with closing(sqlite3.connect(self._database)) as connection:
            data: bytes = connection.execute(statement, (key,)).fetchone()[0]
        return data

    def write_version(self, key: str, data: bytes) -> None:
        newest = "seqno = (SELECT max(seqno) FROM consensus WHERE key = ?)"
        with closing(sqlite3.connect(self._database)) as connection, connection:
            connection.execute(f"UPDATE consensus SET data = ? WHERE key = ? AND {newest}", (data, key, key))


class _FilesAndPostgres(_Files):
    def __init__(self, folder: Path, server: PostgresServer) -> None:
        super().__init__(folder)
        self._server, self._table = server, server.new_schema()
        self.location = PersistLocation(self.location.blob_uri, server.uri(schema=self._table))

    def read_version(self, key: str) -> bytes:
        rows = self._server.query(f"SELECT data FROM {self._table}.consensus WHERE key = %s AND is_head", (key,))
        return bytes(rows[0][0])

    def write_version(self, key: str, data: bytes) -> None:
        statement = f"UPDATE {self._table}.consensus SET data = %s WHERE key = %s AND is_head"
        self._server.query(statement, (data, key))


class _S3(StoredBytes):
    def __init__(self, server: S3Server) -> None:
        self._server = server
        uri = server.new_uri()  # no prefix: a blob's key is its object's name
        self._bucket = uri.removeprefix("s3://").partition("?")[0].strip("/")
        self.location = PersistLocation(uri, uri)

    def read_blob(self, key: str) -> bytes:
        data: bytes = self._server.raw.get_object(Bucket=self._bucket, Key=key)["Body"].read()
        return data

    def write_blob(self, key: str, data: bytes | None) -> None:
        if data is None:
            self._server.raw.delete_object(Bucket=self._bucket, Key=key)
        else:
            self._server.raw.put_object(Bucket=self._bucket, Key=key, Body=data)

    def read_version(self, key: str) -> bytes:
        return self.read_blob(self._newest_entry(key))

    def write_version(self, key: str, data: bytes) -> None:
        self.write_blob(self._newest_entry(key), data)

    def _newest_entry(self, key: str) -> str:
        with closing(open_consensus(self.location.consensus_uri)) as consensus:
            return raw_names(self._server, consensus, key)[0]


@pytest.fixture
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoredBytes]:
    """A fresh location; the parameter is one of `BACKENDS`."""
    kind = request.param
    if kind == "mem":
        yield _Mem(tmp_path.name)
        forget_mem(tmp_path.name)
    elif kind == "file+sqlite":
        yield _Files(tmp_path)
    elif kind == "file+postgresql":
        yield _FilesAndPostgres(tmp_path, request.getfixturevalue("postgres"))
    else:
        yield _S3(request.getfixturevalue("versitygw"))
