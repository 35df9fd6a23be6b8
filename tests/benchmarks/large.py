"""One large table on S3 and two workers: load, writes of random keys, rounds of events, merges, and what the driver
takes part in.

    python -m tests.benchmarks.large --keys 10000000     (or: make bench BENCH=large ARGS='--keys 10000000')

    Parquet files ─ load ─> table on versitygw ─ some random keys, rounds of events ─ merges that are due ─ the rest

Spark is `local-cluster[2,1,...]`: two executors of one core are processes of their own, and so is the driver. Keys are
MD5 sums, so every batch meets all files. A line for each commit and each merge:

    seconds by the clock, of processor (all processes, S3 server included), and of tasks
    bytes that the S3 server has sent, and that tasks exchanged and spilled; bytes of the new files
    driver: bytes that its JVM and its Python read and wrote on S3, and results of tasks; the highest heap after a
    collection, and the most resident memory of JVM and Python, of this line alone
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import click
from pyspark.sql import SparkSession

from persist_core.compaction.merge import Merge
from persist_core.config.collection import CollectionConfig
from persist_core.handles.client import PersistClient
from persist_core.keys import manifest_key
from persist_core.location.open import open_location
from persist_core.location.s3.blob import S3Blob
from persist_core.location.settings import PersistLocation
from persist_core.maintenance.maintain import maintain
from persist_core.protocol import stages
from persist_core.protocol.stages import Minted
from persist_core.shard.replace import NotReplaced, Replaced
from persist_core.shard.state import Committed
from persist_core.spark_job.installation import spark_home
from persist_core.spark_job.jars import s3a_jars
from persist_core.spark_job.launch import Ended, merge_by_job
from persist_core.spark_job.spec import JobSpec
from persist_core.time_text import DAY_MS, format_time, parse_time
from persist_spark.compat import ENGINE_ERRORS
from persist_spark.merge import run_merge_job
from persist_spark.upsert.job import run_write_job
from tests.benchmarks.sessions import session
from tests.processes import io_bytes, usage
from tests.servers import s3

FIRST = parse_time("2026-01-01")
SHARD = "large"
COLUMNS = {"id": "string", "name": "string", "a": "bigint", "b": "bigint", "c": "bigint"}
NEW_KEYS = 20  # one event in so many has a new key
LOOK_UPS = (1_000, 1_000, 100_000)  # the first also compiles code
_PAUSE = re.compile(r"Pause .* (\d+)M->(\d+)M")
_MB = 1e6


def rows_sql(key: str, version: str) -> list[str]:
    """The columns of the row with this number, in this version: nothing of it compresses."""
    return [
        f"md5(CAST({key} AS STRING)) AS id",
        f"concat('name ', hash({key}, {version})) AS name",
        *[f"xxhash64({key}, {version}, {place}) AS {name}" for place, name in enumerate("abc")],
    ]


class Driver:
    """The bytes that pass through the driver (counters that only grow), and its memory (peaks since `reset`)."""

    def __init__(self, spark: SparkSession, gc_log: Path) -> None:
        context: Any = spark.sparkContext
        self._context, self._jvm, self.pid = context, context._jvm, context._gateway.proc.pid
        self._gc_log, self._python_bytes, self._place = gc_log, 0, 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count what this process reads and writes."""

        def count(name: str) -> Any:
            real = getattr(S3Blob, name)

            def called(blob: S3Blob, key: str, *arguments: Any) -> Any:
                found = real(blob, key, *arguments)
                size = next((len(each) for each in (found, *arguments) if isinstance(each, bytes)), 0)
                self._python_bytes += arguments[0].stat().st_size if name == "set_file" else size
                return found

            return mock.patch.object(S3Blob, name, called)

        with count("get"), count("get_range"), count("set"), count("set_file"):
            yield

    def s3_bytes(self) -> int:
        found = self._jvm.org.apache.hadoop.fs.FileSystem.getAllStatistics()
        each = [found.get(place) for place in range(found.size())]
        ours = [one for one in each if one.getScheme() == "s3a"]
        return self._python_bytes + sum(int(one.getBytesRead() + one.getBytesWritten()) for one in ours)

    def reset(self) -> None:
        for pid in (self.pid, os.getpid()):
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak begins again
        self._place = self._gc_log.stat().st_size

    def heap_mb(self) -> int:
        with self._gc_log.open() as log:
            log.seek(self._place)
            return max((int(after) for _, after in _PAUSE.findall(log.read())), default=0)

    @staticmethod
    def resident_mb(pid: int) -> int:
        status = Path(f"/proc/{pid}/status").read_text()
        return int(dict(line.split(":", 1) for line in status.splitlines())["VmHWM"].split()[0]) >> 10

    def stages(self, group: str) -> list[Any]:
        """Spark's counts of the stages of a group of jobs."""
        tracker = self._context.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
        store = self._context._jsc.sc().statusStore()
        found: list[Any] = []
        for stage in sorted({stage for job in jobs if job for stage in job.stageIds}):
            with suppress(*ENGINE_ERRORS):  # a stage that never ran is not in the store
                found.append(store.lastStageAttempt(stage))
        return [stage for stage in found if stage.numCompleteTasks()]


