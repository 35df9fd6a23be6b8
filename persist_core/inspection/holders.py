"""The holders of a shard's history, and ending one whose owner is gone: `persist holds`, `persist release`.

history   what `history:` keeps; `since` follows it         ends: change the file of the collection or view
lease     a reader's, until it expires                      ends: persist release
view      what the newest refresh of a view has read        ends: the view moves it; persist release if it is gone
pin       what a restore to a pinned checkpoint reads       ends: persist unpin
hold      a program's                                       ends: the program; persist release
fork      shares files, and holds no history                ends: with the fork
"""

from __future__ import annotations

from dataclasses import dataclass

from persist_core.checkpoint.checkpointer import Checkpointer
from persist_core.errors import Corruption, InvalidInput
from persist_core.handles.client import PersistClient
from persist_core.ids import time_of_uuid7
from persist_core.keys import fork_in, is_shard_name
from persist_core.protocol.fork_records import readable_forks
from persist_core.shard.history import HISTORY, PIN, VIEW, Holder, end_holder, history_start, holders, show_history
from persist_core.shard.state import Released, ShardState
from persist_core.sources.shards import Refreshed
from persist_core.time_text import format_time, show_time


@dataclass(frozen=True)
class Held:
    """One holder of a shard. `holder` is its name for `persist release`.

    `since` is the earliest time that it keeps readable (`None`: none). `blocks`: it keeps `since` before the start of
    the history. `from_ms`: when it began or last moved, if that is known; `expires_ms`: when a lease ends unless
    its reader renews it. `about` and `remedy` are for people.
    """

    kind: str
    holder: str
    since: int | None
    blocks: bool
    from_ms: int | None
    expires_ms: int | None
    about: str
    remedy: str


@dataclass(frozen=True)
class Holders:
    """The history of a shard and all its holders.

    `held` names in `kind` and `holder` who keeps history or files: readers, views, pins, programs and forks, and the
    history itself; the one that blocks first is the first. `history` is how much is kept, as users write it;
    `history_start` is where it alone would put `since`, and `held_back_by` the lease or hold that keeps `since` before
    that. `released`: what users have ended, oldest first.
    """

    shard: str
    since: int | None = None
    upper: int | None = None
    history: str = "all"
    history_ms: int | None = None
    history_start: int | None = None
    held: tuple[Held, ...] = ()
    held_back_by: str | None = None
    released: tuple[Released, ...] = ()


def list_holders(client: PersistClient, state: ShardState) -> Holders:
    """List the holders of the shard, what each holds since when, and what ends it. Changes nothing."""
    shard, has_pins = state.shard, any(name.startswith(PIN) for name in state.holds)
    pinned = Checkpointer(client.blob, shard).pinned() if has_pins else frozenset[str]()
    found = [_described(client, state, each, pinned) for each in holders(state, now_ms=client.clock.now_ms())]
    forks: dict[str, Held] = {}
    records, damaged = readable_forks(client.blob, shard)
    for record in records:
        about, remedy = f"shares files up to checkpoint {record.checkpoint_id}; holds no history", ""
        if not is_shard_name(record.fork):  # hidden: a replay
            try:
                hidden = client.machine.fetch(record.fork)
                if hidden is None or not hidden.commits:
                    continue
                about, remedy = _of_hidden(shard, record.fork)
            except Corruption as damage:
                about = f"shares files, and its state can't be read: {damage}"
        forks[record.fork] = Held("fork", record.fork, None, False, record.made_ms, None, about, remedy)
    for key, error in damaged.items():  # GC stops at such a record, so it keeps everything
        about, remedy = f"a damaged record, so GC deletes nothing: {error}", f"persist fsck {shard}; copy {key} back"
        forks[key] = Held("fork", fork_in(key), None, False, None, None, about, remedy)
    return Holders(
        shard,
        state.since.time,
        state.upper.time,
        show_history(state.history_ms),
        state.history_ms,
        history_start(state).time,
        (*found, *forks.values()),
        found[0].holder if found[0].blocks else None,
        state.released,
    )


def _of_hidden(shard: str, name: str) -> tuple[str, str]:
    purpose = name.partition("~")[2]
    if purpose == "reprocess":
        return "a reprocess that has not ended", f"persist reprocess {shard} --give-up"
    return f"an earlier generation, kept to be swapped back; `persist generations {shard}` says until when", ""


