"""Files that cannot be read for their own bytes, as our libraries find them: cut off, damaged, of another format.

Spark is stopped by the first such file that it meets. What the job reads itself, headers, footers and compressed text,
is read of all files, and all that are unreadable are named in one error.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import IO, TypeVar, cast

import pyarrow as pa
import zstandard

from persist_core.errors import SourceChanged, UnreadableFiles
from persist_core.handles.side_by_side import side_by_side
from persist_core.sources.input_file import InputFile

_BAD_BYTES = (OSError, EOFError, zlib.error, zstandard.ZstdError, pa.ArrowException)
_END = b"\x00the end\n"  # of a text: a frame of our own
_END_FRAME = zstandard.ZstdCompressor().compress(_END)
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


class _Followed:
    """The bytes of a file, then the frame of our own."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source, self._is_over = source, False

    def read(self, size: int = -1) -> bytes:
        """At most `size` more bytes; none at the end."""
        found = self._source.read(size)
        if found or self._is_over:
            return found
        self._is_over = True
        return _END_FRAME


class WholeZstd:
    """The text of zstd frames. Raises `EOFError` if the last one is cut off, at which the library ends silently.

    So a frame of our own follows, which must come out at the end.
    """

    def __init__(self, source: IO[bytes]) -> None:
        followed = cast(IO[bytes], _Followed(source))
        self._reader = zstandard.ZstdDecompressor().stream_reader(followed, read_across_frames=True)
        self._held = b""

    def read(self, size: int) -> bytes:
        """At most `size` more bytes and a few; none at the end."""
        while len(self._held) <= len(_END):  # bounded by the file
            piece = self._reader.read(size)
            if not piece:
                if self._held != _END:
                    raise EOFError("the zstd data end before their last frame does")
                return b""
            self._held += piece
        found, self._held = self._held[: -len(_END)], self._held[-len(_END) :]
        return found
