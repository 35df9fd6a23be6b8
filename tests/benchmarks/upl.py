"""One scenario: engines apply the same rounds of events, in turns, each in a process of its own.

    python -m tests.benchmarks.upl --keys 2000000 --events 50000 --rounds 10 --json medium.json
    python -m tests.benchmarks.upl --keys 2000000 --events 50000 --tombstones 200000 --engines ours,sequence

Maintenance is due in every `--maintain-every`th round and in the last, and is timed apart from the commit. In every
`--read-every`th round and in the last, each engine reads its newest rows, before and after maintenance. At the end the
rows of each engine are compared with the newest event of each key in the files; the run fails if they differ. Prints a
table of medians, and ratios (of commits: the median of the ratios of the rounds). `--json` writes everything measured.
Seconds depend on the machine, ratios hardly: quote ratios.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
import pyspark

from tests.benchmarks.engines import Setting
from tests.benchmarks.tables import scenario_table
from tests.benchmarks.turns import SHORT_NAMES, Player
from tests.benchmarks.workload import Hits, KeyType, Workload, fingerprint, newest_events, write_feed
from tests.processes import busy_seconds, usage

READS = 3  # in a row; the best counts


@dataclass
class Figures:
    """Measurements of one engine. Lists are by round, 0 being the base; reads are by round, as text, for JSON."""

    commit_s: list[float] = field(default_factory=list)
    commit_bytes: list[int] = field(default_factory=list)
    maintain_s: list[float] = field(default_factory=list)
    maintain_bytes: list[int] = field(default_factory=list)
    read_before_s: dict[str, float] = field(default_factory=dict)
    read_s: dict[str, float] = field(default_factory=dict)
    stored_bytes: dict[str, int] = field(default_factory=dict)
    middle_read_s: float | None = None
    peak_memory_bytes: int = 0


@dataclass(frozen=True)
class Scenario:
    """The options of one run."""

    workload: Workload
    engines: Sequence[str]
    maintain_every: int = 1
    read_every: int = 5
    cores: int = 2
    memory: str = "2g"


def run(scenario: Scenario, say: Callable[[str], None]) -> dict[str, Any]:
    """All rounds; everything measured. Raises `AssertionError` if an engine fails or its rows are not the expected."""
    workload = scenario.workload
    began, busy_before, used_before = time.perf_counter(), busy_seconds(), usage().processor_s
    with tempfile.TemporaryDirectory(prefix="upl-") as scratch, contextlib.ExitStack() as started:
        folder = Path(scratch)
        (folder / "feed").mkdir()
        feed = write_feed(workload, folder / "feed")
        players = []
        for name in scenario.engines:
            setting = Setting(folder / name.replace(" ", "-"), workload, scenario.cores, scenario.memory)
            players.append(Player(name, setting))
            started.callback(players[-1].close)
        figures = {name: Figures() for name in scenario.engines}
        for number, events in enumerate(feed):
            turn = number % len(players)  # so that no engine always runs after the slowest
            _round(scenario, number, events, [*players[turn:], *players[:turn]], figures)
            say(
                f"round {number:3}: " + "  ".join(f"{name} {each.commit_s[-1]:.2f} s" for name, each in figures.items())
            )
        for player in players:
            if player.can("read_as_of"):
                middle = [player.call("read_as_of", workload.rounds // 2).seconds for _ in range(READS)]
                figures[player.name].middle_read_s = min(middle)
            figures[player.name].peak_memory_bytes = player.usage().peak_memory_bytes
        used = usage().processor_s - used_before  # of all engines too: they still run
        others = (busy_seconds() - busy_before - used) / (time.perf_counter() - began)
        rows = _check(players, feed, folder)
        given = [path.stat().st_size for path in feed]
    return {
        "workload": asdict(workload),
        "maintain_every": scenario.maintain_every,
        "rows": rows,
        "input_bytes": given,
        "engines": {name: asdict(each) for name, each in figures.items()},
        "machine": {"cores": os.cpu_count(), "others": round(others, 2), "spark": pyspark.__version__},
        "commit": _git_commit(),
    }


def _round(
    scenario: Scenario, number: int, events: Path, players: Sequence[Player], figures: dict[str, Figures]
) -> None:
    """One turn of each engine."""
    is_last = number == scenario.workload.rounds
    reads = number > 0 and (number % scenario.read_every == 0 or is_last)
    for player in players:
        turn = player.call("commit", number, events)
        figures[player.name].commit_s.append(turn.seconds)
        figures[player.name].commit_bytes.append(turn.written_bytes)
    if reads:
        for name, seconds in _read(players).items():
            figures[name].read_before_s[str(number)] = seconds
    for player in players:
        if player.can("maintain") and (is_last or number % scenario.maintain_every == 0):
            turn = player.call("maintain")
            figures[player.name].maintain_s.append(turn.seconds)
            figures[player.name].maintain_bytes.append(turn.written_bytes)
        else:
            figures[player.name].maintain_s.append(0.0)
            figures[player.name].maintain_bytes.append(0)
    if reads:
        for name, seconds in _read(players).items():
            figures[name].read_s[str(number)] = seconds
        for player in players:
            figures[player.name].stored_bytes[str(number)] = player.stored_bytes()


def _read(players: Sequence[Player]) -> dict[str, float]:
    """Seconds of the best of `READS` reads by each engine."""
    taken: dict[str, list[float]] = {player.name: [] for player in players}
    for _ in range(READS):
        for player in players:
            taken[player.name].append(player.call("read").seconds)
    return {name: min(seconds) for name, seconds in taken.items()}


def _check(players: Sequence[Player], feed: list[Path], folder: Path) -> int:
    """The number of living rows. Raises `AssertionError` if an engine's rows are not the newest events of the feed."""
    expected = fingerprint(newest_events(feed))
    for player in players:
        exported = folder / "exported"
        player.call("export", exported)
        found = fingerprint(f"FROM read_parquet('{exported}/*.parquet')")
        if found != expected:
            raise AssertionError(f"{player.name}: (rows, sum of hashes) is {found}, expected {expected}")
        shutil.rmtree(exported)
    return expected[0]


