"""The part of the stash that a batch opens: what is due, and what its records meet there.

    chain ─┬─ files whose records are all due later, of other keys: closed, known by their number only
           └─ others ──> records before the upper ─┬──> the plan of the batch
                    └──> records of the batch's slots ─┘

A record that waits is met by another of its slot: one of the same time beats it, or is beaten; and in `sequence` order
a tombstone of its slot is not forgotten. Nothing else of a batch depends on a record that is not due.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from persist_core.contents.batch import STASH_OPERATOR, BatchDescription
from persist_core.contents.key_range import EVERYTHING, meets_any
from persist_core.contents.operator_state import StateArtifact
from persist_core.schema import TIME, CollectionSchema
from persist_spark.frame import named, passed, slot_names
from persist_spark.upsert.look import MAX_LOOK_BYTES, cuts_of, look_at
from persist_spark.upsert.lookup import of_slots

Scan = Callable[[Sequence[StateArtifact]], DataFrame]
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
    return is_known and _bytes(_waiting(description)) > SMALL_STASH_BYTES


def may_look(description: BatchDescription) -> bool:
    """True if the records of a batch may be looked at, and kept for that, to read less of the stash: not if they are
    many more than what it holds."""
    return is_large(description) and description.input_bytes <= max(MAX_LOOK_BYTES, _bytes(_waiting(description)))


def whole_stash(description: BatchDescription, scan: Scan) -> StashBefore:
    """All of it that earlier batches have not processed."""
    found = _waiting(description)
    return StashBefore(scan(found) if found else None, _bytes(found))


def needed_stash(
    description: BatchDescription, schema: CollectionSchema, scan: Scan, meeting: DataFrame | None
) -> StashBefore:
    """The due records, and the records that `meeting`, the batch's (`None`: none), meet in the stash."""
    if not (is_large(description) if meeting is None else may_look(description)):
        return whole_stash(description, scan)
    assert description.upper is not None
    found, upper = _waiting(description), description.upper
    due = [each for each in found if each.first_time is None or each.first_time < upper]
    met, slots = list[StateArtifact](), None
    if meeting is not None:
        look = look_at(meeting, schema, upper, cuts_of(each.keys for each in found))
        if not look.fits_a_broadcast:
            return whole_stash(description, scan)
        # A truncate has no key, and a record may have one that cannot be decoded.
        ranges = [EVERYTHING] if look.keyless or look.ranges is None else look.ranges
        met = [each for each in found if look.rows and meets_any(each.keys, ranges)]
        slots = meeting.select(*[named(name) for name in slot_names(schema)])
    before_upper = F.col(TIME) < F.expr(passed(upper)[0])
    frames = [scan(due).where(before_upper)] if due else []
    if met:
        frames.append(of_slots(scan(met).where(~before_upper), schema, slots, has_bad_keys=True))
    opened = _bytes({each.key: each for each in (*due, *met)}.values())
    rows = functools.reduce(DataFrame.union, frames) if frames else None
    return StashBefore(rows, opened, description.stash_rows)


def _waiting(description: BatchDescription) -> list[StateArtifact]:
    """The files that may hold records which earlier batches have not processed."""
    return live(description.operators.get(STASH_OPERATOR, ()), frontier_of(description))


def _bytes(files: Iterable[StateArtifact]) -> int:
    return sum(each.size_bytes for each in files)


def frontier_of(description: BatchDescription) -> int:
    """From when on records of the stash have not been processed."""
    return description.lower if description.stash_frontier is None else description.stash_frontier
