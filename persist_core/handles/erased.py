"""The newest list of a shard's erasures, from blob storage."""

from __future__ import annotations

from persist_core.contents.erased import ErasedList
from persist_core.errors import CorruptArtifact
from persist_core.handles.client import PersistClient
from persist_core.shard.state import ShardState

MAX_LOOKS = 5  # each but the first because an erasure has replaced the list in between


def erased_list(client: PersistClient, state: ShardState) -> ErasedList:
    """The list that `state` names, or a newer one that has replaced it. Raises `CorruptArtifact` if it is missing."""
    key = state.erased
    for _ in range(MAX_LOOKS):
        data = None if key is None else client.blob.get(key)
        if key is not None and data is not None:
            return ErasedList.read(data, key)
        missing, key = key, client.state(state.shard).erased
        if key == missing:
            break
    raise CorruptArtifact(f"list of erasures {key} of shard {state.shard} is missing in {client.blob.uri}")


def copy_erased(client: PersistClient, state: ShardState, shard: str) -> str | None:
    """Copy the shard's list to another shard; returns its key there."""
    if state.erased is None:
        return None
    listed = erased_list(client, state)
    key = listed.key_in(shard)
    client.blob.set(key, listed.encode())
    return key


def last_erased(client: PersistClient, state: ShardState) -> int:
    """The time of the newest erasure; -1 without one."""
    if state.erased is None:
        return -1
    return max((each.time for each in erased_list(client, state).known().values()), default=-1)
