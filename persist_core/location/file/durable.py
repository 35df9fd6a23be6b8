"""Directories that survive a power cut: a new name is safe only after its parent directory was synced."""

from __future__ import annotations

import os
from pathlib import Path


def sync_directory(path: Path) -> None:
    """Flush the names that `path` holds. Raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def create_directory(path: Path, mode: int = 0o700) -> None:
    """Create `path` and its missing parents durably, for their owner alone. Raises `OSError`.

    What exists keeps its mode, so users who share a location make its folder themselves.
    """
    missing = []
    for directory in (path, *path.parents):
        if directory.exists():
            break
        missing.append(directory)
    for directory in reversed(missing):
        directory.mkdir(mode, exist_ok=True)
        sync_directory(directory.parent)
