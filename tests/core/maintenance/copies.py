"""Pairs of locations of all kinds, and what a copy must be equal to its source in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from persist_core.compaction.merge import Merge, merge_here
from persist_core.handles.client import PersistClient
from persist_core.location.mem import MemBlob, MemConsensus
from persist_core.location.open import OpenLocation, open_location
from persist_core.location.settings import PersistLocation
from persist_core.maintenance.copy import Copied, Copier
from persist_core.maintenance.fsck import fsck
from tests.servers.postgres import PostgresServer
from tests.servers.s3 import S3Server

KINDS = ("mem", "files+sqlite", "files+postgresql", "s3+postgresql", "s3")
PAIRS = [f"{source} to {target}" for source in KINDS for target in KINDS]


def uris_of(kind: str, folder: Path, request: pytest.FixtureRequest) -> PersistLocation:
    """A fresh location that other processes can reach too."""
    blob, _, consensus = kind.partition("+")
    folder.mkdir(parents=True, exist_ok=True)
    uris = {"files": f"file://{folder}/blobs", "sqlite": f"sqlite:///{folder}/consensus.db"}
    if "s3" in kind:
        gateway: S3Server = request.getfixturevalue("versitygw")
        uris["s3"] = gateway.new_uri("persist")
    if consensus == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres")
        uris["postgresql"] = server.uri(schema=server.new_schema())
    return PersistLocation(uris[blob], uris[consensus or blob])


@contextmanager
def opened(kind: str, folder: Path, request: pytest.FixtureRequest) -> Iterator[OpenLocation]:
    """A fresh location of this kind."""
    location = OpenLocation(MemBlob(), MemConsensus()) if kind == "mem" else None
    with location or open_location(uris_of(kind, folder, request)) as found:
        yield found


class CountedBlob:
    """A blob store that notes its calls, and does something before some of them."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.calls: list[tuple[str, str]] = []
        self._count, self._at = 0, frozenset[int]()
        self._act: Callable[[], object] = list

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if name not in ("get", "set", "delete", "list_keys_and_metadata"):
            return value

        def call(key: str, *rest: Any) -> Any:
            self.calls.append((name, key))
            self._count += 1
            if self._count in self._at:
                at, self._at = self._at, frozenset()  # it calls too
                self._act()
                self._at = at
            return value(key, *rest)

        return call

    def at(self, numbers: Iterable[int], act: Callable[[], object] = list) -> None:
        """Before the calls with these numbers from now on."""
        self._count, self._at, self._act = 0, frozenset(numbers), act

    def of(self, name: str) -> list[str]:
        """The keys of the calls with this name so far; they are then forgotten."""
        found = [key for each, key in self.calls if each == name]
        self.calls = [call for call in self.calls if call[0] != name]
        return found


class Client(PersistClient):
    """A client whose calls of the blob store are noted; in memory by default."""

    def __init__(self, location: OpenLocation | None = None) -> None:
        location = location or OpenLocation(MemBlob(), MemConsensus())
        self.counted = CountedBlob(location.blob)
        super().__init__(OpenLocation(self.counted, location.consensus), fetch_threads=2)


def copy_all(source: PersistClient, target: PersistClient, *names: str, is_move: bool = False) -> dict[str, Copied]:
    """Copy these shards, or all; what was done, by shard."""
    copier = Copier(source, target, threads=2)
    return {each.shard: each for group in copier.groups(names) for each in copier.copy(group, is_move=is_move)}


def keys_of(client: PersistClient, shard: str) -> dict[str, int]:
    """Sizes of the stored objects, by key."""
    return {entry.key: entry.size_bytes for entry in client.blob.list_keys_and_metadata(f"{shard}/")}


def merge_all(client: PersistClient, shard: str) -> None:
    """Merge all batches, if there are several."""
    state = client.state(shard)
    if len(state.batches) > 1:
        merge_here(client, Merge.of(client, state, state.batches), attempt=client.ids.uuid7())


def reads_of(client: PersistClient, shard: str, *, times: range | None = None) -> dict[str, Any]:
    """The contents of a shard at each time, and its changes."""
    state, reader = client.state(shard), client.open_reader(shard)
    if state.schema is None:
        return {}
    first, end = state.since.time or 0, state.upper.time
    last = state.batches[-1].lower if end is None else end - 1
    if last < first:
        return {}
    found: dict[str, Any] = {}
    for time in times or {first, (first + last) // 2, last}:
        found[f"snapshot {time}"] = _rows(reader.snapshot(time))
        found[f"errors {time}"] = _rows(reader.errors(time))
    found["changes"] = _rows(reader.changes(first, last))
    found["error changes"] = _rows(reader.error_changes(first, last))
    found["commits"] = state.commits
    found["progress"] = (dict(state.sources), dict(state.operators), state.schema, state.history_ms)
    return found


def check_equal(source: PersistClient, target: PersistClient, shard: str) -> None:
    """The copy is clean and answers as its source does now."""
    report = fsck(target, shard)
    assert report.is_clean, report.violations
    theirs = target.state(shard).since.time
    ours = source.state(shard)
    first, end = max(theirs or 0, ours.since.time or 0), ours.upper.time
    last = (ours.batches[-1].lower if end is None else end - 1) if ours.batches else -1
    times = range(first, last + 1)
    if len(times) > 20:
        times = range(first, last + 1, len(times) // 8)
    expected, found = reads_of(source, shard, times=times), reads_of(target, shard, times=times)
    for changes in ("changes", "error changes") if theirs != ours.since.time else ():
        expected.pop(changes, None), found.pop(changes, None)
    assert found == expected


def _rows(table: Any) -> list[str]:
    return sorted(map(repr, table.to_pylist()))
