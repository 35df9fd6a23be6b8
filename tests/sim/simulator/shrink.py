"""From a failing simulation to a short script that fails in the same way.

Zeller and Hildebrandt's delta debugging (2002), greedily: fewer actors and files, then ever smaller runs of steps are
left out, as long as a replay still ends in a finding of the same kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

from tests.sim.simulator.script import FATES, Scenario, Script
from tests.sim.simulator.simulation import Outcome, Parts, replay, simulate_seed

MAX_REPLAYS = 600  # some 20 s of work; a script that is still long by then is short enough

MAX_SHIFT_CALLS = 12  # a failed call seldom makes an actor repeat more


def shrink(outcome: Outcome, parts: Parts | None = None, *, max_replays: int = MAX_REPLAYS) -> Outcome:
    """The shortest outcome found that has a failure of the same kind; `outcome` itself if no shorter one exists."""
    if outcome.failure is None:
        return outcome
    best, replays, has_shrunk = outcome, 0, True
    while has_shrunk:  # each round leaves something out, and replays are bounded
        has_shrunk = False
        for candidate in _shorter(best.script):
            if replays >= max_replays:
                return best
            replays += 1
            found = replay(candidate, parts)
            if found.failure is not None and found.failure.kind == outcome.failure.kind:
                best, has_shrunk = found, True
                break
    return best


def _shorter(script: Script) -> Iterator[Script]:
    """The next scripts to try: the largest cuts first."""
    for scenario in _smaller(script.scenario):
        yield Script(scenario, script.steps)
    size = len(script.steps)
    while size:
        for begin in range(0, len(script.steps), size):
            yield Script(script.scenario, script.steps[:begin] + script.steps[begin + size :])
        size //= 2
    yield from _shifted(script)


def _shifted(script: Script) -> Iterator[Script]:
    """Without a fault, and so without the calls that it made the actor repeat: its later steps move forward."""
    for number, left_out in enumerate(script.steps):
        if left_out.action in FATES:
            for calls in range(1, MAX_SHIFT_CALLS):
                later = [
                    replace(step, call=step.call - calls)
                    if step.actor == left_out.actor and step.call > left_out.call + calls
                    else step
                    for step in script.steps[number + 1 :]
                ]
                yield Script(script.scenario, (*script.steps[:number], *later))


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    for name in (field.name for field in fields(scenario) if field.name != "seed"):
        count = getattr(scenario, name)
        if count:
            yield replace(scenario, **{name: count - 1})


def explain(seed: int, outcome: Outcome, parts: Parts | None = None) -> str:
    """A failing simulation of a seed as text: the finding, and a short script that finds it again."""
    short = shrink(outcome, parts)
    found = outcome.failure
    return "\n".join(
        [
            f"simulation of seed {seed} (PERSIST_SEED={seed} makes it the first one)",
            f"found {found.kind}: {found.message}" if found else "found nothing",
            f"shrunk from {len(outcome.script.steps)} steps to {len(short.script.steps)}; replay it with",
            f'replay(Script.parse("""\n{short.script}\n"""))',
        ]
    )


def check_seeds(seeds: range, parts: Parts | None = None) -> list[Outcome]:
    """Simulate all these seeds. Raises `AssertionError` with a shrunk script for the first that finds something."""
    outcomes = []
    for seed in seeds:
        outcome = simulate_seed(seed, parts)
        if outcome.failure is not None:
            raise AssertionError(explain(seed, outcome, parts))
        outcomes.append(outcome)
    return outcomes
