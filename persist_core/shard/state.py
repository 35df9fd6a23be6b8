"""The state of a shard and its pure transitions (docs/semantics.md, section 3).

    (state, command) -> (state', result)   or a refusal: a value (UpperMismatch, HoldMismatch) or an error

Nothing here reads a clock, draws an id or touches a store: `shard.machine` runs these transitions in its one
loop and commits the result by compare-and-set. If a transition returns the very same state object, nothing is written.
What holds in every version is in `persist_core.shard.invariants`, checked at each compare-and-set and each decode.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from persist_core.contents.batch import BatchDescription, BatchManifest, HollowBatch, SourceFrontier, check_bounds
from persist_core.contents.schema_versions import SchemaVersions
from persist_core.errors import InvalidInput, LeaseExpired, RunFailed, StateNotRead, TokenReuse
from persist_core.frontier import ZERO, Frontier
from persist_core.row_text import show_row
from persist_core.schema import CollectionSchema
from persist_core.shard.origin import Origin
from persist_core.shard.past import Past
from persist_core.time_text import format_time, show_interval, show_time

MIN_COMMITS_KEPT = 128  # tokens that stay idempotent; docs/semantics.md, section 3
MAX_COMMITS_KEPT = 192  # trimmed down to the minimum when this is passed, so that not every commit rewrites the list
MAX_HOLDERS = 10_000  # leases, and as many holds: more is a leak in the caller


@dataclass(frozen=True)
class Commit:
    """One append that happened: what binds its token, what it appended, and its writer (for people).

    `seqno` is of the version that this commit made; `since` and `state_bytes` (of all batches) are the shard's then.
    `restored_from` is the checkpoint that it went back to, if it was a restore; a fork starts with one such commit.
    """

    token: str
    contents_digest: str
    lower: int
    upper: int | None
    manifest_key: str
    manifest_sha256: str
    checkpoint_id: str
    epoch: int
    writer: str
    committed_ms: int
    seqno: int
    since: int | None
    state_bytes: int
    restored_from: str | None = None
    is_change: bool = False  # took in no input; what is dated on the day of its upper may not have been due


@dataclass(frozen=True)
class Lease:
    """A leased reader's hold on `since`: valid until `heartbeat_ms + duration_ms`. `era`: the shard's when the reader
    began its last read; GC keeps what that read may need (`shard.eras`)."""

    since: Frontier
    heartbeat_ms: int
    duration_ms: int
    era: int = 0

    def has_expired(self, now_ms: int) -> bool:
        return now_ms > self.heartbeat_ms + self.duration_ms


@dataclass(frozen=True)
class Hold:
    """A critical reader's hold on `since`: permanent, moved by compare-and-downgrade on `opaque`."""

    since: Frontier
    opaque: str


@dataclass(frozen=True)
class Released:
    """A lease or hold that a user ended: whose it was, what it held, who ended it, when and why."""

    holder: str
    since: int | None
    released_ms: int
    by: str
    reason: str


@dataclass(frozen=True)
class ShardState:
    """Everything about a shard except the contents of its batches.

    `seqno`: -1 if not written yet; the machine moves it by one. `history_ms`: how far `since` may follow `upper` (None:
    all history). `operators`: each one's `operator_state.chain_digest`. `released`: the newest, oldest first.
    """

    shard: str
    seqno: int = -1
    since: Frontier = ZERO
    upper: Frontier = ZERO
    schemas: SchemaVersions = field(default_factory=SchemaVersions)
    batches: tuple[HollowBatch, ...] = ()
    commits: tuple[Commit, ...] = ()
    leases: Mapping[str, Lease] = field(default_factory=dict)
    holds: Mapping[str, Hold] = field(default_factory=dict)
    sources: Mapping[str, SourceFrontier] = field(default_factory=dict)
    operators: Mapping[str, str] = field(default_factory=dict)
    history_ms: int | None = None
    released: tuple[Released, ...] = ()
    era: int = 0  # `shard.eras`
    oldest_era: int = 0
    origin: Origin = field(default_factory=Origin)
    past: Past = field(default_factory=Past)
    erased: str | None = None  # the key of the list of erasures (`contents.erased`)

    @property
    def is_dropped(self) -> bool:
        """True if both frontiers are closed: this version marks a dropped shard."""
        return self.since.is_closed and self.upper.is_closed

    @property
    def schema(self) -> CollectionSchema | None:
        return self.schemas.newest

    @property
    def manifest_keys(self) -> frozenset[str]:
        """Every manifest that this state names: of batches, and of commits whose empty batches were merged."""
        return frozenset({batch.manifest_key for batch in self.batches} | {each.manifest_key for each in self.commits})

    @property
    def newest_commit(self) -> Commit | None:
        return self.commits[-1] if self.commits else None

    def commit_with(self, token: str) -> Commit | None:
        return next((commit for commit in self.commits if commit.token == token), None)


