"""The hidden fork of a shard in which its inputs are replayed: deleted when it has ended, or was given up."""

from __future__ import annotations

from persist_core.handles.client import PersistClient
from persist_core.keys import hidden_shard
from persist_core.maintenance.drop import create_again, drop
from persist_core.protocol.replay import PURPOSE


def hidden_of(shard: str) -> str:
    """The fork's name."""
    return hidden_shard(shard, PURPOSE)


def give_up(client: PersistClient, shard: str) -> bool:
    """Delete a replay of the shard that has not ended. False if it does not exist."""
    hidden = hidden_of(shard)
    state = client.machine.fetch(hidden)
    if state is None or not (state.commits or state.is_dropped):
        return False
    drop(client, hidden, is_forced=True)
    create_again(client, hidden)
    return True


def give_up_if_idle(client: PersistClient, shard: str, *, idle_ms: int) -> bool:
    """Delete a replay that has committed nothing for `idle_ms`."""
    state = client.machine.fetch(hidden_of(shard))
    newest = state.newest_commit if state else None
    if newest is None or client.clock.now_ms() - newest.committed_ms < idle_ms:
        return False
    return give_up(client, shard)
