"""Choose the `Feed` of a collection. Only this module knows the kinds."""

from __future__ import annotations

from persist_core.config.collection import CollectionConfig
from persist_core.config.path_pattern import S3, PathPattern
from persist_core.location.open import OpenLocation
from persist_core.location.s3.objects import S3Objects
from persist_core.sources.feed import Feed, LocalFeed
from persist_core.sources.s3_feed import S3Feed


def feed_of(location: OpenLocation, config: CollectionConfig) -> Feed:
    """The files of `config`. Raises `ConfigError` if the connection that it names is not known."""
    source = config.source
    return feed_at(location, config.source_pattern(), source.connection, requester_pays=source.requester_pays)


def feed_at(
    location: OpenLocation, pattern: PathPattern, connection: str | None, *, requester_pays: bool = False
) -> Feed:
    """The files that match `pattern`; otherwise as `feed_of`."""
    if not pattern.root.startswith(S3):
        return LocalFeed(pattern)
    settings = location.feed_settings(pattern.root, connection)
    return S3Feed(pattern, S3Objects(settings, requester_pays=requester_pays))
