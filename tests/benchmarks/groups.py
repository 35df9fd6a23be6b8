"""The cost of a group beside collections with a DAG each, and beside jobs by hand, through a real scheduler.

    make .venv-bench/installed && .venv/bin/python -m tests.env.spark_jars iceberg
    python -m tests.benchmarks.groups [COLLECTIONS] [--batch-of 50] [--connect]
                                            prints seconds by the clock and of processor, and the ratios

With `--connect` our jobs share the Spark Connect server of `make up`, whose processor seconds count.

Each collection has 10,000 keys from its first day. The second day brings 1,000 events to each: one backfill of one
collection's DAG, one of the group's, and one of a DAG of five tasks by hand: a `SparkSubmitOperator` each, whose job
brings the newest event of each key into an Iceberg table with `MERGE INTO`, in the Spark that Iceberg has a runtime
for. Processor seconds are of the scheduler, its tasks and their Spark, without PostgreSQL and the API server, and hold
on a busy machine too; what the scheduler takes by itself meanwhile is in them.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import sys
import tempfile
from datetime import date, datetime, timedelta
from pathlib import Path

from persist_airflow.embedded.home import SPARK, LocalAirflow
from persist_core.config.groups import GroupConfig
from persist_core.handles.client import PersistClient
from persist_core.location.open import open_location
from persist_core.location.settings import PersistLocation
from tests.env.spark_jars import JARS
from tests.processes import usage
from tests.servers.lifeline import wait_until

COLLECTIONS, KEYS, EVENTS = 20, 10_000, 1_000
ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / ".venv-bench"
TIMEOUT_MS = 3_600_000
ONE, GROUP, HAND = "persist_upsert__alone", "persist_group__bench", "by_hand"
BY_HAND = 5
COLLECTION = """
source:
  path: {feed}/date={{date:%Y-%m-%d}}/*.jsonl
  format: json
key: id
columns: {{id: bigint, name: string, amount: "decimal(12,2)", city: string}}
time: path
delete: {{null_value: true}}
start_date: 2026-01-01
"""
DAG_FILE = """
# airflow DAG
from datetime import datetime, timezone
from pathlib import Path
from persist_airflow.factory import build_dags
until = {"end_date": datetime(2026, 1, 2, tzinfo=timezone.utc)}
globals().update(build_dags(Path(__file__).parent / "collections", dag_args=until))
"""

HAND_DAG = """
# airflow DAG
from datetime import datetime, timezone
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG
start, end = (datetime(2026, 1, day, tzinfo=timezone.utc) for day in (1, 2))
with DAG("by_hand", schedule="@daily", start_date=start, end_date=end, catchup=False):
    for number in range({tables}):
        SparkSubmitOperator(
            task_id=f"h{{number}}",
            conn_id="spark_local",
            application={job!r},
            application_args=[f"h{{number}}", f"{feed}/h{{number}}/date={{{{{{{{ ds }}}}}}}}"],
            jars={jar!r},
            driver_memory="1g",
            conf={conf!r},
            env_vars={env!r},
        )
"""
HAND_JOB = """
import sys
from pyspark.sql import SparkSession
from pyspark.sql.functions import expr
table, folder = sys.argv[1:]
columns = "id BIGINT, name STRING, amount DECIMAL(12,2), city STRING"
spark = SparkSession.builder.getOrCreate()
events = spark.read.schema(columns).json(folder).selectExpr("*", "monotonically_increasing_id() AS place")
newest = events.groupBy("id").agg(expr("max_by(struct(name, amount, city), place) AS v")).select("id", "v.*")
newest.createOrReplaceTempView("newest")
properties = "'format-version'='3', 'write.merge.mode'='merge-on-read', 'write.merge.distribution-mode'='none'"
spark.sql(f"CREATE TABLE IF NOT EXISTS ice.{table} ({columns}) USING iceberg TBLPROPERTIES ({properties})")
spark.sql(f"MERGE INTO ice.{table} t USING newest s ON t.id = s.id"
          " WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *")
"""


def write_by_hand(folder: Path) -> None:
    """A DAG of jobs as one writes them without us, and their input."""
    (jar,) = (JARS / "iceberg").glob("*.jar")
    (pyspark,) = BENCH.glob("lib/python*/site-packages/pyspark")
    conf = {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.ice.type": "hadoop",
        "spark.sql.catalog.ice.warehouse": str(folder / "ice"),
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
    }
    path = f"{BENCH / 'bin'}{os.pathsep}{os.environ['PATH']}"
    env = {"SPARK_HOME": str(pyspark), "PYSPARK_PYTHON": str(BENCH / "bin" / "python"), "PATH": path}
    job, feed = folder / "by_hand.py", folder / "feed"
    job.write_text(HAND_JOB)
    text = HAND_DAG.format(tables=BY_HAND, job=str(job), feed=feed, jar=str(jar), conf=conf, env=env)
    (folder / "dags" / "by_hand.py").write_text(text)
    for number in range(BY_HAND):
        for day in range(2):
            write_feed(feed / f"h{number}", day)


