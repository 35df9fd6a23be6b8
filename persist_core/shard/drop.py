"""The transitions that end a shard and begin it again. What is left in between is a name and its eras.

[since, upper) ──drop──> both closed, no batches ──create_again──> [0, 0), in an era of its own
"""

from __future__ import annotations

from persist_core.errors import InvalidInput
from persist_core.frontier import CLOSED, Frontier
from persist_core.shard.state import ShardState


def drop(state: ShardState) -> tuple[ShardState, ShardState]:
    """Close both frontiers and forget everything else. Returns what there was; a second call changes nothing.

    Batches that were described before are refused, also by a shard of the same name that is created later.
    """
    if state.is_dropped:
        return state, state
    return _bare(state, CLOSED), state


def create_again(state: ShardState) -> tuple[ShardState, None]:
    """Make the shard as empty as a new one. Raises `InvalidInput` unless it is dropped."""
    if not state.is_dropped:
        raise InvalidInput(f"shard {state.shard} is not dropped (since {state.since}, upper {state.upper})")
    return _bare(state, Frontier(0)), None


def is_end_or_beginning(before: ShardState, after: ShardState) -> bool:
    """True if `after` is what one of these transitions makes of `before`."""
    return before.is_dropped != after.is_dropped and after == _bare(before, after.upper, seqno=after.seqno)


def _bare(state: ShardState, frontier: Frontier, *, seqno: int | None = None) -> ShardState:
    era = state.era + 1
    return ShardState(
        state.shard,
        seqno=state.seqno if seqno is None else seqno,
        since=frontier,
        upper=frontier,
        era=era,
        oldest_era=era,
    )
