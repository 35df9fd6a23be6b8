"""Backends that fail on purpose, by seed or by script: what a network can do to a request and to its answer.

    | outcome      | it happened | the caller hears              |
    | ------------ | ----------- | ----------------------------- |
    | DONE         | yes         | the answer                    |
    | LOST_ANSWER  | yes         | `Indeterminate`               |
    | LOST_REQUEST | no          | `Indeterminate`               |
    | REFUSED      | no          | `Determinate`                 |
    | LATE         | later       | `Indeterminate`, before it did |

Wrap any backend: `UnreliableConsensus(inner, SeededFaults(ids))`. Wrong arguments are refused as by a healthy store, as
every backend does before it talks to its store. With one seed and one thread a run repeats itself exactly.
"""

from __future__ import annotations

import enum
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, TypeVar

from persist_core.errors import Determinate, Indeterminate, InvalidInput, PersistError
from persist_core.ids import Ids
from persist_core.location.blob import Blob, BlobMetadata, check_blob_data, check_blob_key, check_blob_prefix
from persist_core.location.consensus import (
    SCAN_ALL,
    CaSResult,
    Consensus,
    VersionedData,
    check_cas,
    check_consensus_key,
    check_scan,
    check_truncation,
)

Answer = TypeVar("Answer")

# A late request arrives after at most this many later calls on the same wrapper (or when it is closed).
MAX_LATENESS_CALLS = 4


class Outcome(enum.Enum):
    """The outcome of one call. See the module's table."""

    DONE = "done"
    LOST_ANSWER = "lost_answer"
    LOST_REQUEST = "lost_request"
    REFUSED = "refused"
    LATE = "late"


class Faults(Protocol):
    """Decides the outcome of each call."""

    def outcome(self, operation: str) -> Outcome:
        """The outcome of this call of `operation` (the method's name)."""
        ...

    def lateness_calls(self) -> int:
        """After how many later calls a `LATE` request arrives: 1 to `MAX_LATENESS_CALLS`."""
        ...


@dataclass(frozen=True)
class FaultRates:
    """The probability of each outcome; the rest is `DONE`."""

    lost_answer: float = 0.1
    lost_request: float = 0.1
    refused: float = 0.1
    late: float = 0.0

    def __post_init__(self) -> None:
        rates = (self.lost_answer, self.lost_request, self.refused, self.late)
        if min(rates) < 0 or sum(rates) > 1:
            raise InvalidInput(f"fault rates {rates}: expected no negative rate and a sum of at most 1")


class SeededFaults:
    """Random faults; `SeededIds` makes them repeatable."""

    def __init__(self, ids: Ids, rates: FaultRates | None = None) -> None:
        self._ids = ids
        rates = rates or FaultRates()
        self._rates = (
            (Outcome.LOST_ANSWER, rates.lost_answer),
            (Outcome.LOST_REQUEST, rates.lost_request),
            (Outcome.REFUSED, rates.refused),
            (Outcome.LATE, rates.late),
        )

    def outcome(self, operation: str) -> Outcome:
        del operation  # all operations fail alike
        draw = self._ids.jitter()
        for outcome, rate in self._rates:
            if draw < rate:
                return outcome
            draw -= rate
        return Outcome.DONE

    def lateness_calls(self) -> int:
        return 1 + int(self._ids.jitter() * MAX_LATENESS_CALLS)


class ScriptedFaults:
    """Faults by script: for each operation the outcomes of its first calls, then always `DONE`.

    `ScriptedFaults(compare_and_set=[Outcome.LOST_ANSWER])`
    """

    def __init__(self, **outcomes: Iterable[Outcome]) -> None:
        self._outcomes = {operation: deque(script) for operation, script in outcomes.items()}

    def outcome(self, operation: str) -> Outcome:
        script = self._outcomes.get(operation)
        return script.popleft() if script else Outcome.DONE

    def lateness_calls(self) -> int:
        return 1


