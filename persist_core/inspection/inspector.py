"""`Inspector`: reads the facts of one location. For a process that looks often, it remembers what cannot change.

    list_keys -> head of each shard -> summary      remembered by the digest of the state
    commit -> manifest                              remembered by its digest
    conflict records                                remembered by key

Thread-safe if the location is: what is remembered is only ever replaced by an equal value.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from threading import Lock

from persist_core.checkpoint.checkpointer import Checkpointer
from persist_core.checkpoint.manifest import CheckpointManifest
from persist_core.contents.batch import BatchManifest, HollowBatch, SourceFrontier, last_time
from persist_core.contents.stats import BatchWarning
from persist_core.errors import CorruptArtifact, Corruption, PersistError, ShardNotFound, StorageError
from persist_core.handles.client import PersistClient
from persist_core.handles.load import load_head
from persist_core.handles.side_by_side import side_by_side
from persist_core.inspection import summaries
from persist_core.inspection.days import Loaded
from persist_core.inspection.facts import (
    BatchesPage,
    CheckpointFacts,
    CommitFacts,
    CommitsPage,
    ShardDescription,
    ShardSummary,
    StoragePage,
    StoredBytes,
)
from persist_core.inspection.holders import list_holders
from persist_core.keys import check_shard_name, owner_of
from persist_core.location.consensus import VersionedData
from persist_core.protocol.conflicts import ConflictRecord, list_conflicts
from persist_core.protocol.living import is_clipped
from persist_core.sealed import sealed_digest
from persist_core.shard.codec import read_version
from persist_core.shard.state import Commit, ShardState
from persist_core.sources.frozen import load_frozen
from persist_core.sources.registry import progress_of
from persist_core.sources.shards import FrozenShards, Refreshed
from persist_core.sources.source import ConsumedInput
from persist_core.time_text import DAY_MS

THREADS = 16  # stores are read side by side: the time is their latency
Check = Callable[[], None]  # whether a look goes on: it raises if not
MAX_COMMITS = 200  # of one page: each costs a manifest
DEFAULT_COMMITS = 100
MAX_BATCHES = 500
MAX_CONFLICTS = 1_000  # records of one shard that are read to count the recent ones
MAX_MANIFESTS = 4_096  # remembered
MAX_STATES = 8  # remembered whole: the shards that users look at; one of 10,000 batches takes 10 MB
MAX_OBJECTS = 50_000  # of one shard that are listed: 50 requests of S3
MAX_CHECKED, MAX_CHECKED_OF_ONE = 4, 256  # newest batches whose manifests are read: in a list, and of one shard
WEEK_MS = 7 * DAY_MS
_UNREADABLE = (Corruption, StorageError)  # among many shards, one that the reader may not read hides no other


class Inspector:
    def __init__(self, client: PersistClient, *, threads: int = THREADS) -> None:
        self.client = client
        self._threads = threads
        self._lock = Lock()
        self._summaries: dict[tuple[str, int], tuple[str, ShardSummary]] = {}
        self._states: OrderedDict[str, tuple[str, ShardState]] = OrderedDict()
        self._load = lru_cache(MAX_MANIFESTS)(lambda key, sha256: load_head(self.client.blob, key, sha256=sha256))
        self._conflicts: dict[str, ConflictRecord] = {}

    def state(self, shard: str) -> ShardState:
        """The newest state, decoded only if it has changed. Raises `ShardNotFound` and `Corruption`."""
        head = self._head(shard)
        digest = sealed_digest(head.data)
        known = self._states.get(shard)
        if known is None or known[0] != digest:
            known = digest, read_version(shard, head)
            with self._lock:
                self._states[shard] = known
                while len(self._states) > MAX_STATES:
                    self._states.popitem(last=False)
        return known[1]

    def summaries(self) -> list[ShardSummary]:
        """Every shard of the location, by name. A shard that can't be read is one with `error`."""
        return side_by_side(self.summary, self.client.shards(), threads=self._threads)

    def summary(self, shard: str) -> ShardSummary:
        """One shard. Raises `ShardNotFound`; damage, and what the store refuses, is in `error`."""
        try:
            known = self.contents(shard)
        except _UNREADABLE as error:
            return ShardSummary(shard, "other", attention=("unreadable",), error=_said(error))
        try:
            conflicts = self._recent_conflicts(shard)
        except _UNREADABLE as error:
            known, conflicts = replace(known, error=_said(error)), None
        return summaries.at_time(known, now_ms=self.client.clock.now_ms(), conflicts_7d=conflicts)

    def newest_commit(self, shard: str) -> tuple[ShardSummary, CommitFacts | None]:
        """One shard and its newest commit: `None` if no commit exists, or the state can't be read.

        Raises `ShardNotFound`; damage, and what the store refuses, is in `error`.
        """
        try:
            commit = self.state(shard).newest_commit
        except _UNREADABLE:
            commit = None  # the summary says why
        return self.summary(shard), self._commit_facts(commit) if commit else None

    def newest_commits(self, shards: Iterable[str]) -> list[tuple[ShardSummary, CommitFacts | None]]:
        """Like `newest_commit`, for several shards, in their order."""
        return side_by_side(self.newest_commit, shards, threads=self._threads)

    def description(self, shard: str) -> ShardDescription:
        """One shard, with its schema, progress, holders and lineage. Raises `ShardNotFound` and `Corruption`."""
        state = self.state(shard)
        definition: str | None = None
        error: str | None = None
        try:
            side_by_side(self._manifest, state.batches[-MAX_CHECKED_OF_ONE:], threads=self._threads)
            refreshed = Refreshed.of(state.sources)
            if refreshed is not None:
                definition = load_frozen(self.client.blob, refreshed.input_key, FrozenShards).definition
        except Corruption as damage:
            error = _said(damage)
        summary = self.summary(shard)
        error = summary.error or error
        words = dict.fromkeys([*(["damaged"] if error else []), *summary.attention])
        known = vars(list_holders(self.client, state)) | vars(summary) | {"error": error, "attention": tuple(words)}
        return ShardDescription(
            **known,
            schema=state.schema.to_json() if state.schema else None,
            sources=summaries.shown_progress(state.sources),
            definition=definition,
            warned=self.warnings(shard),
        )

    def warnings(self, shard: str) -> tuple[BatchWarning, ...]:
        """The warnings of the newest run; their samples are keys and values of rows."""
        return summaries.newest_of(self.state(shard), self._manifest).warnings or ()

    def commits(self, shard: str, *, before: int | None = None, limit: int = DEFAULT_COMMITS) -> CommitsPage:
        """The newest commits, or the newest before version `before` of the state; at most `MAX_COMMITS`."""
        return self._commits(self.state(shard), before, min(limit, MAX_COMMITS), lambda: None)[0]

    def _commits(
        self, state: ShardState, before: int | None, limit: int, check: Check
    ) -> tuple[CommitsPage, list[Commit]]:
        def facts_of(commit: Commit) -> CommitFacts:
            check()
            facts = self._commit_facts(commit, is_named=commit.seqno in named)
            return replace(facts, schema_changes=changed.get(commit.seqno, ()))

        shard, changed = state.shard, summaries.schema_changes(state.schemas)
        named = {commit.seqno for commit in state.commits}
        known = [commit for commit in state.commits if before is None or commit.seqno < before]
        while len(known) < limit:  # each turn finds at least one older commit, or ends
            older = self._version(shard, (known[0].seqno if known else before or 0) - 1)
            if older is None or not older.commits:
                break
            known = [*older.commits, *known]
            changed |= summaries.schema_changes(older.schemas)
        page = known[-limit:]
        oldest = self._version(shard, page[0].seqno - 1) if page and len(known) <= limit else None
        has_older = len(known) > limit or (oldest is not None and bool(oldest.commits))
        is_newest = bool(page) and page[-1] is state.newest_commit
        made = state if is_newest or not page else self._version(shard, page[-1].seqno)
        facts = side_by_side(facts_of, page, threads=self._threads)
        if made is not None and not is_clipped(self.client, made):
            facts = summaries.with_contents(facts, [self._readable(commit) for commit in page], made)
        return CommitsPage(shard, tuple(facts), page[0].seqno if has_older else None), page

    def loads(self, state: ShardState, *, check: Check = lambda: None) -> list[Loaded]:
        """The newest `MAX_COMMITS` commits, each with the inputs that it has consumed, oldest first.

        The oldest of them is left out if what had been consumed before it is not known. `check` is called before each
        commit is read, and may raise.
        """
        page, made = self._commits(state, None, MAX_COMMITS, check)
        is_whole = bool(made) and made[0].epoch == 1
        before: Mapping[str, SourceFrontier] | None = {} if is_whole else None
        found = []
        for facts, commit in zip(page.commits, made, strict=True):
            check()
            manifest = self._readable(commit)
            now = manifest.sources if manifest is not None else None
            inputs = () if facts.restored_from is not None else self._consumed(state.shard, before, now)
            before = now
            found.append(Loaded(facts, inputs))
        return found if is_whole else found[1:]

    def _consumed(
        self, shard: str, before: Mapping[str, SourceFrontier] | None, now: Mapping[str, SourceFrontier] | None
    ) -> tuple[ConsumedInput, ...] | None:
        """The inputs that the progress `now` has and `before` has not; `None` if one of them can't be read."""
        if before is None or now is None:
            return None
        try:
            progress = progress_of(self.client.blob, shard, now)
            return tuple(each for name in progress for each in progress[name].consumed_since(before.get(name)))
        except Corruption:  # GC deletes what only commits need that the state no longer has
            return None

    def storage(self, shard: str, *, check: Check = lambda: None) -> StoragePage:
        """Bytes and objects of the shard in blob storage, by folder; at most `MAX_OBJECTS` are listed.

        `check` is called before each is listed, and may raise.
        """
        state = self.state(shard)
        found: dict[str, list[int]] = {}
        objects = []
        for each in islice(self.client.blob.list_keys_and_metadata(f"{shard}/"), MAX_OBJECTS + 1):
            check()
            objects.append(each)
        for each in objects[:MAX_OBJECTS]:
            found.setdefault(each.key.split("/")[1], []).append(each.size_bytes)
        needed = {"batches": sum(b.size_bytes for b in state.batches if owner_of(b.manifest_key) == shard)}
        folders = [StoredBytes(name, len(sizes), sum(sizes), needed.get(name)) for name, sizes in sorted(found.items())]
        total = sum(folder.size_bytes for folder in folders)
        return StoragePage(shard, tuple(folders), min(len(objects), MAX_OBJECTS), total, len(objects) > MAX_OBJECTS)

    def batches(self, shard: str) -> BatchesPage:
        return summaries.batches_page(self.state(shard), MAX_BATCHES)

    def checkpoints(self, shard: str) -> list[CheckpointFacts]:
        """Every checkpoint, oldest first; unreadable ones come last. Raises `ShardNotFound`."""
        state = self.state(shard)
        checkpointer = Checkpointer(self.client.blob, shard, state.origin.life)
        listing = checkpointer.listing(threads=self.client.fetch_threads)
        try:
            latest = checkpointer.read_latest()
        except CorruptArtifact:
            latest = None  # `latest_problem` says why
        pinned, history_ms = listing.pinned, state.history_ms
        readable = [_checkpoint(m, latest, m.checkpoint_id in pinned, history_ms) for m in listing.manifests]
        damaged = [CheckpointFacts(name, error=_said(problem)) for name, problem in listing.unreadable.items()]
        return [*readable, *damaged]

    def latest_problem(self, shard: str) -> str | None:
        """The reason why `_latest` can't be read, if it can't."""
        try:
            Checkpointer(self.client.blob, shard).read_latest()
        except CorruptArtifact as error:
            return str(error)
        return None

    def conflicts(self, shard: str) -> list[ConflictRecord]:
        """Every recorded conflict, oldest first. Raises `ShardNotFound` and `CorruptArtifact`."""
        self.state(shard)
        return list_conflicts(self.client.blob, shard, known=self._conflicts, threads=self.client.fetch_threads)

    def _recent_conflicts(self, shard: str) -> int | None:
        oldest = self.client.clock.now_ms() - WEEK_MS
        found = list_conflicts(
            self.client.blob,
            shard,
            since_ms=oldest,
            known=self._conflicts,
            limit=MAX_CONFLICTS + 1,
            threads=self.client.fetch_threads,
        )
        return sum(each.detected_ms >= oldest for each in found) if len(found) <= MAX_CONFLICTS else None

    def contents(self, shard: str, *, checked: int = MAX_CHECKED) -> ShardSummary:
        """The summary without what depends on the time of looking. Raises `ShardNotFound` and `Corruption`.

        `checked`: so many newest batches are looked at for damage, beside the newest run.
        """
        head = self._head(shard)
        digest = sealed_digest(head.data)
        known = self._summaries.get((shard, checked))
        if known is not None and known[0] == digest:
            return known[1]
        remembered = self._states.get(shard)
        state = remembered[1] if remembered and remembered[0] == digest else read_version(shard, head)
        found = summaries.newest_of(state, self._manifest)
        try:
            for batch in islice(reversed(state.batches), checked):
                self._manifest(batch)
            made = summaries.summary_of(state, found, is_clipped=is_clipped(self.client, state))
        except Corruption as error:
            made = summaries.summary_of(state, replace(found, damage=_said(error)))
        if made.error is None:  # else it may be repaired
            self._summaries[shard, checked] = digest, made
        return made

    def _head(self, shard: str) -> VersionedData:
        head = self.client.location.consensus.head(check_shard_name(shard))
        if head is None:
            raise ShardNotFound(
                f"no shard {shard!r} in {self.client.location.consensus.uri}; `persist shards` lists the existing ones"
            )
        return head

    def _version(self, shard: str, seqno: int) -> ShardState | None:
        found = self.client.location.consensus.scan(shard, seqno, 1) if seqno >= 0 else []
        return read_version(shard, found[0]) if found and found[0].seqno == seqno else None

    def _readable(self, commit: Commit) -> BatchManifest | None:
        try:
            return self._manifest(commit)
        except Corruption:
            return None

    def _commit_facts(self, commit: Commit, *, is_named: bool = True) -> CommitFacts:
        """`is_named`: by the newest state. GC deletes the manifests of others, such as an earlier generation has."""
        try:
            return summaries.commit_facts(commit, self._manifest(commit))
        except _UNREADABLE as error:
            is_damage = is_named or not isinstance(error, CorruptArtifact)
            return summaries.commit_facts(commit, None, _said(error) if is_damage else None)

    def _manifest(self, of: HollowBatch | Commit) -> BatchManifest:
        return self._load(of.manifest_key, of.manifest_sha256)


def _said(error: PersistError) -> str:
    return f"{error.kind}: {error}"


def _checkpoint(
    manifest: CheckpointManifest, latest: str | None, is_pinned: bool, history_ms: int | None
) -> CheckpointFacts:
    is_latest, upper = manifest.checkpoint_id == latest, manifest.upper
    return CheckpointFacts(
        checkpoint_id=manifest.checkpoint_id,
        epoch=manifest.epoch,
        timestamp_ms=manifest.timestamp_ms,
        parent_id=manifest.parent_id,
        is_delta=manifest.is_delta,
        is_latest=is_latest,
        is_pinned=is_pinned,
        kept_until=None if history_ms is None or upper is None else last_time(upper) + max(1, history_ms),
        kept_by=(*(["latest"] if is_latest else []), *(["pinned"] if is_pinned else [])),
        restored_from=manifest.restored_from,
        since=manifest.shard.since if manifest.shard else None,
        upper=upper,
        operators={name: operator.total_bytes for name, operator in manifest.operators.items()},
        total_size_bytes=manifest.total_size_bytes,
    )
