"""Records of what a fork shares with its origin, stored with the shard that owns the keys, so that GC finds them.

    <shard>/forks/<fork>/<sha256>.json   sealed {"shard", "fork", "checkpoint_id", "made_ms", "era", "keys": [...]}

`keys` are batch manifests of `<shard>` (each stands for its parts too) and segments of its ledger. No
compare-and-set spans two shards, so the order makes this safe: a fork first writes its record, then checks that the
shard's state still names all of `keys`. GC first reads the shard's state, then lists the records. If the state that GC
read does not name a key and GC finds no record, then the fork's later check does not find the key either, and the fork
fails. A fork of a fork checks the state of the first fork, which GC reads after it has found that one's record. So GC
lists the records again after it has read the states of forks, until it finds no new one.

A record has no effect once batches of its `era` (of `<shard>`) are refused and the fork names none of its keys. The
fork's shard is made, empty, before the record, so that GC can end an era of it: a slow fork is then refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from persist_core.contents.batch import HollowBatch
from persist_core.errors import Corruption
from persist_core.keys import fork_key, forks_prefix, owner_of
from persist_core.location.blob import Blob
from persist_core.sealed import Sealed, check_in_place, sealed_digest


@dataclass(frozen=True)
class ForkRecord(Sealed):
    """One fork of `shard`: blob keys of `shard` that `fork` needs, sorted."""

    KIND = "fork_record"

    shard: str
    fork: str
    checkpoint_id: str
    made_ms: int
    era: int
    keys: tuple[str, ...]

    @classmethod
    def read(cls, data: bytes, key: str) -> ForkRecord:
        """The record under `key`. Raises as `decode`, and for a record of another place."""
        record = cls.decode(data, what=f"record of a fork {key}")
        check_in_place(record.key, key, what=f"record of a fork {key}")
        return record

    @property
    def key(self) -> str:
        return fork_key(self.shard, self.fork, sealed_digest(self.encode()))


def record_fork(
    blob: Blob, fork: str, keys: Iterable[str], *, checkpoint_id: str, made_ms: int, eras: Callable[[str], int]
) -> None:
    """Write a record for each shard that owns some of `keys`: a fork of a fork shares with both.

    `eras` gives the era of a shard, read before the fork looked up what it shares.
    """
    by_owner: dict[str, set[str]] = {}
    for key in keys:
        by_owner.setdefault(owner_of(key), set()).add(key)
    for shard, owned in sorted(by_owner.items()):
        if shard != fork:
            record = ForkRecord(shard, fork, checkpoint_id, made_ms, eras(shard), tuple(sorted(owned)))
            blob.set(record.key, record.encode())


def list_forks(blob: Blob, shard: str) -> list[ForkRecord]:
    """All records of a shard, oldest first. Raises `CorruptArtifact` naming one that can't be read."""
    records, damaged = readable_forks(blob, shard)
    for error in damaged.values():
        raise error
    return records


def readable_forks(blob: Blob, shard: str) -> tuple[list[ForkRecord], dict[str, Corruption]]:
    """The records of a shard that can be read, oldest first, and why the others can't be, by key."""
    records: list[ForkRecord] = []
    damaged: dict[str, Corruption] = {}
    for entry in blob.list_keys_and_metadata(forks_prefix(shard)):
        data = blob.get(entry.key)
        if data is None:
            continue
        try:
            records.append(ForkRecord.read(data, entry.key))
        except Corruption as error:
            damaged[entry.key] = error
    return sorted(records, key=lambda record: (record.made_ms, record.fork)), damaged


def unrecorded(blob: Blob, fork: str, batches: Iterable[HollowBatch]) -> list[str]:
    """Manifests of other shards that `fork` names without a record: GC might delete them."""
    foreign = [batch.manifest_key for batch in batches if owner_of(batch.manifest_key) != fork]
    recorded = {
        key
        for shard in sorted({owner_of(key) for key in foreign})
        for record in list_forks(blob, shard)
        if record.fork == fork
        for key in record.keys
    }
    return [key for key in foreign if key not in recorded]
