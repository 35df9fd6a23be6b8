"""The specifics of `FileBlob`: links, odd files, temporary files, durability and the verdict on each error."""

from __future__ import annotations

import errno
import logging
import os
import resource
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from persist_core.clock import SystemClock
from persist_core.errors import Determinate, Indeterminate, InvalidName, StorageError
from persist_core.location import BlobMetadata, FileBlob
from persist_core.location.file.blob import MAX_RENAME_ATTEMPTS, ORPHAN_AGE_MS, TEMPORARY
from tests.virtual import ManualClock

HOUR_MS = 3_600_000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def blob(root: Path) -> FileBlob:
    return FileBlob(root)


def temporary_files(root: Path) -> list[str]:
    folder = root / TEMPORARY
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_keys_are_paths(blob: FileBlob, root: Path) -> None:
    blob.set("a/b/c.parquet", b"x")
    assert (root / "a/b/c.parquet").read_bytes() == b"x"
    assert blob.path_of("a/b/c.parquet") == root / "a/b/c.parquet"
    assert temporary_files(root) == []


def test_a_relative_root_is_fixed_when_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blob = FileBlob("root")
    monkeypatch.chdir("/")
    blob.set("a", b"x")
    assert (tmp_path / "root/a").read_bytes() == b"x"


def test_new_files_have_the_rights_that_the_user_asked_for(blob: FileBlob, root: Path) -> None:
    before = os.umask(0o027)
    try:
        blob.set("a", b"x")
    finally:
        os.umask(before)
    assert (root / "a").stat().st_mode & 0o777 == 0o640


# the temporary folder


@pytest.mark.parametrize("key", [TEMPORARY, f"{TEMPORARY}/x", ".Persist-TMP/x"])
def test_the_temporary_folder_is_reserved(blob: FileBlob, key: str) -> None:
    calls: list[Callable[[str], object]] = [
        blob.get,
        lambda k: blob.set(k, b""),
        blob.delete,
        blob.uri_of,
        blob.path_of,
    ]
    for call in calls:
        with pytest.raises(InvalidName, match="reserved"):
            call(key)


def test_the_temporary_folder_is_never_listed(blob: FileBlob, root: Path) -> None:
    (root / TEMPORARY).mkdir(parents=True)
    (root / TEMPORARY / "left-over").write_bytes(b"x")
    blob.set("a", b"x")
    blob.set(f"deeper/{TEMPORARY}/x", b"x")  # only the root's is ours
    blob.set(".persist-tmp2", b"x")
    for prefix in ("", ".", ".persist-tmp", f"{TEMPORARY}/", f"{TEMPORARY}/left"):
        assert f"{TEMPORARY}/left-over" not in [metadata.key for metadata in blob.list_keys_and_metadata(prefix)]
    found = [metadata.key for metadata in blob.list_keys_and_metadata("")]
    assert found == [".persist-tmp2", "a", f"deeper/{TEMPORARY}/x"]


def test_orphans_are_swept_when_they_are_old(root: Path) -> None:
    FileBlob(root).set("a", b"x")
    for name, age_ms in (("old", ORPHAN_AGE_MS + HOUR_MS), ("young", ORPHAN_AGE_MS - HOUR_MS)):
        path = root / TEMPORARY / name
        path.write_bytes(b"x")
        seconds = (SystemClock().now_ms() - age_ms) / 1000
        os.utime(path, (seconds, seconds))
    again = FileBlob(root)
    again.get("a")
    assert temporary_files(root) == ["old", "young"]  # reading changes nothing
    again.set("b", b"x")
    assert temporary_files(root) == ["young"]
    FileBlob(root, clock=ManualClock(SystemClock().now_ms() + 2 * ORPHAN_AGE_MS)).set("b", b"x")
    assert temporary_files(root) == []


# links and odd files


def test_nothing_outside_the_root_is_touched_through_a_link(blob: FileBlob, root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "sub").mkdir(parents=True)
    (outside / "secret").write_bytes(b"secret")
    blob.set("real/a", b"x")
    (root / "dir").symlink_to(outside)
    (root / "real/dir").symlink_to("../../outside/sub")
    (root / "file").symlink_to(outside / "secret")
    (root / "loop").symlink_to("loop")
    (root / "up").symlink_to("..")
    for key in ("dir/secret", "dir/new", "real/dir/x", "up/outside/secret", "loop/x", "up/x/y/z"):
        with pytest.raises(InvalidName, match="symbolic link"):
            blob.get(key)
        with pytest.raises(InvalidName, match="symbolic link"):
            blob.set(key, b"overwritten")
        with pytest.raises(InvalidName, match="symbolic link"):
            blob.delete(key)
    for key in ("file", "dir", "loop"):
        with pytest.raises(InvalidName, match="symbolic link"):
            blob.get(key)
        with pytest.raises(InvalidName, match="symbolic link"):
            blob.delete(key)
    for prefix in ("", "d", "f", "real/"):
        assert [m.key for m in blob.list_keys_and_metadata(prefix)] == [k for k in ["real/a"] if k.startswith(prefix)]
    for prefix in ("dir/", "up/outside/", "real/dir/"):
        with pytest.raises(InvalidName, match="symbolic link"):
            list(blob.list_keys_and_metadata(prefix))
    assert sorted(path.name for path in outside.iterdir()) == ["secret", "sub"]
    assert (outside / "secret").read_bytes() == b"secret"
    assert list((outside / "sub").iterdir()) == []
    assert temporary_files(root) == []


