"""The invariants of the stores, checked from outside after every step of any actor.

1. Every version of the shard's state keeps `persist_core.shard.invariants`, and follows the one before it.
2. A commit's manifest and parts are all there, and nothing deletes them afterwards.
3. Every input file is consumed by exactly one commit, and stays consumed; a restore sets progress back to what its
   checkpoint's commit had consumed, and does nothing else to it.
4. At every time that a commit makes final, the contents equal what `Expected` works out from the input.
5. Bytes under a key are never replaced by others, `_latest` and the records of conflicts aside.
6. `_latest` never names a checkpoint that is not whole, and never goes back permanently: a publisher that was overtaken
   and so moved it back has corrected that by the time its stage ends.
7. In `sequence` order the orders of rows and order index, and the late records, come from the input that
   counts; the same in the state of a fork.
8. A publisher that writes the manifest of a checkpoint that was deleted before lists its folder in the next call.
   Others may see the incomplete checkpoint until the publisher has deleted it, or if it dies before that; the end of
   the run does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from persist_core.checkpoint.checkpointer import Checkpointer, load_verified, manifest_chain
from persist_core.contents.batch import BatchManifest
from persist_core.contents.operator_state import StateArtifact
from persist_core.errors import PersistError
from persist_core.handles.load import load_head, load_lists, load_manifest
from persist_core.location.blob import Blob
from persist_core.location.consensus import VersionedData
from persist_core.shard.codec import decode_state
from persist_core.shard.invariants import check_step
from persist_core.shard.state import Commit, ShardState
from persist_core.sources.ledger import Ledger
from tests.oracle.consolidate import Slot, UpsertDiff, Value
from tests.sim.simulator import orders
from tests.sim.simulator.workload import SHARD, Arrival, Expected, Feed, Remembered, is_plain, remembered
from tests.sim.simulator.write_stage import read_updates

Fail = Callable[[str, str], NoReturn]


@dataclass(frozen=True)
class _Point:
    """The facts right after a commit."""

    upper: int | None
    arrivals: tuple[Arrival, ...]
    consumed: frozenset[str]


class Referee:
    """The witness of one simulation. `blob` is the real store, below all faults."""

    def __init__(self, blob: Blob, feed: Feed, fail: Fail, who: Callable[[], str]) -> None:
        self._blob = blob
        self._feed = feed
        self._fail = fail
        self._who = who
        self._checkpointer = Checkpointer(blob, SHARD)
        self._furthest = (0, "")  # the epoch and id to which `_latest` was moved furthest
        self._moved_back: tuple[str, tuple[int, str]] | None = None  # who has moved it back, and to what
        self._epochs: dict[str, int] = {}  # of checkpoints, by id
        self._points: dict[str, _Point] = {}  # to which a restore may go back, by checkpoint id
        self.deleted_checkpoints: set[str] = set()  # by id: checkpoints that something was ever deleted of
        self._put_back: dict[str, str] = {}  # by actor: the deleted checkpoint whose manifest it has just written
        self.expected = Expected(in_sequence=feed.in_sequence)
        self._chains: dict[str, tuple[StateArtifact, ...]] = {}  # of operator state, as of the newest commit
        self.contents: dict[Slot, Value] = {}
        self.consumed: set[str] = set()
        self.state: ShardState | None = None

    def wrote(self, key: str, before: bytes | None, data: bytes) -> None:
        self._check_looks_again(key)
        checkpoint_id = self._checkpoint_of(key)
        if checkpoint_id in self.deleted_checkpoints and key == self._checkpointer.layout.manifest(checkpoint_id):
            self._put_back[self._who()] = checkpoint_id
        if key == self._checkpointer.layout.latest:
            self._check_latest(moved_to=data.decode())
        elif before is not None and before != data and "/conflicts/" not in key:
            self._fail("replaced", f"{key} held {before[:80]!r}; {self._who()} wrote {data[:80]!r}")

    def deleted(self, key: str) -> None:
        self._check_looks_again(key)
        if key.startswith(f"{SHARD}/batches/") and key in self._named():
            self._fail("deleted", f"{self._who()} deleted {key}, which the shard needs")
        if key.startswith(self._checkpointer.layout.root):
            self.deleted_checkpoints.add(self._checkpoint_of(key))
            self._check_latest(moved_to=None)

    def listed(self, prefix: str) -> None:
        self._check_looks_again(prefix)

    def committed(self, key: str, version: VersionedData) -> None:
        if key != SHARD:
            return  # a fork: it is read in the end
        try:
            after = decode_state(version.data).state
            check_step(self.state, after)
            if after.newest_commit is not None and (self.state is None or after.upper != self.state.upper):
                self._check_append(after, after.newest_commit)
            elif self.state is not None and after.batches != self.state.batches:
                for batch in set(after.batches) - set(self.state.batches):
                    read_updates(self._blob, load_manifest(self._blob, batch.manifest_key))
        except PersistError as error:
            self._fail(type(error).__name__, f"{self._who()} committed version {version.seqno} of {key}: {error}")
        self.state = after

    def _named(self) -> set[str]:
        """The objects below the folder of batches that the newest state names."""
        state = self.state
        if state is None:
            return set()
        manifests = {key: load_head(self._blob, key) for key in state.manifest_keys}  # a commit's lists may be gone
        keys = {batch.manifest_key for batch in state.batches}
        parts = {part.key for key in keys for part in load_lists(self._blob, key, manifests[key]).parts}
        states = [each for manifest in manifests.values() for each in manifest.operators.values()]
        return {*manifests, *parts, *(artifact.key for each in states for artifact in each.artifacts)}

    def stage_ended(self) -> None:
        """The current actor has completed a stage without an error."""
        if self._moved_back is not None and self._moved_back[0] == self._who():
            self._fail("latest", f"{self._who()} left _latest at {self._moved_back[1]}; it was at {self._furthest}")

    def _checkpoint_of(self, key: str) -> str:
        return key.removeprefix(self._checkpointer.layout.root).split("/")[0]

    def _check_looks_again(self, key: str) -> None:
        """The task that is at work has written, deleted or listed this."""
        checkpoint_id = self._put_back.pop(self._who(), None)
        if checkpoint_id is not None and key != self._checkpointer.layout.folder(checkpoint_id):
            manifest = self._checkpointer.find_readable(checkpoint_id)
            if manifest is not None and not self._checkpointer.is_complete(manifest):
                self._fail("put back", f"{self._who()} wrote the manifest of {checkpoint_id}, which is not complete")

    def _check_append(self, after: ShardState, commit: Commit) -> None:
        manifest = load_manifest(self._blob, commit.manifest_key)
        if not after.batches[-1].is_of(manifest):
            self._fail("manifest", f"{commit.manifest_key} says {manifest}; the state says {after.batches[-1]}")
        self._epochs[commit.checkpoint_id] = commit.epoch
        self._chains = {
            name: (*(self._chains.get(name, ()) if state.is_delta else ()), *state.artifacts)
            for name, state in manifest.operators.items()
        }
        updates = read_updates(self._blob, manifest)
        self._check_operators(manifest, updates)
        times = self._check_consumed(after, manifest)
        artifacts = [artifact for state in manifest.operators.values() for artifact in state.artifacts]
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

        if self._feed.in_sequence:
            known = remembered(self.expected.so_far(), upper or 0)
            self.check_remembered(commit.writer, after, self._chains, known)

    def check_fork(self, name: str, state: ShardState, checkpoint_id: str) -> None:
        """A fork at this checkpoint remembers what the checkpoint did, whatever was merged in it."""
        if self._feed.in_sequence:
            point = self._points[checkpoint_id]
            operators = load_manifest(self._blob, state.commits[-1].manifest_key).operators
            chains = {operator: each.artifacts for operator, each in operators.items()}
            self.check_remembered(name, state, chains, remembered(point.arrivals, point.upper or 0))

    def check_remembered(
        self, who: str, state: ShardState, chains: Mapping[str, Sequence[StateArtifact]], wanted: Remembered
    ) -> None:
        """The rows of `state` and these chains of operator state say what is expected."""
        batches = [(batch, load_manifest(self._blob, batch.manifest_key)) for batch in state.batches]
        found, late = orders.stored(self._blob, batches, chains)
        if found != wanted or late != len(found.late):
            self._fail("orders", f"{who}: the shard remembers {found}, {late} late records; the input says {wanted}")

    def _check_operators(self, manifest: BatchManifest, updates: list[UpsertDiff]) -> None:
        """Operator state continues from the state before, except at a restore; a plain writer has never read any."""
        there = dict(self.state.operators) if self.state else {}
        if not manifest.restored and manifest.read_operators != there:
            self._fail("operators", f"{manifest.writer} read {manifest.read_operators}; the shard had {there}")
        if not manifest.restored:
            for update in updates:
                if is_plain(update.slot):
                    self.expected.arrive(update.slot, update.value, update.time, update.time, ())

    def _check_consumed(self, after: ShardState, manifest: BatchManifest) -> set[int]:
        """The times in this batch at which the contents may change."""
        consumed = {name for source in after.sources.values() for name in Ledger(self._blob, SHARD).consumed(source)}
        if manifest.restored is not None:
            self._go_back(self._points[manifest.restored.checkpoint_id], manifest, consumed)
        elif lost := self.consumed - consumed:
            self._fail("progress", f"{manifest.writer} forgot that {sorted(lost)} were consumed")
        for name in sorted(consumed - self.consumed):
            self.expected.consume(self._feed.known[name].records, manifest.lower)
        self.consumed = consumed
        point = _Point(manifest.upper, self.expected.so_far(), frozenset(consumed))
        self._points[manifest.checkpoint_id] = point
        return {time for time in self.expected.times() if time >= manifest.lower}

    def _go_back(self, point: _Point, manifest: BatchManifest, consumed: set[str]) -> None:
        if consumed != point.consumed:
            self._fail(
                "progress",
                f"{manifest.writer} restored {manifest.restored}, which had consumed {sorted(point.consumed)}; now"
                f" {sorted(consumed)} are",
            )
        assert point.upper is not None  # no simulation closes its shard
        self.expected.restore(point.arrivals, upper=point.upper, at=manifest.lower)
        self.consumed = consumed

    def _apply(self, updates: list[UpsertDiff]) -> None:
        """Retractions first, each of what is there; then insertions, each into an empty slot."""
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
        position = (self._epochs.get(latest, 0), latest)
        if position >= self._furthest:
            self._furthest, self._moved_back = position, None
        elif moved_to is not None:
            self._moved_back = self._who(), position
        if position < self._furthest:
            return  # put back by a publisher that was overtaken: it may name what retention has taken since
        try:
            for manifest in manifest_chain(self._checkpointer, latest):
                for artifact in manifest.artifacts:
                    self._checkpointer.load_artifact(manifest.checkpoint_id, artifact)
        except PersistError as error:
            self._fail("latest", f"{self._who()} left _latest at {latest}, which is not whole: {error}")
