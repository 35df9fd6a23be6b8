"""The cost of an initial load: Parquet files become the first batch of a collection, against plain Spark.

    python -m tests.benchmarks.initial_load --rows 10000000     (or: make bench BENCH=initial_load)

Plain Spark writes the same rows, sorted by key within as many partitions, compressed alike. Ours also decides which
record of a key wins, counts, and digests rows and files. Both run in one warm session, in turns. Printed are processor
seconds (the JVM and this process) and the median of their ratios. Bytes are the input's.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

import click
from pyspark.sql import SparkSession

from persist_core.config.collection import CollectionConfig
from persist_core.contents.batch import BatchDescription
from persist_core.handles.client import PersistClient
from persist_core.keys import manifest_key
from persist_core.location.open import open_location
from persist_core.location.settings import PersistLocation
from persist_core.spark_job.spec import JobSpec
from persist_core.time_text import parse_time
from persist_spark.session import stage_settings, use
from persist_spark.upsert.job import run_write_job
from tests.benchmarks.sessions import session
from tests.one_run import run_one
from tests.processes import usage

_COLUMNS = {"id": "string", "name": "string", "city": "string", "visits": "bigint", "score": "double"}
_CELLS = {
    "id": "md5(CAST(id AS STRING))",
    "name": "concat('name ', hash(id))",
    "city": "concat('city ', id % 500)",
    "visits": "xxhash64(id)",
    "score": "CAST(hash(id) AS DOUBLE) / 7",
}


def write_feed(spark: SparkSession, folder: Path, rows: int) -> int:
    """Rows in no order of their keys, as a source would give them; their bytes."""
    cells = [f"{sql} AS {name}" for name, sql in _CELLS.items()]
    spark.range(0, rows, numPartitions=8).selectExpr(*cells).write.parquet(str(folder / "feed"))
    return sum(file.stat().st_size for file in (folder / "feed").glob("*.parquet"))


def load(spark: SparkSession, folder: Path) -> None:
    """Load the feed into a new location."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        location = PersistLocation(f"file://{name}/blobs", f"sqlite:///{name}/consensus.db")
        Path(name, "blobs").mkdir()
        source = {"path": "feed/*.parquet", "format": "parquet"}
        config = CollectionConfig.model_validate(
            {"name": "load", "base_dir": str(folder), "source": source, "key": "id", "columns": _COLUMNS,
             "delete": "none", "order": "log"}
        )  # fmt: skip
        with open_location(location) as opened:
            client = PersistClient(opened)

            def write(description: BatchDescription) -> str:
                attempt = client.ids.uuid7()
                run_write_job(spark, JobSpec(description, config, attempt), opened)
                return manifest_key(config.name, attempt)

            run_one(client, config, until=parse_time("2026-01-02"), write=write)


def plain(spark: SparkSession, folder: Path, size_bytes: int) -> None:
    """Write the rows of the feed, sorted, with Spark alone."""
    use(spark, stage_settings(size_bytes))
    with tempfile.TemporaryDirectory(dir=folder) as name:
        rows = spark.read.schema(", ".join(f"{c} {kind}" for c, kind in _COLUMNS.items())).parquet(f"{folder}/feed")
        ordered = rows.repartition("id").sortWithinPartitions("id")
        ordered.write.option("compression", "zstd").parquet(f"{name}/plain")


def _processor_s(work: Callable[[], None]) -> float:
    before = usage().processor_s
    work()
    return usage().processor_s - before


@click.command(help=__doc__)
@click.option("--rows", default=10_000_000, show_default=True)
@click.option("--tries", default=3, show_default=True, help="After one that warms up.")
@click.option("--memory", default="4g", show_default=True, help="The heap of the JVM.")
def main(rows: int, tries: int, memory: str) -> None:
    spark = session(2, memory)
    with tempfile.TemporaryDirectory(prefix="initial-") as scratch:
        folder = Path(scratch)
        size_bytes = write_feed(spark, folder, rows)
        found = []
        for _ in range(tries + 1):
            ours = _processor_s(lambda: load(spark, folder))
            found.append((ours, _processor_s(lambda: plain(spark, folder, size_bytes))))
            click.echo(f"{size_bytes / 1e6:.0f} MB: ours {found[-1][0]:.1f} s, plain Spark {found[-1][1]:.1f} s")
    click.echo(f"ours / plain Spark: {statistics.median(one / other for one, other in found[1:]):.2f}")


if __name__ == "__main__":
    main()
