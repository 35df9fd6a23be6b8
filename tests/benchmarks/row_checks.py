"""The cost of checks of rows and of positions of errs, as a share of the write stage: in turns, in one warm session.

    python -m tests.benchmarks.row_checks --rows 100000 --rounds 30     (or: make bench BENCH=row_checks)

none        no checks, and no record has a position
positions   no checks; what every collection has
checks      three checks: one makes errs, one warns, one stops the run

Each round stages the same batch once for each, in another order; nothing is committed. Quote the ratios of processor
seconds (this process and the JVM): they hold on a loaded machine too.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import click
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from persist_core.config.collection import load_collection
from persist_spark.decode import formats
from persist_spark.upsert.job import run_write_job
from tests.benchmarks.sessions import session
from tests.spark.test_write_job import Collection

CASES = ("none", "positions", "checks")
CHECKS: dict[str, Any] = {
    "not_negative": "balance >= 0",
    "known_country": {"sql": "country IN ('DE', 'FR', 'IT')", "on_fail": "warn"},
    "has_name": {"sql": "length(name) > 0", "on_fail": "fail"},
}
_COLUMNS = {"id": "bigint", "name": "string", "country": "string", "balance": "decimal(12,2)", "at": "timestamp"}
_UNTIL = 1_767_225_600_000


class Batch:
    """A shard with one commit, and a batch that is staged again and again."""

    def __init__(self, spark: SparkSession, folder: Path, rows: int, case: str) -> None:
        folder.mkdir()
        self.spark, self.case, self.things = spark, case, Collection(folder)
        body = {
            "source": {"path": "in/*.jsonl", "format": "json"},
            "key": "id",
            "columns": _COLUMNS,
            "delete": "none",
            "checks": CHECKS if case == "checks" else {},
        }
        (folder / "things.yaml").write_text(json.dumps(body))
        self.things.config = load_collection(folder / "things.yaml")
        for number in range(2):
            rng = random.Random(number)
            self.things.drop(f"{number}.jsonl", *(_record(rng, rows) for _ in range(rows)))
            if not number:
                self.things.run(spark, _UNTIL)
        self.description = self.things.mint(_UNTIL + 1)

    def cost(self, jvm: int) -> tuple[float, float]:
        """Seconds and processor seconds of the write stage."""
        seconds, cpu = time.perf_counter(), _cpu(jvm)
        with _without_positions() if self.case == "none" else contextlib.nullcontext():
            run_write_job(self.spark, self.things.spec(self.description), self.things.location)
        return time.perf_counter() - seconds, _cpu(jvm) - cpu


def _record(rng: random.Random, rows: int) -> dict[str, Any]:
    return {
        "id": rng.randrange(2 * rows),
        "name": f"name {rng.random()}",
        "country": rng.choice(["DE", "FR", "IT"]),
        "balance": str(rng.randrange(10**6) / 100),
        "at": "2026-01-01T00:00:00Z",
    }


@contextlib.contextmanager
def _without_positions() -> Iterator[None]:
    with mock.patch.object(formats, "shown_position", return_value=F.lit(None).cast("string")):
        yield


def _cpu(jvm: int) -> float:
    """Processor seconds of this process and the JVM."""
    ticks = Path(f"/proc/{jvm}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(os.times()[:2]) + sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


@click.command(help=__doc__)
@click.option("--rows", default=100_000, show_default=True, help="Records of the batch.")
@click.option("--rounds", default=30, show_default=True)
@click.option("--warm", default=4, show_default=True, help="Rounds before them that do not count.")
def main(rows: int, rounds: int, warm: int) -> None:
    spark = session(2, "2g")
    context: Any = spark.sparkContext
    jvm = context._gateway.proc.pid
    found: dict[str, list[tuple[float, float]]] = {case: [] for case in CASES}
    with tempfile.TemporaryDirectory(prefix="row-checks-") as scratch:
        batches = [Batch(spark, Path(scratch, case), rows, case) for case in CASES]
        for number in range(warm + rounds):
            for batch in random.Random(number).sample(batches, len(batches)):
                cost = batch.cost(jvm)
                if number >= warm:
                    found[batch.case].append(cost)
    for case in CASES:
        wall, cpu = (statistics.median(each[place] for each in found[case]) for place in (0, 1))
        ratios = [
            statistics.median(own[place] / base[place] for own, base in zip(found[case], found["none"], strict=True))
            for place in (0, 1)
        ]
        click.echo(
            f"{case}: {cpu:.2f} processor seconds, {ratios[1]:.3f} of those without; {wall:.2f} s, {ratios[0]:.3f}"
        )


if __name__ == "__main__":
    main()
