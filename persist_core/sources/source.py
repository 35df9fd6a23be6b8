"""What mint asks of a shard's input, whatever it is: files dropped into folders, other shards.

    check -> freeze -> Intake (goes into the description) ... the commit ... -> settle

A description is a function of what `freeze` returns, so whatever can change later must be frozen in it, or in the blob
that `input_key` names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from persist_core.schema import CollectionSchema
from persist_core.shard.batch import SourceFrontier
from persist_core.shard.state import ShardState


@dataclass(frozen=True)
class Intake:
    """What one description takes in.

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
    """There is nothing to take in: the reason, for people."""

    reason: str


class Source(Protocol):
    """The input of one shard."""

    def check(self, state: ShardState) -> None:
        """Raise `SchemaMismatch` where it is known before reading that the input does not fit the shard."""
        ...

    def freeze(self, state: ShardState, *, lower: int, until: int | None) -> Intake | NotYet:
        """All input that no commit has taken in, for a description from `lower` (the shard's upper) up to `until`.

        Stages what it freezes and commits nothing; the same input gives the same answer.
        """
        ...

    def pending(self, state: ShardState, *, until: int | None) -> int:
        """How many inputs `freeze` up to `until` would find due, if the shard's upper did not lie at or after it."""
        ...

    def schema(self, state: ShardState) -> CollectionSchema:
        """The schema of a batch without updates."""
        ...

    def settle(self, state: ShardState) -> None:
        """Give up what the shard no longer needs of its input after its newest commit. Safe to do again."""
        ...
