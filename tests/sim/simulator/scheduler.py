"""Actors in threads of which one runs at a time, with a decision at every store call about what happens next.

    actor --call--> Scheduler --asks--> Decisions (by seed, or by script)
                        | hands over to another actor, lets time go by, kills, starts a second try
                        '-> the fate of the call, for the store's wrapper to carry out

An actor holds the baton from the moment it gets it until a decision passes it on, so whatever lies between two calls is
one step, and the same decisions give the same simulation. Nothing here knows what the actors do.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol, TypeVar

from persist_core.clock import Clock
from persist_core.ids import Ids
from tests.sim.simulator.script import END, FATES, START, Action, Step, by_call

Choice = TypeVar("Choice")

BATON_TIMEOUT_S = 60.0  # an actor that waits this long for the baton waits for one that hangs
MAX_CALLS = 20_000  # of one simulation: hundreds are usual, thousands with many eras; one that makes more does not end
MAX_TRIES = 12  # of one actor, by deaths and zombies


class Crashed(BaseException):
    """This actor is dead: no `except Exception` may survive it, and nothing that it calls now has an effect."""


@dataclass(frozen=True)
class Failure:
    """A finding of a simulation: `kind` tells findings apart, `message` is for people."""

    kind: str
    message: str


class Decisions(Protocol):
    """Decides what happens at each store call. Asked by one thread at a time."""

    def at(self, actor: str, call: int, operation: str, others: Sequence[str]) -> Sequence[Step]:
        """The deviations at this call (`END`: at the actor's end); `others` can be handed over to."""
        ...


@dataclass(frozen=True)
class Rates:
    """How often each thing happens at a call, as probabilities."""

    switch: float
    wait: float
    death: float
    zombie: float
    fault: float


class SeededDecisions:
    """By chance. Each seed has its own rates: some switch at every second call, some hardly ever crash."""

    def __init__(self, ids: Ids) -> None:
        self._ids = ids
        self.rates = Rates(
            switch=self._one_of((0.02, 0.1, 0.3, 0.6)),
            wait=self._one_of((0.0, 0.01, 0.05)),
            death=self._one_of((0.0, 0.01, 0.04)),
            zombie=self._one_of((0.0, 0.01, 0.03)),
            fault=self._one_of((0.0, 0.02, 0.1)),
        )

    def at(self, actor: str, call: int, operation: str, others: Sequence[str]) -> Sequence[Step]:
        del operation  # all calls of an operation are equally likely
        rates, steps = self.rates, []
        if others and (call == END or self._ids.jitter() < rates.switch):
            steps.append(Step(actor, call, Action.PASS, target=self._one_of(others)))
        if call == END:
            return steps
        draw = self._ids.jitter()
        if draw < rates.wait:
            steps.append(Step(actor, call, Action.WAIT, ms=self._one_of((1, 1_000, 600_000, 7_200_000))))
        elif (draw := draw - rates.wait) < rates.death:
            steps.append(Step(actor, call, self._one_of((Action.CRASH, Action.CRASH_AFTER))))
        elif (draw := draw - rates.death) < rates.zombie:
            steps.append(Step(actor, call, Action.ZOMBIE))
        elif draw - rates.zombie < rates.fault:
            faults = (Action.LOSE_ANSWER, Action.LOSE_REQUEST, Action.REFUSE, Action.LATE)
            steps.append(Step(actor, call, self._one_of(faults)))
        return steps

    def _one_of(self, choices: Sequence[Choice]) -> Choice:
        return choices[int(self._ids.jitter() * len(choices))]


class ScriptedDecisions:
    """By script: exactly these deviations."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = by_call(steps)

    def at(self, actor: str, call: int, operation: str, others: Sequence[str]) -> Sequence[Step]:
        del operation, others  # the scheduler skips actors that cannot continue
        return self._steps.get((actor, call), ())


class _Actor:
    def __init__(self, name: str, body: Callable[[], None], successor: Callable[[], None] | None) -> None:
        self.name, self.body, self.successor = name, body, successor
        self.baton = threading.Lock()
        self.baton.acquire()
        self.calls = 0
        self.is_dead = False


class Scheduler:
    """Runs actors to their ends.

    `steps` are the deviations that took place, `log` all calls, `failure` the finding. `decisions` may be replaced
    between two runs.
    """

    def __init__(self, decisions: Decisions, clock: Clock) -> None:
        self.decisions = decisions
        self._clock = clock
        self._actors: dict[str, _Actor] = {}  # actors that can go on, in the order in which they were started
        self._threads: list[threading.Thread] = []
        self._current: _Actor | None = None
        self._done = threading.Lock()
        self._done.acquire()
        self.steps: list[Step] = []
        self.log: list[tuple[str, str]] = []
        self.failure: Failure | None = None

    @property
    def current(self) -> str:
        """Who holds the baton; empty outside of `run`."""
        return self._current.name if self._current else ""

    def start(self, name: str, body: Callable[[], None], successor: Callable[[], None] | None = None) -> None:
        """Add an actor. `successor` starts the actor that continues its task if it dies or is assumed dead."""
        actor = _Actor(name, body, successor)
        self._actors[name] = actor
        thread = threading.Thread(target=self._run, args=(actor,), daemon=True, name=f"simulated-{name}")
        self._threads.append(thread)
        thread.start()

    def run(self) -> None:
        """Run all actors to their ends. Raises `TimeoutError` if one hangs."""
        self._pass_on(_Actor(START, lambda: None, None))
        if not self._done.acquire(timeout=BATON_TIMEOUT_S):
            raise TimeoutError(f"{self.current} did not come to its end within {BATON_TIMEOUT_S:g} s")
        for thread in self._threads:
            thread.join(BATON_TIMEOUT_S)
        self._current = None

    def fail(self, kind: str, message: str) -> NoReturn:
        """Note the finding, if it is the first, and end the simulation: raises `Crashed` in the actor that found it."""
        self.failure = self.failure or Failure(kind, message)
        raise Crashed

    def call(self, operation: str) -> Action | None:
        """The current actor is about to make this call: its fate, `None` for nothing unusual.

        Returns when it is the actor's turn (again). Raises `Crashed` if it dies now or the simulation is over.
        """
        actor = self._current
        if actor is None:
            return None  # before and after the simulation everything works
        if actor.is_dead:
            raise Crashed  # what its `finally` blocks still try to do
        self._check_over()
        actor.calls += 1
        if len(self.log) >= MAX_CALLS:
            self.fail("endless", f"{MAX_CALLS} calls were made, and no end; the last by {actor.name}: {operation}")
        self.log.append((actor.name, operation))
        fate: Action | None = None
        for step in self._decide(actor, actor.calls, operation):
            if step.action in FATES:
                fate = step.action
            elif step.action is Action.WAIT:
                self._clock.sleep_ms(step.ms)
            elif step.action is Action.ZOMBIE:
                self._succeed(actor)
            else:
                self._hand_over(actor, step.target)
        if fate is Action.CRASH:
            self.die()
        return fate

    def give_way(self) -> None:
        """The current actor has nothing to do now: hand over to the first other one, if any."""
        actor = self._current
        if actor is None:
            return
        self._check_over()
        other = next((name for name in self._actors if name != actor.name), None)
        if other is not None:
            self._hand_over(actor, other)

    def die(self) -> NoReturn:
        """End the current actor here."""
        if self._current is not None:
            self._current.is_dead = True
        raise Crashed

    def _decide(self, actor: _Actor, call: int, operation: str) -> list[Step]:
        """The deviations that are possible at this call; noted."""
        others = [name for name in self._actors if name != actor.name]
        taken = []
        for step in self.decisions.at(actor.name, call, operation, others):
            if step.action is Action.PASS and step.target not in others:
                continue
            if step.action is Action.ZOMBIE and actor.successor is None:
                continue
            taken.append(Step(step.actor, step.call, step.action, step.target, step.ms, operation))
        self.steps += taken
        return taken

    def _check_over(self) -> None:
        if self.failure is not None:
            raise Crashed

    def _succeed(self, actor: _Actor) -> None:
        successor, actor.successor = actor.successor, None
        if successor is not None:
            successor()

    def _hand_over(self, actor: _Actor, target: str) -> None:
        self._current = self._actors[target]
        self._current.baton.release()
        self._wait(actor)
        self._check_over()

    def _wait(self, actor: _Actor) -> None:
        if not actor.baton.acquire(timeout=BATON_TIMEOUT_S):
            raise TimeoutError(f"{actor.name} did not get the baton within {BATON_TIMEOUT_S:g} s")

    def _run(self, actor: _Actor) -> None:
        self._wait(actor)
        try:
            self._check_over()
            actor.body()
        except Crashed:
            if self.failure is None:
                self._succeed(actor)
        except BaseException as error:  # noqa: BLE001 - whatever an actor raises is a finding
            text = "".join(traceback.format_exception(error))
            self.failure = self.failure or Failure(type(error).__name__, f"{actor.name}: {text}")
        finally:
            del self._actors[actor.name]
            self._pass_on(actor)

    def _pass_on(self, actor: _Actor) -> None:
        """`actor` has come to its end: to whom next?"""
        steps = [] if self.failure else self._decide(actor, END, "its end")
        target = steps[0].target if steps else next(iter(self._actors), None)
        if target is None:
            self._done.release()
        else:
            self._current = self._actors[target]
            self._current.baton.release()
