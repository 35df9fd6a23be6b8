"""The simulated feed: files of records, the same for the same seed, with any other actors."""

from __future__ import annotations

import json
import os
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from persist_core.clock import Clock
from persist_core.config.collection import CollectionConfig
from persist_core.sources.natural_order import natural_key
from tests.oracle.consolidate import Slot, Value
from tests.oracle.upsert import TOMBSTONE, TRUNCATE, Record
from tests.sim.simulator.script import Scenario
from tests.virtual import ManualClock, SeededIds

SHARD = "things"
INTERVAL_ENDS = (15, 30, 40)  # of the dag runs; times are small so that records meet
CLOSING_ENDS = tuple(range(50, 71))  # beyond all times of records; several, for limits leave files over: one a run
_KEYS = 3  # few, so that records of a key meet in many orders
FIRST_PLAIN_ID = 1_000  # of rows that no input has: a plain writer's; the id says at what time it was appended
_MAX_RECORDS = 4  # of a file
_MAX_SEQ = 12  # of orders: some are equal, and their positions decide
_REDELIVERED = 0.3
_TRUNCATES = 0.08  # of the records of a shard in `sequence` order
_EARLY_FILES = 1  # there before any actor starts; the others are dropped one by one
_MTIME_S = 1_000_000_000  # of every file: the real one would make no two simulations the same


@dataclass(frozen=True)
class DropFile:
    """One input file."""

    name: str
    text: str
    records: tuple[Record, ...]


def ids_of(scenario: Scenario, name: str, clock: Clock | None = None) -> SeededIds:
    """A separate random stream, so that no choice depends on the other actors."""
    return SeededIds(scenario.seed << 32 | zlib.crc32(name.encode()), clock or ManualClock())


@lru_cache(maxsize=1000)
def drop_file(scenario_seed: int, number: int, *, in_sequence: bool = False) -> DropFile:
    """The file with this number. In `sequence` order its records have `seq`, whatever their times, some are truncates,
    and some of the file before it are delivered once more."""
    name = f"part-{number}.jsonl"
    ids = ids_of(Scenario(scenario_seed), name)
    rows: list[dict[str, object]] = [
        {
            "id": 1 + int(ids.jitter() * _KEYS),
            "name": f"{number}.{row}",
            "ts": int(ids.jitter() * (CLOSING_ENDS[0] - 4)),
            "op": "D" if ids.jitter() < 0.3 else "U",
        }
        for row in range(1 + int(ids.jitter() * _MAX_RECORDS))
    ]
    if in_sequence:
        orders = ids_of(Scenario(scenario_seed), f"orders of {name}")
        rows = [{**row, "seq": int(orders.jitter() * _MAX_SEQ)} for row in rows]
        before = drop_file(scenario_seed, number - 1, in_sequence=True).text.splitlines() if number > 1 else []
        rows = [{**row, "op": "T"} if orders.jitter() < _TRUNCATES else row for row in rows]
        rows += [json.loads(line) for line in before if orders.jitter() < _REDELIVERED]
    return DropFile(name, "".join(json.dumps(row) + "\n" for row in rows), tuple(records_of(name, rows)))


def records_of(name: str, rows: list[dict[str, object]]) -> Iterator[Record]:
    """The contents of a file's lines."""
    for number, row in enumerate(rows):
        time = row["ts"]
        assert isinstance(time, int)
        value = TOMBSTONE if row["op"] == "D" else (row["name"],)
        slot = (row["id"],)
        order = (row["seq"], natural_key(name), 0, number) if "seq" in row else (natural_key(name), number)
        yield Record(None, TRUNCATE, time, order) if row["op"] == "T" else Record(slot, value, time, order)


def row_of(slot: Slot, value: Value) -> dict[str, Any]:
    """A slot and its value as the columns of the collection."""
    assert isinstance(slot, tuple)
    assert isinstance(value, tuple)
    return {"id": slot[0], "name": value[0]}


def is_plain(slot: Slot) -> bool:
    """True if a row of this slot comes from a plain writer."""
    return isinstance(slot, tuple) and isinstance(slot[0], int) and slot[0] >= FIRST_PLAIN_ID


def read_records(path: str) -> list[Record]:
    """Decode one file."""
    rows = [json.loads(line) for line in Path(path).read_text().splitlines()]
    return list(records_of(Path(path).name, rows))


@lru_cache(maxsize=100)
def _config(snapshot_every: int, keep_last: int, max_files: int, *, in_sequence: bool) -> CollectionConfig:
    order = {"mode": "sequence", "by": {"seq": "bigint"}, "keep_deleted": "all"} if in_sequence else "log"
    return CollectionConfig.model_validate(
        {
            "order": order,
            "name": SHARD,
            "source": {"path": "*.jsonl", "format": "json"},
            "key": "id",
            "columns": {"id": "bigint", "name": "string"},
            "time": {"field": "ts"},
            "delete": {"column": "op", "values": ["D"]},
            "retention": {
                "snapshot_every": snapshot_every,
                "keep_last": keep_last,
                "keep_daily": 0,
                "keep_weekly": 0,
            },
            "limits": {"max_files": max_files},
        }
    )


class Feed:
    """The input folder of one simulation."""

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        self._folder = folder
        self.in_sequence = scenario.sequence > 0
        numbers = range(1, scenario.files + 1)
        self.files = [drop_file(scenario.seed, number, in_sequence=self.in_sequence) for number in numbers]
        ids = ids_of(scenario, "config")
        small = [1 + int(ids.jitter() * 3) for _ in range(3)]
        self.config = _config(*small, in_sequence=self.in_sequence).model_copy(update={"base_dir": str(folder)})
        self.late = self.files[_EARLY_FILES:]
        self.known = {file.name: file for file in self.files}
        for file in self.files[:_EARLY_FILES]:
            self.drop(file)

    def drop(self, file: DropFile) -> None:
        """Put a file into the folder, finished."""
        path = self._folder / file.name
        path.write_text(file.text)
        os.utime(path, (_MTIME_S, _MTIME_S))

    def archive(self) -> None:
        """Take all files out of the folder."""
        for file in self.files:
            (self._folder / file.name).unlink(missing_ok=True)


