"""`fsck` finds every kind of damage that it documents, and nothing in an intact shard."""

from __future__ import annotations

import errno
import random
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from persist_core.compaction.spill import Spill
from persist_core.contents.batch import BatchDescription, SourceFrontier
from persist_core.contents.parts import PARQUET, PartFormat, errs_schema, updates_schema
from persist_core.errors import ConfigError, CorruptArtifact, Indeterminate
from persist_core.gc.collect import collect
from persist_core.handles.client import PersistClient
from persist_core.keys import LOCATION
from persist_core.location.blob import BlobMetadata
from persist_core.location.consensus import VersionedData
from persist_core.location.mem import MemBlob, MemConsensus
from persist_core.location.open import OpenLocation
from persist_core.maintenance import check_contents
from persist_core.maintenance.fsck import FsckReport, fsck, lost_shards, repair
from persist_core.maintenance.violations import MAX_SHOWN, STORAGE
from persist_core.protocol.fork import fork
from persist_core.protocol.fork_records import list_forks
from persist_core.schema import CollectionSchema
from tests.core.handles.test_read import SCHEMA, history
from tests.core.protocol.restored_shard import SHARD, Collection
from tests.plain_commit import table_of
from tests.sim.simulator.write_stage import ArrowParts
from tests.virtual import ManualClock, SeededIds

Row = tuple[Any, ...]