def _described(client: PersistClient, state: ShardState, holder: Holder, pinned: frozenset[str]) -> Held:
    blocks = holder.since < history_start(state)
    release = f"persist release {state.shard} {holder.name} --reason TEXT"
    from_ms = expires_ms = None
    if holder.kind == HISTORY:
        kind, about = HISTORY, _about_history(state)
        remedy = "change `history:` in the file of the collection or view"
    elif holder.kind == "lease":
        lease = state.leases[holder.name]
        kind, from_ms, expires_ms = "lease", time_of_uuid7(holder.name), lease.heartbeat_ms + lease.duration_ms
        about, remedy = f"a reader, which last renewed its lease at {format_time(lease.heartbeat_ms)}", release
    else:
        from_ms = time_of_uuid7(state.holds[holder.name].opaque)
        kind, about, remedy = _described_hold(client, state.shard, holder.name, pinned, release)
    return Held(kind, holder.name, holder.since.time, blocks, from_ms, expires_ms, about, remedy)


def _about_history(state: ShardState) -> str:
    if state.history_ms is None:
        return "everything is kept: stored bytes grow with every change"
    return f"{show_history(state.history_ms)} before the upper are kept" if state.history_ms else "the newest contents"


def _described_hold(
    client: PersistClient, shard: str, holder: str, pinned: frozenset[str], release: str
) -> tuple[str, str, str]:
    if holder.startswith(PIN):
        checkpoint_id = holder.removeprefix(PIN)
        if checkpoint_id in pinned:
            return "pin", "a restore to this pinned checkpoint", f"persist unpin {shard} {checkpoint_id}"
        return "pin", "left by a pin that was not completed", release
    if holder.startswith(VIEW):
        view = holder.removeprefix(VIEW)
        try:
            said = _live_view(client, shard, view)
        except Corruption as error:
            return "view", f"a view whose state can't be read: {error}", f"persist fsck {view}"
        return (
            ("view", said, f"refresh the view: persist run {view}") if said else ("view", "the view is gone", release)
        )
    return "hold", "a program", release


def _live_view(client: PersistClient, shard: str, view: str) -> str | None:
    state = client.machine.fetch(view)
    if state is None or state.is_dropped:
        return None
    refreshed = Refreshed.of(state.sources)
    if refreshed is None:
        return "a view that was not refreshed yet"
    return f"a view, refreshed as of {show_time(refreshed.as_of)}" if shard in refreshed.uppers else None


def release(
    client: PersistClient, shard: str, holder: str, *, by: str, reason: str, is_forced: bool = False
) -> Released:
    """End the lease or the hold of `holder` in its owner's place; the record of it. A second call returns the first's.

    `since` moves with the next maintenance. A reader whose lease was ended gets `LeaseExpired`. Raises `InvalidInput`
    if there is no such holder, if it is a pin (`unpin` ends it), or, unless `is_forced`, a view that still reads the
    shard: its next refresh takes a new hold, at a later time.
    """
    state = client.state(shard)
    if holder in state.holds and holder.startswith(PIN):
        checkpoint_id = holder.removeprefix(PIN)
        if checkpoint_id in Checkpointer(client.blob, shard).pinned():
            raise InvalidInput(
                f"{holder} is a pinned checkpoint of shard {shard}: end it with `persist unpin {shard} {checkpoint_id}`"
            )
    if holder in state.holds and holder.startswith(VIEW) and not is_forced:
        view = holder.removeprefix(VIEW)
        try:
            said = _live_view(client, shard, view)
        except Corruption as error:
            raise InvalidInput(f"{error}. It may still read shard {shard}; --force ends the hold now") from error
        if said:
            raise InvalidInput(
                f"view {view} still reads shard {shard}, up to its next refresh at the times that it holds. Refresh it"
                f" (`persist run {view}`), or drop it first; --force ends the hold now"
            )
    _, record = client.machine.apply(
        shard, lambda found: end_holder(found, holder, now_ms=client.clock.now_ms(), by=by, reason=reason)
    )
    if record is None:
        raise InvalidInput(
            f"shard {shard} has no lease and no hold {holder!r}; `persist holds {shard}` lists them. Forks hold no"
            " history, and `history:` is changed in the file of the collection or view"
        )
    return record
