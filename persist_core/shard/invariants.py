"""Invariants of every version of a shard, and between any version and the next: named predicates.

`check_state` runs after every decode, `check_step` before every compare-and-set. A violation is `InvariantViolation`:
nothing is written, and the message names the predicate.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

from persist_core.contents.batch import SourceFrontier
from persist_core.errors import InvariantViolation
from persist_core.frontier import Frontier
from persist_core.shard.eras import is_end_or_beginning
from persist_core.shard.history import history_start
from persist_core.shard.receive import TOO_LATE, is_received, relation_of
from persist_core.shard.replace import is_erasure
from persist_core.shard.state import MIN_COMMITS_KEPT, ShardState


def batches_are_contiguous(state: ShardState) -> bool:
    """Batches cover `[first lower, upper)` without gap or overlap."""
    uppers = [batch.upper for batch in state.batches]
    lowers = [batch.lower for batch in state.batches]
    return lowers[1:] == uppers[:-1]


def upper_is_the_last_batch(state: ShardState) -> bool:
    return not state.batches or Frontier(state.batches[-1].upper) == state.upper


def since_is_held(state: ShardState) -> bool:
    """No lease and no hold lies before `since`: what is held is readable."""
    held = [lease.since for lease in state.leases.values()] + [hold.since for hold in state.holds.values()]
    return all(state.since <= since for since in held)


def tokens_are_unique(state: ShardState) -> bool:
    return len({commit.token for commit in state.commits}) == len(state.commits)


def commits_end_at_upper(state: ShardState) -> bool:
    """The newest commit's upper is the shard's, and commits follow each other."""
    bounds = [(commit.lower, commit.upper) for commit in state.commits]
    follows = all(before[1] == after[0] for before, after in itertools.pairwise(bounds))
    return follows and (not bounds or Frontier(bounds[-1][1]) == state.upper)


def epochs_increase(state: ShardState) -> bool:
    """Each commit's epoch is greater than the one before; epochs start at 1."""
    epochs = [commit.epoch for commit in state.commits]
    return all(before < after for before, after in itertools.pairwise([0, *epochs]))


def column_ids_are_never_used_again(state: ShardState) -> bool:
    """Versions count from 1, and a column that is gone does not come back: in each version, an id that the version
    before lacks is higher than all before."""
    schemas = [each.schema for each in state.schemas.versions]
    known, last = set[int](), 0
    for version, schema in enumerate(schemas, start=1):
        ids = [column.id or 0 for column in schema.columns]
        added = set(ids) - known
        if schema.version != version or len(set(ids)) != len(ids) or any(new <= last for new in added):
            return False
        known, last = set(ids), max([last, *ids])
    return last < state.schemas.next_id


def schema_versions_are_kept(before: ShardState, after: ShardState) -> bool:
    """Schemas and ids are added, never changed; another generation has its own."""
    old, new = before.schemas, after.schemas
    return before.origin.generation != after.origin.generation or (
        new.to_json()["versions"][: len(old.versions)] == old.to_json()["versions"] and old.next_id <= new.next_id
    )


def since_never_regresses(before: ShardState, after: ShardState) -> bool:
    return before.since <= after.since


def since_moves_within_the_history(before: ShardState, after: ShardState) -> bool:
    """`since` moves alone, and not beyond the start of the history; but for a new fork, and a drop.

    Leases aside, which the machine expires with every change.
    """
    if before.since == after.since or after.is_dropped or not before.commits:
        return True
    others = replace(after, seqno=before.seqno, since=before.since, leases=before.leases)
    return after.since <= history_start(after) and others == before


def upper_never_regresses(before: ShardState, after: ShardState) -> bool:
    return before.upper <= after.upper


def upper_moves_by_one_batch(before: ShardState, after: ShardState) -> bool:
    """The upper moves exactly when one new commit appends one new batch (a fork's first: all that it shares),
    starting at the old upper."""
    if before.upper == after.upper:
        return before.newest_commit == after.newest_commit
    newest = after.newest_commit
    return newest is not None and Frontier(newest.lower) == before.upper and Frontier(newest.upper) == after.upper


