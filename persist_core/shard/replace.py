"""The transition of compaction: a run takes the place of the batches that it was merged from.

    batches   b1 b2 b3 b4 b5          b1 [ run ] b5         the inputs are there, side by side: applied
                 └inputs┘       ->
              b1 [ run ] b5           b1 [ run ] b5         already done, by an earlier try
              b1 [other run ] b5      unchanged             `NotReplaced`: another merge was faster

An append adds at the other end of the list, so an append and a merge never make each other fail: whichever comes second
is applied to the state that the first has left.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from persist_core.contents.batch import BatchManifest, HollowBatch
from persist_core.errors import InvalidInput
from persist_core.frontier import Frontier
from persist_core.shard.state import ShardState
from persist_core.time_text import show_time

_GONE = "another merge has replaced some of its inputs"


@dataclass(frozen=True)
class Replaced:
    """The run is in the shard. `is_new` is False if an earlier try put it there."""

    batch: HollowBatch
    is_new: bool


@dataclass(frozen=True)
class NotReplaced:
    """Nothing was changed, and the run's files are garbage: its inputs are not side by side in the shard any more, or
    the merge took so long that GC may have deleted its files."""

    reason: str


def replace_batches(
    state: ShardState, manifest: BatchManifest, manifest_key: str
) -> tuple[ShardState, Replaced | NotReplaced]:
    """Put the run `manifest` in the place of its inputs iff they are still there, side by side, with the same bounds.

    Changes no frontier, commit, source or operator state. Raises `InvalidInput` if the manifest is not a run of this
    shard, or if it gave up times that the shard still has.
    """
    run = manifest.run
    if run is None or manifest.shard != state.shard:
        raise InvalidInput(
            f"manifest {manifest_key} of shard {manifest.shard} is {'a run' if run else 'not a run'}; expected a run of"
            f" shard {state.shard}"
        )
    placed = manifest.hollow(manifest_key)
    if placed in state.batches:
        return state, Replaced(placed, is_new=False)
    if manifest.era < state.oldest_era:
        return state, NotReplaced(f"it began in era {manifest.era}; GC may have deleted its files")
    if state.origin.moved_to is not None:
        return state, NotReplaced(f"the shard was moved to {state.origin.moved_to}")
    digests = [batch.manifest_sha256 for batch in state.batches]
    count = len(run.inputs)
    first = next((i for i in range(len(digests) - count + 1) if tuple(digests[i : i + count]) == run.inputs), None)
    if first is None:
        return state, NotReplaced(_GONE)
    inputs = state.batches[first : first + count]
    if (inputs[0].lower, inputs[-1].upper) != (manifest.lower, manifest.upper):
        return state, NotReplaced(_GONE)
    if Frontier(run.since) > state.since:
        raise InvalidInput(
            f"run {manifest_key} gave up times before {show_time(run.since)}; shard {state.shard} can be read from"
            f" since {state.since} on"
        )
    batches = (*state.batches[:first], placed, *state.batches[first + count :])
    return replace(state, batches=batches), Replaced(placed, is_new=True)