def write_project(folder: Path, collections: int, batch_of: int) -> None:
    """The group's collections and one without a group, with two days of input each."""
    (folder / "dags" / "collections").mkdir(parents=True)
    (folder / "dags" / "dags.py").write_text(DAG_FILE)
    (folder / "dags" / "persist.yaml").write_text(f"groups: {{bench: {{collections: [t*], batch_of: {batch_of}}}}}\n")
    for name in ("alone", *(f"t{number:03}" for number in range(collections))):
        feed = folder / "feed" / name
        (folder / "dags" / "collections" / f"{name}.yaml").write_text(COLLECTION.format(feed=feed))
        for day in range(2):
            write_feed(feed, day)
    write_by_hand(folder)


def write_feed(feed: Path, day: int) -> None:
    """The input of one day, from 0 on: all keys on the first one."""
    draw = random.Random(f"{feed.name} {day}")
    keys = [draw.randrange(KEYS) for _ in range(EVENTS)] if day else range(KEYS)
    path = feed / f"date={date(2026, 1, 1) + timedelta(day)}" / "part.jsonl"
    path.parent.mkdir(parents=True)
    rows = ({"id": key, "name": f"n{key}", "amount": f"{draw.randrange(9999)}.50", "city": "Oslo"} for key in keys)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def backfill(airflow: LocalAirflow, dag_id: str, day: int) -> tuple[float, float]:
    """One day of one DAG: seconds of the dag run, and of processor."""
    programs = [kept.pid for name in ("scheduler", SPARK) if (kept := airflow.kept.named(name)) is not None]
    before_s = sum(usage(pid).processor_s for pid in programs)
    date = f"2026-01-0{day}"
    airflow.query("update backfill set completed_at = now() where completed_at is null returning id")
    airflow.command("backfill", "create", "--dag-id", dag_id, "--from-date", date, "--to-date", date)
    deadline_ms = airflow.clock.now_ms() + TIMEOUT_MS
    while True:
        statement = (
            "select state, start_date, end_date from dag_run where dag_id = %s order by logical_date desc limit 1"
        )
        ((state, start, end),) = airflow.query(statement, dag_id)
        if state in ("success", "failed"):
            break
        assert airflow.clock.now_ms() < deadline_ms, state
        airflow.clock.sleep_ms(500)
    assert state == "success", (dag_id, day)
    assert isinstance(start, datetime)
    return (end - start).total_seconds(), sum(usage(pid).processor_s for pid in programs) - before_s


def check(client: PersistClient) -> None:
    """Each has its two commits."""
    for shard in client.shards():
        assert len(client.state(shard).commits) == 2, shard


def main(collections: int, *, batch_of: int, is_connected: bool) -> None:
    """Load, then measure the second day of all."""
    importlib.import_module("airflow")
    with tempfile.TemporaryDirectory(prefix="persist-bench-") as name:
        folder = Path(name)
        write_project(folder, collections, batch_of)
        location = PersistLocation(f"file://{folder}/blob", f"sqlite:///{folder}/consensus.db")
        settings = {
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "1",
            "AIRFLOW_CONN_SPARK_LOCAL": json.dumps({"conn_type": "spark", "host": "local[2]"}),
            "PYTHONPATH": str(ROOT),
        }
        airflow = LocalAirflow(folder / "home", folder / "dags", location, settings, has_spark=is_connected)
        airflow.migrate()
        airflow.command("dags", "reserialize")
        with airflow.running(), open_location(location) as opened:
            wait_until(lambda: airflow.kept.named("scheduler") is not None, what="the scheduler")
            found = {(dag_id, day): backfill(airflow, dag_id, day) for day in (1, 2) for dag_id in (ONE, HAND, GROUP)}
            check(PersistClient(opened))
    numbers = {ONE: 1, HAND: BY_HAND, GROUP: collections}
    for (dag_id, day), (wall_s, processor_s) in found.items():
        number = numbers[dag_id]
        each = f"{wall_s / number:6.2f} s and {processor_s / number:6.2f} CPU-s for a collection"
        sys.stdout.write(f"day {day}, {dag_id:24} {wall_s:6.1f} s, {processor_s:6.1f} CPU-s; {each}\n")
    ratios = [found[GROUP, 2][place] / collections / (found[HAND, 2][place] / BY_HAND) for place in range(2)]
    sys.stdout.write(f"group / by hand: {ratios[0]:.3f} of the time, {ratios[1]:.3f} of the processor seconds\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="groups")
    parser.add_argument("collections", nargs="?", type=int, default=COLLECTIONS)
    parser.add_argument("--batch-of", type=int, default=GroupConfig().batch_of)
    parser.add_argument("--connect", action="store_true")
    given = parser.parse_args()
    main(given.collections, batch_of=given.batch_of, is_connected=given.connect)
