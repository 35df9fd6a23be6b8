"""State of operators as a batch stages it: files, what each one holds at most, and the digest of a chain of them.

    artifacts of the last full state ── of each delta since ──> the chain: what the next batch starts from

What a file holds is part of the digest that commits bind. So a batch may rely on it and leave the file closed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from persist_core.errors import InvalidInput
from persist_core.shard.key_range import Key, KeyRange, Scalar

OrderKey = tuple[Scalar | None, ...]  # the fields of an order as `shard.key_range` has scalars


@dataclass(frozen=True)
class OrderFacts:
    """What a file of the order index holds besides entries of slots that a batch asks for.

    `floor`, `forgotten`: the highest order of these kinds, and the time at which it acted; `None`: none of the kind.
    `deleted`: its tombstones by time, in a few steps: the first time of the step, and the highest order in it.
    `has_bad_keys`: whether an entry belongs to a slot without a key.
    """

    floor: tuple[OrderKey, int] | None
    forgotten: tuple[OrderKey, int] | None
    deleted: tuple[tuple[OrderKey, int], ...]
    has_bad_keys: bool


_FACTS = ("rows", "first_time", "last_time", "first_key", "last_key", "orders")


@dataclass(frozen=True)
class StateArtifact:
    """One file of operator state: where its bytes are, and their SHA-256 (hex).

    `rows` are all between `first_time` and `last_time` and between `first_key` and `last_key` (`shard.key_range`;
    `None`: not known, or no bound). `orders` is set for the order index.
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

    @property
    def keys(self) -> KeyRange:
        """The range of its keys."""
        return KeyRange(self.first_key, self.last_key)

    @property
    def facts(self) -> dict[str, Any]:
        """What is known of its rows, as plain data."""
        named = asdict(self)
        return {name: named[name] for name in _FACTS if named[name] is not None}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> StateArtifact:
        """The inverse of `dataclasses.asdict`, from JSON."""
        keys = {name: _tuple(body.get(name)) for name in ("first_key", "last_key")}
        orders = body.get("orders")
        return cls(**{**body, **keys, "orders": None if orders is None else OrderFacts(**_tuples(orders))})


@dataclass(frozen=True)
class OperatorState:
    """What one batch stages of one operator's state: all of it, or (`is_delta`) what it adds to the chain before it.

    A delta without artifacts leaves the chain as it is. An operator without state is not named at all.
    """

    is_delta: bool
    artifacts: tuple[StateArtifact, ...]

    def __post_init__(self) -> None:
        if not self.is_delta and not self.artifacts:
            raise InvalidInput("a full operator state without artifacts; leave the operator out if it has no state")

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> OperatorState:
        """The inverse of `dataclasses.asdict`, from JSON."""
        return cls(body["is_delta"], tuple(map(StateArtifact.from_json, body["artifacts"])))


def chain_digest(artifacts: Iterable[StateArtifact], *, after: str = "") -> str:
    """The digest of a chain of artifacts, oldest first; `after` is that of the chain that they continue."""
    digest = after
    for artifact in artifacts:
        facts = json.dumps(artifact.facts, sort_keys=True, separators=(",", ":"))
        digest = hashlib.sha256(f"{digest}{artifact.sha256}{facts}".encode()).hexdigest()
    return digest


def _tuples(orders: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _tuple(value) if isinstance(value, list) else value for name, value in orders.items()}


def _tuple(value: Any) -> Any:
    """Lists as tuples, at every level."""
    return tuple(map(_tuple, value)) if isinstance(value, (list, tuple)) else value
