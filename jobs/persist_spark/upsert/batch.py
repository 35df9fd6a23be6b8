"""From a records frame to a staged batch: which committed updates to look up, and how, then upsert and stage.

records ──┬──────────────────────────────────────────────> persistent_upsert -> stage -> BatchManifest
          └─ slots ─> look up: nothing │ all │ these slots ──┘
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T
from pyspark.storagelevel import StorageLevel

from persist_core.errors import InvariantViolation, RejectedRecord, TooManyErrors
from persist_core.handles.client import PersistClient
from persist_core.protocol.stages import check_not_outdated
from persist_core.schema import CollectionSchema, Late, check_compatible
from persist_core.shard.batch import (
    LATE_OPERATOR,
    ORDER_INDEX_OPERATOR,
    STASH_OPERATOR,
    BatchDescription,
    BatchManifest,
    PartKind,
)
from persist_core.shard.keys import attempt_prefix
from persist_core.shard.operator_state import OrderFacts, StateArtifact
from persist_spark.frame import ORDER, named, order_type, records_type, slot_names
from persist_spark.order_memory import Memory
from persist_spark.read.damage import check_sizes, part_sizes
from persist_spark.read.parts import listing, scan_keys
from persist_spark.session import ONE_TASK_BYTES, OUR_PLANS, settings, stage_settings
from persist_spark.stage import stage
from persist_spark.upsert.lookup import committed_updates, expects_few_files, key_ranges
from persist_spark.upsert.outcome import Outcome
from persist_spark.upsert.plan import PlannedUpsert, persistent_upsert
from persist_spark.upsert.rejected import rejected_records, show_samples
from persist_spark.upsert.rules import SequenceRules
from persist_spark.upsert.seen import SeenBefore, index_type, late_type

# Reading a small shard whole costs less than the extra job to broadcast the batch's keys. At 5 MB it costs more.
SMALL_STATE_BYTES = 2 << 20
# From here on, not opening half of the files saves more than it costs to find the ranges of the batch's keys by a job.
LARGE_STATE_BYTES = 64 << 20
_LOOKED_UP = (PartKind.INSERTIONS, PartKind.RETRACTIONS, PartKind.ERRS)
# Above this the keys of a batch do not fit a broadcast; the whole state then goes through the exchange.
MAX_BROADCAST_INPUT_BYTES = 128 << 20


@dataclass(frozen=True)
class UpsertRequest:
    """All that the write stage needs to know, once the input is a records frame.

    `may_stash=False` promises that no record's time lies at or after the batch's upper. `is_columnar`: the input's keys
    can be read without the rest, so reading them twice costs less than keeping all records in memory. `file_names` has
    the name of each input file, by its place in the order of files: for messages.
    """

    description: BatchDescription
    schema: CollectionSchema
    attempt: str
    late: Late = "lift"
    max_errors: int | None = None
    may_stash: bool = True
    is_columnar: bool = False
    keep_deleted_ms: int | None = None
    file_names: Mapping[str, str] = field(default_factory=dict)


def stage_upserts(
    spark: SparkSession,
    client: PersistClient,
    request: UpsertRequest,
    records: DataFrame,
    check_input: Callable[[], None] = lambda: None,
) -> BatchManifest:
    """Drain `records` (the records frame) into a staged batch for `request.description`.

    `check_input` runs after all input was read and before the manifest is written.
    """
    description, schema, shard = request.description, request.schema, request.description.shard
    state = client.state(shard)
    check_not_outdated(state, description)
    if state.schema is not None:
        check_compatible(state.schema, schema)
    below = [batch for batch in state.batches if batch.lower < description.lower]
    manifests = client.open_reader(description.shard).manifests(below)
    chains = description.operators
    check_sizes(client.blob, part_sizes(manifests) | {each.key: each.size_bytes for c in chains.values() for each in c})
    committed = list(zip(below, manifests, strict=True))
    state_bytes = sum(part.size_bytes for manifest in manifests for part in manifest.parts if part.kind in _LOOKED_UP)
    index_bytes = sum(artifact.size_bytes for artifact in chains.get(ORDER_INDEX_OPERATOR, ()))
    stash = _stash(spark, client, description, records, schema)
    sequence, seen = _seen(spark, client, request)
    is_keyed = state_bytes + index_bytes > SMALL_STATE_BYTES and description.input_bytes <= MAX_BROADCAST_INPUT_BYTES
    has_ranges = state_bytes > LARGE_STATE_BYTES and expects_few_files(manifests)
    is_kept = is_keyed and not request.is_columnar
    whole_index_bytes = 0 if is_keyed and description.saves_delta(ORDER_INDEX_OPERATOR) else index_bytes
    exchanged_bytes = description.input_bytes + whole_index_bytes + (0 if is_keyed else state_bytes)
    with settings(spark, {**stage_settings(exchanged_bytes), **OUR_PLANS, **listing(client.blob)}):
        if is_kept:
            records = records.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            plans: list[PlannedUpsert] = []

            def drain(is_thorough: bool) -> PlannedUpsert:
                slots = _slots(records, stash, schema) if is_keyed and not is_thorough else None
                ranges = key_ranges(slots, schema) if slots is not None and has_ranges else None
                drained = persistent_upsert(
                    records,
                    committed_updates(spark, client.blob, committed, schema, slots=slots, ranges=ranges),
                    schema=schema,
                    lower=description.lower,
                    upper=description.upper,
                    stash=stash,
                    stash_frontier=description.stash_frontier,
                    late=request.late,
                    is_delta=description.saves_delta(STASH_OPERATOR),
                    may_stash=request.may_stash or stash is not None,
                    is_thorough=is_thorough,
                    in_one_task=not is_keyed and exchanged_bytes <= ONE_TASK_BYTES,
                    sequence=sequence,
                    seen=_of_batch(seen, sequence, slots),
                )
                plans.append(drained)
                return drained

            def check(outcome: Outcome) -> None:
                check_input()
                _check_history(plans[-1], outcome, description)
                if _has_too_many_errors(outcome, request.max_errors):
                    staged = attempt_prefix(shard, request.attempt)
                    samples = rejected_records(spark, client.blob, schema, staged, records, request.file_names)
                    raise _too_many_errors(outcome, request, samples)

            return stage(client.blob, description, schema, request.attempt, drain, check=check)
        finally:
            if is_kept:
                records.unpersist()


def _operator_state(
    spark: SparkSession, client: PersistClient, description: BatchDescription, operator: str, columns: T.StructType
) -> DataFrame | None:
    """The whole chain of an operator, or `None` if it has no state."""
    chain = description.operators.get(operator)
    return scan_keys(spark, client.blob, [artifact.key for artifact in chain], columns) if chain else None


def _stash(
    spark: SparkSession,
    client: PersistClient,
    description: BatchDescription,
    records: DataFrame,
    schema: CollectionSchema,
) -> DataFrame | None:
    """The stash before the batch, not consolidated."""
    columns = records_type(schema, records.schema[ORDER].dataType)
    return _operator_state(spark, client, description, STASH_OPERATOR, columns)


def _seen(
    spark: SparkSession, client: PersistClient, request: UpsertRequest
) -> tuple[SequenceRules, SeenBefore] | tuple[None, None]:
    """In `sequence` order: its rules for this batch, and what was seen before."""
    schema, description = request.schema, request.description
    if schema.order is None:
        return None, None
    order, rules = order_type(schema), _sequence(request)
    late = _operator_state(spark, client, description, LATE_OPERATOR, late_type(schema, order))
    index = _operator_state(spark, client, description, ORDER_INDEX_OPERATOR, index_type(schema, order))
    chain = description.operators.get(ORDER_INDEX_OPERATOR, ())
    memory = Memory.of([_orders(artifact) for artifact in chain], schema, rules.forgets_before)
    return rules, SeenBefore(index, memory, late=None if rules.is_late_delta else late)


def _orders(artifact: StateArtifact) -> OrderFacts:
    if artifact.orders is None:
        raise InvariantViolation(
            f"{artifact.key} is of the order index, and its manifest does not say which orders it holds; expected"
            " `orders`. Nothing was committed; this is a defect, please report it with the job's log"
        )
    return artifact.orders


def _slots(records: DataFrame, stash: DataFrame | None, schema: CollectionSchema) -> DataFrame:
    names = [named(name) for name in slot_names(schema)]
    slots = records.select(*names)
    return slots if stash is None else slots.unionByName(stash.select(*names))


def _sequence(request: UpsertRequest) -> SequenceRules:
    """What is forgotten before the batch was so at the upper of the one before it, which is its lower."""
    description, keep = request.description, request.keep_deleted_ms
    return SequenceRules(
        is_index_delta=description.saves_delta(ORDER_INDEX_OPERATOR),
        is_late_delta=description.saves_delta(LATE_OPERATOR),
        forgets_before=None if keep is None else description.lower - keep,
    )


def _of_batch(seen: SeenBefore | None, rules: SequenceRules | None, slots: DataFrame | None) -> SeenBefore | None:
    """A delta of the index needs only the entries of the batch's slots."""
    return replace(seen, slots=slots) if seen and rules and rules.is_index_delta else seen


