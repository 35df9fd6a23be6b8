"""The description of the next batch, from the shard's state and what a source has frozen."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from persist_core.checkpoint.recovery import RecoveredState
from persist_core.config.shard import ShardConfig
from persist_core.contents.batch import BatchDescription, SourceFrontier
from persist_core.contents.operator_state import StateArtifact
from persist_core.handles.client import PersistClient
from persist_core.ids import uuid7_of
from persist_core.shard.state import ShardState
from persist_core.sources.collection import in_time_from
from persist_core.sources.source import Intake
from persist_core.time_text import MAX_TIME


def dry_run_description(client: PersistClient, config: ShardConfig, as_of: int) -> BatchDescription:
    """The description for a dry run at `as_of`: it compares with all that the shard holds. Mints and stages nothing."""
    state = client.machine.fetch(config.name) or ShardState(config.name)
    lower = MAX_TIME if state.upper.time is None else state.upper.time
    return BatchDescription(
        shard=config.name,
        lower=lower,
        upper=None if state.upper.is_closed else max(lower, as_of) + 1,
        token="dry_run",
        checkpoint_id=client.ids.uuid7(),
        epoch=0,
        parent_id=None,
        writer="dry_run",
    )


def describe_change(
    client: PersistClient,
    state: ShardState,
    token: str,
    *,
    writer: str,
    upper: int | None = None,
    sources: Mapping[str, SourceFrontier] | None = None,
    operators: Mapping[str, tuple[StateArtifact, ...]] | None = None,
) -> BatchDescription:
    """Describe a change that takes in no input, from the state's upper to `upper`, by default one millisecond later.
    `sources`: the progress after it, by default the state's. Raises `ShardMoved`."""
    state.origin.check_not_moved(state.shard)
    lower, parent, begun = state.upper.time, state.newest_commit, in_time_from(client, state)
    assert lower is not None
    return BatchDescription(
        shard=state.shard,
        lower=lower,
        upper=lower + 1 if upper is None else upper,
        token=token,
        checkpoint_id=uuid7_of(lower, token),
        epoch=(parent.epoch if parent else 0) + 1,
        parent_id=parent.checkpoint_id if parent else None,
        writer=writer,
        sources=state.sources if sources is None else sources,
        operators=operators or {},
        era=state.era,
        is_change=True,
        in_time_from=lower if begun is None else begun,
    )


def describe(
    client: PersistClient,
    config: ShardConfig,
    state: ShardState,
    lower: int,
    intake: Intake,
    writer: str,
    recovered: RecoveredState,
) -> BatchDescription:
    """The description of `[lower, intake.upper)`; `recovered` is the operator state that it starts from."""
    operators = recovered.operators
    parent = state.newest_commit
    epoch = parent.epoch + 1 if parent else 1
    identity = json.dumps([config.name, lower, intake.upper, intake.input_key, writer, state.era])
    token = hashlib.sha256(identity.encode()).hexdigest()
    return BatchDescription(
        shard=config.name,
        lower=lower,
        upper=intake.upper,
        token=token,
        checkpoint_id=uuid7_of(lower, token),
        epoch=epoch,
        parent_id=parent.checkpoint_id if parent else None,
        writer=writer,
        input_key=intake.input_key,
        input_files=intake.input_files,
        input_bytes=intake.input_bytes,
        sources=intake.sources,
        operators=operators,
        saves_deltas=bool(operators) and epoch % config.retention.snapshot_every != 0,
        stash_frontier=stash_frontier(client, state) if operators else None,
        stash_rows=recovered.stash_rows,
        era=state.era,
        in_time_from=in_time_from(client, state),
    )


def stash_frontier(client: PersistClient, state: ShardState) -> int | None:
    """The effect of a restore on the stash that it brought back: see `BatchDescription.stash_frontier`."""
    parent = state.newest_commit
    if parent is None or parent.restored_from is None:
        return None
    restored = client.manifest(parent).restored
    return restored.watermark if restored else None
