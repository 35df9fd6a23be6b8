"""Transitions of critical holds, and the record of those that a user ended.

A hold keeps `since` back until it is released. It never moves `since` itself (`shard.history` does), so its owner may
move it up at any time. Holders with a prefix: `view/<view>` (what the view's newest refresh has read) and
`pin/<checkpoint id>` (what a restore to a pinned checkpoint needs).
"""

from __future__ import annotations

from dataclasses import replace

from persist_core.errors import InvalidInput, NotReadable
from persist_core.frontier import Frontier
from persist_core.shard.state import Hold, HoldMismatch, Released, ShardState, check_room

VIEW, PIN = "view/", "pin/"
MAX_RELEASED = 32  # records: for people who ask why a reader has lost its lease; older ones are dropped
MAX_REASON_CHARS = 500


def register_hold(
    state: ShardState, holder: str, *, opaque: str, since: Frontier | None = None
) -> tuple[ShardState, Hold]:
    """Register the critical reader `holder` at `since` (default: the shard's); one that exists is returned unchanged.

    Raises `NotReadable` if the shard has given up `since` already.
    """
    known = state.holds.get(holder)
    if known is not None:
        return state, known
    since = state.since if since is None else since
    if since < state.since:
        raise NotReadable(
            f"shard {state.shard}: since is {state.since}; expected at most {since}, to hold it for {holder}. The"
            " history before since is gone"
        )
    check_room(state, len(state.holds), "critical holds")
    hold = Hold(since=since, opaque=opaque)
    return replace(state, holds={**state.holds, holder: hold}), hold


def compare_and_downgrade_hold(
    state: ShardState, holder: str, *, expected_opaque: str, opaque: str, since: Frontier
) -> tuple[ShardState, Hold | HoldMismatch]:
    """Move `holder` up to `since` and to the token `opaque` iff its token is `expected_opaque`.

    A lower `since` than the hold's is kept at the hold's. Raises `NotReadable` for an unknown holder.
    """
    hold = state.holds.get(holder)
    if hold is None:
        raise NotReadable(f"shard {state.shard} has no critical hold {holder!r}; register it first")
    moved = Hold(since=max(hold.since, since), opaque=opaque)
    if moved == hold:
        return state, hold
    if hold.opaque != expected_opaque:
        return state, HoldMismatch(hold)
    return replace(state, holds={**state.holds, holder: moved}), moved


def release_hold(state: ShardState, holder: str) -> tuple[ShardState, bool]:
    """Release a critical hold. False if it was gone already."""
    if holder not in state.holds:
        return state, False
    return replace(state, holds={name: hold for name, hold in state.holds.items() if name != holder}), True


def end_holder(
    state: ShardState, holder: str, *, now_ms: int, by: str, reason: str
) -> tuple[ShardState, Released | None]:
    """End the lease or the hold of `holder` in its owner's place, and record it.

    `None` if there is no such holder; the earlier record if it was ended already. Raises `InvalidInput` for an empty or
    too long reason.
    """
    if not 1 <= len(reason.strip()) <= MAX_REASON_CHARS:
        raise InvalidInput(f"the reason has {len(reason.strip())} characters; expected 1 to {MAX_REASON_CHARS}")
    held = state.leases.get(holder) or state.holds.get(holder)
    if held is None:
        return state, next((each for each in reversed(state.released) if each.holder == holder), None)
    record = Released(holder, held.since.time, now_ms, by, reason.strip())
    after = replace(
        state,
        leases={name: lease for name, lease in state.leases.items() if name != holder},
        holds={name: hold for name, hold in state.holds.items() if name != holder},
        released=(*state.released, record)[-MAX_RELEASED:],
    )
    return after, record
