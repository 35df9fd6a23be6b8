"""Facts about a shard from its state, and from its newest manifests. Pure.

Rows and errors need no reading: the state counts insertions and retractions of each batch, and of a keyed shard their
difference is what is there. A multiset may hold a row many times in one stored row, so there (views) the counts are
as the newest refresh left them in its manifest.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from persist_core.compaction.due import due_merge_of
from persist_core.contents.batch import STASH_OPERATOR, BatchManifest, HollowBatch, SourceFrontier
from persist_core.contents.evolution import changes_between
from persist_core.contents.schema_versions import SchemaVersions
from persist_core.contents.stats import MAX_NAMES, BatchWarning
from persist_core.errors import Corruption
from persist_core.inspection.facts import BatchesPage, BatchFacts, CommitFacts, LastCommit, ShardSummary
from persist_core.keys import is_shard_name, owner_of
from persist_core.protocol.living import living
from persist_core.shard.state import Commit, ShardState
from persist_core.sources.registry import kind_of
from persist_core.sources.shards import Refreshed
from persist_core.time_text import DAY_MS

FUTURE_MS = 3_600_000  # an upper further ahead than this accepts nothing until then
MAX_LOOKED = 8  # commits whose manifests are read: a run may make several, and seals count nothing


def summary_of(state: ShardState, found: Newest, *, is_clipped: bool = False) -> ShardSummary:
    """A summary of the state, independent of the clock. `found` is what its newest manifests say.

    `is_clipped`: a fork shares a part of a run, and the state has the counts of the whole run.
    """
    newest = state.newest_commit
    held = [lease.since for lease in state.leases.values()] + [hold.since for hold in state.holds.values()]
    stats = found.counted.stats if found.counted else {}
    rows, errors = (None, None) if is_clipped else living(state.batches)
    if is_multiset(state):
        rows, errors = stats.get("rows"), stats.get("errs")
    refreshed = Refreshed.of(state.sources)
    return ShardSummary(
        shard=state.shard,
        kind="dropped" if state.is_dropped else kind_of(state.sources),
        forked_from=next((o for o in map(_owner, reversed(state.batches)) if o != state.shard), None),
        seqno=state.seqno,
        since=state.since.time,
        upper=state.upper.time,
        is_dropped=state.is_dropped,
        moved_to=state.origin.moved_to,
        rows=rows,
        errors=errors,
        stash=stats.get("stashed") if STASH_OPERATOR in state.operators else 0,
        warnings=None if found.warnings is None else sum(each.count for each in found.warnings),
        updates=sum(batch.counts.updates for batch in state.batches),
        batches=len(state.batches),
        size_bytes=sum(batch.size_bytes for batch in state.batches),
        commits=newest.epoch if newest else 0,
        newest_commit=_last(newest) if newest else None,
        due_merge=due_merge_of(state),
        holders=len(held),
        held_at=min((since.time for since in held if since.time is not None), default=None),
        inputs=tuple(sorted(refreshed.uppers)) if refreshed else (),
        error=found.damage,
    )


def at_time(summary: ShardSummary, *, now_ms: int, conflicts_7d: int | None) -> ShardSummary:
    """The summary with what depends on the time of looking: the lag, recent conflicts, and what needs attention."""
    upper = summary.upper
    words = (
        {"moved": True}
        if summary.moved_to
        else {
            "damaged": bool(summary.error),
            "errors": bool(summary.errors),
            "warnings": bool(summary.warnings),
            "conflicts": conflicts_7d != 0,
            "future_upper": upper is not None and upper > now_ms + FUTURE_MS,
        }
    )
    return replace(
        summary,
        lag_ms=lag(upper, now_ms),
        conflicts_7d=conflicts_7d,
        attention=tuple(word for word, holds in words.items() if holds),
    )


def lag(upper: int | None, now_ms: int) -> int | None:
    """The distance of a clock time behind `now_ms`; `None` for a closed upper and for counters."""
    return None if upper is None or upper < DAY_MS else max(0, now_ms - upper)


def _owner(batch: HollowBatch) -> str:
    return owner_of(batch.manifest_key)


def _last(commit: Commit) -> LastCommit:
    return LastCommit(**{each.name: getattr(commit, each.name) for each in fields(LastCommit)})


def shown_progress(sources: Mapping[str, SourceFrontier]) -> dict[str, dict[str, Any]]:
    """Each source's progress, with its type, and with lists as their length."""
    return {
        name: {
            "source_type": source.source_type,
            **{key: len(each) if isinstance(each, list | tuple) else each for key, each in source.offsets.items()},
        }
        for name, source in sources.items()
    }


