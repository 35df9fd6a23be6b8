"""The root folder of a collection's files: part of the identity of each file.

    source.path --parse--> root of now ──┐
    stored progress ──> Place(root, base)┴─ place_after ──> Place, and which files have other paths now

1. A file is identified by its path. The ledger stores paths relative to `base`, the root of the first commit.
2. A root inside the stored root or `base`, or around one of them, is the same tree. `base` stays the same, so names in
   the ledger and their order do too.
3. Any other root is refused until the collection file states which files it holds: `source.moved_from` (the same files:
   each consumed path below the old root becomes one below the new root) or `source.replaces` (other files: consumed
   paths stay as they are). Both name the old root, so they have no effect on any later change. Within a tree `path` may
   start at the old root again: `Place.moved_from` says that the files have been moved out of it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from persist_core.config.collection import CollectionConfig
from persist_core.config.path_pattern import S3
from persist_core.errors import ConfigError


@dataclass(frozen=True)
class Place:
    """`root`: the folder that `source.path` starts at. `base`: the folder that names in the ledger are relative to.

    `moved_from`: the root before the newest move.
    """

    root: str
    base: str
    moved_from: str = ""


@dataclass(frozen=True)
class Move:
    """Files below the folder `old` are below `new` now. Both are absolute paths, or URIs."""

    old: str
    new: str

    def path(self, path: str) -> str:
        """The place of the file or folder `path` now."""
        return join(self.new, relative_to(path, self.old)) if holds(self.old, path) else path


def place_after(config: CollectionConfig, known: Place | None) -> tuple[Place, Move | None]:
    """The place that the collection reads from now, given where it has read from.

    Raises `ConfigError` if that is another folder tree and the collection file does not state which files it holds.
    """
    root = config.source_pattern().root
    if known is None:
        return Place(root, root), None
    if root == known.root:
        return known, None
    was_moved = known.root == known.moved_from and (holds(root, known.root) or holds(known.root, root))
    if known.root in map(config.source_folder, config.source.moved_from) and not was_moved:
        move = Move(known.root, root)
        return Place(root, move.path(known.base), moved_from=known.root), move
    is_new = known.root in map(config.source_folder, config.source.replaces)
    if is_new or any(holds(root, folder) or holds(folder, root) for folder in (known.root, known.base)):
        return replace(known, root=root), None
    raise ConfigError(
        f"collection {config.name}: source.path: found {root!a} as the folder that it starts at, expected"
        f" {known.root!a}, where the files consumed so far are. State in the collection file"
        f" which files the new folder holds: `moved_from: {known.root}` under `source:` if they are the same files in"
        f" another place (consumed files are not read again); `replaces: {known.root}` if they are other files (all"
        " are read)"
    )


def join(base: str, relative: str) -> str:
    """An absolute path or URI, without access to a store: `..` removes a folder of `base`. See `relative_to`."""
    if relative.startswith(("/", S3)):
        return relative
    joined = f"{base.rstrip('/')}/{relative}"
    if not relative.startswith("."):
        return joined
    return f"{S3}{os.path.normpath(joined.removeprefix(S3))}" if joined.startswith(S3) else os.path.normpath(joined)


def relative_to(path: str, base: str) -> str:
    """The inverse of `join`. A path in another kind of store than `base` is its own name."""
    return os.path.relpath(path, base) if path.startswith(S3) == base.startswith(S3) else path


def holds(folder: str, other: str) -> bool:
    """True if `other` is `folder` or lies below it."""
    return other == folder or other.startswith(f"{folder.rstrip('/')}/")
