"""Sending what is unsent: each notice to each of its targets, one claim at a time.

claim -> send to each target that has not taken it -> settle: gone if all have, else the next turn sends it again
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from persist_core.alerts.board import WatchBoard
from persist_core.alerts.record import Notice

MAX_NOTICES = 100  # of one call: the next turn sends the rest
MAX_FAILURES = 2  # of one target in one call: it is down, and each try may take its timeout
MAX_SECONDS = 60  # of one target for one notice

_log = logging.getLogger(__name__)
_Found = TypeVar("_Found")


@dataclass(frozen=True)
class Target:
    """A receiver of notices: a name that stays the same over turns, which notices it takes, and how to send one.

    `service` tells it from others of its name, which other shards have: if one is down, the others may not be.
    """

    name: str
    accepts: Callable[[Notice], bool]
    send: Callable[[Notice], None]
    service: str = ""


@dataclass(frozen=True)
class Delivered:
    """The result of one call: how many were sent to all their targets, and one line for each failure.

    A notice that none of its targets accepts is not sent, and no longer kept.
    """

    sent: int
    failures: tuple[str, ...]


def deliver(
    board: WatchBoard,
    targets_of: Callable[[Notice], Sequence[Target] | None],
    *,
    only: Collection[str] | None = None,
    seconds: float | None = None,
) -> Delivered:
    """Send what is unsent, `only` these ids if given. `targets_of` returns `None` for a shard of another watcher.
    `seconds`: of one target for one notice, `MAX_SECONDS` by default.

    A target gets the notices of one alert in their order: one that failed keeps the later ones back, for that target.
    Sends at most `MAX_NOTICES`. Notices that wait only for targets that are down do not count.
    """
    seen: set[str] = set()
    down: Counter[tuple[str, str]] = Counter()
    failures: list[str] = []
    sent = settled = 0

    def ready(targets: Iterable[Target], earlier: Sequence[Notice]) -> list[Target]:
        return [
            target
            for target in targets
            if down[target.name, target.service] < MAX_FAILURES and not any(_is_due(target, each) for each in earlier)
        ]

    def may_send(notice: Notice, earlier: Sequence[Notice]) -> bool:
        targets = targets_of(notice) if only is None or notice.notice_id in only else None
        if targets is None:
            return False
        due = [target for target in targets if _is_due(target, notice)]
        return not due or bool(ready(due, earlier))

    while settled < MAX_NOTICES and (claimed := board.claim(may_send, without=seen)) is not None:
        notice, earlier = claimed
        seen.add(notice.notice_id)
        due = [target for target in targets_of(notice) or () if _is_due(target, notice)]
        taken = set()
        for target in ready(due, earlier):
            if send(target, notice, failures, seconds):
                taken.add(target.name)
            else:
                down[target.name, target.service] += 1
        is_done = len(taken) == len(due)
        board.settle(notice, taken, is_done=is_done)
        settled += is_done or bool(taken)
        sent += is_done and bool(taken or notice.delivered)
    return Delivered(sent, tuple(failures))


def _is_due(target: Target, notice: Notice) -> bool:
    return target.accepts(notice) and target.name not in notice.delivered


def send(target: Target, notice: Notice, failures: list[str], seconds: float | None = None) -> bool:
    """Send, for a limited time; False if that failed, with a line more in `failures`.

    The client of a service may have no timeout, others are to get the notice too, and a task that announces what has
    happened to it has work left.
    """
    seconds = MAX_SECONDS if seconds is None else seconds
    error: BaseException | None
    try:
        taken = in_thread(partial(target.send, notice), f"notifier {target.name}")
        error = taken.exception(seconds)  # of any class: it was the notifier's thread that it ended
        said = f"{type(error).__name__}: {error}"
    except TimeoutError as unanswered:
        error, said = unanswered, f"it has not ended after {seconds:g} s"
    if error is not None:
        _log.error("notifier %s did not take: %s", target.name, notice.subject, exc_info=error)
        failures.append(f"{target.name} did not take {notice.subject!r}: {said}")
        return False
    _log.info("%s: sent by %s", notice.subject, target.name)
    return True


def in_thread(do: Callable[[], _Found], name: str) -> Future[_Found]:
    """The result of `do`, from a thread for which no process waits at its end."""
    found: Future[_Found] = Future()

    def run() -> None:
        try:
            found.set_result(do())
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            found.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return found
