"""The cost of a hot key: a batch with 30 % of its records on one key, against as many records on all keys.

    python -m tests.benchmarks.hot --rows 2000000     (or: make bench BENCH=hot)

Records are read from Parquet, have the time of the batch, and meet a shard of as many rows. Each batch is staged
`--tries` times, in turns; the hot one also as if hot keys were not looked for. Printed are processor seconds of
all tasks, of the longest task, and a bound of the time on a cluster of 16 cores: for each stage its longest task, or an
equal share of all tasks if that is more.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import click
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from persist_spark.upsert import batch as upsert_batch
from tests.benchmarks.cliffs import Case, updates
from tests.benchmarks.sessions import session

CORES = 16
_SAID = 16  # times as many records as there are: so there are tasks for all cores
_NOT_LOOKED = "hot, not looked for"
_SHARE = "pmod(xxhash64(id), 10) < 3"


@dataclass(frozen=True)
class Cost:
    """Processor seconds of the tasks of a batch."""

    all_s: float
    longest_s: float
    bound_s: float


def cost_of(spark: SparkSession, group: str) -> Cost:
    """The cost of the jobs of this group."""
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    context: Any = spark.sparkContext
    store, stages = context._jsc.sc().statusStore(), []
    for stage in sorted({stage for job in jobs if job is not None for stage in job.stageIds}):
        found = store.taskList(stage, 0, 100_000)
        metrics = [found.apply(place).taskMetrics() for place in range(found.size())]
        stages.append([each.get().executorCpuTime() / 1e9 for each in metrics if each.isDefined()])
    done = [each for each in stages if each]
    return Cost(sum(map(sum, done)), max(map(max, done)), sum(max(max(tasks), sum(tasks) / CORES) for tasks in done))


def _batch(spark: SparkSession, folder: Path, rows: int, *, is_hot: bool) -> DataFrame:
    path = str(folder / f"records-{is_hot}")
    records = updates(spark, 0, rows, "new").repartition(8)
    if is_hot:
        records = records.withColumn("id", F.expr(f"CASE WHEN {_SHARE} THEN 0L ELSE id END"))
    records.write.parquet(path)
    return spark.read.schema(records.schema).parquet(path)


@click.command(help=__doc__)
@click.option("--rows", default=1_000_000, show_default=True)
@click.option("--tries", default=3, show_default=True)
@click.option("--memory", default="4g", show_default=True, help="The heap of the JVM.")
def main(rows: int, tries: int, memory: str) -> None:
    spark = session(2, memory, {"spark.sql.adaptive.coalescePartitions.enabled": "false"})
    with tempfile.TemporaryDirectory(prefix="hot-") as scratch:
        case = Case(spark, Path(scratch, "shard"), rows)
        uniform, hot = (_batch(spark, Path(scratch), rows, is_hot=is_hot) for is_hot in (False, True))
        batches = {"uniform": uniform, "hot": hot, _NOT_LOOKED: hot}
        costs: dict[str, list[Cost]] = {name: [] for name in batches}
        for _ in range(tries):
            for name, records in batches.items():
                group = f"{name} {time.perf_counter()}"
                spark.sparkContext.setJobGroup(group, group)
                least = 1 << 60 if name == _NOT_LOOKED else 0
                with mock.patch.object(upsert_batch, "LARGE_INPUT_BYTES", least):
                    case.stage(records, _SAID * rows, is_columnar=True)
                costs[name].append(cost_of(spark, group))
    for name, found in costs.items():
        best = min(found, key=lambda cost: cost.all_s)
        click.echo(
            f"{name}: {best.all_s:.1f} processor seconds, longest task {best.longest_s:.1f},"
            f" on {CORES} cores {best.bound_s:.1f}"
        )
    for name in ("hot", _NOT_LOOKED):
        for what in ("all_s", "longest_s", "bound_s"):
            pairs = zip(costs[name], costs["uniform"], strict=True)
            ratio = statistics.median(getattr(one, what) / getattr(other, what) for one, other in pairs)
            click.echo(f"{name} / uniform, {what}: {ratio:.2f}")


if __name__ == "__main__":
    main()
