"""The one place that knows which kind of file has which kind of input."""

from __future__ import annotations

from persist_core.client import PersistClient
from persist_core.config import CollectionConfig
from persist_core.errors import InvalidInput
from persist_core.shard_config import ShardConfig
from persist_core.sources.collection import CollectionSource
from persist_core.sources.shards import ShardSource
from persist_core.sources.source import Source
from persist_core.view_config import ViewConfig


def source_of(client: PersistClient, config: ShardConfig) -> Source:
    """The input of the shard that `config` describes."""
    if isinstance(config, CollectionConfig):
        return CollectionSource(config, client.blob)
    if isinstance(config, ViewConfig):
        return ShardSource(config, client)
    raise InvalidInput(f"{config.name}: {type(config).__name__} describes no input; wanted a collection or a view")
