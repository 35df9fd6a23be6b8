"""A real scheduler loads the bundled feed in `sequence` order, with files on other days and half of them twice.

A process of a write task (or its Spark job) and one of an append task are killed meanwhile. It ends with the rows of
the feed as it was written, loaded in `log` order; and the late records and the orders that the shard then knows are
as in a plain replay of what was delivered.
"""

from __future__ import annotations

import gzip
import random
import shutil
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from persist_airflow.embedded.home import LocalAirflow
from persist_core.checkpoint.checkpointer import state_rows
from persist_core.checkpoint.recovery import recover_newest
from persist_core.contents.batch import ORDER_INDEX_OPERATOR
from persist_core.handles.client import PersistClient
from persist_core.inspection.late import late_records
from persist_core.location.open import open_location
from persist_core.location.settings import PersistLocation
from persist_core.maintenance.fsck import fsck
from persist_core.schema import DELETED, DIFF, INDEX_KIND, ORDER, RAISED, TIME, order_type, system_field
from persist_core.sources.natural_order import natural_key
from tests.airflow import kill_points
from tests.airflow.kill_in_job import JOB
from tests.core.feed_replay import change_of
from tests.core.world import all_updates
from tests.e2e.test_airflow_scheduler import QUICK_RETRIES, ROOT, follow
from tests.sampling import is_long

DAYS = 7
FIRST = date(2026, 1, 1)
IDS = {name: f"persist_upsert__{name}" for name in ("customers", "shuffled")}
# Only tasks of `shuffled` are killed: a task's process parses files for its own DAG.
DAG_FILE = f"""
# airflow DAG
from datetime import timedelta
from pathlib import Path
from persist_airflow.compat import only_dag_id
from persist_airflow.factory import build_dags
from tests.airflow.kill_points import install
if only_dag_id() == "{IDS["shuffled"]}":
    install(Path(__file__).parents[1] / "points")
globals().update(build_dags(Path(__file__).parent / "collections"{QUICK_RETRIES}))
"""
LSN = "by1"  # the field of `ORDER` that has it, as `AUTO_ORDERS` says
Order = tuple[int, str]  # the LSN of a record, and the natural key of its file


@pytest.fixture
def airflow(tmp_path: Path, home: Path, persist_seed: int) -> Iterator[LocalAirflow]:
    """An Airflow home with `customers` and `shuffled`; nothing runs yet, and nothing runs afterwards."""
    dags = tmp_path / "dags"
    (dags / "collections").mkdir(parents=True)
    (dags / "dags.py").write_text(DAG_FILE)
    shutil.copytree(ROOT / "dags" / "feed" / "customers", tmp_path / "feed" / "customers")
    text = (ROOT / "dags" / "collections" / "customers.yaml").read_text().replace("../feed", f"{tmp_path}/feed")
    (dags / "collections" / "customers.yaml").write_text(text)
    late = text.replace("/feed/customers/", "/feed/shuffled/")
    (dags / "collections" / "shuffled.yaml").write_text(late)
    deliver_late(tmp_path / "feed", random.Random(persist_seed))
    location = PersistLocation(f"file://{tmp_path}/blob", f"sqlite:///{tmp_path}/consensus.db")
    settings = {
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__SCHEDULER__USE_JOB_SCHEDULE": "False",
        "PYTHONPATH": str(ROOT),
    }
    airflow = LocalAirflow(home, dags, location, settings)
    yield airflow
    airflow.stop()


def deliver_late(feed: Path, chance: random.Random) -> None:
    """Every file on a day by chance, and half of them on another day too. The last file is the oldest."""
    files = sorted(path for path in (feed / "customers").rglob("*") if path.is_file())
    for number, path in enumerate(files):
        days = chance.sample(range(DAYS), 2 if number % 2 else 1)
        for day in [DAYS - 1] if number == 0 else days:
            folder = feed / "shuffled" / f"date={FIRST + timedelta(day)}"
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, folder / f"{chance.randrange(10**6)}-{number}-{path.name}")


def kill_two_tasks(airflow: LocalAirflow, points: Path, chance: random.Random) -> None:
    """Kill what writes, and what appends, each after some batches that change the order index."""
    write = chance.choice(["write.during", *JOB, "write.after"])
    append = chance.choice(kill_points.APPEND)
    appended = (
        "select count(*) from task_instance where dag_id = %s and task_id = 'append_batches' and state = 'success'"
    )
    deadline_ms = airflow.clock.now_ms() + 1_500_000
    for count, point in sorted((chance.randrange(1, DAYS - 2), point) for point in (write, append)):
        while airflow.query(appended, IDS["shuffled"]) < [(count,)]:
            airflow.kept.check()
            assert airflow.clock.now_ms() < deadline_ms, (count, point)
            airflow.clock.sleep_ms(100)
        kill_points.arm(points, point)


