"""Which `Feed` a collection has. Only this module knows the kinds."""

from __future__ import annotations

from persist_core.config.collection import CollectionConfig
from persist_core.location.open import OpenLocation
from persist_core.location.s3.objects import S3Objects
from persist_core.sources.feed import Feed, LocalFeed
from persist_core.sources.s3_feed import S3Feed


def feed_of(location: OpenLocation, config: CollectionConfig) -> Feed:
    """The files of `config`. Raises `ConfigError` if the connection that it names is not known."""
    pattern, source = config.source_pattern(), config.source
    if not source.is_on_s3:
        return LocalFeed(pattern)
    settings = location.feed_settings(pattern.root, source.connection)
    return S3Feed(pattern, S3Objects(settings, requester_pays=source.requester_pays))
