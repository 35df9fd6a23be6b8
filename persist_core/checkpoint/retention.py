"""Which checkpoints to keep: a plan, computed by a pure function.

It keeps the last N and the newest of each of the last D days and W weeks (UTC) that have one, as far as the shard's
history reaches: a restore needs that history. It also keeps the latest, checkpoints that a user has
pinned, and every ancestor that a delta chain of a kept one needs, for any operator.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from persist_core.checkpoint.manifest import CheckpointManifest, walk
from persist_core.config.shard import RetentionConfig
from persist_core.contents.batch import last_time
from persist_core.errors import CorruptArtifact
from persist_core.frontier import ZERO, Frontier
from persist_core.time_text import DAY_MS

_MONDAY_OFFSET_DAYS = 3  # the Unix epoch was a Thursday; weeks begin on Monday


def plan_retention(
    manifests: Sequence[CheckpointManifest],
    retention: RetentionConfig,
    *,
    latest_id: str | None,
    pinned: Collection[str],
    history_start: Frontier = ZERO,
) -> list[str]:
    """Ids to delete, newest first, so that a chain never loses its start. `manifests` in any order.

    `history_start`: the earliest time that the shard's history keeps. A restore to a checkpoint reads the changes from
    the last time before its upper on.
    """
    ordered = sorted(manifests, key=lambda manifest: manifest.position)
    by_id = {manifest.checkpoint_id: manifest for manifest in ordered}
    restorable = [manifest for manifest in ordered if history_start <= Frontier(last_time(manifest.upper))]
    kept = {manifest.checkpoint_id for manifest in restorable[-retention.keep_last :]}
    kept |= _newest_of_each(restorable, retention.keep_daily, _day)
    kept |= _newest_of_each(restorable, retention.keep_weekly, lambda each: (_day(each) + _MONDAY_OFFSET_DAYS) // 7)
    kept |= set(pinned) & by_id.keys()
    if latest_id in by_id:
        kept.add(latest_id)
    for checkpoint_id in list(kept):
        kept |= _ancestors(ordered, by_id, checkpoint_id)
    return [manifest.checkpoint_id for manifest in reversed(ordered) if manifest.checkpoint_id not in kept]


def _day(manifest: CheckpointManifest) -> int:
    return manifest.timestamp_ms // DAY_MS


def _newest_of_each(
    ordered: Sequence[CheckpointManifest], periods: int, period: Callable[[CheckpointManifest], int]
) -> set[str]:
    newest = {period(manifest): manifest.checkpoint_id for manifest in ordered}
    return {newest[key] for key in sorted(newest, reverse=True)[:periods]}


def _ancestors(
    ordered: Sequence[CheckpointManifest], by_id: Mapping[str, CheckpointManifest], checkpoint_id: str
) -> set[str]:
    """The checkpoints that the delta chains of a checkpoint need: parents up to each operator's full snapshot.

    If the chain cannot be followed to its end (a manifest that cannot be read), every older checkpoint may be needed.
    """
    try:
        return {manifest.checkpoint_id for manifest, _ in walk(by_id[checkpoint_id], by_id.__getitem__)}
    except (KeyError, CorruptArtifact):
        position = by_id[checkpoint_id].position
        return {manifest.checkpoint_id for manifest in ordered if manifest.position < position}
