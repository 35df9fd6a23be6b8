"""Which source a shard has: by its YAML file, or by the progress in its state. Only this module knows the kinds."""

from __future__ import annotations

from collections.abc import Mapping

from persist_core.config.collection import CollectionConfig
from persist_core.config.shard import ShardConfig
from persist_core.config.view import ViewConfig
from persist_core.errors import InvalidInput, UnknownVersion
from persist_core.handles.client import PersistClient
from persist_core.location.blob import Blob
from persist_core.shard.batch import SourceFrontier
from persist_core.sources.collection import CollectionSource
from persist_core.sources.ledger import SOURCE_TYPE as FILES
from persist_core.sources.ledger import FileProgress
from persist_core.sources.shards import SHARDS, ShardProgress, ShardSource
from persist_core.sources.source import Progress, Source


def source_of(client: PersistClient, config: ShardConfig) -> Source:
    """The input of the shard that `config` describes."""
    if isinstance(config, CollectionConfig):
        return CollectionSource(config, client.blob)
    if isinstance(config, ViewConfig):
        return ShardSource(config, client)
    raise InvalidInput(f"{config.name}: {type(config).__name__} has no input; expected a collection or a view")


def progress_of(blob: Blob, shard: str, sources: Mapping[str, SourceFrontier]) -> dict[str, Progress]:
    """What a shard has consumed of each source, by the source's name. `sources` is that of a state, commit or
    checkpoint.

    Raises `UnknownVersion` for a source that this release does not have.
    """
    return {name: _progress_of(blob, shard, stored) for name, stored in sources.items()}


def kind_of(sources: Mapping[str, SourceFrontier]) -> str:
    """What a shard with this progress is: `collection` (of files), `view` (of shards), or `other`."""
    kinds = {FILES: "collection", SHARDS: "view"}
    return next((kinds[stored.source_type] for stored in sources.values() if stored.source_type in kinds), "other")


def _progress_of(blob: Blob, shard: str, stored: SourceFrontier) -> Progress:
    if stored.source_type == FILES:
        return FileProgress(blob, shard, stored)
    if stored.source_type == SHARDS:
        return ShardProgress(blob, shard, stored)
    raise UnknownVersion(
        f"shard {shard} consumes a source of type {stored.source_type!r}; this release has {FILES!r} and {SHARDS!r}."
        " A newer release wrote it: upgrade this release"
    )
