"""Small commits of many collections in one Spark: processor seconds of each, and the heap that is left.

    python -m tests.benchmarks.commits --collections 20 --days 20     (or: make bench BENCH=commits)

Each collection has 10,000 keys from its first day, and gets 1,000 events on each later one, four collections side by
side, as `persist run --all` does it. A line for each day: processor seconds of a write job (this process and the JVM),
and of mint, append and checkpoint together; the heap in use after a full collection. The last line has the two ratios:
processor time of the last day to the third, and heap after the last day to the heap after a tenth of the days.

With `--connect` they run in the Spark Connect server of `make up`, four in a task, as a group's write task runs them: a
session for the task and one for each job, which end with it. Its classes, pieces of compiled code and sessions are
printed too.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import click

from persist_airflow.spark import run_connected
from persist_core.config.collection import CollectionConfig, load_collection
from persist_core.handles.client import PersistClient
from persist_core.keys import manifest_key
from persist_core.location.open import OpenLocation, open_location
from persist_core.location.settings import PersistLocation
from persist_core.protocol import stages
from persist_core.protocol.stages import Minted
from persist_core.shard.state import Committed
from persist_core.spark_job.process import SMALL_JVM, connect_environment
from persist_core.spark_job.spec import JobSpec, stored
from persist_core.time_text import DAY_MS, parse_time
from persist_spark.__main__ import SIDE_BY_SIDE
from persist_spark.upsert.job import run_write_job
from tests.benchmarks.groups import COLLECTION, write_feed
from tests.benchmarks.sessions import session
from tests.processes import live_objects, usage
from tests.servers.spark_connect import ConnectServer, running

_TYPES = ("int", "string", "double")
_COUNTED = (
    "java.lang.Class",
    "org.apache.spark.sql.catalyst.expressions.codegen.CodeAndComment",
    "org.apache.spark.sql.classic.SparkSession",
)
FIRST_MS = parse_time("2026-01-01")


class OneSession:
    """One process and its Spark for all jobs."""

    def __init__(self) -> None:
        self._spark = session(2, "1g", {"spark.driver.extraJavaOptions": " ".join(SMALL_JVM)})

    def run(self, location: OpenLocation, specs: Sequence[JobSpec]) -> None:
        with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            list(pool.map(lambda spec: run_write_job(self._spark, spec, location), specs))

    def heap(self) -> tuple[int, str]:
        """The bytes in use without garbage, and what else is known."""
        context: Any = self._spark.sparkContext
        runtime = context._jvm.java.lang.Runtime.getRuntime()
        runtime.gc()
        return int(runtime.totalMemory() - runtime.freeMemory()), ""


class Tasks:
    """Tasks of Airflow one after another, whose jobs run in a Connect server."""

    def __init__(self, location: PersistLocation, server: ConnectServer) -> None:
        self._environment = {**location.to_env(), **connect_environment(server.url)}
        self._server = server

    def run(self, location: OpenLocation, specs: Sequence[JobSpec]) -> None:
        for first in range(0, len(specs), SIDE_BY_SIDE):
            with ExitStack() as stack:
                items = [stack.enter_context(stored(location.blob, spec)) for spec in specs[first:][:SIDE_BY_SIDE]]
                assert run_connected([part for item in items for part in item], self._environment) == 0

    def heap(self) -> tuple[int, str]:
        """The bytes in use without garbage, and what else is known."""
        numbers, held = live_objects(self._server.jvm())
        found = (f"{numbers.get(name, 0)} {name.rpartition('.')[2]}" for name in _COUNTED)
        return held, f", {', '.join(found)}"


class Commits:
    """Collections of one location, and the Spark that writes them."""

    def __init__(self, folder: Path, collections: int, server: ConnectServer | None, *, unlike: bool = False) -> None:
        location = PersistLocation(f"file://{folder}/blob", f"sqlite:///{folder}/consensus.db")
        self.folder, self.jobs = folder, OneSession() if server is None else Tasks(location, server)
        self.location = open_location(location)
        self.client = PersistClient(self.location)
        self.configs = [self._config(number if unlike else None, f"t{number:03}") for number in range(collections)]

    def _config(self, types: int | None, name: str) -> CollectionConfig:
        """`types`: the number of a collection that has four columns more, of types that no other one has."""
        path = self.folder / f"{name}.yaml"
        text = COLLECTION.format(feed=self.folder / "feed" / name)
        if types is not None:
            more = (f"x{place}: {_TYPES[types // len(_TYPES) ** place % len(_TYPES)]}" for place in range(4))
            text = text.replace("city: string", f"city: string, {', '.join(more)}")
        path.write_text(text)
        return load_collection(path)

    def day(self, number: int) -> tuple[float, float]:
        """One commit of each: processor seconds of their write jobs, and of the rest."""
        for config in self.configs:
            write_feed(self.folder / "feed" / config.name, number)
        began_s = usage().processor_s
        specs = [self._spec(config, FIRST_MS + (number + 1) * DAY_MS) for config in self.configs]
        minted_s = usage().processor_s
        self.jobs.run(self.location, specs)
        written_s = usage().processor_s
        for spec in specs:
            key = manifest_key(spec.description.shard, spec.attempt)
            assert isinstance(stages.append(self.client, spec.description, key), Committed)
            stages.checkpoint(self.client, spec.collection)
        return written_s - minted_s, usage().processor_s - written_s + minted_s - began_s

    def _spec(self, config: CollectionConfig, until: int) -> JobSpec:
        minted = stages.mint(self.client, config, until=until, writer="benchmark")
        assert isinstance(minted, Minted)
        return JobSpec(minted.description, config, self.client.ids.uuid7())


@click.command(help=__doc__)
@click.option("--collections", default=20, show_default=True)
@click.option("--days", default=20, show_default=True, help="At least four.")
@click.option("--unlike", is_flag=True, help="No two collections have columns of the same types (up to 81).")
@click.option("--connect", is_flag=True, help="In a Spark Connect server.")
def main(collections: int, days: int, *, unlike: bool, connect: bool) -> None:
    servers = contextmanager(running)() if connect else nullcontext()
    with servers as server, tempfile.TemporaryDirectory(prefix="persist-bench-") as folder:
        commits = Commits(Path(folder), collections, server, unlike=unlike)
        writes, heaps = [], []
        for number in range(days):
            write_s, rest_s = commits.day(number)
            writes.append(write_s / collections)
            heap, more = commits.jobs.heap()
            heaps.append(heap)
            click.echo(
                f"day {number + 1:3}, {(number + 1) * collections:5} commits: {writes[-1]:.2f} CPU-s to write,"
                f" {rest_s / collections:.3f} for the rest; heap {heap >> 20} MB{more}"
            )
        tenth = max(2, days // 10)
        click.echo(
            f"CPU of the last day / the third: {writes[-1] / writes[2]:.2f}; heap after {days * collections} commits /"
            f" after {tenth * collections}: {heaps[-1] / heaps[tenth - 1]:.2f}"
        )


if __name__ == "__main__":
    main()