@dataclass(frozen=True)
class Committed:
    """The batch is in the shard. `is_new` is False if an earlier try appended it."""

    commit: Commit
    is_new: bool


@dataclass(frozen=True)
class UpperMismatch:
    """Another writer advanced the shard, or (`found` is as expected) the batch is of an era that is refused.

    `winner` is the commit that covers `expected`, if it is still known. `is_stale`: the refused batch's own upper is
    covered already; its token may have been forgotten.
    """

    expected: int
    found: Frontier
    winner: Commit | None
    is_stale: bool


@dataclass(frozen=True)
class HoldMismatch:
    """The hold has another opaque token: another owner has it now. `found` is that hold."""

    found: Hold


def compare_and_append(
    state: ShardState, manifest: BatchManifest, manifest_key: str, *, expected_upper: int, now_ms: int
) -> tuple[ShardState, Committed | UpperMismatch]:
    """Append `[expected_upper, manifest.upper)` iff the shard's upper is `expected_upper`.

    Checked in this order: arguments (`BadBounds`, `InvalidInput`), token (`TokenReuse`), upper (`UpperMismatch`, a
    value), schema (`SchemaMismatch`), operator state (`StateNotRead`), `ShardMoved`. Idempotent by token.
    """
    check_bounds(manifest.lower, manifest.upper)
    if manifest.lower != expected_upper or manifest.shard != state.shard:
        raise InvalidInput(
            f"manifest is for {manifest.shard} from {show_time(manifest.lower)}; expected {state.shard} from the"
            f" expected upper {show_time(expected_upper)}"
        )
    if (known := state.commit_with(manifest.token)) is not None:
        if known.contents_digest != manifest.contents_digest:
            raise TokenReuse(
                f"token {manifest.token} is bound to {show_interval(known.lower, known.upper)} with contents"
                f" {known.contents_digest[:16]}; found other contents {manifest.contents_digest[:16]}. Mint a"
                " new description instead of changing the batch"
            )
        return state, Committed(known, is_new=False)
    if state.upper != Frontier(expected_upper) or manifest.era < state.oldest_era:
        return state, upper_mismatch(state, manifest)
    schemas = state.schemas.with_batch_of(manifest.schema, seqno=state.seqno + 1, lower=manifest.lower)
    _check_operators_read(state, manifest)
    after = replace(
        state,
        upper=Frontier(manifest.upper),
        schemas=schemas,
        batches=_with_batch(state, manifest, manifest_key),
        # A restore replaces all progress: what was first consumed after its checkpoint no longer counts as consumed.
        sources=manifest.sources if manifest.restored else {**state.sources, **manifest.sources},
        operators=manifest.operators_after(),
        origin=state.origin.appended(state.shard, manifest_key, manifest.epoch),
        past=state.past.after(manifest, {each.checkpoint_id: each.upper for each in state.commits}),
    )
    commit = commit_of(after, manifest, manifest_key, now_ms)
    commits = (*state.commits, commit)
    if len(commits) > MAX_COMMITS_KEPT:
        commits = commits[-MIN_COMMITS_KEPT:]
    return replace(after, commits=commits), Committed(commit, is_new=True)


