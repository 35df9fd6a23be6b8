"""Facts about many shards for a watcher and a page: from their states, and a listing of conflicts for each.

    head -> state -> upper, errors, stash       (of a view also one manifest, which counts its errors)
    listing of conflict records -> how many are new: their bytes are not read
    the location's record of alerts -> the last fsck

200 shards cost 200 heads and 200 listings, side by side.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from persist_core.alerts.board import WatchBoard
from persist_core.alerts.conditions import CONFLICTS_MS, Health
from persist_core.alerts.facts import AlertFacts, alerts_at
from persist_core.alerts.record import LastCheck, WatchRecord
from persist_core.config.collection import FILES
from persist_core.config.thresholds import ERRORS, FSCK
from persist_core.contents.batch import BatchManifest
from persist_core.contents.err_groups import lines_of
from persist_core.errors import Corruption, ShardNotFound
from persist_core.handles.client import PersistClient
from persist_core.handles.side_by_side import side_by_side
from persist_core.inspection.summaries import needs_counts, summary_of
from persist_core.keys import conflicts_prefix
from persist_core.shard.state import ShardState
from persist_core.sources.files import SET_ASIDE

THREADS = 16  # stores are read side by side: the time is their latency
MAX_SEALS = 8  # commits that are looked through for the newest one that counted


def healths(client: PersistClient, shards: Iterable[str], *, threads: int = THREADS) -> dict[str, Health]:
    """The facts of each shard. One that does not exist has no commit, one that was dropped or moved is left out.

    Raises `StorageError`; damage is a finding.
    """
    checks = {name: watch.check for name, watch in _record(client).shards.items()}
    names = sorted(set(shards))
    found = side_by_side(lambda shard: _health(client, shard, checks.get(shard)), names, threads=threads)
    return {health.shard: health for health in found if health is not None}


def open_alerts(client: PersistClient, shard: str | None = None) -> list[AlertFacts]:
    """The open alerts of a shard or of all, the most urgent first, with their values of now.

    Raises `CorruptArtifact` if their record is damaged.
    """
    record = WatchBoard(client).read()
    names = [name for name, watch in record.shards.items() if watch.alerts and shard in (None, name)]
    return alerts_at(record, healths(client, names), client.clock.now_ms(), shard)


def _record(client: PersistClient) -> WatchRecord:
    try:
        return WatchBoard(client).read()
    except Corruption:
        return WatchRecord()  # the turn that asks for these facts replaces it


@dataclass(frozen=True)
class _Found:
    """Findings: how many are known, and the first."""

    count: int | None
    first: str


def _health(client: PersistClient, shard: str, check: LastCheck | None) -> Health | None:
    known = _Found(check.findings, check.finding) if check else _Found(None, "")
    try:
        state = client.state(shard)
    except ShardNotFound:
        return Health(shard, findings=known.count)
    except Corruption as error:
        return _with(Health(shard, is_readable=False), _Found(max(1, known.count or 0), str(error)))
    if state.is_dropped or state.origin.moved_to is not None:
        return None
    errors, damage = _errors(client, state)
    if damage:
        known = _Found(max(1, known.count or 0), damage)
    newest = state.newest_commit
    health = Health(
        shard,
        upper=state.upper.time,
        has_commit=newest is not None,
        has_stash=summary_of(state, None).stash != 0,
        errors=errors,
        conflicts=_recent_conflicts(client, shard),
        committed_ms=newest.committed_ms if newest else None,
        writer=newest.writer if newest else None,
        notes=_note(client, state) if errors else None,
    )
    return _with(health, known)


def _with(health: Health, found: _Found) -> Health:
    notes = {**(health.notes or {}), **({FSCK: found.first} if found.first else {})}
    return replace(health, findings=found.count, notes=notes or None)


def _note(client: PersistClient, state: ShardState) -> dict[str, str]:
    """The note of the errors alive: which files are set aside, else the most frequent error of the newest batch that
    has some."""
    progress = state.sources.get(FILES)
    names = progress.offsets.get(SET_ASIDE, []) if progress else []
    if names:
        return {ERRORS: f"file {names[0]!r} could not be read; {len(names)} such files"}
    newest = [batch for batch in state.batches if batch.counts.err_insertions][-1:]
    try:
        groups = [group for manifest in client.manifests(newest) for group in manifest.err_groups]
    except Corruption:
        return {}  # found by others, who name it
    return {ERRORS: f"the most frequent: {lines_of(groups[:1], has_payloads=False)[0]}"} if groups else {}


def _errors(client: PersistClient, state: ShardState) -> tuple[int | None, str]:
    """The errors alive, `None` if no manifest counts them; and what is damaged."""
    counted: BatchManifest | None = None
    if needs_counts(state) == "rows":
        for commit in reversed(state.commits[-MAX_SEALS:]):
            try:
                manifest = client.manifest(commit)
            except Corruption as error:
                return None, str(error)
            if "rows" in manifest.stats:
                counted = manifest
                break
    return summary_of(state, counted).errors, ""


def _recent_conflicts(client: PersistClient, shard: str) -> int:
    """Records that were stored in the last day, by the store's clock."""
    oldest = client.clock.now_ms() - CONFLICTS_MS
    entries = client.blob.list_keys_and_metadata(conflicts_prefix(shard))
    return sum(entry.modified_ms >= oldest for entry in entries)
