"""An invented source, which proves that only `persist_core.sources` knows files: a log with partitions.

The log of a collection is `log.json` in its folder: names of bundles of records, `null` for one that was compacted
away. Entry `n` has the offset `n // PARTITIONS` in partition `n % PARTITIONS`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

from persist_core.config.collection import CollectionConfig, SourceConfig
from persist_core.contents.batch import SourceFrontier
from persist_core.handles.client import PersistClient
from persist_core.location.blob import Blob
from persist_core.schema import CollectionSchema, Column
from persist_core.sealed import Sealed
from persist_core.shard.state import ShardState
from persist_core.sources.frozen import stage_frozen
from persist_core.sources.registry import KINDS, Kind
from persist_core.sources.source import ConsumedInput, Intake, ReadInput
from tests.oracle.upsert import Record

LOG = "log"
POSITION = (Column("partition", "int"), Column("offset", "bigint"))
PARTITIONS = 2


class LogConfig(SourceConfig):
    """Its section of the collection's file."""

    @property
    def type(self) -> str:
        return LOG

    @property
    def position(self) -> tuple[Column, ...]:
        return POSITION


def known() -> AbstractContextManager[object]:
    """The kind is registered inside."""
    return mock.patch.dict(KINDS, {LOG: Kind("collection", LogSource, LogProgress)})


def of_log(config: CollectionConfig) -> CollectionConfig:
    """A collection fed by a log."""
    source = LogConfig.model_validate(config.source.model_dump())
    return config.model_copy(update={"source": source})


def placed(record: Record) -> Record:
    """A record of a file as one of the log: row 7 of `day-3` is offset 7 of partition 3. They compare as before."""
    *own, file, block, row = record.order
    number = re.search(r"\d+", file)
    return replace(record, order=(*own, int(number[0]) if number else 99, block * 1_000 + row))


def append(folder: Path, name: str) -> None:
    _write(folder, [*_entries(folder), name])


def compact_away(folder: Path, name: str) -> None:
    _write(folder, [None if entry == name else entry for entry in _entries(folder)])


def _write(folder: Path, entries: list[str | None]) -> None:
    (folder / "log.json").write_text(json.dumps(entries))


def _entries(folder: Path) -> list[str | None]:
    path = folder / "log.json"
    found: list[str | None] = json.loads(path.read_text()) if path.exists() else []
    return found


def _between(folder: Path, before: Mapping[str, int], after: Mapping[str, int]) -> list[str]:
    """The bundles whose offsets are below `after`, and not below `before`, by partition."""
    found = []
    for number, name in enumerate(_entries(folder)):
        partition, offset = str(number % PARTITIONS), number // PARTITIONS
        if name is not None and before.get(partition, 0) <= offset < after[partition]:
            found.append(name)
    return found


@dataclass(frozen=True)
class FrozenLog(Sealed):
    """The bundles of one description, by name."""

    KIND = "frozen_log"

    names: tuple[str, ...]


class LogSource:
    """`persist_core.sources.source.Source`."""

    def __init__(self, client: PersistClient, config: CollectionConfig) -> None:
        self._client, self._config, self._folder = client, config, Path(config.base_dir)

    def check(self, state: ShardState) -> None:
        state.schemas.placed(self._config.collection_schema())

    def freeze(self, state: ShardState, *, lower: int, until: int | None) -> Intake:  # noqa: ARG002 - the contract's
        ends = {
            str(each): (len(_entries(self._folder)) + PARTITIONS - 1 - each) // PARTITIONS for each in range(PARTITIONS)
        }
        names = tuple(_between(self._folder, self._next(state), ends))
        key = stage_frozen(self._client.blob, state.shard, FrozenLog(names), era=state.era) if names else None
        after = SourceFrontier(LOG, {"folder": str(self._folder), "next": ends})
        return Intake(until, {LOG: after}, key, len(names), sum(map(len, names)))

    def pending(self, state: ShardState, *, until: int | None, again: bool = False) -> int:  # noqa: ARG002 - the contract's
        return len(_entries(self._folder)) - sum(self._next(state).values())

    def inputs(self, input_key: str) -> list[ReadInput]:  # noqa: ARG002 - the contract's
        return [ReadInput(str(self._folder))]

    def schema(self, state: ShardState) -> CollectionSchema:  # noqa: ARG002 - the contract's
        return self._config.collection_schema()

    def settle(self, state: ShardState) -> None:
        """It holds nothing."""

    @staticmethod
    def _next(state: ShardState) -> Mapping[str, int]:
        found: Mapping[str, int] = state.sources[LOG].offsets["next"] if LOG in state.sources else {}
        return found


class LogProgress:
    """`persist_core.sources.source.Progress`."""

    def __init__(self, blob: Blob, shard: str, stored: SourceFrontier) -> None:  # noqa: ARG002 - as the registry calls
        self._offsets: Mapping[str, Any] = stored.offsets

    def needed_keys(self) -> set[str]:
        return set()

    def verify(self) -> Iterator[str]:
        yield from ()

    def check_restorable(self) -> None:
        """It is."""

    def copied_to(self, shard: str, *, era: int) -> SourceFrontier:  # noqa: ARG002 - it names no objects
        return SourceFrontier(LOG, self._offsets)

    def consumed_since(self, earlier: SourceFrontier | None) -> tuple[ConsumedInput, ...]:
        before = {} if earlier is None else earlier.offsets["next"]
        names = _between(Path(self._offsets["folder"]), before, self._offsets["next"])
        return tuple(map(ConsumedInput, sorted(names)))