def _has_too_many_errors(outcome: Outcome, max_errors: int | None) -> bool:
    return max_errors is not None and outcome.read.errors > max_errors


def _too_many_errors(outcome: Outcome, request: UpsertRequest, samples: tuple[RejectedRecord, ...]) -> TooManyErrors:
    described = request.description
    return TooManyErrors(
        f"{outcome.read.errors} of {outcome.read.eligible} processed records of {described.shard}"
        f" {described.interval} are errors; at most {request.max_errors} are allowed (limits.max_errors). Nothing was"
        " committed: correct the input or the column types, or raise the limit to keep these errors as data."
        f" `persist errors {described.shard} --rejected` shows more of them. {show_samples(samples)}",
        samples,
    )


def _check_history(drained: PlannedUpsert, outcome: Outcome, description: BatchDescription) -> None:
    """Raise `InvariantViolation` unless what was looked up is a history of at most one value per slot."""
    if not outcome.read.broken:
        return
    row = drained.broken().orderBy("slot", "time", "diff").limit(1).collect()[0]
    raise InvariantViolation(
        f"shard {description.shard} breaks 'a slot has at most one value' in {outcome.read.broken} updates; the first:"
        f" slot {row['slot']} at time {row['time']}: diff {row['diff']} of {row['value']}, after {row['before']}."
        f" Nothing was committed; run `persist fsck {description.shard}`"
    )
