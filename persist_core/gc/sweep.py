"""The second phase of GC: delete what a list names, if it is still unneeded and nothing can need it any more."""

from __future__ import annotations

from dataclasses import dataclass

from persist_core.errors import InvalidInput
from persist_core.gc.garbage_list import GarbageList
from persist_core.gc.needs import Needs
from persist_core.handles.client import PersistClient


@dataclass(frozen=True)
class Swept:
    """What was deleted: keys, and bytes. `kept` keys are needed again, or `max_keys` was reached (`is_done` False)."""

    deleted: int
    size_bytes: int
    kept: int
    is_done: bool


def sweep(client: PersistClient, listed: GarbageList, needs: Needs, *, max_keys: int) -> Swept:
    """Delete at most `max_keys` keys of the list. Raises `InvalidInput` if a batch of the list's era is still accepted,
    or was until this era.

    The needs are read after the era was given up (`shard.eras`, 3), so that they can only become fewer.
    """
    state = client.state(listed.shard)
    if listed.era >= state.oldest_era - 1:
        raise InvalidInput(
            f"the list of garbage of {listed.shard} is of era {listed.era}; expected one before era"
            f" {state.oldest_era - 1}, of which no batch is accepted and no reader has just begun"
        )
    needed = needs.of(state, candidates={each.key for each in listed.garbage})
    unneeded = [each.key for each in listed.garbage if each.key not in needed]
    deleted = size_bytes = 0
    for key in unneeded[:max_keys]:
        found = client.blob.delete(key)
        if found is not None:
            deleted, size_bytes = deleted + 1, size_bytes + found
    return Swept(deleted, size_bytes, len(listed.garbage) - len(unneeded), len(unneeded) <= max_keys)
