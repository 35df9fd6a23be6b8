"""A small but complete location, raw access to every object that it stores, and the answers that its readers get.

Complete: a collection with operator state, several checkpoints, a ledger, frozen inputs and a lost append; a fork of
it; a view of it. Raw access bypasses the code under test as far as each backend allows it.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from unittest.mock import patch

import pyarrow as pa

from persist_core.compaction.merge import Merge, merge_here
from persist_core.config.view import ViewConfig
from persist_core.contents import part_lists
from persist_core.contents.parts import updates_schema
from persist_core.errors import CorruptArtifact
from persist_core.handles.client import PersistClient
from persist_core.keys import attempt_of, attempt_prefix
from persist_core.location.consensus import VersionedData
from persist_core.location.mem import MemConsensus
from persist_core.location.open import OpenLocation, open_location
from persist_core.location.s3.consensus import S3Consensus
from persist_core.location.settings import PersistLocation
from persist_core.protocol import stages
from persist_core.protocol.conflicts import list_conflicts
from persist_core.protocol.fork import fork
from persist_core.protocol.fork_records import list_forks
from persist_core.protocol.restore import RestorePlan, plan_restore
from persist_core.protocol.stages import Conflict, Minted
from persist_core.schema import CollectionSchema
from persist_core.shard.replace import Replaced
from persist_core.shard.state import Commit, Committed
from persist_core.sources.frozen import load_frozen
from persist_core.sources.input_file import FrozenInput
from tests.core.protocol.restored_shard import SHARD, Collection
from tests.oracle.strategies import SCHEMA
from tests.oracle.upsert import TOMBSTONE, Record
from tests.servers.postgres import PostgresServer
from tests.servers.s3 import S3Server

FORK, VIEW = "twin", "names"
SHARDS = (SHARD, FORK, VIEW)
UPTO = 50  # where the collection's contents end
_KINDS = {
    "state": r"state:.*",
    "location's id": r"blob:_location",
    "batch manifest": r".*/batches/[^/]+/manifest\.json",
    "list of parts": r".*/batches/[^/]+/parts-000[0-9]{3}\.json",
    "part": r".*/_persist_part=(insertions|retractions|errs)/.*",
    "history of a run": r".*/_persist_part=history/.*",
    "operator state": r".*/_persist_part=upsert-stash/.*",
    "checkpoint manifest": r".*/checkpoints/[^/]+/manifest\.json",
    "copy of operator state": r".*/checkpoints/[^/]+/operators/.*",
    "offsets file": r".*/offsets/.*",
    "latest": r".*/checkpoints/_latest",
    "ledger segment": r".*/sources/files/.*",
    "frozen input": r".*/inputs/.*",
    "fork record": r".*/forks/.*",
    "conflict record": r".*/conflicts/.*",
}


def kind_of(name: str) -> str:
    """The kind of the object with this name."""
    return next(kind for kind, pattern in _KINDS.items() if re.fullmatch(pattern, name))


KINDS = frozenset(_KINDS)


class Stored(Protocol):
    """Every stored object of a location, by name: `state:...` for consensus, `blob:<key>` for blobs."""

    location: OpenLocation

    def names(self) -> list[str]:
        """Names of all objects."""
        ...

    def read(self, name: str) -> bytes:
        """The object's bytes."""
        ...

    def write(self, name: str, data: bytes) -> None:
        """Replace the object's bytes."""
        ...

    def why_harmless(self, name: str, bit: int) -> str | None:
        """Why a flip may change no answer and stay undetected; `None` if it may not."""
        ...


class _ByBlob:
    """Blobs through the store itself, which keeps them as they are; versions of states in another way."""

    def __init__(self, location: OpenLocation) -> None:
        self.location = location

    def names(self) -> list[str]:
        blobs = [f"blob:{entry.key}" for entry in self.location.blob.list_keys_and_metadata("")]
        return [*blobs, *(f"state:{key}:{seqno}" for key, seqno in self.versions())]

    def read(self, name: str) -> bytes:
        kind, _, rest = name.partition(":")
        if kind == "blob":
            data = self.location.blob.get(rest)
            assert data is not None, name
            return data
        key, _, seqno = rest.rpartition(":")
        return self.read_version(key, int(seqno))

    def write(self, name: str, data: bytes) -> None:
        kind, _, rest = name.partition(":")
        if kind == "blob":
            self.location.blob.set(rest, data)
        else:
            key, _, seqno = rest.rpartition(":")
            self.write_version(key, int(seqno), data)

    def why_harmless(self, name: str, bit: int) -> str | None:  # noqa: ARG002 - by contract
        """Never: these stores keep the given bytes and nothing else."""
        return None

    def versions(self) -> list[tuple[str, int]]:
        consensus = self.location.consensus
        return [(key, version.seqno) for key in sorted(consensus.list_keys()) for version in consensus.scan(key, 0)]

    def read_version(self, key: str, seqno: int) -> bytes:
        return self.location.consensus.scan(key, seqno, 1)[0].data

    def write_version(self, key: str, seqno: int, data: bytes) -> None:
        raise AssertionError(f"each backend has its own way: {key} {seqno} {len(data)}")


