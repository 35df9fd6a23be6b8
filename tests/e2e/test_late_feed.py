"""A real scheduler loads the bundled feed in `sequence` order, with files on other days and half of them twice.

It ends with the rows of the feed as it was written, loaded in `log` order.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path

import pytest
from hypothesis import settings as profiles

from persist_airflow.embedded.home import LocalAirflow
from persist_core.handles.client import PersistClient
from persist_core.inspection.late import late_records
from persist_core.location.open import open_location
from persist_core.location.settings import PersistLocation
from persist_core.maintenance.fsck import fsck
from persist_core.shard.batch import ORDER_INDEX_OPERATOR
from tests.class_data import class_data
from tests.e2e.test_airflow_scheduler import ROOT, follow

DAYS = 7
FIRST = date(2026, 1, 1)
DAG_FILE = """
# airflow DAG
from pathlib import Path
from persist_airflow.factory import build_dags
globals().update(build_dags(Path(__file__).parent / "collections"))
"""


@pytest.fixture
def airflow(tmp_path: Path, home: Path, persist_seed: int) -> Iterator[LocalAirflow]:
    """An Airflow home with `customers` and `shuffled`; nothing runs yet, and nothing runs afterwards."""
    dags = tmp_path / "dags"
    (dags / "collections").mkdir(parents=True)
    (dags / "dags.py").write_text(DAG_FILE)
    shutil.copytree(ROOT / "dags" / "feed" / "customers", tmp_path / "feed" / "customers")
    text = (ROOT / "dags" / "collections" / "customers.yaml").read_text().replace("../feed", f"{tmp_path}/feed")
    (dags / "collections" / "customers.yaml").write_text(text)
    late = text.replace("/feed/customers/", "/feed/shuffled/") + "order: {mode: sequence}\n"
    (dags / "collections" / "shuffled.yaml").write_text(late)
    deliver_late(tmp_path / "feed", random.Random(persist_seed))
    location = PersistLocation(f"file://{tmp_path}/blob", f"sqlite:///{tmp_path}/consensus.db")
    settings = {
        "AIRFLOW__SCHEDULER__USE_JOB_SCHEDULE": "False",
        "PYTHONPATH": str(ROOT),
        **class_data(location),
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


@pytest.mark.skipif(profiles.get_current_profile_name() != "nightly", reason="takes minutes (PERSIST_PROFILE=nightly)")
def test_a_feed_that_is_delivered_late_and_twice_ends_as_the_ordered_one(airflow: LocalAirflow) -> None:
    airflow.prepare()
    ids = {name: f"persist_upsert__{name}" for name in ("customers", "shuffled")}
    last = FIRST + timedelta(DAYS - 1)
    for name, first in (("customers", last), ("shuffled", FIRST)):
        airflow.command("backfill", "create", "--dag-id", ids[name], "--from-date", str(first), "--to-date", str(last))
    with airflow.running():
        assert follow(airflow, *ids.values()) == {
            ids["customers"]: ["success"],
            ids["shuffled"]: ["success"] * DAYS,
        }
    with open_location(airflow.location) as opened:
        client = PersistClient(opened)
        ordered, late = (client.open_reader(name).snapshot().sort_by("id") for name in ids)
        assert late.to_pylist() == ordered.to_pylist()
        assert len(late) > 30
        state = client.state("shuffled")
        assert ORDER_INDEX_OPERATOR in state.operators
        counted = [client.manifest(commit).stats for commit in state.commits]
        assert sum(stats["late"] for stats in counted) == len(late_records(client, "shuffled")) > 0
        assert fsck(client, "shuffled").is_clean
