"""UPL-small: our write stage against a full rewrite (the floor to beat) and DuckDB (the ceiling), in one run.

    python -m tests.benchmarks.upl --keys 2000000 --events 50000 --rounds 20 --out upl.md

Prints a table of seconds per round, then the ratios; `--json` writes everything measured. Seconds depend on the
machine, ratios hardly: quote ratios.
"""

from __future__ import annotations

import functools
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from pyspark.sql import SparkSession

from persist_core.location.open import open_location
from persist_core.location.settings import PersistLocation
from tests.benchmarks.engines import Duck, Engine, Maintained, Ours, Rewrite, consume
from tests.benchmarks.workload import KeyType, Workload, write_base, write_round

_WARM_ROUNDS = 2  # compiled and cached by then; rounds are counted from the third on
_READS = 3


def session(cores: int) -> SparkSession:
    """A local session, as `write_batches` has one, but with memory for the big bases."""
    spark = (
        SparkSession.builder.master(f"local[{cores}]")
        .appName("upl")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "6g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", str(cores))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds, and what `work` returned."""
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def run(spark: SparkSession, workload: Workload, folder: Path, engines: list[Engine], feed: Path) -> dict[str, Any]:
    """Run all rounds, engine by engine within a round, so that other load on the machine affects all engines."""
    seconds: dict[str, list[float]] = {engine.name: [] for engine in engines}
    written: dict[str, list[int]] = {engine.name: [] for engine in engines}
    given: list[int] = []
    for number in range(workload.rounds + 1):
        events = feed / f"{number:03}.parquet"
        given.append(events.stat().st_size)
        for engine in engines:
            taken, size_bytes = timed(functools.partial(engine.commit, number, events))
            seconds[engine.name].append(taken)
            written[engine.name].append(size_bytes)
        click.echo(f"round {number:2}: " + "  ".join(f"{e.name} {seconds[e.name][-1]:.2f} s" for e in engines))
    rows = {engine.name: engine.rows() for engine in engines}
    if len(set(rows.values())) != 1:
        raise click.ClickException(f"the engines disagree on the number of rows: {rows}")
    plain = folder / "plain"
    spark.read.parquet(str(folder / "rewrite" / str(workload.rounds))).repartition(2).write.parquet(str(plain))
    reads = {engine.name: min(timed(engine.read)[0] for _ in range(_READS)) for engine in engines}
    reads["plain Parquet"] = min(timed(lambda: consume(spark.read.parquet(str(plain))))[0] for _ in range(_READS))
    return {
        "keys": workload.keys,
        "events": workload.events,
        "rounds": workload.rounds,
        "key_type": workload.key_type,
        "rows": next(iter(rows.values())),
        "commit_s": seconds,
        "written_bytes": written,
        "input_bytes": given,
        "read_s": reads,
    }


def report(measured: dict[str, Any]) -> str:
    """Markdown: one table of seconds, one of ratios with the targets."""
    ours, floor, duck = (measured["commit_s"][name] for name in (Ours.name, Rewrite.name, Duck.name))
    rounds = slice(_WARM_ROUNDS + 1, None)

    def middle(values: list[float]) -> float:
        return statistics.median(values[rounds])

    first, last = statistics.median(ours[3:6]), statistics.median(ours[-3:])
    written, given = sum(measured["written_bytes"][Ours.name][1:]), sum(measured["input_bytes"][1:])
    reads, maintained = measured["read_s"], measured["commit_s"][Maintained.name]
    rewritten = sum(measured["written_bytes"][Maintained.name][1:])
    lines = [
        f"### {measured['keys']:,} keys ({measured['key_type']}), {measured['rounds']} rounds of"
        f" {measured['events']:,} events",
        "",
        "| engine | base, s | commit, median s | last round, s | read, s | MB written a round |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, values in measured["commit_s"].items():
        mb = statistics.median(measured["written_bytes"][name][1:]) / 1e6
        lines.append(
            f"| {name} | {values[0]:.2f} | {middle(values):.2f} | {values[-1]:.2f} | {reads[name]:.2f} | {mb:.1f} |"
        )
    lines += [
        f"| plain Parquet | | | | {reads['plain Parquet']:.2f} | |",
        "",
        "| ratio | measured | aim |",
        "| --- | --- | --- |",
        f"| commit / rewrite | {middle(ours) / middle(floor):.2f} | <= 0.35 |",
        f"| commit / DuckDB | {middle(ours) / middle(duck):.2f} | |",
        f"| last 3 rounds / rounds 3-5 | {last / first:.2f} | <= 1.2 |",
        f"| newest snapshot, never merged / plain Parquet | {reads[Ours.name] / reads['plain Parquet']:.2f} | |",
        f"| snapshot, maintained / plain Parquet | {reads[Maintained.name] / reads['plain Parquet']:.2f} | 1.5 |",
        f"| newest snapshot, maintained / never merged | {reads[Maintained.name] / reads[Ours.name]:.2f} | |",
        f"| commits with all maintenance / rewrite | {sum(maintained[1:]) / sum(floor[1:]):.2f} | |",
        f"| commits with all maintenance / without | {sum(maintained[1:]) / sum(ours[1:]):.2f} | |",
        f"| bytes written with all maintenance / byte of input | {rewritten / given:.2f} | <= 6 |",
        f"| bytes written / byte of input | {written / given:.2f} | <= 2 |",
        "",
    ]
    return "\n".join(lines)


@click.command(help=__doc__)
@click.option("--keys", default=200_000, show_default=True, help="Rows of the base table.")
@click.option("--events", default=50_000, show_default=True, help="Events in each round.")
@click.option("--rounds", default=20, show_default=True)
@click.option("--key-type", type=click.Choice(["bigint", "string"]), default="bigint", show_default=True)
@click.option("--cores", default=2, show_default=True)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Also write everything measured here.")
@click.option("--out", type=click.Path(path_type=Path), help="Also append the tables here.")
def main(
    keys: int, events: int, rounds: int, key_type: KeyType, cores: int, json_path: Path | None, out: Path | None
) -> None:
    workload = Workload(keys=keys, events=events, rounds=rounds, key_type=key_type)
    spark = session(cores)
    with tempfile.TemporaryDirectory(prefix="upl-") as scratch:
        folder = Path(scratch)
        feed, rewrite, duck = (folder / name for name in ("feed", "rewrite", "duck"))
        for path in (feed, rewrite, duck):
            path.mkdir()
        write_base(workload, feed / "000.parquet")
        for number in range(1, rounds + 1):
            write_round(workload, number, feed / f"{number:03}.parquet")
        location = PersistLocation(f"file://{folder}/blobs", f"sqlite:///{folder}/consensus.db")
        with open_location(location) as opened:
            engines: list[Engine] = [
                Ours(spark, opened, key_type),
                Maintained(spark, opened, key_type),
                Rewrite(spark, rewrite),
                Duck(duck, cores),
            ]
            measured = run(spark, workload, folder, engines, feed)
    spark.stop()
    click.echo("\n" + report(measured))
    if json_path:
        json_path.write_text(json.dumps(measured, indent=1) + "\n")
    if out:
        with out.open("a") as file:
            file.write(report(measured))


if __name__ == "__main__":
    main()
