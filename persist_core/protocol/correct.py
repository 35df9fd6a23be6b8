"""The commit that corrects a shard: the difference between what it holds and what its hidden fork holds.

    shard's changes since the start ──(-1)──┐
    fork's changes since the start ───(+1)──┴─ net_of ──> one batch at the shard's upper, by `append_replacing`

Progress and operator state become the fork's. History before stays: it says what was believed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from persist_core.checkpoint.recovery import recover_newest
from persist_core.contents.batch import last_time
from persist_core.contents.derived import Correction, Restored
from persist_core.handles.client import PersistClient
from persist_core.handles.overtaken import named_if_dropped
from persist_core.protocol.delta import MAX_UPDATES, Delta, check_size, delta_since, net_of
from persist_core.protocol.living import is_clipped, living
from persist_core.protocol.replay import Start
from persist_core.protocol.restore import append_replacing
from persist_core.protocol.restore_point import restore_token
from persist_core.protocol.stages import Conflict
from persist_core.schema import DIFF, ERR_KEY, ERR_KIND, ERR_PAYLOAD, MISSING_ORDER, TIME, CollectionSchema
from persist_core.shard.state import Committed, ShardState
from persist_core.sources.registry import progress_of
from persist_core.time_text import show_time


@dataclass(frozen=True)
class CorrectionPlan:
    """The updates of a correction, all at time `upper - 1`. `began` and `fork` are the states that they are between.

    `rows`: how many rows the shard holds before it; `None` for a fork that shares a part of a run: nothing has counted
    them.
    """

    began: ShardState
    fork: ShardState
    updates: Delta
    schema: CollectionSchema
    upper: int
    rows: int | None


def plan_correction(
    client: PersistClient, ours: ShardState, theirs: ShardState, start: Start, *, max_updates: int = MAX_UPDATES
) -> CorrectionPlan:
    """The difference between the shard (`ours`) and its fork, which has consumed at least as much; writes nothing.

    Raises `InvalidInput` if they have changed too much since the start for one process.
    """
    schema = theirs.schema
    assert schema is not None
    shown = replace(ours, schemas=theirs.schemas)  # the fork's may have one more
    upper = max((ours.upper.time or 0) + 1, theirs.upper.time or 0)
    deltas = []
    for sign, state in ((-1, shown), (1, theirs)):
        reader = client.open_reader(state.shard)
        check_size(reader, state, start.after, max_updates, show_time(start.upper))
        deltas.append((sign, delta_since(reader, state, start.after)))
    updates = net_of(deltas, schema, upper - 1, since=show_time(start.upper))
    errs = _without_resolved(updates.errs, deltas[0][1].errs, ours)
    rows = None if is_clipped(client, ours) else living(ours.batches)[0]
    return CorrectionPlan(ours, theirs, replace(updates, errs=errs), schema, upper, rows)


def _without_resolved(errs: pa.Table, since: pa.Table, state: ShardState) -> pa.Table:
    """`errs` without resolved ones: no input says that a user has resolved them, so the fork still has them.

    `since`: what the shard itself did since the start. What a restore or a correction retracted may come back.
    """
    restored = [last_time(commit.upper) for commit in state.commits if commit.restored_from is not None]
    restored += [each.upper - 1 for each in state.past.undone]  # their commits may be forgotten
    resolved = since.filter(
        pc.and_(
            pc.and_(pc.equal(since[ERR_KIND], MISSING_ORDER), pc.less(since[DIFF], 0)),
            pc.invert(pc.is_in(since[TIME], pa.array(restored, pa.int64()))),
        )
    )
    identity = [ERR_KEY, ERR_PAYLOAD]
    rows = errs.select([*identity, ERR_KIND, DIFF]).append_column("row", pa.array(range(len(errs)), pa.int64()))
    inserted = rows.filter(pc.and_(pc.equal(rows[ERR_KIND], MISSING_ORDER), pc.greater(rows[DIFF], 0)))
    back = inserted.join(resolved.group_by(identity).aggregate([]), identity, join_type="left semi")["row"]
    return errs.filter(pc.invert(pc.is_in(rows["row"], back.combine_chunks())))


def correct(
    client: PersistClient, plan: CorrectionPlan, correction: Correction, *, writer: str
) -> Committed | Conflict:
    """Append the plan's updates. A lost race is a `Conflict`: catch up in the fork, then plan again."""
    shard, fork = plan.began.shard, plan.fork
    newest = fork.newest_commit
    assert newest is not None
    with named_if_dropped(client.machine, plan.began):
        progress = progress_of(client.blob, fork.shard, fork.sources)
        return append_replacing(
            client,
            plan.began,
            plan.updates,
            plan.schema,
            upper=plan.upper,
            token=restore_token("reprocess", shard, plan.began.upper.time, newest.checkpoint_id),
            sources={name: each.copied_to(shard, era=plan.began.era) for name, each in progress.items()},
            operators=recover_newest(client, fork, verified_bytes=None).operators,
            restored=Restored(fork.shard, newest.checkpoint_id, fork.upper.time, correction),
            writer=writer,
        )