@contextmanager
def input_folder() -> Iterator[Path]:
    """An empty folder for one simulation, in memory where the machine has such a place."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="simulation-", dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


Rank = tuple[int, int, object]  # the time that a record counts from, its own time, its order


@dataclass(frozen=True)
class Arrival:
    """A record that was consumed; `value` is `None` for a tombstone, `slot` for a truncate."""

    rank: Rank
    slot: Slot | None
    value: Value | None


class Expected:
    """The expected contents, computed again: of the records consumed, the greatest per slot and time.

    A record counts from its own time on, or, if that was final when it was consumed, from the lower of the batch
    that consumed it. As of a time a slot holds the record with the greatest (time it counts from, own time, order).

    In `sequence` order it holds the counting one with the greatest order by then, unless a truncate that
    counts by then has a greater one.

    A restore begins a new history: from its time on, only what the checkpoint's history held counts. What that history
    had consumed but not made final by then (the stash) counts from after the restore at the earliest.
    """

    def __init__(self, *, in_sequence: bool = False) -> None:
        self._in_sequence = in_sequence
        self._histories: list[tuple[int, list[Arrival]]] = [(0, [])]  # from which time on, and what was consumed

    def consume(self, records: tuple[Record, ...], lower: int) -> None:
        """Add records that a batch with this lower has consumed."""
        for record in records:
            assert record.time is not None
            value = record.value if isinstance(record.value, tuple) else None
            self.arrive(record.slot, value, max(record.time, lower), record.time, record.order)

    def arrive(self, slot: Slot | None, value: Value | None, counts_from: int, time: int, order: object) -> None:
        """Add one record."""
        self._histories[-1][1].append(Arrival((counts_from, time, order), slot, value))

    def so_far(self) -> tuple[Arrival, ...]:
        """All that counts now, for a later restore."""
        return tuple(self._histories[-1][1])

    def restore(self, arrivals: tuple[Arrival, ...], *, upper: int, at: int) -> None:
        """Begin a new history at time `at`, from a checkpoint, given as `so_far` was then and its upper."""
        taken_over = []
        for arrival in arrivals:
            counts_from, time, order = arrival.rank
            if counts_from >= upper:
                counts_from = max(counts_from, at + 1)
            taken_over.append(replace(arrival, rank=(counts_from, time, order)))
        self._histories.append((at, taken_over))

    def times(self) -> set[int]:
        """All times at which something may change, since the newest restore."""
        return {arrival.rank[0] for arrival in self._histories[-1][1]}

    def as_of(self, time: int) -> dict[Slot, Value]:
        """The contents as of `time`."""
        arrivals = next(arrivals for begin, arrivals in reversed(self._histories) if begin <= time)
        newest: dict[Slot | None, Arrival] = {}
        for arrival in arrivals:
            if arrival.rank[0] <= time:
                known = newest.get(arrival.slot, arrival)
                newest[arrival.slot] = max(known, arrival, key=self._precedence)
        floor = newest.pop(None, None)  # only `sequence` order has truncates
        return {
            slot: arrival.value
            for slot, arrival in newest.items()
            if slot is not None and arrival.value is not None
            if floor is None or self._precedence(floor) < self._precedence(arrival)
        }

    def _precedence(self, arrival: Arrival) -> Any:
        return arrival.rank[2] if self._in_sequence else arrival.rank


Beaten = tuple[Slot, object, object, int]  # a late record's slot and order, the order that beat it, and when it acted


@dataclass(frozen=True)
class Remembered:
    """The memory that a shard in `sequence` order needs beside its rows: the highest order that each slot has seen,
    unless it is empty and the greatest truncate (`floor`) is above it; and the records that lost."""

    orders: dict[Slot, object]
    floor: object | None
    late: frozenset[Beaten]


def remembered(arrivals: Iterable[Arrival], upper: int) -> Remembered:
    """The orders that count before `upper`, worked out time by time: the greatest order of a slot and a time acts.

    A truncate acts on every slot that holds a value of a lower order, and then nothing of that slot and time is late.
    """
    by_time: dict[int, dict[Slot | None, list[Any]]] = {}
    values: dict[tuple[Slot | None, Any], Value | None] = {}
    for arrival in arrivals:
        time, _, order = arrival.rank
        if time < upper:
            by_time.setdefault(time, {}).setdefault(arrival.slot, []).append(order)
            values[arrival.slot, order] = arrival.value
    seen: dict[Slot, Any] = {}
    full: set[Slot] = set()
    floor: Any = None
    late = set()
    for time in sorted(by_time):
        acting = by_time[time]
        if truncates := acting.pop(None, None):
            floor = max(truncates) if floor is None else max(floor, *truncates)
            for emptied in (slot for slot in full if seen[slot] < max(truncates)):
                acting.setdefault(emptied, []).append(max(truncates))
        for slot, orders in acting.items():
            assert slot is not None
            order = max(orders)
            highest = max((each for each in (seen.get(slot), floor) if each is not None), default=order)
            if order < highest:
                late.add((slot, order, highest, time))
                continue
            seen[slot] = order
            (full.discard if values.get((slot, order)) is None else full.add)(slot)
    kept = {slot: order for slot, order in seen.items() if slot in full or floor is None or floor < order}
    return Remembered(kept, floor, frozenset(late))