class Table:
    """The table, its feed and its Spark."""

    def __init__(self, spark: SparkSession, folder: Path, client: PersistClient, driver: Driver, server: int) -> None:
        self.spark, self.folder, self.client, self.driver, self.days = spark, folder, client, driver, 0
        self._server, self.new_bytes = server, 0
        source = {"path": f"{folder}/feed/{{date:%Y-%m-%d}}/*.parquet", "format": "parquet"}
        self.config = CollectionConfig.model_validate(
            {"name": SHARD, "source": source, "key": "id", "columns": COLUMNS, "delete": "none", "order": "log",
             "time": "path", "start_date": "2026-01-01"}
        )  # fmt: skip

    @property
    def stored_bytes(self) -> int:
        return sum(batch.size_bytes for batch in self.client.state(SHARD).batches)

    @contextmanager
    def measured(self, what: str) -> Iterator[list[str]]:
        """Print a line about the body. It may add words to the list, and starts jobs from this thread only."""
        group, words = f"{what} {time.perf_counter()}", list[str]()
        self.spark.sparkContext.setJobGroup(group, group)
        self.driver.reset()
        began, used, passed = time.perf_counter(), usage().processor_s, self.driver.s3_bytes()
        server_s, io = usage(self._server).processor_s, io_bytes(self._server)
        yield words
        server_s = usage(self._server).processor_s - server_s
        io = {name: size - io[name] for name, size in io_bytes(self._server).items()}
        seconds, used = time.perf_counter() - began, usage().processor_s - used
        found = self.driver.stages(group)
        passed += -2 * passed + self.driver.s3_bytes() + sum(stage.resultSize() for stage in found)
        tasks_s = sum(stage.executorCpuTime() for stage in found) / 1e9
        sums = {
            # It wrote each new file as it came, and again when its upload was completed.
            "sent": io["wchar"] - 2 * self.new_bytes,
            "exchanged": sum(stage.shuffleWriteBytes() for stage in found),
            "spilled": sum(stage.diskBytesSpilled() for stage in found),
        }
        sizes = ", ".join(f"{name} {size / _MB:,.1f} MB" for name, size in sums.items())
        memory = f"heap {self.driver.heap_mb()} MB, JVM {Driver.resident_mb(self.driver.pid)} MB"
        click.echo(
            f"{what}: {seconds:.1f} s, {used:.1f} processor s, of it S3 server {server_s:.1f}, {tasks_s:.1f} task s;"
            f" {sizes};"
            f" driver: {passed / _MB:.2f} MB passed, {memory}, Python {Driver.resident_mb(os.getpid())} MB;"
            f" {'; '.join(words)}"
        )

    def commit(self, what: str, rows: int, cells: Sequence[str], *, files: int = 2) -> None:
        """A day with so many rows of these columns becomes a commit."""
        path = self.folder / "feed" / format_time(FIRST + self.days * DAY_MS)[:10]
        self.spark.range(0, rows, numPartitions=files).selectExpr(*cells).write.parquet(str(path))
        self.days += 1
        parts = []
        with self.measured(what) as words:
            for name in ("mint", "write", "append", "checkpoint"):
                began = time.process_time(), time.perf_counter()
                if name == "mint":
                    until = FIRST + self.days * DAY_MS
                    minted = stages.mint(self.client, self.config, until=until, writer="benchmark")
                    assert isinstance(minted, Minted), minted
                    spec = JobSpec(minted.description, self.config, self.client.ids.uuid7())
                elif name == "write":
                    manifest = run_write_job(self.spark, spec, self.client.location)
                    parts = [part.size_bytes for part in manifest.parts]
                    self.new_bytes = sum(parts)
                elif name == "append":
                    key = manifest_key(SHARD, spec.attempt)
                    assert isinstance(stages.append(self.client, spec.description, key), Committed)
                else:
                    stages.checkpoint(self.client, self.config)
                if name != "write":
                    mine, clock = time.process_time() - began[0], time.perf_counter() - began[1]
                    words.append(f"{name} {1000 * mine:.0f} ms of processor, {1000 * clock:.0f} by the clock")
            words.append(f"wrote {sum(parts) / _MB:.1f} MB in {len(parts)} files")
            words.append(f"table {self.stored_bytes / _MB:.0f} MB")
        shutil.rmtree(path)

    def merge(self, merge: Merge) -> Replaced | NotReplaced:
        """One merge, or a step of one, by Spark."""

        def start(items: Sequence[JobSpec], _: Sequence[str]) -> Ended:
            run_merge_job(self.spark, items[0], self.client.location)
            return Ended("")

        stored, before = self.stored_bytes, {part.key for manifest in merge.manifests for part in manifest.parts}
        with self.measured(f"merge of {len(merge.inputs)} batches") as words:
            words.append(f"rewrites {merge.rows:,} rows, {merge.size_bytes / _MB:.0f} MB")
            words.append(f"{merge.size_bytes / stored:.3f} of the table")
            result = merge_by_job(self.client, start, merge)
            run = next(each for each in self.client.state(SHARD).batches if each.lower == merge.inputs[0].lower)
            new = [part.size_bytes for part in self.client.manifest(run).parts if part.key not in before]
            self.new_bytes = sum(new)
            words.append(f"wrote {self.new_bytes / _MB:.0f} MB in {len(new)} files, partial: {run.is_partial}")
        return result