class PartFormatOf(PartFormat):
    """A part format whose bytes are always the same."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def encode(self, table: pa.Table) -> bytes:
        assert len(table)
        return self._data

    def index(self, data: bytes) -> None:  # noqa: ARG002 - there are no pages
        return None

    def decode(self, data: bytes, columns: list[str], written: CollectionSchema) -> pa.Table:
        raise AssertionError(f"not read with this format: {len(data)} {columns} {written}")

    def batches(
        self, data: bytes, columns: list[str], written: CollectionSchema, rows: int, *, is_packed: bool = False
    ) -> Iterator[pa.Table]:
        raise AssertionError(f"not read with this format: {len(data)} {columns} {written} {rows} {is_packed}")


class Location:
    def __init__(self) -> None:
        clock = ManualClock(1)
        self.blob, self.consensus = MemBlob(), MemConsensus()
        self.client = PersistClient(OpenLocation(self.blob, self.consensus), clock, SeededIds(1, clock))
        self.epoch = 0
        self.sources: dict[str, SourceFrontier] = {}

    def append(self, lower: int, upper: int, oks: list[Row], errs: list[Row] | None = None) -> None:
        self.epoch += 1
        writer = self.client.open_writer("s")
        description = BatchDescription(
            "s",
            lower,
            upper,
            token=f"t{self.epoch}",
            checkpoint_id="c",
            epoch=self.epoch,
            parent_id=None,
            writer="w",
            sources=self.sources,
        )
        key = writer.stage(
            description,
            SCHEMA,
            self.client.ids.uuid7(),
            table_of(oks, updates_schema(SCHEMA)),
            table_of(errs or [], errs_schema(SCHEMA)),
        )
        writer.compare_and_append(self.client.staged_manifest(key), key)

    def checks(self) -> set[str]:
        violations = fsck(self.client, "s").violations
        assert not [each.message for each in violations if "run `persist fsck" in each.message.lower()]
        return {violation.check for violation in violations}


@pytest.mark.parametrize("seed", range(5))
def test_a_right_history_is_clean(seed: int) -> None:
    location = Location()
    updates = history(seed, 20)
    location.append(0, 9, [row for row in updates if row[4] < 9])
    location.append(9, 20, [row for row in updates if row[4] >= 9], [(None, None, "key", "m", None, b"x", 10, 1)])
    report = fsck(location.client, "s")
    assert report.is_clean, report.violations
    assert report.updates == len(updates) + 1


@pytest.mark.parametrize(
    ("oks", "errs", "check"),
    [
        ([(1, "eu", None, "a", 0, 1), (1, "eu", None, "b", 1, 1)], [], "one_value_per_key"),
        ([(1, "eu", None, "a", 0, -1)], [], "one_value_per_key"),
        ([(1, "eu", None, "a", 0, 2)], [], "one_value_per_key"),
        ([(1, "eu", None, "a", 0, 1), (1, "eu", None, "b", 1, -1)], [], "retraction_carries_its_value"),
        ([(1, "eu", None, "a", 0, 1)], [(1, "eu", "value", "m", b"k", b"p", 1, 1)], "one_value_per_key"),
        (
            [],
            [(None, None, "key", "m", b"k", b"p", 1, 1), (None, None, "key", "m", b"k", b"q", 2, 1)],
            "one_value_per_key",
        ),
    ],
)
def test_broken_contents_are_found(oks: list[Row], errs: list[Row], check: str) -> None:
    location = Location()
    location.append(0, 9, oks, errs)
    assert location.checks() == {check}


@pytest.mark.parametrize("seed", range(8))
def test_ranges_of_keys_have_the_findings_of_all(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    location, chance, updates = Location(), random.Random(seed), history(seed, 20)
    for _ in range(seed % 4):
        place = chance.randrange(len(updates))
        *row, note, time, diff = updates.pop(place)
        if change := chance.choice([(note, time, -diff), ("other", time, diff), None]):
            updates.insert(place, (*row, *change))
    errs: list[Row] = [
        (*chance.choice([(None, None), (n, "eu")]), "value", "m", chance.choice([None, b"k"]), b"p", time, diff)
        for n, time, diff in ((7, 1, 1), (7, 3, -1), (8, 2, 1), (9, 5, chance.choice([1, -1])))
    ]
    for lower, upper in ((0, 9), (9, 20)):
        oks = [row for row in updates if lower <= row[4] < upper]
        location.append(lower, upper, oks, [row for row in errs if lower <= row[6] < upper])
    whole = fsck(location.client, "s")
    monkeypatch.setattr(check_contents, "ROWS_AT_ONCE", chance.choice([0, 5, 20]))
    monkeypatch.setattr(check_contents, "READ_ROWS", chance.choice([1, 7, 100]))
    parts = fsck(location.client, "s")

    def comparable(report: FsckReport) -> Counter[tuple[str, str]]:
        return Counter((each.check, each.message.partition("; the update before")[0]) for each in report.violations)

    assert comparable(parts) == comparable(whole)
    assert parts.updates == whole.updates == len(updates) + len(errs)


def test_few_rows_are_in_memory_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    location, found = Location(), list[int]()
    original = check_contents._check_updates

    def of(oks: pa.Table, *rest: Any) -> None:
        found.append(oks.nbytes)
        original(oks, *rest)

    monkeypatch.setattr(check_contents, "_check_updates", of)
    monkeypatch.setattr(check_contents, "BYTES_AT_ONCE", 1 << 20)
    for time in range(4):
        location.append(time, time + 1, [(n, "eu", None, "x" * 10_000, time, 1) for n in range(time, 400, 4)])
    assert fsck(location.client, "s").is_clean
    assert sum(found) > 4_000_000
    assert max(found) < 1.2 * (1 << 20)


def test_a_full_local_disk_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    location = Location()
    for n in range(4):
        location.append(n, n + 1, [(n, "eu", None, "a", n, 1)])

    def full(_: Spill) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Spill, "_write", full)
    monkeypatch.setattr(check_contents, "ROWS_AT_ONCE", 1)
    (violation,) = fsck(location.client, "s").violations
    assert (violation.check, "No space left" in violation.message) == (STORAGE, True)
    monkeypatch.setattr(tempfile, "tempdir", "/dev/null/no folder")
    (violation,) = fsck(location.client, "s").violations
    assert (violation.check, "Not a directory" in violation.message) == (STORAGE, True)


def test_an_err_that_replaces_an_ok_is_clean() -> None:
    location = Location()
    location.append(
        0,
        9,
        [(1, "eu", None, "a", 0, 1), (1, "eu", None, "a", 3, -1), (1, "eu", None, "b", 5, 1)],
        [(1, "eu", "value", "m", b"k", b"p", 3, 1), (1, "eu", "value", "other", b"k", b"p", 5, -1)],
    )
    assert location.checks() == set()


def test_missing_and_altered_files_are_found() -> None:
    location = Location()
    location.append(0, 9, [(1, "eu", None, "a", 0, 1)])
    keys = [entry.key for entry in location.blob.list_keys_and_metadata("s/batches/")]
    (part,) = [key for key in keys if key.endswith(".parquet")]
    (manifest,) = [key for key in keys if key.endswith("manifest.json")]
    data = location.blob.get(part)
    assert data is not None
    location.blob.set(part, data + b"x")
    assert location.checks() == {"part"}
    location.blob.delete(part)
    assert location.checks() == {"part"}
    location.blob.set(manifest, b"{}")
    assert location.checks() == {"manifest"}
    location.blob.delete(manifest)
    assert location.checks() == {"manifest"}
    head = location.consensus.head("s")
    assert head is not None
    location.consensus.compare_and_set("s", head.seqno, VersionedData(head.seqno + 1, b"garbage"))
    assert location.checks() == {"state", "manifest"}, "the version before it is still examined"


def test_no_damage_hides_another_and_nothing_is_raised() -> None:
    location = Location()
    for n in range(4):
        location.append(n, n + 1, [(n, "eu", None, "a", n, 1)])
    parts = [entry.key for entry in location.blob.list_keys_and_metadata("s/batches/") if "part=" in entry.key]
    manifests = [batch.manifest_key for batch in location.client.state("s").batches]
    of_manifest = {key.partition("/_persist_part")[0]: key for key in parts}
    first, second, third = (of_manifest[key.removesuffix("/manifest.json")] for key in manifests[:3])
    location.blob.set(first, b"")
    location.blob.delete(second)
    location.blob.set(third, b"PAR1" + bytes(100))
    location.blob.set(manifests[3], b'{"version": 1}')
    location.blob.set("s/conflicts/x.json", b"\xff")
    location.blob.set("s/forks/twin/x.json", b"[]")
    location.blob.set("s/inputs/x.json", b"{}")
    location.blob.set("s/checkpoints/_latest", b"\xff\xfe")
    location.blob.set("s/sources/files/x.json.zst", b"zst")
    messages = [violation.message for violation in fsck(location.client, "s").violations]
    for damaged in (
        first,
        second,
        third,
        manifests[3],
        "x.json",
        "twin/x.json",
        "inputs/x.json",
        "_latest",
        "x.json.zst",
    ):
        assert any(damaged in message for message in messages), damaged
    assert len(messages) == 9


def test_a_part_with_the_right_digest_and_no_rows_is_found() -> None:
    """Its writer staged bytes that are not Parquet: the digest matches, and only decoding detects it."""
    location = Location()
    garbage = PartFormatOf(b"PAR1 this is no Parquet file PAR1")
    location.client.part_format = garbage
    location.append(0, 9, [(1, "eu", None, "a", 0, 1)])
    location.client.part_format = PARQUET
    (violation,) = fsck(location.client, "s").violations
    assert violation.check == "part"


def test_an_old_version_of_the_state_is_examined_too() -> None:
    location = Location()
    location.append(0, 9, [(1, "eu", None, "a", 0, 1)])
    location.append(9, 10, [])
    versions = location.consensus._store.values
    versions["s"] = [VersionedData(0, b"garbage"), *versions["s"][1:]]
    (violation,) = fsck(location.client, "s").violations
    assert (violation.check, "version 0 of the state" in violation.message) == ("state", True)


def test_a_store_that_fails_is_a_violation() -> None:
    location = Location()
    location.append(0, 9, [(1, "eu", None, "a", 0, 1)])

    class Down(MemBlob):
        def get(self, key: str) -> bytes | None:
            raise Indeterminate(f"no answer for {key}")

        def list_keys_and_metadata(self, prefix: str) -> Iterator[BlobMetadata]:
            raise Indeterminate(f"no answer for {prefix}")

    down = PersistClient(OpenLocation(Down(), location.consensus), location.client.clock, location.client.ids)
    report = fsck(down, "s")
    assert not report.is_clean
    assert {violation.check for violation in report.violations} == {STORAGE}


def test_violations_of_one_check_are_counted_beyond_the_first() -> None:
    location = Location()
    location.append(0, 9, [(n, "eu", None, "a", 0, -1) for n in range(MAX_SHOWN + 5)])
    shown = [v.message for v in fsck(location.client, "s").violations if v.check == "one_value_per_key"]
    assert len(shown) == MAX_SHOWN + 1
    assert shown[-1] == "and 5 more"


def test_a_damaged_ledger_and_a_damaged_checkpoint_are_found() -> None:
    location = Location()
    segment = {"key": "s/sources/files/0.json.zst", "files": 1, "sha256": "0" * 64, "size_bytes": 1}
    offsets = {"root": "/in", "base": "/in", "files": 1, "size_bytes": 1, "segments": [segment]}
    location.sources = {"files": SourceFrontier("files", offsets)}
    location.append(0, 9, [])
    (lost,) = fsck(location.client, "s").violations  # once, though the state and its commit both name it
    assert (lost.check, str(segment["key"]) in lost.message) == ("source_progress", True)
    location.blob.set("s/checkpoints/_latest", b"not an id")
    assert location.checks() == {"source_progress", "latest"}


def test_commits_undone_by_an_older_backup_are_found(tmp_path: Path) -> None:
    """The blobs know more than the state: `_latest` and its checkpoint are of a commit that no longer happened."""
    shard = Collection(tmp_path)
    shard.run(10)
    backup = shard.location.consensus.head(SHARD)
    undone = shard.run(20)
    assert fsck(shard.client, SHARD).is_clean
    assert backup is not None
    before = restored(shard, {SHARD: backup.seqno, LOCATION: 0})
    found = fsck(before, SHARD).violations
    assert {violation.check for violation in found} == {"undone", "latest"}
    assert all(undone in violation.message for violation in found)
    again = shard.beside(SHARD)
    again.client = before
    with pytest.raises(CorruptArtifact, match=rf"has lost commits: .* names {undone} of epoch 2, .* ends with epoch 1"):
        again.run(20)
    with pytest.raises(CorruptArtifact, match="has lost commits"):
        collect(before, SHARD)
    repair(before, SHARD)
    assert collect(before, SHARD).is_done
    assert {violation.check for violation in fsck(before, SHARD).violations} == {"undone"}
    assert again.run(20) == undone  # the input is still there, so the same commit is made again
    assert fsck(before, SHARD).is_clean


def test_a_shard_whose_state_is_gone_does_not_begin_in_silence(tmp_path: Path) -> None:
    shard = Collection(tmp_path)
    shard.run(10)
    newest = shard.run(20)
    elsewhere = restored(shard, {})
    again = shard.beside(SHARD)
    again.client = elsewhere
    with pytest.raises(ConfigError, match="not the stores of one location"):
        again.run(30)
    before = restored(shard, {LOCATION: 0})
    assert (lost_shards(shard.client), lost_shards(before)) == ([], [SHARD])
    (found,) = fsck(before, SHARD).violations
    assert (found.check, newest in found.message) == ("undone", True)
    again = shard.beside(SHARD)
    again.client = before
    with pytest.raises(CorruptArtifact, match=r"lost commits: .* has no commit"):
        again.run(30)
    assert before.machine.fetch(SHARD) is None
    assert shard.checkpointer.read_latest() == newest
    assert "begins again, empty" in repair(before, SHARD).not_repaired[0]
    assert {violation.check for violation in fsck(before, SHARD).violations} == {"undone"}
    again.run(30)
    assert fsck(before, SHARD).is_clean


def restored(shard: Collection, kept: Mapping[str, int]) -> PersistClient:
    """Its location, whose consensus has only these keys, each up to a seqno."""
    consensus = MemConsensus()
    for key, newest in kept.items():
        for version in shard.location.consensus.scan(key, 0, newest + 1):
            assert consensus.compare_and_set(key, version.seqno - 1 if version.seqno else None, version)
    location = OpenLocation(shard.location.blob, consensus)
    return PersistClient(location, shard.clock, shard.client.ids, part_format=ArrowParts())


def test_a_fork_whose_record_is_gone_is_found(tmp_path: Path) -> None:
    shard = Collection(tmp_path)
    first, _ = shard.run(10), shard.run(20)
    done = fork(shard.client, SHARD, first, "twin", writer="w")
    again = shard.beside("twin")
    again.run(30)
    second = again.checkpointer.list_checkpoints()[-1]
    fork(shard.client, "twin", second, "third", writer="w")
    for name in ("twin", "third"):
        assert fsck(shard.client, name).is_clean
    records = list_forks(shard.client.blob, SHARD)
    assert [(record.fork, record.checkpoint_id) for record in records] == [("third", second), ("twin", first)]
    assert [record.keys for record in list_forks(shard.client.blob, "twin")] == [
        (again.client.state("twin").batches[-1].manifest_key,)
    ]
    assert done.commit.restored_from == first
    shard.client.blob.delete(next(record.key for record in records if record.fork == "twin"))
    assert [violation.check for violation in fsck(shard.client, "twin").violations] == ["fork"]
    assert fsck(shard.client, "third").is_clean
    shard.client.blob.set(records[0].key, b"{}")
    with pytest.raises(CorruptArtifact, match="record of a fork"):
        list_forks(shard.client.blob, SHARD)
    assert [violation.check for violation in fsck(shard.client, "third").violations] == ["fork"]
