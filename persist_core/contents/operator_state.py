"""State of operators as a batch stages it: files, what each one holds at most, and the digest of a chain of them.

    artifacts of the last full state ── of each delta since ──> the chain: what the next batch starts from

What a file holds is part of the digest that commits bind. So a batch may rely on it and leave the file closed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from persist_core.contents.key_range import Key, KeyRange, Scalar
from persist_core.errors import InvalidInput

OrderKey = tuple[Scalar | None, ...]  # the fields of an order as `contents.key_range` has scalars


@dataclass(frozen=True)
class OrderFacts:
    """The contents of a file of the order index besides entries of slots that a batch asks for.

    `floor`, `forgotten`: the highest order of these kinds, and the time at which it acted; `None`: none of the kind.
    `deleted`: its tombstones by time, in a few steps: the first time of the step, and the highest order in it.
    `has_bad_keys`: whether an entry belongs to a slot without a key.
    """

    floor: tuple[OrderKey, int] | None
    forgotten: tuple[OrderKey, int] | None
    deleted: tuple[tuple[OrderKey, int], ...]
    has_bad_keys: bool


FOLD_BYTES = 1 << 20  # to rewrite less than this costs no more than to open one more file, in every batch
_FACTS = ("rows", "first_time", "last_time", "first_key", "last_key", "orders", "is_sorted", "schema_version")


@dataclass(frozen=True)
class StateArtifact:
    """One file of operator state: where its bytes are, and their SHA-256 (hex).

    `rows` are all between `first_time` and `last_time` and between `first_key` and `last_key` (`contents.key_range`;
    `None`: not known, or no bound). `orders` is set for the order index. `is_sorted`: it is one of a set
    of files that are sorted together. `is_carried`: an earlier batch staged it, and a full state names it again.
    `schema_version`: the shard's schema in which it was written; 0: not known, so its rows cannot be read. If not
    `inherits`, no record in it leaves out a value.
    """

    partition_id: int
    key: str
    size_bytes: int
    sha256: str
    rows: int | None = None
    first_time: int | None = None
    last_time: int | None = None
    first_key: Key | None = None
    last_key: Key | None = None
    orders: OrderFacts | None = None
    is_sorted: bool | None = None
    is_carried: bool = False
    schema_version: int = 0
    inherits: bool = False

    @property
    def attempt(self) -> str | None:
        """The attempt that staged it; `None` for a copy in a checkpoint's folder."""
        _, folder, attempt, *_ = self.key.split("/")
        return attempt if folder == "batches" else None

    @property
    def keys(self) -> KeyRange:
        return KeyRange(self.first_key, self.last_key)

    @property
    def facts(self) -> dict[str, Any]:
        """Facts about its rows, as plain data."""
        named = asdict(self)
        return {name: named[name] for name in _FACTS if named[name] is not None}


@dataclass(frozen=True)
class OperatorState:
    """One batch's part of one operator's state: all of it, or (`is_delta`) what it adds to the chain before it.

    A full state names files of the chain before it again where rewriting them would gain nothing (`to_fold`). A delta
    without artifacts leaves the chain as it is. An operator without state is not named at all.
    """

    is_delta: bool
    artifacts: tuple[StateArtifact, ...]

    def __post_init__(self) -> None:
        if not self.is_delta and not self.artifacts:
            raise InvalidInput("a full operator state without artifacts; leave the operator out if it has no state")


def to_fold(chain: Sequence[StateArtifact]) -> tuple[tuple[StateArtifact, ...], tuple[StateArtifact, ...]]:
    """The files that a full state carries over from a chain, and the files that it rewrites as one sorted set.

    All that came since the last full state is rewritten; with it the files of older attempts, newest first, while they
    have no more bytes than what was chosen before them, or than `FOLD_BYTES`. So a byte is rewritten once, and then
    once for each doubling of the state, and a chain has as many attempts as the state has doublings, and the deltas
    since the last full state. Copies in the folders of checkpoints, which retention deletes, are always rewritten.
    """
    sizes: dict[str | None, int] = {}
    for artifact in chain:
        sizes[artifact.attempt] = sizes.get(artifact.attempt, 0) + artifact.size_bytes
    chosen = {artifact.attempt for artifact in chain if not artifact.is_sorted or artifact.attempt is None}
    chosen_bytes = sum(sizes[attempt] for attempt in chosen)
    for attempt, size_bytes in reversed(sizes.items()):
        if not chosen or (attempt not in chosen and size_bytes > max(chosen_bytes, FOLD_BYTES)):
            break
        chosen_bytes += 0 if attempt in chosen else size_bytes
        chosen.add(attempt)
    folded = tuple(artifact for artifact in chain if artifact.attempt in chosen)
    if len(folded) == 1 and folded[0].attempt is not None and folded[0].size_bytes <= FOLD_BYTES:
        folded = ()
    return tuple(replace(artifact, is_carried=True) for artifact in chain if artifact not in folded), folded


def chain_digest(artifacts: Iterable[StateArtifact], *, after: str = "") -> str:
    """The digest of a chain of artifacts, oldest first; `after`: of the chain that they continue."""
    digest = after
    for artifact in artifacts:
        facts = json.dumps(artifact.facts, sort_keys=True, separators=(",", ":"))
        digest = hashlib.sha256(f"{digest}{artifact.sha256}{facts}".encode()).hexdigest()
    return digest
