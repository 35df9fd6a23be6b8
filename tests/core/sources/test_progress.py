"""The facts that restore, fsck, forks and GC need from a shard's progress, found from the stored progress only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from persist_core.config.collection import FILE_POSITION
from persist_core.contents.batch import SourceFrontier
from persist_core.errors import CorruptArtifact, InvalidInput, UnknownVersion
from persist_core.location.mem import MemBlob
from persist_core.sources.files import FileSource
from persist_core.sources.frozen import load_frozen, stage_frozen
from persist_core.sources.input_file import FrozenInput
from persist_core.sources.ledger import segments_of
from persist_core.sources.registry import progress_of
from persist_core.sources.shards import FrozenShards, Refreshed
from persist_core.sources.source import ConsumedInput, Progress
from tests.core.sources.drop_folder import collection, drop


class Files:
    """A shard that has consumed files in three commits: three segments, of 4, 2 and 1 files."""

    def __init__(self, folder: Path) -> None:
        self.blob, self.frontiers = MemBlob(), list[SourceFrontier]()
        source, frontier = FileSource(collection(folder), self.blob), None
        for names in ("abcd", "ef", "g"):
            for name in names:
                drop(folder, f"{name}.jsonl")
            frontier = source.advance(frontier, source.freeze(frontier, until=None).frozen, era=0)
            self.frontiers.append(frontier)

    def progress(self) -> Progress:
        (found,) = progress_of(self.blob, "orders", {"files": self.frontiers[-1]}).values()
        return found


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_progress_of_files_needs_its_segments(files: Files) -> None:
    keys = files.progress().needed_keys()
    assert keys == {segment.key for segment in segments_of(files.frontiers[-1])}
    assert len(keys) == 3
    assert all(files.blob.get(key) is not None for key in keys)
    assert list(files.progress().verify()) == []
    files.progress().check_restorable()


def test_every_damaged_segment_is_named(files: Files) -> None:
    first, second, third = segments_of(files.frontiers[-1])
    files.blob.delete(first.key)
    files.blob.set(third.key, b"garbage")
    findings = list(files.progress().verify())
    assert len(findings) == 2
    assert first.key in findings[0]
    assert third.key in findings[1]
    assert second.key not in "".join(findings)


def test_progress_that_is_malformed_is_a_finding(files: Files) -> None:
    malformed: list[dict[str, Any]] = [
        {},
        {"segments": []},
        {**files.frontiers[-1].offsets, "segments": [{"key": "x"}]},
    ]
    for offsets in malformed:
        (progress,) = progress_of(files.blob, "orders", {"files": SourceFrontier("files", offsets)}).values()
        assert len(list(progress.verify())) == 1


def test_a_file_in_two_segments_is_a_finding(files: Files) -> None:
    offsets = files.frontiers[-1].offsets
    twice = SourceFrontier("files", {**offsets, "segments": [*offsets["segments"], offsets["segments"][0]]})
    (progress,) = progress_of(files.blob, "orders", {"files": twice}).values()
    (finding,) = progress.verify()
    assert "in two segments" in finding


def test_inputs_that_a_restore_reads_again(files: Files) -> None:
    assert [each.name for each in files.progress().consumed_since(files.frontiers[1])] == ["g.jsonl"]
    again = files.progress().consumed_since(files.frontiers[0])
    assert [each.name for each in again] == ["e.jsonl", "f.jsonl", "g.jsonl"]
    assert len(files.progress().consumed_since(None)) == 7


def test_progress_of_a_view() -> None:
    blob = MemBlob()
    key = stage_frozen(
        blob, "v", FrozenShards("SELECT 1", 6, {"a": 10, "b": 7}, {"a": 1, "b": 2}, {"a": None, "b": None}), era=0
    )
    stored = Refreshed(6, key, {"a": 10, "b": 7}, {"a": None, "b": None}).to_source()
    (progress,) = progress_of(blob, "v", {"shards": stored}).values()
    assert progress.needed_keys() == {key}
    assert list(progress.verify()) == []
    assert progress.consumed_since(None) == (ConsumedInput("a"), ConsumedInput("b"))
    with pytest.raises(InvalidInput, match=r"v is a view.*restore its inputs"):
        progress.check_restorable()
    other = Refreshed(6, key, {"a": 10}, {"a": None}).to_source()
    (progress,) = progress_of(blob, "v", {"shards": other}).values()
    assert key in next(progress.verify())
    blob.delete(key)
    assert key in next(progress.verify())


def test_a_source_of_a_newer_release_is_named() -> None:
    with pytest.raises(UnknownVersion, match="shard x consumes a source of type 'kafka'"):
        progress_of(MemBlob(), "x", {"topic": SourceFrontier("kafka", {})})


def test_a_frozen_input_is_what_its_key_says(tmp_path: Path) -> None:
    blob = MemBlob()
    drop(tmp_path, "a.jsonl")
    frozen = FileSource(collection(tmp_path), blob).freeze(None, until=None).frozen
    key = stage_frozen(blob, "orders", frozen, era=0)
    assert load_frozen(blob, key, FrozenInput) == frozen
    data = blob.get(key)
    assert data is not None
    for wrong in (data[:-1], data.replace(b"a.jsonl", b"b.jsonl"), FrozenInput(()).encode()):
        blob.set(key, wrong)
        with pytest.raises(CorruptArtifact, match=key):
            load_frozen(blob, key, FrozenInput)
    blob.delete(key)
    with pytest.raises(CorruptArtifact, match=f"{key} is missing"):
        load_frozen(blob, key, FrozenInput)


def test_the_position_of_a_record_of_a_file() -> None:
    assert [(field.name, field.type) for field in FILE_POSITION] == [
        ("file", "string"),
        ("block", "bigint"),
        ("row", "bigint"),
    ]
