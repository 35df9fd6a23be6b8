"""How a changing collection is read, in each way, and compared with `tests.oracle.changing` at all readable times."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pyspark.sql import SparkSession

import persist_spark
from persist_core.handles.client import PersistClient
from persist_core.handles.read import in_schema
from persist_core.schema import DIFF, TIME
from persist_core.shard.state import ShardState
from tests.oracle.changing import History
from tests.oracle.consolidate import Err, Slot

Contents = tuple[Counter[Any], Counter[Any]]
"""Rows, and keys of errors."""


@dataclass(frozen=True)
class Reads:
    """The readers. `printed` is what a command prints."""

    client: PersistClient
    chance: random.Random
    printed: Callable[..., str]
    spark: SparkSession | None

    def check(self, state: ShardState, model: History, shard: str) -> None:
        """By plain Python at all times, by the others at one; and the changes between two."""
        since, end = state.since.time or 0, model.upper - 1
        times = sorted({update.time + more for update in model.updates for more in (-1, 0)} | {since, end})
        times = [time for time in times if since <= time <= end]
        for time in times:
            self.check_plain(shard, time, model)
        time = self.chance.choice(times)
        wanted = shown(model, time)
        said = [self.printed(each, shard, "--as-of", str(time), "--json") for each in ("snapshot", "errors")]
        rows, errs = ([json.loads(line) for line in each.splitlines()] for each in said)
        assert _counted(rows, errs, model) == wanted, (shard, time)
        if self.spark is not None and "~" not in shard:
            where = (self.spark, self.client.location, shard, time)
            frames = (persist_spark.snapshot(*where), persist_spark.errors(*where))
            rows, errs = ([row.asDict() for row in frame.collect()] for frame in frames)
            assert _counted(rows, errs, model) == wanted, (shard, time)
        if later := [each for each in times if each >= model.begin]:
            low, high = sorted(self.chance.choice(later) for _ in range(2))
            self._check_changes(shard, low, high, model)

    def check_plain(self, shard: str, time: int, model: History) -> None:
        """By plain Python, at one time."""
        reader = self.client.open_reader(shard)
        found = _counted(reader.snapshot(time).to_pylist(), reader.errors(time).to_pylist(), model)
        assert found == shown(model, time), (shard, time)

    def check_earlier(self, state: ShardState, version: int, time: int, rows: Counter[Any]) -> None:
        """An earlier schema, as of a time at which it was the newest; and changes that cross the versions."""
        shard, since = state.shard, state.since.time or 0
        if time < since:
            return
        reader = self.client.open_reader(shard)
        found = reader.snapshot(time, schema=version).to_pylist()
        assert Counter(_comparable(row) for row in found) == _plain(rows), (shard, time, version)
        if self.spark is not None:
            frame = persist_spark.snapshot(self.spark, self.client.location, shard, time, schema=version)
            assert Counter(_comparable(row.asDict()) for row in frame.collect()) == _plain(rows), (shard, time, version)
        end = (in_schema(state, version).upper.time or 0) - 1
        sums = Counter(_comparable(row) for row in found)
        for row in reader.changes(time, end, schema=version).to_pylist():
            sums[_comparable({name: row[name] for name in row if name not in (TIME, DIFF)})] += row[DIFF]
        last = Counter(_comparable(row) for row in reader.snapshot(end, schema=version).to_pylist())
        assert {row: count for row, count in sums.items() if count} == dict(last), (shard, time, version, end)

    def _check_changes(self, shard: str, low: int, high: int, model: History) -> None:
        """A snapshot and the changes after it are the next snapshot."""
        reader = self.client.open_reader(shard)
        sums = Counter(_row(row, model) for row in reader.snapshot(low).to_pylist())
        for row in reader.changes(low, high).to_pylist():
            sums[_row({name: row[name] for name in row if name not in (TIME, DIFF)}, model)] += row[DIFF]
        assert {row: count for row, count in sums.items() if count} == dict(shown(model, high)[0]), (shard, low, high)


def shown(model: History, time: int) -> Contents:
    """The contents that a reader is to see."""
    rows: Counter[Any] = Counter()
    errs: Counter[Any] = Counter()
    for slot, value in model.contents(time).items():
        key = _named(model, slot)
        if isinstance(value, Err):
            errs[tuple(key.values())] += 1
        else:
            rows[_row({**key, **{each.name: value[each.place] for each in model.definition.values}}, model)] += 1
    return rows, errs


def _named(model: History, slot: Slot) -> dict[str, Any]:
    return dict(zip(model.definition.key, slot, strict=True))


def _row(row: Mapping[str, Any], model: History) -> tuple[Any, ...]:
    """Comparable, however it was read."""
    decimals = {each.name for each in model.definition.fields if each.type.startswith("decimal")}
    return tuple(
        (name, Decimal(cell) if name in decimals and cell is not None else cell) for name, cell in sorted(row.items())
    )


def _comparable(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(sorted(row.items()))


def _plain(rows: Counter[Any]) -> Counter[Any]:
    return Counter({tuple(sorted(row)): count for row, count in rows.items()})


def _counted(rows: list[Any], errs: list[Any], model: History) -> Contents:
    key = model.definition.key
    return Counter(_row(row, model) for row in rows), Counter(tuple(err[name] for name in key) for err in errs)
