"""The transition of a swap: a shard goes on with the history of another shard, its new generation.

    NAME      batches of the old definition, up to u  ──swap──>  batches of NAME~rebuild, and one empty [u, u + 1)
    NAME~g7   a fork of the old state, made before

1. One compare-and-set, at the shard's upper: before it readers see only the old generation, after it only the new one.
2. Since, leases, holds and the length of the history stay. The upper moves, so `u` is the first time of the generation:
   what a consumer knows about earlier times may be different now (`GenerationChanged`).
3. It is a new life (`shard.origin`): no checkpoint, replay or merge of the old one can be applied to it. Its one commit
   stands for all that it holds, as in a fork.
"""

from __future__ import annotations

from dataclasses import replace

from persist_core.contents.batch import BatchManifest, HollowBatch
from persist_core.contents.schema_versions import SchemaVersions
from persist_core.errors import InvalidInput
from persist_core.frontier import Frontier
from persist_core.shard.history import PIN
from persist_core.shard.origin import Swap
from persist_core.shard.state import Committed, ShardState, UpperMismatch, commit_of, upper_mismatch


def swap_in(
    state: ShardState,
    manifest: BatchManifest,
    manifest_key: str,
    *,
    batches: tuple[HollowBatch, ...],
    schemas: SchemaVersions,
    swap: Swap,
) -> tuple[ShardState, Committed | UpperMismatch]:
    """Replace everything that the shard holds by `batches`, which end at its upper, and the empty batch `manifest`.

    Idempotent by token. `UpperMismatch` if another writer has advanced the shard, or the manifest's era is refused.
    Raises as `check_not_pinned`.
    """
    for commit in state.commits:
        if commit.token == manifest.token:
            return state, Committed(commit, is_new=False)
    if state.upper != Frontier(manifest.lower) or manifest.era < state.oldest_era:
        return state, upper_mismatch(state, manifest)
    check_not_pinned(state)
    after = replace(
        state,
        upper=Frontier(manifest.upper),
        schemas=schemas.in_fork(state.seqno + 1, manifest.upper),
        batches=(*batches, manifest.hollow(manifest_key)),
        sources=manifest.sources,
        operators=manifest.operators_after(),
        origin=state.origin.swapped(state.shard, manifest_key, manifest.epoch, swap),
    )
    commit = commit_of(after, manifest, manifest_key, swap.swapped_ms)
    return replace(after, commits=(commit,)), Committed(commit, is_new=True)


def check_not_pinned(state: ShardState) -> None:
    """Raise `InvalidInput` if checkpoints of the shard are pinned: a swap would lose them."""
    pinned = sorted(holder.removeprefix(PIN) for holder in state.holds if holder.startswith(PIN))
    if pinned:
        raise InvalidInput(
            f"checkpoints of {state.shard} are pinned: {', '.join(pinned)}. They belong to the present generation. Fork"
            " them (`persist restore --to CHECKPOINT --as NEW_SHARD`) if they are to stay, then `persist unpin` them."
            f" Nothing of {state.shard} was changed"
        )
