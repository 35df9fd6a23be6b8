"""The newest list of a shard's erasures, from blob storage. Hidden shards have none: the list of their shard counts."""

from __future__ import annotations

from persist_core.contents.erased import ErasedList
from persist_core.errors import CorruptArtifact, InvalidInput
from persist_core.handles.client import PersistClient
from persist_core.keys import is_shard_name
from persist_core.schema import CollectionSchema
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


def erased_for(
    client: PersistClient, state: ShardState, schema: CollectionSchema, *, has_times: bool
) -> ErasedList | None:
    """The list by which a write drops records.

    Raises `InvalidInput` if a definition with another order, or a new generation without times of its own (`has_times`
    is False), cannot distinguish which records came before the erasures.
    """
    purpose, state = state.shard.partition("~")[2], _owner(client, state)
    if state.erased is None:
        return None
    listed, types = erased_list(client, state), tuple(column.type for column in schema.order or ())
    is_blind = purpose not in ("", "reprocess") and schema.order is None and not has_times
    if is_blind or any(erasure.order_types != types for erasure in listed.erasures):
        raise InvalidInput(
            f"keys were erased from shard {state.shard}, and with this definition nothing says which of their records"
            " came before: it has another order, or neither an order nor times of its own. Remove their records from"
            " the source, and use another name for the collection"
        )
    return listed


def copy_erased(client: PersistClient, state: ShardState, shard: str) -> str | None:
    """Copy the list to another shard, unless that is hidden; returns its key there."""
    state = _owner(client, state)
    if state.erased is None or not is_shard_name(shard):
        return None
    listed = erased_list(client, state)
    key = listed.key_in(shard)
    client.blob.set(key, listed.encode())
    return key


def last_erased(client: PersistClient, state: ShardState) -> int:
    """The time of the newest erasure; -1 without one."""
    state = _owner(client, state)
    if state.erased is None:
        return -1
    return max((each.upper for each in erased_list(client, state).erasures), default=-1)


def _owner(client: PersistClient, state: ShardState) -> ShardState:
    owner, _, purpose = state.shard.partition("~")
    return client.state(owner) if purpose else state
