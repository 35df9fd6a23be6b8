"""A list of keys that were garbage in an era. It is stored first; its keys are deleted eras later, if they still are.

<shard>/gc/<era>/<uuid7>.json   sealed {"shard", "era", "seqno", "marked_ms", "garbage": [[key, size_bytes], ...]}
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from persist_core.errors import CorruptArtifact
from persist_core.keys import era_in, owner_of
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
        """Why it is not needed, for people."""
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
