"""The transitions in which other manifests take the place of a shard's own: compaction, and an erasure.

    batches   b1 b2 b3 b4 b5          b1 [ run ] b5         the inputs are there, side by side: applied
                 └inputs┘       ->
              b1 [ run ] b5           b1 [ run ] b5         already done, by an earlier try
              b1 [other run ] b5      unchanged             `NotReplaced`: another merge was faster

An append adds at the other end of the list, so an append and a merge never make each other fail: whichever comes second
is applied to the state that the first has left.

    erased: list 3                      erased: list 4
    batches  b1 b2 b3          ->       batches  b1 b2' b3       only what names manifests changes:
    commits  c1 .. c9                   commits  c1 .. c8' c9    no frontier, bound, token or progress
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from persist_core.contents.batch import BatchManifest, HollowBatch
from persist_core.errors import InvalidInput
from persist_core.frontier import Frontier
from persist_core.shard.eras import refuse_earlier
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


Replacements = Mapping[str, tuple[str, BatchManifest]]
"""New manifests with their keys, by the keys of the old ones."""


def erase(
    state: ShardState,
    erased: str,
    *,
    expected: str | None,
    replaced: Replacements | None = None,
    era: int | None = None,
    refuses: bool = False,
    is_unsaid: Callable[[str], bool] = lambda _: False,
) -> tuple[ShardState, bool]:
    """Name the list `erased` iff the state names `expected`, and replace manifests. False: nothing was changed.

    `era`: the shard's before the new manifests were staged. `refuses`: batches described before are refused.
    `is_unsaid`: of which reasons of ended holders nothing is kept.
    """
    if state.erased != expected or state.is_dropped or (era is not None and era < state.oldest_era):
        return state, False
    new = replaced or {}
    batches = tuple(
        each
        if each.manifest_key not in new
        else replace(new[each.manifest_key][1].hollow(new[each.manifest_key][0]), lower=each.lower, upper=each.upper)
        for each in state.batches
    )
    commits = tuple(
        each
        if each.manifest_key not in new
        else replace(each, manifest_key=new[each.manifest_key][0], manifest_sha256=new[each.manifest_key][1].sha256)
        for each in state.commits
    )
    released = tuple(replace(each, reason="") if is_unsaid(each.reason) else each for each in state.released)
    after = replace(state, batches=batches, commits=commits, erased=erased, released=released)
    return (refuse_earlier(after)[0] if refuses else after), True


def is_erasure(before: ShardState, after: ShardState) -> bool:
    """True if this step of a shard that has commits names another list."""
    return before.erased != after.erased and bool(before.commits)