def test_a_temporary_folder_that_is_a_link_is_refused(blob: FileBlob, root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    root.mkdir()
    (root / TEMPORARY).symlink_to(outside)
    with pytest.raises(InvalidName, match="symbolic link"):
        blob.set("a", b"x")
    assert list(outside.iterdir()) == []


def test_set_over_a_link_replaces_the_link(blob: FileBlob, root: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"untouched")
    root.mkdir()
    (root / "a").symlink_to(tmp_path / "outside")
    blob.set("a", b"ours")
    assert blob.get("a") == b"ours"
    assert (tmp_path / "outside").read_bytes() == b"untouched"


def test_the_root_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "disk")
    blob = FileBlob(tmp_path / "root")
    blob.set("a/b", b"x")
    assert (tmp_path / "disk/a/b").read_bytes() == b"x"
    assert list(blob.list_keys_and_metadata("a")) == [BlobMetadata("a/b", 1)]


def test_fifos_and_sockets_do_not_hang_and_are_not_listed(
    blob: FileBlob, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root.mkdir()
    monkeypatch.chdir(root)
    os.mkfifo(root / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        for key in ("fifo", "socket"):
            with pytest.raises(InvalidName, match="not a regular file"):
                blob.get(key)
            with pytest.raises(InvalidName, match="not a regular file"):
                blob.delete(key)
        assert list(blob.list_keys_and_metadata("")) == []


def test_names_that_no_key_can_have_are_left_out_and_said(
    blob: FileBlob, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blob.set("a/ok", b"x")
    (root / "a/new\nline").write_bytes(b"x")
    (root / "a/back\\slash").mkdir()
    Path(os.fsdecode(os.fsencode(root) + b"/a/\xff")).write_bytes(b"x")
    with caplog.at_level(logging.WARNING):
        assert [metadata.key for metadata in blob.list_keys_and_metadata("")] == ["a/ok"]
    assert len(caplog.records) == 3


def test_a_segment_that_the_file_system_refuses(blob: FileBlob, root: Path) -> None:
    for call in (lambda: blob.set("a/" + "k" * 256, b"x"), lambda: blob.get("k" * 256), lambda: blob.delete("k" * 256)):
        with pytest.raises(InvalidName, match="shorter"):
            call()
    assert temporary_files(root) == []


def test_empty_directories_of_others_are_no_keys(blob: FileBlob, root: Path) -> None:
    blob.set("s/a", b"x")
    (root / "s/_temporary/0").mkdir(parents=True)
    assert [metadata.key for metadata in blob.list_keys_and_metadata("")] == ["s/a"]
    assert blob.get("s/_temporary") is None
    assert blob.delete("s/_temporary/0") is None
    assert blob.delete("s/a") == 1
    assert (root / "s/_temporary/0").is_dir()


# durability: what was synced, in which order


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="names of descriptors are read from /proc")
def test_set_syncs_the_value_before_and_the_directories_after(
    blob: FileBlob, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    real_fsync, real_rename, real_unlink = os.fsync, os.rename, os.unlink

    def name_of(descriptor: int) -> str:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        return "." if path == root else "TMP/x" if path.parent.name == TEMPORARY else str(path.relative_to(root.parent))

    def fsync(descriptor: int) -> None:
        events.append(f"sync {name_of(descriptor)}")
        real_fsync(descriptor)

    def rename(*args: Any, **kwargs: Any) -> None:
        events.append("rename")
        real_rename(*args, **kwargs)

    def unlink(*args: Any, **kwargs: Any) -> None:
        events.append("unlink")
        real_unlink(*args, **kwargs)

    blob.set("warm", b"x")
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", rename)
    monkeypatch.setattr(os, "unlink", unlink)
    blob.set("a/b/c", b"x")
    assert events[: events.index("rename")] == ["sync TMP/x", "sync .", "sync root/a"]
    assert events[events.index("rename") :][:2] == ["rename", "sync root/a/b"]
    events.clear()
    blob.delete("a/b/c")
    assert events[:2] == ["unlink", "sync root/a/b"]
    events.clear()
    (root / "s/p=1").mkdir(parents=True)
    (root / "s/p=1/x").write_bytes(b"x")
    (root / "other").write_bytes(b"x")
    blob.make_durable("s/")
    assert events == ["sync root/s/p=1/x", "sync .", "sync root/s", "sync root/s/p=1"]


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EBADF])
def test_a_file_system_that_cannot_flush_directories(root: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    real_fsync = os.fsync

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(code, os.strerror(code))
        real_fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    blob = FileBlob(root)
    blob.set("a/b", b"x")
    blob.make_durable("a/")
    assert blob.get("a/b") == b"x"
    assert blob.delete("a/b") == 1


# verdicts


def fail_with(monkeypatch: pytest.MonkeyPatch, function: str, code: int, after: int = 0) -> None:
    """Make `os.<function>` fail with `code` on its call number `after` (from 0) and later ones."""
    real = getattr(os, function)
    calls = [0]

    def failing(*args: object, **kwargs: object) -> object:
        calls[0] += 1
        if calls[0] > after:
            raise OSError(code, os.strerror(code))
        return real(*args, **kwargs)

    monkeypatch.setattr(os, function, failing)


@pytest.mark.parametrize(
    ("function", "code", "after", "verdict"),
    [
        ("fsync", errno.EIO, 0, Determinate),  # the temporary file: nothing is in place yet
        ("fsync", errno.ENOSPC, 0, Determinate),
        ("fsync", errno.ENOSPC, 1, Determinate),  # the root, before the rename
        ("fsync", errno.EIO, 1, Indeterminate),
        ("fsync", errno.ENOSPC, 2, Indeterminate),  # the directory, after the rename
        ("fsync", errno.EIO, 2, Indeterminate),
        ("rename", errno.ENOSPC, 0, Determinate),
        ("rename", errno.EDQUOT, 0, Determinate),
        ("rename", errno.EXDEV, 0, Determinate),
        ("rename", errno.EROFS, 0, Determinate),
        ("rename", errno.EIO, 0, Indeterminate),
        ("rename", errno.ESTALE, 0, Indeterminate),
        ("mkdir", errno.ENOSPC, 0, Determinate),
        ("open", errno.EMFILE, 0, Determinate),
    ],
)
def test_a_failing_set(
    root: Path, monkeypatch: pytest.MonkeyPatch, function: str, code: int, after: int, verdict: type[StorageError]
) -> None:
    blob = FileBlob(root)
    blob.set("other/x", b"old")
    with monkeypatch.context() as patch:
        fail_with(patch, function, code, after)
        with pytest.raises(StorageError) as caught:
            blob.set("a/b" if function == "mkdir" else "other/x", b"new")
    assert type(caught.value) is verdict
    assert os.strerror(code) in str(caught.value)
    assert blob.uri in str(caught.value)
    if verdict is Determinate:
        assert blob.get("other/x") == b"old"
        assert blob.get("a/b") is None
    assert temporary_files(root) == []
    blob.set("other/x", b"again")
    assert blob.get("other/x") == b"again"


@pytest.mark.parametrize(
    ("function", "code", "verdict"),
    [
        ("unlink", errno.EACCES, Determinate),
        ("unlink", errno.EIO, Indeterminate),
        ("fsync", errno.ENOSPC, Indeterminate),
        ("fsync", errno.EIO, Indeterminate),
    ],
)
def test_a_failing_delete(
    blob: FileBlob, monkeypatch: pytest.MonkeyPatch, function: str, code: int, verdict: type[StorageError]
) -> None:
    blob.set("a/b", b"old")
    with monkeypatch.context() as patch:
        fail_with(patch, function, code)
        with pytest.raises(StorageError) as caught:
            blob.delete("a/b")
    assert type(caught.value) is verdict
    if verdict is Determinate:
        assert blob.get("a/b") == b"old"


def test_failing_reads_are_determinate(blob: FileBlob, monkeypatch: pytest.MonkeyPatch) -> None:
    blob.set("a/b", b"old")
    with monkeypatch.context() as patch:
        fail_with(patch, "open", errno.EIO)
        with pytest.raises(Determinate):
            blob.get("a/b")
        with pytest.raises(Determinate):
            list(blob.list_keys_and_metadata("a"))
    with monkeypatch.context() as patch:
        fail_with(patch, "scandir", errno.EIO)
        with pytest.raises(Determinate):
            list(blob.list_keys_and_metadata("a"))


def test_a_directory_that_keeps_vanishing_is_given_up(
    blob: FileBlob, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def rename(*args: object, **kwargs: object) -> None:
        calls.append((args, kwargs))
        raise FileNotFoundError(errno.ENOENT, "gone")

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", rename)
        with pytest.raises(Determinate, match="vanished"):
            blob.set("a/b", b"x")
    assert len(calls) == MAX_RENAME_ATTEMPTS
    assert temporary_files(root) == []


def test_a_value_too_large_is_determinate_and_leaves_nothing(blob: FileBlob, root: Path) -> None:
    """The real thing: the kernel cuts the write off in the middle (here by a limit on the size of files)."""
    blob.set("a", b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(Determinate):
            blob.set("a", bytes(1_000_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert blob.get("a") == b"old"
    assert temporary_files(root) == []
