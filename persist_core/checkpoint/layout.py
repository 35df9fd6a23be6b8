"""Where everything of a checkpoint lies, below `<shard>/checkpoints/`.

_latest
<checkpoint id, a UUIDv7>/
  manifest.json
  pinned                                        a user's pin: retention leaves it alone
  operators/<operator>/partition-<n>.snap | .delta
  offsets/<source>.json
"""

from __future__ import annotations

import re
import uuid

from persist_core.errors import InvalidName
from persist_core.shard.batch import check_shard_name

MANIFEST = "manifest.json"  # right below a checkpoint's folder
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MAX_PARTITION = 1_000_000  # files of operator state in one checkpoint; more is a defect in the writer


def is_checkpoint_id(checkpoint_id: object) -> bool:
    """True for a UUIDv7 in its canonical text."""
    try:
        parsed = uuid.UUID(checkpoint_id) if isinstance(checkpoint_id, str) else None
    except ValueError:
        return False
    return parsed is not None and str(parsed) == checkpoint_id and parsed.version == 7


def check_checkpoint_id(checkpoint_id: str) -> str:
    """Return the id if it is a UUIDv7 in its canonical text, else raise `InvalidName`."""
    if not is_checkpoint_id(checkpoint_id):
        raise InvalidName(f"checkpoint id {str(checkpoint_id)[:80]!r}; wanted a UUIDv7 in lower case")
    return checkpoint_id


def _check_name(name: str, what: str) -> str:
    if not _NAME.fullmatch(name) or ".." in name:
        raise InvalidName(f"{what} {name[:80]!r}; wanted 1 to 64 letters, digits, '.', '_' or '-'")
    return name


class Layout:
    """Blob keys of one shard's checkpoints."""

    def __init__(self, shard: str) -> None:
        self.root = f"{check_shard_name(shard)}/checkpoints/"

    @property
    def latest(self) -> str:
        """The pointer that tools and outside readers follow."""
        return f"{self.root}_latest"

    def folder(self, checkpoint_id: str) -> str:
        """All keys of one checkpoint start so."""
        return f"{self.root}{check_checkpoint_id(checkpoint_id)}/"

    def manifest(self, checkpoint_id: str) -> str:
        """The manifest's key."""
        return f"{self.folder(checkpoint_id)}{MANIFEST}"

    def pin(self, checkpoint_id: str) -> str:
        """The key of a user's pin."""
        return f"{self.folder(checkpoint_id)}pinned"

    def artifact(self, checkpoint_id: str, path: str) -> str:
        """The key of an artifact, by its path relative to the checkpoint's folder."""
        return f"{self.folder(checkpoint_id)}{path}"


def state_path(operator: str, partition_id: int, *, is_delta: bool) -> str:
    """An operator's artifact, relative to the checkpoint's folder."""
    if not 0 <= partition_id < _MAX_PARTITION:
        raise InvalidName(f"partition {partition_id}; wanted 0 to {_MAX_PARTITION - 1}")
    ending = "delta" if is_delta else "snap"
    return f"operators/{_check_name(operator, 'operator')}/partition-{partition_id}.{ending}"


def offsets_path(source: str) -> str:
    """A source's offsets, relative to the checkpoint's folder."""
    return f"offsets/{_check_name(source, 'source')}.json"
