"""The only retry loop and the only caller of `compare_and_set`.

    head -> decode -> transition -> check invariants -> compare_and_set
      ^                                                      | mismatch: another writer won, start over
      +------------------------------------------------------+ indeterminate: offer the very same bytes again

Why offering the same bytes again is correct: they carry a unique write id and a fixed seqno. Either they land now, or
the answer is a mismatch, and then the version at that seqno is read back: our write id there means that an earlier
try, whose answer was lost, has won. If that version has been truncated since, the transition is asked again on the
newest state; every command is idempotent (tokens, reader ids), so the answer is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from persist_core.clock import Clock
from persist_core.errors import Corruption, Determinate, Indeterminate, ShardNotFound, StorageError
from persist_core.ids import Ids
from persist_core.location.consensus import CaSResult, Consensus, VersionedData
from persist_core.shard.codec import StateVersion, decode_state, encode_state
from persist_core.shard.invariants import check_step
from persist_core.shard.state import ShardState, expire_leases

R = TypeVar("R")
Transition = Callable[[ShardState], tuple[ShardState, R]]

MAX_ROUNDS = 64  # lost races in a row; 8 writers need about 3
MAX_STORE_TRIES = 8  # per round: a store that fails this often in a row is down, and the caller gets the error
BACKOFF_BASE_MS = 5
BACKOFF_CAP_MS = 2_000


class Machine:
    """Runs transitions on shards. Thread-safe if its consensus is."""

    def __init__(self, consensus: Consensus, clock: Clock, ids: Ids) -> None:
        self._consensus = consensus
        self._clock = clock
        self._ids = ids

    def fetch(self, shard: str) -> ShardState | None:
        """The newest state, or `None` if the shard was never created."""
        head = self._head(shard)
        return None if head is None else _decoded(shard, head)

    def apply(self, shard: str, transition: Transition[R], *, create: bool = False) -> tuple[ShardState, R]:
        """Run `transition` on the newest state and commit its result; returns the version that is then the newest.

        A transition that returns the same state commits nothing. Any other also removes expired leases, so
        that none holds `since` longer than until the next change. With `create` a missing shard starts out empty;
        else it is `ShardNotFound`. Raises `StorageError` if the store stays down; `Indeterminate` then means that
        the command may still have happened, and giving it again is safe.
        """
        for round_number in range(MAX_ROUNDS):
            head = self._head(shard)
            if head is None and not create:
                raise ShardNotFound(f"no shard {shard!r} in {self._consensus.uri}")
            before = None if head is None else _decoded(shard, head)
            after, result = transition(ShardState(shard) if before is None else before)
            if before is not None and after is before:
                return after, result
            after, _ = expire_leases(after, now_ms=self._clock.now_ms())
            after = replace(after, seqno=after.seqno + 1)
            check_step(before, after)
            if self._commit(before, after):
                return after, result
            self._back_off(round_number)
        raise Determinate(
            f"shard {shard!r}: lost {MAX_ROUNDS} races in a row in {self._consensus.uri}; nothing was changed."
            " Reduce the number of concurrent writers, or try again"
        )

    def _commit(self, before: ShardState | None, after: ShardState) -> bool:
        """One compare-and-set to its definite answer. False: another writer won."""
        shard, write_id = after.shard, self._ids.uuid7()
        expected = None if before is None else before.seqno
        new = VersionedData(after.seqno, encode_state(StateVersion(write_id, self._clock.now_ms(), after)))
        may_have_happened = False
        for attempt in range(MAX_STORE_TRIES):
            try:
                result = self._consensus.compare_and_set(shard, expected, new)
            except Determinate:
                if attempt + 1 == MAX_STORE_TRIES and not may_have_happened:
                    raise
            except StorageError as error:
                may_have_happened = True
                if attempt + 1 == MAX_STORE_TRIES:
                    raise Indeterminate(f"shard {shard!r}: no answer in {MAX_STORE_TRIES} tries: {error}") from error
            else:
                if result is CaSResult.COMMITTED:
                    return True
                return may_have_happened and self._wrote(shard, new.seqno, write_id)
            self._back_off(attempt)
        raise Indeterminate(f"shard {shard!r}: no answer in {MAX_STORE_TRIES} tries; giving the command again is safe")

    def _wrote(self, shard: str, seqno: int, write_id: str) -> bool:
        versions = self._retried(lambda: self._consensus.scan(shard, seqno, 1))
        return bool(versions) and versions[0].seqno == seqno and decode_state(versions[0].data).write_id == write_id

    def _head(self, shard: str) -> VersionedData | None:
        return self._retried(lambda: self._consensus.head(shard))

    def _retried(self, read: Callable[[], R]) -> R:
        for attempt in range(MAX_STORE_TRIES - 1):
            try:
                return read()
            except StorageError:
                self._back_off(attempt)
        return read()

    def _back_off(self, attempt: int) -> None:
        """Exponential backoff with full jitter."""
        cap_ms = min(BACKOFF_CAP_MS, BACKOFF_BASE_MS * 2 ** min(attempt, 20))
        self._clock.sleep_ms(int(self._ids.jitter() * cap_ms) + 1)


def _decoded(shard: str, version: VersionedData) -> ShardState:
    state = decode_state(version.data, what=f"version {version.seqno} of the state of shard {shard}").state
    if state.seqno != version.seqno:
        raise Corruption(f"shard {state.shard}: version {version.seqno} holds the state of version {state.seqno}")
    return state
