"""One listing of a folder tree: files that match a pattern, and files that look like input but are skipped.

Every file that matches loosely is reported: as found, as unmatched with the reason, or as unfinished. Unfinished files
have names that writers use until they rename the files: names that start with `.` or `_`, and the suffixes in
`UNFINISHED_SUFFIXES`. The scan does not enter folders whose names start with `.` or `_`, unless the pattern contains
their names before its first wildcard.

A symbolic link is followed only within the pattern's root: a drop folder must not give access to other files. So it is
again when the files are read (`persist_core.sources.feed.LocalFeed.check`).
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from persist_core.config.path_pattern import HIDDEN, PathPattern
from persist_core.errors import Determinate
from persist_core.sources.root import holds

UNFINISHED_SUFFIXES = (
    ".tmp", ".temp", ".part", ".partial", ".filepart", ".inprogress", ".crdownload", ".crc", ".swp", "._COPYING_", "~",
)  # fmt: skip
MAX_DEPTH = 64  # folders below the root; a deeper tree is a mistake
MAX_ENTRIES = 20_000_000  # names examined in one scan: minutes of listing; more needs a narrower pattern


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file that matches: its path below the root, its size and times of last change, its date (ms) if it has one.

    An object on S3 has an ETag, and no `ctime_ns`.
    """

    below_root: str
    size_bytes: int
    mtime_ms: int
    ctime_ns: int
    date_ms: int | None
    etag: str = ""


@dataclass(frozen=True, slots=True)
class UnmatchedFile:
    """A file that looks like input but can't be read. `str` of it is `path: reason`."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{ascii(self.path)[1:-1]}: {self.reason}; skipped"


@dataclass
class Scan:
    """The result of one scan, unordered. `requests`: of a listing on S3."""

    found: list[FoundFile] = field(default_factory=list)
    unmatched: list[UnmatchedFile] = field(default_factory=list)
    unfinished: int = 0
    requests: int = 0

    def look(self, pattern: PathPattern, file: FoundFile) -> None:
        """Take a file of a name that matches loosely, dated by `pattern`, unless its name or its date is not legal."""
        name = file.below_root
        if any(c < " " or c in "\\\x7f" or "\ud800" <= c <= "\udfff" for c in name):
            self.reject(name, "its name holds a control character, a backslash or bytes that are not UTF-8")
            return
        date_ms = pattern.date_ms(name)
        if pattern.date_format is not None and date_ms is None:
            self.reject(name, f"its date can't be read as {pattern.date_format}")
        else:
            self.found.append(replace(file, date_ms=date_ms))

    def reject(self, path: str, reason: str) -> None:
        """Report a file that looks like input."""
        self.unmatched.append(UnmatchedFile(path, reason))


def is_unfinished(name: str) -> bool:
    """True for the names of files that are not to be read yet."""
    return name.startswith(HIDDEN) or name.endswith(UNFINISHED_SUFFIXES)


@dataclass(frozen=True, slots=True)
class _Folder:
    """A folder to list: the segments of the pattern that may follow, its real path, and the paths left by links."""

    path: str
    below_root: str
    states: frozenset[int]
    real: str
    left: tuple[str, ...]
    depth: int


def scan(pattern: PathPattern) -> Scan:
    """Examine every file below `pattern.root` once. Raises `Determinate` if a folder can't be listed."""
    return _Scanner(pattern).run()