class InMemory(_ByBlob):
    """`mem:`."""

    def __init__(self, folder: Path) -> None:
        assert folder.is_dir()
        super().__init__(open_location(PersistLocation("mem:", "mem:")))

    def write_version(self, key: str, seqno: int, data: bytes) -> None:
        consensus = self.location.consensus
        assert isinstance(consensus, MemConsensus)
        versions = consensus._store.values
        versions[key] = [VersionedData(seqno, data) if v.seqno == seqno else v for v in versions[key]]


class FilesAndSqlite(_ByBlob):
    """The embedded default."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "consensus.db"
        super().__init__(open_location(PersistLocation(f"file://{folder}/blobs", f"sqlite:///{self._path}")))

    def write_version(self, key: str, seqno: int, data: bytes) -> None:
        connection = sqlite3.connect(self._path)
        with connection:
            connection.execute("UPDATE consensus SET data = ? WHERE key = ? AND seqno = ?", (data, key, seqno))
        connection.close()


class FilesAndPostgres(_ByBlob):
    """PostgreSQL, with files beside it."""

    def __init__(self, folder: Path, server: PostgresServer) -> None:
        self._server, self._schema = server, server.new_schema()
        super().__init__(open_location(PersistLocation(f"file://{folder}/blobs", server.uri(schema=self._schema))))

    def write_version(self, key: str, seqno: int, data: bytes) -> None:
        self._server.query(
            f"UPDATE {self._schema}.consensus SET data = %s WHERE key = %s AND seqno = %s", (data, key, seqno)
        )


class AllOnS3:
    """Blobs and consensus in one bucket: each of its objects, including complete log entries of the consensus."""

    def __init__(self, server: S3Server) -> None:
        self._server, self._bucket = server, server.make_bucket()
        uri = server.uri(f"{self._bucket}/p")
        self.location = open_location(PersistLocation(uri, uri))

    def names(self) -> list[str]:
        pages = self._server.raw.get_paginator("list_objects_v2").paginate(Bucket=self._bucket)
        keys = [found["Key"].removeprefix("p/") for page in pages for found in page.get("Contents", ())]
        return [f"state:{key}" if key.startswith("_consensus/") else f"blob:{key}" for key in keys]

    def read(self, name: str) -> bytes:
        data: bytes = self._server.raw.get_object(Bucket=self._bucket, Key=self._key(name))["Body"].read()
        return data

    def write(self, name: str, data: bytes) -> None:
        self._server.raw.put_object(Bucket=self._bucket, Key=self._key(name), Body=data)
        consensus = self.location.consensus
        assert isinstance(consensus, S3Consensus)
        consensus._seen.clear()  # another process, without cached entries, would find the altered one

    def why_harmless(self, name: str, bit: int) -> str | None:
        """In the header of a log entry. A version's own bytes follow it, and they are sealed."""
        if not name.startswith("state:"):
            return None
        return "header of a log entry" if bit < 8 * self.read(name).index(b"\n") else None

    def _key(self, name: str) -> str:
        return f"p/{name.partition(':')[2]}"


