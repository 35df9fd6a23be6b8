"""Who is notified of a conflict, and how often: once for each conflict, whatever retries and zombies do.

The conflict's record is keyed by the description that lost, so a second try finds it there. A marker beside it says
that the notifiers have run. It is written after them: if a worker is killed in between, they run twice, not never.
"""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

from persist_airflow.compat import BaseNotifier, Context
from persist_core.handles.client import PersistClient
from persist_core.protocol.conflicts import ConflictRecord
from persist_core.shard.keys import conflict_alert_key

ConflictCallback = Callable[[Any], Any]  # a BaseNotifier, or any callable that takes the context

_log = logging.getLogger(__name__)


class LogConflictNotifier(BaseNotifier):
    """Writes `message` (templated; `persist_conflict` is the record as a dict) to the log at the given level."""

    template_fields = ("message",)

    def __init__(
        self,
        message: str = "CAS conflict on shard {{ persist_conflict.shard }}:"
        " expected upper {{ persist_conflict.expected_upper }}, found {{ persist_conflict.found_upper }},"
        " won by {{ persist_conflict.winner }}",
        level: int = logging.WARNING,
    ) -> None:
        super().__init__()
        self.message = message
        self.level = level

    def notify(self, context: Context) -> None:  # noqa: ARG002 - Airflow's signature
        """Log the rendered message."""
        _log.log(self.level, "%s", self.message)


def alert(
    client: PersistClient, record: ConflictRecord, callbacks: Iterable[ConflictCallback], context: Context
) -> bool:
    """Call every callback with the context plus `persist_conflict`; False if it was done.

    If a callback fails, that is logged; the others run, and the conflict is healed.
    """
    marker = conflict_alert_key(record.shard, record.conflict_id)
    if client.blob.get(marker) is not None:
        return False
    told: Any = context
    told["persist_conflict"] = asdict(record)
    for callback in callbacks:
        try:
            # A notifier renders its templates in place, so each conflict gets a copy of its own.
            (copy.copy(callback) if isinstance(callback, BaseNotifier) else callback)(told)
        except Exception:  # noqa: BLE001 - whatever a user's callback raises, the conflict must still heal
            _log.exception("on_cas_conflict callback %r failed for conflict %s", callback, record.conflict_id)
    del told["persist_conflict"]
    client.blob.set(marker, json.dumps({"alerted_ms": client.clock.now_ms()}).encode())
    return True
