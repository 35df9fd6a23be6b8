"""The only module that reads wall time or sleeps. All other code receives a `Clock`."""

from __future__ import annotations

import time
from typing import Protocol


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
