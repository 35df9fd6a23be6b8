"""The two phases of GC. Mark: list what nothing needs now, page by page, and store the lists; it deletes nothing.
Sweep: delete what lists name, if it is still unneeded and nothing can need it any more.

<shard>/gc/<era>/<uuid7>.json   sealed {"shard", "era", "seqno", "marked_ms", "garbage": [[key, size_bytes], ...]}

Uploads that killed writers have left are pieces of objects that no listing of keys shows, and that cost money. One is
aborted when it is older than the staging intent, by the store's own clock. By then a batch that it could belong to is
refused. If its writer is still at work, completing the upload fails, and with it that try of the task.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from persist_core.errors import CorruptArtifact, InvalidInput
from persist_core.gc.needs import Needs
from persist_core.handles.client import PersistClient
from persist_core.handles.side_by_side import side_by_side
from persist_core.keys import collectable_prefixes, era_in, garbage_list_key, owner_of
from persist_core.location.blob import Blob, BlobMetadata, UnfinishedUpload, UnfinishedUploads, UploadStore
from persist_core.sealed import Sealed, check_in_place

_REASONS = {
    "batches": "no batch, commit or fork names it",
    "checkpoints": "its checkpoint is not complete, and no commit can complete it",
    "conflict_alerts": "its conflict is not kept",
    "conflicts": "there are enough newer ones",
    "dry-runs": "it was never read",
    "forks": "the fork uses nothing of this shard",
    "inputs": "no commit or checkpoint names it",
    "jobs": "its job was killed",
    "sources": "no commit or checkpoint names it",
}


class Garbage(NamedTuple):
    """A key that nothing needed, and its size in bytes."""

    key: str
    size_bytes: int

    @property
    def reason(self) -> str:
        return _REASONS.get(self.key.split("/")[1], "nothing names it")


@dataclass(frozen=True)
class GarbageList(Sealed):
    """The keys that nothing needed in version `seqno` of the shard's state, of era `era`. `marked_ms` is for people."""

    KIND = "garbage_list"

    shard: str
    era: int
    seqno: int
    marked_ms: int
    garbage: tuple[Garbage, ...]

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.garbage)

    @classmethod
    def read(cls, data: bytes, key: str) -> GarbageList:
        """The list under `key`. Raises as `decode`, and for a list of another shard or era."""
        what = f"list of garbage {key}"
        listed = cls.decode(data, what=what)
        check_in_place((listed.shard, listed.era), (owner_of(key), era_in(key)), what=what)
        if any(owner_of(each.key) != listed.shard for each in listed.garbage):
            raise CorruptArtifact(f"{what} names keys of another shard than {listed.shard}")
        return listed


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
    key = garbage_list_key(listed.shard, listed.era, client.ids.uuid7())
    client.blob.set(key, listed.encode())
    return key


def _pages(client: PersistClient, shard: str) -> Iterator[tuple[BlobMetadata, ...]]:
    entries = itertools.chain.from_iterable(
        client.blob.list_keys_and_metadata(prefix) for prefix in collectable_prefixes(shard)
    )
    while page := tuple(itertools.islice(entries, PAGE_KEYS)):  # bounded by the keys of the shard
        yield page


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
        unneeded = [each.key for each in listed.garbage if each.key not in needed]
        kept += len(listed.garbage) - len(unneeded)
        while unneeded:  # keys that an earlier call has deleted do not count
            if deleted == max_keys:
                return Swept(deleted, size_bytes, kept, done)
            found = delete_all(client, unneeded[: max_keys - deleted])
            del unneeded[: max_keys - deleted]
            deleted, size_bytes = deleted + len(found), size_bytes + sum(found)
    return Swept(deleted, size_bytes, kept, len(lists))


def delete_all(client: PersistClient, keys: Sequence[str]) -> list[int]:
    """The sizes in bytes of the keys that were there. A call that dies has deleted any of them."""
    found = side_by_side(client.blob.delete, keys, threads=client.fetch_threads)
    return [size_bytes for size_bytes in found if size_bytes is not None]


def unfinished_uploads(blob: Blob, shard: str) -> UnfinishedUploads:
    """Uploads of all keys that GC may delete; none if the store has no such thing."""
    if not isinstance(blob, UploadStore):
        return UnfinishedUploads()
    uploads = blob.unfinished_uploads(f"{shard}/")
    known = collectable_prefixes(shard)
    return UnfinishedUploads(tuple(each for each in uploads.found if each.key.startswith(known)), uploads.skipped)


def abort_uploads(blob: Blob, shard: str, *, begun_before_ms: int) -> Iterator[UnfinishedUpload]:
    """Abort uploads begun at that time or before; yields each."""
    for each in unfinished_uploads(blob, shard).found:
        if each.begun_ms <= begun_before_ms and isinstance(blob, UploadStore) and blob.abort_upload(each):
            yield each