def replay(folder: Path) -> tuple[dict[int, Order], set[tuple[int, date, int, str]]]:
    """The highest order delivered of each customer; and the late records: who, on which day, the LSN and the file."""
    highest: dict[int, Order] = {}
    late = set()
    for day in sorted(folder.iterdir()):
        newest: dict[int, tuple[Order, str]] = {}
        for path in day.iterdir():
            data, file = path.read_bytes(), str(path.relative_to(folder))
            for line in (gzip.decompress(data) if path.suffix == ".gz" else data).splitlines():
                key, lsn, _ = change_of(line) or (0, -1, None)
                if lsn >= 0:  # neither a control record, nor the message after a delete, nor a line that was cut off
                    order = (lsn, natural_key(file))
                    newest[key] = max(newest.get(key, (order, file)), (order, file))
        for key, (order, file) in newest.items():
            if order < highest.get(key, order):
                late.add((key, date.fromisoformat(day.name.removeprefix("date=")), order[0], file))
            else:
                highest[key] = order
    return highest, late


def known_orders(client: PersistClient, shard: str) -> dict[int, Order]:
    """The highest order that the shard knows of each customer, from its row or the order index."""
    state = client.state(shard)
    oks, errs = all_updates(client.open_reader(shard), state)
    updates = [row for table in (oks, errs) for row in table.select(["id", TIME, DIFF, ORDER]).to_pylist()]
    known = {}
    for row in sorted(updates, key=lambda row: (row[TIME], row[DIFF])):
        known[row["id"]] = _order(row[ORDER]) if row[DIFF] > 0 else None
    chain = recover_newest(client, state).operators[ORDER_INDEX_OPERATOR]
    assert state.schema is not None
    key = state.schema.arrow().field("id").with_nullable(True)
    order = system_field(ORDER, order_type(state.schema))
    columns = pa.schema([key, system_field(INDEX_KIND), system_field(TIME), order])
    tables = [table for each in chain for table in state_rows(client.blob, each, columns, state.schemas)]
    entries = [row for table in tables for row in table.to_pylist()]
    for newest in {row["id"]: row for row in sorted(entries, key=lambda row: row[TIME])}.values():
        if newest[INDEX_KIND] in (DELETED, RAISED):
            known[newest["id"]] = _order(newest[ORDER])
    return {key: order for key, order in known.items() if key is not None and order is not None}


def _order(order: object) -> Order | None:
    return (order[LSN], order["file"]) if isinstance(order, dict) else None


@pytest.mark.skipif(not is_long(), reason="takes minutes (PERSIST_PROFILE=nightly)")
def test_a_late_repeated_feed_ends_as_the_ordered_one(airflow: LocalAirflow, tmp_path: Path, persist_seed: int) -> None:
    airflow.prepare()
    last = FIRST + timedelta(DAYS - 1)
    for name, first in (("customers", last), ("shuffled", FIRST)):
        airflow.command("backfill", "create", "--dag-id", IDS[name], "--from-date", str(first), "--to-date", str(last))
    with airflow.running():
        kill_two_tasks(airflow, tmp_path / "points", random.Random(f"{persist_seed}/kills"))
        assert follow(airflow, *IDS.values()) == {
            IDS["customers"]: ["success"],
            IDS["shuffled"]: ["success"] * DAYS,
        }
    assert kill_points.armed(tmp_path / "points") == [], "both were killed"
    with open_location(airflow.location) as opened:
        check(PersistClient(opened), tmp_path / "feed" / "shuffled")


def check(client: PersistClient, delivered: Path) -> None:
    """The contents equal the ordered feed; the late records and the known orders equal a replay."""
    ordered, late = (client.open_reader(name).snapshot().sort_by("id") for name in IDS)
    assert late.to_pylist() == ordered.to_pylist()
    assert len(late) > 30
    highest, wanted = replay(delivered)
    assert known_orders(client, "shuffled") == highest
    found = [
        (
            record.key["id"],
            datetime.fromtimestamp(record.acted / 1000, UTC).date(),
            record.order["number"],
            (record.position or "").split(",")[0],
        )
        for record in late_records(client, "shuffled")
        if record.key
    ]
    assert sorted(found) == sorted(wanted)
    counted = [client.manifest(commit).stats for commit in client.state("shuffled").commits]
    assert sum(stats["late"] for stats in counted) == len(wanted) > 0
    assert fsck(client, "shuffled").is_clean
