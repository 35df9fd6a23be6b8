"""Which files of a batch a read opens, and what it takes from each: the same for every reader.

    (hollow batch, manifest, times needed) -> pieces     a piece: a file, what to take of it, and between which times

A batch contributes to a read as of `t` what it held as of `u`, the lesser of `t` and its last time. If `u` is the last
time of its manifest, its history is not opened at all. It is opened for earlier times, and if the state clips the batch
(a fork that shares a run up to a checkpoint). Sums over the pieces are all that a read needs:

    keyed, as of t      insertions, and versions of the history alive as of u, less what a later retraction ends
    multiset, as of t   its counted rows, less the updates of its history after u
    changes in (a, b]   updates: stored ones, and both of each version in the history; of a multiset's run, its history
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from persist_core.contents.batch import BatchManifest, HollowBatch, Part, PartKind
from persist_core.contents.key_range import KeyRange, meets_any
from persist_core.contents.row_versions import alive_at, at_time, negated, updates_of
from persist_core.schema import TIME

OKS = (PartKind.INSERTIONS, PartKind.RETRACTIONS)


class Take(enum.StrEnum):
    """The kinds of pieces of a file."""

    ROWS = "rows"  # its rows as they are
    ALIVE = "alive"  # of a keyed history: insertions of the versions that are alive at `through`
    UPDATES = "updates"  # of a keyed history: both updates of each version
    UNDONE = "undone"  # of a multiset's history: its updates with the opposite diffs, all at the batch's lower


@dataclass(frozen=True)
class Piece:
    """A piece of one file: only rows with `after < time <= through` (`None`: no bound).

    `lower` is the batch's. `keep`: the rows of the file that are taken.
    """

    part: Part
    take: Take
    lower: int
    after: int | None = None
    through: int | None = None
    keep: Callable[[pa.Table], pa.Table] = lambda table: table

    @property
    def has_ends(self) -> bool:
        """True if the column `ENDED` is needed too."""
        return self.take in (Take.ALIVE, Take.UPDATES)

    def of(self, table: pa.Table) -> pa.Table:
        """The piece's part of the file's rows."""
        table = self.keep(table)
        if self.take is Take.ALIVE:
            return alive_at(table, self.through if self.through is not None else self.lower)
        updates = updates_of(table) if self.take is Take.UPDATES else table
        if self.after is not None:
            updates = updates.filter(pc.greater(updates[TIME], self.after))
        if self.through is not None:
            updates = updates.filter(pc.less_equal(updates[TIME], self.through))
        return at_time(negated(updates), self.lower) if self.take is Take.UNDONE else updates


def within(pieces: Iterable[Piece], ranges: Sequence[KeyRange] | None) -> Iterator[Piece]:
    """The pieces whose files can hold a key in a range (`None`: any key). Files without bounds can hold any."""
    return (piece for piece in pieces if ranges is None or meets_any(piece.part.keys, ranges))


def oks_as_of(batch: HollowBatch, manifest: BatchManifest, time: int) -> Iterator[Piece]:
    """The pieces whose sum is what the batch contributes to the oks as of `time`, its lower or later."""
    through = min(time, batch.last_time)
    is_past, lower = through < manifest.last_time, manifest.lower
    for part in manifest.parts:
        if part.kind in OKS:
            yield Piece(part, Take.ROWS, lower, through=through if is_past else None)
        elif part.kind is PartKind.HISTORY and is_past and not _is_over(part, through):
            is_keyed = bool(manifest.schema.key)
            yield (
                Piece(part, Take.ALIVE, lower, through=through)
                if is_keyed
                else Piece(part, Take.UNDONE, lower, after=through)
            )


def oks_between(batch: HollowBatch, manifest: BatchManifest, after: int, through: int) -> Iterator[Piece]:
    """The pieces that hold the updates of the oks in the batch with `after < time <= through`."""
    low, high = _bounds(batch, manifest, after, through)
    is_keyed = bool(manifest.schema.key)
    for part in manifest.parts:
        if _is_over(part, after) or part.kind is PartKind.ERRS:
            continue
        if part.kind is PartKind.HISTORY:
            yield Piece(part, Take.UPDATES if is_keyed else Take.ROWS, manifest.lower, low, high)
        elif is_keyed or manifest.run is None:
            yield Piece(part, Take.ROWS, manifest.lower, low, high)


def all_oks(batch: HollowBatch, manifest: BatchManifest) -> Iterator[Piece]:
    """The pieces that hold every update of the oks that the batch still has; of a multiset's run, updates its merge
    has summed up are one at its lower."""
    low, high = manifest.lower - 1, batch.last_time
    yield from oks_between(batch, manifest, low, high)
    if manifest.run is not None and not manifest.schema.key:
        for part in manifest.parts:
            if part.kind in OKS:
                yield Piece(part, Take.ROWS, manifest.lower)
            elif part.kind is PartKind.HISTORY:
                yield Piece(part, Take.UNDONE, manifest.lower)


def errs_between(batch: HollowBatch, manifest: BatchManifest, after: int, through: int) -> Iterator[Piece]:
    """The pieces that hold the updates of the errs in the batch with `after < time <= through`."""
    low, high = _bounds(batch, manifest, after, through)
    for part in manifest.parts:
        if part.kind is PartKind.ERRS and not _is_over(part, after):
            yield Piece(part, Take.ROWS, manifest.lower, low, high)


def errs_as_of(batch: HollowBatch, manifest: BatchManifest, time: int) -> Iterator[Piece]:
    """The pieces whose sum is what the batch contributes to the errs as of `time`."""
    return errs_between(batch, manifest, manifest.lower - 1, time)


def all_errs(batch: HollowBatch, manifest: BatchManifest) -> Iterator[Piece]:
    """The pieces that hold every update of the errs that the batch still has."""
    return errs_between(batch, manifest, manifest.lower - 1, batch.last_time)


def _bounds(batch: HollowBatch, manifest: BatchManifest, after: int, through: int) -> tuple[int | None, int | None]:
    """The bounds to filter by; `None` if every update of the batch lies within."""
    high = min(through, batch.last_time)
    return (after if after >= manifest.lower else None), (high if high < manifest.last_time else None)


def _is_over(part: Part, time: int) -> bool:
    """True if no time in the file is later than `time`."""
    return part.last_time is not None and part.last_time <= time
