"""Views in plain Python: the oracle of Spark's answer (docs/semantics.md, section 6).

    desired - persisted = updates, all at the refresh's time

A row is the tuple of the view's columns; an err is an `Err`. Rows are equal by their canonical bytes: null equals null,
NaN equals NaN, -0.0 is 0.0. Slow and obvious.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from persist_core.config.row_checks import KINDS
from persist_core.schema import ERR_KIND_SEPARATOR
from tests.oracle.consolidate import Err, canonical_bytes

Row = tuple[Any, ...] | Err


@dataclass(frozen=True)
class ViewUpdate:
    """`diff` copies of `row` were inserted (or retracted, if it is negative) at `time`."""

    row: Row
    time: int
    diff: int


def identity(row: Row) -> tuple[Any, ...]:
    """The parts that make two rows equal: canonical bytes of oks; kind, key bytes and payload of errs."""
    if isinstance(row, Err):
        return ("err", row.kind, row.key_bytes, row.payload)
    return ("ok", canonical_bytes(row, [str(i) for i in range(len(row))]))


def install_desired(desired: Iterable[Row], persisted: Iterable[ViewUpdate], *, at: int) -> list[ViewUpdate]:
    """The updates at time `at` after which the target holds `desired`, whatever it held before.

    `persisted` are the target's updates, all before `at`; they need not be consolidated or correct.
    """
    sums: Counter[tuple[Any, ...]] = Counter()
    examples: dict[tuple[Any, ...], Row] = {}
    for row in desired:
        sums[identity(row)] += 1
        examples.setdefault(identity(row), row)
    for update in persisted:
        sums[identity(update.row)] -= update.diff
        examples.setdefault(identity(update.row), update.row)
    return [ViewUpdate(examples[key], at, diff) for key, diff in sorted(sums.items(), key=repr) if diff]


def contents(updates: Iterable[ViewUpdate], *, as_of: int) -> dict[tuple[Any, ...], int]:
    """How often each row (by `identity`) occurs as of that time; a negative count means a damaged shard."""
    sums: Counter[tuple[Any, ...]] = Counter()
    for update in updates:
        if update.time <= as_of:
            sums[identity(update.row)] += update.diff
    return {key: count for key, count in sums.items() if count}


def inherited(err: Err, name: str) -> Err:
    """An input's err as it appears in the view: the input's name and its kind, and a digest in place of the record.

    Message, key and payload stay with the input. The digest is the SHA-256 of kind, key and payload, each after its
    length in bytes (`-` for null).
    """
    kind, identity = f"{name}{ERR_KIND_SEPARATOR}{err.kind}", (err.kind.encode(), err.key_bytes, err.payload)
    parts = (b"-:" if part is None else f"{len(part)}:".encode() + part for part in identity)
    *_, collection, own = kind.split(ERR_KIND_SEPARATOR)
    if collection == "check" and own not in KINDS:  # the kind of a check is in two parts
        collection = kind.split(ERR_KIND_SEPARATOR)[-3]
    digest = hashlib.sha256(b"".join(parts)).digest()
    return Err(kind, digest, b"", f"run `persist errors {collection}`, which shows the record")
