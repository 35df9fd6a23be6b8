"""One writer of a simulation: dag runs, whose tasks are tried again as Airflow does it.

What finished tasks returned is kept, the task that died starts again, and a try that was assumed dead may still be
running (a zombie), but its result is ignored.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from persist_core.contents.batch import BatchDescription
from persist_core.errors import OutdatedDescription, StorageError
from persist_core.handles.client import PersistClient
from persist_core.ids import Ids
from persist_core.protocol.stages import Conflict, NothingToDo
from persist_core.shard.state import Commit, Committed
from tests.sim.simulator.world import World, linger

MAX_TRIES = 8  # of one task
LATE_APPENDS = 0.2  # of appends: others continue first, for as long as they like
MAX_ROUNDS = 30  # of one dag run: mint, write, append; more than the files there are


@dataclass(frozen=True)
class _Task:
    """The state of a dag run: the task to do next, and what finished tasks have returned."""

    name: str = "mint"
    description: BatchDescription | None = None
    manifest_key: str | None = None
    tries: int = 0
    rounds: int = 0


class DagRuns:
    """One writer: dag runs one after the other, each up to its own end.

    `worker` is who works on them, by default the writer itself; `after_mint_ms`: how long its mint sleeps between what
    it has described and the next task.
    """

    def __init__(
        self, world: World, name: str, ends: list[int], *, worker: str | None = None, after_mint_ms: int = 0
    ) -> None:
        self._worker = worker or name
        self._after_mint_ms = after_mint_ms
        self._world = world
        self._name = name
        self._ends = ends
        self._task = _Task()
        self._try = 0

    @property
    def tries(self) -> int:
        """How often an actor has begun to work on these dag runs."""
        return self._try

    def work(self) -> None:
        """Continue the dag runs until they are done or another actor has taken over."""
        self._try += 1
        own_try, client = self._try, self._world.client(f"{self._worker}+{self._try}")
        while self._ends:  # bounded by tries and rounds
            done = self._next(client, self._task, self._ends[0])
            if self._try != own_try:
                return
            if done is None:
                self._ends, self._task = self._ends[1:], _Task()
            else:
                self._task = done

    def _next(self, client: PersistClient, task: _Task, end: int) -> _Task | None:
        """Do one task: the next one, or `None` if the dag run is over."""
        try:
            return self._done(client, task, end)
        except StorageError:
            return None if task.tries >= MAX_TRIES else replace(task, tries=task.tries + 1)
        except OutdatedDescription:
            return self._again(task)

    def _done(self, client: PersistClient, task: _Task, end: int) -> _Task | None:
        world, stages, description = self._world, self._world.stages, task.description
        if task.name == "mint" or description is None:
            minted = stages.mint(client, world.config, until=end, writer=f"{self._name}/{end}")
            if isinstance(minted, NothingToDo):
                return None
            world.referee.stage_ended()
            client.clock.sleep_ms(self._after_mint_ms)
            return replace(task, name="write", description=minted.description, tries=0)
        if task.name == "write":
            key = stages.write(client, world.config, description)
            return replace(task, name="append", manifest_key=key, tries=0)
        if task.name == "append":
            assert task.manifest_key is not None
            if client.ids.jitter() < LATE_APPENDS:
                linger(world, client)
            result = stages.append(client, description, task.manifest_key)
            logged = [c for c in self._commits() if c.token == description.token]
            if isinstance(result, Committed) and result.commit not in logged:
                world.fail("not committed", f"{self._worker} was told {result}; the log has {logged}")
            if isinstance(result, Committed):
                world.committed[description.token] = description
            if isinstance(result, Conflict) and logged:
                world.fail(
                    "own conflict", f"{self._worker} was told {result.record}, and it is its own commit {logged}"
                )
            return self._again(task) if isinstance(result, Conflict) else replace(task, name="checkpoint", tries=0)
        stages.checkpoint(client, world.config)
        world.referee.stage_ended()
        return self._again(task)

    def _commits(self) -> tuple[Commit, ...]:
        state = self._world.referee.state
        return state.commits if state else ()

    def _again(self, task: _Task) -> _Task | None:
        """Mint what is left: after a conflict, and where the limits or the stash leave more to do."""
        return None if task.rounds >= MAX_ROUNDS else _Task(rounds=task.rounds + 1)


def ends_of(ids: Ids, ends: tuple[int, ...]) -> list[int]:
    """Some of these ends of dag runs, in order: at least one."""
    chosen = [end for end in ends if ids.jitter() < 0.5]
    return chosen or [ends[-1]]