def _git_commit() -> str:
    """The commit that was measured, with a `+` if the work tree differs from it."""
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.strip() or "unknown"


@click.command(help=__doc__)
@click.option("--keys", default=200_000, show_default=True, help="Rows of the base table.")
@click.option("--events", default=5_000, show_default=True, help="Events in each round.")
@click.option("--rounds", default=12, show_default=True)
@click.option("--key-type", type=click.Choice(["bigint", "string", "rising"]), default="bigint", show_default=True)
@click.option("--hits", type=click.Choice(["uniform", "recent"]), default="uniform", show_default=True)
@click.option(
    "--engines", default="ours,iceberg,rewrite,duckdb", show_default=True, help="Some of " + ",".join(SHORT_NAMES)
)
@click.option("--maintain-every", default=1, show_default=True, help="Rounds from one maintenance to the next.")
@click.option("--read-every", default=5, show_default=True, help="Rounds from one measured read to the next.")
@click.option("--tombstones", default=0, show_default=True, help="Deletes of other keys in the base.")
@click.option("--cores", default=2, show_default=True)
@click.option("--memory", default="2g", show_default=True, help="The heap of each engine's JVM.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Also write everything measured here.")
def main(
    keys: int,
    events: int,
    rounds: int,
    key_type: KeyType,
    hits: Hits,
    engines: str,
    maintain_every: int,
    read_every: int,
    tombstones: int,
    cores: int,
    memory: str,
    json_path: Path | None,
) -> None:
    unknown = set(engines.split(",")) - SHORT_NAMES.keys()
    if unknown:
        raise click.BadParameter(f"found {', '.join(sorted(unknown))}; expected some of {', '.join(SHORT_NAMES)}")
    workload = Workload(keys=keys, events=events, rounds=rounds, key_type=key_type, hits=hits, tombstones=tombstones)
    names = [SHORT_NAMES[short] for short in engines.split(",")]
    measured = run(Scenario(workload, names, maintain_every, read_every, cores, memory), click.echo)
    click.echo("\n" + scenario_table(measured))
    if json_path:
        json_path.write_text(json.dumps(measured, indent=1) + "\n")


if __name__ == "__main__":
    main()
