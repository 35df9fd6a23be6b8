"""What a fork shares with the shard that it comes from, written down beside that shard: GC reads it there.

    <shard>/forks/<fork>/<sha256>.json   {"version": 1, "shard", "fork", "checkpoint_id", "made_ms", "keys": [...]}

`keys` are batch manifests of `<shard>` (each stands for its parts too) and segments of its ledger. Why GC and a fork
can't miss each other, though no compare-and-set spans two shards: a fork first writes its record, then makes sure that
the shard's state still names all of `keys`. GC first reads the shard's state, then lists the records. What a state that
GC has read names no more, a fork that has no record by then can't find there either.

A record is void once its fork's state names none of its keys, or once it is older than any staging intent and its fork
was never made.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from persist_core.errors import CorruptArtifact, UnknownVersion
from persist_core.location.blob import Blob
from persist_core.shard.batch import HollowBatch

RECORD_VERSION = 1


@dataclass(frozen=True)
class ForkRecord:
    """One fork of `shard`: blob keys of `shard` that `fork` needs, sorted."""

    shard: str
    fork: str
    checkpoint_id: str
    made_ms: int
    keys: tuple[str, ...]

    def encode(self) -> bytes:
        """Canonical JSON with a version."""
        body = {**asdict(self), "version": RECORD_VERSION}
        return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()

    @property
    def key(self) -> str:
        """Where it is kept."""
        return f"{_prefix(self.shard)}{self.fork}/{hashlib.sha256(self.encode()).hexdigest()}.json"


def owner_of(key: str) -> str:
    """The shard that a blob key belongs to."""
    return key.partition("/")[0]


def record_fork(blob: Blob, fork: str, keys: Iterable[str], *, checkpoint_id: str, made_ms: int) -> None:
    """Write a record beside each shard that some of `keys` belong to: a fork of a fork shares with both."""
    by_owner: dict[str, set[str]] = {}
    for key in keys:
        by_owner.setdefault(owner_of(key), set()).add(key)
    for shard, owned in sorted(by_owner.items()):
        if shard != fork:
            record = ForkRecord(shard, fork, checkpoint_id, made_ms, tuple(sorted(owned)))
            blob.set(record.key, record.encode())


def list_forks(blob: Blob, shard: str) -> list[ForkRecord]:
    """All records beside a shard, oldest first. Raises `CorruptArtifact` naming one that can't be read."""
    records = []
    for entry in blob.list_keys_and_metadata(_prefix(shard)):
        data = blob.get(entry.key)
        if data is None:
            continue
        try:
            body = json.loads(data)
            if body.pop("version") != RECORD_VERSION:
                raise UnknownVersion(f"{entry.key} was written by a newer release; upgrade this one")
            records.append(ForkRecord(**{**body, "keys": tuple(body["keys"])}))
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptArtifact(f"record of a fork {entry.key} can't be read: {error!r}") from error
    return sorted(records, key=lambda record: (record.made_ms, record.fork))


def unrecorded(blob: Blob, fork: str, batches: Iterable[HollowBatch]) -> list[str]:
    """Manifests of other shards that `fork` names and no record beside them does: GC might take them."""
    foreign = [batch.manifest_key for batch in batches if owner_of(batch.manifest_key) != fork]
    recorded = {
        key
        for shard in sorted({owner_of(key) for key in foreign})
        for record in list_forks(blob, shard)
        if record.fork == fork
        for key in record.keys
    }
    return [key for key in foreign if key not in recorded]


def _prefix(shard: str) -> str:
    return f"{shard}/forks/"