@contextmanager
def cluster(folder: Path, driver_memory: str, executor_mb: int) -> Iterator[SparkSession]:
    """Two executors of one core each, in processes of their own; nothing is left behind."""
    home = spark_home(os.environ)
    assert home is not None
    jars = ":".join(map(str, s3a_jars(os.environ, home)))
    given = {
        "spark.master": f"local-cluster[2,1,{executor_mb}]",
        "spark.driver.extraClassPath": jars,
        "spark.driver.extraJavaOptions": f"-Xlog:gc:file={folder}/gc.log",
        "spark.executor.extraClassPath": jars,
        "spark.executor.memory": f"{executor_mb}m",
        "spark.executor.cores": "1",
        "spark.local.dir": f"{folder}/local",
    }
    spark = session(2, driver_memory, given)
    try:
        yield spark
    finally:
        work = home / "work" / spark.sparkContext.applicationId
        spark.stop()
        shutil.rmtree(work, ignore_errors=True)


def measure(table: Table, keys: int, events: int, rounds: int) -> None:
    table.commit(f"load of {keys:,} keys", keys, rows_sql("id", "0"), files=32)
    for number, count in enumerate(LOOK_UPS, 1):
        known = f"(id * {keys // count} + {number})"
        table.commit(f"{count:,} random keys", count, rows_sql(known, f"{number}"))
    for number in range(1, rounds + 1):
        touched = f"IF(id % {NEW_KEYS} = 0, {keys + number * events} + id, pmod(xxhash64(id, {number}), {keys}))"
        table.commit(f"round {number}, {events:,} events", events, rows_sql(touched, f"{number + 1000}"))
    click.echo(maintain(table.client, SHARD, merge_elsewhere=table.merge))
    state = table.client.state(SHARD)
    while len(state.batches) > 1 or state.batches[0].is_partial:
        inputs = state.batches[:1] if state.batches[0].is_partial else state.batches
        table.merge(Merge.of(table.client, state, inputs))
        state = table.client.state(SHARD)


@click.command(help=__doc__)
@click.option("--keys", default=1_000_000, show_default=True)
@click.option("--events", default=500_000, show_default=True, help="Events in each round.")
@click.option("--rounds", default=10, show_default=True)
@click.option("--memory", default="1g", show_default=True, help="The heap of the driver.")
@click.option("--executor-mb", default=2304, show_default=True, help="The heap of an executor.")
@click.option("--folder", type=click.Path(path_type=Path, exists=True), help="Where everything is put, and deleted.")
def main(keys: int, events: int, rounds: int, memory: str, executor_mb: int, folder: Path | None) -> None:
    logging.basicConfig(format="  %(asctime)s %(message)s", datefmt="%H:%M:%S")
    logging.getLogger("persist_spark").setLevel(logging.INFO)
    s3.own_environment()
    with tempfile.TemporaryDirectory(prefix="large-", dir=folder) as name:
        scratch = Path(name)
        (scratch / "feed").mkdir()
        with (
            contextmanager(s3.running)("versitygw", scratch / "server") as server,
            cluster(scratch, memory, executor_mb) as spark,
            open_location(PersistLocation(server.new_uri("shards"), server.new_uri("consensus"))) as opened,
        ):
            driver = Driver(spark, scratch / "gc.log")
            table = Table(spark, scratch, PersistClient(opened), driver, server.pid)
            with driver.counted():
                measure(table, keys, events, rounds)


if __name__ == "__main__":
    main()
