"""The transitions by which a shard takes over the history of another one: of a copy, and of its new generation.

`receive`, by `persist copy`: a shard becomes a copy of the same shard in another location, or moves there.

    source  A: 1 2 3 4 5                           copied by one compare-and-set of the target
    target  A: 1 2 3       ──receive──> A: 1..5    an older copy
            A: 1 2 3, B: 4 ──────────> `ANOTHER`   something was appended here: never replaced
            A: 1..6        ──────────> `AHEAD`     a later copy: left as it is
            A: 1..5, erased ─────────> `AHEAD`     too: keys were erased here since, by no commit
            A: 1..3, erased ─────────> `ANOTHER`   of keys that were not erased in the source

What a copy takes from its own place: versions and eras, so that neither counts back, and the leases of its readers.

`swap_in`, by `persist rebuild`: a shard goes on with the history of another shard, its new generation.

    NAME      batches of the old definition, up to u  ──swap──>  batches of NAME~rebuild, and one empty [u, u + 1)
    NAME~g7   a fork of the old state, made before

1. One compare-and-set, at the shard's upper: before it readers see only the old generation, after it only the new one.
2. Since, leases, holds and the length of the history stay. The upper moves, so `u` is the first time of the generation:
   what a consumer knows about earlier times may be different now (`GenerationChanged`).
3. It is a new life (`shard.origin`): no checkpoint, replay or merge of the old one can be applied to it. Its one commit
   stands for all that it holds, as in a fork.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from persist_core.contents.batch import BatchManifest, HollowBatch
from persist_core.contents.erased import ErasedList
from persist_core.contents.schema_versions import SchemaVersions
from persist_core.errors import InvalidInput
from persist_core.frontier import Frontier
from persist_core.shard.history import PIN
from persist_core.shard.origin import Origin, Swap
from persist_core.shard.state import Committed, Hold, ShardState, UpperMismatch, begin, upper_mismatch


@dataclass(frozen=True)
class Received:
    """The shard is a copy of the source's state. `is_new` is False if it was that already."""

    is_new: bool


@dataclass(frozen=True)
class NotReceived:
    """Nothing was changed. `ahead`: a later state of the same shard is there; `another`: it has commits that the source
    does not have; `too_late`: GC may have deleted what the copier has stored, so it is to begin again."""

    why: str


AHEAD, ANOTHER, TOO_LATE = NotReceived("ahead"), NotReceived("another"), NotReceived("too_late")
ErasedLists = Mapping[str, ErasedList]
"""Lists of erasures by their keys."""
NO_LISTS: ErasedLists = MappingProxyType({})


def receive(
    state: ShardState, source: ShardState, *, era: int, erased: ErasedLists = NO_LISTS, moving_to: str | None = None
) -> tuple[ShardState, Received | NotReceived]:
    """Make the shard a copy of `source`, a state of the same shard in another location; all objects are here already.

    `era`: this shard's before the copier looked up which objects are here; 0 if the shard did not exist. `erased`: the
    lists of erasures that the copier has found in both places.
    `moving_to`: this place, if the shard is to move here. Until it has, no commit is accepted here, because the source
    may still have one that comes before it.
    """
    if (relation := relation_of(state, source, erased)) is not None:
        return state, relation
    if era < state.oldest_era:
        return state, TOO_LATE
    since = max(state.since, source.since)
    seqno = max(state.seqno, source.seqno - 1)  # the machine adds one: seqnos of commits stay below the state's
    later = max(0, source.era - state.era)  # eras; each refuses an earlier one, as if GC had begun it
    after = replace(
        source,
        seqno=seqno,
        since=since,
        leases={name: lease for name, lease in state.leases.items() if lease.since >= since},
        holds={name: Hold(max(hold.since, since), hold.opaque) for name, hold in source.holds.items()},
        origin=Origin(source.origin.branches, received=seqno + 1, moved_to=moving_to),
        era=state.era + later,
        oldest_era=state.oldest_era + later,
    )
    if source.commits and not state.commits:  # what was described at the source is never appended here
        after = replace(after, era=after.era + 1, oldest_era=after.era + 1)
    received = state.origin.received
    if replace(after, seqno=state.seqno, origin=replace(after.origin, received=received)) == state:
        return state, Received(is_new=False)
    return after, Received(is_new=True)


