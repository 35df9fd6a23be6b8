"""Scans of a real file system: findings, reports and refusals."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from persist_core.errors import Determinate
from persist_core.location.mem import MemBlob
from persist_core.sources.files import FileSource
from persist_core.sources.input_file import FrozenInput
from tests.core.sources.drop_folder import collection, drop, names

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")


@contextmanager
def unprivileged() -> Iterator[None]:
    """Root may list any folder, so use another user's rights for the test."""
    was = os.geteuid()
    if was == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(was)


def test_dates_that_do_not_parse_are_reported_not_dropped(tmp_path: Path) -> None:
    for name in ("date=2026-01-01/a.jsonl", "date=2026-02-30/b.jsonl", "date=monday/c.jsonl", "date=2026-1-1/d.jsonl"):
        drop(tmp_path, name)
    freeze = FileSource(collection(tmp_path, "date={date:%Y-%m-%d}/*.jsonl"), MemBlob()).freeze(None, until=None)
    assert names(freeze) == ["date=2026-01-01/a.jsonl"]
    assert sorted(file.path for file in freeze.unmatched) == [
        "date=2026-02-30/b.jsonl", "date=2026-1-1/d.jsonl", "date=monday/c.jsonl",
    ]  # fmt: skip
    assert all("its date can't be read as %Y-%m-%d; skipped" in line for line in freeze.notices())


def test_unfinished_files_are_left_alone_and_counted(tmp_path: Path) -> None:
    for name in (
        "a.csv",
        "a.csv.tmp",
        "b.csv.part",
        ".c.csv",
        "_d.csv",
        "e.csv~",
        "_tmp/f.csv",
        ".g/h.csv",
        "i.csv.crc",
    ):
        drop(tmp_path, name)
    freeze = FileSource(collection(tmp_path, "**/*csv*"), MemBlob()).freeze(None, until=None)
    assert names(freeze) == ["a.csv"]
    assert freeze.unfinished == 8
    assert "8 names of unfinished files or folders" in freeze.notices()[-1]


def test_a_private_folder_is_entered_if_the_path_names_it(tmp_path: Path) -> None:
    drop(tmp_path, "_export/.v1/a.jsonl")
    freeze = FileSource(collection(tmp_path, "_export/.v1/*.jsonl"), MemBlob()).freeze(None, until=None)
    assert names(freeze) == ["a.jsonl"]


def test_any_depth(tmp_path: Path) -> None:
    for name in ("a.jsonl", "x/b.jsonl", "x/y/z/c.jsonl", "x/in/d.jsonl", "in/in/e.jsonl"):
        drop(tmp_path, name)
    blob = MemBlob()
    every = FileSource(collection(tmp_path, "**/*.jsonl"), blob).freeze(None, until=None)
    assert names(every) == ["a.jsonl", "in/in/e.jsonl", "x/b.jsonl", "x/in/d.jsonl", "x/y/z/c.jsonl"]
    inner = FileSource(collection(tmp_path, "**/in/**/*.jsonl"), blob).freeze(None, until=None)
    assert names(inner) == ["in/in/e.jsonl", "x/in/d.jsonl"]


def test_links_inside_the_tree_are_followed_others_are_refused(tmp_path: Path) -> None:
    secret = drop(tmp_path, "secret.jsonl")
    drop(tmp_path, "in/store/a.jsonl")
    (tmp_path / "in" / "file.jsonl").symlink_to("store/a.jsonl")
    (tmp_path / "in" / "steals.jsonl").symlink_to(secret)
    (tmp_path / "in" / "broken.jsonl").symlink_to("nothing")
    (tmp_path / "in" / "loop.jsonl").symlink_to("loop.jsonl")
    (tmp_path / "in" / "outside").symlink_to(tmp_path)
    (tmp_path / "in" / "again").symlink_to("store")
    (tmp_path / "in" / "store" / "up").symlink_to("..")
    freeze = FileSource(collection(tmp_path, "in/**/*.jsonl"), MemBlob()).freeze(None, until=None)
    assert names(freeze) == ["again/a.jsonl", "file.jsonl", "store/a.jsonl"]
    reasons = {file.path: file.reason for file in freeze.unmatched}
    assert "leaves" in reasons["steals.jsonl"]
    assert "leaves" in reasons["outside/"]
    assert "folder that holds it" in reasons["store/up/"]
    assert "folder that holds it" in reasons["again/up/"]
    assert "link to nothing" in reasons["broken.jsonl"]
    assert "loop.jsonl" in reasons


