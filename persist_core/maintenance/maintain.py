"""Maintenance of one shard, in the one order in which it is done:

    leases that have expired end -> `since` follows the upper -> merges that are due -> GC

    maintain           all that is due, as `persist maintain` and the DAG `persist_maintenance` do it
    maintain_inline    after the checkpoint task: the same with small bounds, and only if the shard has many batches, or
                       if GC is long overdue

Both are bounded in work and memory, may run at any time, beside runs of the shard and beside each other, and may die
anywhere: what is done stays done, and the next call does the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from persist_core.compaction.due import Debt, debt_of, merge_due
from persist_core.compaction.merge import Merge, merge_here
from persist_core.compaction.steps import BUDGET_BYTES
from persist_core.config.project import MaintenanceConfig
from persist_core.errors import PersistError
from persist_core.gc.collect import GRACE_MS, INTENT_MS, MAX_KEYS, Collected, collect, due_since_ms
from persist_core.handles.client import PersistClient
from persist_core.maintenance.erase_objects import finish
from persist_core.maintenance.hidden import tidy
from persist_core.shard.replace import NotReplaced, Replaced
from persist_core.shard.state import ShardState
from persist_core.time_text import show_time

MAX_ROWS = 5_000_000  # of one merge here: one or two minutes. Only a view's rows are all in memory, 400 bytes each
MAX_MERGES = 16  # of one call; a shard that was never merged catches up in several
INLINE_BATCHES = 24  # from here on the checkpoint task merges; `persist maintain` keeps fewer
INLINE_ROWS = 500_000  # about two seconds
INLINE_KEYS = 1_000  # some seconds on S3
INLINE_GRACES = 2  # GC that is overdue by so much has no DAG or job that does it

MergeElsewhere = Callable[[Merge], Replaced | NotReplaced]
"""Does a merge that is too large for this process, for example with Spark."""


@dataclass(frozen=True)
class Maintained:
    """The result of maintaining one shard, and what is still due.

    `since` advanced by `since_advanced_ms`; `held_by` is the reader or holder that keeps it from following the upper as
    the history says. `merges` read `rows`. `lost_merges`: another merge had their batches
    replaced meanwhile. `collected` is what GC did. `untidy`: why hidden shards whose time is over are still there.
    `erased`: objects deleted that an erasure had left for readers.
    """

    shard: str
    expired_leases: tuple[str, ...]
    since: int | None
    since_advanced_ms: int
    held_by: str | None
    merges: int
    lost_merges: int
    rows: int
    batches_before: int
    batches_after: int
    collected: Collected
    owed: Debt
    untidy: str = ""
    erased: int = 0

    @property
    def did(self) -> str:
        """The result in words; empty if nothing was done."""
        merged = f"merged {self.rows} rows: {self.batches_before} batches before, {self.batches_after} after"
        lost = f"merges that another process did first: {self.lost_merges}"
        expired = f"leases expired: {len(self.expired_leases)}" if self.expired_leases else ""
        since = f"since is now {show_time(self.since)}" if self.since_advanced_ms else ""
        said = (
            expired,
            since,
            merged if self.merges else "",
            lost if self.lost_merges else "",
            self.collected.did,
            f"deleted {self.erased} files that waited to be erased" if self.erased else "",
            f"replays or generations whose time is over could not be deleted: {self.untidy}" if self.untidy else "",
        )
        return "; ".join(filter(None, said))

    def __str__(self) -> str:
        held = f". since is held back by {self.held_by}" if self.held_by else ""
        owed = f". Still due: {self.owed}" if self.owed else ""
        return f"{self.shard}: {self.did or 'nothing to do'}{held}{owed}"


def maintain(
    client: PersistClient,
    shard: str,
    *,
    max_rows: int = MAX_ROWS,
    max_merges: int = MAX_MERGES,
    budget_bytes: int = BUDGET_BYTES,
    merge_elsewhere: MergeElsewhere | None = None,
    grace_ms: int = GRACE_MS,
    intent_ms: int = INTENT_MS,
    max_keys: int = MAX_KEYS,
) -> Maintained:
    """Do what is due: at most `max_merges` merges, and GC (`gc.collect`) of at most `max_keys` keys.

    A merge that would rewrite more than `budget_bytes` is done in steps, which count as merges (`compaction.steps`).
    A merge of more than `max_rows` rows goes to `merge_elsewhere`; without it, it stays due. Raises `ShardNotFound`,
    and what a merge raises; what was done before stays done.
    """
    expired = debt_of(client.state(shard), now_ms=client.clock.now_ms()).expired_leases
    advance = client.advance_since(shard)
    state = client.state(shard)
    before, merges, lost, rows = len(state.batches), 0, 0, 0
    while merges + lost < max_merges:
        due = merge_due(state)
        if due is None:
            break
        merge = Merge.of(client, state, due, budget_bytes=budget_bytes)
        if merge.rows <= max_rows:
            result = merge_here(client, merge, attempt=client.ids.uuid7())
        elif merge_elsewhere is not None:
            result = merge_elsewhere(merge)
        else:
            break
        if isinstance(result, Replaced):
            merges, rows = merges + 1, rows + merge.rows
        else:
            lost += 1
        state = client.state(shard)
    untidy = ""
    try:
        tidy(client, shard, grace_ms=grace_ms, intent_ms=intent_ms, max_keys=max_keys)
    except PersistError as error:  # maintenance goes on
        untidy = f"{error.kind}: {error}"
    erased = finish(client, shard)
    collected = collect(client, shard, grace_ms=grace_ms, intent_ms=intent_ms, max_keys=max_keys)
    owed = debt_of(client.state(shard), now_ms=client.clock.now_ms())
    return Maintained(
        shard,
        expired,
        advance.since.time,
        (advance.since.time or 0) - (advance.before.time or 0),
        f"{advance.held_by.kind} {advance.held_by.name}" if advance.held_by else None,
        merges,
        lost,
        rows,
        before,
        len(state.batches),
        collected,
        owed if collected.is_done else replace(owed, gc_due_ms=0),
        untidy,
        erased,
    )


def whole_debt_of(client: PersistClient, state: ShardState, *, grace_ms: int) -> Debt:
    """Like `debt_of`, with the debt of GC, which takes a listing."""
    debt = debt_of(state, now_ms=client.clock.now_ms())
    return replace(debt, gc_due_ms=due_since_ms(client, state, grace_ms=grace_ms))


def maintain_inline(client: PersistClient, shard: str, given: MaintenanceConfig | None = None) -> str | None:
    """A small part of what is due, if much is; what was done or went wrong, for logs. `given` says the times of GC.

    Never raises a `PersistError`: the commit that came before is not to fail for it.
    """
    given = given or MaintenanceConfig()
    try:
        state = client.state(shard)
        if len(state.batches) < INLINE_BATCHES:
            overdue_ms = due_since_ms(client, state, grace_ms=INLINE_GRACES * given.grace_ms)  # a listing
            if overdue_ms is None or overdue_ms < 0:
                return None
        done = maintain(
            client,
            shard,
            max_rows=INLINE_ROWS,
            max_merges=1,
            max_keys=INLINE_KEYS,
            grace_ms=given.grace_ms,
            intent_ms=given.intent_ms,
        )
    except PersistError as error:
        return f"{shard}: maintenance failed: {error.kind}: {error}"
    return str(done) if done.did or done.owed else None
