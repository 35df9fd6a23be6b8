"""Files that cannot be read for their own bytes, as our libraries find them: cut off, damaged, of another format.

Spark is stopped by the first such file that it meets. What the job reads itself, headers, footers and compressed text,
is read of all files, and all that are unreadable are named in one error.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import pyarrow as pa

from persist_core.errors import SourceChanged, UnreadableFiles
from persist_core.handles.side_by_side import side_by_side
from persist_core.sources.input_file import InputFile

_BAD_BYTES = (OSError, EOFError, zlib.error, pa.ArrowException)
_THREADS = 16  # of short reads, which wait for the store
_MAX_NAMED = 5  # in one message
_MAX_REASON_CHARS = 300
_Found = TypeVar("_Found")


def of_each(
    read: Callable[[InputFile], _Found], files: Sequence[InputFile], *, threads: int = _THREADS
) -> list[_Found]:
    """The result of `read` for each file, in their order.

    Raises `UnreadableFiles` naming all files whose bytes are at fault, and `SourceChanged` for one that the system does
    not give.
    """
    bad: dict[str, str] = {}

    def tried(file: InputFile) -> list[_Found]:
        try:
            return [read(file)]
        except _BAD_BYTES as error:
            if isinstance(error, OSError) and error.errno is not None:  # libraries that dislike the bytes set none
                raise SourceChanged(
                    f"input file {file.path} can no longer be read ({error.strerror}); nothing was committed: make it"
                    " readable, or remove it"
                ) from error
            bad[file.path] = as_reason(str(error))
            return []

    found = side_by_side(tried, files, threads=threads)
    if bad:
        raise unreadable_files({file.path: bad[file.path] for file in files if file.path in bad})
    return [each for result in found for each in result]


def unreadable_files(reasons: Mapping[str, str], more: str = "") -> UnreadableFiles:
    """The error that names files and what is wrong with each, in one line. `more`: why the run did not go on."""
    named = [f"{path}: {reason}" for path, reason in list(reasons.items())[:_MAX_NAMED]]
    if len(reasons) > _MAX_NAMED:
        named.append(f"and {len(reasons) - _MAX_NAMED} more")
    count, remedy = f"{len(reasons)} input files", "put complete files in their places, or remove them"
    if len(reasons) == 1:
        count, remedy = "an input file", "put a complete file in its place, or remove it"
    return UnreadableFiles(
        f"{count} cannot be read: {'; '.join(named)}. Nothing was committed: {remedy}{more}", dict(reasons)
    )


def as_reason(text: str) -> str:
    """A reason: the words of a library about bytes, in one line without a stop at its end."""
    line = " ".join(text.split())[:_MAX_REASON_CHARS].rstrip(".")
    return "".join(char if char.isprintable() else "?" for char in line) or "its bytes are not of its format"
