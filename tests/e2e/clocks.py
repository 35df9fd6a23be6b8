"""Tables in two time zones, whose days a real scheduler runs: over a change of the clocks, or for a year at night.

One table by the daily runs of its DAG, the other by a backfill; the seed says which. Both are compared with a plain
replay of the feed, as of the end of each local day.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

from persist_airflow.embedded.home import LocalAirflow
from persist_core.handles.client import PersistClient
from persist_core.maintenance.fsck import fsck
from tests.e2e import view_chain
from tests.sampling import is_long, sample

BERLIN, NEW_YORK = "Europe/Berlin", "America/New_York"
SPRING = {BERLIN: date(2025, 3, 30), NEW_YORK: date(2025, 3, 9)}
AUTUMN = {BERLIN: date(2025, 10, 26), NEW_YORK: date(2025, 11, 2)}
WAYS = ("daily", "backfill")
DAG_IDS = tuple(f"persist_upsert__clocks_{way}" for way in WAYS)
TIMES = ("00:30", "01:30", "02:30", "23:30")  # of a day; some of them are skipped or repeated once a year
TIMEOUT_MS = 10_800_000 if is_long() else 1_500_000
_COLLECTION = """
source: {{path: '{feed}/{{date:%Y-%m-%d}}/*.jsonl', format: json}}
key: id
columns: {{id: bigint, day: string, seen: timestamp}}
time: path
timezone: {zone}
order: position
delete: none
schedule: "@daily"
start_date: {first}
airflow: {{max_active_runs: 1}}
"""
_DAG_FILE = """
# airflow DAG
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo
from persist_airflow.factory import build_dag
from persist_core.config.collection import load_collection
config = load_collection(Path(__file__).parent / "clocks" / "{name}.yaml")
end = datetime({last.year}, {last.month}, {last.day}, tzinfo=ZoneInfo("{zone}"))
dag = build_dag(config, dag_args={{"catchup": {is_daily}, "end_date": end}})
"""


@dataclass(frozen=True)
class Table:
    """A table, and the local days that its DAG runs."""

    way: str
    zone: str
    days: tuple[date, ...]

    @property
    def name(self) -> str:
        return f"clocks_{self.way}"

    @property
    def midnights(self) -> list[datetime]:
        """The starts of the days, and the end of the last one."""
        ends = (*self.days, self.days[-1] + timedelta(1))
        return [datetime(day.year, day.month, day.day, tzinfo=ZoneInfo(self.zone)).astimezone(UTC) for day in ends]

    def instant(self, text: str) -> datetime | None:
        """The only instant at which the clocks show this."""
        local = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(self.zone))
        first, second = (local.replace(fold=fold).astimezone(UTC) for fold in (0, 1))
        return first if first == second else None


def tables() -> list[Table]:
    """The zones over their change in spring and in autumn, one each; both for a year at night."""
    zones = sample(((BERLIN, NEW_YORK), (NEW_YORK, BERLIN)), 1, "clocks: zones")[0]
    changes = sample(((SPRING, AUTUMN), (AUTUMN, SPRING)), 1, "clocks: changes")[0]
    found = []
    for way, zone, change in zip(WAYS, zones, changes, strict=True):
        first, count = (date(2025, 1, 1), 365) if is_long() else (change[zone] - timedelta(1), 3)
        found.append(Table(way, zone, tuple(first + timedelta(day) for day in range(count))))
    return found


def write_files(dags: Path, feed: Path) -> None:
    """Two collections, their DAGs, and their feeds."""
    (dags / "clocks").mkdir()
    for table in tables():
        text = _COLLECTION.format(feed=feed / table.name, zone=table.zone, first=table.days[0])
        (dags / "clocks" / f"{table.name}.yaml").write_text(text)
        facts = {"name": table.name, "zone": table.zone, "last": table.days[-1], "is_daily": table.way == "daily"}
        (dags / f"{table.name}.py").write_text(_DAG_FILE.format(**facts))
        for day in table.days:
            if has_input(table, day):
                (feed / table.name / str(day)).mkdir(parents=True)
                lines = (json.dumps(record) + "\n" for record in records(day))
                (feed / table.name / str(day) / "a.jsonl").write_text("".join(lines))


def has_input(table: Table, day: date) -> bool:
    """Each day near a change, else every tenth: a run without input needs no Spark."""
    near = (abs((day - change[table.zone]).days) <= 3 for change in (SPRING, AUTUMN))
    return any(near) or day.day % 10 == 1


def records(day: date) -> list[dict[str, object]]:
    """One record for each time of the day; without an offset, so it is the clocks' time."""
    return [{"id": number, "day": str(day), "seen": f"{day}T{time}:00"} for number, time in enumerate(TIMES)]


def check(airflow: LocalAirflow, client: PersistClient) -> None:
    """All dag runs succeed, with the data intervals of the clocks; every day of the tables equals a replay."""
    daily, backfilled = tables()
    first, last = (moment.isoformat() for moment in (backfilled.midnights[0], backfilled.midnights[-2]))
    days = ("--from-date", first, "--to-date", last)  # a date alone would be a midnight of UTC
    api = view_chain.api_of(airflow)
    for dag_id in DAG_IDS:
        api.pause(dag_id, is_paused=False)
    airflow.command("backfill", "create", "--dag-id", DAG_IDS[1], *days, "--max-active-runs", "1")
    for table in (daily, backfilled):
        check_runs(airflow, table)
        check_table(client, table)


def check_runs(airflow: LocalAirflow, table: Table) -> None:
    """Wait for the dag runs of all days."""
    query = "select state, data_interval_start, data_interval_end from dag_run where dag_id = %s order by logical_date"
    deadline_ms = airflow.clock.now_ms() + TIMEOUT_MS
    while True:
        runs = airflow.query(query, f"persist_upsert__{table.name}")
        states = [state for state, *_ in runs]
        if len(runs) >= len(table.days) and set(states) <= {"success", "failed"}:
            break
        airflow.kept.check()
        assert airflow.clock.now_ms() < deadline_ms, runs
        airflow.clock.sleep_ms(500)
    assert states == ["success"] * len(table.days)
    intervals = [(start.astimezone(UTC), end.astimezone(UTC)) for _, start, end in runs]
    assert intervals == [*itertools.pairwise(table.midnights)]


def check_table(client: PersistClient, table: Table) -> None:
    """Each commit ends at a midnight of the zone; as of each of them, rows and errs equal the replay."""
    ends = [round(moment.timestamp() * 1000) for moment in table.midnights[1:]]
    uppers = [commit.upper for commit in client.state(table.name).commits]
    assert uppers == ends[-len(uppers) :]
    reader = client.open_reader(table.name)
    rows: dict[object, tuple[object, datetime | None]] = {}
    for day, end in zip(table.days, ends, strict=True):
        if has_input(table, day):
            rows |= {each["id"]: (each["day"], table.instant(str(each["seen"]))) for each in records(day)}
        shown = {row["id"]: (row["day"], row["seen"]) for row in reader.snapshot(as_of=end - 1).to_pylist()}
        assert shown == {key: row for key, row in rows.items() if row[1] is not None}, (table, day)
        errs = [row["id"] for row in reader.errors(as_of=end - 1).to_pylist()]
        assert sorted(errs) == [key for key, row in rows.items() if row[1] is None], (table, day)
    assert fsck(client, table.name).is_clean
