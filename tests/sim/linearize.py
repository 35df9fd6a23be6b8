"""Was a recorded history of one consensus key possible for a store that does one call at a time?

    calls, each with the moments of its begin and its end --find_order--> an order that explains every answer, or None

A history is linearizable (Herlihy and Wing, 1990) if its calls can be put in an order that a plain list of versions
would have answered the same way, such that a call that ended before another began comes first. The search is theirs
as Wing and Gong (1993) wrote it down, with Lowe's (2017) memory of (calls done, state) pairs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, TypeVar

from persist_core.errors import Determinate, InvalidSeqNo, StorageError
from persist_core.location.consensus import SCAN_ALL, CaSResult, Consensus, VersionedData

NEVER: Final = 2**62  # when a call ends whose answer never came: it may still take effect

# The search is exponential in the number of calls that overlap; a history that needs more is too long for a test.
MAX_STATES = 2_000_000

MAX_SHOWN_BYTES = 90  # of one version, in an explanation; a shard's write id lies beyond its batches

Answer = TypeVar("Answer")
Versions = tuple[VersionedData, ...]
Effect = Callable[[Versions], tuple[Versions, object]]


@dataclass(frozen=True)
class Call:
    """One call: what it does to a plain list of versions, the answer it got, and when (logical moments)."""

    text: str
    effect: Effect = field(compare=False, repr=False)
    answer: object
    begin: int
    end: int

    @property
    def answered(self) -> bool:
        return self.end != NEVER


class Recorder:
    """Calls a consensus key and records the results. Share one among all threads of a history."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._lock = threading.Lock()
        self._moment = 0
        self.calls: list[Call] = []

    def compare_and_set(self, consensus: Consensus, expected: int | None, new: VersionedData) -> CaSResult | None:
        """`None` if the answer is unknown."""
        answer = self._answer(lambda: RecordedConsensus(consensus, self).compare_and_set(self._key, expected, new))
        return answer if isinstance(answer, CaSResult) else None

    def head(self, consensus: Consensus) -> VersionedData | None:
        """`None` also if the answer is unknown."""
        answer = self._answer(lambda: RecordedConsensus(consensus, self).head(self._key))
        return answer if isinstance(answer, VersionedData) else None

    def scan(self, consensus: Consensus, from_seqno: int, limit: int = SCAN_ALL) -> None:
        self._answer(lambda: RecordedConsensus(consensus, self).scan(self._key, from_seqno, limit))

    def truncate(self, consensus: Consensus, seqno: int) -> None:
        self._answer(lambda: RecordedConsensus(consensus, self).truncate(self._key, seqno))

    def _answer(self, action: Callable[[], object]) -> object:
        """The result, for a caller that does not need the error."""
        try:
            return action()
        except (InvalidSeqNo, StorageError):
            return None

    def record(self, text: str, effect: Effect, action: Callable[[], Answer], *, is_read: bool = False) -> Answer:
        """Carry out `action` and record its result; an error is recorded and raised again."""
        begin = self._next_moment()
        try:
            answer = action()
        except InvalidSeqNo:
            self._append(text, effect, InvalidSeqNo, begin, self._next_moment())
            raise
        except Determinate:
            raise  # it promises to have done nothing: then the rest must be explained without it
        except BaseException:  # no answer, or the caller died while it waited for one
            if not is_read:  # a read without an answer leaves nothing to explain
                self._append(text, effect, None, begin, NEVER)
            raise
        self._append(text, effect, tuple(answer) if isinstance(answer, list) else answer, begin, self._next_moment())
        return answer

    def _append(self, text: str, effect: Effect, answer: object, begin: int, end: int) -> None:
        self.calls.append(Call(text, effect, answer, begin, end))

    def _next_moment(self) -> int:
        with self._lock:
            self._moment += 1
            return self._moment