class _Unreliable:
    """The part that both wrappers share: carries out calls and their faults, one at a time, and keeps the late ones."""

    def __init__(self, faults: Faults, name: str) -> None:
        self._faults = faults
        self._name = name
        self._lock = threading.Lock()
        self._late: list[tuple[int, Callable[[], object]]] = []
        self.injected: Counter[Outcome] = Counter()

    def call(self, operation: str, action: Callable[[], Answer]) -> Answer:
        with self._lock:
            due = self._tick()
            outcome = self._faults.outcome(operation)
            self.injected[outcome] += 1
            if outcome is Outcome.LATE:
                self._late.append((self._faults.lateness_calls(), action))
        for late in due:
            _unheard(late)
        match outcome:
            case Outcome.DONE:
                return action()
            case Outcome.REFUSED:
                raise Determinate(f"{self._name}: {operation} was refused by fault injection; nothing was changed")
            case Outcome.LOST_ANSWER:
                _unheard(action)
        raise Indeterminate(f"{self._name}: {operation} went unanswered by fault injection; it may have happened")

    def deliver_late(self) -> None:
        """Let all late requests arrive now."""
        with self._lock:
            due = [action for _, action in self._late]
            self._late = []
        for action in due:
            _unheard(action)

    def _tick(self) -> list[Callable[[], object]]:
        due = [action for calls, action in self._late if calls <= 1]
        self._late = [(calls - 1, action) for calls, action in self._late if calls > 1]
        return due


def _unheard(action: Callable[[], object]) -> None:
    """Carry out a request whose caller no longer waits: its answer or error is discarded."""
    with suppress(PersistError):
        action()


class UnreliableConsensus:
    """A `Consensus` whose calls meet faults. `injected` counts them."""

    def __init__(self, inner: Consensus, faults: Faults) -> None:
        self._inner = inner
        self._unreliable = _Unreliable(faults, inner.uri)

    @property
    def injected(self) -> Counter[Outcome]:
        return self._unreliable.injected

    def deliver_late(self) -> None:
        """Let all late requests arrive now."""
        self._unreliable.deliver_late()

    def list_keys(self) -> Iterator[str]:
        return self._unreliable.call("list_keys", self._inner.list_keys)

    def head(self, key: str) -> VersionedData | None:
        check_consensus_key(key)
        return self._unreliable.call("head", lambda: self._inner.head(key))

    def compare_and_set(self, key: str, expected: int | None, new: VersionedData) -> CaSResult:
        check_cas(key, expected, new)
        return self._unreliable.call("compare_and_set", lambda: self._inner.compare_and_set(key, expected, new))

    def scan(self, key: str, from_seqno: int, limit: int = SCAN_ALL) -> list[VersionedData]:
        check_scan(key, from_seqno, limit)
        return self._unreliable.call("scan", lambda: self._inner.scan(key, from_seqno, limit))

    def truncate(self, key: str, seqno: int) -> int:
        check_truncation(key, seqno)
        return self._unreliable.call("truncate", lambda: self._inner.truncate(key, seqno))

    def close(self) -> None:
        self.deliver_late()
        self._inner.close()

    @property
    def uri(self) -> str:
        return self._inner.uri


class UnreliableBlob:
    """A `Blob` whose calls meet faults; a faulty listing breaks off half way. `injected` counts them.

    `LATE` on `set` breaks the promise that other bytes are written only under another key if the test itself
    overwrites: leave its rate at 0 there.
    """

    def __init__(self, inner: Blob, faults: Faults) -> None:
        self._inner = inner
        self._unreliable = _Unreliable(faults, inner.uri)

    @property
    def injected(self) -> Counter[Outcome]:
        return self._unreliable.injected

    def deliver_late(self) -> None:
        """Let all late requests arrive now."""
        self._unreliable.deliver_late()

    def get(self, key: str) -> bytes | None:
        check_blob_key(key)
        return self._unreliable.call("get", lambda: self._inner.get(key))

    def set(self, key: str, data: bytes) -> None:
        check_blob_key(key)
        check_blob_data(key, data)
        self._unreliable.call("set", lambda: self._inner.set(key, data))

    def delete(self, key: str) -> int | None:
        check_blob_key(key)
        return self._unreliable.call("delete", lambda: self._inner.delete(key))

    def list_keys_and_metadata(self, prefix: str) -> Iterator[BlobMetadata]:
        check_blob_prefix(prefix)
        return self._listing(prefix)

    def _listing(self, prefix: str) -> Iterator[BlobMetadata]:
        found = list(self._inner.list_keys_and_metadata(prefix))
        half = len(found) // 2
        yield from found[:half]
        yield from self._unreliable.call("list_keys_and_metadata", lambda: found[half:])

    def uri_of(self, key: str) -> str:
        return self._inner.uri_of(key)

    def make_durable(self, prefix: str) -> None:
        check_blob_prefix(prefix)
        self._unreliable.call("make_durable", lambda: self._inner.make_durable(prefix))

    def close(self) -> None:
        self.deliver_late()
        self._inner.close()

    @property
    def uri(self) -> str:
        return self._inner.uri
