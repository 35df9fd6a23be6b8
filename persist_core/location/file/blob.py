"""`file:` blobs: a folder, in which the key `a/b/c` is the file `<root>/a/b/c`, so that Spark reads and writes it too.

    set:  .persist-tmp/<id>.<key> - write - fsync | rename onto <root>/a/b/c - fsync of every directory on the way
          '------ Determinate if it fails ------'  '--- Indeterminate, unless the error says otherwise ---'

1. A reader sees the old or the new value: a value is written whole and flushed to disk before it is renamed into place.
   What a killed `set` has written is an unfinished upload (`UploadStore`); its name says of which key.
2. No call leaves the root: directories are opened one by one, relative to their parent, and never through a symbolic
   link. A link is refused by name (`InvalidName`) and not listed.
3. Directories are not keys. `set` makes them, `delete` removes emptied ones; each tolerates the other.

Limits of the file system remain, each with a clear error: a key cannot be both a value and the directory of
others; a segment of a key is at most 255 bytes on most file systems. On a case-insensitive one (macOS by default)
keys that differ only in case are one key; this project's own keys never do.

Listings show every file, dot-files included (Spark leaves `.x.crc` and `_SUCCESS`), only not `.persist-tmp` of the
root. Files whose names no key can have (not UTF-8, control characters) are left out, with a warning in the log.
"""

from __future__ import annotations

import errno
import itertools
import logging
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO
from urllib.parse import quote, unquote

from persist_core.clock import Clock, SystemClock
from persist_core.errors import Determinate, Indeterminate, InvalidName, InvalidUri
from persist_core.ids import Ids, RandomIds
from persist_core.location.blob import (
    BlobMetadata,
    UnfinishedUpload,
    UnfinishedUploads,
    check_blob_data,
    check_blob_key,
    check_blob_prefix,
)
from persist_core.location.file.folder import create_directory, diagnose_file_system, sync_directory, sync_names
from persist_core.location.finding import Finding

TEMPORARY = ".persist-tmp"
MAX_NAMED_CHARS = 200  # of a key, in the name of a temporary file, which ends at 255 bytes

# A rename finds its directory gone only if a delete pruned it in the microseconds since we opened it; so many in a row
# means that something else removes directories here.
MAX_RENAME_ATTEMPTS = 32

# A temporary file of this age belongs to a process that died: the longest write of one value takes minutes.
ORPHAN_AGE_MS = 24 * 60 * 60 * 1000
MAX_ORPHANS_PER_SWEEP = 1000
MAX_UPLOADS = 10_000  # of one listing; GC comes again

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # O_NONBLOCK: opening a FIFO must not hang
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

# The errors of rename and unlink that mean nothing was done; after any other (EIO above all) that is unknown.
_DID_NOTHING = frozenset(
    {
        errno.EACCES,
        errno.EBUSY,
        errno.EDQUOT,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOENT,
        errno.ENOMEM,
        errno.ENOSPC,
        errno.EPERM,
        errno.EROFS,
        errno.EXDEV,
    }
)
_BAD_NAME = {errno.ENAMETOOLONG, errno.EILSEQ}

_logger = logging.getLogger(__name__)