def commit_facts(commit: Commit, manifest: BatchManifest | None, error: str | None = None) -> CommitFacts:
    """A commit, with the counts of its manifest."""
    known = CommitFacts(
        **vars(_last(commit)),
        seqno=commit.seqno,
        lag_ms=lag(commit.upper, commit.committed_ms),
        state_bytes=commit.state_bytes,
        error=error,
    )
    if manifest is None:
        return known
    stats, counts = manifest.stats, manifest.counts
    restored = manifest.restored
    correction = restored.correction if restored else None
    return replace(
        known,
        correction=asdict(correction) if correction else None,
        swapped_in=restored.shard if restored and not correction and not is_shard_name(restored.shard) else None,
        inserts=stats.get("inserts", stats.get("inserted", counts.insertions)),
        updates=stats.get("updates", 0) if "inserts" in stats else 0,
        deletes=stats.get("deletes", stats.get("retracted", counts.retractions)),
        errors=stats.get("errors", stats.get("errs_inserted", counts.err_insertions)),
        stash=stats.get("stashed"),
        size_bytes=manifest.size_bytes,
        parts=len(manifest.parts),
        stats=dict(stats),
    )


def schema_changes(schemas: SchemaVersions) -> dict[int, tuple[str, ...]]:
    """The changes of each evolution, in words, by the version of the state that it made. Forks and swaps make none."""
    pairs = itertools.pairwise(schemas.versions)
    return {new.seqno: tuple(changes_between(old.schema, new.schema)) for old, new in pairs if new.seqno != old.seqno}


def with_contents(facts: list[CommitFacts], deltas: list[BatchManifest | None], state: ShardState) -> list[CommitFacts]:
    """The commits with `rows` and `living_errors`. `state` is the one that the last of them made.

    A refresh of a view counts them itself. For a keyed shard they follow from its batches, commit by commit backwards,
    as far as manifests can be read.
    """
    if is_multiset(state):
        counted = [delta.stats if delta else {} for delta in deltas]
        return [
            replace(f, rows=s.get("rows"), living_errors=s.get("errs")) for f, s in zip(facts, counted, strict=True)
        ]
    rows: int | None
    errors: int | None
    rows, errors = living(state.batches)
    done: list[CommitFacts] = []
    for fact, delta in zip(reversed(facts), reversed(deltas), strict=True):
        done.append(replace(fact, rows=rows, living_errors=errors))
        if delta is None or rows is None or errors is None or fact.swapped_in:
            rows = errors = None
        else:
            rows -= delta.counts.insertions - delta.counts.retractions
            errors -= delta.counts.err_insertions - delta.counts.err_retractions
    return done[::-1]


def batches_page(state: ShardState, limit: int) -> BatchesPage:
    newest = state.batches[-limit:] if limit else ()
    return BatchesPage(state.shard, len(state.batches), tuple(_batch_facts(batch) for batch in newest))


def _batch_facts(batch: HollowBatch) -> BatchFacts:
    return BatchFacts(
        **asdict(batch.counts),
        lower=batch.lower,
        upper=batch.upper,
        is_run=batch.run_changed_at is not None or bool(batch.counts.history),
        owner=_owner(batch),
        size_bytes=batch.size_bytes,
    )


@dataclass(frozen=True)
class Newest:
    """`counted` has the count among its stats that a summary needs and the state does not have, if any.

    `warnings` are from the newest run that counted something, `None` if it is not known. `damage` says which manifest
    can't be read.
    """

    counted: BatchManifest | None = None
    warnings: tuple[BatchWarning, ...] | None = ()
    damage: str | None = None


def newest_of(state: ShardState, manifest_of: Callable[[Commit], BatchManifest]) -> Newest:
    """Read manifests from the newest one back, most often one: all of the newest run, and the one that counts."""
    needed = "rows" if is_multiset(state) else "stashed" if STASH_OPERATOR in state.operators else None
    found = Newest(warnings=None)
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


def _sum(warnings: tuple[BatchWarning, ...]) -> tuple[BatchWarning, ...]:
    found: dict[str, BatchWarning] = {}
    for each in warnings:
        known = found.get(each.name, replace(each, count=0, samples=()))
        samples = tuple(dict.fromkeys((*known.samples, *each.samples)))[: 2 if each.count else MAX_NAMES]
        found[each.name] = replace(known, count=known.count + each.count, samples=samples)
    return tuple(found.values())
