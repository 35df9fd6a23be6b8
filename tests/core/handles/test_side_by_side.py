"""Reads of many things at the same time."""

from __future__ import annotations

import signal
import threading
from types import FrameType

import pytest

from persist_core.handles.side_by_side import side_by_side


class TaskTimeout(BaseException):
    """As Airflow's: not an `Exception`, raised by a signal in the main thread."""


@pytest.mark.parametrize("items", [1, 3])
def test_a_timeout_waits_for_no_thread(items: int) -> None:
    """A thread that hangs may be why it came: it would never take effect."""
    ended = threading.Event()

    def out(_: int, __: FrameType | None) -> None:
        raise TaskTimeout

    before = signal.signal(signal.SIGALRM, out)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with pytest.raises(TaskTimeout):
            side_by_side(lambda _: ended.wait(60), range(items), threads=8)
        assert not ended.is_set()
    finally:
        ended.set()
        signal.signal(signal.SIGALRM, before)


def test_an_error_waits_for_the_others() -> None:
    """They may be writing: the caller's own work after it must not run beside them."""
    done: list[int] = []
    failed = threading.Event()

    def read(item: int) -> None:
        if item == 0:
            failed.set()
            raise ValueError
        failed.wait(60)
        done.append(item)

    with pytest.raises(ValueError):  # noqa: PT011 - it has no text
        side_by_side(read, range(3), threads=3)
    assert sorted(done) == [1, 2]
