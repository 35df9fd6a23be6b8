"""A folder that files are dropped into, and a collection that reads it: shared by the tests of the file source."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from persist_core.config.collection import CollectionConfig
from persist_core.config.path_pattern import parse_pattern
from persist_core.sources.feed import LocalFeed
from persist_core.sources.files import Freeze

DAY_MS = 86_400_000


def collection(root: Path, path: str = "*.jsonl", **fields: Any) -> CollectionConfig:
    return CollectionConfig.model_validate(
        {
            "name": "orders",
            "source": {"path": path, "format": "debezium-json"},
            "key": "id",
            "columns": {"id": "bigint"},
            "base_dir": str(root),
            **fields,
        }
    )


def folder(root: Path) -> LocalFeed:
    """All files of a folder."""
    return LocalFeed(parse_pattern("**/*", str(root)))


def drop(root: Path, name: str, data: bytes = b"{}\n", *, mtime_ms: int | None = None) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    if mtime_ms is not None:
        os.utime(path, ns=(mtime_ms * 1_000_000, mtime_ms * 1_000_000))
    return path


def names(freeze: Freeze) -> list[str]:
    return [file.relative for file in freeze.frozen.files]
