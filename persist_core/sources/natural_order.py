"""The natural-sort key of a path: `part-2` before `part-10`, as a plain string that any engine compares by bytes.

Each run of the digits 0-9 is written without leading zeros and with its length before it, in a length code that
itself sorts as text: `part-2` -> `part-02`, `part-10` -> `part-110`. All other characters stay the same. If leading
zeros were dropped, their counts follow after ` //` (which no path contains), so that `1` and `01` differ.

Two paths have the same key only if they are the same path; Python's order of the keys (code points) is the order of
their UTF-8 bytes, which is what Spark and Parquet compare.
"""

from __future__ import annotations

import itertools
import re

_DIGITS = re.compile(r"[0-9]+")
_STEP = 9


def natural_key(path: str) -> str:
    """The key of a relative path. Total, injective on paths without empty segments."""
    zeros: list[int] = []

    def encode(run: re.Match[str]) -> str:
        digits = run[0].lstrip("0") or "0"
        zeros.append(len(run[0]) - len(digits))
        return _length_code(len(digits)) + digits

    key = _DIGITS.sub(encode, path)
    return f"{key} //{'.'.join(map(str, zeros))}" if any(zeros) else key


def path_of(key: str) -> str:
    """The path whose key this is. Raises `ValueError` for another text."""
    body, mark, counts = key.rpartition(" //")
    zeros = iter([int(count) for count in counts.split(".")]) if mark else itertools.repeat(0)

    def decode(run: re.Match[str]) -> str:
        nines = len(run[0]) - len(run[0].lstrip("9"))
        length = _STEP * nines + int(run[0][nines : nines + 1] or "9") + 1
        digits = run[0][nines + 1 :]
        if len(digits) != length:
            raise ValueError(f"{key!r} is not the natural-sort key of a path")
        return "0" * next(zeros) + digits

    return _DIGITS.sub(decode, body if mark else key)


def _length_code(length: int) -> str:
    """1 -> `0`, 9 -> `8`, 10 -> `90`, 18 -> `98`, 19 -> `990`: prefix-free, and sorts as text like the numbers."""
    nines, rest = divmod(length - 1, _STEP)
    return "9" * nines + str(rest)
