"""The schedule of a collection with a time zone: a year of data intervals from Airflow's own timetable."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pendulum
import pytest
from airflow.timetables.base import TimeRestriction

from persist_airflow.factory import build_dags
from persist_core.config.collection import load_collection
from tests.airflow.fruit import Fruit
from tests.sampling import sample

pytestmark = pytest.mark.airflow_2_11

YEAR = 2026
MAX_RUNS = 24 * 366  # of an hourly schedule


def scheduled(fruit: Fruit, zone: str, schedule: str) -> tuple[Any, Any]:
    """The fruit in this zone: its DAG, and the timetable that the scheduler has of it."""
    path = fruit.dags / "collections" / "fruit.yaml"
    path.write_text(f'{path.read_text()}\ntimezone: {zone}\nschedule: "{schedule}"\n')
    dag = build_dags(path.parent)["persist_upsert__fruit"]
    timetable: Any = dag.timetable
    if not hasattr(timetable, "next_dagrun_info"):  # on 3.x a DAG file only describes it
        module = importlib.import_module("airflow.serialization.serialized_objects")
        timetable = module.decode_timetable(module.encode_timetable(timetable))
    return dag, timetable


def intervals(timetable: Any, zone: str) -> Iterator[tuple[datetime, datetime]]:
    """The data intervals of a backfill of the year, in UTC."""
    first, last = (pendulum.datetime(year, 1, 1, tz=zone) for year in (YEAR, YEAR + 1))
    restriction, before = TimeRestriction(first, last, catchup=True), None
    for _ in range(MAX_RUNS):
        found = timetable.next_dagrun_info(last_automated_data_interval=before, restriction=restriction)
        if found is None or found.data_interval.start >= last:
            return
        before = found.data_interval
        start, end = (datetime.fromtimestamp(moment.timestamp(), UTC) for moment in (before.start, before.end))
        yield start, end
    raise AssertionError(f"more than {MAX_RUNS} dag runs in a year")


@pytest.mark.parametrize("zone", sample(["Europe/Berlin", "America/New_York"], 1, "a year of a zone"))
@pytest.mark.parametrize("schedule", ["@daily", "@hourly"])
@pytest.mark.family("tasks")
def test_a_year_of_data_intervals_follows_the_clocks(fruit: Fruit, zone: str, schedule: str) -> None:
    dag, timetable = scheduled(fruit, zone, schedule)
    found = list(intervals(timetable, zone))
    midnights = [datetime(YEAR, 1, 1, tzinfo=ZoneInfo(zone)) + timedelta(days=day) for day in range(366)]
    days = [midnight.astimezone(UTC) for midnight in midnights]
    hour = timedelta(hours=1)
    wanted = days if schedule == "@daily" else [days[0] + n * hour for n in range((days[-1] - days[0]) // hour + 1)]
    assert found == list(itertools.pairwise(wanted))
    assert dag.start_date == datetime(2026, 1, 1, tzinfo=ZoneInfo(zone))
    config = load_collection(fruit.dags / "collections" / "fruit.yaml")
    pattern = config.source_pattern()
    for start, end in found if schedule == "@daily" else ():
        name = f"date={start.astimezone(ZoneInfo(zone)):%Y-%m-%d}/a.json"
        assert pattern.date_ms(name) == start.timestamp() * 1000
        assert config.default_until(int(end.timestamp() * 1000) - 1) == start.timestamp() * 1000
        assert config.default_until(int(end.timestamp() * 1000)) == end.timestamp() * 1000


def test_without_a_zone_days_are_utc(fruit: Fruit) -> None:
    dag, timetable = scheduled(fruit, "UTC", "@daily")
    assert {(end - start) for start, end in intervals(timetable, "UTC")} == {timedelta(days=1)}
    assert dag.start_date.isoformat() == "2026-01-01T00:00:00+00:00"


def test_the_zone_of_the_project_is_that_of_files_without_one(fruit: Fruit) -> None:
    (fruit.dags / "persist.yaml").write_text("timezone: Europe/Berlin\n")
    folder = fruit.dags / "collections"
    assert load_collection(folder / "fruit.yaml").timezone == "Europe/Berlin"
    (dag,) = build_dags(folder).values()
    assert dag.start_date == datetime(2026, 1, 1, tzinfo=ZoneInfo("Europe/Berlin"))
    assert str(dag.timezone) == "Europe/Berlin" or dag.timezone.name == "Europe/Berlin"
    (fruit.dags / "persist.yaml").write_text("timezone: [\n")
    (dag,) = build_dags(folder).values()  # a stand-in, which shows the error
    assert dag.start_date != datetime(2026, 1, 1, tzinfo=ZoneInfo("Europe/Berlin"))
