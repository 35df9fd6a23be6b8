"""Swap a rebuilt shard in: `NAME` goes on with the history of a hidden shard that was built beside it.

    NAME, as it is ──fork──> NAME~g<epoch>           kept, to be swapped back
    NAME~rebuild ──RestorePoint──> operator state, copied to NAME    ┐
                 ──> records of what is shared (`fork_records`)      ├─> one compare-and-set: `shard.receive`
                 ──> a manifest without parts: the one commit        ┘

So a swap is a fork into a name that holds data. It reads no data and shares all parts: its cost does not depend on the
size of the shard. The old generation is forked under the epoch of its newest commit. If a run commits in between, the
swap is refused, and that fork can never become a kept generation: it is deleted.
"""

from __future__ import annotations

from dataclasses import replace

from persist_core.checkpoint.publish import publish_missing
from persist_core.errors import InvalidInput
from persist_core.handles.client import PersistClient
from persist_core.handles.overtaken import named_if_dropped
from persist_core.keys import hidden_shard
from persist_core.protocol.describe import describe_change
from persist_core.protocol.fork import fork, stage_shared
from persist_core.protocol.restore_point import point_of, restore_token
from persist_core.shard.origin import Swap
from persist_core.shard.receive import check_not_pinned, swap_in
from persist_core.shard.state import Committed, ShardState, UpperMismatch
from persist_core.time_text import show_interval


def kept_name(state: ShardState) -> str:
    """The name under which the shard's contents are kept if they are swapped out now."""
    newest = state.newest_commit
    return hidden_shard(state.shard, f"g{newest.epoch if newest else 0}")


def swap(
    client: PersistClient,
    ours: ShardState,
    theirs: ShardState,
    *,
    keep_ms: int | None,
    writer: str,
    definition: str = "",
) -> Committed | UpperMismatch:
    """Swap in `theirs`, which has reached the upper of `ours`. What the shard holds is kept for `keep_ms`; `None`:
    without limit. `definition` is known by its `swap_token` later.

    Idempotent. A lost race is an `UpperMismatch`: catch up, and try again. Raises what `point_of` and `fork` do, and
    `InvalidInput` if checkpoints of the shard are pinned.
    """
    check_not_pinned(ours)  # now, and again with the swap
    with named_if_dropped(client.machine, ours), named_if_dropped(client.machine, theirs):
        for state in (ours, theirs):
            publish_missing(client, state)
        old, new = ours.newest_commit, theirs.newest_commit
        assert old is not None
        assert new is not None
        fork(client, ours.shard, old.checkpoint_id, kept_name(ours), writer=writer)
        return _swapped(client, ours, theirs, keep_ms, writer, definition)


def swap_token(shard: str, lower: int, built: str, checkpoint_id: str, definition: str) -> str:
    """The token of the commit that swaps in this checkpoint of the shard `built`, built by this definition."""
    return restore_token("swap", shard, lower, built, checkpoint_id, definition)


def _swapped(
    client: PersistClient, ours: ShardState, theirs: ShardState, keep_ms: int | None, writer: str, definition: str
) -> Committed | UpperMismatch:
    new, now_ms = theirs.newest_commit, client.clock.now_ms()
    lower = ours.upper.time
    assert new is not None
    assert lower is not None
    point = point_of(client, theirs, new.checkpoint_id)
    if point.upper != lower or theirs.since > ours.since:
        raise InvalidInput(
            f"{theirs.shard} can be read in {show_interval(theirs.since.time or 0, point.upper)}; expected all of"
            f" {show_interval(ours.since.time or 0, lower)}, as {ours.shard}"
        )
    token = swap_token(ours.shard, lower, theirs.shard, new.checkpoint_id, definition)
    description = describe_change(client, ours, token, writer=writer, sources=point.sources)
    description = replace(description, parent_id=None)  # the checkpoint before is of another generation
    manifest, key = stage_shared(client, theirs, point, description, token)
    swapped = Swap(lower, now_ms, kept_name(ours), None if keep_ms is None else now_ms + keep_ms)
    _, result = client.machine.apply(
        ours.shard,
        lambda state: swap_in(state, manifest, key, batches=point.batches, schemas=theirs.schemas, swap=swapped),
    )
    return result
