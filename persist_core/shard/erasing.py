"""The transition of an erasure: another list of erasures, and manifests without the erased keys in place of others.

erased: list 3                      erased: list 4
batches  b1 b2 b3          ->       batches  b1 b2' b3       only what names manifests changes:
commits  c1 .. c9                   commits  c1 .. c8' c9    no frontier, bound, token or progress
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from persist_core.contents.batch import BatchManifest
from persist_core.shard.eras import refuse_earlier
from persist_core.shard.state import ShardState

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
) -> tuple[ShardState, bool]:
    """Name the list `erased` iff the state names `expected`, and replace manifests. False: nothing was changed.

    `era`: the shard's before the new manifests were staged. `refuses`: batches described before are refused.
    """
    if state.erased == erased:
        return state, True
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
    after = replace(state, batches=batches, commits=commits, erased=erased)
    return (refuse_earlier(after)[0] if refuses else after), True


def is_erasure(before: ShardState, after: ShardState) -> bool:
    """True if this step of a shard that has commits names another list."""
    return before.erased != after.erased and bool(before.commits)
