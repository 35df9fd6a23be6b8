"""The peak memory of compaction: all batches of a large shard merged into one run, in a fresh process.

    python -m tests.benchmarks.memory --keys 10000000 --rounds 4 --json memory.json

One process makes the base and the rounds (as the engine of the other benchmarks does), another one merges them, and
its peak resident memory is measured. For comparison a third one merges a shard of a tenth of the keys: memory that is
bounded by configuration is about the same for both.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import click

from tests.benchmarks.engines import Setting
from tests.benchmarks.turns import COMPACTION, OURS, Player
from tests.benchmarks.workload import Workload, write_feed


def measure(workload: Workload, memory: str) -> dict[str, Any]:
    """Rows and bytes of the shard; seconds and peak resident bytes of merging it."""
    with tempfile.TemporaryDirectory(prefix="memory-") as scratch:
        folder = Path(scratch)
        (folder / "feed").mkdir()
        setting = Setting(folder / "shard", workload, cores=2, memory=memory)
        writer = Player(OURS, setting)
        try:
            for number, events in enumerate(write_feed(workload, folder / "feed")):
                writer.call("commit", number, events)
            stored = writer.stored_bytes()
        finally:
            writer.close()
        merger = Player(COMPACTION, setting)
        try:
            before = merger.usage().peak_memory_bytes
            turn = merger.call("maintain")
            return {
                "keys": workload.keys,
                "rounds": workload.rounds,
                "stored_bytes": stored,
                "merge_s": turn.seconds,
                "written_bytes": turn.written_bytes,
                "imports_bytes": before,
                "peak_memory_bytes": merger.usage().peak_memory_bytes,
            }
        finally:
            merger.close()


def measure_two(workload: Workload, memory: str = "4g") -> dict[str, Any]:
    """Measure a tenth of the keys, and all."""
    tenth = Workload(workload.keys // 10, workload.events, workload.rounds)
    return {"tenth": measure(tenth, memory), "whole": measure(workload, memory)}


def sentence(measured: dict[str, Any]) -> str:
    """One of them in words."""
    return (
        f"{measured['keys']:,} keys and {measured['rounds']} rounds, {measured['stored_bytes'] / 1e6:.0f} MB: merged"
        f" in {measured['merge_s']:.1f} s, peak memory {measured['peak_memory_bytes'] / 1e6:.0f} MB, of which imports"
        f" {measured['imports_bytes'] / 1e6:.0f} MB."
    )


@click.command(help=__doc__)
@click.option("--keys", default=10_000_000, show_default=True, help="Rows of the base table.")
@click.option("--events", default=50_000, show_default=True, help="Events in each round.")
@click.option("--rounds", default=4, show_default=True)
@click.option("--memory", default="4g", show_default=True, help="The heap of the JVM that makes the shard.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Also write everything measured here.")
def main(keys: int, events: int, rounds: int, memory: str, json_path: Path | None) -> None:
    measured = measure_two(Workload(keys, events, rounds), memory)
    for each in measured.values():
        click.echo(sentence(each))
    if json_path:
        json_path.write_text(json.dumps(measured) + "\n")


if __name__ == "__main__":
    main()
