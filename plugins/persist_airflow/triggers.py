"""`ShardUpperTrigger`: waits in the triggerer until a shard's upper reaches a time. A look reads one small state.

TriggerEvent({"shard": ..., "upper": ..., "reached": true})      upper in ms; None: the shard is closed
TriggerEvent({..., "reached": false})                            `timeout_s` has passed
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

from asgiref.sync import sync_to_async

from persist_airflow.compat import BaseTrigger, TriggerEvent
from persist_airflow.hook import PersistHook
from persist_core.clock import SystemClock
from persist_core.errors import InvalidInput, StorageError
from persist_core.frontier import Frontier
from persist_core.handles.client import PersistClient

POLL_S = 5.0
MAX_STORAGE_ERRORS = 10  # one after the other; then the task fails, and Airflow's retries take over


class ShardUpperTrigger(BaseTrigger):
    """Fires when the shard's upper is at least `upper` (ms), or after `timeout_s` seconds (`None`: never).

    A shard that does not exist yet has no upper, and a closed one has reached every time. Raises `InvalidInput` for a
    poll that is not positive.
    """

    def __init__(
        self,
        shard: str,
        upper: int,
        *,
        persist_conn_id: str = PersistHook.default_conn_name,
        poll_s: float = POLL_S,
        timeout_s: float | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # Airflow's has no types
        if poll_s <= 0:
            raise InvalidInput(f"poll_s is {poll_s}; expected more than 0")
        self.shard, self.upper, self.persist_conn_id = shard, upper, persist_conn_id
        self.poll_s, self.timeout_s = poll_s, timeout_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class and its arguments, as the triggerer makes them again."""
        arguments = {
            "shard": self.shard,
            "upper": self.upper,
            "persist_conn_id": self.persist_conn_id,
            "poll_s": self.poll_s,
            "timeout_s": self.timeout_s,
        }
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look every `poll_s` seconds. Connections are opened and read in a thread: they may block."""
        clock = SystemClock()
        deadline_ms = None if self.timeout_s is None else clock.now_ms() + self.timeout_s * 1000
        client: PersistClient = await sync_to_async(PersistHook(self.persist_conn_id).get_conn)()
        failures = 0
        try:
            while True:
                try:
                    found = await sync_to_async(client.machine.fetch)(self.shard)
                    failures = 0
                except StorageError:
                    failures += 1
                    if failures == MAX_STORAGE_ERRORS:
                        raise
                    found = None
                if found is not None and found.upper >= Frontier(self.upper):
                    yield self._event(found.upper.time, reached=True)
                    return
                if deadline_ms is not None and clock.now_ms() >= deadline_ms:
                    yield self._event(found.upper.time if found is not None else 0, reached=False)
                    return
                await asyncio.sleep(self.poll_s)
        finally:
            await sync_to_async(client.location.close)()

    def _event(self, upper: int | None, *, reached: bool) -> TriggerEvent:
        event: Any = TriggerEvent  # Airflow's has no types
        return cast(TriggerEvent, event({"shard": self.shard, "upper": upper, "reached": reached}))
