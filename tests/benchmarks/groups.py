"""The cost of a group beside collections with a DAG each, through a real scheduler.

    python -m tests.benchmarks.groups [COLLECTIONS]     prints seconds by the clock and of processor, and a ratio

Each collection has 10,000 keys from its first day. The second day brings 1,000 events to each: one backfill of one
collection's DAG, and one of the group's. Processor seconds are of the scheduler, its tasks and their Spark, without
PostgreSQL and the API server, and hold on a busy machine too; what the scheduler takes by itself meanwhile is in them.
"""

from __future__ import annotations

import importlib
import json
import random
import sys
import tempfile
from datetime import date, datetime, timedelta
from pathlib import Path

from persist_airflow.embedded.home import LocalAirflow
from persist_core.handles.client import PersistClient
from persist_core.location.open import open_location
from persist_core.location.settings import PersistLocation
from tests.benchmarks.turns import usage
from tests.servers.lifeline import wait_until

COLLECTIONS, KEYS, EVENTS = 20, 10_000, 1_000
ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_MS = 3_600_000
ONE, GROUP = "persist_upsert__alone", "persist_group__bench"
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


def write_project(folder: Path, collections: int) -> None:
    """The group's collections and one without a group, with two days of input each."""
    (folder / "dags" / "collections").mkdir(parents=True)
    (folder / "dags" / "dags.py").write_text(DAG_FILE)
    (folder / "dags" / "persist.yaml").write_text("groups: {bench: {collections: [t*]}}\n")
    for name in ("alone", *(f"t{number:03}" for number in range(collections))):
        feed = folder / "feed" / name
        (folder / "dags" / "collections" / f"{name}.yaml").write_text(COLLECTION.format(feed=feed))
        for day in range(2):
            write_feed(feed, day)


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
    scheduler = airflow.kept.named("scheduler")
    assert scheduler is not None
    before_s = usage(scheduler.pid).processor_s
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
    return (end - start).total_seconds(), usage(scheduler.pid).processor_s - before_s


def check(client: PersistClient) -> None:
    """Each has its two commits."""
    for shard in client.shards():
        assert len(client.state(shard).commits) == 2, shard


def main(collections: int) -> None:
    """Load, then measure the second day of both."""
    importlib.import_module("airflow")
    with tempfile.TemporaryDirectory(prefix="persist-bench-") as name:
        folder = Path(name)
        write_project(folder, collections)
        location = PersistLocation(f"file://{folder}/blob", f"sqlite:///{folder}/consensus.db")
        settings = {
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "1",
            "PYTHONPATH": str(ROOT),
        }
        airflow = LocalAirflow(folder / "home", folder / "dags", location, settings)
        airflow.migrate()
        airflow.command("dags", "reserialize")
        with airflow.running(), open_location(location) as opened:
            wait_until(lambda: airflow.kept.named("scheduler") is not None, what="the scheduler")
            found = {(dag_id, day): backfill(airflow, dag_id, day) for day in (1, 2) for dag_id in (ONE, GROUP)}
            check(PersistClient(opened))
    for (dag_id, day), (wall_s, processor_s) in found.items():
        number = 1 if dag_id == ONE else collections
        each = f"{wall_s / number:6.2f} s and {processor_s / number:6.2f} CPU-s for a collection"
        sys.stdout.write(f"day {day}, {dag_id:24} {wall_s:6.1f} s, {processor_s:6.1f} CPU-s; {each}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else COLLECTIONS)
