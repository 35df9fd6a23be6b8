"""Versioned bytes of a shard's state. An unknown version is refused, an old one is read for ever.

A version's body is canonical JSON, so that one version explains itself to anybody with a JSON viewer:
`{"version": 1, "write_id": <uuid7>, "written_ms": ..., "state": {...}}`. The write id makes every version's bytes
unique: that is how a lost answer of a compare-and-set is resolved by reading back.

A state is written in the oldest version that can say it, so that an older release refuses only what it can't know:
version 2 has commits that are restores.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from persist_core.errors import Corruption, UnknownVersion
from persist_core.frontier import Frontier
from persist_core.schema import CollectionSchema
from persist_core.shard.batch import BatchCounts, HollowBatch, SourceFrontier
from persist_core.shard.invariants import check_state
from persist_core.shard.state import Commit, Hold, Lease, ShardState

STATE_VERSION = 2
_WITHOUT_RESTORES = 1


@dataclass(frozen=True)
class StateVersion:
    """One decoded version: who wrote it when, and the state."""

    write_id: str
    written_ms: int
    state: ShardState


def encode_state(version: StateVersion) -> bytes:
    """Canonical bytes: the same value always gives the same bytes."""
    state = version.state
    commits = [asdict(commit) for commit in state.commits]
    has_restores = any(commit.restored_from is not None for commit in state.commits)
    if not has_restores:
        commits = [{name: value for name, value in commit.items() if name != "restored_from"} for commit in commits]
    body = {
        "version": STATE_VERSION if has_restores else _WITHOUT_RESTORES,
        "write_id": version.write_id,
        "written_ms": version.written_ms,
        "state": {
            "shard": state.shard,
            "seqno": state.seqno,
            "since": state.since.time,
            "upper": state.upper.time,
            "schema": state.schema.to_json() if state.schema else None,
            "batches": [asdict(batch) for batch in state.batches],
            "commits": commits,
            "leases": {name: {**asdict(lease), "since": lease.since.time} for name, lease in state.leases.items()},
            "holds": {name: {"since": hold.since.time, "opaque": hold.opaque} for name, hold in state.holds.items()},
            "sources": {name: asdict(source) for name, source in state.sources.items()},
        },
    }
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


def decode_state(data: bytes) -> StateVersion:
    """The inverse of `encode_state`; also checks the invariants.

    Raises `UnknownVersion`, `Corruption` (bytes that are no state) or `InvariantViolation`.
    """
    try:
        body = json.loads(data)
        version = body["version"]
    except (ValueError, KeyError, TypeError) as error:
        raise Corruption(f"state of {len(data)} bytes can't be read: {error}. Run `persist fsck`") from error
    if version not in (_WITHOUT_RESTORES, STATE_VERSION):
        raise UnknownVersion(
            f"state version {version!r}; this release reads up to {STATE_VERSION}. Upgrade airflow-persist on this"
            " machine"
        )
    try:
        decoded = StateVersion(write_id=body["write_id"], written_ms=body["written_ms"], state=_decoded(body["state"]))
    except (KeyError, TypeError, ValueError) as error:
        raise Corruption(f"state version {version} is malformed: {error!r}. Run `persist fsck`") from error
    check_state(decoded.state)
    return decoded


def _decoded(body: dict[str, Any]) -> ShardState:
    return ShardState(
        shard=body["shard"],
        seqno=body["seqno"],
        since=Frontier(body["since"]),
        upper=Frontier(body["upper"]),
        schema=CollectionSchema.from_json(body["schema"]) if body["schema"] else None,
        batches=tuple(HollowBatch(**{**b, "counts": BatchCounts(**b["counts"])}) for b in body["batches"]),
        commits=tuple(Commit(**commit) for commit in body["commits"]),
        leases={name: Lease(**{**lease, "since": Frontier(lease["since"])}) for name, lease in body["leases"].items()},
        holds={name: Hold(Frontier(hold["since"]), hold["opaque"]) for name, hold in body["holds"].items()},
        sources={name: SourceFrontier(**source) for name, source in body["sources"].items()},
    )