class _Scanner:
    def __init__(self, pattern: PathPattern) -> None:
        self._pattern = pattern
        self._segments = pattern.segments
        self._last = len(pattern.segments) - 1
        self._real_root = os.path.realpath(pattern.root)
        self._result = Scan()

    def run(self) -> Scan:
        root = self._pattern.root
        try:
            is_folder = Path(root).is_dir()
        except OSError as error:
            raise Determinate(f"source folder {root}: {error.strerror}; give this user access to it") from error
        if not is_folder:
            raise Determinate(
                f"source folder {root} (of source.path {self._pattern.text!r}) does not exist or is not a folder;"
                " create or mount it, or correct source.path"
            )
        pending = [_Folder(root, "", self._closure({0}), self._real_root, (), 0)]
        entries = 0
        while pending:  # bounded by MAX_ENTRIES
            folder = pending.pop()
            for entry in _list(folder.path, is_root=folder.depth == 0):
                entries += 1
                if entries > MAX_ENTRIES:
                    raise Determinate(f"{root} holds more than {MAX_ENTRIES} names; narrow source.path")
                below = self._look(folder, entry)
                if below is not None:
                    pending.append(below)
        return self._result

    def _look(self, folder: _Folder, entry: os.DirEntry[str]) -> _Folder | None:
        below_root = f"{folder.below_root}{entry.name}"
        is_match = any(
            state == self._last and self._segments[state].loose.fullmatch(entry.name) for state in folder.states
        )
        try:
            if entry.is_dir():
                inner = self._enter(folder, entry, f"{below_root}/")
                if is_match and inner is None and not self._segments[self._last].bare:
                    self._result.reject(below_root, "it is a folder; end source.path in /* to read the files in it")
                return inner
            if is_match:
                self._take(entry, below_root)
        except FileNotFoundError:
            pass  # it was moved during the scan; a later scan finds it in its new place
        except OSError as error:
            if error.errno == errno.ELOOP:
                if is_match:
                    self._result.reject(below_root, "it is a symbolic link to itself")
                return None
            raise Determinate(f"{entry.path!a}: {error.strerror or error}; give this user access to it") from error
        return None

    def _enter(self, folder: _Folder, entry: os.DirEntry[str], below_root: str) -> _Folder | None:
        states = self._closure(self._next(folder.states, entry.name))
        if not states:
            return None
        if entry.name.startswith(HIDDEN):
            self._result.unfinished += 1
            return None
        real, left = f"{folder.real}/{entry.name}", folder.left
        if entry.is_symlink():
            real, left = os.path.realpath(entry.path), (*folder.left, folder.real)
            if not holds(self._real_root, real):
                self._result.reject(below_root, f"it is a symbolic link that leaves {self._pattern.root}")
                return None
            if any(holds(real, place) for place in left):
                self._result.reject(below_root, "it is a symbolic link to a folder that holds it")
                return None
        if folder.depth >= MAX_DEPTH:
            self._result.reject(below_root, f"it lies more than {MAX_DEPTH} folders deep")
            return None
        return _Folder(entry.path, below_root, states, real, left, folder.depth + 1)

    def _take(self, entry: os.DirEntry[str], below_root: str) -> None:
        name = entry.name
        if is_unfinished(name):
            self._result.unfinished += 1
            return
        if entry.is_symlink() and not holds(self._real_root, os.path.realpath(entry.path)):
            self._result.reject(below_root, f"it is a symbolic link that leaves {self._pattern.root}")
            return
        try:
            facts = entry.stat()
        except FileNotFoundError:
            if Path(entry.path).is_symlink():
                self._result.reject(below_root, "it is a symbolic link to nothing")
            return
        if not stat.S_ISREG(facts.st_mode):
            self._result.reject(below_root, "it is not a regular file")
        else:
            mtime_ms = facts.st_mtime_ns // 1_000_000
            found = FoundFile(below_root, facts.st_size, mtime_ms, facts.st_ctime_ns, None)
            self._result.look(self._pattern, found)

    def _next(self, states: Iterable[int], name: str) -> set[int]:
        """The segments that may match below a folder with this name."""
        after: set[int] = set()
        for state in states:
            if self._segments[state].any_depth:
                after.add(state)
            elif state < self._last and self._segments[state].loose.fullmatch(name):
                after.add(state + 1)
        return after

    def _closure(self, states: set[int]) -> frozenset[int]:
        """`**` may also stand for no folder at all."""
        every = set(states)
        for state in sorted(states):
            while self._segments[state].any_depth and state < self._last:
                state += 1
                every.add(state)
        return frozenset(every)


def _list(path: str, *, is_root: bool) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            yield from entries
    except FileNotFoundError:
        if is_root:
            raise Determinate(f"source folder {path} disappeared during the listing; check its mount") from None
    except OSError as error:
        raise Determinate(f"{path!a} can't be listed: {error.strerror}; give this user access to it") from error
