"""What S3 costs a Spark job: the bundled seven days into a folder and onto a local S3 server, in turn.

    python -m tests.benchmarks.on_s3 [ROUNDS]     prints the seconds of each run, the medians and their ratio

Each run starts its own `spark-submit`, as a dag run does, and begins with an empty shard. The server is versitygw on
this machine: what S3 itself would add is its distance, request by request.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from persist_core.client import PersistClient
from persist_core.config import load_collection
from persist_core.local_run import bring_up_to_date
from persist_core.location.open import PersistLocation, open_location
from persist_core.spark_submit import SparkSettings
from persist_core.time_text import parse_time
from tests.servers import s3

ROUNDS = 5
MASTER = "local[2]"
COLLECTION = Path(__file__).resolve().parents[2] / "dags" / "collections" / "customers.yaml"


def seconds_of(location: PersistLocation) -> float:
    """One `persist run customers` into a new location."""
    config = load_collection(COLLECTION)
    until = parse_time("2026-01-08", what="until")
    with open_location(location) as opened:
        client = PersistClient(opened)
        began = time.perf_counter()
        bring_up_to_date(client, location, config, until=until, settings=SparkSettings(MASTER), say=lambda _: None)
        return time.perf_counter() - began


def main(rounds: int) -> None:
    """Alternate, so that whatever else the machine does weighs on both."""
    taken: dict[str, list[float]] = {"file:": [], "s3:": []}
    server_of = contextmanager(s3.running)
    with tempfile.TemporaryDirectory(prefix="persist-bench-") as name, server_of("versitygw", Path(name)) as server:
        for number in range(rounds):
            consensus = f"sqlite:///{name}/consensus-{number}"
            for kind, blob in (("file:", f"file://{name}/blobs-{number}"), ("s3:", server.new_uri())):
                taken[kind].append(seconds_of(PersistLocation(blob, f"{consensus}-{kind[:-1]}.db")))
    for kind, seconds in taken.items():
        shown = ", ".join(f"{each:.1f}" for each in seconds)
        sys.stdout.write(f"{kind:6} median {statistics.median(seconds):5.1f} s of {shown}\n")
    ratio = statistics.median(taken["s3:"]) / statistics.median(taken["file:"])
    sys.stdout.write(f"s3: takes {ratio:.2f} times as long as file:\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)
