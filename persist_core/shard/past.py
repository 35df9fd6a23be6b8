"""Restores, corrections and fills: a state knows them when it has forgotten their commits.

    points, by upper                 10   20   30   40   41   50
    a restore to 20, from 40 to 41              ^    ^             hold what was undone

A replay may begin at a checkpoint that is older than all known commits. It must not begin at one that holds what was
undone, and a later fill has to be repeated, because no input says that.

The list is bounded: if it is full, its two oldest entries become one that covers both, and so the points between them
too. A replay then begins at an earlier point than necessary. That takes longer, and the result is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from persist_core.contents.batch import BatchManifest
from persist_core.contents.stats import FILLED_COLUMN

MAX_UNDONE = 64  # a correction each day covers the daily checkpoints of two months


@dataclass(frozen=True)
class Undone:
    """A restore or a correction. Points with an upper between `back_to` and its own `upper` hold what it has undone."""

    back_to: int
    upper: int
    is_correction: bool


@dataclass(frozen=True)
class Past:
    """`undone`: oldest first. `filled`: the upper after the newest fill, or 0."""

    undone: tuple[Undone, ...] = ()
    filled: int = 0

    @property
    def restored(self) -> int:
        """The upper after the newest restore, or 0. It has undone input that a hidden shard may hold."""
        return max((each.upper for each in self.undone if not each.is_correction), default=0)

    @property
    def corrected(self) -> frozenset[int]:
        """The uppers after corrections."""
        return frozenset(each.upper for each in self.undone if each.is_correction)

    def has_undone(self, upper: int) -> bool:
        """True if a restore or a correction has gone back behind the point with this upper."""
        return any(each.back_to < upper < each.upper for each in self.undone)

    def after(self, manifest: BatchManifest, uppers: Mapping[str, int | None]) -> Past:
        """The past after this commit. `uppers`: after the commits that are known, by their checkpoints."""
        upper = manifest.upper or 0  # nothing comes after a closed upper
        is_fill = manifest.is_change and any(name.startswith(FILLED_COLUMN) for name in manifest.stats)
        filled = upper if is_fill else self.filled
        if (restored := manifest.restored) is None:
            return self if filled == self.filled else Past(self.undone, filled)
        if restored.correction is not None:
            back_to = restored.correction.start_ms
        else:  # the watermark may be earlier than the point's upper: then this point does not count either
            back_to = uppers.get(restored.checkpoint_id) or restored.watermark or 0
        undone = (*self.undone, Undone(back_to, upper, restored.correction is not None))
        if len(undone) > MAX_UNDONE:
            first, second, *rest = undone
            both = first.is_correction and second.is_correction
            undone = (Undone(min(first.back_to, second.back_to), second.upper, both), *rest)
        return Past(undone, filled)

    def covers(self, earlier: Past) -> bool:
        """True if nothing of the earlier past was forgotten."""
        return self.filled >= earlier.filled and all(
            any(each.back_to <= before.back_to and before.upper <= each.upper for each in self.undone)
            for before in earlier.undone
        )
