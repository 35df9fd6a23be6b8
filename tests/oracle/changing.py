"""A collection that changes, in plain Python: schemas evolve, files are corrected, tables are rebuilt and swapped.

    Drop (a file) ──decode by Definition──> records ──drain──> History: updates, orders, progress, points to go back to
                                                              └─ Collection: the present one, and the kept generations

A row has one place for each column that there ever was, so an evolution moves nothing: a column that is dropped becomes
null everywhere, at all times. Errors are one value each, by the text of their record. Slow and obvious.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from persist_core.sources.natural_order import natural_key
from tests.oracle.consolidate import Err, Slot, UpsertDiff, Value, as_of, consolidate, same_value
from tests.oracle.record import TOMBSTONE, Mark, Record
from tests.oracle.sequence import OrderMemory
from tests.oracle.upsert import drain_sealed_input

DAY_MS = 86_400_000
FIRST_UPPER = 1
_RANGES = {"int": 2**31, "bigint": 2**63, "decimal(6,2)": 10**4, "decimal(9,2)": 10**7}


@dataclass(frozen=True)
class Field:
    """A column: its place in every row, for good, and what the file says of it now."""

    place: int
    name: str
    type: str
    renamed_from: str | None = None


@dataclass(frozen=True)
class Definition:
    """A collection file. `fields`: all columns but the key `id`; `shop` may be in the key."""

    key: tuple[str, ...]
    id_type: str
    fields: tuple[Field, ...]
    dropped: tuple[str, ...] = ()
    history: str = "all"

    @property
    def values(self) -> tuple[Field, ...]:
        """Columns that are not in the key."""
        return tuple(each for each in self.fields if each.name not in self.key)


@dataclass(frozen=True)
class Drop:
    """A file as it is now. `version` grows with each replacement."""

    version: int
    date_ms: int | None
    records: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class Taken:
    """A file that was consumed: which version, in the turn that ended at which upper, and whether it was empty."""

    version: int
    date_ms: int | None
    turn: int
    is_empty: bool


Progress = dict[str, Taken]


def is_new(name: str, drop: Drop, progress: Progress) -> bool:
    """True if no turn has read the file, or only when it was empty."""
    return name not in progress or (progress[name].is_empty and bool(drop.records))


@dataclass(frozen=True)
class Point:
    """A commit: a checkpoint that can be restored, or replayed from."""

    upper: int
    progress: Progress
    orders: OrderMemory | None


@dataclass
class History:
    """One generation, or a fork. `begin`: changes can be read after it; `erased`: see `Collection.erase`.

    `is_moved`: the newest commit is a change, which has moved the upper into a day whose files are not due.
    """

    definition: Definition
    orders: OrderMemory | None
    width: int
    erased: dict[Slot, int] = field(default_factory=dict)
    upper: int = 0
    begin: int = 0
    is_moved: bool = False
    updates: list[UpsertDiff] = field(default_factory=list)
    progress: Progress = field(default_factory=dict)
    points: dict[str, Point] = field(default_factory=dict)

    def copy(self) -> History:
        """As it is now."""
        return replace(
            self, updates=list(self.updates), progress=dict(self.progress), points=dict(self.points), erased=self.erased
        )

    def contents(self, time: int) -> dict[Slot, Value]:
        """As of `time`."""
        return as_of(self.updates, time)

    def evolve(self, definition: Definition) -> None:
        """The next commit is by this definition."""
        kept = {each.place for each in definition.values}
        self.definition = definition
        self.updates = consolidate(
            replace(update, value=_only(update.value, kept, self.width)) for update in self.updates
        )

    def drain(self, files: Mapping[str, Drop], upper: int) -> None:
        """A run that takes in these files."""
        records = [
            record
            for name in sorted(files, key=natural_key)
            for record in self._decoded(name, self._dated(files[name]))
            if not self._is_forgotten(record, upper)
        ]
        drained = drain_sealed_input(records, (), self.updates, lower=self.upper, upper=upper, orders=self.orders)
        self.updates += drained.updates
        self.orders = drained.orders
        self.progress |= {
            name: Taken(drop.version, drop.date_ms, upper, not drop.records) for name, drop in files.items()
        }
        self.upper, self.is_moved = upper, False

    def become(self, wanted: Mapping[Slot, Value]) -> bool:
        """One commit at the upper, after which these are the contents; True if any differ."""
        now, before = self.upper, self.contents(self.upper)
        changes = []
        for slot in {**before, **wanted}:
            if not same_value(before.get(slot), wanted.get(slot)):
                changes += [UpsertDiff(slot, before[slot], now, -1)] if slot in before else []
                changes += [UpsertDiff(slot, wanted[slot], now, 1)] if slot in wanted else []
        self.updates += changes
        self.upper, self.is_moved = now + 1, True
        return bool(changes)

    def forget(self, slot: Slot) -> None:
        """Remove all of a key."""
        self.updates = [update for update in self.updates if update.slot != slot]
        self.orders = _without(self.orders, slot)
        self.points = {name: replace(each, orders=_without(each.orders, slot)) for name, each in self.points.items()}

    def _decoded(self, name: str, drop: Drop) -> Iterable[Record]:
        for row, record in enumerate(drop.records):
            yield decoded(self.definition, record, (natural_key(name), 0, row), drop.date_ms, self)

    def _dated(self, drop: Drop) -> Drop:
        day, date_ms = self.upper - self.upper % DAY_MS, drop.date_ms
        is_in_time = self.is_moved and date_ms is not None and day <= date_ms < self.upper
        return replace(drop, date_ms=self.upper) if is_in_time else drop

    def _is_forgotten(self, record: Record, upper: int) -> bool:
        if record.slot not in self.erased:
            return False
        if self.orders is not None:
            return bool(record.order[0] <= self.erased[record.slot])
        return (upper - 1 if record.time is None else record.time) < self.erased[record.slot]


@dataclass
class Collection:
    """The collection, its files, and its kept generations, by their numbers."""

    now: History
    definition: Definition
    is_dated: bool
    files: dict[str, Drop] = field(default_factory=dict)
    kept: dict[int, History] = field(default_factory=dict)
    number: int = 0

    @property
    def is_log(self) -> bool:
        """True in `log` order."""
        return self.now.orders is None

    def run(self, until: int) -> bool:
        """`persist run --until`; False if there is nothing to do."""
        if until <= self.now.upper:
            return False
        due = {
            name: drop
            for name, drop in self.files.items()
            if is_new(name, drop, self.now.progress) and (drop.date_ms is None or drop.date_ms < until)
        }
        self.now.evolve(self.definition)
        self.now.drain(due, until)
        return True

    def differing(self, since: Progress) -> tuple[list[str], list[str]]:
        """Files that were consumed, and not in `since`: the ones with other bytes now, and the ones that are gone."""
        consumed = {name: taken for name, taken in self.now.progress.items() if since.get(name) != taken}
        gone = [name for name in consumed if name not in self.files]
        replaced = [
            name for name, taken in consumed.items() if name in self.files and self.files[name].version != taken.version
        ]
        return replaced, gone

    def replayed(self, point: Point | None) -> History:
        """The result of a reprocess: the files as they are now, from a point (`None`: the beginning) on."""
        fork = self._beginning() if point is None else self._at(point)
        by_turn = self.is_log and not self.is_dated
        return self._caught_up(fork, fork.upper if by_turn else None)

    def correct(self, replay: History) -> bool:
        """The commit of a reprocess; True if the contents change."""
        self.now.evolve(self.definition)
        is_changed = self.now.become(replay.contents(replay.upper - 1))
        self.now.orders, self.now.progress = replay.orders, dict(replay.progress)
        return is_changed

    def rebuilt(self) -> History:
        """The history that a rebuild writes."""
        return self._caught_up(self._beginning(), None if self.is_dated else FIRST_UPPER)

    def back(self, number: int) -> History:
        """A kept generation, with what came since."""
        found = self.kept[number].copy()
        found.points, found.erased, found.is_moved = {}, self.now.erased, True
        found.evolve(self.definition)
        return self._caught_up(found, None if self.is_dated else found.upper)

    def swap(self, made: History) -> None:
        """Swap it in."""
        self.kept[self.number] = self.now.copy()
        self.number += 1
        made.points, made.begin, made.is_moved = {}, self.now.upper, True
        made.upper = self.now.upper + 1
        made.progress = {name: replace(taken, turn=made.upper) for name, taken in made.progress.items()}
        self.now = made

    def restore(self, point: Point) -> None:
        """Go back."""
        self.now.become(self.now.contents(point.upper - 1))
        self.now.progress, self.now.orders = dict(point.progress), point.orders

    def erase(self, slot: Slot, upper: int) -> None:
        """Forget a key; `upper` is the shard's after it. What comes again is dropped if it is from before."""
        if self.now.orders is not None:
            seen = [self.now.orders, *(each.orders for each in self.now.points.values())]
            highest = [each.slots[slot].precedence[0][0][1][0][1] for each in seen if each and slot in each.slots]
            self.now.erased[slot] = max([self.now.erased.get(slot, -1), *highest])
        else:
            taken_to = self.now.upper - (self.now.upper % DAY_MS if self.now.is_moved else 0)
            self.now.erased[slot] = max(self.now.erased.get(slot, -1), taken_to)
        self.now.forget(slot)
        self.now.is_moved = self.now.is_moved or upper > self.now.upper
        self.now.upper = upper

    def _beginning(self) -> History:
        orders = None if self.is_log else OrderMemory()
        return History(self.definition, orders, self.now.width, self.now.erased)

    def _at(self, point: Point) -> History:
        found = self.now.copy()
        found.evolve(self.definition)
        found.updates = [update for update in found.updates if update.time < point.upper]
        found.upper, found.progress, found.orders = point.upper, dict(point.progress), point.orders
        found.is_moved = True
        return found

    def _caught_up(self, fork: History, turns_after: int | None) -> History:
        """Bring it up to the upper: all files in one turn, or each in its turn, if that is later than `turns_after`."""
        end = self.now.upper
        due = end - end % DAY_MS
        turns = {name: taken.turn for name, taken in self.now.progress.items()}
        wanted = {
            name: drop
            for name, drop in self.files.items()
            if is_new(name, drop, fork.progress)
            and (name in turns or (drop.date_ms is not None and drop.date_ms < due))
        }
        if turns_after is not None:
            for turn in sorted({turns[name] for name in wanted if turns_after < turns[name] < end}):
                fork.drain({name: wanted.pop(name) for name in list(wanted) if turns[name] <= turn}, turn)
        if fork.upper < end:
            fork.drain(wanted, end)
        return fork


