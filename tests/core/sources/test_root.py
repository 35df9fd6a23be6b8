"""The root of `source.path` is part of a file's identity: what happens if it changes."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persist_core.config.collection import CollectionConfig
from persist_core.contents.batch import SourceFrontier
from persist_core.errors import ConfigError
from persist_core.location.mem import MemBlob
from persist_core.sources.files import FileSource
from persist_core.sources.ledger import Ledger
from tests.core.sources.drop_folder import collection, drop


class Tree:
    """A collection over folders below one temporary folder; `consume` is one commit."""

    def __init__(self, top: Path) -> None:
        self.top, self.blob = top, MemBlob()
        self.frontier: SourceFrontier | None = None

    def config(self, path: str, **said: str | list[str]) -> CollectionConfig:
        source: dict[str, Any] = {"path": path, "format": "debezium-json", **said}
        return collection(self.top, source=source)

    def pending(self, path: str, **said: str | list[str]) -> list[str]:
        """Files that the next commit consumes, as paths below `top`."""
        freeze = FileSource(self.config(path, **said), self.blob).freeze(self.frontier, until=None)
        return sorted(str(Path(file.path).relative_to(self.top)) for file in freeze.frozen.files)

    def source(self, path: str, **said: str | list[str]) -> FileSource:
        return FileSource(self.config(path, **said), self.blob)

    def changed(self, path: str, **said: str | list[str]) -> list[str]:
        """Files that are reported as changed since they were consumed."""
        return [each.relative for each in self.source(path, **said).freeze(self.frontier, until=None).changed]

    def consume(self, path: str, **said: str | list[str]) -> list[str]:
        source = self.source(path, **said)
        freeze = source.freeze(self.frontier, until=None)
        self.frontier = source.advance(self.frontier, freeze.frozen, era=0, moved=freeze.moved)
        return sorted(str(Path(file.path).relative_to(self.top)) for file in freeze.frozen.files)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """One consumed file, `old/a.jsonl`."""
    tree = Tree(tmp_path)
    drop(tmp_path, "old/a.jsonl")
    assert tree.consume("old/*.jsonl") == ["old/a.jsonl"]
    return tree


def test_another_root_is_refused_with_the_remedy(tree: Tree) -> None:
    drop(tree.top, "new/a.jsonl")
    with pytest.raises(ConfigError) as caught:
        tree.pending("new/*.jsonl")
    text = str(caught.value)
    assert "collection orders: source.path: found" in text
    for part in (f"{tree.top}/new", f"`moved_from: {tree.top}/old`", f"`replaces: {tree.top}/old`"):
        assert part in text


def test_moved_files_are_not_read_again(tree: Tree) -> None:
    (tree.top / "old").rename(tree.top / "new")
    drop(tree.top, "new/b.jsonl")
    assert tree.consume("new/*.jsonl", moved_from="old") == ["new/b.jsonl"]
    drop(tree.top, "new/c.jsonl")
    assert tree.consume("new/*.jsonl", moved_from="old") == ["new/c.jsonl"]  # the field may stay
    assert tree.pending("new/*.jsonl") == []  # or go


def test_other_files_are_all_read_and_the_old_ones_stay_known(tree: Tree) -> None:
    drop(tree.top, "new/a.jsonl")
    assert tree.consume("new/*.jsonl", replaces=f"{tree.top}/old") == ["new/a.jsonl"]
    assert tree.pending("new/*.jsonl", replaces="old") == []
    drop(tree.top, "old/b.jsonl")
    assert tree.consume("old/*.jsonl", replaces=["old", "new"]) == ["old/b.jsonl"]


def test_what_is_said_of_one_root_says_nothing_of_the_next(tree: Tree) -> None:
    (tree.top / "old").rename(tree.top / "new")
    tree.consume("new/*.jsonl", moved_from="old")
    drop(tree.top, "third/a.jsonl")
    for said in ({}, {"moved_from": "old"}, {"replaces": "old"}):
        with pytest.raises(ConfigError, match=f"`moved_from: {tree.top}/new`"):
            tree.pending("third/*.jsonl", **said)


def test_files_moved_within_their_tree(tree: Tree) -> None:
    (tree.top / "old" / "in").mkdir()
    (tree.top / "old" / "a.jsonl").rename(tree.top / "old" / "in" / "a.jsonl")
    assert tree.pending("old/in/*.jsonl") == ["old/in/a.jsonl"]  # another path: another file
    assert tree.pending("old/in/*.jsonl", moved_from="old") == []


@pytest.mark.parametrize(("old", "new"), [("o", "o/in"), ("o/in", "o"), ("o/a", "o/a/b/c")])
def test_a_field_that_stays_in_the_file_moves_once(tmp_path: Path, old: str, new: str) -> None:
    tree = Tree(tmp_path)
    tree.consume(f"{drop(tmp_path, f'{old}/x.jsonl').parent}/*.jsonl")
    (tmp_path / new).mkdir(parents=True, exist_ok=True)
    (tmp_path / old / "x.jsonl").rename(tmp_path / new / "x.jsonl")
    for path in (f"{new}/*.jsonl", f"{old}/**/*.jsonl", f"{new}/**/*.jsonl", f"{old}/*.jsonl", f"{new}/*.jsonl"):
        assert tree.consume(path, moved_from=old) == []
    (tmp_path / new).rename(tmp_path / "else")  # a later move is one more
    assert tree.consume("else/**/*.jsonl", moved_from=[old, new]) == []
    (tmp_path / old).mkdir(parents=True, exist_ok=True)
    (tmp_path / "else/x.jsonl").rename(tmp_path / old / "x.jsonl")
    assert tree.consume(f"{old}/*.jsonl", moved_from="else") == []
    (tmp_path / new).mkdir(parents=True, exist_ok=True)
    (tmp_path / old / "x.jsonl").rename(tmp_path / new / "x.jsonl")
    assert tree.consume(f"{new}/*.jsonl", moved_from=[old, "else"]) == []


def test_copied_files_are_not_changed_ones(tree: Tree) -> None:
    """Copies have other times of change, and are known by these from then on."""
    drop(tree.top, "old/b.jsonl")
    drop(tree.top, "old/empty.jsonl", b"")
    drop(tree.top, "old/longer.jsonl", mtime_ms=1_000)
    source, before = tree.source("old/*.jsonl"), tree.frontier
    freeze = source.freeze(before, until=None)
    aside = {file for file in freeze.frozen.files if file.relative == "b.jsonl"}
    tree.frontier = consumed = source.set_aside(source.advance(before, freeze.frozen, era=0), aside, era=0)
    for name in ("a.jsonl", "b.jsonl", "empty.jsonl", "longer.jsonl"):
        drop(tree.top, f"new/{name}", (tree.top / "old" / name).read_bytes(), mtime_ms=2_000)
    drop(tree.top, "new/longer.jsonl", b"longer now", mtime_ms=2_000)
    path, said = "new/*.jsonl", {"moved_from": "old"}
    assert set(tree.source(path, **said).inputs_now(consumed, None).replaced) == {"b.jsonl", "longer.jsonl"}
    assert tree.changed(path, **said) == ["longer.jsonl"]
    assert tree.consume(path, **said) == ["new/b.jsonl"], "it was set aside, and may be a corrected one"
    assert tree.changed(path, **said) == ["longer.jsonl"]
    assert tree.consume(path) == []
    now = tree.source(path, **said)
    assert set(now.inputs_now(tree.frontier, None).replaced) == {"longer.jsonl"}
    (tree.top / "new/a.jsonl").unlink()
    assert not now.inputs_now(tree.frontier, consumed).gone, "consumed before: only its time differs"
    assert set(now.inputs_now(tree.frontier, before).replaced) == {"longer.jsonl"}
    drop(tree.top, "new/a.jsonl", mtime_ms=3_000)
    assert tree.changed(path) == ["a.jsonl", "longer.jsonl"]


def test_a_wider_and_then_a_narrower_path_needs_no_word(tree: Tree) -> None:
    drop(tree.top, "old/x/b.jsonl")
    assert tree.consume("**/*.jsonl") == ["old/x/b.jsonl"]
    drop(tree.top, "old/x/c.jsonl")
    assert tree.consume("old/x/*.jsonl") == ["old/x/c.jsonl"]
    assert tree.pending("**/*.jsonl") == []


def test_a_link_that_points_elsewhere_is_the_same_root(tmp_path: Path) -> None:
    drop(tmp_path, "v1/a.jsonl")
    (tmp_path / "current").symlink_to("v1")
    tree = Tree(tmp_path)
    tree.consume("current/*.jsonl")
    drop(tmp_path, "v2/a.jsonl")
    drop(tmp_path, "v2/b.jsonl")
    (tmp_path / "current").unlink()
    (tmp_path / "current").symlink_to("v2")
    assert tree.pending("current/*.jsonl") == ["current/b.jsonl"]


def test_a_move_without_new_files_is_committed_too(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    drop(tmp_path, "old/a.jsonl")
    tree.consume("old/*.jsonl")
    (tmp_path / "old").rename(tmp_path / "new")
    source = FileSource(tree.config("new/*.jsonl", moved_from="old"), tree.blob)
    assert source.has_other_place(tree.frontier)
    assert tree.consume("new/*.jsonl", moved_from="old") == []
    assert not source.has_other_place(tree.frontier)
    assert tree.frontier is not None
    assert tree.frontier.offsets["root"] == f"{tmp_path}/new"


@pytest.mark.parametrize("field", ["moved_from", "replaces"])
@pytest.mark.parametrize("folder", ["", "a/*", "{date:%Y}", "hdfs://host/x", "~/x", "a\nb"])
def test_folders_that_no_path_starts_at(tmp_path: Path, field: str, folder: str) -> None:
    with pytest.raises(ValueError, match=r"found .*, expected .*; "):
        Tree(tmp_path).config("*.jsonl", **{field: folder})


def test_a_folder_can_not_be_both(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="each folder in moved_from or in replaces"):
        Tree(tmp_path).config("*.jsonl", moved_from="a", replaces="a")


@given(st.lists(st.sampled_from(["drop", "commit", "move", "copy", "replace", "return"]), max_size=30))
def test_every_file_is_consumed_once_wherever_its_folder_goes(steps: list[str]) -> None:
    """Each file contains its own number, so that a moved file is recognized by its contents."""
    with tempfile.TemporaryDirectory() as folder:
        tree, consumed = Tree(Path(folder)), list[bytes]()
        now, abandoned = "f0", list[str]()
        said: dict[str, str | list[str]] = {}
        for number, step in enumerate([*steps, "commit"], start=1):
            (tree.top / now).mkdir(exist_ok=True)
            if step == "drop":
                drop(tree.top, f"{now}/{number % 3}.jsonl.{number}", str(number).encode())
                continue
            consumed += [(tree.top / name).read_bytes() for name in tree.consume(f"{now}/*.jsonl.*", **said)]
            assert tree.changed(f"{now}/*.jsonl.*", **said) == []
            before = now
            if step in ("move", "copy"):
                now, said = f"f{number}", {"moved_from": before}
                (tree.top / before).rename(tree.top / now)
                for file in (tree.top / now).iterdir() if step == "copy" else ():
                    os.utime(file, (number, number))
            elif step == "replace" or (step == "return" and abandoned):
                now, said = abandoned.pop() if step == "return" else f"f{number}", {"replaces": before}
                abandoned.append(before)
        dropped = [str(number).encode() for number, step in enumerate(steps, start=1) if step == "drop"]
        assert sorted(consumed) == sorted(dropped)
        assert len(Ledger(tree.blob, "orders").consumed(tree.frontier)) == len(dropped)
