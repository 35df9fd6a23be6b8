"""The facts that alerts need, of many shards, and the open alerts with their values of now.

    Inspector -> upper, errors, stash, warnings     (from the state, and manifests of the newest run: most often one)
    listing of conflict records -> how many are new: only records that were stored in the last day are read

200 shards cost 200 heads, 200 listings and the manifests of their newest runs, side by side. A fork, and a shard with
errors, cost one more manifest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from persist_core.alerts.board import WatchBoard
from persist_core.alerts.conditions import CONFLICTS_MS, Health, values_of
from persist_core.alerts.facts import URGENCIES, AlertFacts, facts_of
from persist_core.config.collection import FILES
from persist_core.config.thresholds import ERRORS, FILE, FSCK, WARNINGS
from persist_core.contents.err_groups import lines_of
from persist_core.errors import Corruption, ShardNotFound, StorageError
from persist_core.handles.client import PersistClient
from persist_core.handles.side_by_side import side_by_side
from persist_core.inspection.inspector import MAX_CONFLICTS, THREADS, Inspector
from persist_core.keys import conflicts_prefix
from persist_core.protocol.conflicts import ConflictRecord
from persist_core.shard.state import ShardState
from persist_core.sources.files import SET_ASIDE

MAX_UNREAD = 3  # shards for which the store fails; if it fails for more of them, it fails for all


def healths(
    inspector: Inspector, shards: Iterable[str], unread: dict[str, StorageError] | None = None
) -> dict[str, Health]:
    """The facts of each shard. One that does not exist has no commit, one that was dropped or moved is left out.

    So is one for which the store fails; `unread` says why. Raises `StorageError` without `unread`, or if the store
    fails for more than `MAX_UNREAD`; damage is a finding.
    """
    failed = {} if unread is None else unread
    failed.clear()  # of an earlier look

    def look(shard: str) -> Health | None:
        try:
            return _health(inspector, shard)
        except StorageError as error:
            failed[shard] = error
            if unread is None or len(failed) > MAX_UNREAD:
                raise
            return None

    found = side_by_side(look, sorted(set(shards)), threads=THREADS)
    return {health.shard: health for health in found if health is not None}


def open_alerts(inspector: Inspector, shard: str | None = None) -> list[AlertFacts]:
    """The open alerts of a shard or of all, the most urgent first, with their values of now; files are not read.
    Of a shard for which the store fails, with the value that was stored.

    Raises `CorruptArtifact` if their record is damaged.
    """
    client = inspector.client
    record = WatchBoard(client).read()
    watches = {name: watch for name, watch in record.shards.items() if watch.alerts and shard in (None, name)}
    known, now_ms = healths(inspector, watches, {}), client.clock.now_ms()
    found = []
    for name, watch in watches.items():
        values = values_of(known[name], watch, now_ms) if name in known else {}
        for condition in watch.alerts:
            facts, value = facts_of(record, name, condition), None if condition == FILE else values.get(condition)
            found.append(facts if value is None else replace(facts, value=value))
    return sorted(found, key=lambda each: (URGENCIES.index(each.urgency), each.since_ms, each.shard, each.alert))


def _health(inspector: Inspector, shard: str) -> Health | None:
    try:
        found = inspector.contents(shard, checked=0)
    except ShardNotFound:
        return Health(shard)
    except Corruption as error:
        return Health(shard, is_readable=False, findings=1, notes={FSCK: str(error)})
    if found.is_dropped or found.moved_to is not None:
        return None
    notes = {FSCK: found.error} if found.error else {}
    if found.errors:
        notes |= _note(inspector.client, inspector.state(shard))
    if found.warnings:
        notes[WARNINGS] = ", ".join(each.counted for each in inspector.warnings(shard) if each.count)
    newest = found.newest_commit
    return Health(
        shard,
        upper=found.upper,
        has_commit=newest is not None,
        has_stash=found.stash != 0,
        errors=found.errors,
        warnings=found.warnings,
        conflicts=_recent_conflicts(inspector.client, shard),
        findings=1 if found.error else 0,
        committed_ms=newest.committed_ms if newest else None,
        writer=newest.writer if newest else None,
        notes=notes or None,
    )


def _note(client: PersistClient, state: ShardState) -> dict[str, str]:
    """Which files are set aside, else the most frequent error of the newest batch that has some."""
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


def _recent_conflicts(client: PersistClient, shard: str) -> int:
    """Conflicts of the last day. An older one may have been stored again since: by a move, or from a backup."""
    oldest = client.clock.now_ms() - CONFLICTS_MS
    entries = client.blob.list_keys_and_metadata(conflicts_prefix(shard))
    keys = [entry.key for entry in entries if entry.modified_ms >= oldest]
    if len(keys) > MAX_CONFLICTS:
        return len(keys)
    return sum(side_by_side(lambda key: _is_since(client, key, oldest), keys, threads=client.fetch_threads))


def _is_since(client: PersistClient, key: str, oldest: int) -> bool:
    data = client.blob.get(key)
    if data is None:
        return False
    try:
        return ConflictRecord.read(data, key).detected_ms >= oldest
    except Corruption:
        return True  # `persist fsck` names it