def start_fork(
    state: ShardState,
    manifest: BatchManifest,
    manifest_key: str,
    *,
    batches: tuple[HollowBatch, ...],
    since: Frontier,
    schemas: SchemaVersions,
    now_ms: int,
) -> tuple[ShardState, Committed]:
    """Make an empty shard a fork: it shares `batches`, and its one commit, `manifest`, stands for all of them.

    `since` and `schemas`: from the shard it comes from. Idempotent by token. Raises as `check_can_be_fork`;
    `RunFailed` if GC has given up the fork.
    """
    if (known := state.commit_with(manifest.token)) is not None:
        return state, Committed(known, is_new=False)
    check_can_be_fork(state, since)
    if manifest.era < state.oldest_era:
        raise RunFailed(f"fork {state.shard}: GC may have deleted files that it shares; it was not made. Try again")
    origin = state.origin.appended(state.shard, manifest_key, manifest.epoch)
    begun = replace(state, since=since, batches=batches, schemas=schemas, origin=origin)
    return begin(begun, manifest, manifest_key, now_ms)


def begin(state: ShardState, manifest: BatchManifest, manifest_key: str, now_ms: int) -> tuple[ShardState, Committed]:
    """`state`, which has batches and schemas of another shard, with `manifest` as its one commit, and its progress."""
    after = replace(
        state,
        upper=Frontier(manifest.upper),
        schemas=state.schemas.in_fork(state.seqno + 1, manifest.upper),
        sources=manifest.sources,
        operators=manifest.operators_after(),
        past=Past(),
    )
    commit = commit_of(after, manifest, manifest_key, now_ms)
    return replace(after, commits=(commit,)), Committed(commit, is_new=True)


def check_can_be_fork(state: ShardState, since: Frontier) -> None:
    """Raise `InvalidInput` unless the shard is empty and has no lease or hold below `since`."""
    if state.commits or state.batches or state.upper != ZERO:
        raise InvalidInput(f"shard {state.shard} already exists (upper {state.upper}); choose another name")
    held = [lease.since for lease in state.leases.values()] + [hold.since for hold in state.holds.values()]
    if held and min(held) < since:
        raise InvalidInput(
            f"shard {state.shard} is held at {min(held)}, and a fork can be read from since {since} on; release its"
            " leases and holds, or fork into another name"
        )


def _with_batch(state: ShardState, manifest: BatchManifest, manifest_key: str) -> tuple[HollowBatch, ...]:
    """The batches after the append. Two empty ones in a row become one, so that a state does not grow by seals.

    Only if the new manifest contains all that the replaced one said: a restore's says more, and so may one with
    another schema, or one whose writer left out the progress of a source.
    """
    batch = manifest.hollow(manifest_key)
    last, newest = state.batches[-1] if state.batches else None, state.newest_commit
    merges = (
        last is not None
        and newest is not None
        and last.is_empty
        and batch.is_empty
        and newest.manifest_key == last.manifest_key
        and newest.restored_from is None
        and manifest.restored is None
        and manifest.schema == state.schema
        and state.sources.keys() <= manifest.sources.keys()
    )
    if last is None or not merges:
        return (*state.batches, batch)
    return (*state.batches[:-1], replace(batch, lower=last.lower))


def _check_operators_read(state: ShardState, manifest: BatchManifest) -> None:
    """Refuse a batch that would drop or replace operator state which its writer did not start from."""
    if manifest.restored or manifest.read_operators == state.operators:
        return
    found = {name: digest[:16] for name, digest in sorted(manifest.read_operators.items())}
    expected = {name: digest[:16] for name, digest in sorted(state.operators.items())}
    raise StateNotRead(
        f"the batch {show_interval(manifest.lower, manifest.upper)} of shard {state.shard} started from other"
        f" operator state than the shard has: it read {show_row(found)}; expected {show_row(expected)} (digests by"
        " operator). Appending it would lose records that are not in the shard yet. Mint and write again"
    )


def commit_of(after: ShardState, manifest: BatchManifest, manifest_key: str, now_ms: int) -> Commit:
    """The record of the append that leads to the state `after`."""
    return Commit(
        token=manifest.token,
        contents_digest=manifest.contents_digest,
        lower=manifest.lower,
        upper=manifest.upper,
        manifest_key=manifest_key,
        manifest_sha256=manifest.sha256,
        checkpoint_id=manifest.checkpoint_id,
        epoch=manifest.epoch,
        writer=manifest.writer,
        committed_ms=now_ms,
        seqno=after.seqno + 1,
        since=after.since.time,
        state_bytes=sum(batch.size_bytes for batch in after.batches),
        restored_from=manifest.restored.checkpoint_id if manifest.restored else None,
        is_change=manifest.is_change,
    )


