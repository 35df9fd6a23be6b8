"""Bytes that a batch of random keys reads of its shard, at two sizes of the shard, and what more keys cost.

    python -m tests.benchmarks.lookups --rows 1000000 --rows 4000000 --keys 100      (or: make bench BENCH=lookups)

The keys of shard and batches are hashes of numbers, so a batch meets all files. Printed for each batch: the bytes that
the JVM read (Linux; its shuffle included), less the bytes that a batch of one key reads, and processor seconds: medians
of `--tries`, in turns, after one that warms up. With `--wide`, rows have a text of 32 digits as their key, and nine
more columns, one of them a text of 200 bytes. `--new`: the keys are not stored yet. Each batch is staged twice, without
and with a look at the stored keys before the values.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import click
from pyspark.sql import SparkSession

from persist_core.schema import Column
from persist_spark.upsert import batch as upsert_batch
from persist_spark.upsert.few_keys import most
from persist_spark.upsert.lookup import expected_hits
from tests.benchmarks.cliffs import Case, updates
from tests.benchmarks.sessions import session
from tests.processes import io_bytes, usage
from tests.spark.upsert_cases import ONE_KEY

_BIGINTS = {"c0": "id % 7", "c1": "id % 1000", "c2": "xxhash64(id)", "c3": "id"}
_WORDS = " ".join(["lorem ipsum dolor sit amet consectetur"] * 3)
_WIDE = replace(
    ONE_KEY,
    key=(Column("id", "string", nullable=False),),
    values=(
        *ONE_KEY.values,
        *(Column(name, "bigint") for name in _BIGINTS),
        Column("text", "string"),
        Column("at", "timestamp"),
    ),
)
_MORE = _BIGINTS | {
    "text": f"concat(sha2(CAST(id AS STRING), 256), ' {_WORDS} ', hex(id))",
    "at": "timestamp_seconds(1700000000 + id)",
}
SHAPES: Mapping[bool, Mapping[str, Any]] = {  # is it wide?
    False: {"text": "sha2(CAST(id AS STRING), 256)"},
    True: {"text": "md5(CAST(id AS STRING))", "schema": _WIDE, "more": _MORE},
}


@dataclass(frozen=True)
class Cost:
    """Measurements of one batch."""

    read_bytes: int
    processor_s: float


def _read_bytes(spark: SparkSession) -> int:
    context: Any = spark.sparkContext
    return io_bytes(context._gateway.proc.pid)["rchar"]


def _key(number: str, *, is_wide: bool) -> str:
    return f"md5(CAST({number} AS STRING))" if is_wide else f"xxhash64({number})"


def cost_of(case: Case, keys: int, first: str, *, is_wide: bool) -> Cost:
    """Stage updates of so many keys, by the numbers that `first` makes of `id`."""
    records = updates(case.spark, 0, keys, "new", key=_key(first, is_wide=is_wide), **SHAPES[is_wide])
    before, used = _read_bytes(case.spark), usage().processor_s
    case.stage(records, keys, is_columnar=True)
    return Cost(_read_bytes(case.spark) - before, usage().processor_s - used)


def measure(
    spark: SparkSession, folder: Path, rows: int, keys: Sequence[int], tries: int, *, is_wide: bool, is_new: bool
) -> None:
    """Print what batches of these sizes cost on a shard of so many rows."""
    case = Case(spark, folder, rows, key=_key("id", is_wide=is_wide), **SHAPES[is_wide])
    stored = sum(batch.size_bytes for batch in case.shard.client.state("things").batches)
    ways = {"values": lambda records, _: records, "keys, then values": expected_hits}
    found: dict[tuple[int, str], list[Cost]] = {}
    for number, count, way in itertools.product(range(tries + 1), (1, *keys), ways):
        first = f"(id + {rows + number * count})" if is_new else f"(id * {rows // count} + {number})"
        with mock.patch.object(upsert_batch, "expected_hits", ways[way]):
            found.setdefault((count, way), []).append(cost_of(case, count, first, is_wide=is_wide))
    for count, way in itertools.product(keys, ways):
        least = statistics.median(cost.read_bytes for cost in found[1, way][1:])
        read = statistics.median(cost.read_bytes for cost in found[count, way][1:]) - least
        seconds = statistics.median(cost.processor_s for cost in found[count, way][1:])
        how = "pages with keys" if count <= most(rows) else "all pages"
        click.echo(
            f"{rows:,} rows, {stored / 1e6:.0f} MB, {count:,} keys: read {read / 1e6:.1f} MB, {read / stored:.2f} of"
            f" the shard, {seconds:.1f} processor seconds ({how}; {way})"
        )


@click.command(help=__doc__)
@click.option("--rows", multiple=True, default=[1_000_000, 4_000_000], show_default=True, help="Sizes of shards.")
@click.option("--keys", multiple=True, default=[100, 1_000, 10_000, 100_000], show_default=True)
@click.option("--tries", default=3, show_default=True)
@click.option("--memory", default="4g", show_default=True, help="The heap of the JVM.")
@click.option("--wide", "is_wide", is_flag=True)
@click.option("--new", "is_new", is_flag=True)
def main(rows: Sequence[int], keys: Sequence[int], tries: int, memory: str, *, is_wide: bool, is_new: bool) -> None:
    spark = session(2, memory)
    for size in rows:
        with tempfile.TemporaryDirectory(prefix="lookups-") as scratch:
            measure(spark, Path(scratch), size, keys, tries, is_wide=is_wide, is_new=is_new)


if __name__ == "__main__":
    main()