def test_the_root_itself_may_be_a_link(tmp_path: Path) -> None:
    drop(tmp_path, "v1/a.jsonl")
    (tmp_path / "current").symlink_to("v1")
    freeze = FileSource(collection(tmp_path, "current/*.jsonl"), MemBlob()).freeze(None, until=None)
    assert [file.path for file in freeze.frozen.files] == [f"{tmp_path}/current/a.jsonl"]


@pytest.mark.parametrize("name", ["a\nb.jsonl", "a\x1b[2J.jsonl", "back\\slash.jsonl"])
def test_names_that_no_reader_can_be_trusted_with(tmp_path: Path, name: str) -> None:
    drop(tmp_path, name)
    freeze = FileSource(collection(tmp_path), MemBlob()).freeze(None, until=None)
    assert names(freeze) == []
    assert len(freeze.unmatched) == 1
    assert freeze.notices()[0].isprintable()


def test_a_name_that_is_not_utf8(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.jsonl")).write_bytes(b"{}")
    freeze = FileSource(collection(tmp_path), MemBlob()).freeze(None, until=None)
    assert [file.reason for file in freeze.unmatched] == [
        "its name holds a control character, a backslash or bytes that are not UTF-8"
    ]
    assert freeze.notices()[0].isascii()


@pytest.mark.parametrize(
    "name", ["a b.jsonl", "ünï.jsonl", "a'; DROP TABLE x;--.jsonl", "{a}[b]*.jsonl", "%2e%2e.jsonl", "a:b.jsonl"]
)
def test_odd_names_that_are_fine(tmp_path: Path, name: str) -> None:
    source = FileSource(collection(tmp_path), MemBlob())
    drop(tmp_path, name)
    freeze = source.freeze(None, until=None)
    assert names(freeze) == [name]
    assert FrozenInput.decode(freeze.frozen.encode()) == freeze.frozen
    assert names(source.freeze(source.advance(None, freeze.frozen, era=0), until=None)) == []


def test_folders_and_pipes_that_match_are_reported(tmp_path: Path) -> None:
    drop(tmp_path, "spark.jsonl/part-0.jsonl")
    os.mkfifo(tmp_path / "pipe.jsonl")
    freeze = FileSource(collection(tmp_path), MemBlob()).freeze(None, until=None)
    assert {file.path: file.reason for file in freeze.unmatched} == {
        "spark.jsonl": "it is a folder; end source.path in /* to read the files in it",
        "pipe.jsonl": "it is not a regular file",
    }


def test_a_source_folder_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Determinate, match=r"none.*does not exist or is not a folder; create or mount it"):
        FileSource(collection(tmp_path, "none/*.jsonl"), MemBlob()).freeze(None, until=None)


@pytest.mark.parametrize("path", ["*/*.jsonl", "shut/*.jsonl", "shut/inner/*.jsonl"])
def test_a_folder_that_may_not_be_listed_is_an_error(path: str) -> None:
    with tempfile.TemporaryDirectory() as folder:  # pytest's own folders are closed to other users
        root = Path(folder)
        root.chmod(0o755)
        drop(root, "shut/inner/a.jsonl")
        (root / "shut").chmod(0)
        try:
            with unprivileged(), pytest.raises(Determinate, match=r"shut.*give this user access to it"):
                FileSource(collection(root, path), MemBlob()).freeze(None, until=None)
        finally:
            (root / "shut").chmod(0o755)
