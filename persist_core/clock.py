"""The only module that reads wall time or sleeps. All other code receives a `Clock`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

PATIENCE_MS = 60_000  # a store that accepts connections and never answers costs 30 s or more per try


class Clock(Protocol):
    """The clock that the core uses."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch, UTC."""

    def sleep_ms(self, duration_ms: int) -> None:
        """Wait for `duration_ms` milliseconds."""


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def sleep_ms(self, duration_ms: int) -> None:
        time.sleep(duration_ms / 1000)


def tries(clock: Clock, most: int, back_off: Callable[[int], None]) -> Callable[[], bool]:
    """A function that backs off and returns True if a request may be tried again: up to `most` tries in all, none of
    which begins later than `PATIENCE_MS` from now."""
    until_ms, made = clock.now_ms() + PATIENCE_MS, iter(range(most - 1))

    def again() -> bool:
        attempt = next(made, None)
        if attempt is None or clock.now_ms() >= until_ms:
            return False
        back_off(attempt)
        return True

    return again
