"""`Newest`: what the newest manifests of a shard say: counts that its state lacks, warnings, and damage. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from persist_core.contents.batch import STASH_OPERATOR, BatchManifest
from persist_core.contents.stats import BatchWarning
from persist_core.errors import Corruption
from persist_core.shard.state import Commit, ShardState

MAX_LOOKED = 8  # commits: a run may make several, and seals count nothing


@dataclass(frozen=True)
class Newest:
    """`counted` has the count that `needs_counts` asks for, if any. `warnings` are from the newest run that counted
    something, `None` if it is not known. `damage` says which manifest can't be read."""

    counted: BatchManifest | None = None
    warnings: tuple[BatchWarning, ...] | None = ()
    damage: str | None = None


def newest_of(state: ShardState, manifest_of: Callable[[Commit], BatchManifest]) -> Newest:
    """Read manifests from the newest one back, most often one: all of the newest run, and the one that counts."""
    needed, found = needs_counts(state), Newest(warnings=None)
    writer: str | None = None
    for commit in reversed(state.commits[-MAX_LOOKED:]):
        is_counted = needed is None or found.counted is not None
        if is_counted and writer not in (None, commit.writer):
            break
        try:
            manifest = manifest_of(commit)
        except Corruption as error:
            return replace(found, warnings=None, damage=f"{error.kind}: {error}")
        if not is_counted and needed in manifest.stats:
            found = replace(found, counted=manifest)
        if manifest.stats and writer in (None, commit.writer):
            writer = commit.writer
            found = replace(found, warnings=_sum((*(found.warnings or ()), *manifest.warnings)))
    return found


def is_multiset(state: ShardState) -> bool:
    """True if the shard has no key, and so may hold a row many times."""
    return state.schema is not None and not state.schema.key


def needs_counts(state: ShardState) -> str | None:
    """The number in `BatchManifest.stats` that a summary needs and the state does not have, if any."""
    if is_multiset(state):
        return "rows"
    return "stashed" if STASH_OPERATOR in state.operators else None


def _sum(warnings: tuple[BatchWarning, ...]) -> tuple[BatchWarning, ...]:
    found: dict[str, BatchWarning] = {}
    for each in warnings:
        known = found.get(each.name, replace(each, count=0, samples=()))
        samples = (*known.samples, *each.samples)[:2]
        found[each.name] = replace(known, count=known.count + each.count, samples=samples)
    return tuple(found.values())