class Complete:
    """The location with contents. `answers` asks everything that a reader, a run or a restore can ask."""

    def __init__(self, stored: Stored, folder: Path) -> None:
        self.stored = stored
        (folder / "drop").mkdir()
        self.things = Collection(folder / "drop", stored.location)
        # Parquet, as every real shard has it.
        self.things.client = PersistClient(stored.location, self.things.clock, self.things.client.ids, fetch_threads=1)
        self.client = self.things.client
        self.view = ViewConfig.model_validate({"name": VIEW, "query": f"SELECT name FROM {SHARD}", "inputs": [SHARD]})
        with patch.object(part_lists, "MAX_PARTS", 1):
            self._fill()
        self.minted = {config.name: self._mint(config) for config in (self.things.config, self.view)}
        self.input_key = self.minted[SHARD].description.input_key or ""
        self.names = stored.names()
        self.commits: tuple[Commit, ...] = self.client.state(SHARD).commits

    def _fill(self) -> None:
        things = self.things
        for number in range(4):
            time = 10 * number
            things.drop(f"{number}.txt", _records(number, time))
            things.run(time + 10)
        self._lose_an_append(UPTO)
        self._refresh()
        things.run(UPTO)
        fork(self.client, SHARD, things.checkpointer.list_checkpoints()[2], FORK, writer="test")
        self._merge()
        things.drop("pending.txt", _records(9, UPTO))

    def _merge(self) -> None:
        """A run in the place of batches that the fork goes on to read."""
        state = self.client.state(SHARD)
        assert state.batches[:2] == self.client.state(FORK).batches[:2]
        merge = Merge.of(self.client, state, state.batches[:2])
        assert isinstance(merge_here(self.client, merge, attempt=self.client.ids.uuid7()), Replaced)

    def _refresh(self) -> None:
        """Act as the Spark job of a view; the rows are invented."""
        description, schema = self._mint(self.view).description, CollectionSchema(key=(), values=SCHEMA.values[:1])
        assert description.upper is not None
        oks = pa.table([["a", "b"], [description.upper - 1] * 2, [1, 3]], schema=updates_schema(schema))
        key = self.client.open_writer(VIEW).stage(description, schema, self.client.ids.uuid7(), oks)
        assert isinstance(stages.append(self.client, description, key), Committed)
        stages.checkpoint(self.client, self.view)

    def _lose_an_append(self, until: int) -> None:
        """A slow DAG run: its description is outdated when it appends. What it staged is deleted, as GC would."""
        slow = stages.mint(self.client, self.things.config, until=until - 1, writer="slow")
        assert isinstance(slow, Minted)
        key = self.things.write(slow.description)
        self.things.run(until - 5)
        assert isinstance(stages.append(self.client, slow.description, key), Conflict)
        attempt = attempt_of(key)
        assert attempt is not None
        for entry in list(self.client.blob.list_keys_and_metadata(f"{attempt_prefix(SHARD, attempt)}/")):
            self.client.blob.delete(entry.key)

    def _mint(self, config: Any) -> Minted:
        minted = stages.mint(self.client, config, until=UPTO + 10, writer="dag/next")
        assert isinstance(minted, Minted), minted
        return minted

    def answers(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        """The questions, by name. Every answer can be compared; what a mint stages is content-addressed."""
        for shard in SHARDS:
            yield from self._reads(shard)
        yield "conflicts", lambda: list_conflicts(self.client.blob, SHARD)
        yield "forks", lambda: list_forks(self.client.blob, SHARD)
        yield "frozen files", lambda: load_frozen(self.client.blob, self.input_key, FrozenInput)
        for config in (self.things.config, self.view):
            yield f"mint {config.name}", partial(self._minted, config)
        for commit in (self.commits[0], self.commits[-3]):
            yield f"restore {commit.epoch}", partial(self._plan, commit.checkpoint_id)

    def _reads(self, shard: str) -> Iterator[tuple[str, Callable[[], Any]]]:
        def reader() -> Any:
            return self.client.open_reader(shard)

        yield f"{shard}: errors", lambda: reader().errors().to_pylist()
        for time in {SHARD: (5, 25, UPTO - 1), FORK: (5,)}.get(shard, ()):
            yield f"{shard}: snapshot {time}", partial(_snapshot, reader, time)
        yield f"{shard}: snapshot", lambda: _rows(reader().snapshot())
        yield f"{shard}: changes", lambda: _rows(reader().changes(2))
        yield f"{shard}: error changes", lambda: _rows(reader().error_changes(2))

    def _minted(self, config: Any) -> Any:
        """The description, with operator state by its digests: a copy may replace an artifact."""
        description = self._mint(config).description
        state = {name: [each.sha256 for each in chain] for name, chain in description.operators.items()}
        return {**description.to_json(), "operators": state, "checkpoint_id": None}

    def _plan(self, checkpoint_id: str) -> Any:
        plan = plan_restore(self.client, SHARD, checkpoint_id)
        assert isinstance(plan, RestorePlan)
        if plan.inputs_again is None:
            raise CorruptArtifact("the plan says that the progress of now is damaged")
        state = {name: [each.sha256 for each in chain] for name, chain in plan.point.operators.items()}
        return _rows(plan.updates.oks), _rows(plan.updates.errs), plan.point.sources, state, plan.inputs_again


def _snapshot(reader: Callable[[], Any], time: int) -> Any:
    return _rows(reader().snapshot(time))


def _records(number: int, time: int) -> list[Record]:
    """Inserts, an update, a delete, and one record that is not yet due: it goes into the stash."""

    def ok(key: int, name: str, at: int) -> Record:
        return Record(("eu", key), (name, key, 0.5), at, (number, "f", 0, key))

    return [
        ok(number, f"new {number}", time + 1),
        ok(0, f"changed {number}", time + 2),
        Record(("eu", number - 1), TOMBSTONE, time + 3, (number, "f", 0, 99)),
        ok(100 + number, f"later {number}", time + 25),
    ]


def _rows(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))
