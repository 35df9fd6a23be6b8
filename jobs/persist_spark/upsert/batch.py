"""From a records frame to a staged batch: which committed updates to look up, and how, then upsert and stage.

records ──┬──────────────────────────────────────────────────────> persistent_upsert -> stage -> BatchManifest
          └─ look ─> look up: nothing │ all slots │ the batch's ─────┘
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.storagelevel import StorageLevel

from persist_core.config.limits import ErrorLimits, reached_limit
from persist_core.contents.batch import STASH_OPERATOR, BatchDescription, BatchManifest, HollowBatch, Part, PartKind
from persist_core.contents.err_groups import lines_of
from persist_core.contents.key_range import KeyRange, Scalar, meets_any
from persist_core.contents.operator_state import StateArtifact
from persist_core.contents.part_lists import PartList
from persist_core.contents.pieces import OKS
from persist_core.contents.stats import BatchWarning
from persist_core.errors import InvariantViolation, TooManyErrors
from persist_core.handles.client import PersistClient
from persist_core.handles.erased import erased_for
from persist_core.handles.load import load_lists
from persist_core.handles.side_by_side import side_by_side
from persist_core.schema import INHERITED, TIME, CollectionSchema, Late
from persist_core.shard.state import ShardState
from persist_spark import progress
from persist_spark.compat import cached_leaf
from persist_spark.frame import OP, ORDER, named, slot_names
from persist_spark.read.damage import check_sizes, named_damage, part_sizes
from persist_spark.session import ONE_TASK_BYTES, stage_settings, use
from persist_spark.stage import stage
from persist_spark.upsert import exchange
from persist_spark.upsert.arguments import Watched
from persist_spark.upsert.eras import Eras
from persist_spark.upsert.erased import without_erased
from persist_spark.upsert.few_keys import filter_of, key_texts, met, most
from persist_spark.upsert.fold import Fold
from persist_spark.upsert.hot_keys import LARGE_INPUT_BYTES, Beaten, find_beaten, repeats, take_sample
from persist_spark.upsert.inherited import placed
from persist_spark.upsert.look import MAX_LOOK_BYTES, Look, cuts_of, look_at, look_for_truncates
from persist_spark.upsert.lookup import committed_updates, expected_hits, expects_few_files, stored_slots
from persist_spark.upsert.outcome import Outcome
from persist_spark.upsert.plan import PlannedUpsert, persistent_upsert
from persist_spark.upsert.rejected import incomparable_orders, no_order, rejected_records
from persist_spark.upsert.state_before import NO_STASH, StashBefore, StateBefore, may_look
from persist_spark.upsert.warnings import refuse_failed

# Reading a small shard whole costs less than the extra job to broadcast the batch's keys. At 5 MB it costs more.
SMALL_STATE_BYTES = 2 << 20
ONE_TASK_FILES = 256  # one task takes longer to open more than an exchange costs
# From here on, not opening files of the order index saves more than it costs to find the ranges of the batch's keys.
LARGE_INDEX_BYTES = 16 << 20
# From here on, not opening half of the files saves more than it costs to find the ranges of the batch's keys by a job.
LARGE_STATE_BYTES = 64 << 20
_LOOKED_UP = (PartKind.INSERTIONS, PartKind.RETRACTIONS, PartKind.ERRS)


@dataclass(frozen=True)
class UpsertRequest:
    """All that the write stage needs to know, once the input is a records frame.

    `may_stash=False` promises that no record's time lies at or after the batch's upper. `is_columnar`: the input's keys
    can be read without the rest, so reading them twice costs less than keeping all records in memory.
    `may_truncate=False` promises that no record is a truncate. `eras`, `in_rest`: see `persistent_upsert`.
    `is_auto_order`: the format says the order, so it is a question if no record has one. `noticed`: more for the
    report. `has_times`: times do not come from the description.
    """

    description: BatchDescription
    schema: CollectionSchema
    attempt: str
    late: Late = "lift"
    max_errors: ErrorLimits = None
    may_stash: bool = True
    is_columnar: bool = False
    may_truncate: bool = True
    keep_deleted_ms: int | None = None
    eras: Eras | None = None
    is_auto_order: bool = False
    has_times: bool = True
    watched: tuple[Watched, ...] = ()
    noticed: tuple[BatchWarning, ...] = ()
    in_rest: Callable[[DataFrame], DataFrame] | None = None


def stage_upserts(
    spark: SparkSession,
    client: PersistClient,
    state: ShardState,
    request: UpsertRequest,
    records: DataFrame,
    check_input: Callable[[], None] = lambda: None,
) -> BatchManifest:
    """Drain `records` (the records frame) into a staged batch for `request.description`, in a session of our own.

    `state` is the shard's, checked not to be past the description. `check_input` runs after all input was read and
    before the manifest is written.
    """
    description = request.description
    schema = state.schemas.placed(request.schema)
    request = replace(request, schema=schema)
    records = placed(records, schema)
    erased = erased_for(client, state, schema, has_times=request.has_times)
    if erased is not None:
        has_times, eras = request.has_times, request.eras
        records = without_erased(spark, records, erased, schema, description, has_times=has_times, eras=eras)
    below = [batch for batch in state.batches if batch.lower < description.lower]
    progress.enter("plan", f"{sum(batch.counts.rows for batch in below)} updates before")
    heads = side_by_side(client.manifest, below, threads=client.fetch_threads)
    where = (spark, client, description, schema, state.schemas)
    batch = _Batch(
        spark,
        client,
        request,
        records,
        committed=list(zip(below, heads, strict=True)),
        before=StateBefore(*where, request.keep_deleted_ms, records.schema[ORDER].dataType, request.eras),
    )
    with ExitStack() as stack:
        # Full states, and runs of merges, have files of attempts that have no manifest.
        batch.known.extend(itertools.chain(*description.operators.values()))
        stack.enter_context(named_damage(client.blob, known=batch.known))
        use(spark, stage_settings(description.input_bytes))
        if (batch.looks or may_look(description)) and not request.is_columnar:
            records.persist(StorageLevel.MEMORY_AND_DISK)
            stack.callback(records.unpersist)
            batch = replace(batch, records=cached_leaf(records))
        batch = replace(batch, stash=batch.before.needed_stash(batch.records, may_stash=request.may_stash))
        look = batch.look()
        batch = batch.sampled(stack)
        plans: list[PlannedUpsert] = []

        def drain(before: Outcome | None) -> PlannedUpsert:
            plan = batch.plan(look, before)
            use(spark, stage_settings(plan.moved_bytes))
            plans.append(batch.planned(plan))
            return plans[-1]

        def check(outcome: Outcome) -> None:
            check_input()
            _check_history(plans[-1], outcome, description)
            refuse_failed(outcome.warnings, request.watched, description)
            if outcome.counted.get("incomparable"):
                raise incomparable_orders(plans[-1], outcome, description)
            is_asked = request.is_auto_order and outcome.counted.get("unplaced") and not outcome.counted["placed"]
            if is_asked and (question := no_order(*rejected_records(client.blob, description, request.attempt))):
                raise question
            errors, bad_records = outcome.stats.errors, outcome.counted["bad_records"]
            records = outcome.stats.eligible - (errors - bad_records)
            limit = reached_limit(request.max_errors, errors=errors, bad_records=bad_records, records=records)
            if limit is not None:
                raise _too_many_errors(client, outcome, request, limit)

        to, kept = (client.blob, description, schema, request.attempt), Fold(batch.before).kept
        return stage(*to, drain, check=check, kept=kept, noticed=request.noticed)


@dataclass(frozen=True)
class _Plan:
    """The work of a plan beyond the normal one, what it reads, and about how much of that moves through its exchange.

    `slots`: the only ones whose previous values are looked up; `None`: all. `few_keys`: a filter on their keys.
    `finds_hits`: first find out by the key columns which of the slots are stored.
    """

    is_thorough: bool
    inherits: bool
    slots: DataFrame | None
    few_keys: str | None
    finds_hits: bool
    ranges: Sequence[KeyRange] | None
    stash: StashBefore
    moved_bytes: int


@dataclass(frozen=True)
class _Batch:
    """All that one batch is made of, before anything of it is read.

    `committed`: the manifests of large runs have their parts in lists, which `_opened` reads. `known`: the files that
    the batch may read, so far.
    """

    spark: SparkSession
    client: PersistClient
    request: UpsertRequest
    records: DataFrame
    committed: Sequence[tuple[HollowBatch, BatchManifest]]
    before: StateBefore
    stash: StashBefore = NO_STASH
    beaten: Beaten | None = None
    cuts: Sequence[Scalar] | None = None
    known: list[Part | StateArtifact] = field(default_factory=list)

    @property
    def _outline(self) -> Iterator[Part | PartList]:
        return (each for _, manifest in self.committed for each in manifest.outline)

    @property
    def committed_bytes(self) -> int:
        """The files in which previous values may be."""
        return sum(part.size_bytes for part in self._outline if part.kind in _LOOKED_UP)

    def _bytes_within(self, ranges: Sequence[KeyRange] | None) -> int:
        """The files of oks that may hold keys of these ranges."""
        oks = (part for part in self._outline if part.kind in OKS)
        return sum(part.size_bytes for part in oks if ranges is None or meets_any(part.keys, ranges))

    @property
    def _committed_rows(self) -> int:
        return sum(part.rows or 0 for part in self._outline if part.kind is PartKind.INSERTIONS)

    @property
    def _holds_inherited(self) -> bool:
        """True if a file says that values in it were inherited, or that records left them out."""
        state = (*self.before.index, *self.request.description.operators.get(STASH_OPERATOR, ()))
        found = [part.inherits for part in self._outline if part.kind in _LOOKED_UP]
        return any([*found, *(each.inherits for each in state)])

    @property
    def looks(self) -> bool:
        return self._meets_many and self.request.description.input_bytes <= MAX_LOOK_BYTES

    @property
    def _meets_many(self) -> bool:
        return self.committed_bytes + self.before.index_bytes > SMALL_STATE_BYTES

    def look(self) -> Look | None:
        """Look at the batch, if that pays. Runs a small job."""
        schema, upper = self.request.schema, self.request.description.upper
        if not self.looks:
            asks = self._meets_many and self.request.may_truncate
            return look_for_truncates(self._waiting([OP, TIME, *_unsent(schema)]), upper) if asks else None
        manifests = [manifest for _, manifest in self.committed]
        files: list[KeyRange] = []
        if self.committed_bytes > LARGE_STATE_BYTES and expects_few_files(manifests):
            files += [part.keys for part in self._outline if part.kind in OKS]
        if self.before.index_bytes > LARGE_INDEX_BYTES:
            files += [artifact.keys for artifact in self.before.index]
        waiting = self._waiting([*slot_names(schema), OP, TIME, *_unsent(schema)])
        if self._fits_one_task(self.request.description.input_bytes + self.stash.size_bytes):
            waiting = waiting.coalesce(1)  # one stage instead of two
        return look_at(waiting, schema, upper, cuts_of(files) if files else None)

    def sampled(self, stack: ExitStack) -> _Batch:
        """With the records that hot keys have too many, if the batch is large, and to read its keys costs little or
        there probably are some; and with the ranges of the exchange of a first batch. The former are kept in memory
        until `stack` ends."""
        request, size_bytes = self.request, self.request.description.input_bytes
        cuts: list[Scalar] | None = [] if self.committed_bytes == 0 and size_bytes > LARGE_STATE_BYTES else None
        has_cuts = cuts is not None and exchange.has_cuts(request.schema.key[0])
        is_cheap = request.is_columnar or self.looks or has_cuts
        if size_bytes < LARGE_INPUT_BYTES or not (is_cheap or repeats([manifest for _, manifest in self.committed])):
            return replace(self, cuts=cuts)
        sample = take_sample(self.records, request.schema, request.eras, with_keys=has_cuts)
        beaten = find_beaten(sample)
        if beaten is not None:
            stack.callback(beaten.groups.unpersist)
        if has_cuts:
            cuts = exchange.cuts_of(sample.keys, size_bytes)
        return replace(self, beaten=beaten, cuts=cuts)

    def plan(self, look: Look | None, before: Outcome | None) -> _Plan:
        """The next step after this look, and after a plan whose output was discarded.

        A truncate needs all slots; a tie, or a record below a forgotten tombstone, only the batch's. After a plan with
        registers all have them.
        """
        description = self.request.description
        has_truncates = look is not None and look.has_truncates
        inherits = self._holds_inherited or (look is not None and look.has_unsent)
        is_thorough = has_truncates
        if before is not None:
            inherits = before.counted.get("unsent") != 0
            is_thorough = has_truncates or before.is_thorough or before.needs_thorough_plan
        has_truncates = has_truncates or (before is not None and before.counted["truncates"] > 0)
        is_keyed = look is not None and look.fits_a_broadcast and not has_truncates
        stash = self.before.whole_stash() if is_thorough else self.stash
        moved_bytes = description.input_bytes + stash.size_bytes
        if not is_keyed:
            moved_bytes += self.committed_bytes
        if not is_keyed or is_thorough:
            moved_bytes += self.before.index_bytes
        slots = self._waiting(slot_names(self.request.schema)) if is_keyed else None
        ranges = look.ranges if look and is_keyed else None
        few_keys, finds_hits, rows = None, False, self._committed_rows
        if slots is not None and look is not None:
            hits = expected_hits(look.rows, [manifest for _, manifest in self.committed])
            finds_hits = hits <= min(look.rows // 2, most(rows))
            finds_hits = finds_hits and self._bytes_within(ranges) * met(look.rows, rows) > LARGE_STATE_BYTES
            if look.rows <= most(rows):
                few_keys = filter_of(key_texts(slots, self.request.schema).collect(), self.request.schema)
        return _Plan(is_thorough, inherits, slots, few_keys, finds_hits, ranges, stash, moved_bytes)

    def _opened(self, ranges: Sequence[KeyRange] | None) -> list[tuple[HollowBatch, BatchManifest]]:
        """The committed batches with the parts that may hold keys of these ranges. Checks the sizes of their files."""
        blob, threads = self.client.blob, self.client.fetch_threads
        found = [
            (batch, load_lists(blob, batch.manifest_key, each, ranges, threads=threads))
            for batch, each in self.committed
        ]
        check_sizes(blob, part_sizes(manifest for _, manifest in found))
        self.known.extend(part for _, manifest in found for part in manifest.parts)
        return found

    def planned(self, plan: _Plan) -> PlannedUpsert:
        request, description, slots = self.request, self.request.description, plan.slots
        blob, beaten = self.client.blob, None if plan.is_thorough or plan.inherits else self.beaten
        opened, ranges, few_keys = self._opened(plan.ranges), plan.ranges, plan.few_keys
        if slots is not None and plan.finds_hits:
            where, limit = (self.spark, blob, opened, request.schema, slots), most(self._committed_rows)
            stored = stored_slots(*where, ranges=ranges, few_keys=few_keys)
            hits = [] if stored is None else key_texts(stored, request.schema).take(limit + 1)
            if not hits:
                ranges = ()
            elif len(hits) <= limit:
                few_keys = filter_of(hits, request.schema)
        return persistent_upsert(
            self.records if beaten is None else beaten.left_out(self.records),
            committed_updates(
                self.spark,
                blob,
                opened,
                request.schema,
                slots=slots,
                ranges=ranges,
                few_keys=few_keys,
            ),
            schema=request.schema,
            lower=description.lower,
            upper=description.upper,
            stash=plan.stash.rows,
            stash_rows=plan.stash.total,
            beaten=0 if beaten is None else beaten.count,
            stash_frontier=description.stash_frontier,
            late=request.late,
            in_time_from=description.in_time_from,
            may_stash=request.may_stash or STASH_OPERATOR in description.operators,
            has_times=request.has_times,
            is_thorough=plan.is_thorough,
            inherits=plan.inherits,
            in_one_task=slots is None and self._fits_one_task(plan.moved_bytes),
            cuts=self.cuts,
            seen=self.before.seen(None if plan.is_thorough else plan.ranges, slots),
            eras=request.eras,
            watched=request.watched,
            in_rest=request.in_rest,
            versions=self.before.schemas.versions,
        )

    def _fits_one_task(self, moved_bytes: int) -> bool:
        return moved_bytes <= ONE_TASK_BYTES and self.request.description.input_files <= ONE_TASK_FILES

    def _waiting(self, columns: Sequence[str]) -> DataFrame:
        """These columns of the records, and of what is needed of the stash."""
        names = [named(name) for name in columns]
        records = self.records.select(*names)
        return records if self.stash.rows is None else records.unionByName(self.stash.rows.select(*names))


def _unsent(schema: CollectionSchema) -> list[str]:
    return [INHERITED] if schema.inherits else []


def _too_many_errors(client: PersistClient, outcome: Outcome, request: UpsertRequest, limit: str) -> TooManyErrors:
    described, of = request.description, outcome.counts.err_insertions
    groups, samples = rejected_records(client.blob, described, request.attempt, of)
    message = (
        f"{outcome.stats.errors} of {outcome.stats.eligible} processed records of {described.shard}"
        f" {described.interval} are errors; {limit} (limits.max_errors). Nothing was committed: correct the input or"
        " the column types; or raise the limit to keep these errors as data (max_errors: null for no limit)."
        f" `persist errors {described.shard} --rejected` shows records. Most frequent:"
    )
    return TooManyErrors("\n  ".join([message, *lines_of(groups)]), samples)


def _check_history(drained: PlannedUpsert, outcome: Outcome, description: BatchDescription) -> None:
    """Raise `InvariantViolation` unless what was looked up is a history of at most one value per slot."""
    broken = outcome.counted["broken"]
    if not broken:
        return
    row = drained.broken().orderBy("slot", "time", "diff").limit(1).collect()[0]
    raise InvariantViolation(
        f"shard {description.shard} breaks 'a slot has at most one value' in {broken} updates; the first:"
        f" slot {row['slot']} at time {row['time']}: diff {row['diff']} of {row['value']}, after {row['before']}."
        f" Nothing was committed; run `persist fsck {description.shard}`"
    )
