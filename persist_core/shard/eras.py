"""Eras: how GC knows that nothing can name a file any more, without trusting any clock; and a shard's end and new life.

    era 4 ─────────────── era 5 ─────────────── era 6 ───────────        state.era, moved by GC only
      │ mint reads era 4     │                     │ oldest_era = 5
      └─ stages files ───────┴── append: accepted  └── append: refused, and its files are garbage

1. A process that is to name staged files in a state reads the shard's era first, and only then stages or looks up
   files; the batch carries that era (`BatchManifest.era`).
2. A batch of an era before `oldest_era` is refused, by the same compare-and-set that would have named its files.
3. So a file that no state, checkpoint or fork needed in era `e` is never needed again once `oldest_era > e`: a batch
   of a later era names only what was needed all the time since, and files that were staged after that era. The names of
   frozen inputs and of segments of the ledger contain their era, and attempts have ids of their own, so these are other
   names.

Eras are counted, not timed. GC waits between two of them, so a clock that is wrong makes GC early or late for readers
without a lease and for slow writers; it never makes a committed file disappear.

    [since, upper) ──drop──> both closed, no batches ──create_again──> [0, 0), in an era of its own
"""

from __future__ import annotations

from dataclasses import replace

from persist_core.errors import InvalidInput
from persist_core.frontier import CLOSED, Frontier
from persist_core.shard.state import ShardState


def begin_era(state: ShardState, *, after: int, kept: int) -> tuple[ShardState, int]:
    """Begin the era that follows era `after`, unless that was done already; the era that is then the newest.

    Batches of the `kept` eras before it are still accepted.
    """
    if state.era != after:
        return state, state.era
    era = state.era + 1
    return replace(state, era=era, oldest_era=max(state.oldest_era, era - kept)), era


def refuse_earlier(state: ShardState) -> tuple[ShardState, int]:
    """Begin an era and refuse all batches of earlier ones; the new era."""
    return begin_era(state, after=state.era, kept=0)


def readers_before(state: ShardState, era: int, now_ms: int) -> tuple[str, ...]:
    """The readers with a lease whose read began before this era, by name."""
    return tuple(sorted(name for name, each in state.leases.items() if each.era < era and not each.has_expired(now_ms)))


def drop(state: ShardState) -> tuple[ShardState, ShardState]:
    """Close both frontiers and forget everything else but erasures. Returns what there was.

    A second call changes nothing.

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
        erased=state.erased,
    )
