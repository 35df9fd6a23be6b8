"""Views over orders and line items kept by upserts: a refresh against recomputing and overwriting the same table.

    python -m tests.benchmarks.views --items 1000000 --changes 1000 --changes 10000 --changes 100000 --out views.md

The tables are like TPC-H's (about four line items an order). Each round upserts changed orders and line items, then
refreshes three views (a filter, a join with an aggregate, the top rows of each group by a window); the same query is
also evaluated over the same snapshots and written whole, which is the floor that a refresh has to be compared with:
it leaves no history, no changes and no digest. Seconds depend on the machine: quote ratios.
"""

from __future__ import annotations

import functools
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from persist_core.config.view import ViewConfig
from persist_core.contents.batch import BatchDescription
from persist_core.handles.client import PersistClient
from persist_core.keys import manifest_key
from persist_core.location.open import OpenLocation, open_location
from persist_core.location.settings import PersistLocation
from persist_core.protocol import stages
from persist_core.protocol.stages import Minted
from persist_core.schema import CollectionSchema, Column
from persist_core.shard.state import Committed
from persist_core.spark_job.spec import JobSpec
from persist_spark import frame, snapshot
from persist_spark.upsert.batch import UpsertRequest, stage_upserts
from persist_spark.view.refresh import run_view_job
from persist_spark.view.rows import queried
from tests.benchmarks.sessions import consume, session, timed

ITEMS_PER_ORDER = 4
ROUND_MS = 1000
SCHEMAS = {
    "orders": CollectionSchema(
        key=(Column("orderkey", "bigint", nullable=False),),
        values=(
            Column("custkey", "bigint"),
            Column("status", "string"),
            Column("ordered", "date"),
            Column("priority", "string"),
            Column("comment", "string"),
        ),
    ),
    "lineitem": CollectionSchema(
        key=(Column("orderkey", "bigint", nullable=False), Column("line", "int", nullable=False)),
        values=(
            Column("partkey", "bigint"),
            Column("quantity", "decimal(12,2)"),
            Column("price", "decimal(12,2)"),
            Column("discount", "decimal(12,2)"),
            Column("shipped", "date"),
            Column("mode", "string"),
            Column("comment", "string"),
        ),
    ),
}
VIEWS = {
    "filter": (("lineitem",), "SELECT * FROM lineitem WHERE quantity >= 5"),
    "revenue": (
        ("orders", "lineitem"),
        "SELECT o.priority, year(o.ordered) AS year, l.mode, count(*) AS items,"
        " sum(l.price * (1 - l.discount)) AS revenue FROM orders o JOIN lineitem l USING (orderkey)"
        " GROUP BY o.priority, year(o.ordered), l.mode",
    ),
    "top": (
        ("lineitem",),
        "SELECT partkey, orderkey, line, price FROM (SELECT *, row_number() OVER (PARTITION BY partkey"
        " ORDER BY price DESC, orderkey, line) AS place FROM lineitem) WHERE place <= 3",
    ),
}


@dataclass(frozen=True)
class Measured:
    """One view in one round."""

    view: str
    changes: int
    rows: int
    updates: int
    refresh_s: float
    overwrite_s: float
    query_s: float
    written_bytes: int
    overwritten_bytes: int


