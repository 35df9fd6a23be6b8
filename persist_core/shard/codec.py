"""Sealed bytes of a shard's state. Damaged bytes and unknown versions are refused.

    {"sha256": ..., "kind": "shard_state", "version": 1, "write_id": <uuid7>, "written_ms": ..., "state": {...}}

The write id makes every version's bytes unique: this is how a lost answer of a compare-and-set is resolved by reading
back. Batches are the one part that grows, so each is one line of text, with what follows from its neighbor left out:

    upper manifest_sha256 size_bytes insertions retractions err_insertions err_retractions history changed_at attempt

The lower is the upper of the line before (`first_lower` for the first); a closed upper is `-`. `changed_at` is a run's
`run_changed_at`, else `-`; `+` follows it if the run is partial. The attempt stands for the manifest's key; a manifest
elsewhere (of another shard, in a fork) has its whole key. A batch keeps the line that it was decoded from, so that an
append encodes one line, not all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

from persist_core.contents.batch import BatchCounts, HollowBatch
from persist_core.errors import Corruption
from persist_core.frontier import Frontier
from persist_core.keys import manifest_key
from persist_core.location.consensus import VersionedData
from persist_core.sealed import check_in_place, from_plain, seal, to_plain, unseal
from persist_core.shard.invariants import check_state
from persist_core.shard.state import ShardState

STATE_VERSION = 1  # raised by each new field: an older release must not write a state again without it
_STATE = "shard_state"
_FIELDS = 10  # of a batch's line
_CLOSED = _NONE = "-"
_PARTIAL = "+"
_LINE = "_line"  # where a batch keeps its shard and its line; not a field, so it is neither compared nor copied


@dataclass(frozen=True)
class StateVersion:
    """One decoded version: its writer, its time, and the state."""

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
            **to_plain(replace(state, batches=())),
            "since": state.since.time,
            "upper": state.upper.time,
            "schemas": state.schemas.to_json(),
            "first_lower": state.batches[0].lower if state.batches else None,
            "batches": _lines(state.shard, state.batches),
            "leases": {name: {**vars(lease), "since": lease.since.time} for name, lease in state.leases.items()},
            "holds": {name: {"since": hold.since.time, "opaque": hold.opaque} for name, hold in state.holds.items()},
        },
    }
    return seal(_STATE, STATE_VERSION, body)


def decode_state(data: bytes, *, what: str = "state") -> StateVersion:
    """The inverse of `encode_state`; also checks the invariants.

    Raises `CorruptArtifact` and `UnknownVersion` naming `what`, `Corruption` (no state) or `InvariantViolation`.
    """
    body = unseal(data, kind=_STATE, version=STATE_VERSION, what=what)
    try:
        decoded = StateVersion(body["write_id"], body["written_ms"], _decoded(body["state"], what))
    except (KeyError, TypeError, ValueError) as error:
        raise Corruption(f"{what} is malformed: {error!r}. Run `persist fsck`") from error
    check_state(decoded.state)
    return decoded


def read_version(shard: str, version: VersionedData) -> ShardState:
    """The state in a version of a shard's key. Raises as `decode_state`, and for the state of another place."""
    what = f"version {version.seqno} of the state of shard {shard}"
    state = decode_state(version.data, what=what).state
    check_in_place((state.shard, state.seqno), (shard, version.seqno), what=what)
    return state


def _decoded(body: dict[str, Any], what: str) -> ShardState:
    plain = {field.name: body[field.name] for field in fields(ShardState)}  # all of them are stored
    for name in ("since", "upper"):
        plain[name] = Frontier(body[name])
    for name in ("leases", "holds"):
        plain[name] = {holder: {**held, "since": Frontier(held["since"])} for holder, held in body[name].items()}
    plain["batches"] = _batches(body["shard"], body["first_lower"], body["batches"])
    return from_plain(ShardState, plain, what=what)


def _lines(shard: str, batches: Iterable[HollowBatch]) -> list[str]:
    front, back = _around_attempt(shard)
    lines = []
    for batch in batches:
        known: tuple[str, str] | None = vars(batch).get(_LINE)
        if known is None or known[0] != shard:  # the same line means another key in another shard
            known = vars(batch)[_LINE] = shard, _line(batch, front, back)
        lines.append(known[1])
    return lines


def _line(batch: HollowBatch, front: str, back: str) -> str:
    key, counts = batch.manifest_key, batch.counts
    if key.startswith(front) and key.endswith(back) and "/" not in key[len(front) : -len(back)]:
        key = key[len(front) : -len(back)]
    return (
        f"{_CLOSED if batch.upper is None else batch.upper} {batch.manifest_sha256} {batch.size_bytes}"
        f" {counts.insertions} {counts.retractions} {counts.err_insertions} {counts.err_retractions} {counts.history}"
        f" {_NONE if batch.run_changed_at is None else batch.run_changed_at}{_PARTIAL * batch.is_partial} {key}"
    )


def _batches(shard: str, lower: int, lines: Iterable[str]) -> tuple[HollowBatch, ...]:
    front, back = _around_attempt(shard)
    batches = []
    for line in lines:
        end, sha256, size, *facts, key = line.split(" ", _FIELDS - 1)
        upper = None if end == _CLOSED else int(end)
        if "/" not in key:
            key = f"{front}{key}{back}"
        *counts, changed = facts
        time = changed.removesuffix(_PARTIAL)
        run_changed_at = None if time == _NONE else int(time)
        counted = BatchCounts(*map(int, counts))
        batch = HollowBatch(lower, upper, key, sha256, counted, int(size), run_changed_at, time != changed)
        vars(batch)[_LINE] = shard, line
        batches.append(batch)
        lower = -1 if upper is None else upper  # nothing follows a closed batch
    return tuple(batches)


def _around_attempt(shard: str) -> tuple[str, str]:
    """The text before and after the attempt in the key of a manifest of the shard."""
    front, _, back = manifest_key(shard, "\0").partition("\0")
    return front, back