def upper_mismatch(state: ShardState, batch: BatchManifest | BatchDescription) -> UpperMismatch:
    """The answer to the append of a batch that can only be refused."""
    winner = next((c for c in state.commits if Frontier(c.lower) <= Frontier(batch.lower) < Frontier(c.upper)), None)
    return UpperMismatch(batch.lower, state.upper, winner, is_stale=Frontier(batch.upper) <= state.upper)


def register_lease(state: ShardState, reader: str, *, now_ms: int, duration_ms: int) -> tuple[ShardState, Lease]:
    """Give `reader` (an id never used before) a lease at the shard's `since`. The same id returns the same lease until
    it expires, so a caller that lost the answer can ask again."""
    known = state.leases.get(reader)
    if known is not None:
        if known.has_expired(now_ms):
            raise _lease_expired(state, reader)
        return state, known
    state, _ = expire_leases(state, now_ms=now_ms)
    check_room(state, len(state.leases), "leases that have not expired")
    lease = Lease(state.since, heartbeat_ms=now_ms, duration_ms=duration_ms, era=state.era)
    return replace(state, leases={**state.leases, reader: lease}), lease


def renew_lease(
    state: ShardState, reader: str, *, now_ms: int, since: Frontier | None = None
) -> tuple[ShardState, Lease]:
    """Heartbeat, and move the reader's hold up to `since` if given (an older one is ignored: holds never regress).

    Raises `LeaseExpired` if the lease has expired, whether or not it is still in the state.
    """
    lease = state.leases.get(reader)
    if lease is None or lease.has_expired(now_ms):
        raise _lease_expired(state, reader)
    renewed = replace(lease, since=max(lease.since, since or lease.since), heartbeat_ms=max(now_ms, lease.heartbeat_ms))
    if renewed == lease:
        return state, lease
    return replace(state, leases={**state.leases, reader: renewed}), renewed


def keep_lease(state: ShardState, reader: str, *, now_ms: int) -> tuple[ShardState, Lease]:
    """The reader begins a read. Renew the lease if a third of its time has passed or an era has begun, so that reads in
    between write no version. Raises as above."""
    lease = state.leases.get(reader)
    if lease is None or lease.has_expired(now_ms):
        raise _lease_expired(state, reader)
    if now_ms - lease.heartbeat_ms < lease.duration_ms // 3 and lease.era == state.era:
        return state, lease
    leases = {**state.leases, reader: replace(lease, era=state.era)}
    return renew_lease(replace(state, leases=leases), reader, now_ms=now_ms)


def release_lease(state: ShardState, reader: str) -> tuple[ShardState, bool]:
    """Release the lease. False if it was gone already; a second call is harmless."""
    if reader not in state.leases:
        return state, False
    return replace(state, leases={name: lease for name, lease in state.leases.items() if name != reader}), True


def expire_leases(state: ShardState, *, now_ms: int) -> tuple[ShardState, tuple[str, ...]]:
    """Remove every lease that has expired; returns their readers. The machine does this with every change."""
    kept = {name: lease for name, lease in state.leases.items() if not lease.has_expired(now_ms)}
    expired = tuple(sorted(state.leases.keys() - kept.keys()))
    return (replace(state, leases=kept) if expired else state), expired


def check_room(state: ShardState, held: int, what: str) -> None:
    """Raise `InvalidInput` if the shard has `MAX_HOLDERS` of `what` already."""
    if held >= MAX_HOLDERS:
        raise InvalidInput(
            f"shard {state.shard} has {held} {what}, and at most {MAX_HOLDERS} are allowed. Close readers and release"
            f" unused holds; `persist holds {state.shard}` lists them"
        )


def _lease_expired(state: ShardState, reader: str) -> LeaseExpired:
    ended = next((each for each in reversed(state.released) if each.holder == reader), None)
    why = "has expired"
    if ended is not None:
        why = f"was released by {ended.by} at {format_time(ended.released_ms)} ({ended.reason})"
    return LeaseExpired(
        f"shard {state.shard}: the lease of reader {reader} {why}, its since is no longer held"
        f" (shard's since {state.since}, upper {state.upper}); open a new reader"
    )
