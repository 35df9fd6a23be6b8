"""The cost of `sequence` order, and of values that are not sent, for a feed of Debezium: commits in one warm session.

    python -m tests.benchmarks.orders --keys 2000000 --events 50000 --rounds 10 --json docs/benchmarks/orders.json

Every collection begins with the rows of a snapshot, made without JSON to save time. Then all get the same messages, in
turns, each round a day: 60 % updates, 30 % inserts and 10 % deletes, each with its LSN. They differ in their order, and
in what a record may leave out:

    log, sequence                 no column can be left out: their plans have no branch for it
    log/sequence, may be unsent   the text columns can be (the default of Debezium feeds), and every record has them
    log/sequence, unsent          a third of the updates leave out one of the text columns

Prints medians of the rounds, by the clock and of processor (the JVM and this process), and the medians of the ratios of
each round. At the end all collections that got whole records have the same living keys, or the run fails. `--folder`
keeps the shards: another run goes on with the days after.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from time import perf_counter
from typing import Any
from unittest import mock

import click
import duckdb
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from persist_core.config import collection as collections
from persist_core.config.collection import UNAVAILABLE_VALUE, CollectionConfig
from persist_core.contents.batch import BatchDescription
from persist_core.handles.client import PersistClient
from persist_core.keys import manifest_key
from persist_core.location.open import open_location
from persist_core.location.settings import PersistLocation
from persist_core.spark_job.spec import JobSpec
from persist_core.time_text import parse_time
from persist_spark.decode.formats import decode
from persist_spark.frame import OP, ORDER
from persist_spark.upsert import job
from persist_spark.upsert.eras import FIELDS
from tests.benchmarks.sessions import session
from tests.benchmarks.workload import Workload
from tests.one_run import run_one
from tests.processes import usage

FIRST = date(2026, 1, 1)
TEXTS = ("name", "mail", "city")
_FIRST_MS = 1_767_225_600_000
_LSN_OF_DAY = 10**8
_BYTES_PER_ROW = 100  # of the snapshot


@dataclass(frozen=True)
class Variant:
    """A collection. `may_lack`: the text columns have a branch for values that are not sent."""

    name: str
    mode: str
    may_lack: bool = False
    feed: str = "whole"


VARIANTS = (
    Variant("log", "log"),
    Variant("sequence", "sequence"),
    Variant("log, may be unsent", "log", may_lack=True),
    Variant("sequence, may be unsent", "sequence", may_lack=True),
    Variant("log, unsent", "log", may_lack=True, feed="partial"),
    Variant("sequence, unsent", "sequence", may_lack=True, feed="partial"),
)
RATIOS = (
    ("sequence", "log"),
    ("log, may be unsent", "log"),
    ("log, unsent", "log"),
    ("sequence, may be unsent", "sequence"),
    ("sequence, unsent", "sequence"),
)


def _texts(number: str) -> dict[str, str]:
    """SQL for the text columns, for DuckDB and for Spark."""
    text = f"md5(CAST({number} AS VARCHAR(20)))"
    return {
        "name": text,
        "mail": f"concat({text}, '@example.com')",
        "city": f"concat('city-', CAST({number} % 500 AS VARCHAR(20)))",
    }


def _numbers(number: str) -> dict[str, str]:
    return {"age": f"CAST({number} % 90 AS INT)", "visits": number, "score": f"CAST({number} AS DOUBLE) / 7"}


def write_day(workload: Workload, number: int, folder: Path, *, lacks: bool) -> None:
    """The messages of one day, from 1 on."""
    folder.mkdir(parents=True, exist_ok=True)
    inserted = int(workload.events * 0.3)
    first = workload.keys + (number - 1) * inserted
    lsn, value = f"({number * _LSN_OF_DAY} + place)", "(hash(n, place) % 1000000007)::BIGINT"
    texts = _texts(value)
    if lacks:  # one of the texts of a third of the updates; a row's first record has all
        texts = {
            name: f"CASE WHEN op = 'u' AND place % 9 = {index} THEN '{UNAVAILABLE_VALUE}' ELSE {sql} END"
            for index, (name, sql) in enumerate(texts.items())
        }
    cells = ", ".join(f"{name}: {sql}" for name, sql in {"id": "n", **texts, **_numbers(value)}.items())
    source = f"{{connector: 'postgresql', ts_ms: {_FIRST_MS} + {lsn}, db: 'shop', 'table': 'users', lsn: {lsn}}}"
    # A tenth repeat a key of the same day.
    rows = f"""
        SELECT CASE WHEN place % 10 = 9 THEN lag(n, 7) OVER (ORDER BY place) ELSE n END AS n, place,
            CASE WHEN place % 10 < 3 THEN 'c' WHEN place % 10 = 8 THEN 'd' ELSE 'u' END AS op
        FROM (SELECT place,
            CASE WHEN place % 10 < 3 THEN {first} + place // 10 * 3 + place % 10
                ELSE (hash(place, {number}) % {first})::BIGINT END AS n
            FROM range({workload.events}) r(place))"""
    with duckdb.connect() as db:
        db.execute(
            f"""COPY (SELECT CASE WHEN op = 'd' THEN {{id: n}} END AS before,
                CASE WHEN op != 'd' THEN {{{cells}}} END AS after, {source} AS source, op,
                {_FIRST_MS} + {lsn} + 500 AS ts_ms FROM ({rows}) ORDER BY place)
                TO '{folder}/0001.jsonl' (FORMAT json)"""
        )


def snapshot_rows(spark: SparkSession, decoded: DataFrame, keys: int) -> DataFrame:
    """The records frame of a snapshot, in the columns of a decoded one."""
    value = "CAST(abs(xxhash64(id)) % 1000000007 AS BIGINT)"
    order = {FIELDS["number"]: "id", FIELDS["source_ms"]: f"{_FIRST_MS} + id", FIELDS["seen_ms"]: f"{_FIRST_MS} + id"}
    order |= {"file": "'dt=2026-01-01/0001.jsonl'", "row": "id"}
    given = {"id": "id", **_texts(value), **_numbers(value), OP: "'u'"}
    (struct,) = [field.dataType for field in decoded.schema.fields if field.name == ORDER]
    assert isinstance(struct, T.StructType)
    cells = [
        f"'{each.name}', CAST({order.get(each.name, '0' if each.name == 'block' else 'NULL')} AS"
        f" {each.dataType.simpleString()})"
        for each in struct.fields
    ]
    given[ORDER] = f"named_struct({', '.join(cells)})"
    return spark.range(keys).selectExpr(
        *[
            f"CAST({given.get(f.name, 'NULL')} AS {f.dataType.simpleString()}) AS {f.name}"
            for f in decoded.schema.fields
        ]
    )


def config_of(variant: Variant, folder: Path) -> CollectionConfig:
    """The collection file's contents."""
    types = dict.fromkeys(TEXTS, "string") | {"age": "int", "visits": "bigint", "score": "double"}
    return CollectionConfig.model_validate(
        {
            "name": "".join(c if c.isalnum() else "-" for c in variant.name),
            "base_dir": str(folder),
            "source": {"path": f"{variant.feed}/dt={{date:%Y-%m-%d}}/*.jsonl", "format": "debezium-json"},
            "key": "id",
            "columns": {"id": "bigint", **types},
            "order": variant.mode,
            "limits": {"max_errors": None},  # an update of a deleted row has no value to keep
            "time": "path",
        }
    )


