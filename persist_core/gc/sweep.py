"""The second phase of GC: delete what lists name, if it is still unneeded and nothing can need it any more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from persist_core.errors import InvalidInput
from persist_core.gc.garbage_list import GarbageList
from persist_core.gc.needs import Needs
from persist_core.handles.client import PersistClient


@dataclass(frozen=True)
class Swept:
    """The deleted objects: keys, and bytes. `kept` keys are needed again. The first `lists` lists are done."""

    deleted: int
    size_bytes: int
    kept: int
    lists: int


def sweep(client: PersistClient, shard: str, lists: Sequence[GarbageList], needs: Needs, *, max_keys: int) -> Swept:
    """Delete at most `max_keys` keys of the shard's lists. Raises `InvalidInput` if a batch of one's era is accepted.

    The needs are read after these eras were given up (`shard.eras`, 3), so that they can only become fewer.
    """
    state = client.state(shard)
    newest = max((listed.era for listed in lists), default=-1)
    if newest >= state.oldest_era:
        raise InvalidInput(
            f"a list of garbage of {shard} is of era {newest}; expected one before era {state.oldest_era}, of which no"
            " batch is accepted"
        )
    needed = needs.of(state, candidates={each.key for listed in lists for each in listed.garbage}) if lists else set()
    deleted = size_bytes = kept = 0
    for done, listed in enumerate(lists):
        for each in listed.garbage:
            if each.key in needed:
                kept += 1
            elif deleted == max_keys:
                return Swept(deleted, size_bytes, kept, done)
            elif (found := client.blob.delete(each.key)) is not None:
                deleted, size_bytes = deleted + 1, size_bytes + found
    return Swept(deleted, size_bytes, kept, len(lists))
