"""Triggers that look at shards and their input.

ShardUpperTrigger    for tasks that wait: until a shard's upper reaches a time. A look reads one small state
    TriggerEvent({"shard": ..., "upper": ..., "reached": true})      upper in ms; None: the shard is closed
    TriggerEvent({..., "reached": false})                            `timeout_s` has passed; sensors have Airflow's
InputTrigger         for tasks that wait: until there are files for a collection. A look lists them
    TriggerEvent({"files": ..., "reached": true})                    0: the shard covers the time already
ShardCommitTrigger   for asset watchers (Airflow 3): commits that no task of our DAGs has made
    TriggerEvent({"shard": ..., "upper": ..., "checkpoint_id": ..., "writer": ..., "commits": ...})
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any, TypeVar, cast

from asgiref.sync import sync_to_async

from persist_airflow.compat import BaseEventTrigger, BaseTrigger, TriggerEvent
from persist_airflow.hook import PersistHook, open_client
from persist_core.clock import SystemClock
from persist_core.config.collection import CollectionConfig
from persist_core.errors import InvalidInput, StorageError
from persist_core.frontier import Frontier
from persist_core.handles.client import PersistClient
from persist_core.shard.state import ShardState
from persist_core.sources.registry import source_of

_Found = TypeVar("_Found")
_Position = tuple[str | None, int]  # a life (`shard.origin`), within which epochs increase, and an epoch
POLL_S = 5.0
COMMIT_POLL_S = 30.0
SEEN = "persist_seen"  # in the asset's state: the shard's life, and the epoch of the newest commit that was seen
# The DAGs of our factories: their tasks update the asset when they have committed.
OWN_WRITERS = ("persist_upsert__", "persist_group__", "persist_view__", "persist_actions")
MAX_LOOKS = 16  # side by side, of all triggers of one connection: they wait for a store, and take no processor time
MAX_STORAGE_ERRORS = 10  # one after the other; then the task fails, and Airflow's retries take over


@cache
def _threads(persist_conn_id: str) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(MAX_LOOKS, f"persist {persist_conn_id}")


async def _in_thread(persist_conn_id: str, call: Callable[[], _Found]) -> _Found:
    """Return what `call` returns, which may block.

    In threads of the connection: the loop's own, and asgiref's single one, serve other triggers too. By asgiref,
    because earlier releases of Airflow 3 can look up a connection only from a thread that asgiref has started.
    """
    return await sync_to_async(call, thread_sensitive=False, executor=_threads(persist_conn_id))()


async def _looks(persist_conn_id: str, look: Callable[[], _Found], poll_s: float) -> AsyncIterator[_Found | None]:
    """Yield what `look` finds every `poll_s` seconds, `None` while the store fails.

    Raises the `StorageError` of `MAX_STORAGE_ERRORS` looks in a row.
    """
    failures = 0
    while True:  # until the trigger ends
        try:
            found = await _in_thread(persist_conn_id, look)
            failures = 0
        except StorageError:
            failures += 1
            if failures == MAX_STORAGE_ERRORS:
                raise
            found = None
        yield found
        await asyncio.sleep(poll_s)


def _event(**payload: Any) -> TriggerEvent:
    event: Any = TriggerEvent  # Airflow's has no types
    return cast(TriggerEvent, event(payload))


def _state_of(persist_conn_id: str, shard: str) -> ShardState | None:
    """The shard's newest state, by a location that is open for this look alone.

    While a trigger waits, credentials expire; and each open location has a connection of its own to the store.
    """
    with open_client(persist_conn_id) as client:
        return client.machine.fetch(shard)


def _check_poll(poll_s: float) -> None:
    if poll_s <= 0:
        raise InvalidInput(f"poll_s is {poll_s}; expected more than 0")


def files_due(client: PersistClient, config: CollectionConfig, until: int, *, again: bool) -> tuple[int, Frontier]:
    """How many files mint would take in up to `until` (ms), and the shard's upper. If that is not before `until`, mint
    has nothing to do, and no file is looked for. `again`: days before `look_back` are not listed."""
    state = client.machine.fetch(config.name) or ShardState(config.name)
    is_covered = state.upper >= Frontier(until)
    return 0 if is_covered else source_of(client, config).pending(state, until=until, again=again), state.upper


def _serialized(trigger: BaseTrigger, *names: str) -> tuple[str, dict[str, Any]]:
    """The class and its arguments, as the triggerer makes them again."""
    kind = type(trigger)
    return f"{kind.__module__}.{kind.__qualname__}", {name: getattr(trigger, name) for name in names}


class ShardUpperTrigger(BaseTrigger):
    """Fires when the shard's upper is at least `upper` (ms), or after `timeout_s` seconds (`None`: never).

    A shard that does not exist yet has no upper, and a closed one has reached every time. Raises `InvalidInput` for a
    poll that is not positive.
    """

    def __init__(
        self,
        shard: str,
        upper: int,
        *,
        persist_conn_id: str = PersistHook.default_conn_name,
        poll_s: float = POLL_S,
        timeout_s: float | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # Airflow's has no types
        _check_poll(poll_s)
        self.shard, self.upper, self.persist_conn_id = shard, upper, persist_conn_id
        self.poll_s, self.timeout_s = poll_s, timeout_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return _serialized(self, "shard", "upper", "persist_conn_id", "poll_s", "timeout_s")

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look every `poll_s` seconds, in a thread."""
        look = partial(_state_of, self.persist_conn_id, self.shard)
        clock, upper, reached = SystemClock(), Frontier(0), False
        timeout_ms = float("inf") if self.timeout_s is None else self.timeout_s * 1000
        deadline_ms = clock.now_ms() + timeout_ms  # a restart of the triggerer moves it
        async for state in _looks(self.persist_conn_id, look, self.poll_s):
            if state is not None:
                upper, reached = state.upper, state.upper >= Frontier(self.upper)
            if reached or clock.now_ms() >= deadline_ms:
                break
        yield _event(shard=self.shard, upper=upper.time, reached=reached)


