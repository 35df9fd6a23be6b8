"""The cost of S3 for a Spark job: the bundled seven days into a folder and onto a local S3 server, in turn.

    python -m tests.benchmarks.on_s3 [ROUNDS]     prints each run's seconds, by the clock and of processor, and ratios

Each run starts its own `spark-submit`, as a dag run does, and begins with an empty shard. The server is versitygw on
this machine: S3 itself would add its latency for each request. Processor seconds are of the job and its
children, without the server, and hold on a busy machine too.
"""

from __future__ import annotations

import functools
import resource
import statistics
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from persist_core.config.collection import load_collection
from persist_core.handles.client import PersistClient
from persist_core.location.open import open_location
from persist_core.location.settings import PersistLocation
from persist_core.spark_job.launch import write_batch
from persist_core.spark_job.process import SparkProcess
from persist_core.time_text import parse_time
from tests.one_run import run_one
from tests.servers import s3

ROUNDS = 5
MASTER = "local[2]"
COLLECTION = Path(__file__).resolve().parents[2] / "dags" / "collections" / "customers.yaml"


def run(location: PersistLocation) -> tuple[float, float]:
    """One `persist run customers` into a new location: seconds by the clock, and of processor."""
    config = load_collection(COLLECTION)
    until = parse_time("2026-01-08", what="until")
    with open_location(location) as opened:
        client = PersistClient(opened)
        began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        write = functools.partial(write_batch, client, SparkProcess(location, MASTER), config)
        run_one(client, config, until=until, write=write)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return time.perf_counter() - began, processor


def main(rounds: int) -> None:
    """Alternate, so that other load on the machine affects both."""
    taken: dict[str, list[tuple[float, float]]] = {"file:": [], "s3:": []}
    s3.own_environment()
    server_of = contextmanager(s3.running)
    with tempfile.TemporaryDirectory(prefix="persist-bench-") as name, server_of("versitygw", Path(name)) as server:
        for number in range(rounds):
            consensus = f"sqlite:///{name}/consensus-{number}"
            for kind, blob in (("file:", f"file://{name}/blobs-{number}"), ("s3:", server.new_uri())):
                taken[kind].append(run(PersistLocation(blob, f"{consensus}-{kind[:-1]}.db")))
    for index, what in enumerate(("by the clock", "of processor")):
        medians = {kind: statistics.median(each[index] for each in runs) for kind, runs in taken.items()}
        for kind, runs in taken.items():
            shown = ", ".join(f"{each[index]:.1f}" for each in runs)
            sys.stdout.write(f"{what}: {kind:6} median {medians[kind]:5.1f} s of {shown}\n")
        sys.stdout.write(f"{what}: s3: takes {medians['s3:'] / medians['file:']:.2f} times as long as file:\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)
