"""Bytes that a batch of random keys reads of its shard, at two sizes of the shard, and what more keys cost.

    python -m tests.benchmarks.lookups --rows 1000000 --rows 4000000 --keys 100      (or: make bench BENCH=lookups)

The keys of shard and batches are hashes of numbers, so a batch meets all files. Printed for each batch: the bytes that
the JVM read (Linux; its shuffle included), less the bytes that a batch of one key reads, and processor seconds: medians
of `--tries`, in turns, after one that warms up.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from pyspark.sql import SparkSession

from persist_spark.upsert.few_keys import pays
from tests.benchmarks.cliffs import Case, updates
from tests.benchmarks.sessions import session
from tests.processes import io_bytes, usage

KEY, TEXT = "xxhash64(id)", "sha2(CAST(id AS STRING), 256)"


@dataclass(frozen=True)
class Cost:
    """Measurements of one batch."""

    read_bytes: int
    processor_s: float


def _read_bytes(spark: SparkSession) -> int:
    context: Any = spark.sparkContext
    return io_bytes(context._gateway.proc.pid)["rchar"]


def cost_of(case: Case, rows: int, keys: int, number: int) -> Cost:
    """Stage updates of so many keys of the shard, other ones for each number."""
    records = updates(case.spark, 0, keys, "new", key=f"xxhash64((id * {rows // keys} + {number}))")
    before, used = _read_bytes(case.spark), usage().processor_s
    case.stage(records, keys, is_columnar=True)
    return Cost(_read_bytes(case.spark) - before, usage().processor_s - used)


def measure(spark: SparkSession, folder: Path, rows: int, keys: Sequence[int], tries: int) -> None:
    """Print what batches of these sizes cost on a shard of so many rows."""
    case = Case(spark, folder, rows, key=KEY, text=TEXT)
    stored = sum(batch.size_bytes for batch in case.shard.client.state("things").batches)
    tried = [[cost_of(case, rows, count, number) for count in (1, *keys)] for number in range(tries + 1)][1:]
    nothing, *found = zip(*tried, strict=True)
    least = statistics.median(cost.read_bytes for cost in nothing)
    for count, costs in zip(keys, found, strict=True):
        read = statistics.median(cost.read_bytes for cost in costs) - least
        seconds = statistics.median(cost.processor_s for cost in costs)
        how = "pages with keys" if pays(count, rows) else "all pages"
        click.echo(
            f"{rows:,} rows, {stored / 1e6:.0f} MB, {count:,} keys: read {read / 1e6:.1f} MB, {read / stored:.2f} of"
            f" the shard, {seconds:.1f} processor seconds ({how})"
        )


@click.command(help=__doc__)
@click.option("--rows", multiple=True, default=[1_000_000, 4_000_000], show_default=True, help="Sizes of shards.")
@click.option("--keys", multiple=True, default=[100, 1_000, 10_000, 100_000], show_default=True)
@click.option("--tries", default=3, show_default=True)
@click.option("--memory", default="4g", show_default=True, help="The heap of the JVM.")
def main(rows: Sequence[int], keys: Sequence[int], tries: int, memory: str) -> None:
    spark = session(2, memory)
    for size in rows:
        with tempfile.TemporaryDirectory(prefix="lookups-") as scratch:
            measure(spark, Path(scratch), size, keys, tries)


if __name__ == "__main__":
    main()
