"""Frozen inputs in blob storage: the one way to store and to load them, whatever the source.

<shard>/inputs/<sha256>.json   named by its digest, so that equal inputs are stored once and never change
"""

from __future__ import annotations

import hashlib
from typing import Protocol, Self, TypeVar

from persist_core.errors import CorruptArtifact
from persist_core.location.blob import Blob


class Frozen(Protocol):
    """The input of one description. Equal inputs have equal bytes."""

    def encode(self) -> bytes:
        """The bytes to store."""
        ...

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """The inverse of `encode`. Raises `CorruptArtifact` or `UnknownVersion`."""
        ...


F = TypeVar("F", bound=Frozen)


def stage_frozen(blob: Blob, shard: str, frozen: Frozen) -> str:
    """Store a frozen input of a shard; its key. Doing it again changes nothing."""
    data = frozen.encode()
    key = f"{shard}/inputs/{hashlib.sha256(data).hexdigest()}.json"
    blob.set(key, data)
    return key


def load_frozen(blob: Blob, key: str, kind: type[F]) -> F:
    """The frozen input under `key`, its digest checked. Raises `CorruptArtifact` if it is missing or damaged."""
    data = blob.get(key)
    if data is None:
        raise CorruptArtifact(f"frozen input {key} is missing; mint again")
    found, expected = hashlib.sha256(data).hexdigest(), key.rpartition("/")[2].removesuffix(".json")
    if found != expected:
        raise CorruptArtifact(f"frozen input {key}: found the SHA-256 {found}, expected {expected}; mint again")
    return kind.decode(data)