@contextlib.contextmanager
def branches(variant: Variant) -> Iterator[None]:
    """Without `may_lack` no column of a Debezium feed can be left out."""
    with contextlib.nullcontext() if variant.may_lack else mock.patch.object(collections, "UNAVAILABLE_TYPES", ()):
        yield


class Bench:
    """The collections, in one session."""

    def __init__(self, spark: SparkSession, folder: Path, workload: Workload, variants: list[Variant]) -> None:
        self.spark, self.folder, self.workload, self.variants = spark, folder, workload, variants
        location = PersistLocation(f"file://{folder}/blobs", f"sqlite:///{folder}/consensus.db")
        (folder / "blobs").mkdir(parents=True, exist_ok=True)
        self.client = PersistClient(open_location(location))

    def commit(self, variant: Variant, until: str, *, is_first: bool) -> tuple[float, float]:
        """Bring a collection up to date: seconds by the clock, and of processor."""
        with branches(variant):
            config = config_of(variant, self.folder)

            def write(description: BatchDescription) -> str:
                attempt = self.client.ids.uuid7()
                job.run_write_job(self.spark, JobSpec(description, config, attempt), self.client.location)
                return manifest_key(config.name, attempt)

            def decoded(spark: SparkSession, *arguments: Any, **options: Any) -> DataFrame:
                return snapshot_rows(spark, decode(spark, *arguments, **options), self.workload.keys)

            snapshot = mock.patch.object(job, "decode", decoded) if is_first else contextlib.nullcontext()
            began, before = perf_counter(), usage().processor_s
            with snapshot:
                run_one(self.client, config, until=parse_time(until), write=write)
            return perf_counter() - began, usage().processor_s - before

    def day(self, number: int) -> dict[str, tuple[float, float]]:
        """The records of one day, to all."""
        day, end = FIRST + timedelta(number), str(FIRST + timedelta(number + 1))
        for feed in {variant.feed for variant in self.variants}:
            folder = self.folder / feed / f"dt={day}"
            if number == 0:
                folder.mkdir(parents=True)
                with (folder / "0001.jsonl").open("wb") as file:
                    file.truncate(self.workload.keys * _BYTES_PER_ROW)
            else:
                write_day(self.workload, number, folder, lacks=feed == "partial")
        turn = number % len(self.variants)
        found = {
            each.name: self.commit(each, end, is_first=number == 0)
            for each in (*self.variants[turn:], *self.variants[:turn])
        }
        for feed in {variant.feed for variant in self.variants}:
            for path in (self.folder / feed / f"dt={day}").iterdir():
                path.unlink()
        return found

    def living(self) -> dict[str, tuple[int, int]]:
        """The number of living keys of each collection, and their sum."""
        found = {}
        for variant in self.variants:
            with branches(variant):
                keys = self.client.open_reader(config_of(variant, self.folder).name).snapshot()["id"].to_numpy()
            found[variant.name] = (len(keys), int(keys.sum()))
        return found


