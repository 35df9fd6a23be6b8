"""Sealed bytes of a shard's state; a damaged one is refused, and one of an unknown version.

    {"sha256": ..., "kind": "shard_state", "version": 1, "write_id": <uuid7>, "written_ms": ..., "state": {...}}

The write id makes every version's bytes unique: that is how a lost answer of a compare-and-set is resolved by reading
back. Batches are the one part that grows, so each is a row, and what follows from its neighbor is left out:

    [upper, attempt, manifest_sha256, size_bytes, insertions, retractions, err_insertions, err_retractions, history,
     changed]

The lower is the upper of the row before (`first_lower` for the first). The attempt stands for the manifest's key; a
manifest elsewhere (of another shard, in a fork) has its whole key. `changed` is 1 more than a run's `run_changed_at`, 0
for any other batch. Trailing zeros are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from persist_core.errors import Corruption
from persist_core.frontier import Frontier
from persist_core.schema import CollectionSchema
from persist_core.shard.batch import BatchCounts, HollowBatch, SourceFrontier
from persist_core.shard.invariants import check_state
from persist_core.shard.keys import manifest_key
from persist_core.shard.sealed import seal, unseal
from persist_core.shard.state import Commit, Hold, Lease, ShardState

STATE_VERSION = 1
_STATE = "shard_state"
_NAMED = 3  # what every row has: upper, attempt, digest
_NUMBERS = 7  # what follows; trailing zeros are left out
_ZEROS = (0,) * _NUMBERS


@dataclass(frozen=True)
class StateVersion:
    """One decoded version: who wrote it when, and the state."""

    write_id: str
    written_ms: int
    state: ShardState


def encode_state(version: StateVersion) -> bytes:
    """Sealed bytes: the same value always gives the same bytes."""
    state = version.state
    body = {
        "write_id": version.write_id,
        "written_ms": version.written_ms,
        "state": {
            "shard": state.shard,
            "seqno": state.seqno,
            "since": state.since.time,
            "upper": state.upper.time,
            "schema": state.schema.to_json() if state.schema else None,
            "first_lower": state.batches[0].lower if state.batches else None,
            "batches": _rows(state.shard, state.batches),
            "commits": [vars(commit) for commit in state.commits],
            "leases": {
                name: {"since": lease.since.time, "heartbeat_ms": lease.heartbeat_ms, "duration_ms": lease.duration_ms}
                for name, lease in state.leases.items()
            },
            "holds": {name: {"since": hold.since.time, "opaque": hold.opaque} for name, hold in state.holds.items()},
            "sources": {name: asdict(source) for name, source in state.sources.items()},
            "operators": dict(state.operators),
        },
    }
    return seal(_STATE, STATE_VERSION, body)


def decode_state(data: bytes, *, what: str = "state") -> StateVersion:
    """The inverse of `encode_state`; also checks the invariants.

    Raises `CorruptArtifact` and `UnknownVersion` naming `what`, `Corruption` (no state) or `InvariantViolation`.
    """
    body = unseal(data, kind=_STATE, version=STATE_VERSION, what=what)
    try:
        decoded = StateVersion(write_id=body["write_id"], written_ms=body["written_ms"], state=_decoded(body["state"]))
    except (KeyError, TypeError, ValueError) as error:
        raise Corruption(f"{what} is malformed: {error!r}. Run `persist fsck`") from error
    check_state(decoded.state)
    return decoded


def _decoded(body: dict[str, Any]) -> ShardState:
    return ShardState(
        shard=body["shard"],
        seqno=body["seqno"],
        since=Frontier(body["since"]),
        upper=Frontier(body["upper"]),
        schema=CollectionSchema.from_json(body["schema"]) if body["schema"] else None,
        batches=_batches(body["shard"], body["first_lower"], body["batches"]),
        commits=tuple(Commit(**commit) for commit in body["commits"]),
        leases={name: Lease(**{**lease, "since": Frontier(lease["since"])}) for name, lease in body["leases"].items()},
        holds={name: Hold(Frontier(hold["since"]), hold["opaque"]) for name, hold in body["holds"].items()},
        sources={name: SourceFrontier(**source) for name, source in body["sources"].items()},
        operators=body["operators"],
    )


def _rows(shard: str, batches: Iterable[HollowBatch]) -> list[list[Any]]:
    front, back = _around_attempt(shard)
    rows = []
    for batch in batches:
        key, counts = batch.manifest_key, batch.counts
        if key.startswith(front) and key.endswith(back) and "/" not in key[len(front) : -len(back)]:
            key = key[len(front) : -len(back)]
        row = [
            batch.upper,
            key,
            batch.manifest_sha256,
            batch.size_bytes,
            counts.insertions,
            counts.retractions,
            counts.err_insertions,
            counts.err_retractions,
            counts.history,
            0 if batch.run_changed_at is None else batch.run_changed_at + 1,
        ]
        while len(row) > _NAMED and not row[-1]:
            row.pop()
        rows.append(row)
    return rows


def _batches(shard: str, lower: int, rows: Sequence[Sequence[Any]]) -> tuple[HollowBatch, ...]:
    front, back = _around_attempt(shard)
    batches = []
    for row in rows:
        upper, key, sha256 = row[:_NAMED]
        numbers = [*row[_NAMED:], *_ZEROS[len(row) - _NAMED :]]
        if "/" not in key:
            key = f"{front}{key}{back}"
        size_bytes, *counts, changed = numbers
        run_changed_at = changed - 1 if changed else None
        batches.append(HollowBatch(lower, upper, key, sha256, BatchCounts(*counts), size_bytes, run_changed_at))
        lower = upper
    return tuple(batches)


def _around_attempt(shard: str) -> tuple[str, str]:
    """What stands before and after the attempt in the key of a manifest of the shard."""
    front, _, back = manifest_key(shard, "\0").partition("\0")
    return front, back
