"""The part of the stash that a batch opens: what is due, and what its records meet there.

    chain ─┬─ files whose records are all due later, of other keys: closed, known by their number only
           └─ others ──> records before the upper ─┬──> the plan of the batch
                    └──> records of the batch's slots ─┘

A record that waits is met by another of its slot: one of the same time beats it, or is beaten; and in `sequence` order
a tombstone of its slot is not forgotten. Nothing else of a batch depends on a record that is not due.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame

from persist_core.contents.batch import STASH_OPERATOR, BatchDescription
from persist_core.contents.operator_state import StateArtifact
from persist_spark.upsert.look import MAX_LOOK_BYTES

# Up to here the whole stash is read: to find out what the records meet takes a job, which costs more.
SMALL_STASH_BYTES = 4 << 20


@dataclass(frozen=True)
class StashBefore:
    """The stash before a batch, as far as it is read: not consolidated; `None`: none of it.

    `total`: how many records the whole stash holds, consolidated, if `rows` may be fewer. `size_bytes` are read.
    """

    rows: DataFrame | None
    size_bytes: int
    total: int | None = None


NO_STASH = StashBefore(None, 0)


def live(chain: Sequence[StateArtifact], time: int | None) -> list[StateArtifact]:
    """The files that may hold records at or after `time` (`None`: no time is)."""
    return [each for each in chain if time is not None and (each.last_time is None or each.last_time >= time)]


def is_large(description: BatchDescription) -> bool:
    """True if a batch reads only what it needs of the stash: if it is small or its number is not known, all of it."""
    is_known = description.upper is not None and description.stash_rows is not None
    return is_known and bytes_of(waiting(description)) > SMALL_STASH_BYTES


def may_look(description: BatchDescription) -> bool:
    """True if the records of a batch may be looked at, and kept for that, to read less of the stash: not if they are
    many more than what it holds."""
    return is_large(description) and description.input_bytes <= max(MAX_LOOK_BYTES, bytes_of(waiting(description)))


def waiting(description: BatchDescription) -> list[StateArtifact]:
    """The files that may hold records which earlier batches have not processed."""
    return live(description.operators.get(STASH_OPERATOR, ()), frontier_of(description))


def bytes_of(files: Iterable[StateArtifact]) -> int:
    return sum(each.size_bytes for each in files)


def frontier_of(description: BatchDescription) -> int:
    """From when on records of the stash have not been processed."""
    return description.lower if description.stash_frontier is None else description.stash_frontier
