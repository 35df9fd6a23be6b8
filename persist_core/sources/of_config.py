"""The one place that knows which kind of file has which kind of input."""

from __future__ import annotations

from persist_core.config.collection import CollectionConfig
from persist_core.config.shard import ShardConfig
from persist_core.config.view import ViewConfig
from persist_core.errors import InvalidInput
from persist_core.handles.client import PersistClient
from persist_core.sources.collection import CollectionSource
from persist_core.sources.shards import ShardSource
from persist_core.sources.source import Source


def source_of(client: PersistClient, config: ShardConfig) -> Source:
    """The input of the shard that `config` describes."""
    if isinstance(config, CollectionConfig):
        return CollectionSource(config, client.blob)
    if isinstance(config, ViewConfig):
        return ShardSource(config, client)
    raise InvalidInput(f"{config.name}: {type(config).__name__} describes no input; wanted a collection or a view")
