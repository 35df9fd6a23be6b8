"""How much history a shard keeps: `since` follows the upper at a distance, held back by leases and holds.

    since = the least of   upper - history     what the collection or view asks for (`history:`)
                           leases              of readers, until they expire
                           holds               of views, pinned checkpoints and programs, until they are released

It never goes back, and it moves only here, so a shard whose history is `all` keeps all of it, whatever its readers do.
A checkpoint that is not pinned needs no hold: retention keeps only checkpoints within the history, so none of them
lies before `upper - history`.

A hold never moves `since` itself, so its owner may move it up at any time. Holders with a prefix: `view/<view>` (what
the view's newest refresh has read) and `pin/<checkpoint id>` (what a restore to a pinned checkpoint needs).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from persist_core.errors import InvalidInput, NotReadable
from persist_core.frontier import ZERO, Frontier
from persist_core.shard.state import Hold, HoldMismatch, Released, ShardState, check_room, expire_leases, release_lease
from persist_core.time_text import check_time, show_duration

HISTORY = "history"  # as the name of a holder: the definition itself


@dataclass(frozen=True)
class Holder:
    """A reason that `since` does not advance: the history (`kind` is `history`), a `lease`, or a `hold`."""

    kind: str
    name: str
    since: Frontier


@dataclass(frozen=True)
class Advance:
    """The result of `advance_since`. `held_by` blocks it first: `None` if `since` is where the history puts it."""

    before: Frontier
    since: Frontier
    held_by: Holder | None


def set_history(state: ShardState, history_ms: int | None) -> tuple[ShardState, int | None]:
    """Keep `history_ms` before the upper from now on (`None`: all). Returns what it was. Moves no frontier.

    With a longer history than before, what `since` has passed stays unreadable.
    """
    if history_ms is not None:
        check_time(history_ms, what="history_ms")
    if history_ms == state.history_ms:
        return state, history_ms
    return replace(state, history_ms=history_ms), state.history_ms


def history_start(state: ShardState) -> Frontier:
    """The earliest time that the history keeps. With a history of 0 that is the newest readable time.

    For a closed shard the history counts from the lower of its last commit, since no time is the last one.
    """
    if state.history_ms is None:
        return ZERO
    newest = state.newest_commit
    end = state.upper.time if state.upper.time is not None else newest.lower if newest else 0
    return Frontier(max(0, end - max(1, state.history_ms)))


def holders(state: ShardState, *, now_ms: int) -> tuple[Holder, ...]:
    """Everything that holds `since` back, the one that blocks it first at the start. Expired leases hold nothing."""
    found = [Holder("lease", name, each.since) for name, each in state.leases.items() if not each.has_expired(now_ms)]
    found += [Holder("hold", name, each.since) for name, each in state.holds.items()]
    return tuple(sorted([Holder(HISTORY, HISTORY, history_start(state)), *found], key=_earliest_first))


def _earliest_first(holder: Holder) -> tuple[Frontier, bool, str]:
    return holder.since, holder.kind != HISTORY, holder.name


def held_back_by(state: ShardState, *, now_ms: int) -> Holder | None:
    """The lease or hold that blocks `since` first; `None` if the history alone decides."""
    first = holders(state, now_ms=now_ms)[0]
    return None if first.kind == HISTORY else first


def advance_since(state: ShardState, *, now_ms: int) -> tuple[ShardState, Advance]:
    """Move `since` as far as all holders allow, and remove the leases that have expired. Idempotent."""
    if state.is_dropped:
        return state, Advance(state.since, state.since, None)
    held_by = held_back_by(state, now_ms=now_ms)
    since = max(state.since, held_by.since if held_by else history_start(state))
    after, _ = expire_leases(state, now_ms=now_ms)
    if since != state.since:
        after = replace(after, since=since)
    return after, Advance(state.since, since, held_by)


def show_history(history_ms: int | None) -> str:
    """A history in words: `all`, `0`, `30 days`."""
    if history_ms is None or history_ms == 0:
        return "all" if history_ms is None else "0"
    return show_duration(history_ms, units=4)


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


def checked_reason(reason: str) -> str:
    """The reason that a user gives, stripped. Raises `InvalidInput` if it is empty or too long."""
    found = reason.strip()
    if not 1 <= len(found) <= MAX_REASON_CHARS:
        raise InvalidInput(f"the reason has {len(found)} characters; expected 1 to {MAX_REASON_CHARS}")
    return found


def end_holder(
    state: ShardState, holder: str, *, now_ms: int, by: str, reason: str
) -> tuple[ShardState, Released | None]:
    """End the lease or the hold of `holder` in its owner's place, and record it.

    `None` if there is no such holder; the earlier record if it was ended already. Raises `InvalidInput` for an empty or
    too long reason.
    """
    reason = checked_reason(reason)
    held = state.leases.get(holder) or state.holds.get(holder)
    if held is None:
        return state, next((each for each in reversed(state.released) if each.holder == holder), None)
    record = Released(holder, held.since.time, now_ms, by, reason)
    after, _ = release_hold(release_lease(state, holder)[0], holder)
    return replace(after, released=(*state.released, record)[-MAX_RELEASED:]), record
