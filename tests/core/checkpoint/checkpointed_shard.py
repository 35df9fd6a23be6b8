"""A shard whose commits carry operator state, and a blob store that crashes its caller: for checkpoint tests."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

from persist_core.checkpoint.checkpointer import Checkpointer
from persist_core.checkpoint.publish import CheckpointReport, publish_and_retain
from persist_core.checkpoint.recovery import recover
from persist_core.config.shard import RetentionConfig
from persist_core.contents.batch import BatchDescription, SourceFrontier
from persist_core.contents.operator_state import OperatorState, StateArtifact
from persist_core.errors import Indeterminate
from persist_core.handles.client import PersistClient
from persist_core.handles.write import stage_manifest
from persist_core.location.blob import BlobMetadata
from persist_core.location.mem import MemBlob, MemConsensus
from persist_core.location.open import OpenLocation
from persist_core.shard.state import Committed
from tests.core.world import KEYS as SCHEMA
from tests.virtual import ManualClock, SeededIds

KEEP_ALL = RetentionConfig(keep_last=1000)
KEEP_ONE = RetentionConfig(keep_last=1, keep_daily=0, keep_weekly=0)
DAY_MS = 86_400_000
NO_FILES = {"root": "/in", "base": "/in", "files": 0, "size_bytes": 0, "segments": []}

R = TypeVar("R")


class Crashing(MemBlob):
    """Crashes its caller at the n-th call (from 0), before or after the call has taken effect."""

    def __init__(self) -> None:
        super().__init__()
        self.is_armed = False
        self.crash_at, self.is_late, self.calls = 0, False, 0

    def arm(self, crash_at: int, *, is_late: bool) -> None:
        """Count from here on."""
        self.is_armed, self.crash_at, self.is_late, self.calls = True, crash_at, is_late, 0

    def _call(self, action: Callable[[], R]) -> R:
        crash = self.is_armed and self.calls == self.crash_at
        self.calls += 1
        if crash and not self.is_late:
            raise Indeterminate("crashed before the call")
        answer = action()
        if crash:
            raise Indeterminate("crashed after the call")
        return answer

    def get(self, key: str) -> bytes | None:
        return self._call(lambda: super(Crashing, self).get(key))

    def set(self, key: str, data: bytes) -> None:
        self._call(lambda: super(Crashing, self).set(key, data))

    def delete(self, key: str) -> int | None:
        return self._call(lambda: super(Crashing, self).delete(key))

    def list_keys_and_metadata(self, prefix: str) -> Iterator[BlobMetadata]:
        return self._call(lambda: super(Crashing, self).list_keys_and_metadata(prefix))


class Shard:
    """A shard whose commits carry operator state."""

    def __init__(self, blob: MemBlob | None = None) -> None:
        self.clock = ManualClock(1_700_000_000_000)
        self.blob, self.consensus = blob or MemBlob(), MemConsensus()
        location, ids = OpenLocation(self.blob, self.consensus), SeededIds(1, self.clock)
        self.client = PersistClient(location, self.clock, ids, fetch_threads=1)  # its calls have an order
        self.writer = self.client.open_writer("s")
        self.epoch = 0
        self.parent: str | None = None
        self.chains: dict[str, tuple[StateArtifact, ...]] = {}

    def commit(
        self, *, is_delta: bool = False, state: bytes | None = b"stash", days: int = 1, is_empty: bool = False
    ) -> str:
        """Append a batch with one artifact (or none); `is_empty`: no operator state is left after it."""
        builds = is_delta and "upsert" in self.chains
        data = None if state is None else b"%s-%d" % (state, self.epoch + 1)
        left = not is_empty and (builds or data is not None)
        return self.commit_states({"upsert": (builds, data)} if left else {}, days=days)

    def commit_states(
        self,
        states: Mapping[str, tuple[bool, bytes | None]],
        *,
        days: int = 1,
        carried: Mapping[str, tuple[StateArtifact, ...]] | None = None,
    ) -> str:
        """Append a batch; `states`: for each operator whether it is a delta, and the bytes of its one artifact.

        `carried`: what full states name again.
        """
        self.clock.sleep_ms(days * DAY_MS)
        self.epoch += 1
        description = BatchDescription(
            "s",
            self.epoch - 1,
            self.epoch,
            token=f"t{self.epoch}",
            checkpoint_id=self.client.ids.uuid7(),
            epoch=self.epoch,
            parent_id=self.parent,
            writer="w",
            operators=self.chains,
            sources={"files": SourceFrontier("files", {**NO_FILES, "files": self.epoch})},
        )
        attempt = self.client.ids.uuid7()
        manifest = self.client.staged_manifest(self.writer.stage(description, SCHEMA, attempt))
        staged, chains = {}, {}
        for name, (is_delta, data) in states.items():
            added: tuple[StateArtifact, ...] = (carried or {}).get(name, ())
            if data is not None:
                key = f"s/batches/{attempt}/{name}.bin"
                self.blob.set(key, data)
                added = (*added, StateArtifact(len(added), key, len(data), hashlib.sha256(data).hexdigest()))
            staged[name] = OperatorState(is_delta, added)
            chains[name] = (*self.chains[name], *added) if is_delta else added
        key = stage_manifest(self.blob, replace(manifest, operators=staged), attempt)
        result = self.writer.compare_and_append(self.client.staged_manifest(key), key)
        assert isinstance(result, Committed), result
        self.chains, self.parent = chains, description.checkpoint_id
        return description.checkpoint_id

    def publish(self, retention: RetentionConfig = KEEP_ALL) -> CheckpointReport:
        report = publish_and_retain(self.client, "s", retention)
        assert report is not None
        return report

    @property
    def checkpointer(self) -> Checkpointer:
        return Checkpointer(self.blob, "s")

    def operators(self, checkpoint_id: str) -> Mapping[str, tuple[StateArtifact, ...]]:
        """The chain of each operator as of a checkpoint."""
        return recover(self.client, self.client.state("s"), checkpoint_id).operators

    def stash(self, checkpoint_id: str) -> list[bytes]:
        """The state that a run would start from: the artifacts' bytes, oldest first."""
        return self.state_of("upsert", checkpoint_id)

    def state_of(self, operator: str, checkpoint_id: str) -> list[bytes]:
        """The bytes of one operator's chain as of a checkpoint, oldest first."""
        artifacts = self.operators(checkpoint_id).get(operator, ())
        return [data for data in (self.blob.get(artifact.key) for artifact in artifacts) if data is not None]
