"""A collection of daily files in a bucket: the real feed over objects in memory. Its write stage is the oracle's."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from persist_core.config.collection import CollectionConfig
from persist_core.location.open import OpenLocation
from persist_core.location.s3.objects import ObjectFacts
from persist_core.sources.s3_feed import S3Feed
from persist_core.time_text import parse_time
from tests.core.protocol.restored_shard import SHARD, Collection
from tests.oracle.upsert import Record

_MTIME_MS = 1_600_000_000_000


class Objects:
    """A bucket without versions, as `S3Feed` asks for it."""

    def __init__(self) -> None:
        self.facts: dict[str, ObjectFacts] = {}

    def put(self, name: str, data: bytes, mtime_ms: int) -> None:
        self.facts[name] = ObjectFacts(name, len(data), mtime_ms, hashlib.md5(data).hexdigest(), "")

    def listed(self, prefix: str, *, after: str = "", through: str | None = None) -> Iterator[list[ObjectFacts]]:
        names = sorted(name for name in self.facts if name.startswith(prefix) and name > after)
        yield [self.facts[name] for name in names if through is None or name <= through]

    def looked_at(self, name: str, version_id: str = "") -> ObjectFacts | None:  # noqa: ARG002 - it has no versions
        return self.facts.get(name)


class CollectionOnS3(Collection):
    """In log order. `max_files`: in one run."""

    def __init__(
        self,
        folder: Path,
        location: OpenLocation | None = None,
        shard: str = SHARD,
        *,
        objects: Objects | None = None,
        max_files: int = 1000,
    ) -> None:
        super().__init__(folder, location, shard)
        self.objects = objects or Objects()
        source = {"path": "s3://bucket/feed/{date:%Y-%m-%d}*.txt", "format": "json"}
        body = {
            **self.config.model_dump(mode="json"),
            "order": "log",
            "source": source,
            "limits": {"max_files": max_files},
        }
        self.config = CollectionConfig.model_validate({name: body[name] for name in body if name != "base_dir"})

    def beside(self, shard: str) -> CollectionOnS3:
        other = CollectionOnS3(self.folder, self.location, shard, objects=self.objects)
        other.feed, other.stashed = self.feed, self.stashed
        other.client.ids = self.client.ids
        other.config = self.config.model_copy(update={"name": shard})
        return other

    def drop(self, name: str, records: Iterable[Record]) -> None:
        """A second drop of one name has other bytes."""
        self.feed[name] = tuple(records)
        known = self.objects.facts.get(f"feed/{name}")
        data = b"x" * (1 if known is None else known.size_bytes + 1)
        self.objects.put(f"feed/{name}", data, _MTIME_MS + len(data) * 1000)

    def take_out(self, name: str) -> None:
        del self.objects.facts[f"feed/{name}"]

    def names(self) -> dict[int, str]:
        """Names by id."""
        rows: list[dict[str, Any]] = self.client.open_reader(self.shard).snapshot().to_pylist()
        return {row["id"]: row["name"] for row in rows}


def reads_objects(monkeypatch: pytest.MonkeyPatch, shard: CollectionOnS3) -> CollectionOnS3:
    """Let all clients of the shard's feed ask its objects."""

    def feed_of(_: Any, config: CollectionConfig) -> S3Feed:
        objects: Any = shard.objects
        return S3Feed(config.source_pattern(), objects)

    monkeypatch.setattr("persist_core.sources.collection.feed_of", feed_of)
    return shard


def day(number: int) -> int:
    return parse_time(f"2023-01-{number:02}")


def file_of(number: int) -> str:
    return f"2023-01-{number:02}.txt"


def ok(id_: int, name: str, file: int) -> Record:
    return Record(("eu", id_), (name, None, None), None, (0, "f", file, 0))
