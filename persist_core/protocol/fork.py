"""`persist restore --as`: a new shard that starts at a checkpoint of another one and shares its parts.

    RestorePoint ──> operator state, copied to the new shard        ┐
                 ──> records of what is shared (`fork_records`)     ├─> one compare-and-set makes the new shard
                 ──> a manifest without parts: the one commit       ┘

A fork reads no data, so its cost does not depend on the size of the shard, and it works if later parts are damaged. The
new shard has the upper and the progress of the checkpoint: it consumes again, at the correct times, all input since.
After that the two shards share only parts, which neither of them changes.
"""

from __future__ import annotations

from dataclasses import replace

from persist_core.checkpoint.publish import publish_missing
from persist_core.contents.batch import BatchCounts, BatchDescription, BatchManifest
from persist_core.contents.derived import Restored
from persist_core.errors import InvalidInput, RunFailed
from persist_core.frontier import ZERO
from persist_core.handles.client import PersistClient
from persist_core.handles.erased import copy_erased
from persist_core.handles.overtaken import named_if_dropped
from persist_core.handles.read import schema_of
from persist_core.handles.write import manifest_for, stage_manifest
from persist_core.ids import uuid7_of
from persist_core.keys import check_key_name, is_shard_name
from persist_core.protocol.fork_records import record_fork
from persist_core.protocol.restore_point import (
    RestorePoint,
    beginning_of,
    check_not_erased,
    copy_operators,
    point_of,
    restore_token,
)
from persist_core.shard import state as transitions
from persist_core.shard.state import Committed, ShardState
from persist_core.sources.registry import progress_of


def fork(client: PersistClient, shard: str, checkpoint_id: str | None, new_shard: str, *, writer: str) -> Committed:
    """Create `new_shard` from the shard's checkpoint, or from its beginning (`None`).

    Idempotent: a second call returns the first result.

    Raises what `point_of` does; `InvalidInput` if `new_shard` already holds data; `RunFailed` if the batches were
    merged or the shard was dropped in the meantime. Then nothing has changed for readers.
    """
    check_key_name(new_shard)
    if new_shard == shard:
        raise InvalidInput(f"a fork of {shard} needs another name; to restore the shard itself, leave out --as")
    state = client.state(shard)
    with named_if_dropped(client.machine, state):
        return _forked(client, state, checkpoint_id, new_shard, writer)


def fork_token(shard: str, checkpoint_id: str | None, new_shard: str) -> str:
    return restore_token("fork", shard, checkpoint_id, new_shard)


def _forked(
    client: PersistClient, state: ShardState, checkpoint_id: str | None, new_shard: str, writer: str
) -> Committed:
    shard = state.shard
    point = beginning_of(shard) if checkpoint_id is None else point_of(client, state, checkpoint_id)
    since = state.since if point.batches else ZERO  # the shard's own may move on before the fork is made
    token = fork_token(shard, checkpoint_id, new_shard)
    known = client.machine.fetch(new_shard) or ShardState(new_shard)
    if (commit := known.commit_with(token)) is not None:
        publish_missing(client, known)  # of a call that was killed after its commit
        return Committed(commit, is_new=False)
    transitions.check_can_be_fork(known, since)
    known = client.ensure_shard(new_shard)  # so that GC can refuse a fork that it has given up
    if is_shard_name(new_shard):
        check_not_erased(client, state, point)
    rows = restore_token(*(batch.manifest_key for batch in point.batches))
    description = _described(point, new_shard, token, writer, known.era)
    manifest, key = stage_shared(client, state, point, description, rows)
    erased = copy_erased(client, state, new_shard)
    _, result = client.machine.apply(
        new_shard,
        lambda found: transitions.start_fork(
            found if found.commits else replace(found, erased=erased or found.erased),
            manifest,
            key,
            batches=point.batches or (manifest.hollow(key),),
            since=since,
            schemas=state.schemas,
            now_ms=client.clock.now_ms(),
        ),
        create=True,
    )
    publish_missing(client, client.state(new_shard))
    return result


def stage_shared(
    client: PersistClient, began: ShardState, point: RestorePoint, description: BatchDescription, rows: str
) -> tuple[BatchManifest, str]:
    """Stage a commit without parts that stands for a point of the shard whose state was `began`, and share it.

    `rows` binds its contents. Raises as `_share`.
    """
    attempt, shard = client.ids.uuid7(), description.shard
    manifest = replace(
        manifest_for(description, schema_of(began), (), BatchCounts(), rows=rows),
        operators=copy_operators(client, point.operators, shard, attempt),
        restored=Restored(began.shard, point.checkpoint.checkpoint_id, point.checkpoint.watermark),
    )
    _share(client, began, point, shard)
    return manifest, stage_manifest(client.blob, manifest, attempt)


def _share(client: PersistClient, began: ShardState, point: RestorePoint, new_shard: str) -> None:
    """Record what `new_shard` is to share with the shard whose state was `began`, then look at it again: see
    `fork_records`.

    Raises `RunFailed` if the shard no longer has all of it.
    """
    shard, names = began.shard, [batch.manifest_key for batch in point.batches]
    shared = [progress.needed_keys() for progress in progress_of(client.blob, shard, point.sources).values()]
    record_fork(
        client.blob,
        new_shard,
        [*names, *(key for keys in shared for key in sorted(keys))],
        checkpoint_id=point.checkpoint.checkpoint_id,
        made_ms=client.clock.now_ms(),
        eras=lambda owner: (client.machine.fetch(owner) or ShardState(owner)).era,  # a fork may be copied alone
    )
    state = client.state(shard)
    if not set(names) <= {batch.manifest_key for batch in state.batches}:
        raise RunFailed(f"batches of shard {shard} were merged in the meantime; {new_shard} was not made. Try again")
    if state.oldest_era > began.era:
        raise RunFailed(f"{new_shard} was not made: GC of {shard} may have deleted files that it needs. Try again")


def _described(point: RestorePoint, new_shard: str, token: str, writer: str, era: int) -> BatchDescription:
    lower = point.batches[0].lower if point.batches else 0
    return BatchDescription(
        shard=new_shard,
        lower=lower,
        upper=point.upper,
        token=token,
        checkpoint_id=uuid7_of(lower, f"{token} {era}"),  # the name may have been another fork's
        epoch=point.checkpoint.epoch,
        parent_id=None,
        writer=writer,
        sources=point.sources,
        era=era,
        is_change=True,
        in_time_from=point.in_time_from,
    )
