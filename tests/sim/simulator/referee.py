"""What must hold after every step, whoever took it: the invariants of the stores, checked from outside.

1. Every version of the shard's state keeps `persist_core.shard.invariants`, and follows the one before it.
2. A commit's manifest and parts are all there, and nothing deletes them afterwards.
3. Every input file is consumed by exactly one commit, and stays consumed.
4. At every time that a commit makes final, the contents are those that `Expected` works out from the input.
5. Bytes under a key are never replaced by others, `_latest` and the records of conflicts aside.
6. `_latest` never names a checkpoint that is not whole, and goes back only where two publishers raced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from persist_core.checkpoint.checkpointer import BlobCheckpointer, load_verified, manifest_chain
from persist_core.errors import PersistError
from persist_core.handles.read import load_manifest
from persist_core.location.blob import Blob
from persist_core.location.consensus import VersionedData
from persist_core.oracle.consolidate import Slot, UpsertDiff, Value
from persist_core.shard.batch import BatchManifest
from persist_core.shard.codec import decode_state
from persist_core.shard.invariants import check_step
from persist_core.shard.state import Commit, ShardState
from persist_core.sources.ledger import Ledger
from tests.sim.simulator.workload import SHARD, Expected, Feed
from tests.sim.simulator.write_stage import read_updates

Fail = Callable[[str, str], NoReturn]


class Referee:
    """The witness of one simulation. `blob` is the real store, below all faults."""

    def __init__(self, blob: Blob, feed: Feed, fail: Fail, who: Callable[[], str]) -> None:
        self._blob = blob
        self._feed = feed
        self._fail = fail
        self._who = who
        self._checkpointer = BlobCheckpointer(blob, SHARD)
        self._needed: set[str] = set()
        self._moment = 0
        self._latest_read: dict[str, int] = {}  # by whom, when
        self._furthest = (0, (0, ""))  # when `_latest` was moved furthest, and to which epoch and id
        self._epochs: dict[str, int] = {}  # of checkpoints, by id
        self.expected = Expected()
        self.contents: dict[Slot, Value] = {}
        self.consumed: set[str] = set()
        self.state: ShardState | None = None

    def read(self, key: str) -> None:
        self._moment += 1
        if key == self._checkpointer.layout.latest:
            self._latest_read[self._who()] = self._moment

    def wrote(self, key: str, before: bytes | None, data: bytes) -> None:
        self._moment += 1
        if key == self._checkpointer.layout.latest:
            self._check_latest(moved_to=data.decode())
        elif before is not None and before != data and "/conflicts/" not in key:
            self._fail("replaced", f"{key} held {before[:80]!r}; {self._who()} wrote {data[:80]!r}")

    def deleted(self, key: str) -> None:
        self._moment += 1
        if key in self._needed:
            self._fail("deleted", f"{self._who()} deleted {key}, which a commit needs")
        if key.startswith(self._checkpointer.layout.root):
            self._check_latest(moved_to=None)

    def committed(self, key: str, version: VersionedData) -> None:
        self._moment += 1
        try:
            after = decode_state(version.data).state
            check_step(self.state, after)
            if after.newest_commit is not None and (self.state is None or after.upper != self.state.upper):
                self._check_append(after, after.newest_commit)
        except PersistError as error:
            self._fail(type(error).__name__, f"{self._who()} committed version {version.seqno} of {key}: {error}")
        self.state = after

    def _check_append(self, after: ShardState, commit: Commit) -> None:
        manifest = load_manifest(self._blob, commit.manifest_key)
        if manifest.hollow(commit.manifest_key) != after.batches[-1]:
            self._fail("manifest", f"{commit.manifest_key} says {manifest}; the state says {after.batches[-1]}")
        self._epochs[commit.checkpoint_id] = commit.epoch
        times = self._check_consumed(after, manifest)
        updates = read_updates(self._blob, manifest)
        self._needed |= {commit.manifest_key, *(part.key for part in manifest.parts)}
        artifacts = [artifact for state in manifest.operators.values() for artifact in state.artifacts]
        self._needed |= {artifact.key for artifact in artifacts}
        for artifact in artifacts:
            load_verified(self._blob, artifact.key, artifact.sha256)
        upper = after.upper.time
        for update in updates:
            if update.time < commit.lower or (upper is not None and update.time >= upper):
                self._fail("bounds", f"{update} lies outside of [{commit.lower}, {upper})")
        times |= {update.time for update in updates} | {commit.lower}
        for time in sorted(time for time in times if upper is None or time < upper):
            self._apply([update for update in updates if update.time == time])
            wanted = self.expected.as_of(time)
            if self.contents != wanted:
                self._fail(
                    "contents",
                    f"{commit.writer} committed [{commit.lower}, {upper}): as of {time} the shard holds"
                    f" {self.contents}; the input says {wanted}",
                )

    def _check_consumed(self, after: ShardState, manifest: BatchManifest) -> set[int]:
        """The times in this batch at which the contents may change."""
        consumed = {name for source in after.sources.values() for name in Ledger(self._blob, SHARD).consumed(source)}
        lost, taken = self.consumed - consumed, consumed - self.consumed
        if lost:
            self._fail("progress", f"{manifest.writer} forgot that {sorted(lost)} were consumed")
        self.consumed = consumed
        for name in sorted(taken):
            self.expected.consume(self._feed.known[name].records, manifest.lower)
        return {time for time in self.expected.times() if time >= manifest.lower}

    def _apply(self, updates: list[UpsertDiff]) -> None:
        """Retractions first, each of what is there; then insertions, each where nothing is."""
        for update in sorted(updates, key=lambda update: update.diff):
            there = self.contents.get(update.slot)
            if update.diff == -1 and there == update.value:
                del self.contents[update.slot]
            elif update.diff == 1 and there is None:
                self.contents[update.slot] = update.value
            else:
                self._fail("keyed", f"{update} does not apply: the slot holds {there}")

    def _check_latest(self, *, moved_to: str | None) -> None:
        """`_latest` was moved, or a key below the checkpoints was deleted."""
        latest = moved_to or self._checkpointer.read_latest()
        if latest is None:
            return
        moment, furthest = self._furthest
        position = (self._epochs.get(latest, 0), latest)
        if moved_to is not None and position >= furthest:
            self._furthest = self._moment, position
        elif moved_to is not None and self._latest_read.get(self._who(), 0) > moment:
            self._fail("latest", f"{self._who()} moved _latest back from {furthest} to {position}, and knew it")
        if position < furthest:
            return  # put back by a publisher that was overtaken: it may name what retention has taken since
        try:
            for manifest in manifest_chain(self._checkpointer, latest):
                for artifact in manifest.artifacts:
                    self._checkpointer.load_artifact(manifest.checkpoint_id, artifact)
        except PersistError as error:
            self._fail("latest", f"{self._who()} left _latest at {latest}, which is not whole: {error}")
