"""Simulate for a given time: `python -m tests.sim --minutes 60 [--steps 1000000] [--seed 0] [--processes 2]`.

One simulation per seed, from `--seed` on; process `p` of `n` takes every n-th. Each finding ends its process, is shrunk
and printed as a script; the exit code is then 1. Rates are printed about once a minute and at the end.
"""

from __future__ import annotations

import random
import sys
import time
from concurrent.futures import ProcessPoolExecutor

import click

from tests.sim.simulator.shrink import explain
from tests.sim.simulator.simulation import simulate_seed

REPORT_EVERY_S = 60.0


def simulate_for(first_seed: int, stride: int, seconds: float, steps: int) -> str | None:
    """Simulate every `stride`-th seed until the time is over, or so many store calls were made.

    Returns the explanation of the first finding, if there is one.
    """
    begun = reported = time.monotonic()
    seed, simulations, calls, commits = first_seed, 0, 0, 0
    while time.monotonic() < begun + seconds and calls < steps:
        outcome = simulate_seed(seed)
        if outcome.failure is not None:
            return explain(seed, outcome)
        simulations, calls, commits = simulations + 1, calls + len(outcome.log), commits + outcome.commits
        now = time.monotonic()
        if now - reported >= REPORT_EVERY_S or simulations == 1:
            reported = now
            click.echo(_rates(seed, simulations, calls, commits, now - begun))
        seed += stride
    click.echo(_rates(seed, simulations, calls, commits, time.monotonic() - begun))
    return None


def _rates(seed: int, simulations: int, calls: int, commits: int, seconds: float) -> str:
    per_s = 1 / max(seconds, 1e-9)
    return (
        f"seed {seed}: {simulations} simulations, {commits} commits, {calls} store calls in {seconds:.0f} s"
        f" ({simulations * per_s:.1f} simulations/s, {calls * per_s:.0f} calls/s); nothing found"
    )


@click.command()
@click.option("--minutes", type=float, default=10.0, show_default=True)
@click.option("--steps", type=int, help="End after this many store calls. [default: no limit]")
@click.option("--seed", type=int, help="The first seed. [default: drawn, and printed]")
@click.option("--processes", type=int, default=1, show_default=True)
def main(minutes: float, steps: int | None, seed: int | None, processes: int) -> None:
    """Simulate the whole protocol by seed until the time is over; exit code 1 if something was found."""
    first = random.SystemRandom().getrandbits(32) if seed is None else seed
    with ProcessPoolExecutor(processes) as pool:
        share = sys.maxsize if steps is None else -(-steps // processes)
        running = [
            pool.submit(simulate_for, first + number, processes, minutes * 60, share) for number in range(processes)
        ]
        findings = [finding for each in running if (finding := each.result()) is not None]
    for finding in findings:
        click.echo(finding)
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
