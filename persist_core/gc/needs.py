"""The needs of a shard: each source of needs is one function that returns blob keys.

Needs are keys, not attempts: a run carries files of older attempts. A damaged object whose contents decide what is
needed is an error, so that GC stops before it deletes what that object may have named.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from persist_core.checkpoint.checkpointer import Checkpointer, Listing
from persist_core.checkpoint.publish import manifest_of
from persist_core.checkpoint.quarantine import Quarantine
from persist_core.contents.batch import BatchManifest, SourceFrontier
from persist_core.errors import CorruptArtifact, Corruption, UnknownVersion
from persist_core.handles.client import PersistClient
from persist_core.handles.load import load_head, load_lists, load_manifest
from persist_core.handles.side_by_side import side_by_side
from persist_core.keys import (
    CheckpointLayout,
    attempt_of,
    conflict_alert_key,
    conflict_key,
    conflicts_prefix,
    is_input_copy,
    jobs_prefix,
    list_key,
    owner_of,
)
from persist_core.protocol.fork_records import ForkRecord, list_forks
from persist_core.shard.eras import readers_before, refuse_earlier
from persist_core.shard.state import ShardState
from persist_core.sources.registry import progress_of

MAX_CONFLICTS = 1_000  # records that are kept, the newest; they are for people and alerts


def named_in(key: str, manifest: BatchManifest) -> set[str]:
    """The keys of a manifest, of its lists and of its parts."""
    lists = (list_key(key, number) for number in range(len(manifest.lists)))
    return {key, *lists, *(part.key for part in manifest.parts)}


class Needs:
    """The needs of one shard. Remembers the manifests that it has read: their bytes never change.

    `is_immediate`: what is not needed is deleted without a grace.
    """

    def __init__(self, client: PersistClient, shard: str, *, is_immediate: bool = False) -> None:
        self._client = client
        self._shard = shard
        self._is_immediate = is_immediate
        self._manifests: dict[str, BatchManifest] = {}  # of commits: their lists of parts may be gone
        self._whole: dict[str, BatchManifest] = {}
        self._left: dict[str, BatchManifest] = {}  # of forks: with the lists that are still there

    def of(self, state: ShardState, *, candidates: Collection[str] | None = None) -> set[str]:
        """All needed keys below the shard, given its newest state.

        `candidates`: keys that are about to be deleted; a fork that GC gives up because nothing of it needs them can
        then no longer be made. Raises `Corruption` naming an object that cannot be read.
        """
        needed = self.of_itself(state)
        needed |= self.of_forks(state, candidates)  # read after the state: `protocol.fork_records`
        return {key for key in needed if owner_of(key) == self._shard}

    def of_itself(self, state: ShardState) -> set[str]:
        """Like `of`, without what only forks need."""
        if state.is_dropped:
            return set()
        checkpointer = Checkpointer(self._client.blob, state.shard, state.origin.life)
        listing = checkpointer.listing(threads=self._client.fetch_threads)
        return {
            *self.of_batches(state),
            *self.of_commits(state),
            *self.of_progress(state.shard, state.sources),
            *self.of_checkpoints(state.shard, listing),
            *self.of_folders(state, listing),
            *self.of_conflicts(),
            *self.of_jobs(state),
        }

    def of_batches(self, state: ShardState) -> set[str]:
        missing = {each.manifest_key: each for each in state.batches if each.manifest_key not in self._whole}
        self._whole.update(zip(missing, self._client.manifests(missing.values()), strict=True))
        named = (each.manifest_key for each in state.batches)
        return {key for each in named for key in named_in(each, self._whole[each])}

    def of_commits(self, state: ShardState) -> set[str]:
        """The keys that each commit in the state has named: a checkpoint can be derived from it again."""
        missing = [each for each in state.commits if each.manifest_key not in self._manifests]
        read = side_by_side(self._client.manifest, missing, threads=self._client.fetch_threads)
        self._manifests.update(zip((each.manifest_key for each in missing), read, strict=True))
        needed = set()
        for commit in state.commits:
            manifest = self._manifests[commit.manifest_key]
            needed.add(commit.manifest_key)
            needed |= {each.key for operator in manifest.operators.values() for each in operator.artifacts}
            needed |= self.of_progress(state.shard, manifest.sources)
        return needed

    def of_progress(self, shard: str, sources: Mapping[str, SourceFrontier]) -> set[str]:
        """The keys that the progress of a shard's sources names: segments of the ledger, a view's frozen input."""
        progress = progress_of(self._client.blob, shard, sources).values()
        return {key for each in progress for key in each.needed_keys()}

    def of_checkpoints(self, shard: str, listing: Listing) -> set[str]:
        """The progress that checkpoints name, for restores and forks, and the operator state that they have no copy of.

        Raises `UnknownVersion` for one of a newer release; a damaged one cannot be restored.
        """
        for error in listing.unreadable.values():
            if isinstance(error, UnknownVersion):
                raise error
        needed = set()
        for manifest in listing.manifests:
            needed |= self.of_progress(shard, manifest.sources)
            carried = [artifact.path for artifact in manifest.artifacts if artifact.is_carried]
            needed |= {CheckpointLayout(shard).artifact(manifest.checkpoint_id, path) for path in carried}
        return needed

    def of_folders(self, state: ShardState, listing: Listing) -> set[str]:
        """The objects of checkpoints that exist or may be published, as their commit or else their manifest names
        them; and all objects of one that is known only by a manifest that is unreadable or in the quarantine.

        Retention deletes whole checkpoints; this leaves the remains of folders that nothing else will complete, and
        what a publisher has written that was slower than an erasure.
        """
        layout, life = CheckpointLayout(state.shard), state.origin.life
        known = {manifest.checkpoint_id: manifest for manifest in listing.manifests}
        known |= {
            each.checkpoint_id: manifest_of(self._manifests[each.manifest_key], each, life) for each in state.commits
        }
        needed = {key(each) for each in known for key in (layout.manifest, layout.pin)}
        needed |= {layout.artifact(each, path) for each, manifest in known.items() for path in manifest.paths}
        whole = {*listing.unreadable, *Quarantine(self._client.blob, layout).ids()} - known.keys()
        kept = (layout.latest, layout.quarantine, *(layout.folder(checkpoint_id) for checkpoint_id in whole))
        return {key for key in listing.sizes if key.startswith(kept) or key in needed}

    def of_conflicts(self, limit: int = MAX_CONFLICTS) -> set[str]:
        """The newest records of conflicts, and the marks of called callbacks."""
        entries = self._client.blob.list_keys_and_metadata(conflicts_prefix(self._shard))
        newest = sorted(entries, key=lambda entry: (entry.modified_ms, entry.key))[-limit:]
        ids = [entry.key.rpartition("/")[2].removesuffix(".json") for entry in newest]
        return {key(self._shard, each) for each in ids for key in (conflict_key, conflict_alert_key)}

    def of_jobs(self, state: ShardState) -> set[str]:
        """The keys that jobs for the next batch have left: who writes it may need to know that they died.

        Copies of input are not among them: only their own job needs them.
        """
        if state.upper.time is None:
            return set()
        left = self._client.blob.list_keys_and_metadata(jobs_prefix(state.shard, state.upper.time))
        return {entry.key for entry in left if not is_input_copy(entry.key)}

    def of_forks(self, state: ShardState, candidates: Collection[str] | None) -> set[str]:
        """The keys that forks share with the shard, and their records, listed until none is new: `fork_records`."""
        needed: set[str] = set()
        looked_at: set[str] = set()
        while new := [each for each in list_forks(self._client.blob, state.shard) if each.key not in looked_at]:
            looked_at |= {record.key for record in new}
            for fork in sorted({record.fork for record in new}):
                shared = {record: {record.key, *self._shared(record)} for record in new if record.fork == fork}
                asked = [each for each in shared if candidates is None or not shared[each].isdisjoint(candidates)]
                for record in self._in_use(fork, asked, state, is_last_look=candidates is not None):
                    needed |= shared[record]
        return needed

    def _shared(self, record: ForkRecord) -> set[str]:
        """The keys in the record, with the parts of manifests. What is missing was gone before the fork was made, or is
        going because nothing needs it: a commit may keep a manifest whose lists are gone."""
        shared, blob, threads = set(record.keys), self._client.blob, self._client.fetch_threads
        for key in record.keys:
            manifest = self._whole.get(key) or self._left.get(key)
            if manifest is None and attempt_of(key) is not None:
                try:
                    head = load_head(blob, key)
                except CorruptArtifact:
                    if blob.get(key) is not None:
                        raise
                    continue
                manifest = self._left[key] = load_lists(blob, key, head, threads=threads, skips_missing=True)
            shared |= set() if manifest is None else named_in(key, manifest)
        return shared

    def _in_use(
        self, name: str, records: Collection[ForkRecord], state: ShardState, *, is_last_look: bool
    ) -> list[ForkRecord]:
        young = [record for record in records if record.era >= state.oldest_era]
        fork = self._client.machine.fetch(name) if len(young) < len(records) else None
        if fork is None or fork.is_dropped:
            return young
        if fork.commits and self._may_be_read(fork):
            return list(records)
        for batch in fork.batches:
            left = self._left.get(batch.manifest_key)
            if left is not None and len(left.parts) < sum(each.files for each in left.lists):
                load_manifest(self._client.blob, batch.manifest_key)  # it reads this one: that a list is lost is damage
        used = [record for record in records if record in young or self._names_any_of(fork, record.keys)]
        if len(used) == len(records) or not is_last_look:
            return used
        # What is being appended to the fork, or made of it, could still name these keys. It is refused from now on.
        fork, _ = self._client.machine.apply(name, refuse_earlier)
        return [record for record in records if record in used or self._names_any_of(fork, record.keys)]

    def _may_be_read(self, fork: ShardState) -> bool:
        """True if a reader with a lease may still read what the fork has merged since: it began its read eras ago."""
        before = fork.era + 1 if self._is_immediate else fork.era - 1
        return bool(readers_before(fork, before, self._client.clock.now_ms()))

    def _names_any_of(self, fork: ShardState, keys: Iterable[str]) -> bool:
        others = Needs(self._client, fork.shard)
        try:
            checkpointer = Checkpointer(self._client.blob, fork.shard, fork.origin.life)
            listing = checkpointer.listing(threads=self._client.fetch_threads)
            named = {
                *fork.manifest_keys,
                *others.of_commits(fork),
                *others.of_progress(fork.shard, fork.sources),
                *others.of_checkpoints(fork.shard, listing),
            }
        except Corruption:  # of the fork: it may name any of them
            return True
        return not named.isdisjoint(keys)
