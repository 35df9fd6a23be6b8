"""`mem:` backends: a dict under a lock. For tests and for trying things out; gone when the process ends.

`mem:name` is one store for the whole process, so that two opens share it; a bare `mem:` is a fresh private one. A
forked child works on a copy, and Spark cannot reach either.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import Generic, TypeVar

from persist_core.clock import Clock, SystemClock
from persist_core.errors import InvalidInput, InvalidUri
from persist_core.location.blob import BlobMetadata, check_blob_data, check_blob_key, check_blob_prefix
from persist_core.location.consensus import (
    SCAN_ALL,
    CaSResult,
    VersionedData,
    check_cas,
    check_consensus_key,
    check_scan,
    check_truncate,
    check_truncation,
)
from persist_core.location.uri import LocationUri

_Value = TypeVar("_Value")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def parse_mem_uri(uri: LocationUri) -> str:
    """The store's name, empty for a private one. Raises `InvalidUri`."""
    if uri.path and not _NAME.fullmatch(uri.path):
        raise InvalidUri(f"{uri.text!r}: expected mem: or mem:name, a name of up to 100 of A-Z a-z 0-9 . _ -")
    return uri.path


class _Store(Generic[_Value]):
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.values: dict[str, _Value] = {}


# The named stores of this process. They live as long as it does: closing a handle must not lose what it wrote.
_blobs: dict[str, _Store[tuple[bytes, int]]] = {}  # of each value the time at which it was written, in ms
_histories: dict[str, _Store[list[VersionedData]]] = {}


def _store(named: dict[str, _Store[_Value]], name: str) -> _Store[_Value]:
    return named.setdefault(name, _Store()) if name else _Store()  # one atomic call


class MemBlob:
    """`Blob` in this process's memory. `MemBlob("x")` shares with every other `MemBlob("x")`."""

    def __init__(self, name: str = "", *, clock: Clock | None = None) -> None:
        self._name = name
        self._clock = clock or SystemClock()
        self._store = _store(_blobs, name)

    def get(self, key: str) -> bytes | None:
        check_blob_key(key)
        with self._store.lock:
            return self._store.values.get(key, (None, 0))[0]

    def set(self, key: str, data: bytes) -> None:
        check_blob_key(key)
        check_blob_data(key, data)
        with self._store.lock:
            self._store.values[key] = data, self._clock.now_ms()

    def delete(self, key: str) -> int | None:
        check_blob_key(key)
        with self._store.lock:
            found = self._store.values.pop(key, None)
        return None if found is None else len(found[0])

    def list_keys_and_metadata(self, prefix: str) -> Iterator[BlobMetadata]:
        check_blob_prefix(prefix)
        with self._store.lock:
            found = [
                BlobMetadata(key, len(data), modified_ms)
                for key, (data, modified_ms) in self._store.values.items()
                if key.startswith(prefix)
            ]
        return iter(sorted(found, key=lambda metadata: metadata.key.encode("utf-8")))

    def uri_of(self, key: str) -> str:
        check_blob_key(key)
        raise InvalidInput(f"{self.uri} is this process's memory: Spark cannot reach {key!r}; use a file: location")

    def make_durable(self, prefix: str) -> None:
        check_blob_prefix(prefix)

    def close(self) -> None:
        """No-op: there are no connections."""

    @property
    def uri(self) -> str:
        return f"mem:{self._name}"


class MemConsensus:
    """`Consensus` and `Erasable` in this process's memory. `MemConsensus("x")`s share what they hold."""

    def __init__(self, name: str = "") -> None:
        self._name = name
        self._store = _store(_histories, name)

    def list_keys(self) -> Iterator[str]:
        with self._store.lock:
            return iter(list(self._store.values))

    def head(self, key: str) -> VersionedData | None:
        check_consensus_key(key)
        with self._store.lock:
            versions = self._store.values.get(key)
            return versions[-1] if versions else None

    def compare_and_set(self, key: str, expected: int | None, new: VersionedData) -> CaSResult:
        check_cas(key, expected, new)
        with self._store.lock:
            versions = self._store.values.get(key, [])
            current = versions[-1].seqno if versions else None
            if current != expected:
                return CaSResult.EXPECTATION_MISMATCH
            self._store.values[key] = [*versions, new]
            return CaSResult.COMMITTED

    def scan(self, key: str, from_seqno: int, limit: int = SCAN_ALL) -> list[VersionedData]:
        limit = check_scan(key, from_seqno, limit)
        with self._store.lock:
            versions = self._store.values.get(key, [])
        return [version for version in versions if version.seqno >= from_seqno][:limit]

    def truncate(self, key: str, seqno: int) -> int:
        check_truncation(key, seqno)
        with self._store.lock:
            versions = self._store.values.get(key, [])
            check_truncate(key, seqno, versions[-1].seqno if versions else None)
            kept = [version for version in versions if version.seqno >= seqno]
            self._store.values[key] = kept
            return len(versions) - len(kept)

    def erase(self, key: str) -> None:
        check_consensus_key(key)
        with self._store.lock:
            self._store.values.pop(key, None)

    def close(self) -> None:
        """No-op: there are no connections."""

    @property
    def uri(self) -> str:
        return f"mem:{self._name}"
