"""Concurrency that repeats itself: threads of which one runs at a time, the next one drawn by seed at every pause.

    player 1: --call--|pause|                 |pause|--call--
    player 2:               |--call--|pause|

Whatever the threads do between two pauses is one step. With the same seed the same steps come in the same order, so
a race that was found once is found again. `SteppedConsensus` pauses before and after each call, so that calls overlap.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from persist_core.ids import Ids
from persist_core.location.consensus import SCAN_ALL, CaSResult, Consensus, VersionedData

Answer = TypeVar("Answer")
Pause = Callable[[], None]

# A player that waits this long for its turn, in seconds, waits for one that hangs.
TURN_TIMEOUT_S = 60.0


def take_turns(ids: Ids, players: Sequence[Callable[[Pause], None]]) -> None:
    """Run all players to their ends, one step at a time, each with its `pause`. Raises what the first one raised."""
    _Game(ids, players).play()


class _Game:
    def __init__(self, ids: Ids, players: Sequence[Callable[[Pause], None]]) -> None:
        self._ids = ids
        self._players = players
        self._playing = list(range(len(players)))
        self._turns = [threading.Lock() for _ in players]  # open: it is that player's turn
        for turn in self._turns:
            turn.acquire()
        self._errors: list[BaseException] = []

    def play(self) -> None:
        threads = [threading.Thread(target=self._run, args=(number,), daemon=True) for number in self._playing]
        for thread in threads:
            thread.start()
        self._pass_on()
        for thread in threads:
            thread.join(TURN_TIMEOUT_S)
        if self._errors:
            raise self._errors[0]
        if any(thread.is_alive() for thread in threads):
            raise TimeoutError(f"a player did not come to its end within {TURN_TIMEOUT_S:g} s")

    def _run(self, number: int) -> None:
        try:
            self._wait(number)
            self._players[number](lambda: self._pause(number))
        except BaseException as error:  # noqa: BLE001 - it must reach the test
            self._errors.append(error)
        finally:
            self._playing.remove(number)
            self._pass_on()

    def _pause(self, number: int) -> None:
        self._pass_on()
        self._wait(number)

    def _pass_on(self) -> None:
        if self._playing:
            self._turns[self._playing[int(self._ids.jitter() * len(self._playing))]].release()

    def _wait(self, number: int) -> None:
        if not self._turns[number].acquire(timeout=TURN_TIMEOUT_S):
            raise TimeoutError(f"player {number} got no turn within {TURN_TIMEOUT_S:g} s")


class SteppedConsensus:
    """A `Consensus` that pauses before and after each call: between the two, other players may run."""

    def __init__(self, inner: Consensus, pause: Pause) -> None:
        self._inner = inner
        self._pause = pause

    def list_keys(self) -> Iterator[str]:
        return self._between_pauses(self._inner.list_keys)

    def head(self, key: str) -> VersionedData | None:
        return self._between_pauses(lambda: self._inner.head(key))

    def compare_and_set(self, key: str, expected: int | None, new: VersionedData) -> CaSResult:
        return self._between_pauses(lambda: self._inner.compare_and_set(key, expected, new))

    def scan(self, key: str, from_seqno: int, limit: int = SCAN_ALL) -> list[VersionedData]:
        return self._between_pauses(lambda: self._inner.scan(key, from_seqno, limit))

    def truncate(self, key: str, seqno: int) -> int:
        return self._between_pauses(lambda: self._inner.truncate(key, seqno))

    def close(self) -> None:
        self._inner.close()

    @property
    def uri(self) -> str:
        return self._inner.uri

    def _between_pauses(self, action: Callable[[], Answer]) -> Answer:
        self._pause()
        try:
            return action()
        finally:
            self._pause()
