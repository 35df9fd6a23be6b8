"""Frozen inputs in blob storage: the one way to store and to load them, whatever the source.

A frozen input is a sealed object under the key that contains its digest (`persist_core.keys.input_key`):
equal inputs are stored once in an era, and the bytes under a key never change.
"""

from __future__ import annotations

from typing import TypeVar

from persist_core.errors import CorruptArtifact
from persist_core.keys import digest_in, input_key
from persist_core.location.blob import Blob
from persist_core.sealed import Sealed, sealed_digest

F = TypeVar("F", bound=Sealed)


def stage_frozen(blob: Blob, shard: str, frozen: Sealed, *, era: int) -> str:
    """Store a frozen input of a shard, in the shard's era, and return its key. Idempotent."""
    data = frozen.encode()
    key = input_key(shard, era, sealed_digest(data))
    blob.set(key, data)
    return key


def load_frozen(blob: Blob, key: str, kind: type[F]) -> F:
    """The frozen input under `key`. Raises `CorruptArtifact` if it is missing, damaged or replaced."""
    data = blob.get(key)
    if data is None:
        raise CorruptArtifact(f"frozen input {key} is missing; mint again")
    frozen = kind.decode(data, what=f"frozen input {key}")
    found, expected = sealed_digest(data), digest_in(key)
    if found != expected:
        raise CorruptArtifact(f"frozen input {key} has SHA-256 {found}, expected {expected}; mint again")
    return frozen
