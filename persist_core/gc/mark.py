"""The first phase of GC: list what nothing needs now, page by page, and store the lists. Deletes nothing."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator

from persist_core.gc.garbage_list import Garbage, GarbageList
from persist_core.gc.needs import Needs
from persist_core.handles.client import PersistClient
from persist_core.location.blob import BlobMetadata
from persist_core.shard.keys import collectable_prefixes, garbage_list_key

PAGE_KEYS = 10_000  # of one list: a few megabytes


def find_garbage(client: PersistClient, shard: str, needs: Needs, known: Collection[str]) -> Iterator[GarbageList]:
    """Lists of what nothing needs and is not `known` yet, each of at most `PAGE_KEYS` keys; without empty ones.

    The state is read after the keys were listed. So every batch that an attempt on the list may be appended with was
    described in the list's era or before: a later description makes attempts that were not there yet.
    """
    seqno, needed = -1, frozenset[str]()
    for page in _pages(client, shard):
        state = client.state(shard)
        if state.seqno != seqno:
            seqno, needed = state.seqno, frozenset(needs.of(state))
        unneeded = (entry for entry in page if entry.key not in needed and entry.key not in known)
        garbage = tuple(Garbage(entry.key, entry.size_bytes) for entry in unneeded)
        if garbage:
            yield GarbageList(shard, state.era, state.seqno, client.clock.now_ms(), garbage)


def store(client: PersistClient, listed: GarbageList) -> str:
    """Store a list; its key."""
    key = garbage_list_key(listed.shard, listed.era, client.ids.uuid7())
    client.blob.set(key, listed.encode())
    return key


def _pages(client: PersistClient, shard: str) -> Iterator[tuple[BlobMetadata, ...]]:
    entries = itertools.chain.from_iterable(
        client.blob.list_keys_and_metadata(prefix) for prefix in collectable_prefixes(shard)
    )
    while page := tuple(itertools.islice(entries, PAGE_KEYS)):  # bounded by the keys of the shard
        yield page