class InputTrigger(BaseTrigger):
    """Fires when mint would take a file of the collection in, or the shard covers `until` (ms).

    `config`: the collection as plain values. Between two looks nothing is held open. Raises `InvalidInput` for a poll
    that is not positive.
    """

    def __init__(
        self,
        config: dict[str, Any],
        until: int,
        *,
        persist_conn_id: str = PersistHook.default_conn_name,
        poll_s: float = COMMIT_POLL_S,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # Airflow's has no types
        _check_poll(poll_s)
        self.config, self.until, self.persist_conn_id, self.poll_s = config, until, persist_conn_id, poll_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return _serialized(self, "config", "until", "persist_conn_id", "poll_s")

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """List every `poll_s` seconds, in a thread."""
        config = CollectionConfig.model_validate(self.config)

        def look() -> tuple[int, Frontier]:
            with open_client(self.persist_conn_id, config) as client:
                return files_due(client, config, self.until, again=True)

        async for found in _looks(self.persist_conn_id, look, self.poll_s):
            if found is not None and (found[0] > 0 or found[1] >= Frontier(self.until)):
                yield _event(files=found[0], reached=True)
                return


class ShardCommitTrigger(BaseEventTrigger):
    """Fires when programs outside of Airflow have committed to the shard: one event for all their new commits.

    Commits of writers whose name starts with one of `skip_writers` are passed over, because their task has
    updated the asset already; by default those are the DAGs of this package's factories. Between two looks nothing is
    held open.

    On Airflow 3.3 and later the newest commit that was seen is kept in the asset's state. So a triggerer that starts
    again reports what was committed meanwhile, and nothing twice, unless it dies between the event and that note.
    Before 3.3 it starts from the commits that are there. Raises `InvalidInput` for a poll that is not positive.
    """

    def __init__(
        self,
        shard: str,
        *,
        persist_conn_id: str = PersistHook.default_conn_name,
        poll_s: float = COMMIT_POLL_S,
        skip_writers: Sequence[str] = OWN_WRITERS,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # Airflow's has no types
        _check_poll(poll_s)
        self.shard, self.persist_conn_id, self.poll_s = shard, persist_conn_id, poll_s
        self.skip_writers = list(skip_writers)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Airflow runs one trigger for all watchers with equal arguments."""
        return _serialized(self, "shard", "persist_conn_id", "poll_s", "skip_writers")

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look every `poll_s` seconds, for as long as an asset has this watcher."""
        store: Any = getattr(self, "asset_state_store", None)
        stored = None if store is None else await store.aget(SEEN)
        seen: _Position | None = (stored[0], int(stored[1])) if stored else None
        async for state in _looks(self.persist_conn_id, self._look, self.poll_s):
            if state is not None and _newest(state) != seen:
                event = None if seen is None else self._event(state, seen)
                if event is not None:
                    yield event
                seen = _newest(state)
                if store is not None:
                    await store.aset(SEEN, list(seen))

    def _look(self) -> ShardState | None:
        return _state_of(self.persist_conn_id, self.shard) or ShardState(self.shard)

    def _event(self, state: ShardState, seen: _Position) -> TriggerEvent | None:
        """The newest of the commits after `seen` that others have made."""
        life, epoch = seen
        new = [
            commit
            for commit in state.commits
            if (state.origin.life != life or commit.epoch > epoch)
            and not commit.writer.startswith(tuple(self.skip_writers))
        ]
        if not new:
            return None
        newest = new[-1]
        return _event(
            shard=self.shard,
            upper=newest.upper,
            checkpoint_id=newest.checkpoint_id,
            writer=newest.writer,
            commits=len(new),
        )


def _newest(state: ShardState) -> _Position:
    """The position of the newest commit. GC and erasures begin eras without a commit, so eras say nothing of it."""
    return state.origin.life, state.newest_commit.epoch if state.newest_commit else 0
