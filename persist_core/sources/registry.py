"""Find the source of a shard: by its YAML file, or by the progress in its state. Only this module knows the kinds.

A reader of a shard finds the kind of its source here by the `source_type` of its progress.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from persist_core.config.collection import FILES
from persist_core.config.shard import ShardConfig
from persist_core.config.view import SHARDS
from persist_core.contents.batch import SourceFrontier
from persist_core.errors import UnknownVersion
from persist_core.handles.client import PersistClient
from persist_core.location.blob import Blob
from persist_core.sources.collection import CollectionSource
from persist_core.sources.files import show_position as show_file_position
from persist_core.sources.ledger import FileProgress
from persist_core.sources.shards import ShardProgress, ShardSource
from persist_core.sources.source import Progress, Source


def _by_name(position: Mapping[str, Any]) -> str:
    """`partition 3, offset 17`."""
    return ", ".join(f"{name} {value}" for name, value in position.items())


@dataclass(frozen=True)
class Kind:
    """One kind of source: what a shard with it is called, its input and progress, and how it shows a position."""

    name: str
    source: Callable[[PersistClient, Any], Source]
    progress: Callable[[Blob, str, SourceFrontier], Progress]
    show_position: Callable[[Mapping[str, Any]], str] = _by_name


KINDS = {
    FILES: Kind("collection", CollectionSource, FileProgress, show_file_position),
    SHARDS: Kind("view", ShardSource, ShardProgress),
}


def source_of(client: PersistClient, config: ShardConfig) -> Source:
    """The input of the shard that `config` describes."""
    return KINDS[config.source_type].source(client, config)


def progress_of(blob: Blob, shard: str, sources: Mapping[str, SourceFrontier]) -> dict[str, Progress]:
    """A shard's progress in each source, by the source's name. `sources`: of a state, commit or
    checkpoint.

    Raises `UnknownVersion` for a source that this release does not have.
    """
    return {name: _progress_of(blob, shard, stored) for name, stored in sources.items()}


def kind_of(sources: Mapping[str, SourceFrontier]) -> str:
    """The kind of a shard with this progress: `collection` (of files), `view` (of shards), or `other`."""
    return next((kind.name for kind in _kinds(sources)), "other")


def show_position(sources: Mapping[str, SourceFrontier], position: Mapping[str, Any]) -> str:
    """A record's position, the values by the fields of `CollectionSchema.position`, as its source shows it to people.

    `sources` is the progress of its shard.
    """
    return next((kind.show_position for kind in _kinds(sources)), _by_name)(position)


def _kinds(sources: Mapping[str, SourceFrontier]) -> list[Kind]:
    return [KINDS[stored.source_type] for stored in sources.values() if stored.source_type in KINDS]


def _progress_of(blob: Blob, shard: str, stored: SourceFrontier) -> Progress:
    if stored.source_type not in KINDS:
        raise UnknownVersion(
            f"shard {shard} consumes a source of type {stored.source_type!r}; this release has {', '.join(KINDS)}. A"
            " newer release wrote it: upgrade this release"
        )
    return KINDS[stored.source_type].progress(blob, shard, stored)