class RecordedConsensus:
    """A `Consensus` whose calls `recorder` records. All must be about the recorder's key."""

    def __init__(self, inner: Consensus, recorder: Recorder) -> None:
        self._inner = inner
        self._recorder = recorder

    def list_keys(self) -> Iterator[str]:
        return self._inner.list_keys()

    def head(self, key: str) -> VersionedData | None:
        return self._recorder.record(
            "head()",
            lambda versions: (versions, versions[-1] if versions else None),
            lambda: self._inner.head(key),
            is_read=True,
        )

    def compare_and_set(self, key: str, expected: int | None, new: VersionedData) -> CaSResult:
        def effect(versions: Versions) -> tuple[Versions, object]:
            current = versions[-1].seqno if versions else None
            if current != expected:
                return versions, CaSResult.EXPECTATION_MISMATCH
            return (*versions, new), CaSResult.COMMITTED

        return self._recorder.record(
            f"compare_and_set({expected}, {_shown(new)})",
            effect,
            lambda: self._inner.compare_and_set(key, expected, new),
        )

    def scan(self, key: str, from_seqno: int, limit: int = SCAN_ALL) -> list[VersionedData]:
        def effect(versions: Versions) -> tuple[Versions, object]:
            return versions, tuple(version for version in versions if version.seqno >= from_seqno)[:limit]

        return self._recorder.record(
            f"scan({from_seqno}, {limit})", effect, lambda: self._inner.scan(key, from_seqno, limit), is_read=True
        )

    def truncate(self, key: str, seqno: int) -> int:
        def effect(versions: Versions) -> tuple[Versions, object]:
            if not versions or seqno > versions[-1].seqno:
                return versions, InvalidSeqNo
            kept = tuple(version for version in versions if version.seqno >= seqno)
            return kept, len(versions) - len(kept)

        return self._recorder.record(f"truncate({seqno})", effect, lambda: self._inner.truncate(key, seqno))

    def close(self) -> None:
        self._inner.close()

    @property
    def uri(self) -> str:
        return self._inner.uri


def find_order(calls: list[Call], final: Versions) -> list[Call] | None:
    """An order of `calls` that explains every answer and ends in `final`; `None` if none exists.

    Calls without an answer may be anywhere after their begin, or nowhere. Raises `RuntimeError` past `MAX_STATES`.
    """
    calls = sorted(calls, key=lambda call: call.begin)
    answered = sum(1 << index for index, call in enumerate(calls) if call.answered)
    # Each entry: the calls done so far (bits), the state they lead to, and the order they were done in.
    pending: list[tuple[int, Versions, tuple[int, ...]]] = [(0, (), ())]
    seen: set[tuple[int, Versions]] = set()
    while pending:
        done, versions, order = pending.pop()
        if done & answered == answered and versions == final:
            return [calls[index] for index in order]
        if (done, versions) in seen:
            continue
        seen.add((done, versions))
        if len(seen) > MAX_STATES:
            raise RuntimeError(f"a history of {len(calls)} calls needs more than {MAX_STATES} states: make it shorter")
        waiting = [index for index in range(len(calls)) if not done >> index & 1]
        first_end = min((calls[index].end for index in waiting), default=NEVER)
        for index in reversed(waiting):
            call = calls[index]
            if call.begin > first_end:
                continue  # some call that is still waiting had ended before this one began
            after, answer = call.effect(versions)
            if not call.answered and after == versions:
                continue  # it had no effect and no answer: the same as left out
            if not call.answered or answer == call.answer:
                pending.append((done | 1 << index, after, (*order, index)))
    return None


def explain(calls: list[Call], final: Versions) -> str:
    """The history as text, for the message of a test that failed."""
    lines = [
        f"[{call.begin}, {call.end if call.answered else 'never'}) {call.text} -> {_shown(call.answer)}"
        for call in sorted(calls, key=lambda call: call.begin)
    ]
    return "\n".join(["no order of these calls explains them:", *lines, f"final: {_shown(final)}"])


def _shown(value: object) -> str:
    """Versions by their beginning: a shard's state is long."""
    if isinstance(value, tuple):
        return f"({', '.join(_shown(one) for one in value)})"
    if isinstance(value, VersionedData) and len(value.data) > MAX_SHOWN_BYTES:
        return f"VersionedData({value.seqno}, {value.data[:MAX_SHOWN_BYTES]!r}...)"
    return str(value)
