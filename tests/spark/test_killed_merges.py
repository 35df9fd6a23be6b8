"""A merge by Spark that is killed at any of its points changes no answer; maintenance and GC then do the rest."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from persist_core.clock import SystemClock
from persist_core.compaction.merge import Merge
from persist_core.gc.collect import collect
from persist_core.handles.client import PersistClient
from persist_core.maintenance.maintain import maintain
from persist_core.shard.replace import NotReplaced, Replaced
from persist_core.spark_job.launch import Ended, merge_by_job
from persist_core.spark_job.spec import JobSpec
from persist_spark.merge import run_merge_job
from tests.core.compaction.histories import KEYED, History
from tests.core.compaction.kill_driver import SHARD, opened
from tests.sampling import is_long
from tests.sim.simulator.reachable import reachable
from tests.spark.merge_kill_driver import OF_JVM, POINTS
from tests.virtual import ManualClock, SeededIds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCHES = 6
SAMPLE = 1  # of the points, by the seed; all of them at night
SECONDS = 180  # a bound on each process, which takes some seconds


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[History, Path]:
    """A history, and the folder of its shard, to be copied."""
    folder = tmp_path_factory.mktemp("merges") / "whole"
    history = History(opened(folder), KEYED, seed=4)
    while len(history.state.batches) < BATCHES:
        history.append()
    history.client.location.close()
    return history, folder


def test_a_merge_by_spark_is_killed_at_its_points(
    spark: SparkSession, whole: tuple[History, Path], tmp_path: Path, persist_seed: int
) -> None:
    for point in random.Random(persist_seed).sample(POINTS, len(POINTS) if is_long() else SAMPLE):
        folder = Path(shutil.copytree(whole[1], tmp_path / point.replace(" ", "-")))
        assert killed(spark, folder, point) == -signal.SIGKILL
        check_recovery(spark, whole[0], folder, point)


@pytest.mark.skipif(not is_long(), reason="starts a Spark of its own (PERSIST_PROFILE=nightly)")
def test_the_jvm_of_a_merge_is_killed(spark: SparkSession, whole: tuple[History, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(whole[1], tmp_path / "jvm"))
    command = [sys.executable, "-m", "tests.spark.merge_kill_driver", str(folder), OF_JVM]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ended.returncode == 1
    assert "Py4J" in ended.stderr
    check_recovery(spark, whole[0], folder, OF_JVM)


def check_recovery(spark: SparkSession, history: History, folder: Path, point: str) -> None:
    """The answers are as before; maintenance merges, and GC deletes what the killed merge has left."""
    clock = ManualClock(1_700_000_000_000)
    history.client = client = PersistClient(opened(folder), clock, SeededIds(99, clock))
    assert len(history.state.batches) == (1 if point == "after the compare-and-set" else BATCHES)
    history.check()
    left = unneeded(client)
    assert bool(left) or point == "before its files"
    maintain(client, SHARD, max_rows=0, merge_elsewhere=partial(merged_by, spark, client))
    assert len(history.state.batches) == 1
    for _ in range(4):
        collect(client, SHARD, grace_ms=0, intent_ms=0)
    assert unneeded(client) == set()
    history.check()
    client.location.close()


def merged_by(spark: SparkSession, client: PersistClient, merge: Merge) -> Replaced | NotReplaced:
    def start(items: Sequence[JobSpec], _: Sequence[str]) -> Ended:
        run_merge_job(spark, items[0], client.location)
        return Ended("")

    return merge_by_job(client, start, merge)


def killed(spark: SparkSession, folder: Path, point: str) -> int:
    """The exit code of a process that merges with this Spark and dies at the point, when its last job has ended."""
    context: Any = spark.sparkContext
    gateway = context._gateway.gateway_parameters
    environment = {
        **os.environ,
        "PYSPARK_GATEWAY_PORT": str(gateway.port),
        "PYSPARK_GATEWAY_SECRET": gateway.auth_token,
    }
    command = [sys.executable, "-m", "tests.spark.merge_kill_driver", str(folder), point]
    code = subprocess.run(command, env=environment, timeout=SECONDS, check=False).returncode
    until = time.monotonic() + SECONDS
    while context.statusTracker().getActiveJobsIds() and time.monotonic() < until:
        SystemClock().sleep_ms(50)
    return code


def unneeded(client: PersistClient) -> set[str]:
    stored = {entry.key for entry in client.blob.list_keys_and_metadata(f"{SHARD}/")}
    return stored - reachable(client.blob, client.location.consensus, SHARD)
