"""A bucket that files are put into, and a collection that reads it: the tests of feeds on S3."""

from __future__ import annotations

from typing import Any

from persist_core.config.collection import CollectionConfig
from persist_core.location.mem import MemBlob, MemConsensus
from persist_core.location.open import OpenLocation
from persist_core.location.settings import connection_variable
from persist_core.sources.feeds import feed_of
from persist_core.sources.files import FileSource
from persist_core.sources.s3_feed import S3Feed
from tests.servers.s3 import ACCESS_KEY, SECRET_KEY, S3Server


class Bucket:
    """A bucket of its own, in which a vendor keeps objects below `feed`. `is_versioned`: older ones stay."""

    def __init__(self, server: S3Server, *, is_versioned: bool = False) -> None:
        self.server = server
        self.name = server.make_bucket()
        if is_versioned:
            on = {"Status": "Enabled"}
            server.raw.put_bucket_versioning(Bucket=self.name, VersioningConfiguration=on)

    @property
    def connection(self) -> str:
        """The URI of the connection `vendor`."""
        keys = f"access_key_id={ACCESS_KEY}&secret_access_key={SECRET_KEY}"
        return f"s3://{self.name}?endpoint={self.server.endpoint}&{keys}"

    @property
    def anywhere(self) -> str:
        """`connection` for any bucket of the server."""
        return self.connection.replace(f"s3://{self.name}?", "s3://?")

    @property
    def connections(self) -> dict[str, str]:
        """By its variable."""
        return {connection_variable("vendor"): self.connection}

    def put(self, name: str, data: bytes = b'{"id":1}\n') -> None:
        self.server.raw.put_object(Bucket=self.name, Key=f"feed/{name}", Body=data)

    def delete(self, name: str) -> None:
        self.server.raw.delete_object(Bucket=self.name, Key=f"feed/{name}")

    def collection(self, path: str = "*.jsonl", **fields: Any) -> CollectionConfig:
        """A collection that reads below `feed`. `source` adds to its section."""
        source = {"path": f"s3://{self.name}/feed/{path}", "format": "json", "connection": "vendor"}
        body = {"name": "orders", "key": "id", "columns": {"id": "bigint", "v": "string"}, "delete": "none"}
        return CollectionConfig.model_validate({**body, **fields, "source": source | fields.get("source", {})})

    def feed(self, config: CollectionConfig) -> S3Feed:
        """Where the collection's files lie."""
        feed = feed_of(OpenLocation(MemBlob(), MemConsensus(), self.connections), config)
        assert isinstance(feed, S3Feed)
        return feed

    def files(self, config: CollectionConfig) -> FileSource:
        """Its source."""
        return FileSource(config, MemBlob(), self.feed(config))
