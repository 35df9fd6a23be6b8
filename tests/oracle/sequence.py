"""Which orders a shard in `sequence` order has seen (docs/semantics.md, section 4), in simple Python.

    arrival ──> judge: newer than all that its slot has seen? ──yes──> saw: the slot's order rises
                                                              └─no───> late: it changes nothing, at any time

Orders are compared as `precedence` says: the order key, then a value before a tombstone, then the greater canonical
bytes. So the greatest of any set of records does not depend on when each of them arrives.

A tombstone is remembered as long as the user asks. Of forgotten ones only the highest order is kept: what
arrives later below it, for a slot that is not known, may be older than its tombstone. It is counted, and it wins.

Each column is a register of its own: what it holds came with the highest order of the records that carry it, where a
tombstone or an err carries "nothing". A row whose record does not carry a column shows the column's register.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tests.oracle.consolidate import NOT_SENT, Slot, Value, canonical_bytes

Precedence = tuple[Any, ...]


@dataclass(frozen=True)
class Cell:
    """A column's register: what the record of the highest `order` says of it, a value or (`NOT_SENT`) nothing."""

    order: Any = (0,)
    value: Any = NOT_SENT

    @property
    def rank(self) -> tuple[Any, ...]:
        """The cell with the higher rank counts."""
        return (self.order, self.value is not NOT_SENT, canonical_bytes([self.value], ["value"]))


Cells = tuple[Cell, ...]


def higher(left: Cells, right: Cells) -> Cells:
    """Column by column; an empty one says nothing."""
    if not left or not right:
        return left or right
    return tuple(max(pair, key=lambda cell: cell.rank) for pair in zip(left, right, strict=True))


class Judged(enum.Enum):
    """The effect of an arrival on a slot's history."""

    NEWEST = "newest"  # it decides what the slot holds
    BEYOND_MEMORY = "late_beyond_memory"  # so does this one, but a tombstone that was forgotten may be newer
    LATE = "late"  # a higher order was seen
    TIED = "order_ties"  # the same order was seen with greater bytes


@dataclass(frozen=True)
class Seen:
    """The highest precedence that a slot has seen, and the time (ms) at which it acted.

    `value`: what its record carries, if it is a row. `cells`: the registers of all columns.
    """

    precedence: Precedence
    time: int
    value: tuple[Any, ...] | None = field(default=None, compare=False)
    cells: Cells = field(default=(), compare=False)


@dataclass(frozen=True)
class OrderMemory:
    """The orders that a shard has seen, after a drain.

    `slots`: of every slot that holds a value, and of every tombstone that is remembered. `floor`: of the greatest
    truncate, which counts as seen by every slot. `forgotten`: the greatest of the tombstones that were dropped.
    """

    slots: Mapping[Slot, Seen] = field(default_factory=dict)
    floor: Precedence | None = None
    forgotten: Precedence | None = None


@dataclass(frozen=True)
class LateRecord:
    """A record that lost, at the time at which it would have acted (ms), to a precedence that its slot had seen."""

    slot: Slot
    precedence: Precedence
    time: int
    beaten_by: Precedence


class Orders:
    """The memory during one drain."""

    def __init__(self, before: OrderMemory) -> None:
        self._slots = dict(before.slots)
        self._floor = before.floor
        self._forgotten = before.forgotten
        self._late: list[LateRecord] = []

    @property
    def late(self) -> tuple[LateRecord, ...]:
        """All that `judge` has called late."""
        return tuple(sorted(self._late, key=repr))

    def judge(self, slot: Slot, precedence: Precedence, time: int, *, is_expanded: bool = False) -> Judged:
        """The relation of `precedence` to `slot` at `time`.

        What equals the highest one seen is that record again, so it is not late. An expanded truncate is never late.
        """
        highest = self.highest(slot)
        if highest is not None and precedence < highest:
            if precedence[0] == highest[0]:
                return Judged.TIED
            if not is_expanded:
                self._late.append(LateRecord(slot, precedence, time, highest))
            return Judged.LATE
        if slot not in self._slots and self._forgotten is not None and precedence[0] < self._forgotten[0]:
            return Judged.BEYOND_MEMORY
        return Judged.NEWEST

    def highest(self, slot: Slot) -> Precedence | None:
        """The highest precedence that `slot` has seen, the floor included."""
        seen = self._slots.get(slot)
        known = [each for each in (None if seen is None else seen.precedence, self._floor) if each is not None]
        return max(known, default=None)

    def saw(
        self, slot: Slot, precedence: Precedence, time: int, value: tuple[Any, ...] | None, cells: Cells
    ) -> tuple[Any, ...] | None:
        """Remember what `judge` did not call late, and all that came with it; the row then, if there is one."""
        before = self._slots.get(slot)
        self._slots[slot] = Seen(precedence, time, value, higher(before.cells if before else (), cells))
        return self.row(slot)

    def give(self, slot: Slot, cells: Cells) -> tuple[Any, ...] | None:
        """Let late records of `slot` give their values to its row; the row then, if there is one."""
        if (seen := self._slots.get(slot)) is not None:
            self._slots[slot] = replace(seen, cells=higher(seen.cells, cells))
        return self.row(slot)

    def row(self, slot: Slot) -> tuple[Any, ...] | None:
        """The row of `slot`, with all that it inherits; columns of which nothing is known are not sent."""
        seen = self._slots.get(slot)
        if seen is None or seen.value is None:
            return None
        pairs = zip(seen.value, seen.cells, strict=True)
        return tuple(cell.value if sent is NOT_SENT else sent for sent, cell in pairs)

    def is_above_floor(self, precedence: Precedence) -> bool:
        """True if no truncate that was seen is higher."""
        return self._floor is None or precedence > self._floor

    def raise_floor(self, precedence: Precedence) -> None:
        """A truncate of this precedence counts as seen by every slot."""
        self._floor = precedence if self._floor is None else max(self._floor, precedence)

    def is_below(self, slot: Slot, precedence: Precedence) -> bool:
        """True if `slot` has seen nothing as high as `precedence`, or its row has inherited a value from below it."""
        seen = self._slots.get(slot)
        if seen is None or seen.precedence < precedence:
            return True
        pairs = zip(seen.value or (), seen.cells, strict=False)
        inherited = [cell for sent, cell in pairs if sent is NOT_SENT and cell.value is not NOT_SENT]
        return any((cell.order,) < precedence[0] for cell in inherited)

    def after(self, contents: Mapping[Slot, Value], stashed: Collection[Slot], *, keep_from: int | None) -> OrderMemory:
        """The memory without what the floor covers, and without tombstones that acted before `keep_from`.

        A tombstone stays as long as a record of its slot is stashed. `keep_from=None` keeps all of them.
        """
        kept: dict[Slot, Seen] = {}
        forgotten = self._forgotten
        for slot, seen in self._slots.items():
            is_old = keep_from is not None and seen.time < keep_from and slot not in stashed
            if slot in contents:
                kept[slot] = seen
            elif self._floor is not None and seen.precedence <= self._floor:
                continue
            elif is_old:
                forgotten = seen.precedence if forgotten is None else max(forgotten, seen.precedence)
            else:
                kept[slot] = seen
        return OrderMemory(kept, self._floor, forgotten)
