"""The only loop that changes a key of consensus: read it, and replace it by compare-and-set with a definite answer.

    head -> (the caller makes the next version) -> compare_and_set
      ^                                              |  indeterminate: offer the very same bytes again
      +----- mismatch: another writer won -----------+

Why offering the same bytes again is correct: they carry a unique write id and a fixed seqno. Either they land now, or
the answer is a mismatch, and then the version at that seqno is read back: our bytes there mean that an earlier try,
whose answer was lost, has won.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from persist_core.clock import Clock, tries
from persist_core.errors import Determinate, Indeterminate, StorageError
from persist_core.ids import Ids
from persist_core.location.consensus import CaSResult, Consensus, VersionedData

R = TypeVar("R")

MAX_ROUNDS = 64  # lost races in a row; 8 writers need about 3
MAX_STORE_TRIES = 8  # per round: a store that fails this often in a row is down, and the caller gets the error
BACKOFF_BASE_MS = 5
BACKOFF_CAP_MS = 2_000


class Register:
    """Reads, replaces and truncates single keys of a consensus store. Thread-safe if the store is."""

    def __init__(self, consensus: Consensus, clock: Clock, ids: Ids) -> None:
        self._consensus = consensus
        self._clock = clock
        self._ids = ids

    @property
    def uri(self) -> str:
        """The store's URI, safe to print."""
        return self._consensus.uri

    def head(self, key: str) -> VersionedData | None:
        """The newest version, or `None` for a key without data."""
        return self._retried(lambda: self._consensus.head(key))

    def truncate(self, key: str, seqno: int) -> None:
        """Delete the versions before `seqno`, which is not above the newest one."""
        self._retried(lambda: self._consensus.truncate(key, seqno))

    def change(self, key: str, step: Callable[[VersionedData | None], tuple[VersionedData | None, R]], what: str) -> R:
        """Replace the newest version by what `step` makes of it, until no other writer is faster; its answer.

        `step` returns the next version, whose bytes no other call makes, or `None` to change nothing. Raises what it
        raises, and `StorageError` if the store stays down; after `Indeterminate` the write may have happened. `what` is
        for messages.
        """
        for round_number in range(MAX_ROUNDS):
            head = self.head(key)
            new, answer = step(head)
            if new is None or self._replace(key, None if head is None else head.seqno, new, what):
                return answer
            self._back_off(round_number)
        raise Determinate(
            f"{what}: lost {MAX_ROUNDS} races in a row in {self.uri}; this call changed nothing. Reduce the number of"
            " concurrent writers, or try again"
        )

    def _replace(self, key: str, expected: int | None, new: VersionedData, what: str) -> bool:
        """One compare-and-set to its definite answer. False: another writer won."""
        again = tries(self._clock, MAX_STORE_TRIES, self._back_off)
        may_have_happened = False
        while True:  # bounded by `again`
            try:
                if self._consensus.compare_and_set(key, expected, new) is CaSResult.COMMITTED:
                    return True
                return may_have_happened and self._has(key, new)
            except StorageError as error:
                may_have_happened = may_have_happened or not isinstance(error, Determinate)
                if again():
                    continue
                if not may_have_happened:
                    raise
                said = "no definite answer; giving the command again is safe"
                raise Indeterminate(f"{what}: {said}: {error}") from error

    def _has(self, key: str, version: VersionedData) -> bool:
        return self._consensus.scan(key, version.seqno, 1) == [version]

    def _retried(self, call: Callable[[], R]) -> R:
        """The answer of a call that changes nothing, or may be repeated."""
        again = tries(self._clock, MAX_STORE_TRIES, self._back_off)
        while True:  # bounded by `again`
            try:
                return call()
            except StorageError:
                if not again():
                    raise

    def _back_off(self, attempt: int) -> None:
        cap_ms = min(BACKOFF_CAP_MS, BACKOFF_BASE_MS * 2 ** min(attempt, 20))
        self._clock.sleep_ms(int(self._ids.jitter() * cap_ms) + 1)
