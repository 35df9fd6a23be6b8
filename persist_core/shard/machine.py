"""The only way to change a shard's state: a step of the loop in `shard.register`.

    head -> decode -> transition -> check invariants -> encode -> compare_and_set

If the version that a lost answer left behind has been truncated since, the transition is asked again on the newest
state; every command is idempotent (tokens, reader ids), so the answer is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from persist_core.clock import Clock
from persist_core.errors import ShardNotFound
from persist_core.ids import Ids
from persist_core.location.consensus import Consensus, VersionedData
from persist_core.shard.codec import StateVersion, encode_state, read_version
from persist_core.shard.invariants import check_step
from persist_core.shard.register import Register
from persist_core.shard.state import ShardState, expire_leases

R = TypeVar("R")
Transition = Callable[[ShardState], tuple[ShardState, R]]


class Machine:
    """Runs transitions on shards. Thread-safe if its consensus is. `before_new`: called before a shard is made."""

    def __init__(
        self, consensus: Consensus, clock: Clock, ids: Ids, before_new: Callable[[], None] = lambda: None
    ) -> None:
        self._register = Register(consensus, clock, ids)
        self._clock = clock
        self._ids = ids
        self._before_new = before_new

    def fetch(self, shard: str) -> ShardState | None:
        """The newest state, or `None` if the shard was never created."""
        head = self._register.head(shard)
        return None if head is None else read_version(shard, head)

    def forget(self, state: ShardState, *, kept: int) -> None:
        """Delete all versions but the `kept` newest ones up to `state`."""
        if state.seqno >= kept:
            self._register.truncate(state.shard, state.seqno - kept + 1)

    def apply(self, shard: str, transition: Transition[R], *, create: bool = False) -> tuple[ShardState, R]:
        """Run `transition` on the newest state and commit its result; returns the version that is then the newest.

        A transition that returns the same state commits nothing. Any other also removes expired leases, so
        that none holds `since` longer than until the next change. With `create` a missing shard starts out empty;
        else it is `ShardNotFound`. Raises `StorageError` if the store stays down; `Indeterminate` then means that
        the command may still have happened, and giving it again is safe.
        """

        def step(head: VersionedData | None) -> tuple[VersionedData | None, tuple[ShardState, R]]:
            if head is None and not create:
                raise ShardNotFound(f"no shard {shard!r} in {self._register.uri}")
            if head is None:
                self._before_new()
            before = None if head is None else read_version(shard, head)
            after, result = transition(ShardState(shard) if before is None else before)
            if before is not None and after is before:
                return None, (after, result)
            after, _ = expire_leases(after, now_ms=self._clock.now_ms())
            after = replace(after, seqno=after.seqno + 1)
            check_step(before, after)
            encoded = encode_state(StateVersion(self._ids.uuid7(), self._clock.now_ms(), after))
            return VersionedData(after.seqno, encoded), (after, result)

        return self._register.change(shard, step, f"shard {shard!r}")
