"""`persist fill` of every row of a table, against a commit that changes as many rows.

    python -m tests.benchmarks.fill --rows 2000000     (or: make bench BENCH=fill)

A line for each of four steps: the load, a commit of one row that adds a column, the fill, and a commit that changes
each row. It has processor seconds (this process and the JVM), and the bytes of the files. The last line has two ratios
of the fill to the last commit.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path

import click
import pyarrow as pa
import pyarrow.parquet as pq

from persist_core.config.collection import CollectionConfig
from persist_core.config.shard import ShardConfig
from persist_core.contents.batch import BatchDescription
from persist_core.handles.client import PersistClient
from persist_core.keys import manifest_key
from persist_core.location.open import OpenLocation, open_location
from persist_core.location.settings import PersistLocation
from persist_core.maintenance.fill import Wishes, fill
from persist_core.protocol import stages
from persist_core.protocol.stages import Minted
from persist_core.shard.state import Committed
from persist_core.spark_job.spec import JobSpec
from persist_core.time_text import DAY_MS, parse_time
from persist_spark.fill import run_fill_job
from persist_spark.upsert.job import run_write_job
from tests.benchmarks.sessions import session
from tests.processes import usage

FIRST_MS = parse_time("2026-01-01")


class Table:
    def __init__(self, folder: Path) -> None:
        self.folder, self.spark = folder, session(2, "3g", {})
        (folder / "in").mkdir()
        self.location: OpenLocation = open_location(
            PersistLocation(f"file://{folder}/blob", f"sqlite:///{folder}/consensus.db")
        )
        self.client, self.days, self.columns = PersistClient(self.location), 0, {"id": "bigint", "name": "string"}

    @property
    def config(self) -> CollectionConfig:
        source = {"path": str(self.folder / "in" / "*"), "format": "parquet", "rest": "more"}
        body = {"name": "t", "source": source, "key": "id", "columns": {**self.columns, "more": "json"}}
        return CollectionConfig.model_validate({**body, "delete": "none", "base_dir": str(self.folder)})

    def run(self, rows: int) -> None:
        """A commit of rows with fields `price` and `color`; each name says its day."""
        self.days += 1
        ids = pa.array(range(rows), pa.int64())
        price = pa.array(range(rows), pa.int64()).cast(pa.decimal128(21, 2))
        names = pa.array([f"{self.days} {number}" for number in range(rows)])
        found = pa.table({"id": ids, "name": names, "price": price, "color": pa.array(["red"] * rows)})
        pq.write_table(found, self.folder / "in" / f"{self.days}.parquet")
        minted = stages.mint(self.client, self.config, until=FIRST_MS + self.days * DAY_MS, writer="benchmark")
        assert isinstance(minted, Minted)
        key = self._staged(run_write_job, self.config, minted.description)
        assert isinstance(stages.append(self.client, minted.description, key), Committed)
        stages.checkpoint(self.client, self.config)

    def fill(self) -> None:
        write = functools.partial(self._staged, run_fill_job)
        done = fill(self.client, self.config, Wishes(is_confirmed=True), write=write, writer="benchmark", say=print)
        assert done.commit is not None

    def _staged(self, job: Callable[..., object], config: ShardConfig, description: BatchDescription) -> str:
        spec = JobSpec(description, config, self.client.ids.uuid7())
        job(self.spark, spec, self.location)
        return manifest_key(description.shard, spec.attempt)

    def newest_bytes(self) -> int:
        return self.client.state("t").batches[-1].size_bytes


@click.command(help=__doc__)
@click.option("--rows", default=2_000_000, show_default=True)
def main(rows: int) -> None:
    with tempfile.TemporaryDirectory(prefix="persist-bench-") as folder:
        table = Table(Path(folder))
        found: dict[str, tuple[float, int]] = {}
        for name, new in (("load", rows), ("column", 1), ("fill", None), ("commit", rows)):
            if name == "column":
                table.columns["price"] = "decimal(21,2)"
            began_s = usage().processor_s
            table.fill() if new is None else table.run(new)
            found[name] = usage().processor_s - began_s, table.newest_bytes()
            click.echo(f"{name:6}: {found[name][0]:6.1f} CPU-s, {found[name][1] / 1e6:7.1f} MB")
        (fill_s, fill_bytes), (commit_s, commit_bytes) = found["fill"], found["commit"]
        click.echo(f"fill / commit: {fill_s / commit_s:.2f} of CPU, {fill_bytes / commit_bytes:.2f} of bytes")
        table.spark.stop()


if __name__ == "__main__":
    main()
