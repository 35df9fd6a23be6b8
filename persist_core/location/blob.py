"""The blob contract (docs/semantics.md, section 2): bytes by key, written whole.

Keys are `/`-separated relative paths; `check_blob_key` refuses anything that could leave the location. A reader sees
the old or the new value, never a mixture. Callers write other bytes only under another key, `_latest` aside.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from persist_core.errors import InvalidInput, InvalidName

_ILLEGAL_CHARACTER = re.compile(r"[\x00-\x1f\x7f\\]")

MAX_KEY_BYTES = 1024  # S3's limit on the UTF-8 bytes of a key; the other backends allow more


@dataclass(frozen=True)
class BlobMetadata:
    """One key of a listing. `modified_ms`: when it was last written, by the store's own clock."""

    key: str
    size_bytes: int
    modified_ms: int = field(default=0, compare=False)


class Blob(Protocol):
    """Bytes by key. Errors are `Determinate` or `Indeterminate`; `set` and `delete` are idempotent, so retry both."""

    def get(self, key: str) -> bytes | None:
        """The bytes under `key`, or `None`."""

    def set(self, key: str, data: bytes) -> None:
        """Write `data` whole under `key`; durable when this returns."""

    def delete(self, key: str) -> int | None:
        """Delete `key` and return the size in bytes of what it held, or `None` if there was nothing."""

    def list_keys_and_metadata(self, prefix: str) -> Iterator[BlobMetadata]:
        """Keys that start with the string `prefix`, in ascending order of their UTF-8 bytes."""

    def uri_of(self, key: str) -> str:
        """The path at which Spark and Hadoop read or write `key`: for their readers, not percent-encoded, not a glob.

        Raises `InvalidInput` if no other process could reach it (`mem:`).
        """

    def make_durable(self, prefix: str) -> None:
        """Make what others (Spark) wrote under keys that start with `prefix` as durable as `set` would have."""

    def close(self) -> None:
        """Close connections. The object is not usable afterwards."""

    @property
    def uri(self) -> str:
        """The URI, with secrets removed: safe to print."""


@runtime_checkable
class RangeReader(Protocol):
    """A blob store that can read a piece of a value, for callers that need only the end of a large file."""

    def get_range(self, key: str, start: int, size_bytes: int) -> bytes | None:
        """`size_bytes` (at least one) bytes from `start` on, fewer if the value ends earlier; `None` without one."""


@runtime_checkable
class FileTaker(Protocol):
    """A blob store that takes the bytes of a file, which may be more than memory holds."""

    def set_file(self, key: str, path: Path) -> None:
        """`set` with the bytes of the file at `path`."""


@dataclass(frozen=True)
class UnfinishedUpload:
    """The pieces of an upload that was begun, and neither completed nor aborted. `begun_ms`: by the store's clock."""

    key: str
    upload_id: str
    begun_ms: int


@dataclass(frozen=True)
class UnfinishedUploads:
    """The uploads of a listing; or, in `skipped`, why the store does not list them."""

    found: tuple[UnfinishedUpload, ...] = ()
    skipped: str = ""


@runtime_checkable
class UploadStore(Protocol):
    """A blob store in which a writer that was killed leaves pieces that no listing of keys shows."""

    def unfinished_uploads(self, prefix: str) -> UnfinishedUploads:
        """Uploads of keys that start with the string `prefix`, the first 10,000 of them."""

    def abort_upload(self, upload: UnfinishedUpload) -> bool:
        """Delete its pieces, so that its writer can no longer complete it. False if it has ended already."""


class RangeFile(io.RawIOBase):
    """A file of `size_bytes` bytes to read and to seek in. `fetch(start, size_bytes)` gives those within it."""

    def __init__(self, size_bytes: int, fetch: Callable[[int, int], bytes]) -> None:
        self._size_bytes, self._fetch, self._position = size_bytes, fetch, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size_bytes}[whence]
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        data = self._next(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        return self._next(self._size_bytes)

    def _next(self, size_bytes: int) -> bytes:
        expected = min(size_bytes, self._size_bytes - self._position)
        data = self._fetch(self._position, expected) if expected > 0 else b""
        self._position += len(data)
        return data


def check_blob_key(key: str) -> str:
    """Return `key` if it is a legal blob key, else raise `InvalidName`.

    Legal: 1 to 1024 UTF-8 bytes; `/`-separated segments, none empty, `.` or `..`; no NUL, backslash or control
    characters.
    """
    size_bytes = _utf8_bytes(key, "blob key")
    if not 0 < size_bytes <= MAX_KEY_BYTES:
        raise InvalidName(f"blob key of {size_bytes} bytes; expected 1 to {MAX_KEY_BYTES}: {key[:80]!r}")
    if _ILLEGAL_CHARACTER.search(key):
        raise InvalidName(f"blob key {key!r} has a control character or a backslash")
    if any(segment in ("", ".", "..") for segment in key.split("/")):
        raise InvalidName(f"blob key {key!r} has an empty, '.' or '..' segment")
    return key


def check_blob_prefix(prefix: str) -> str:
    """Return `prefix` if some legal key could start with it (the empty one included), else raise `InvalidName`."""
    *segments, _last = prefix.split("/")
    if (
        _utf8_bytes(prefix, "blob prefix") > MAX_KEY_BYTES
        or _ILLEGAL_CHARACTER.search(prefix)
        or any(s in ("", ".", "..") for s in segments)
    ):
        raise InvalidName(f"blob prefix {prefix[:80]!r}: no legal key starts with it; expected the beginning of a key")
    return prefix


def check_blob_data(key: str, data: bytes) -> bytes:
    """Return `data` if it is `bytes`, else raise `InvalidInput`: a `str` or a `list` must not be stored."""
    if not isinstance(data, bytes):
        raise InvalidInput(f"blob {key!r}: expected bytes, found {type(data).__name__}")
    return data


def _utf8_bytes(text: str, what: str) -> int:
    """How many bytes the text has in UTF-8. Raises `InvalidName` naming `what` if it has no such form."""
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise InvalidName(f"{what} {text!r} is not valid Unicode") from None
