"""The requests of a commit on S3, by phase, at two sizes of the table: the terms of docs/scale.md.

    python -m tests.benchmarks.requests [--keys 100000 1000000] [--events 1000] [--days 6]
    python -m tests.benchmarks.requests --keys --files 10 100

Each day is one commit as `persist run` makes it: mint, a `spark-submit`, append, checkpoint, small maintenance; data
and state lie on one S3-speaking server. Its access log has every request of Python and of Spark. Printed are means of
the days after the first. With `--files`: what a scan of so many files of one folder asks for before it reads them, if
the folder holds no others, and if it does.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import types as T

from persist_core.config.collection import CollectionConfig
from persist_core.handles.client import PersistClient
from persist_core.location.open import open_blob, open_location
from persist_core.location.settings import PersistLocation
from persist_core.maintenance.maintain import maintain_inline
from persist_core.protocol import stages
from persist_core.protocol.run import append_staged, write_staged
from persist_core.protocol.stages import Minted
from persist_core.schema import CollectionSchema, Column
from persist_core.spark_job.installation import spark_home
from persist_core.spark_job.jars import s3a_jars
from persist_core.spark_job.launch import write_batch
from persist_core.spark_job.process import SparkProcess
from persist_core.time_text import DAY_MS, format_time, parse_time
from persist_spark.read.parts import scan
from tests.benchmarks.sessions import session
from tests.servers import s3

FIRST = parse_time("2026-01-01")
_LINE = re.compile(r" s3_(\w+) \S+ \S+ \d{3} ")
_KINDS = {"GetObject": "GET", "HeadObject": "HEAD", "HeadBucket": "HEAD", "ListObjectsV2": "LIST", "PutObject": "PUT"}


@dataclass
class Log:
    """The server's access log; `since` gives what was added since the last call."""

    path: Path
    place: int = 0

    def since(self) -> Counter[str]:
        """Requests by kind."""
        with self.path.open() as log:
            log.seek(self.place)
            lines = log.read().splitlines()
            self.place = log.tell()
        found: Counter[str] = Counter()
        for line in lines:
            if line.startswith("log starts"):
                continue
            match = _LINE.search(line)
            if match is None:
                raise ValueError(f"a line of the access log is not understood: {line}")
            found[_KINDS.get(match[1], match[1])] += 1
        return found


@dataclass
class Phases:
    """The sum of each phase over days."""

    days: int = 0
    found: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, phase: str, seen: Counter[str]) -> None:
        self.found.setdefault(phase, Counter()).update(seen)


def config_of(feed: Path) -> CollectionConfig:
    columns = {"id": "bigint", **{f"c{n}": "bigint" for n in range(10)}}
    source = {"path": f"{feed}/{{date:%Y-%m-%d}}.parquet", "format": "parquet"}
    return CollectionConfig.model_validate(
        {"name": "scale", "source": source, "key": "id", "columns": columns, "delete": "none", "order": "log",
         "time": "path", "start_date": "2026-01-01"}
    )  # fmt: skip


def put_day(feed: Path, day: int, ids: np.ndarray) -> None:
    rng = np.random.default_rng(day)
    columns = {"id": ids, **{f"c{n}": rng.integers(0, 1 << 62, len(ids)) for n in range(10)}}
    pq.write_table(pa.table(columns), feed / f"{format_time(FIRST + day * DAY_MS)[:10]}.parquet")


@contextmanager
def logged_server(folder: Path) -> Iterator[tuple[s3.S3Server, Log]]:
    log = folder / "access.log"
    log.touch()
    os.environ["VGW_ACCESS_LOG"] = str(log)
    with contextmanager(s3.running)("versitygw", folder / "server") as server:
        yield server, Log(log)


def commit(client: PersistClient, location: PersistLocation, config: CollectionConfig, day: int, log: Log,
           phases: Phases) -> None:  # fmt: skip
    """One day."""
    minted = stages.mint(client, config, until=FIRST + (day + 1) * DAY_MS, writer="benchmark")
    assert isinstance(minted, Minted), minted
    phases.add("mint", log.since())
    start = SparkProcess(location, "local[2]")
    key = write_staged(client, config, minted.description, lambda asked: write_batch(client, start, config, asked))
    phases.add("write", log.since())
    append_staged(client, config, minted.description, key)
    phases.add("append", log.since())
    stages.checkpoint(client, config)
    phases.add("checkpoint", log.since())
    maintain_inline(client, config.name)
    phases.add("maintenance", log.since())
    phases.days += 1


def measure(keys: int, events: int, days: int, folder: Path) -> None:
    feed = folder / "feed"
    feed.mkdir()
    config = config_of(feed)
    rng = np.random.default_rng(keys)
    with logged_server(folder) as (server, log):
        location = PersistLocation(server.new_uri("shards"), server.new_uri("consensus"))
        with open_location(location) as opened:
            client = PersistClient(opened)
            put_day(feed, 0, np.arange(keys))
            commit(client, location, config, 0, log, Phases())
            phases = Phases()
            for day in range(1, days + 1):
                put_day(feed, day, np.sort(rng.choice(keys, events, replace=False)))
                commit(client, location, config, day, log, phases)
            batches = client.manifests(client.state(config.name).batches)
            parts = [part.size_bytes for batch in batches for part in batch.parts]
            show(f"{keys:,} keys, {len(parts)} files, {sum(parts) / 1e6:.0f} MB, {events:,} events a day", phases)


def scans(sizes: Sequence[int], folder: Path) -> None:
    """Print what scans of so many files of a folder ask for."""
    schema = CollectionSchema(key=(Column("id", "bigint", nullable=False),), values=())
    made = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": [1]}), made)
    with logged_server(folder) as (server, log), closing(open_blob(server.new_uri("scans"))) as blob:
        spark = session(2, "1g", {"spark.jars": ",".join(map(str, s3a_jars(os.environ, spark_home(os.environ))))})
        for files in sizes:
            keys = [f"{files}/{number:05}.parquet" for number in range(files)]
            for key in keys:
                blob.set(key, made.getvalue().to_pybytes())
            for what, some in (("all of a folder", keys), ("all but one", keys[1:])):
                log.since()
                scan(spark, blob, [(key, schema) for key in some], T.StructType([T.StructField("id", T.LongType())]))
                found = [f"{count} {kind}" for kind, count in sorted(log.since().items())]
                sys.stdout.write(f"{files} files, {what}: {', '.join(found)}\n")


def show(what: str, phases: Phases) -> None:
    sys.stdout.write(f"{what}, means of {phases.days} days\n")
    for phase, seen in phases.found.items():
        parts = [f"{count / phases.days:.1f} {kind}" for kind, count in sorted(seen.items())]
        sys.stdout.write(f"  {phase}: {', '.join(parts)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", nargs="*", type=int, default=[100_000, 1_000_000])
    parser.add_argument("--files", nargs="*", type=int, default=[])
    parser.add_argument("--events", type=int, default=1000)
    parser.add_argument("--days", type=int, default=6)
    given = parser.parse_args()
    s3.own_environment()
    for each in given.keys:
        with tempfile.TemporaryDirectory() as made:
            measure(each, given.events, given.days, Path(made))
    if given.files:
        with tempfile.TemporaryDirectory() as made:
            scans(given.files, Path(made))
