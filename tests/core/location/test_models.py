"""Each backend against a plain dict, in random sequences of calls that Hypothesis makes up and shrinks."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from persist_core.errors import InvalidName, InvalidSeqNo
from persist_core.location import (
    MAX_SEQNO,
    Blob,
    CaSResult,
    Consensus,
    FileBlob,
    MemBlob,
    MemConsensus,
    SqliteConsensus,
    VersionedData,
    open_blob,
)
from tests.virtual import ManualClock, SeededIds

CONSENSUS_KEYS = st.sampled_from(["k", "K", "k ", "k/1", "\u00e9"])
SEQNOS = st.one_of(st.integers(0, 12), st.sampled_from([MAX_SEQNO - 1, MAX_SEQNO]))
DATA = st.binary(max_size=20)
# Few segments, so that keys often begin each other; some sort differently as a whole than segment by segment.
SEGMENTS = st.sampled_from(["a", "a!", "a0", "b", ".c", "\u00e9", "\U0001f980"])
BLOB_KEYS = st.lists(SEGMENTS, min_size=1, max_size=4).map("/".join)

# These tests check results, not durability, so they use a file system in memory if there is one: its syncs are free.
MEMORY_FOLDER = "/dev/shm" if Path("/dev/shm").is_dir() else None


class MemConsensusModel(RuleBasedStateMachine):
    """`self.model` is what the store must hold: per key its versions, ascending."""

    shared: ClassVar[bool] = False  # whether the store outlives its object

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(dir=MEMORY_FOLDER)
        self.store = self.make(Path(self.folder.name))
        self.model: dict[str, list[VersionedData]] = {}

    def make(self, folder: Path) -> Consensus:
        assert folder.is_dir()
        return MemConsensus()

    def teardown(self) -> None:
        self.store.close()
        self.folder.cleanup()

    def current(self, key: str) -> int | None:
        return self.model[key][-1].seqno if key in self.model else None

    @rule(key=CONSENSUS_KEYS, step=st.integers(1, 5), data=DATA)
    def append(self, key: str, step: int, data: bytes) -> None:
        expected = self.current(key)
        self.compare_and_set(key, expected, -1 + step if expected is None else min(expected + step, MAX_SEQNO), data)

    @rule(key=CONSENSUS_KEYS, expected=st.none() | SEQNOS, seqno=SEQNOS, data=DATA)
    def compare_and_set(self, key: str, expected: int | None, seqno: int, data: bytes) -> None:
        new = VersionedData(seqno, data)
        if expected is not None and seqno <= expected:
            with pytest.raises(InvalidSeqNo):
                self.store.compare_and_set(key, expected, new)
        elif expected == self.current(key):
            assert self.store.compare_and_set(key, expected, new) is CaSResult.COMMITTED
            self.model.setdefault(key, []).append(new)
        else:
            assert self.store.compare_and_set(key, expected, new) is CaSResult.EXPECTATION_MISMATCH

    @rule(key=CONSENSUS_KEYS, from_seqno=SEQNOS, limit=st.integers(0, 4))
    def scan(self, key: str, from_seqno: int, limit: int) -> None:
        wanted = [version for version in self.model.get(key, []) if version.seqno >= from_seqno]
        assert self.store.scan(key, from_seqno) == wanted
        assert self.store.scan(key, from_seqno, limit) == wanted[:limit]

    @rule(key=CONSENSUS_KEYS, seqno=SEQNOS)
    def truncate(self, key: str, seqno: int) -> None:
        current = self.current(key)
        if current is None or seqno > current:
            with pytest.raises(InvalidSeqNo):
                self.store.truncate(key, seqno)
            return
        kept = [version for version in self.model[key] if version.seqno >= seqno]
        assert self.store.truncate(key, seqno) == len(self.model[key]) - len(kept)
        self.model[key] = kept

    @rule()
    def reopen(self) -> None:
        if self.shared:
            self.store.close()
            self.store = self.make(Path(self.folder.name))

    @invariant()
    def holds_what_it_must(self) -> None:
        assert sorted(self.store.list_keys()) == sorted(self.model)
        for key, versions in self.model.items():
            assert self.store.head(key) == versions[-1]


class MemBlobModel(RuleBasedStateMachine):
    """`self.model` is what the store must hold: bytes by key."""

    shared: ClassVar[bool] = False  # whether the store outlives its object
    key_may_be_prefix: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(dir=MEMORY_FOLDER)
        self.store = self.make(Path(self.folder.name))
        self.model: dict[str, bytes] = {}

    def make(self, folder: Path) -> Blob:
        assert folder.is_dir()
        return MemBlob()

    def teardown(self) -> None:
        self.store.close()
        self.folder.cleanup()

    @rule(key=BLOB_KEYS, data=DATA)
    def set(self, key: str, data: bytes) -> None:
        conflict = any(other.startswith(f"{key}/") or key.startswith(f"{other}/") for other in self.model)
        if conflict and not self.key_may_be_prefix:
            with pytest.raises(InvalidName):
                self.store.set(key, data)
        else:
            self.store.set(key, data)
            self.model[key] = data

    @rule(key=BLOB_KEYS)
    def get(self, key: str) -> None:
        assert self.store.get(key) == self.model.get(key)

    @rule(key=BLOB_KEYS)
    def delete(self, key: str) -> None:
        data = self.model.pop(key, None)
        assert self.store.delete(key) == (None if data is None else len(data))

    @rule(data=st.data())
    def delete_one_that_is_there(self, data: st.DataObject) -> None:
        if self.model:
            self.delete(data.draw(st.sampled_from(sorted(self.model))))

    @rule(key=BLOB_KEYS, length=st.integers(0, 8))
    def list_prefix(self, key: str, length: int) -> None:
        prefix = key[:length]
        found = [(metadata.key, metadata.size_bytes) for metadata in self.store.list_keys_and_metadata(prefix)]
        wanted = sorted((k for k in self.model if k.startswith(prefix)), key=str.encode)
        assert found == [(k, len(self.model[k])) for k in wanted]

    @rule()
    def reopen(self) -> None:
        if self.shared:
            self.store.close()
            self.store = open_blob(self.store.uri)

    @invariant()
    def holds_what_it_must(self) -> None:
        found = {metadata.key: self.store.get(metadata.key) for metadata in self.store.list_keys_and_metadata("")}
        assert found == self.model


class SqliteConsensusModel(MemConsensusModel):
    shared = True

    def make(self, folder: Path) -> Consensus:
        return SqliteConsensus(folder / "c.db")


class FileBlobModel(MemBlobModel):
    shared = True
    key_may_be_prefix = False

    def make(self, folder: Path) -> Blob:
        return FileBlob(folder, ids=SeededIds(1, ManualClock()))


@pytest.mark.parametrize("model", [MemConsensusModel, SqliteConsensusModel, MemBlobModel, FileBlobModel])
def test_against_a_dict(model: type[RuleBasedStateMachine]) -> None:
    """Sequences long enough to build something up; the profile sets how many of them."""
    run_state_machine_as_test(model, settings=settings(stateful_step_count=20))
