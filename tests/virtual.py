"""Time and random values that a test decides."""

from __future__ import annotations

import random

from persist_core.clock import Clock
from persist_core.ids import RandomIds


class ManualClock:
    """A clock that only `sleep_ms` advances, immediately."""

    def __init__(self, start_ms: int = 0) -> None:
        self._now_ms = start_ms

    def now_ms(self) -> int:
        return self._now_ms

    def sleep_ms(self, duration_ms: int) -> None:
        self._now_ms += duration_ms


class SeededIds(RandomIds):
    """Ids that repeat for the same seed."""

    def __init__(self, seed: int, clock: Clock) -> None:
        super().__init__(clock, random.Random(seed))
