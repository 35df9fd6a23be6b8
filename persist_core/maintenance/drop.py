"""Drop a shard, and use the name of a dropped one again.

Dropping changes only the states, of the shard and of its hidden shards (replays, generations): GC then deletes what no
fork needs. Nothing can be read any more, and nothing is left to restore.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from persist_core.alerts.board import WatchBoard
from persist_core.errors import Corruption, InvalidInput, PersistError, RunFailed
from persist_core.gc.collect import collect
from persist_core.gc.needs import Needs
from persist_core.handles.client import PersistClient
from persist_core.handles.side_by_side import side_by_side
from persist_core.keys import is_shard_name, owner_of
from persist_core.maintenance.erase_objects import hidden_shards
from persist_core.protocol.fork_records import list_forks
from persist_core.shard import eras as transitions
from persist_core.shard.history import VIEW, release_hold
from persist_core.shard.state import ShardState

MAX_CALLS = 100  # of GC, each of which deletes up to `MAX_KEYS` keys


def users_of(client: PersistClient, shard: str) -> tuple[str, ...]:
    """Who still needs the shard: views and other holds, readers with leases, forks that share its files.

    Not its replays and earlier generations, which are hidden forks: they are dropped with it.
    """
    state = client.state(shard)
    now_ms = client.clock.now_ms()
    forks = sorted({record.fork for record in list_forks(client.blob, shard) if is_shard_name(record.fork)})
    return (
        *(f"hold {name}" for name in sorted(state.holds)),
        *(f"lease {name}" for name, lease in sorted(state.leases.items()) if not lease.has_expired(now_ms)),
        *(f"fork {name}" for name in forks if _shares(client.machine.fetch(name), shard)),
    )


def drop(
    client: PersistClient, shard: str, *, is_forced: bool = False, is_meant: Callable[[ShardState], bool] | None = None
) -> bool:
    """Close both frontiers of the shard, permanently. False if it was dropped before.

    Raises `InvalidInput` if someone needs it, unless `is_forced`: views and readers of it then fail, and forks keep the
    files that they share. A view that is dropped releases its holds on its inputs. Alerts of the shard end silently.
    Raises `RunFailed` if `is_meant` is false for the shard at that time. A second call completes one that died.
    """
    users = () if client.state(shard).is_dropped else users_of(client, shard)
    if users and not is_forced:
        raise InvalidInput(
            f"shard {shard} is needed by {', '.join(users)}. Drop the views first; `persist holds {shard}` says what"
            " ends each other holder. Or drop it with --force: views and readers of it then fail, forks keep what they"
            " share"
        )

    def transition(state: ShardState) -> tuple[ShardState, ShardState]:
        if is_meant is not None and not is_meant(state):
            raise RunFailed(f"shard {shard} was begun again by another call meanwhile: nothing was dropped")
        new = sorted({*state.holds, *state.leases} - {user.partition(" ")[2] for user in users})
        if new and not is_forced and not state.is_dropped:
            raise InvalidInput(f"shard {shard} is now in use by {', '.join(new)}; retry")
        return transitions.drop(state)

    _, before = client.machine.apply(shard, transition)
    _drop_hidden(client, shard)
    if is_shard_name(shard) and not (before.schema and before.schema.key):  # a view, or dropped by a call that died
        _release_inputs(client, f"{VIEW}{shard}")
    WatchBoard(client).forget(shard)
    return not before.is_dropped


def create_again(client: PersistClient, shard: str) -> None:
    """Begin an empty shard under the name of a dropped one. What is left of that one is deleted first.

    Raises `InvalidInput` if the shard is not dropped, `ShardNotFound` if it does not exist.
    """
    if not client.state(shard).is_dropped:
        transitions.create_again(client.state(shard))  # raises
    for name in (*_drop_hidden(client, shard), shard):  # the shard last: a killed call can be repeated
        _emptied(client, name)


def with_dropped(client: PersistClient, shards: Iterable[str]) -> Iterator[str]:
    """The shards, each dropped one with its hidden shards: GC has to delete their files too."""
    for shard in shards:
        yield shard
        with suppress(PersistError):  # the caller has met it with the shard itself
            if client.state(shard).is_dropped:
                yield from hidden_shards(client, shard)


def _drop_hidden(client: PersistClient, shard: str) -> list[str]:
    names = hidden_shards(client, shard)
    for name in names:
        client.machine.apply(name, transitions.drop, create=True)
    return names


def _emptied(client: PersistClient, shard: str) -> None:
    needs = Needs(client, shard, is_immediate=True)
    for _ in range(MAX_CALLS):
        done = collect(client, shard, grace_ms=0, intent_ms=0, needs=needs)
        if done.is_done and not done.waiting:
            break
    else:
        raise RunFailed(f"shard {shard}: files of the dropped shard remain; run `persist gc {shard}`, then retry")
    client.machine.apply(shard, transitions.create_again)


def _shares(fork: ShardState | None, shard: str) -> bool:
    return fork is not None and any(owner_of(batch.manifest_key) == shard for batch in fork.batches)


def _release_inputs(client: PersistClient, holder: str) -> None:
    """Release the holds of a view on all shards: the state of a dropped one names no inputs."""

    def release(shard: str) -> None:
        with suppress(Corruption):  # of a shard that may be no input at all
            state = client.machine.fetch(shard)
            if state is not None and holder in state.holds:
                client.machine.apply(shard, lambda found: release_hold(found, holder))

    side_by_side(release, client.shards(), threads=client.fetch_threads)
