"""The contracts for the input of a shard: files dropped into folders, or other shards.

    Source, from the file of a collection or view    check -> freeze -> Intake ... the commit ... -> settle
    Progress, from what a commit has stored          verify (fsck), needed_keys (GC, forks), consumed_since (restore)

A description is a function of what `freeze` returns, so whatever can change later must be frozen in it, or in the blob
that `input_key` names. Restore, fsck and GC have no YAML file: a `Progress` is found by its `source_type`
(`persist_core.sources.registry`), and only this package knows its contents.

Position. A source gives each of its records a position, and its section of the YAML file declares the fields
(`SourceConfig.position`): they are compared one after the other, as the last fields of `_persist_order` in the records
frame. The shard's schema holds the declaration, so nothing that stores, compares or restores positions knows the
source; only `registry.show_position` does. Two records of one source never have the same position, and a record that is
read again has the same position as before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from persist_core.contents.batch import SourceFrontier
from persist_core.schema import CollectionSchema
from persist_core.shard.state import ShardState


@dataclass(frozen=True)
class Intake:
    """The input of one description.

    `upper` bounds the description (`None`: closed); `sources` is the whole progress after its commit; `input_key`
    names the frozen input in blob storage (`None`: nothing to read); `notices` are for the log.
    """

    upper: int | None
    sources: Mapping[str, SourceFrontier]
    input_key: str | None = None
    input_files: int = 0
    input_bytes: int = 0
    notices: tuple[str, ...] = ()


@dataclass(frozen=True)
class NotYet:
    """There is no input to consume; `reason` is for users."""

    reason: str


@dataclass(frozen=True)
class ConsumedInput:
    """One input that a commit has consumed: for files with their size, and the date in their path (ms)."""

    name: str
    size_bytes: int | None = None
    date_ms: int | None = None


@dataclass(frozen=True)
class ReadInput:
    """An input that a description reads, for people and lineage: a shard of this location as of a time (ms), or a
    folder, with its size and the paths of its files."""

    name: str
    as_of: int | None = None
    size_bytes: int = 0
    files: tuple[str, ...] = ()


class Source(Protocol):
    """The input of one shard."""

    def check(self, state: ShardState) -> None:
        """Raise `SchemaMismatch` if it is known before reading that the input does not match the shard's schema."""

    def freeze(self, state: ShardState, *, lower: int, until: int | None) -> Intake | NotYet:
        """All input that no commit has consumed, for a description from `lower` (the shard's upper) up to `until`.

        Stages what it freezes and commits nothing; the same input gives the same result.
        """

    def pending(self, state: ShardState, *, until: int | None, again: bool = False) -> int:
        """The number of inputs that `freeze` up to `until` would find due if the shard's upper were before `until`.

        `again`: an earlier call found none, so inputs dated long before the upper need not be looked for.
        """

    def inputs(self, input_key: str) -> list[ReadInput]:
        """The inputs of a description with this frozen input. Raises `CorruptArtifact`."""

    def schema(self, state: ShardState) -> CollectionSchema:
        """The schema of a batch without updates."""

    def settle(self, state: ShardState) -> None:
        """Release what the shard no longer needs of its input after its newest commit. Idempotent."""


class Progress(Protocol):
    """A shard's progress in one source, as recorded in its state, a commit or a checkpoint."""

    def needed_keys(self) -> set[str]:
        """Blob keys that GC keeps as long as anything refers to this progress. Reads nothing."""

    def verify(self) -> Iterator[str]:
        """Read every object that the progress names; return one message for each that is missing or damaged."""

    def check_restorable(self) -> None:
        """Raise `InvalidInput` if the shard can't go back to an earlier progress; the message says what to do."""

    def copied_to(self, shard: str, *, era: int) -> SourceFrontier:
        """This progress as the progress of another shard, which owns a copy of what it names, staged in its `era`."""

    def consumed_since(self, earlier: SourceFrontier | None) -> tuple[ConsumedInput, ...]:
        """The inputs that this progress has and an earlier progress of the same source does not have, by name.

        After a restore to `earlier` the next run reads what still exists of them. Raises `Corruption`.
        """
