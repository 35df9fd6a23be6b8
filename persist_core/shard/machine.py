"""The only loop that changes a shard's state.

    head -> decode -> transition -> check invariants -> compare_and_set (`shard.register`)
      ^                                                      | mismatch: another writer won, start over
      +------------------------------------------------------+

If the version that a lost answer left behind has been truncated since, the transition is asked again on the newest
state; every command is idempotent (tokens, reader ids), so the answer is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from persist_core.clock import Clock
from persist_core.errors import Corruption, Determinate, ShardNotFound
from persist_core.ids import Ids
from persist_core.location.consensus import Consensus, VersionedData
from persist_core.shard.codec import StateVersion, decode_state, encode_state
from persist_core.shard.invariants import check_step
from persist_core.shard.register import Register
from persist_core.shard.state import ShardState, expire_leases

R = TypeVar("R")
Transition = Callable[[ShardState], tuple[ShardState, R]]

MAX_ROUNDS = 64  # lost races in a row; 8 writers need about 3


class Machine:
    """Runs transitions on shards. Thread-safe if its consensus is."""

    def __init__(self, consensus: Consensus, clock: Clock, ids: Ids) -> None:
        self._register = Register(consensus, clock, ids)
        self._clock = clock
        self._ids = ids

    def fetch(self, shard: str) -> ShardState | None:
        """The newest state, or `None` if the shard was never created."""
        head = self._register.head(shard)
        return None if head is None else _decoded(shard, head)

    def apply(self, shard: str, transition: Transition[R], *, create: bool = False) -> tuple[ShardState, R]:
        """Run `transition` on the newest state and commit its result; returns the version that is then the newest.

        A transition that returns the same state commits nothing. Any other also removes expired leases, so
        that none holds `since` longer than until the next change. With `create` a missing shard starts out empty;
        else it is `ShardNotFound`. Raises `StorageError` if the store stays down; `Indeterminate` then means that
        the command may still have happened, and giving it again is safe.
        """
        for round_number in range(MAX_ROUNDS):
            head = self._register.head(shard)
            if head is None and not create:
                raise ShardNotFound(f"no shard {shard!r} in {self._register.uri}")
            before = None if head is None else _decoded(shard, head)
            after, result = transition(ShardState(shard) if before is None else before)
            if before is not None and after is before:
                return after, result
            after, _ = expire_leases(after, now_ms=self._clock.now_ms())
            after = replace(after, seqno=after.seqno + 1)
            check_step(before, after)
            if self._commit(before, after):
                return after, result
            self._register.back_off(round_number)
        raise Determinate(
            f"shard {shard!r}: lost {MAX_ROUNDS} races in a row in {self._register.uri}; nothing was changed."
            " Reduce the number of concurrent writers, or try again"
        )

    def _commit(self, before: ShardState | None, after: ShardState) -> bool:
        """One compare-and-set to its definite answer. False: another writer won."""
        shard, write_id = after.shard, self._ids.uuid7()
        expected = None if before is None else before.seqno
        new = VersionedData(after.seqno, encode_state(StateVersion(write_id, self._clock.now_ms(), after)))
        return self._register.replace(
            shard,
            expected,
            new,
            is_ours=lambda data: decode_state(data).write_id == write_id,
            what=f"shard {shard!r}",
        )


def _decoded(shard: str, version: VersionedData) -> ShardState:
    state = decode_state(version.data, what=f"version {version.seqno} of the state of shard {shard}").state
    if state.seqno != version.seqno:
        raise Corruption(f"shard {state.shard}: version {version.seqno} holds the state of version {state.seqno}")
    return state
