"""One key of consensus as a register: read it, and replace it by compare-and-set with a definite answer.

    head -> (the caller makes new bytes) -> compare_and_set
                                                  | indeterminate: offer the very same bytes again

Why offering the same bytes again is correct: they carry a unique write id and a fixed seqno. Either they land now, or
the answer is a mismatch, and then the version at that seqno is read back: our write id there means that an earlier
try, whose answer was lost, has won.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from persist_core.clock import Clock
from persist_core.errors import Determinate, Indeterminate, StorageError
from persist_core.ids import Ids
from persist_core.location.consensus import CaSResult, Consensus, VersionedData

R = TypeVar("R")

MAX_STORE_TRIES = 8  # per round: a store that fails this often in a row is down, and the caller gets the error
BACKOFF_BASE_MS = 5
BACKOFF_CAP_MS = 2_000


class Register:
    """Reads and replaces single keys of a consensus store. Thread-safe if the store is."""

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

    def replace(
        self, key: str, expected: int | None, new: VersionedData, *, is_ours: Callable[[bytes], bool], what: str
    ) -> bool:
        """One compare-and-set to its definite answer. False: another writer won.

        `is_ours` says whether the bytes of a version are those of this very call. Raises `StorageError` if the store
        stays down; after `Indeterminate` the write may have happened. `what` is for messages.
        """
        may_have_happened = False
        for attempt in range(MAX_STORE_TRIES):
            try:
                result = self._consensus.compare_and_set(key, expected, new)
            except Determinate:
                if attempt + 1 == MAX_STORE_TRIES and not may_have_happened:
                    raise
            except StorageError as error:
                may_have_happened = True
                if attempt + 1 == MAX_STORE_TRIES:
                    raise Indeterminate(f"{what}: no answer in {MAX_STORE_TRIES} tries: {error}") from error
            else:
                if result is CaSResult.COMMITTED:
                    return True
                return may_have_happened and self._has(key, new.seqno, is_ours)
            self.back_off(attempt)
        raise Indeterminate(f"{what}: no answer in {MAX_STORE_TRIES} tries; giving the command again is safe")

    def _has(self, key: str, seqno: int, is_ours: Callable[[bytes], bool]) -> bool:
        versions = self._retried(lambda: self._consensus.scan(key, seqno, 1))
        return bool(versions) and versions[0].seqno == seqno and is_ours(versions[0].data)

    def _retried(self, read: Callable[[], R]) -> R:
        for attempt in range(MAX_STORE_TRIES - 1):
            try:
                return read()
            except StorageError:
                self.back_off(attempt)
        return read()

    def back_off(self, attempt: int) -> None:
        """Exponential backoff with full jitter."""
        cap_ms = min(BACKOFF_CAP_MS, BACKOFF_BASE_MS * 2 ** min(attempt, 20))
        self._clock.sleep_ms(int(self._ids.jitter() * cap_ms) + 1)
