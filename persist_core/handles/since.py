"""`SinceHandle`: a critical, permanent hold on a shard's `since`, moved by compare-and-downgrade.

It holds `since` back and never moves it: `PersistClient.advance_since` does.
"""

from __future__ import annotations

from dataclasses import dataclass

from persist_core.frontier import Frontier
from persist_core.handles.store import Store
from persist_core.shard import history as transitions
from persist_core.shard.state import Hold, HoldMismatch


@dataclass
class SinceHandle:
    """One critical hold. `hold` is its value when this handle last read it."""

    _store: Store
    shard: str
    holder: str
    hold: Hold

    @classmethod
    def open(cls, store: Store, shard: str, holder: str, *, since: Frontier | None = None) -> SinceHandle:
        """Register the hold at `since` (default: the shard's), or find the existing one; `NotReadable` if `since` is
        gone already."""
        opaque = store.ids.uuid7()
        _, hold = store.machine.apply(
            shard, lambda state: transitions.register_hold(state, holder, opaque=opaque, since=since)
        )
        return cls(store, shard, holder, hold)

    def downgrade(self, since: Frontier) -> Hold | HoldMismatch:
        """Give up all times before `since`: it may follow as far as the history and other holders allow.

        `HoldMismatch` (a value) if another owner has moved the hold."""
        expected, opaque = self.hold.opaque, self._store.ids.uuid7()
        _, result = self._store.machine.apply(
            self.shard,
            lambda state: transitions.compare_and_downgrade_hold(
                state, self.holder, expected_opaque=expected, opaque=opaque, since=since
            ),
        )
        if isinstance(result, Hold):
            self.hold = result
        return result

    def release(self) -> bool:
        """Release the hold. False if it was gone already."""
        _, released = self._store.machine.apply(self.shard, lambda state: transitions.release_hold(state, self.holder))
        return released
