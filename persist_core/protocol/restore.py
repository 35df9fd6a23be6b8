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

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from persist_core.checkpoint.publish import publish_missing
from persist_core.checkpoint.recovery import check_not_undone
from persist_core.contents.batch import SourceFrontier, last_time
from persist_core.contents.derived import Restored
from persist_core.contents.operator_state import StateArtifact
from persist_core.errors import Corruption, InvalidInput
from persist_core.handles.client import PersistClient
from persist_core.handles.overtaken import named_if_dropped
from persist_core.protocol.delta import MAX_UPDATES, Delta, check_size, delta_since, net_of
from persist_core.protocol.describe import describe_change
from persist_core.protocol.restore_point import RestorePoint, check_not_erased, copy_operators, point_of, restore_token
from persist_core.protocol.stages import Conflict, append
from persist_core.schema import CollectionSchema
from persist_core.shard.state import Committed, ShardState
from persist_core.sources.registry import progress_of
from persist_core.time_text import MAX_TIME


@dataclass(frozen=True)
class RestorePlan:
    """The effects of a restore: `updates` are all at time `lower`.

    `inputs_again`: inputs that the next run consumes again if they are still there; `None` if the progress of now is
    damaged, so that they are not known. `began`: the shard's state, before the checkpoint was read.
    """

    shard: str
    point: RestorePoint
    lower: int
    schema: CollectionSchema
    updates: Delta
    inputs_again: tuple[str, ...] | None
    began: ShardState

    @property
    def upper(self) -> int:
        """One step: the restore makes no later time final."""
        return self.lower + 1

    @property
    def dropped_columns(self) -> tuple[tuple[str, ...], int]:
        """The columns of then that the shard does not have any more, and the schema version that shows them."""
        upper, known = self.point.upper, {column.id for column in self.schema.columns}
        then = [each.schema for each in self.began.schemas.versions if upper is None or each.lower < upper]
        names = tuple(column.name for schema in then[-1:] for column in schema.columns if column.id not in known)
        return names, len(then)


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
    check_not_erased(client, state, point)
    if newest is not None and newest.checkpoint_id == checkpoint_id:
        return NothingToRestore(f"nothing was committed to {shard} since checkpoint {checkpoint_id}")
    fork = f"fork it instead, which reads no data: `persist restore {shard} --to {checkpoint_id} --as NEW_SHARD`"
    if state.upper.time is None or state.upper.time == MAX_TIME or state.schema is None:
        raise InvalidInput(f"shard {shard} is closed (upper {state.upper}): it accepts no commits; {fork}")
    reader, after = client.open_reader(shard), last_time(point.upper)
    since = f"checkpoint {checkpoint_id}"
    check_size(reader, state, after, max_updates, since, f"; or {fork}")
    changes = [(-1, delta_since(reader, state, after))]
    undone = net_of(changes, state.schema, state.upper.time, since=since, remedy=f", or {fork}")
    return RestorePlan(shard, point, state.upper.time, state.schema, undone, _inputs_again(client, state, point), state)


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
    checkpoint = plan.point.checkpoint
    with named_if_dropped(client.machine, plan.began):
        return append_replacing(
            client,
            plan.began,
            plan.updates,
            plan.schema,
            upper=plan.upper,
            token=restore_token("restore", plan.shard, plan.lower, checkpoint.checkpoint_id),
            sources=plan.point.sources,
            operators=plan.point.operators,
            restored=Restored(plan.shard, checkpoint.checkpoint_id, checkpoint.watermark),
            writer=writer,
        )


def append_replacing(
    client: PersistClient,
    began: ShardState,
    updates: Delta,
    schema: CollectionSchema,
    *,
    upper: int,
    token: str,
    sources: Mapping[str, SourceFrontier],
    operators: Mapping[str, tuple[StateArtifact, ...]],
    restored: Restored,
    writer: str,
) -> Committed | Conflict:
    """Append `updates` from the upper of `began` up to `upper`, with `sources` and a copy of `operators` in place of
    the shard's progress and operator state; then publish the checkpoint. Raises as `check_not_undone`."""
    shard = began.shard
    state = client.state(shard)
    check_not_undone(client, state)
    with suppress(Corruption, InvalidInput):  # these checkpoints make it possible to undo this
        publish_missing(client, state)
    attempt = client.ids.uuid7()
    description = describe_change(client, began, token, writer=writer, upper=upper, sources=sources)
    key = client.open_writer(shard).stage(
        description,
        schema,
        attempt,
        updates.oks,
        updates.errs,
        operators=copy_operators(client, operators, shard, attempt),
        restored=restored,
    )
    result = append(client, description, key)
    if isinstance(result, Committed):
        publish_missing(client, client.state(shard))
    return result
