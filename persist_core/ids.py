"""The only module that uses randomness. All other code receives an `Ids`."""

from __future__ import annotations

import hashlib
import random
import uuid
from typing import Protocol

from persist_core.clock import Clock, SystemClock

LEFTOVER_AGE_MS = 24 * 3_600_000  # see `is_leftover`


class Ids(Protocol):
    """The random values that the core uses."""

    def uuid7(self) -> str:
        """A UUIDv7 (RFC 9562): sorts by creation time."""

    def jitter(self) -> float:
        """A number in `[0, 1)`, for backoff."""


def _uuid7(now_ms: int, bits: int) -> str:
    """Lay out RFC 9562, section 5.7: 48 bits of milliseconds, version 7, variant 10, 74 random bits."""
    value = (now_ms & ((1 << 48) - 1)) << 80
    value |= 0x7 << 76
    value |= ((bits >> 62) & 0xFFF) << 64
    value |= 0b10 << 62
    value |= bits & ((1 << 62) - 1)
    return str(uuid.UUID(int=value))


def uuid7_of(time_ms: int, name: str) -> str:
    """The UUIDv7 of a name: the same for the same arguments. Times beyond 48 bits count as the largest."""
    bits = int.from_bytes(hashlib.sha256(name.encode()).digest()[:10])
    return _uuid7(min(time_ms, (1 << 48) - 1), bits & ((1 << 74) - 1))


def time_of_uuid7(text: str) -> int | None:
    """When a UUIDv7 was made, in ms; `None` for any other text."""
    try:
        parsed = uuid.UUID(text)
    except ValueError:
        return None
    return parsed.int >> 80 if parsed.version == 7 else None


def is_leftover(made: str, *, now_ms: int) -> bool:
    """True if `made` is a UUIDv7 of a day ago or earlier: what a probe has written under it is a killed probe's."""
    made_ms = time_of_uuid7(made)
    return made_ms is not None and made_ms < now_ms - LEFTOVER_AGE_MS


class RandomIds:
    """Ids from the operating system's randomness, or from `source`."""

    def __init__(self, clock: Clock | None = None, source: random.Random | None = None) -> None:
        self._clock = clock or SystemClock()
        self._random = source or random.SystemRandom()

    def uuid7(self) -> str:
        return _uuid7(self._clock.now_ms(), self._random.getrandbits(74))

    def jitter(self) -> float:
        return self._random.random()