def rows(table: str, keys: DataFrame, version: int) -> DataFrame:
    """The rows of these order keys (column `id`) in one version: columns that hash the key and the version."""

    def number(salt: str, below: int) -> str:
        return f"pmod(xxhash64('{salt}', id, line, {version}), {below})"

    lined = (
        keys.withColumn("line", F.lit(0))
        if table == "orders"
        else keys.withColumn("line", F.explode(F.sequence(F.lit(1), F.lit(ITEMS_PER_ORDER))))
    )
    values = {
        "orders": (
            "id AS orderkey",
            f"{number('c', 100_000)} AS custkey",
            f"element_at(array('O', 'F', 'P'), CAST({number('s', 3)} + 1 AS INT)) AS status",
            f"date_add(DATE'1992-01-01', CAST({number('d', 2_400)} AS INT)) AS ordered",
            f"concat(CAST({number('p', 5)} AS STRING), '-PRIORITY') AS priority",
            f"md5(CAST(id * 31 + {version} AS STRING)) AS comment",
        ),
        "lineitem": (
            "id AS orderkey",
            "line",
            f"{number('k', 20_000)} AS partkey",
            f"CAST({number('q', 5_000)} / 100 AS DECIMAL(12,2)) AS quantity",
            f"CAST({number('r', 10_000_000)} / 100 AS DECIMAL(12,2)) AS price",
            f"CAST({number('i', 11)} / 100 AS DECIMAL(12,2)) AS discount",
            f"date_add(DATE'1992-01-01', CAST({number('t', 2_500)} AS INT)) AS shipped",
            f"element_at(array('AIR', 'RAIL', 'SHIP', 'MAIL'), CAST({number('m', 4)} + 1 AS INT)) AS mode",
            f"md5(CAST(id * 37 + line + {version} AS STRING)) AS comment",
        ),
    }
    return lined.selectExpr(*values[table])


class World:
    """The two collections and the three views in one location."""

    def __init__(self, spark: SparkSession, location: OpenLocation) -> None:
        self.spark, self.location, self.client = spark, location, PersistClient(location)
        self.round = 0
        self.views = {
            name: ViewConfig.model_validate({"name": name, "query": query, "inputs": inputs})
            for name, (inputs, query) in VIEWS.items()
        }

    def upsert(self, keys: DataFrame) -> None:
        """One round: these orders and all their line items in a new version."""
        lower, upper = self.round * ROUND_MS, (self.round + 1) * ROUND_MS
        for table, schema in SCHEMAS.items():
            self.client.ensure_shard(table)
            description = BatchDescription(
                shard=table,
                lower=lower,
                upper=upper,
                token=f"{table}-{lower}",
                checkpoint_id=self.client.ids.uuid7(),
                epoch=self.round + 1,
                parent_id=None,
                writer="benchmark",
            )
            request = UpsertRequest(description, schema, self.client.ids.uuid7(), may_stash=False)
            state = self.client.state(table)
            manifest = stage_upserts(self.spark, self.client, state, request, self._records(table, keys))
            key = manifest_key(table, request.attempt)
            committed(self.client.open_writer(table).compare_and_append(manifest, key))
        self.round += 1

    def _records(self, table: str, keys: DataFrame) -> DataFrame:
        order = F.struct(
            F.lit("f").alias("file"), F.lit(0).cast("bigint").alias("block"), F.lit(0).cast("bigint").alias("row")
        )
        return rows(table, keys, self.round).select(
            *[column.name for column in SCHEMAS[table].columns],
            F.lit(frame.UPSERT).alias(frame.OP),
            F.lit(None).cast("bigint").alias("_persist_time"),
            order.alias(frame.ORDER),
            F.lit(None).cast("binary").alias(frame.BAD_KEY),
            *map(F.expr, frame.no_err()),
        )

    def refresh(self, view: ViewConfig) -> dict[str, int]:
        """Mint, write and append; the refresh's stats and the bytes that it wrote."""
        minted = stages.mint(self.client, view, until=None, writer=f"benchmark/{self.round}")
        if not isinstance(minted, Minted):
            raise click.ClickException(minted.reason)
        spec = JobSpec(minted.description, view, self.client.ids.uuid7())
        manifest = run_view_job(self.spark, spec, self.location)
        if manifest is None:
            raise click.ClickException("the job staged nothing")
        committed(stages.append(self.client, minted.description, manifest_key(view.name, spec.attempt)))
        return {**manifest.stats, "bytes": manifest.size_bytes}

    def query(self, view: ViewConfig) -> DataFrame:
        """The view's query over the newest snapshots of its inputs."""
        inputs = {name: snapshot(self.spark, self.location, name) for name in view.inputs}
        return queried(self.spark, view.name, view.definition, inputs)

    def overwrite(self, view: ViewConfig, target: Path) -> None:
        """The floor: evaluate, and write all rows."""
        writer = self.query(view).write.mode("overwrite").option("compression", "zstd")
        writer.parquet(str(target))

    def evaluate(self, view: ViewConfig) -> None:
        """The query alone."""
        consume(self.query(view))


