"""The blob contract (SEMANTICS, section 2): bytes by key, written whole.

Keys are `/`-separated relative paths; `check_blob_key` refuses anything that could leave the location. A reader sees
the old or the new value, never a mixture. Callers write other bytes only under another key, `_latest` aside.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from persist_core.errors import InvalidName

MAX_KEY_BYTES = 1024  # S3's limit on a key's UTF-8 bytes; the strictest of the backends


@dataclass(frozen=True)
class BlobMetadata:
    """One key of a listing."""

    key: str
    size_bytes: int


class Blob(Protocol):
    """Bytes by key. Errors are `Determinate` or `Indeterminate`; `set` and `delete` are idempotent, so retry both."""

    def get(self, key: str) -> bytes | None:
        """The bytes under `key`, or `None`."""
        ...

    def set(self, key: str, data: bytes) -> None:
        """Write `data` whole under `key`; durable when this returns."""
        ...

    def delete(self, key: str) -> int | None:
        """Delete `key` and return the size in bytes of what it held, or `None` where there was nothing."""
        ...

    def list_keys_and_metadata(self, prefix: str) -> Iterator[BlobMetadata]:
        """Keys that start with the string `prefix`, in ascending order of their UTF-8 bytes."""
        ...

    def close(self) -> None:
        """Let go of connections. The object is not usable afterwards."""
        ...

    @property
    def uri(self) -> str:
        """The URI, with secrets removed: safe to print."""
        ...


def check_blob_key(key: str) -> str:
    """Return `key` if it is a legal blob key, else raise `InvalidName`.

    Legal: 1 to 1024 UTF-8 bytes; `/`-separated segments, none empty, `.` or `..`; no NUL, backslash or control
    characters.
    """
    try:
        size_bytes = len(key.encode("utf-8"))
    except UnicodeEncodeError:
        raise InvalidName(f"blob key {key!r} is not valid Unicode") from None
    if not 0 < size_bytes <= MAX_KEY_BYTES:
        raise InvalidName(f"blob key of {size_bytes} bytes; wanted 1 to {MAX_KEY_BYTES}: {key[:80]!r}")
    if any(ord(c) < 32 or c in "\\\x7f" for c in key):
        raise InvalidName(f"blob key {key!r} has a control character or a backslash")
    if any(segment in ("", ".", "..") for segment in key.split("/")):
        raise InvalidName(f"blob key {key!r} has an empty, '.' or '..' segment")
    return key
