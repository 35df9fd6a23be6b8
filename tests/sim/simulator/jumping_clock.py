"""A client's clock that is wrong, and not always by the same time."""

from __future__ import annotations

from persist_core.ids import Ids
from tests.virtual import ManualClock

_OFFSETS_MS = (0, 1_000, -1_000, 3_600_000, -3_600_000, 5 * 86_400_000, -5 * 86_400_000, 400 * 86_400_000)
_RATE = 0.05  # of readings that find another offset


class JumpingClock:
    """The true time and an offset, which jumps. Waiting takes true time."""

    def __init__(self, true: ManualClock, ids: Ids) -> None:
        self._true = true
        self._ids = ids
        self._offset_ms = 0

    def now_ms(self) -> int:
        if self._ids.jitter() < _RATE:
            self._offset_ms = _OFFSETS_MS[int(self._ids.jitter() * len(_OFFSETS_MS))]
        return self._true.now_ms() + self._offset_ms

    def sleep_ms(self, duration_ms: int) -> None:
        self._true.sleep_ms(duration_ms)