def batches_change_only_by_an_append_or_a_merge(before: ShardState, after: ShardState) -> bool:
    """Only an append makes a new boundary between batches; a merge changes nothing else.

    Leases aside, which the machine expires with every change.
    """
    if not before.batches or before.batches == after.batches:
        return True
    bounds = {batch.lower for batch in before.batches} | {batch.upper for batch in before.batches}
    kept = after.batches[0].lower == before.batches[0].lower and all(
        batch.lower in bounds and (batch.upper in bounds or batch.upper == after.upper.time) for batch in after.batches
    )
    if before.upper != after.upper:
        return kept
    others = replace(after, seqno=before.seqno, since=before.since, leases=before.leases, batches=before.batches)
    return kept and others == before


def progress_moves_with_data(before: ShardState, after: ShardState) -> bool:
    return before.sources == after.sources or before.newest_commit != after.newest_commit


def progress_goes_back_only_by_a_restore(before: ShardState, after: ShardState) -> bool:
    """No source is forgotten and no number in its progress (files, bytes, a view's time) decreases but by a restore."""
    newest = after.newest_commit
    if newest is not None and newest.restored_from is not None:
        return True
    return all(_has_not_sunk(source, after.sources.get(name)) for name, source in before.sources.items())


def _has_not_sunk(before: SourceFrontier, after: SourceFrontier | None) -> bool:
    numbers = {name: value for name, value in before.offsets.items() if isinstance(value, int)}
    found = {name: after.offsets.get(name) if after else None for name in numbers}
    return after is not None and all(
        isinstance(number, int) and number >= numbers[name] for name, number in found.items()
    )


def commits_are_kept(before: ShardState, after: ShardState) -> bool:
    """The last 128 commits keep their tokens."""
    kept = after.commits[:-1] if before.upper != after.upper else after.commits
    wanted = before.commits[-(MIN_COMMITS_KEPT - 1) :]
    return kept[-len(wanted) :] == wanted if wanted else True


def the_past_outlives_commits(before: ShardState, after: ShardState) -> bool:
    """Restores, corrections and fills are added by a commit, and stay known when their commits are forgotten."""
    return before.past == after.past or (before.newest_commit != after.newest_commit and after.past.covers(before.past))


def seqno_moves_by_one(before: ShardState, after: ShardState) -> bool:
    """Versions follow each other without a jump."""
    return after.seqno == before.seqno + 1


def eras_never_regress(before: ShardState, after: ShardState) -> bool:
    """Eras only advance, and the newest era is never refused."""
    return before.era <= after.era and before.oldest_era <= after.oldest_era <= after.era


def an_erasure_changes_only_manifests(before: ShardState, after: ShardState) -> bool:
    """Batches and commits keep all but their manifests and counts, ended holders all but the reason. Leases aside,
    which the machine expires."""
    bounds = [[(each.lower, each.upper, each.changed_at) for each in state.batches] for state in (before, after)]
    if (len(before.commits), len(before.released)) != (len(after.commits), len(after.released)):
        return False
    commits = tuple(
        replace(new, manifest_key=old.manifest_key, manifest_sha256=old.manifest_sha256)
        for old, new in zip(before.commits, after.commits, strict=True)
    )
    released = tuple(
        replace(new, reason=new.reason or old.reason) for old, new in zip(before.released, after.released, strict=True)
    )
    others = replace(
        after,
        **{name: getattr(before, name) for name in ("seqno", "leases", "batches", "era", "oldest_era", "erased")},
        commits=commits,
        released=released,
    )
    return bounds[0] == bounds[1] and others == before


def shard_is_the_same(before: ShardState, after: ShardState) -> bool:
    """A key of consensus always belongs to the same shard."""
    return before.shard == after.shard


def origin_follows_the_commits(before: ShardState, after: ShardState) -> bool:
    """A commit continues the shard's branch here or begins one; a shard that was moved away has no commit, for good."""
    is_commit = before.newest_commit != after.newest_commit
    was, now = before.origin, after.origin
    if is_commit:
        return was.moved_to is None and now.received is None and now.branches[: len(was.branches)] == was.branches
    return (was.branches, was.received) == (now.branches, now.received) and was.moved_to in (None, now.moved_to)


