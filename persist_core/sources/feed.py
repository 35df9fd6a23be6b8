"""The place of the files of a collection: what mint and the jobs ask of a folder, or of a bucket (`s3_feed`).

    scan ─> which files are there      freeze ─> as they are now, distinct from later ones
    check ─> are they still so?        opened ─> the bytes that were frozen, or `SourceChanged`

All else about files (what is due, what was consumed, order, limits, positions) does not depend on it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from persist_core.config.path_pattern import PathPattern
from persist_core.errors import SourceChanged
from persist_core.sources.file_scan import Scan, scan
from persist_core.sources.input_file import InputFile
from persist_core.sources.root import holds, join
from persist_core.time_text import format_time


@dataclass(frozen=True)
class Wanted:
    """The files that a listing is for.

    `start_ms`, `end_ms`: dated files need to be listed only in `[start_ms, end_ms)`; all if `None`. `is_known`
    is true for a file (its path below the root, its size, its time of change) that need not be in the result.
    `known_names` are some paths below the root, sorted: where a long listing can be cut into pieces.
    """

    dates: tuple[int, int] | None = None
    is_known: Callable[[str, int, int], bool] = lambda *_: False
    known_names: Sequence[str] = ()


class Feed(Protocol):
    """The files of one collection."""

    def scan(self, wanted: Wanted) -> Scan:
        """The files that match. Raises `StorageError` if they can't be listed."""

    def freeze(self, files: Sequence[InputFile]) -> list[InputFile]:
        """These files, listed just now, with all that tells them from later ones; without missing files."""

    def check(self, files: Sequence[InputFile]) -> None:
        """Raise `SourceChanged` naming a file of a frozen input that can no longer be read as it was. Reads no
        contents."""

    def opened(self, file: InputFile) -> IO[bytes]:
        """The bytes of a file of a frozen input, as they are stored. The caller closes it."""


@dataclass(frozen=True)
class LocalFeed:
    """`Feed` of a folder."""

    pattern: PathPattern

    def scan(self, wanted: Wanted) -> Scan:  # noqa: ARG002 - to list a folder costs little
        """See `Feed`. Raises `Determinate` if a folder can't be listed."""
        return scan(self.pattern)

    def freeze(self, files: Sequence[InputFile]) -> list[InputFile]:
        """The scan has found all."""
        return list(files)

    def check(self, files: Sequence[InputFile]) -> None:
        """Raise `SourceChanged` naming a file that was deleted, changed, replaced or moved since it was frozen, or that
        a link now takes outside of the folder that `source.path` starts at. Reads no contents.

        Called before and after all files are read. Not found: a folder that was exchanged for another one and put back
        between the two calls.
        """
        root = self.pattern.root
        real_root = os.path.realpath(root)
        folders: dict[str, str] = {}  # real paths; one look for each folder, not for each file
        for file in files:
            folder, name = os.path.split(file.path)
            if folder not in folders:
                folders[folder] = os.path.realpath(folder)
            real = join(folders[folder], name)
            try:
                if Path(file.path).is_symlink():
                    real = os.path.realpath(file.path)
                facts = Path(file.path).stat()
            except OSError as error:
                raise SourceChanged(
                    f"input file {file.path} can no longer be read ({error.strerror}); nothing was committed:"
                    " restore the file, or start a new run, which mints without it"
                ) from error
            if not holds(real_root, real):
                raise SourceChanged(
                    f"input file {file.path} now leads to {real}, outside of {root}: a link was put in its place"
                    " after minting. Nothing was committed: remove the link; the next run mints without it"
                )
            size_bytes, mtime_ms = facts.st_size, facts.st_mtime_ns // 1_000_000
            if (size_bytes, mtime_ms, facts.st_ctime_ns) != (file.size_bytes, file.mtime_ms, file.ctime_ns):
                raise SourceChanged(
                    f"input file {file.path} changed between minting and reading: {file.size_bytes} bytes at"
                    f" {format_time(file.mtime_ms)}, now {size_bytes} bytes at {format_time(mtime_ms)} (its name,"
                    f" rights or links changed at {format_time(facts.st_ctime_ns // 1_000_000)}); nothing was"
                    " committed: the next run mints again. Writers should rename finished files into place"
                )

    def opened(self, file: InputFile) -> IO[bytes]:
        return Path(file.path).open("rb")
