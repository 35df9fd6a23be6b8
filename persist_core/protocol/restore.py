"""`persist restore`: bring back contents, progress and operator state of a checkpoint, as a new commit.

    checkpoint --point_of, verified--> RestorePoint ─┐
    shard's batches since then --undo--> updates ────┴─ stage ──> one compare-and-set: [upper, upper + 1)

1. A restore is an ordinary append: history stays, a lost race is a `Conflict`, a second try returns the first result.
   Only its manifest says that progress goes back (`BatchManifest.restored`), so no other writer can do that.
2. The contents at the new time equal the checkpoint's, in `sequence` order with their orders: what has changed
   since is read and undone. So it costs as much as the changes, whatever the shard's size; in `sequence` order it may
   read the keys and orders of older rows too (`restore_orders`).
3. Operator state is copied whole, its digests verified, and the copy is named by the commit: retention may take the
   checkpoint at any time after.
4. The next run consumes again the input consumed since, if it is still there. Its own times are before the new upper,
   so they are lifted (docs/semantics.md, section 4), as are times in the stash (`Restored.watermark`).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from persist_core.checkpoint.publish import publish_missing
from persist_core.contents.batch import BatchCounts, BatchDescription, Restored, last_time
from persist_core.contents.parts import ERR_IDENTITY, errs_schema, updates_schema
from persist_core.contents.row_versions import sum_diffs
from persist_core.errors import Corruption, InvalidInput, InvariantViolation
from persist_core.handles.client import PersistClient
from persist_core.handles.read import ReadHandle
from persist_core.handles.slow_reads import named_if_dropped
from persist_core.ids import uuid7_of
from persist_core.protocol.restore_orders import flattened, with_orders_of_errs, with_orders_of_oks
from persist_core.protocol.restore_point import RestorePoint, copy_operators, point_of, restore_token
from persist_core.protocol.stages import Conflict, append
from persist_core.schema import DIFF, TIME, CollectionSchema
from persist_core.shard.state import Committed, ShardState
from persist_core.sources.registry import progress_of
from persist_core.time_text import MAX_TIME

MAX_UPDATES = 2_000_000  # that this process reads and undoes: measured 1.2 KiB of memory each, at 180 bytes a row
BYTES_OF_AN_UPDATE = 256  # of Parquet; an update that takes more counts for as many as it would make


@dataclass(frozen=True)
class RestorePlan:
    """The effects of a restore: `oks` and `errs` are its updates, all at time `lower`.

    `inputs_again`: inputs that the next run consumes again if they are still there; `None` if the progress of now is
    damaged, so that they are not known. `began`: the shard's state, before the checkpoint was read.
    """

    shard: str
    point: RestorePoint
    lower: int
    schema: CollectionSchema
    oks: pa.Table
    errs: pa.Table
    inputs_again: tuple[str, ...] | None
    began: ShardState

    @property
    def upper(self) -> int:
        """One step: the restore makes no later time final."""
        return self.lower + 1

    @property
    def counts(self) -> BatchCounts:
        """Updates by kind."""
        inserted, errs_inserted = (int(pc.sum(pc.greater(t[DIFF], 0)).as_py() or 0) for t in (self.oks, self.errs))
        return BatchCounts(inserted, len(self.oks) - inserted, errs_inserted, len(self.errs) - errs_inserted)


@dataclass(frozen=True)
class NothingToRestore:
    """The shard has the contents of that checkpoint: nothing was committed since, or the newest commit restored it."""

    reason: str


def plan_restore(
    client: PersistClient, shard: str, checkpoint_id: str, *, max_updates: int = MAX_UPDATES
) -> RestorePlan | NothingToRestore:
    """The steps back to a checkpoint; writes nothing.

    Raises what `point_of` does, `InvalidInput` if the shard is closed, or has changed too much since then for one
    process, and `RunFailed` if it was dropped in the meantime.
    """
    state = client.state(shard)
    with named_if_dropped(client.machine, state):
        return _planned(client, state, checkpoint_id, max_updates)


def _planned(
    client: PersistClient, state: ShardState, checkpoint_id: str, max_updates: int
) -> RestorePlan | NothingToRestore:
    shard, newest = state.shard, state.newest_commit
    if newest is not None and newest.restored_from == checkpoint_id:
        return NothingToRestore(f"the newest commit of {shard} has restored it to checkpoint {checkpoint_id}")
    point = point_of(client, state, checkpoint_id)
    if newest is not None and newest.checkpoint_id == checkpoint_id:
        return NothingToRestore(f"nothing was committed to {shard} since checkpoint {checkpoint_id}")
    fork = f"fork it instead, which reads no data: `persist restore {shard} --to {checkpoint_id} --as NEW_SHARD`"
    if state.upper.time is None or state.upper.time == MAX_TIME or state.schema is None:
        raise InvalidInput(f"shard {shard} is closed (upper {state.upper}): it accepts no commits; {fork}")
    reader, after = client.open_reader(shard), last_time(point.upper)
    updates, size_bytes = _changed_since(reader, state, after)
    if max(updates, size_bytes // BYTES_OF_AN_UPDATE) > max_updates:
        raise InvalidInput(
            f"shard {shard} has changed by {updates} updates ({size_bytes} bytes) since checkpoint {checkpoint_id}; the"
            f" limit is {max_updates} ({max_updates * BYTES_OF_AN_UPDATE} bytes). If there is memory for them (1.2 KiB"
            f" per update), raise --max-updates; or {fork}"
        )
    lower = state.upper.time
    oks = with_orders_of_oks(reader.changes(after, lower - 1, orders=True), reader, state, after)
    errs = with_orders_of_errs(reader.error_changes(after, lower - 1, orders=True), reader, state, after)
    return RestorePlan(
        shard,
        point,
        lower,
        state.schema,
        _undone(oks, [column.name for column in state.schema.columns], updates_schema(state.schema), lower, fork),
        _undone(errs, list(ERR_IDENTITY), errs_schema(state.schema), lower, fork),
        _inputs_again(client, state, point),
        state,
    )


def _changed_since(reader: ReadHandle, state: ShardState, after: int) -> tuple[int, int]:
    """How many updates are later than `after`, and how many bytes they take in whole batches.

    A run that holds earlier updates too is counted row by row.
    """
    later = [batch for batch in state.batches if (batch.changed_at or 0) > after]
    whole = [batch for batch in later if batch.lower > after]
    counted = reader.count_changes([batch for batch in later if batch.lower <= after], after)
    return counted + sum(batch.counts.updates for batch in whole), sum(batch.size_bytes for batch in whole)


def _undone(updates: pa.Table, identity: list[str], schema: pa.Schema, time: int, fork: str) -> pa.Table:
    """Updates at `time` that undo the sum of `updates`."""
    flat, orders = flattened(updates)
    summed = sum_diffs(flat, [*identity, *orders])
    broken = summed.filter(pc.greater(pc.abs(summed[DIFF]), 1))
    if len(broken):
        raise InvariantViolation(
            f"since the checkpoint {broken.slice(0, 1).to_pylist()[0]} was inserted or retracted more than once; a key"
            f" has at most one value. Nothing was committed; run `persist fsck`, or {fork}"
        )
    negated = summed.set_column(summed.column_names.index(DIFF), DIFF, pc.negate(summed[DIFF]))
    timed = negated.set_column(negated.column_names.index(TIME), TIME, pa.repeat(time, len(negated)))
    return timed.select(schema.names)


def _inputs_again(client: PersistClient, state: ShardState, point: RestorePoint) -> tuple[str, ...] | None:
    now = progress_of(client.blob, state.shard, state.sources)
    try:
        return tuple(
            again.name for name, progress in now.items() for again in progress.consumed_since(point.sources.get(name))
        )
    except Corruption:
        return None


def restore(client: PersistClient, plan: RestorePlan, *, writer: str) -> Committed | Conflict:
    """Stage the plan and append it; then publish its checkpoint. `writer` names the caller, for users.

    A lost race is a `Conflict`, recorded like any other. Raises `CorruptArtifact` if retention has deleted the
    checkpoint since then, `RunFailed` if the shard was dropped. Trying again is safe after any error.
    """
    with named_if_dropped(client.machine, plan.began):
        return _restored(client, plan, writer)


def _restored(client: PersistClient, plan: RestorePlan, writer: str) -> Committed | Conflict:
    state = client.state(plan.shard)
    checkpoint = plan.point.checkpoint
    with suppress(Corruption, InvalidInput):  # these checkpoints make it possible to undo the restore
        publish_missing(client, state)
    parent, attempt = state.newest_commit, client.ids.uuid7()
    token = restore_token("restore", plan.shard, plan.lower, checkpoint.checkpoint_id)
    description = BatchDescription(
        shard=plan.shard,
        lower=plan.lower,
        upper=plan.upper,
        token=token,
        checkpoint_id=uuid7_of(plan.lower, token),
        epoch=(parent.epoch if parent else 0) + 1,
        parent_id=parent.checkpoint_id if parent else None,
        writer=writer,
        sources=plan.point.sources,
        era=plan.began.era,
    )
    key = client.open_writer(plan.shard).stage(
        description,
        plan.schema,
        attempt,
        plan.oks,
        plan.errs,
        operators=copy_operators(client, plan.point, plan.shard, attempt),
        restored=Restored(plan.shard, checkpoint.checkpoint_id, checkpoint.watermark),
    )
    result = append(client, description, key)
    if isinstance(result, Committed):
        publish_missing(client, client.state(plan.shard))
    return result
