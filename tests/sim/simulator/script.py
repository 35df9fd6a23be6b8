"""Scenarios and steps: the input of a simulation, as text that a person can read, cut down and paste into a test.

    scenario seed=17 writers=2 readers=1 checkpointers=1 collectors=0 holders=0 files=3
    writer-1 7 pass writer-2          # compare_and_set things
    writer-2 end pass reader-1
    writer-1 7 crash-after            # compare_and_set things

Each line after the first is a deviation from the normal course, in which the first actor that can go on does
so until its end and every call is answered: at its 7th store call, before the call is made, writer-1 hands over to
writer-2; when it is its turn again, the call happens and then writer-1 dies. A deviation that names a call or an actor
which does not occur is skipped, so single lines may be removed. What follows a `#` is a comment.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field, fields

from persist_core.errors import InvalidInput
from persist_core.ids import Ids

START = "start"  # the actor that does nothing but hand over to the first one
END = 0  # the number of the call that an actor does not make: it has ended
MAX_ACTORS = 20  # of one kind; a simulation is about few actors and many orders


class Action(enum.StrEnum):
    """The possible events at a store call. All but the first three are the fate of the call itself."""

    PASS = "pass"  # before the call: hand over to the actor `target`
    WAIT = "wait"  # before the call: `ms` milliseconds go by
    ZOMBIE = "zombie"  # the task is assumed dead and tried again, while this try continues
    CRASH = "crash"  # the actor dies before the store gets the request
    CRASH_AFTER = "crash-after"  # the actor dies before it gets the answer
    LOSE_ANSWER = "lose-answer"  # it happened; the actor gets `Indeterminate`
    LOSE_REQUEST = "lose-request"  # it did not happen; the actor gets `Indeterminate`
    REFUSE = "refuse"  # it did not happen; the actor gets `Determinate`
    LATE = "late"  # the actor gets `Indeterminate`; later it happens


FATES = frozenset(Action) - {Action.PASS, Action.WAIT, Action.ZOMBIE}


@dataclass(frozen=True)
class Scenario:
    """Who takes part, and the seed that their input and their habits come from. `jumps`: the clocks of clients jump.

    `sequence`: the shard is in `sequence` order, and its input late and redelivered. `eras`: while a reader or a writer
    lingers, eras of GC end; 2: also between what any actor stages and its compare-and-set.
    """

    seed: int
    writers: int = 2
    readers: int = 1
    checkpointers: int = 1
    collectors: int = 1
    holders: int = 0
    slow_mints: int = 0
    plain_writers: int = 0
    restorers: int = 0
    scrubbers: int = 0
    mergers: int = 0
    keepers: int = 0
    forkers: int = 0
    browsers: int = 0
    copiers: int = 0
    jumps: int = 0
    sequence: int = 0
    eras: int = 0
    files: int = 4

    def __post_init__(self) -> None:
        for name in (f.name for f in fields(self)):
            count = getattr(self, name)
            if count < 0 or (name != "seed" and count > MAX_ACTORS):
                raise InvalidInput(
                    f"scenario: {name} is {count}; wanted 0 to {MAX_ACTORS} (the seed: any, not below 0)"
                )

    def __str__(self) -> str:
        return "scenario " + " ".join(f"{f.name}={getattr(self, f.name)}" for f in fields(self))

    @classmethod
    def drawn(cls, seed: int, ids: Ids) -> Scenario:
        """The scenario of a seed: most are small, since few actors reach a defect sooner."""

        def one_of(*choices: int) -> int:
            return choices[int(ids.jitter() * len(choices))]

        return cls(
            seed,
            writers=one_of(1, 2, 2, 3),
            readers=one_of(0, 0, 1),
            checkpointers=one_of(0, 0, 1),
            collectors=one_of(0, 0, 1),
            holders=one_of(0, 0, 0, 1),
            slow_mints=one_of(0, 0, 0, 1),
            plain_writers=one_of(0, 0, 0, 1),
            restorers=one_of(0, 0, 0, 1),
            scrubbers=one_of(0, 0, 0, 1),
            files=one_of(1, 2, 3, 4),
            mergers=one_of(0, 0, 1, 2),
            keepers=one_of(0, 0, 0, 1, 2),
            forkers=one_of(0, 0, 0, 1),
            browsers=one_of(0, 0, 0, 1),
            jumps=one_of(0, 0, 0, 1),
            sequence=one_of(0, 0, 0, 1),
            eras=one_of(0, 0, 0, 0, 0, 0, 1, 2),
            copiers=one_of(0, 0, 0, 1, 2),
        )

    @classmethod
    def parse(cls, line: str) -> Scenario:
        """The inverse of `str`; what is not named has its default. Raises `InvalidInput`."""
        word, *pairs = line.split()
        known = {f.name for f in fields(cls)}
        values = {}
        for name, _, value in (pair.partition("=") for pair in pairs):
            if word != "scenario" or name not in known or not value.isdigit():
                raise InvalidInput(f"{line!r}: wanted `scenario seed=1 writers=2 ...` with {', '.join(sorted(known))}")
            values[name] = int(value)
        return cls(**values)


@dataclass(frozen=True)
class Step:
    """One deviation: at its store call `call` (counted from 1; `END`: at its end) this happens to `actor`."""

    actor: str
    call: int
    action: Action
    target: str = ""
    ms: int = 0
    note: str = field(default="", compare=False)

    def __str__(self) -> str:
        call = "end" if self.call == END else str(self.call)
        argument = self.target if self.action is Action.PASS else str(self.ms) if self.action is Action.WAIT else ""
        text = f"{self.actor} {call} {self.action} {argument}".rstrip()
        return f"{text:<36} # {self.note}" if self.note else text

    @classmethod
    def parse(cls, line: str) -> Step:
        """The inverse of `str`, the comment aside. Raises `InvalidInput`."""
        words = line.partition("#")[0].split()
        try:
            actor, call, action, *arguments = words
            number, kind = END if call == "end" else int(call), Action(action)
            if kind is Action.PASS:
                return cls(actor, number, kind, target=arguments.pop())
            if kind is Action.WAIT:
                return cls(actor, number, kind, ms=int(arguments.pop()))
        except (ValueError, IndexError):
            actions = ", ".join(Action)
            raise InvalidInput(
                f"step {line!r}: wanted `ACTOR CALL ACTION [ARGUMENT]`, CALL a number or `end`, ACTION one of {actions}"
            ) from None
        return cls(actor, number, kind)


@dataclass(frozen=True)
class Script:
    """A scenario and the deviations in it."""

    scenario: Scenario
    steps: tuple[Step, ...] = ()

    def __str__(self) -> str:
        return "\n".join([str(self.scenario), *map(str, self.steps)])

    @classmethod
    def parse(cls, text: str) -> Script:
        """The inverse of `str`: empty lines and comments are passed over. Raises `InvalidInput`."""
        lines = [line for line in text.splitlines() if line.partition("#")[0].strip()]
        if not lines:
            raise InvalidInput("an empty script; wanted `scenario seed=...` and then steps")
        return cls(Scenario.parse(lines[0].strip()), tuple(Step.parse(line.strip()) for line in lines[1:]))


def by_call(steps: Iterable[Step]) -> dict[tuple[str, int], list[Step]]:
    """Steps by actor and call, in their order."""
    found: dict[tuple[str, int], list[Step]] = {}
    for step in steps:
        found.setdefault((step.actor, step.call), []).append(step)
    return found
