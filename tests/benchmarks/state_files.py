"""How batches of 1,000 records grow with the operator state that they leave alone: time, bytes opened, bytes written.

    python -m tests.benchmarks.state_files [ROWS ...]

For each number of rows: a stash of so many records over 30 days, and an order index of twice as many tombstones. Then
in turns, the median of `TRIES`: a batch that meets neither, one that meets a day of the stash, and a full state.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from persist_core.config.collection import FILE_POSITION
from persist_core.contents.batch import ORDER_INDEX_OPERATOR, BatchManifest
from persist_core.schema import TIME, CollectionSchema, Column
from persist_spark import frame
from tests.spark.staged_shard import StagedShard

KEY, VALUES = (Column("id", "bigint", nullable=False),), (Column("name", "string"),)
DAY, DAYS, BATCH, TRIES = 86_400_000, 30, 1000, 3


def records(spark: SparkSession, schema: CollectionSchema, first: int, count: int, *, op: str, ahead: int) -> DataFrame:
    """Records of the keys from `first` on; of times over `DAYS` days after `ahead`, or none."""
    rows = spark.range(first, first + count)
    names = [f"by{n}" for n in range(len(schema.order or ()))]
    block = F.lit(0).cast("bigint").alias("block")
    order = F.struct(*[F.col("id").alias(n) for n in names], F.lit("f").alias("file"), block, F.col("id").alias("row"))
    at = F.lit(None) if not ahead else F.lit(ahead) + F.pmod(F.xxhash64("id"), F.lit(DAYS)) * DAY
    err = [F.expr(sql) for sql in frame.no_err()]
    cells = [F.lit(op).alias(frame.OP), at.cast("bigint").alias(TIME), order.alias(frame.ORDER)]
    value = F.concat(F.lit("name of "), F.col("id")).alias("name")
    return rows.select("id", value, *cells, F.lit(None).cast("binary").alias(frame.BAD_KEY), *err)


def written(manifest: BatchManifest) -> int:
    """Bytes of operator state that a batch has written."""
    states = manifest.operators.values()
    return sum(each.size_bytes for state in states for each in state.artifacts if not each.is_carried)


def turns(spark: SparkSession, shard: StagedShard, first: int) -> Iterator[tuple[str, float, int, int]]:
    """A measured action, the seconds it takes, the bytes of the stash that it opens, and of state that it writes."""
    kinds = (("neither", 1, True), ("a day is due", DAY, True), ("full state", 1, False))
    for number in range(TRIES):
        for turn, (name, step, is_delta) in enumerate(kinds):
            # Keys of its own: a record with an order that was seen before is a tie, and takes a second plan.
            own = first + BATCH * (number * len(kinds) + turn)
            rows = records(spark, shard.schema, own, BATCH, op="u", ahead=0)
            upper = shard.upper + step
            due = [
                each for each in shard.stash if (each.first_time or 0) < upper and (each.last_time or 0) >= shard.upper
            ]
            began = time.perf_counter()
            manifest = shard.commit(rows, upper, is_delta=is_delta, may_stash=False)
            seconds = time.perf_counter() - began
            yield name, seconds, sum(each.size_bytes for each in due), written(manifest)


def shard_of(spark: SparkSession, folder: Path, schema: CollectionSchema, rows: int) -> StagedShard:
    """A shard with a stash of so many records, in `sequence` order also with twice as many tombstones, sorted."""
    shard = StagedShard(spark, folder, schema)
    shard.commit(records(spark, schema, 0, rows, op="u", ahead=10 * DAY), DAY)
    if schema.order is not None:
        shard.commit(records(spark, schema, 10 * rows, 2 * rows, op="d", ahead=0), 2 * DAY, is_delta=True)
    shard.commit(records(spark, schema, 20 * rows, 1, op="u", ahead=0), 3 * DAY)
    shard.commit(records(spark, schema, 20 * rows, 1, op="u", ahead=0), 10 * DAY, is_delta=True)
    return shard


def main(sizes: list[int]) -> None:
    """Print a table."""
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    sys.stdout.write("| order | stash, rows | tombstones | batch | s | stash opened, MB | state written, MB |\n")
    sys.stdout.write("| --- | --- | --- | --- | --- | --- | --- |\n")
    for order in (None, (Column("seq", "bigint"),)):
        for rows in sizes:
            with tempfile.TemporaryDirectory() as folder:
                shard = shard_of(
                    spark, Path(folder), CollectionSchema(KEY, VALUES, order, position=FILE_POSITION), rows
                )
                entries = sum(each.rows or 0 for each in shard.chains.get(ORDER_INDEX_OPERATOR, ()))
                found: dict[str, list[tuple[float, ...]]] = {}
                for name, *measured in turns(spark, shard, 30 * rows):
                    found.setdefault(name, []).append(tuple(measured))
                for name, tries in found.items():
                    seconds, opened, wrote = (statistics.median(each) for each in zip(*tries, strict=True))
                    named = f"| {'log' if order is None else 'sequence'} | {rows:,} | {entries:,} | {name} |"
                    sys.stdout.write(f"{named} {seconds:.2f} | {opened / 1e6:.2f} | {wrote / 1e6:.2f} |\n")


if __name__ == "__main__":
    main([int(each) for each in sys.argv[1:]] or [100_000, 1_000_000])
