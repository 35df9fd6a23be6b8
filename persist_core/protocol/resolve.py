"""`persist resolve`: remove errs `missing_order` that a user has looked at, in a commit of its own.

    errs alive --at the positions named--> retractions at [upper, upper + 1) --append--> Committed | Conflict

Such an err stands in a slot of its own, so no record can remove it (docs/semantics.md, section 4). Everything else
stays as it is: rows, orders, source progress and operator state.

The commit makes the time `upper` final. So a record that waits in the stash for that time has to be processed first.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

import pyarrow as pa
import pyarrow.compute as pc

from persist_core.checkpoint.checkpointer import state_rows
from persist_core.checkpoint.publish import publish_missing
from persist_core.checkpoint.recovery import recover_newest
from persist_core.contents.batch import STASH_OPERATOR
from persist_core.contents.operator_state import OperatorState, StateArtifact
from persist_core.contents.parts import errs_schema
from persist_core.errors import InvalidInput, RunFailed
from persist_core.handles.client import PersistClient
from persist_core.protocol.describe import describe_change, stash_frontier
from persist_core.protocol.restore_point import restore_token
from persist_core.protocol.stages import Conflict, append
from persist_core.schema import (
    DIFF,
    ERR_KIND,
    ERR_MESSAGE,
    ERR_PAYLOAD,
    ERR_POSITION,
    MISSING_ORDER,
    TIME,
    system_field,
)
from persist_core.shard.state import Committed, ShardState
from persist_core.time_text import MAX_TIME, show_time


@dataclass(frozen=True)
class Unordered:
    """A record without an order: its position as its source shows it, why it is an err, and its bytes."""

    position: str
    message: str
    payload: bytes


@dataclass(frozen=True)
class ResolvePlan:
    """The errs that a `resolve` removes. `state` is the shard's, which the commit follows."""

    state: ShardState
    records: tuple[Unordered, ...]
    errs: pa.Table


def plan_resolve(client: PersistClient, shard: str, *, at: str = "*") -> ResolvePlan:
    """The errs `missing_order` whose positions, as shown, are `at` or match it as a glob; writes nothing.

    There may be none. Raises `ShardNotFound`, and `InvalidInput` if the shard is closed.
    """
    state = client.state(shard)
    if state.upper.time is None or state.upper.time == MAX_TIME:
        raise InvalidInput(f"shard {shard} is closed (upper {state.upper}): it accepts no commits")
    if state.schema is None or state.schema.order is None:
        return ResolvePlan(state, (), pa.table({}))
    columns = errs_schema(state.schema)
    errs = client.open_reader(shard).errors(state.upper.time - 1)
    errs = errs.filter(pc.equal(errs[ERR_KIND], MISSING_ORDER))
    shown = errs.select([ERR_POSITION, ERR_MESSAGE, ERR_PAYLOAD]).to_pylist()
    records = [Unordered(row[ERR_POSITION] or "", row[ERR_MESSAGE], row[ERR_PAYLOAD]) for row in shown]
    chosen = [number for number, record in enumerate(records) if _is_at(record.position, at)]
    errs = errs.take(pa.array(chosen, pa.int64()))
    retracted = retractions(errs, columns, state.upper.time)
    return ResolvePlan(state, tuple(records[number] for number in chosen), retracted)


def _is_at(position: str, at: str) -> bool:
    return position == at or fnmatchcase(position, at)  # a path may have a `[`


def retractions(rows: pa.Table, columns: pa.Schema, time: int) -> pa.Table:
    """Retract these rows or errs at `time`."""
    given = {TIME: pa.repeat(time, len(rows)), DIFF: pa.repeat(-1, len(rows))}
    given |= {name: rows[name] for name in rows.column_names if name not in given}
    cells = [given.get(column.name, pa.nulls(len(rows), column.type)) for column in columns]
    return pa.table(cells, schema=columns)


def resolve(client: PersistClient, plan: ResolvePlan, *, writer: str) -> Committed | Conflict:
    """Commit the plan, which is not empty, and publish its checkpoint. `writer` names the caller, for users.

    A lost race is a `Conflict`, recorded like any other. Raises `RunFailed` if a record in the stash is due first, and
    `CorruptArtifact` if operator state is damaged. Trying again with a new plan is safe after any error.
    """
    state = plan.state
    assert state.schema is not None
    assert state.upper.time is not None
    chains = recover_newest(client, state).operators
    check_nothing_is_due(client, state, chains.get(STASH_OPERATOR, ()))
    token = restore_token("resolve", state.shard, state.upper.time, sorted(map(repr, plan.records)))
    description = describe_change(client, state, token, writer=writer, operators=chains)
    unchanged = {name: OperatorState(is_delta=True, artifacts=()) for name in chains}
    attempt = client.ids.uuid7()
    key = client.open_writer(state.shard).stage(description, state.schema, attempt, errs=plan.errs, operators=unchanged)
    result = append(client, description, key)
    if isinstance(result, Committed):
        publish_missing(client, client.state(state.shard))
    return result


def check_nothing_is_due(client: PersistClient, state: ShardState, chain: tuple[StateArtifact, ...]) -> None:
    """A later batch takes records before its lower for processed, so none may wait for the time of this commit."""
    upper = state.upper.time or 0
    restored_to = stash_frontier(client, state)
    first = upper if restored_to is None else restored_to
    times_only = pa.schema([system_field(TIME)])
    for artifact in chain:
        for records in state_rows(client.blob, artifact, times_only, state.schemas, client.part_format):
            times = records[TIME]
            if pc.any(pc.and_(pc.greater_equal(times, first), pc.less_equal(times, upper))).as_py():
                raise RunFailed(
                    f"records in the stash of shard {state.shard} are due at {show_time(upper)}, and are not processed"
                    " yet. Nothing was committed: run the collection once, then this command again"
                )
