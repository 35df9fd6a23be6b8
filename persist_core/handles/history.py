"""A shard's history, as maintenance and the mint stage use it (`shard.history` has the transitions)."""

from __future__ import annotations

from persist_core.handles.client import PersistClient
from persist_core.shard import history as transitions
from persist_core.shard.history import Advance
from persist_core.shard.state import ShardState


def advance_since(client: PersistClient, shard: str) -> Advance:
    """Move the shard's `since` as far as its history and its holders allow; says what holds it back.

    Writes a version only if `since` moves or a lease has expired. Safe at any time, beside anything.
    """
    _, advance = client.machine.apply(
        shard, lambda state: transitions.advance_since(state, now_ms=client.clock.now_ms())
    )
    return advance


def set_history(client: PersistClient, shard: str, history_ms: int | None) -> tuple[ShardState, int | None]:
    """Keep `history_ms` of history from now on (`None`: all); returns the newest state and what it was before.

    Writes a version only if it differs.
    """
    return client.machine.apply(shard, lambda state: transitions.set_history(state, history_ms))