def relation_of(state: ShardState, source: ShardState, erased: ErasedLists = NO_LISTS) -> NotReceived | None:
    """Why the shard is not to become a copy of `source`; `None` if it is an older copy of it, or empty."""
    ours, theirs = _epoch(state), _epoch(source)
    is_level = (state.origin.branches, ours) == (source.origin.branches, theirs)
    is_later = not is_level and state.origin.is_before(ours, source.origin, theirs)
    if state.erased not in (None, source.erased) and (is_level or (is_later and state.commits)):
        return _relation_of_erasures(erased, state.erased, source.erased, is_level=is_level)
    if is_level or is_later:
        return None
    return AHEAD if source.origin.is_before(theirs, state.origin, ours) else ANOTHER


def _relation_of_erasures(erased: ErasedLists, ours: str, theirs: str | None, *, is_level: bool) -> NotReceived | None:
    """As `relation_of`, for a source with the same commits (`is_level`), or more: an erasure may have made none."""
    if theirs is None:
        return AHEAD if is_level else ANOTHER
    if not {ours, theirs} <= erased.keys():  # an erasure has come in between
        return TOO_LATE
    here, there = erased[ours], erased[theirs]
    if there.goes_on_from(here) or (not is_level and there.knows(here)):
        return None
    return AHEAD if is_level and here.goes_on_from(there) else ANOTHER


def is_received(before: ShardState, after: ShardState) -> bool:
    return after.origin.received == after.seqno and before.origin.received != after.seqno


def move_away(state: ShardState, place: str) -> tuple[ShardState, None]:
    """Accept no more commits: they go to `place`. Raises `ShardMoved` if it was moved elsewhere before."""
    origin = state.origin.moved(state.shard, place)
    return (state if origin == state.origin else replace(state, origin=origin)), None


def _epoch(state: ShardState) -> int:
    newest = state.newest_commit
    return newest.epoch if newest else 0


def swap_in(
    state: ShardState,
    manifest: BatchManifest,
    manifest_key: str,
    *,
    batches: tuple[HollowBatch, ...],
    schemas: SchemaVersions,
    swap: Swap,
) -> tuple[ShardState, Committed | UpperMismatch]:
    """Replace everything that the shard holds by `batches`, which end at its upper, and the empty batch `manifest`.

    Idempotent by token. `UpperMismatch` if another writer has advanced the shard, or the manifest's era is refused.
    Raises as `check_not_pinned`.
    """
    if (known := state.commit_with(manifest.token)) is not None:
        return state, Committed(known, is_new=False)
    if state.upper != Frontier(manifest.lower) or manifest.era < state.oldest_era:
        return state, upper_mismatch(state, manifest)
    check_not_pinned(state)
    origin = state.origin.swapped(state.shard, manifest_key, manifest.epoch, swap)
    begun = replace(state, batches=(*batches, manifest.hollow(manifest_key)), schemas=schemas, origin=origin)
    return begin(begun, manifest, manifest_key, swap.swapped_ms)


def check_not_pinned(state: ShardState) -> None:
    """Raise `InvalidInput` if checkpoints of the shard are pinned: a swap would lose them."""
    pinned = sorted(holder.removeprefix(PIN) for holder in state.holds if holder.startswith(PIN))
    if pinned:
        raise InvalidInput(
            f"checkpoints of {state.shard} are pinned: {', '.join(pinned)}. They belong to the present generation. Fork"
            " them (`persist restore --to CHECKPOINT --as NEW_SHARD`) if they are to stay, then `persist unpin` them."
            f" Nothing of {state.shard} was changed"
        )
