"""Corrections of a collection whose folder was changed: the replay begins in the new one, and names files otherwise."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from persist_core.config.collection import CollectionConfig
from persist_core.contents.batch import BatchDescription
from persist_core.sources.input_file import FrozenInput
from tests.core.maintenance.rebuilt_shard import names, ok, rebuilt
from tests.core.maintenance.test_reprocess import corrected
from tests.core.protocol.restored_shard import Collection


@pytest.fixture
def shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Collection:
    """One that has read `old/1.txt`. Its records are kept by paths below the folder."""

    def files_of(self: Collection, description: BatchDescription) -> list[str]:
        data = None if description.input_key is None else self.client.blob.get(description.input_key)
        files = () if data is None else FrozenInput.decode(data).files
        return [os.path.relpath(each.path, tmp_path) for each in files]

    monkeypatch.setattr(Collection, "files_of", files_of)
    made = Collection(tmp_path)
    for folder in ("old", "new"):
        (tmp_path / folder).mkdir()
    read_from(made, "old/*.txt")
    put(made, "old/1.txt", 1, "old")
    made.run(10)
    return made


def read_from(shard: Collection, path: str, **more: object) -> None:
    changed = {"source": {"path": path, "format": "json", **more}}
    shard.config = CollectionConfig.model_validate({**shard.config.model_dump(mode="json"), **changed})


def put(shard: Collection, path: str, key: int, name: str) -> None:
    shard.drop(path, [ok(("eu", key), name)])
    (shard.folder / path).write_text(name)


CHANGES = {
    "wider": ("*/*.txt", (), ("new/1.txt",), ()),
    "replaced": ("new/*.txt", ("old",), ("1.txt",), ("../old/1.txt",)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_replay_names_files_as_the_shard_does(shard: Collection, change: str) -> None:
    path, replaces, replaced, gone = CHANGES[change]
    read_from(shard, path, replaces=list(replaces))
    put(shard, "new/1.txt", 2, "old")
    put(shard, "new/2.txt", 3, "old")
    shard.run(20)
    put(shard, "new/1.txt", 2, "better")
    found = corrected(shard, 0, takes_back_gone=bool(gone))
    assert (found.replaced, found.gone, found.new) == (replaced, gone, ())
    expected = {("eu", 2): "better", ("eu", 3): "old", **({} if gone else {("eu", 1): "old"})}
    assert names(shard) == expected
    assert not corrected(shard, 0).is_needed
    shard.check()


def test_copies_in_a_new_folder_differ_in_nothing(shard: Collection) -> None:
    """Before a run has read there, and afterwards."""
    os.utime(shard.folder / "old/1.txt", (1, 1))
    shard.run(15)
    read_from(shard, "new/*.txt", moved_from="old")
    put(shard, "new/1.txt", 1, "old")
    for until in (20, 30):
        assert not corrected(shard, 0).is_needed
        shard.run(until)


@pytest.mark.parametrize("change", CHANGES)
def test_a_rebuild_reads_all_files_of_a_new_folder(shard: Collection, change: str) -> None:
    path, replaces, _, gone = CHANGES[change]
    read_from(shard, path, replaces=list(replaces))
    put(shard, "new/1.txt", 2, "new")
    put(shard, "new/2.txt", 3, "new")
    shard.run(20)
    rebuilt(shard, takes_back_gone=bool(gone))
    assert names(shard) == {("eu", 2): "new", ("eu", 3): "new", **({} if gone else {("eu", 1): "old"})}
    shard.check()