class FileBlob:
    """`Blob`, `FileTaker`, `UploadStore` and `Examinable` in a folder.

    Safe to share between threads and processes; holds nothing open between calls.
    """

    def __init__(self, root: str | Path, *, ids: Ids | None = None, clock: Clock | None = None) -> None:
        self._root = Path(root).absolute()
        self._ids = ids or RandomIds()
        self._clock = clock or SystemClock()
        self._swept = False
        with suppress(OSError):  # without the right to look at it, each call fails with its error
            if self._root.exists() and not self._root.is_dir():
                raise InvalidUri(f"{self.uri} is a file; expected a folder, or a path where a folder can be created")

    def get(self, key: str) -> bytes | None:
        *directories, name = _segments(key)
        with self._verdict("get", key), self._directory(directories, key) as parent:
            if parent is None or _stat_value(parent, name, key) is None:
                return None
            try:
                descriptor = os.open(name, _READ, dir_fd=parent)
            except FileNotFoundError:
                return None
            with os.fdopen(descriptor, "rb") as value:
                return value.read()

    def set(self, key: str, data: bytes) -> None:
        check_blob_data(key, data)
        self._set(key, lambda file: file.write(data))

    def set_file(self, key: str, path: Path) -> None:
        with path.open("rb") as source:
            self._set(key, lambda file: shutil.copyfileobj(source, file))

    def _set(self, key: str, write: Callable[[IO[bytes]], object]) -> None:
        *directories, name = _segments(key)
        with self._verdict("set", key):
            self._sweep_once()
            staged = self._stage(key, write)
        try:
            with self._verdict("set", key, harmless=_DID_NOTHING):
                self._move_into_place(staged, directories, name, key)
        finally:
            with suppress(OSError):  # it exists only if the move failed; if this fails too, a sweep removes it
                staged.unlink()

    def delete(self, key: str) -> int | None:
        *directories, name = _segments(key)
        with self._verdict("delete", key, harmless=_DID_NOTHING), self._directory(directories, key) as parent:
            if parent is None:
                return None
            found = _stat_value(parent, name, key)
            if found is None:
                return None
            try:
                os.unlink(name, dir_fd=parent)
            except FileNotFoundError:
                return None  # another delete was faster, and that one returns the size
            with self._verdict("delete", key, harmless=frozenset()):
                sync_names(parent)
        self._prune(directories)
        return found.st_size

    def list_keys_and_metadata(self, prefix: str) -> Iterator[BlobMetadata]:
        """See `Blob`. A weak snapshot: files that appear or vanish while the listing runs may or may not be in it."""
        check_blob_prefix(prefix)
        return self._walk(prefix)

    def unfinished_uploads(self, prefix: str) -> UnfinishedUploads:
        """See `UploadStore`: temporary files of writers that were killed, or are at work."""
        check_blob_prefix(prefix)
        found: list[UnfinishedUpload] = []
        folder = self._root / TEMPORARY
        with self._verdict("list uploads of", prefix), suppress(FileNotFoundError):
            for name in os.listdir(folder):  # noqa: PTH208 - names only
                key = unquote(name.partition(".")[2])
                if key and key.startswith(prefix) and len(found) < MAX_UPLOADS:
                    with suppress(FileNotFoundError):
                        found.append(UnfinishedUpload(key, name, (folder / name).lstat().st_mtime_ns // 1_000_000))
        return UnfinishedUploads(tuple(found))

    def abort_upload(self, upload: UnfinishedUpload) -> bool:
        with self._verdict("abort an upload of", upload.key, harmless=_DID_NOTHING):
            try:
                (self._root / TEMPORARY / upload.upload_id).unlink()
            except FileNotFoundError:
                return False
        return True

    def path_of(self, key: str) -> Path:
        """The file that holds `key`, whether or not it exists."""
        return self._root.joinpath(*_segments(key))

    def uri_of(self, key: str) -> str:
        """`file://` and the plain path: Hadoop's `Path` does not decode `%20`. Readers expand `*?[]{}` in it."""
        return f"file://{self.path_of(key)}"

    def make_durable(self, prefix: str) -> None:
        """Flush all files under `prefix` and the directories on the way: Spark closes its files without a sync."""
        directories: set[Path] = set()
        for metadata in self.list_keys_and_metadata(prefix):
            path = self.path_of(metadata.key)
            with self._verdict("make_durable", metadata.key), suppress(FileNotFoundError):
                descriptor = os.open(path, _READ)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
            directories.update(list(path.parents)[: len(path.relative_to(self._root).parts)])
        for directory in sorted(directories):
            with self._verdict("make_durable", str(directory)):
                sync_directory(directory)

    def diagnose(self, clock: Clock) -> Iterator[Finding]:
        del clock  # it is ours
        yield from diagnose_file_system(self._root)

    def close(self) -> None:
        """No-op: no descriptor outlives its call."""

    @property
    def uri(self) -> str:
        return self._root.as_uri()

    @property
    def path(self) -> Path:
        """The folder, whether or not it exists yet."""
        return self._root

    @contextmanager
    def _directory(self, directories: list[str], key: str, *, create: bool = False) -> Iterator[int | None]:
        """A descriptor of the directory `directories`; `None` if it does not exist or was just pruned."""
        if create:
            create_directory(self._root)
        try:
            descriptor: int | None = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            descriptor = None
        try:
            for name in directories:
                if descriptor is None:
                    break
                parent, descriptor = descriptor, None
                try:
                    descriptor = _enter(parent, name, key, create=create)
                finally:
                    os.close(parent)
            yield descriptor
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _stage(self, key: str, write: Callable[[IO[bytes]], object]) -> Path:
        folder = self._root / TEMPORARY
        create_directory(self._root)
        create_directory(folder, 0o777)  # all who may write to the root may write here
        if folder.is_symlink():
            raise InvalidName(f"{folder} is a symbolic link; expected a folder: remove the link")
        staged = folder / f"{self._ids.uuid7()}.{quote(key, safe='')[:MAX_NAMED_CHARS]}"
        descriptor = os.open(staged, _CREATE, 0o666)
        try:
            with os.fdopen(descriptor, "wb") as file:
                write(file)
                file.flush()
                os.fsync(descriptor)
        except BaseException:
            with suppress(OSError):
                staged.unlink()
            raise
        return staged

    def _move_into_place(self, staged: Path, directories: list[str], name: str, key: str) -> None:
        for _attempt in range(MAX_RENAME_ATTEMPTS):
            with self._directory(directories, key, create=True) as parent:
                if parent is None:
                    continue
                try:
                    os.rename(staged, name, dst_dir_fd=parent)
                except FileNotFoundError:
                    if not staged.exists():
                        said = "GC or an erasure has deleted its temporary file; try again"
                        raise Determinate(f"{self.uri}: set of {key!r}: {said}") from None
                    continue
                except IsADirectoryError as error:
                    raise InvalidName(
                        f"blob key {key!r}: other keys lie below it, so it cannot hold a value"
                    ) from error
                with self._verdict("set", key, harmless=frozenset()):
                    sync_names(parent)
                return
        raise Determinate(
            f"{self.uri}: set of {key!r}: its directory vanished {MAX_RENAME_ATTEMPTS} times; this call changed "
            "nothing; find out which other program removes directories there"
        )

    def _prune(self, directories: list[str]) -> None:
        """Remove the directories on the way that are now empty. Best effort: readers do not see empty directories."""
        for depth in range(len(directories), 0, -1):
            try:
                self._root.joinpath(*directories[:depth]).rmdir()
            except OSError:
                return

    def _walk(self, prefix: str) -> Iterator[BlobMetadata]:
        """Depth first, each directory sorted as if its subdirectories' names ended in `/`: the order of whole keys."""
        *directories, _beginning = prefix.split("/")
        with self._verdict("list", prefix), self._directory(directories, prefix) as start:
            if start is None:
                return
        base = "".join(f"{directory}/" for directory in directories)
        pending = [name for name in self._children(base) if name.startswith(prefix)]
        while pending:  # bounded by the files in the folder: each name is taken once
            name = pending.pop()
            if name.endswith("/"):
                pending.extend(self._children(name))
                continue
            with self._verdict("list", name):
                try:
                    found = (self._root / name).stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
            yield BlobMetadata(name, found.st_size, found.st_mtime_ns // 1_000_000)

    def _children(self, base: str) -> list[str]:
        """Keys of the files and, with `/` at the end, of the directories in `base`, in descending order."""
        found = []
        with self._verdict("list", base):
            try:
                with os.scandir(self._root / base) as entries:
                    for entry in entries:
                        key = base + entry.name
                        is_directory = entry.is_dir(follow_symlinks=False)
                        if not (is_directory or entry.is_file(follow_symlinks=False)) or _is_temporary(key):
                            continue
                        try:
                            check_blob_key(key)
                        except InvalidName as error:
                            _logger.warning("left out of the listing of %s: %s", self.uri, error)
                            continue
                        found.append(f"{key}/" if is_directory else key)
            except FileNotFoundError:
                return []  # pruned since its parent was read
        return sorted(found, key=lambda name: name.encode("utf-8"), reverse=True)

    def _sweep_once(self) -> None:
        """Remove temporary files that killed processes left behind, once per object. Best effort."""
        if self._swept:
            return
        self._swept = True
        oldest_ns = (self._clock.now_ms() - ORPHAN_AGE_MS) * 1_000_000
        with suppress(OSError), os.scandir(self._root / TEMPORARY) as entries:
            for entry in itertools.islice(entries, MAX_ORPHANS_PER_SWEEP):
                if entry.stat(follow_symlinks=False).st_mtime_ns < oldest_ns:
                    Path(entry.path).unlink(missing_ok=True)

    @contextmanager
    def _verdict(self, action: str, key: str, *, harmless: frozenset[int] | None = None) -> Iterator[None]:
        """Turn an `OSError` into `Determinate` if its errno is in `harmless` (`None`: all), else `Indeterminate`."""
        try:
            yield
        except OSError as error:
            if error.errno in _BAD_NAME:
                raise InvalidName(f"blob key {key!r}: {self.uri}: {error.strerror}; choose a shorter name") from None
            if harmless is None or error.errno in harmless:
                raise Determinate(
                    f"{self.uri}: {action} of {key!r}: {error.strerror}; this call changed nothing; "
                    "check the folder, its rights and its free space"
                ) from error
            raise Indeterminate(
                f"{self.uri}: {action} of {key!r}: {error.strerror}; it may or may not have happened: repeat the call"
            ) from error


def _segments(key: str) -> list[str]:
    """The path of `key` below the root; `InvalidName` if it is not a key or would be in the temporary folder."""
    check_blob_key(key)
    if _is_temporary(key):
        raise InvalidName(f"blob key {key!r}: {TEMPORARY!r} is reserved for values that are being written")
    return key.split("/")


def _is_temporary(key: str) -> bool:
    return key.split("/", 1)[0].casefold() == TEMPORARY  # casefold: on macOS it may be the same folder


def _enter(parent: int, name: str, key: str, *, create: bool) -> int | None:
    """A descriptor of the subdirectory `name`, or `None` if it does not exist (with `create`: if it was pruned)."""
    try:
        if create:
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=parent)
            sync_names(parent)  # even if it was there: its creator may not have reached this line yet
        return os.open(name, _DIRECTORY, dir_fd=parent)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        if _stat_value(parent, name, key) is not None and create:
            raise InvalidName(f"blob key {key!r}: {name!r} holds a value, so no key can lie below it") from None
        return None


def _stat_value(parent: int, name: str, key: str) -> os.stat_result | None:
    """The status of the regular file `name`; `None` for a directory or nothing. `InvalidName` for links and sockets."""
    try:
        found = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(found.st_mode):
        return None
    if not stat.S_ISREG(found.st_mode):
        what = "a symbolic link" if stat.S_ISLNK(found.st_mode) else "not a regular file"
        raise InvalidName(f"blob key {key!r}: {name!r} is {what}; a location holds plain files only: remove it")
    return found