def a_swap_keeps_readers_and_frontiers(before: ShardState, after: ShardState) -> bool:
    """A swap changes no frontier but the upper, which it moves, and no hold: leases aside, which may expire."""
    held = (before.since, before.holds, before.history_ms, before.released, before.era, before.oldest_era)
    now = (after.since, after.holds, after.history_ms, after.released, after.era, after.oldest_era)
    return held == now and before.upper < after.upper and after.leases.items() <= before.leases.items()


def a_copy_replaces_only_its_past(before: ShardState, after: ShardState) -> bool:
    """The received state is a later one of the same shard, or the same. Two lists of erasures were compared before."""
    return relation_of(before, after) in (None, TOO_LATE)


def seqno_increases(before: ShardState, after: ShardState) -> bool:
    return after.seqno > before.seqno


STATE_INVARIANTS: tuple[Callable[[ShardState], bool], ...] = (
    batches_are_contiguous,
    upper_is_the_last_batch,
    since_is_held,
    tokens_are_unique,
    commits_end_at_upper,
    epochs_increase,
    column_ids_are_never_used_again,
)
STEP_INVARIANTS: tuple[Callable[[ShardState, ShardState], bool], ...] = (
    since_never_regresses,
    since_moves_within_the_history,
    upper_never_regresses,
    upper_moves_by_one_batch,
    batches_change_only_by_an_append_or_a_merge,
    progress_moves_with_data,
    progress_goes_back_only_by_a_restore,
    commits_are_kept,
    the_past_outlives_commits,
    eras_never_regress,
    origin_follows_the_commits,
    schema_versions_are_kept,
    shard_is_the_same,
    seqno_moves_by_one,
)
LIFE_INVARIANTS: tuple[Callable[[ShardState, ShardState], bool], ...] = (
    eras_never_regress,
    shard_is_the_same,
    seqno_moves_by_one,
)  # of a drop, and of the creation of a shard with the name of a dropped one
SWAP_INVARIANTS: tuple[Callable[[ShardState, ShardState], bool], ...] = (
    a_swap_keeps_readers_and_frontiers,
    upper_moves_by_one_batch,
    progress_moves_with_data,
    origin_follows_the_commits,
    shard_is_the_same,
    seqno_moves_by_one,
)  # of a swap: another history under this name (`shard.receive`)
COPY_INVARIANTS: tuple[Callable[[ShardState, ShardState], bool], ...] = (
    a_copy_replaces_only_its_past,
    since_never_regresses,
    upper_never_regresses,
    eras_never_regress,
    schema_versions_are_kept,
    shard_is_the_same,
    seqno_increases,
)  # of a copy from another location


ERASE_INVARIANTS: tuple[Callable[[ShardState, ShardState], bool], ...] = (
    an_erasure_changes_only_manifests,
    eras_never_regress,
    shard_is_the_same,
    seqno_moves_by_one,
)  # of an erasure, which may replace manifests


def check_state(state: ShardState) -> None:
    """Raise `InvariantViolation` naming the first predicate of `STATE_INVARIANTS` that does not hold."""
    for predicate in STATE_INVARIANTS:
        if not predicate(state):
            raise InvariantViolation(
                f"shard {state.shard}: {predicate.__name__} does not hold"
                f" (since {state.since}, upper {state.upper}, {len(state.batches)} batches,"
                f" {len(state.commits)} commits). Nothing was written; run `persist fsck {state.shard}`"
            )


def check_step(before: ShardState | None, after: ShardState) -> None:
    """`check_state` of `after`, and every predicate of `STEP_INVARIANTS` from `before` (None: a new shard)."""
    check_state(after)
    if before is None:
        return
    for predicate in _of_step(before, after):
        if not predicate(before, after):
            raise InvariantViolation(
                f"shard {after.shard}: {predicate.__name__} does not hold between"
                f" (since {before.since}, upper {before.upper}) and (since {after.since}, upper {after.upper})."
                " Nothing was written; this is a defect, please report it"
            )


def _of_step(before: ShardState, after: ShardState) -> tuple[Callable[[ShardState, ShardState], bool], ...]:
    if is_end_or_beginning(before, after):
        return LIFE_INVARIANTS
    if is_received(before, after):
        return COPY_INVARIANTS
    if is_erasure(before, after):
        return ERASE_INVARIANTS
    return STEP_INVARIANTS if before.origin.generation == after.origin.generation else SWAP_INVARIANTS