def committed(result: object) -> None:
    if not isinstance(result, Committed):
        raise click.ClickException(f"not committed: {result}")


def measure(world: World, folder: Path, changes: int) -> list[Measured]:
    """Refresh each view once, and recompute and overwrite it once."""
    found = []
    for name, view in world.views.items():
        refresh_s, stats = timed(functools.partial(world.refresh, view))
        target = folder / f"overwritten-{name}"
        overwrite_s, _ = timed(functools.partial(world.overwrite, view, target))
        query_s, _ = timed(functools.partial(world.evaluate, view))
        size_bytes = sum(path.stat().st_size for path in target.glob("*.parquet"))
        measured = Measured(
            name, changes, stats["rows"], stats["updates"], refresh_s, overwrite_s, query_s, stats["bytes"], size_bytes
        )
        click.echo(str(measured))
        found.append(measured)
    return found


def report(every: Sequence[Measured], items: int) -> str:
    """Markdown: medians of the rounds of each size."""
    lines = [
        f"### {items:,} line items",
        "",
        "| view | changed line items | view's rows | updates written | refresh, s | overwrite, s | refresh / overwrite"
        " | query alone, s | MB written | MB overwritten |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in VIEWS:
        for changes in sorted({each.changes for each in every}):
            rounds = [each for each in every if each.view == name and each.changes == changes]

            def middle(of: Callable[[Measured], float], rounds: Sequence[Measured] = rounds) -> float:
                return statistics.median(map(of, rounds))

            refresh, overwrite = middle(lambda m: m.refresh_s), middle(lambda m: m.overwrite_s)
            lines.append(
                f"| {name} | {changes:,} | {rounds[-1].rows:,} | {middle(lambda m: m.updates):,.0f} | {refresh:.2f} |"
                f" {overwrite:.2f} | {refresh / overwrite:.2f} | {middle(lambda m: m.query_s):.2f} |"
                f" {middle(lambda m: m.written_bytes) / 1e6:.1f} | {middle(lambda m: m.overwritten_bytes) / 1e6:.1f} |"
            )
    return "\n".join(lines) + "\n"


@click.command(help=__doc__)
@click.option("--items", default=1_000_000, show_default=True, help="Line items.")
@click.option("--changes", multiple=True, type=int, default=(1_000, 10_000, 100_000), show_default=True)
@click.option("--rounds", default=3, show_default=True, help="Rounds of each size; the first of all is not counted.")
@click.option("--cores", default=2, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), help="Also append the table here.")
def main(items: int, changes: tuple[int, ...], rounds: int, cores: int, out: Path | None) -> None:
    spark = session(cores)
    orders = items // ITEMS_PER_ORDER
    with tempfile.TemporaryDirectory(prefix="views-") as scratch:
        folder = Path(scratch)
        location = PersistLocation(f"file://{folder}/blobs", f"sqlite:///{folder}/consensus.db")
        with open_location(location) as opened:
            world = World(spark, opened)
            click.echo(f"base: {timed(lambda: world.upsert(spark.range(orders)))[0]:.1f} s")
            measure(world, folder, items)
            every: list[Measured] = []
            for number in range(rounds + 1):
                for size in changes:
                    wanted = size // ITEMS_PER_ORDER
                    picked = (
                        spark.range(wanted).selectExpr(f"pmod(xxhash64(id, {world.round}), {orders}) AS id").distinct()
                    )
                    world.upsert(picked)
                    measured = measure(world, folder, size)
                    every += measured if number else []
            text = report(every, items)
    spark.stop()
    click.echo("\n" + text)
    if out:
        with out.open("a") as file:
            file.write(text)


if __name__ == "__main__":
    main()
