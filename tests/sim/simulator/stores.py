"""The two stores as simulated actors see them: every call is a point at which the scheduler decides.

    actor --> SimulatedBlob / SimulatedConsensus --> Scheduler.call: fate --> the real `mem:` store --> Witness

The witness gets every change right after it happened, from any actor and with any answer to the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol, TypeVar

from persist_core.errors import Determinate, Indeterminate
from persist_core.keys import attempt_of
from persist_core.location.blob import Blob, BlobMetadata
from persist_core.location.consensus import SCAN_ALL, CaSResult, Consensus, VersionedData
from tests.sim.simulator.scheduler import Scheduler
from tests.sim.simulator.script import Action

Answer = TypeVar("Answer")

BY_SIMULATION = "by the simulation"  # in the message of every error that the simulation makes up


class Witness(Protocol):
    """Sees what happens to the stores, and fails the simulation if it must not happen."""

    def wrote(self, key: str, before: bytes | None, data: bytes) -> None:
        """A blob was written; `before` is what it held."""
        ...

    def deleted(self, key: str) -> None:
        """A blob was deleted."""
        ...

    def listed(self, prefix: str) -> None:
        """Blobs are about to be listed."""
        ...

    def committed(self, key: str, version: VersionedData) -> None:
        """A compare-and-set went through."""
        ...


class Unseen:
    """A witness that sees nothing: of another location than the one under test."""

    def wrote(self, key: str, before: bytes | None, data: bytes) -> None:
        pass

    def deleted(self, key: str) -> None:
        pass

    def listed(self, prefix: str) -> None:
        pass

    def committed(self, key: str, version: VersionedData) -> None:
        pass


class _Simulated:
    """The shared part of both stores: carry out a call as its fate says."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._late = 0

    def call(self, operation: str, key: str, action: Callable[[], Answer], *, may_be_late: bool = False) -> Answer:
        text = f"{operation} {key}"
        fate = self._scheduler.call(text)
        if fate is Action.REFUSE:
            raise Determinate(f"{text} was refused {BY_SIMULATION}; nothing was changed")
        if fate is Action.LATE and may_be_late:
            self._late += 1
            self._scheduler.start(f"{self._scheduler.current}-late-{self._late}", partial(_do, action))
        elif fate is not Action.LOSE_REQUEST and fate is not Action.LATE:
            answer = action()
            if fate is None:
                return answer
            if fate is Action.CRASH_AFTER:
                self._scheduler.die()
        raise Indeterminate(f"{text} went unanswered {BY_SIMULATION}; it may have happened")


def _do(action: Callable[[], object]) -> None:
    action()


class SimulatedBlob:
    """A `Blob` for actors. `set` is never late: a store that let an old `_latest` arrive would be another one."""

    def __init__(self, inner: Blob, scheduler: Scheduler, witness: Witness) -> None:
        self._inner = inner
        self._witness = witness
        self._simulated = _Simulated(scheduler)

    def get(self, key: str) -> bytes | None:
        return self._simulated.call("get", key, lambda: self._inner.get(key))

    def set(self, key: str, data: bytes) -> None:
        def put() -> None:
            before = self._inner.get(key)
            self._inner.set(key, data)
            self._witness.wrote(key, before, data)

        self._simulated.call("set", key, put)

    def delete(self, key: str) -> int | None:
        def delete() -> int | None:
            size_bytes = self._inner.delete(key)
            self._witness.deleted(key)
            return size_bytes

        return self._simulated.call("delete", key, delete)

    def list_keys_and_metadata(self, prefix: str) -> Iterator[BlobMetadata]:
        def list_all() -> Iterator[BlobMetadata]:
            self._witness.listed(prefix)
            return self._inner.list_keys_and_metadata(prefix)

        return self._simulated.call("list", prefix, list_all)

    def uri_of(self, key: str) -> str:
        return self._inner.uri_of(key)

    def make_durable(self, prefix: str) -> None:
        self._simulated.call("make_durable", prefix, lambda: self._inner.make_durable(prefix))

    def close(self) -> None:
        self._inner.close()

    @property
    def uri(self) -> str:
        return self._inner.uri


class SlowToCommit(SimulatedBlob):
    """The `Blob` of an actor that may be slow between staging a manifest and the compare-and-set that names it.

    Writes, merges, restores and forks stage one. An append reads it in between, and may be slow before and after that.
    """

    def __init__(self, inner: Blob, scheduler: Scheduler, witness: Witness, be_slow: Callable[[], None]) -> None:
        super().__init__(inner, scheduler, witness)
        self._be_slow = be_slow
        self._staged: set[str] = set()

    def get(self, key: str) -> bytes | None:
        found = super().get(key)
        if key in self._staged:
            self._be_slow()
        return found

    def set(self, key: str, data: bytes) -> None:
        super().set(key, data)
        if attempt_of(key) is not None:
            self._staged.add(key)
            self._be_slow()


class SimulatedConsensus:
    """A `Consensus` for actors. Its compare-and-sets may be late, as on any network."""

    def __init__(self, inner: Consensus, scheduler: Scheduler, witness: Witness) -> None:
        self._inner = inner
        self._witness = witness
        self._simulated = _Simulated(scheduler)

    def list_keys(self) -> Iterator[str]:
        return self._simulated.call("list_keys", "", self._inner.list_keys)

    def head(self, key: str) -> VersionedData | None:
        return self._simulated.call("head", key, lambda: self._inner.head(key))

    def compare_and_set(self, key: str, expected: int | None, new: VersionedData) -> CaSResult:
        def compare_and_set() -> CaSResult:
            result = self._inner.compare_and_set(key, expected, new)
            if result is CaSResult.COMMITTED:
                self._witness.committed(key, new)
            return result

        return self._simulated.call("compare_and_set", key, compare_and_set, may_be_late=True)

    def scan(self, key: str, from_seqno: int, limit: int = SCAN_ALL) -> list[VersionedData]:
        return self._simulated.call("scan", key, lambda: self._inner.scan(key, from_seqno, limit))

    def truncate(self, key: str, seqno: int) -> int:
        return self._simulated.call("truncate", key, lambda: self._inner.truncate(key, seqno))

    def close(self) -> None:
        self._inner.close()

    @property
    def uri(self) -> str:
        return self._inner.uri
