"""Reads and deletions of many things at the same time: what they take is the latency of the store."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def side_by_side(do: Callable[[_Item], _Result], items: Iterable[_Item], *, threads: int) -> list[_Result]:
    """The result of `do` for each item, in their order, from at most `threads` threads; none for a single item.

    A task's timeout, and its end, wait for no thread: a store or a server that hangs may be why they came.
    """
    given = list(items)
    threads = min(threads, len(given))
    if threads <= 1:
        return [do(item) for item in given]
    pool, waits = ThreadPoolExecutor(threads), True
    try:
        return list(pool.map(do, given))
    except BaseException as ended:
        waits = isinstance(ended, Exception)
        raise
    finally:
        pool.shutdown(wait=waits, cancel_futures=not waits)
