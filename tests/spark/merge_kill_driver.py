"""A process that merges a shard with the Spark of another process, and kills itself by SIGKILL at a point.

python -m tests.spark.merge_kill_driver FOLDER POINT    (the gateway to Spark is in the environment)

At the point `OF_JVM` it has a Spark of its own, and kills the JVM.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from persist_core.clock import SystemClock
from persist_core.compaction.merge import Merge
from persist_core.handles.client import PersistClient
from persist_core.keys import attempt_prefix
from persist_core.spark_job.launch import Ended, merge_by_job
from persist_core.spark_job.spec import JobSpec
from persist_spark import merge as merging
from persist_spark.compat import SPARK_VERSION
from tests.core.compaction.kill_driver import SHARD, opened
from tests.local_spark import local_spark

POINTS = (
    "before its files",
    "while it writes files",
    "after its files",
    "after its manifest",
    "before the compare-and-set",
    "after the compare-and-set",
)
OF_JVM = "while the JVM writes files"
LOOK_MS = 1


def connected() -> SparkSession:
    """The Spark session of the process that has started this one."""
    gateway: Any = launch_gateway()  # type: ignore[no-untyped-call] # pyspark has no types here
    java = gateway.jvm.org.apache.spark
    jsc = java.api.java.JavaSparkContext.fromSparkContext(java.SparkContext.getOrCreate())
    conf = SparkConf(_jvm=gateway.jvm, _jconf=jsc.sc().conf())
    sql: Any = gateway.jvm.org.apache.spark.sql
    session = sql.classic.SparkSession if SPARK_VERSION >= (4, 0) else sql.SparkSession
    return SparkSession(SparkContext(conf=conf, gateway=gateway, jsc=jsc), session.builder().getOrCreate())


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_around(owner: Any, name: str, *, is_late: bool) -> None:
    """Die at the first call of this function, before or after it has done its work."""
    inner = getattr(owner, name)

    def dying(*arguments: Any, **options: Any) -> None:
        if is_late:
            inner(*arguments, **options)
        die()

    setattr(owner, name, dying)


def kill_when_it_writes(folder: Path, pid: int) -> None:
    """Kill a process as soon as a task of Spark has made a file."""

    def watch() -> None:
        while not any(path.suffix == ".parquet" for path in folder.rglob("*")):  # ended with the process
            SystemClock().sleep_ms(LOOK_MS)
        os.kill(pid, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def install(point: str, client: PersistClient, spark: SparkSession) -> Callable[[JobSpec], None]:
    """Make this process, or its JVM, die at the point; what is to be called with the job's description."""
    if point.endswith("its files"):
        die_around(merging, "stage_files", is_late=point.startswith("after"))
    elif point == "after its manifest":
        die_around(merging, "stage_manifest", is_late=True)
    elif point.endswith("compare-and-set"):
        die_around(client.location.consensus, "compare_and_set", is_late=point.startswith("after"))
    else:
        pid = os.getpid()
        if point == OF_JVM:
            context: Any = spark.sparkContext
            pid = context._gateway.jvm.ProcessHandle.current().pid()
        else:
            die_around(merging, "stage_files", is_late=True)  # at the latest
        root = Path(client.blob.uri.removeprefix("file://"))
        return lambda spec: kill_when_it_writes(root / attempt_prefix(SHARD, spec.attempt), pid)
    return lambda _: None


if __name__ == "__main__":
    folder, point = Path(sys.argv[1]), sys.argv[2]
    client = PersistClient(opened(folder))
    spark = local_spark("merge", folder / "spark", "local[1]") if point == OF_JVM else connected()
    begin = install(point, client, spark)

    def start(items: Sequence[JobSpec], _: Sequence[str]) -> Ended:
        begin(items[0])
        merging.run_merge_job(spark, items[0], client.location)
        return Ended("")

    state = client.state(SHARD)
    merge_by_job(client, start, Merge.of(client, state, state.batches))
