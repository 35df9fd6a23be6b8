"""Where damaged checkpoint manifests go: they stay available and no longer affect other checkpoints.

    checkpoints/<id>/manifest.json  --keep-->  checkpoints/quarantine/<id>/<sha256>.json

The bytes stay there for inspection by a user; no code reads them again. The other objects of a checkpoint whose
manifest was moved stay in place until its entry leaves the quarantine, which keeps the newest `MAX_QUARANTINED`.
"""

from __future__ import annotations

import hashlib

from persist_core.keys import CheckpointLayout, is_checkpoint_id
from persist_core.location.blob import Blob

MAX_QUARANTINED = 100  # objects of one shard; more would only repeat the same damage


class Quarantine:
    def __init__(self, blob: Blob, layout: CheckpointLayout) -> None:
        self._blob = blob
        self._layout = layout

    def copy(self, checkpoint_id: str) -> bool:
        """Copy the bytes of a manifest into the quarantine. False if it does not exist. Idempotent."""
        data = self._blob.get(self._layout.manifest(checkpoint_id))
        if data is None:
            return False
        self._blob.set(self._layout.quarantined(checkpoint_id, hashlib.sha256(data).hexdigest()), data)
        for key in self._keys()[:-MAX_QUARANTINED]:  # the oldest: their order is the one of the checkpoint ids
            self._blob.delete(key)
        return True

    def move(self, checkpoint_id: str) -> bool:
        """Copy, then delete the manifest: the checkpoint is then no longer listed. False if it has no manifest."""
        if not self.copy(checkpoint_id):
            return False
        self._blob.delete(self._layout.manifest(checkpoint_id))
        return True

    def ids(self) -> frozenset[str]:
        return frozenset(found for key in self._keys() if is_checkpoint_id(found := self._id_of(key)))

    def _keys(self) -> list[str]:
        return [entry.key for entry in self._blob.list_keys_and_metadata(self._layout.quarantine)]

    def _id_of(self, key: str) -> str:
        return key.removeprefix(self._layout.quarantine).partition("/")[0]