def _median_ratio(taken: dict[str, list[tuple[float, float]]], one: str, other: str, which: int) -> float:
    pairs = zip(taken[one], taken[other], strict=True)
    return statistics.median(a[which] / b[which] for a, b in pairs)


@click.command(help=__doc__)
@click.option("--keys", default=2_000_000, show_default=True)
@click.option("--events", default=50_000, show_default=True)
@click.option("--rounds", default=12, show_default=True)
@click.option("--warm", default=3, show_default=True, help="Rounds before the ones that count.")
@click.option("--memory", default="4g", show_default=True)
@click.option("--only", default="", help="Names of variants, separated by ;")
@click.option("--folder", type=click.Path(path_type=Path), help="Keep the shards here.")
@click.option("--json", "json_path", type=click.Path(path_type=Path))
def main(
    keys: int, events: int, rounds: int, warm: int, memory: str, only: str, folder: Path | None, json_path: Path | None
) -> None:
    chosen = [each for each in VARIANTS if not only or each.name in only.split(";")]
    kept = Path(tempfile.mkdtemp(prefix="orders-")) if folder is None else folder
    try:
        spark = session(2, memory)
        bench = Bench(spark, kept, Workload(keys, events, rounds), chosen)
        marker = kept / "next-day"
        first = int(marker.read_text()) if marker.exists() else 0
        taken: dict[str, list[tuple[float, float]]] = {each.name: [] for each in chosen}
        counted_from = max(first, 1) + warm
        for number in range(first, counted_from + rounds):
            found = bench.day(number)
            marker.write_text(str(number + 1))
            sys.stdout.write(
                f"day {number:3}: " + "  ".join(f"{n} {s:.2f}/{c:.2f}" for n, (s, c) in found.items()) + "\n"
            )
            sys.stdout.flush()
            if number >= counted_from:
                for name, turn in found.items():
                    taken[name].append(turn)
        report: dict[str, Any] = {"keys": keys, "events": events, "rounds": rounds, "commits": taken, "ratios": {}}
        for which, what in enumerate(("by the clock", "of processor")):
            for name, turns in taken.items():
                sys.stdout.write(f"{what}: {name}: {statistics.median(t[which] for t in turns):.2f} s\n")
            for one, other in RATIOS:
                if one in taken and other in taken:
                    ratio = _median_ratio(taken, one, other, which)
                    report["ratios"][f"{one} / {other}, {what}"] = round(ratio, 3)
                    sys.stdout.write(f"{what}: {one} / {other}: {ratio:.2f}\n")
        # An update of a deleted row that leaves out a value is an err, so these collections may have fewer.
        living = {name: keys for name, keys in bench.living().items() if "unsent" not in name or "may" in name}
        assert len(set(living.values())) <= 1, living
        if json_path:
            json_path.write_text(json.dumps(report) + "\n")
    finally:
        if folder is None:
            shutil.rmtree(kept)


if __name__ == "__main__":
    main()
