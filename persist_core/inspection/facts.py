"""The objects of an inspection. `dataclasses.asdict` makes their JSON; names and meanings are stable.

Times are integers (milliseconds since 1970 for schedules); a closed frontier and an unknown fact are `None`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from persist_core.compaction.due import DueMerge
from persist_core.contents.batch import BatchCounts
from persist_core.contents.err_groups import ErrGroup
from persist_core.contents.stats import BatchWarning
from persist_core.inspection.holders import Holders

UNREADABLE = "unreadable"
# The words of `ShardSummary.attention`.
ATTENTION = (UNREADABLE, "damaged", "errors", "warnings", "conflicts", "future_upper", "moved")


@dataclass(frozen=True)
class LastCommit:
    """The newest commit of a shard, from its state alone.

    `writer` is `dag_id/run_id` of the dag run that minted it, or names another program (`cli/...`).
    """

    committed_ms: int
    writer: str
    checkpoint_id: str
    epoch: int
    lower: int
    upper: int | None
    restored_from: str | None


@dataclass(frozen=True)
class ShardSummary:
    """One line of the list of shards.

    `kind` is `collection`, `view`, `dropped`, or `other` (no source yet). `forked_from` is the shard that owns files
    of this one; `moved_to` is the location that has taken its place and accepts its commits. `rows` and `errors`
    count what the newest contents hold; `stash` counts records that wait for their time; `warnings` counts rows of the
    newest run that fail a check or had a bad value set to null. `lag_ms` is how far the upper is behind the clock.
    `conflicts_7d` counts lost appends of the last 7 days; `None` if there are too many to read. `holders` counts leases
    and holds, and `held_at` is the earliest time that they keep. `attention` has a word for each problem: `unreadable`,
    `damaged`, `errors`, `warnings`, `conflicts`, `future_upper`, or only `moved`: the other location has its problems.
    `error` says what could not be read: with `unreadable` the state, and all other facts are `None`, 0 or empty; with
    `damaged` something else.
    """

    shard: str
    kind: str
    forked_from: str | None = None
    seqno: int = -1
    since: int | None = None
    upper: int | None = None
    lag_ms: int | None = None
    is_dropped: bool = False
    moved_to: str | None = None
    rows: int | None = None
    errors: int | None = None
    stash: int | None = None
    warnings: int | None = None
    updates: int = 0
    batches: int = 0
    size_bytes: int = 0
    commits: int = 0
    conflicts_7d: int | None = None
    newest_commit: LastCommit | None = None
    due_merge: DueMerge | None = None
    holders: int = 0
    held_at: int | None = None
    inputs: tuple[str, ...] = ()
    attention: tuple[str, ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class ShardDescription(Holders, ShardSummary):
    """One shard: the fields of its summary and of its holders, and what a page about it needs besides lists.

    `schema` is `CollectionSchema.to_json()`. `sources` is the progress by source, with long lists as their length.
    `definition` is a view's, as its newest refresh had it (SQL or `module:function`). `warned` are the warnings of the
    newest run; their samples are keys and values of rows. `reprocess_from`, in `persist describe` only: the time from
    which on `persist reprocess` has a checkpoint; `None` if it replays all input.
    """

    schema: Mapping[str, Any] | None = None
    sources: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    definition: str | None = None
    warned: tuple[BatchWarning, ...] = ()
    reprocess_from: int | None = None


@dataclass(frozen=True)
class CommitFacts(LastCommit):
    """One commit. The counts are of its batch as it was appended, and `None` if its manifest can't be read.

    `inserts`, `updates`, `deletes` and `errors` count keys of a collection (`errors`: records that became errors), or
    rows of a view (an update is then a delete and an insert). `stats` is what the run reported, as its manifest has it.
    `lag_ms` is the time from the upper to the commit. `rows` and `living_errors` are what the shard held after it, and
    `state_bytes` the size of its batches then. `schema_changes`: how the commit has evolved the schema, in
    words. `correction`: from which time on (ms) inputs were replayed, to before which, and why. `swapped_in`: the
    hidden shard of a generation that the commit has swapped in. `error` says why counts are missing; `None` if the
    commit is of a generation that was deleted.
    """

    seqno: int
    lag_ms: int | None
    state_bytes: int | None = None
    inserts: int | None = None
    updates: int | None = None
    deletes: int | None = None
    errors: int | None = None
    rows: int | None = None
    living_errors: int | None = None
    stash: int | None = None
    size_bytes: int | None = None
    parts: int | None = None
    stats: Mapping[str, int] | None = None
    schema_changes: tuple[str, ...] = ()
    correction: Mapping[str, Any] | None = None
    swapped_in: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class CommitsPage:
    """Commits of a shard, oldest first. `older` asks for the page before it; `None`: no older one is known.

    The state keeps the newest 128 or more; older ones are known as long as consensus keeps older versions of the state.
    """

    shard: str
    commits: tuple[CommitFacts, ...]
    older: int | None


DayState = Literal["loaded", "late", "corrected", "missing", "failed", "open", "unknown"]  # see `days.py`


@dataclass(frozen=True)
class FileFacts:
    """A file of a day: when it was consumed, and whether a commit had covered its day before."""

    name: str
    size_bytes: int | None
    committed_ms: int
    is_late: bool


@dataclass(frozen=True)
class DayFacts:
    """One day of a shard: its date and bounds in the shard's time zone, its state, the sums of its commits, its files.

    A commit belongs to the day of the last time that it covers. `files` has the first 20; `files_total` counts all.
    """

    date: str
    day_ms: int
    end_ms: int
    state: DayState
    commits: int
    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    errors: int = 0
    files: tuple[FileFacts, ...] = ()
    files_total: int = 0
    files_late: int = 0


@dataclass(frozen=True)
class StoredBytes:
    """The objects of a shard in blob storage below one of its folders.

    `needed_bytes`, if it is known, is what the newest state reads. The rest is for older states and forks, or garbage.
    """

    folder: str
    objects: int
    size_bytes: int
    needed_bytes: int | None = None


@dataclass(frozen=True)
class StoragePage:
    """Objects and bytes of a shard, counted in the store. `is_partial`: there are more objects than were listed."""

    shard: str
    folders: tuple[StoredBytes, ...]
    objects: int
    size_bytes: int
    is_partial: bool


@dataclass(frozen=True, kw_only=True)
class BatchFacts(BatchCounts):
    """One batch of the state: its bounds, whether it is a run (merged), and counts of its rows by kind."""

    lower: int
    upper: int | None
    is_run: bool
    owner: str
    size_bytes: int


@dataclass(frozen=True)
class BatchesPage:
    """The newest batches, oldest first. `total` counts all."""

    shard: str
    total: int
    batches: tuple[BatchFacts, ...]


@dataclass(frozen=True)
class CheckpointFacts:
    """One checkpoint. `operators` gives bytes of state by operator; `error` is set if its manifest can't be read.

    `kept_by` says why retention keeps it, as far as the shard itself knows: `latest`, `pinned`. `kept_until` is the
    time that the shard's upper passes before the history no longer reaches back to the checkpoint, which then ends
    unless something of `kept_by` keeps it; `None` if all history is kept.
    """

    checkpoint_id: str
    epoch: int | None = None
    timestamp_ms: int | None = None
    parent_id: str | None = None
    is_delta: bool | None = None
    is_latest: bool = False
    is_pinned: bool = False
    kept_by: tuple[str, ...] = ()
    kept_until: int | None = None
    restored_from: str | None = None
    since: int | None = None
    upper: int | None = None
    operators: Mapping[str, int] | None = None
    total_size_bytes: int | None = None
    error: str | None = None


@dataclass(frozen=True)
class ColumnFacts:
    """A column of a page of rows."""

    name: str
    type: str
    is_key: bool


@dataclass(frozen=True)
class RowsPage:
    """A page of rows, of changes (first columns: time, diff) or of errors.

    `as_of` is the time read; of changes, `after` and `as_of` bound it: `after < time <= as_of`. `rows` has one list of
    values a row, in the order of `columns`; a long text is cut, and its length follows in the text. Integers above 2^53
    are texts, because a browser would round them. `total` counts all rows that match. The first page of errors has them
    in groups too.
    """

    shard: str
    since: int | None
    upper: int | None
    after: int | None
    as_of: int
    columns: tuple[ColumnFacts, ...]
    rows: tuple[tuple[Any, ...], ...]
    offset: int
    total: int
    groups: tuple[ErrGroup, ...] = ()
