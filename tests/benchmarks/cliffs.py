"""How the cost of a batch grows where it once grew suddenly: each case at two sizes, in turns, in one session.

    python -m tests.benchmarks.cliffs truncate --rows 150000     (or: make bench BENCH=cliffs ARGS='truncate')

truncate    two records, one of them a truncate, on a shard of ROWS rows and on one of ten times as many
tie         two records of one key and one order on the same shards
keys        updates of ROWS keys, and of ten times as many, on a shard of twice as many rows

For each size: seconds of the write stage (the least of `--tries`), tasks of its last stage, plans that it wrote, the
rows that it looked up by keys. The JVM has 1 GB, which is Spark's default. Seconds depend on the machine; quote the
ratio of the sizes, and the ratio to the commit that made the shard.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import click
from pyspark.sql import DataFrame, SparkSession

from persist_core.contents.batch import BatchDescription
from persist_core.schema import CollectionSchema
from persist_spark.frame import OP, ORDER, records_type
from persist_spark.upsert import batch as upsert_batch
from persist_spark.upsert.lookup import committed_updates
from tests.benchmarks.sessions import session
from tests.oracle.upsert import TRUNCATE, Record
from tests.spark.staged_shard import StagedShard
from tests.spark.upsert_cases import ONE_KEY, order_struct

TIMES = 10  # the larger size
_BYTES_PER_RECORD = 40  # of the input as Parquet, about


@dataclasses.dataclass(frozen=True)
class Cost:
    """Measurements of one write stage."""

    seconds: float
    tasks: int
    plans: int
    by_keys: bool


def updates(
    spark: SparkSession,
    first: int,
    rows: int,
    name: str,
    key: str = "id",
    text: str = "id",
    schema: CollectionSchema = ONE_KEY,
    more: Mapping[str, str] | None = None,
) -> DataFrame:
    """The records frame of upserts of consecutive numbers, each with its key, a text and `more` cells by name."""
    given = {
        "id": key,
        "name": f"concat('{name} ', {text})",
        "amount": "id",
        "rate": "0.5D",
        OP: "'u'",
        ORDER: "named_struct('seq', CAST(NULL AS BIGINT), 'file', 'f', 'block', 0L, 'row', id)",
        **(more or {}),
    }
    cells = [
        f"CAST({given.get(field.name, 'NULL')} AS {field.dataType.simpleString()}) AS {field.name}"
        for field in records_type(schema, order_struct(schema)).fields
    ]
    return spark.range(first, first + rows).selectExpr(*cells)


class Case:
    """A shard of so many rows, and one more batch, staged again and again."""

    def __init__(
        self, spark: SparkSession, folder: Path, rows: int, schema: CollectionSchema = ONE_KEY, **cells: Any
    ) -> None:
        self.spark = spark
        self.shard = StagedShard(spark, folder, schema)
        start = time.perf_counter()
        manifest = self.shard.write(updates(spark, 0, rows, "old", schema=schema, **cells), self._description(10, rows))
        self.shard.append(manifest)
        self.base_s = time.perf_counter() - start
        self.shard.upper, self.shard.epoch = 10, 2

    def _description(self, upper: int, rows: int) -> BatchDescription:
        return self.shard.description(upper, input_bytes=rows * _BYTES_PER_RECORD)

    def stage(self, records: DataFrame | Iterable[Record], rows: int, **options: Any) -> None:
        """Stage the batch; nothing is committed."""
        self.shard.write(records, self._description(20, rows), **options)

    def cost(self, records: DataFrame | Iterable[Record], rows: int) -> Cost:
        """Stage the batch once, and measure that."""
        group = f"cliff {time.perf_counter()}"
        self.spark.sparkContext.setJobGroup(group, group)
        plans: list[bool] = []

        def committed(*arguments: Any, **options: Any) -> DataFrame | None:
            plans.append(options["slots"] is not None)
            return committed_updates(*arguments, **options)

        start = time.perf_counter()
        with mock.patch.object(upsert_batch, "committed_updates", committed):
            self.stage(records, rows)
        seconds = time.perf_counter() - start
        tracker = self.spark.sparkContext.statusTracker()
        last = max(tracker.getJobIdsForGroup(group))
        job = tracker.getJobInfo(last)
        stage = tracker.getStageInfo(max(job.stageIds)) if job is not None else None
        return Cost(seconds, 0 if stage is None else stage.numTasks, len(plans), plans[-1])


def _batch(case: str, spark: SparkSession, rows: int) -> tuple[DataFrame | list[Record], int]:
    """The records of the batch, and their number."""
    if case == "keys":
        return updates(spark, rows // 2, rows, "new"), rows
    order = (1, "f", 0, 1)
    first = Record((1,), ("new", None, None), 15, order)
    if case == "truncate":
        first = Record(None, TRUNCATE, 15, (None, "f", 0, 1))
    return [first, Record((1,), ("newer", None, None), 15, order)], 2


@click.command(help=__doc__)
@click.argument("case", type=click.Choice(["truncate", "tie", "keys"]))
@click.option("--rows", default=150_000, show_default=True, help="The smaller size.")
@click.option("--tries", default=3, show_default=True)
@click.option("--memory", default="1g", show_default=True, help="The heap of the JVM.")
def main(case: str, rows: int, tries: int, memory: str) -> None:
    spark = session(2, memory)
    sizes = (rows, TIMES * rows)
    with tempfile.TemporaryDirectory(prefix="cliffs-") as scratch:
        cases = [Case(spark, Path(scratch, str(size)), 2 * size if case == "keys" else size) for size in sizes]
        both = list(zip(cases, sizes, strict=True))
        tried = [[each.cost(*_batch(case, spark, size)) for each, size in both] for _ in range(tries)]
        best = [min(costs, key=lambda cost: cost.seconds) for costs in zip(*tried, strict=True)]
    for size, each, cost in zip(sizes, cases, best, strict=True):
        click.echo(
            f"{case}, {size:,}: {cost.seconds:.2f} s, {cost.seconds / each.base_s:.2f} of the commit before;"
            f" {cost.tasks} tasks in the last stage, {cost.plans} plans, {'by keys' if cost.by_keys else 'all slots'}"
        )
    click.echo(f"{case}: ratio of the sizes {best[1].seconds / best[0].seconds:.2f}")


if __name__ == "__main__":
    main()
