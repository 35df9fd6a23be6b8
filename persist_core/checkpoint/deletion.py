"""Deletion of checkpoints: manifests first, then a look for pins that were set meanwhile, then the other files.

    pinned meanwhile? ──no──> manifests are deleted ──> pinned meanwhile? ──no──> folders are deleted
          └ yes: refused                                      └ yes: all are restored, and the call is refused

A look lists all checkpoints of the shard, so many are deleted after one pair of looks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from persist_core.errors import InvalidInput
from persist_core.keys import CheckpointLayout
from persist_core.location.blob import Blob

_MAX_DELETIONS = 10  # of one folder: each but the first because a publisher has written into it meanwhile


class Checkpoints(Protocol):
    """The part of a `Checkpointer` that a deletion needs."""

    blob: Blob
    layout: CheckpointLayout

    def read_latest(self) -> str | None: ...

    def needed_by(self, checkpoint_id: str) -> frozenset[str]: ...

    def pinned(self) -> frozenset[str]: ...

    def list_checkpoints(self) -> list[str]: ...


def delete_checkpoints(
    checkpointer: Checkpoints, doomed: Sequence[str], *, spared: Collection[str] = ()
) -> tuple[str, ...]:
    """Delete these checkpoints, newest first; the ids of the ones that existed. `spared`: pinned ones that need none.

    Raises `InvalidInput` if one is pinned or `_latest` names it, or if a delta chain of such a checkpoint needs it.
    """
    blob, layout = checkpointer.blob, checkpointer.layout
    latest = checkpointer.read_latest()
    needed = frozenset[str]() if latest is None else checkpointer.needed_by(latest)
    for checkpoint_id in doomed:
        if checkpoint_id in needed:
            raise _needed(checkpointer, checkpoint_id, f"the latest, {latest}, needs it")
    found = ((each, blob.get(layout.manifest(each))) for each in doomed)
    manifests = {each: data for each, data in found if data is not None}
    if manifests and (refusal := _refusal(checkpointer, manifests, spared)):
        raise refusal
    for checkpoint_id in manifests:
        blob.delete(layout.manifest(checkpoint_id))
    if manifests and _pinned_meanwhile(checkpointer, manifests, spared):
        # Such a pin was confirmed to its user. Its chain can be followed once all manifests are back, oldest first.
        for checkpoint_id in reversed(manifests):
            blob.set(layout.manifest(checkpoint_id), manifests[checkpoint_id])
        if refusal := _refusal(checkpointer, manifests, spared):
            raise refusal
    for checkpoint_id in doomed:
        _delete_folder(checkpointer, checkpoint_id)
    return tuple(manifests)


def _delete_folder(checkpointer: Checkpoints, checkpoint_id: str) -> None:
    for _ in range(_MAX_DELETIONS):
        entries = list(checkpointer.blob.list_keys_and_metadata(checkpointer.layout.folder(checkpoint_id)))
        if not entries:
            break
        for entry in entries:
            checkpointer.blob.delete(entry.key)


def _pinned_meanwhile(checkpointer: Checkpoints, deleted: Collection[str], spared: Collection[str]) -> bool:
    new = checkpointer.pinned().difference(spared)
    return any(not checkpointer.needed_by(pinned).isdisjoint(deleted) for pinned in new)


def _refusal(checkpointer: Checkpoints, ids: Collection[str], spared: Collection[str]) -> InvalidInput | None:
    """The error of the first of them that is pinned, or that a pinned one's chain needs."""
    for pinned in sorted(checkpointer.pinned().difference(spared)):
        if pinned in ids:
            return InvalidInput(f"checkpoint {pinned} is pinned; unpin it before deleting it")
        needed = checkpointer.needed_by(pinned)
        if found := next((each for each in ids if each in needed), None):
            return _needed(checkpointer, found, f"{pinned}, which is pinned, builds on it; unpin {pinned} first")
    return None


def _needed(checkpointer: Checkpoints, checkpoint_id: str, why: str) -> InvalidInput:
    others = (each for each in checkpointer.list_checkpoints() if each != checkpoint_id)
    needing = [each for each in others if checkpoint_id in checkpointer.needed_by(each)]
    builds = f". These build on it: {', '.join(needing)}" if needing else ""
    return InvalidInput(f"checkpoint {checkpoint_id} cannot be deleted: {why}{builds}")