def decoded(
    definition: Definition, record: Mapping[str, Any], position: tuple[Any, ...], date_ms: int | None, history: History
) -> Record:
    """The record by this definition."""
    slot: Slot = tuple(record[name] for name in definition.key)
    order = position if history.orders is None else (record["seq"], *position)
    value: Value | Mark
    if record.get("op") == "D":
        value = TOMBSTONE
    else:
        row: list[Any] = [None] * history.width
        value = tuple(row)
        for each in definition.values:
            try:
                row[each.place] = _cell(record.get(each.name), each.type)
            except ValueError:
                value = Err("value", repr(slot).encode(), json.dumps(record, sort_keys=True).encode())
                break
            value = tuple(row)
    return Record(slot, value, date_ms, order)


def _cell(cell: Any, kind: str) -> Any:
    """The value in a column of this type. `ValueError` if it is none of its values."""
    if cell is None:
        return None
    if kind == "string":
        return cell if isinstance(cell, str) else json.dumps(cell)
    if isinstance(cell, str):
        raise ValueError(cell)
    if kind in ("float", "double"):
        if kind == "float" and struct.unpack("f", struct.pack("f", cell))[0] != cell:
            raise ValueError(cell)
        return float(cell)
    number = Decimal(str(cell))
    scale = Decimal("0.01") if "decimal" in kind else Decimal(1)
    if not -_RANGES[kind] < number < _RANGES[kind] or number.quantize(scale) != number:
        raise ValueError(cell)
    return number.quantize(scale) if "decimal" in kind else int(number)


def _only(value: Value, kept: set[int], width: int) -> Value:
    if isinstance(value, Err):
        return value
    return tuple(value[place] if place in kept else None for place in range(width))


def _without(orders: OrderMemory | None, slot: Slot) -> OrderMemory | None:
    if orders is None:
        return None
    return replace(orders, slots={each: seen for each, seen in orders.slots.items() if each != slot})


__all__ = ["Collection", "Definition", "Drop", "Field", "History", "Point"]
