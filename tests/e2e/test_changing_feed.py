"""Seven days of a feed through a real scheduler, with a view: columns change on the fourth day, a file of the third is
corrected, and the table gets another key, and the old one again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from persist_airflow.embedded.home import LocalAirflow
from persist_core.cli.main import run_command
from persist_core.handles.client import PersistClient
from persist_core.location.open import open_location
from persist_core.location.settings import PersistLocation
from persist_core.maintenance.fsck import fsck
from persist_core.maintenance.hidden import generations
from tests.airflow.fruit import end_ms
from tests.e2e.test_airflow_scheduler import QUICK_RETRIES, ROOT, follow
from tests.sampling import is_long

DAG_ID = "persist_upsert__prices"
SETTINGS = """
source: {{path: "{feed}/date={{date:%Y-%m-%d}}/*.jsonl", format: json, rest: more}}
key: {key}
time: path
delete: none
start_date: 2026-01-01
"""
BEFORE = "columns: {id: int, name: string, price: int, more: json}"
AFTER = """
columns:
  id: bigint
  title: {type: string, renamed_from: name, field: name}
  price: bigint
  color: string
  more: json
"""
DAG_FILE = f"""
# airflow DAG
from datetime import datetime, timedelta, timezone
from pathlib import Path
from persist_airflow.actions import build_actions_dag
from persist_airflow.factory import build_dags, build_view_dags
here = Path(__file__).parent
BACKFILLS_ALONE = {{"end_date": datetime(2026, 1, 7, tzinfo=timezone.utc)}}
globals().update(build_dags(here / "collections"{QUICK_RETRIES}, dag_args=BACKFILLS_ALONE))
globals().update(build_view_dags(here / "views"))
persist_actions = build_actions_dag(collections=here / "collections")
"""
DAYS: list[list[dict[str, Any]]] = [
    [{"id": 1, "name": "fig", "price": 3}, {"id": 2, "name": "plum", "price": 30}],
    [{"id": 3, "name": "kiwi", "price": 5, "color": "green"}],
    [{"id": 2, "name": "plum", "price": 400}],
    [{"id": 1, "name": "fig", "price": 2**40, "color": "blue", "size": 1.50}],
    [{"id": 4, "name": "lime", "price": 7, "color": "green"}],
    [{"id": 3, "name": "kiwi", "price": 6}],
    [{"id": 2**40, "name": "pear", "price": 1, "color": None}, {"id": 4, "name": "lemon", "price": 2}],
]
CORRECTED = [{"id": 2, "name": "plum", "price": 4, "color": "red"}, {"id": 5, "name": "date", "price": 9}]


@pytest.fixture
def airflow(tmp_path: Path, home: Path) -> Iterator[LocalAirflow]:
    """An Airflow home with a collection, a view of it, and the DAG of actions; nothing runs yet."""
    dags = tmp_path / "dags"
    for folder in ("collections", "views"):
        (dags / folder).mkdir(parents=True)
    (dags / "dags.py").write_text(DAG_FILE)
    define(tmp_path, BEFORE)
    (dags / "views" / "totals.yaml").write_text("query: SELECT count(*) AS n, sum(price) AS total FROM prices\n")
    location = PersistLocation(f"file://{tmp_path}/blob", f"sqlite:///{tmp_path}/consensus.db")
    settings = {
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "1",
        "PYTHONPATH": str(ROOT),
    }
    airflow = LocalAirflow(home, dags, location, settings)
    yield airflow
    airflow.stop()


def define(folder: Path, columns: str, key: str = "id") -> None:
    """The file of the collection, with these columns."""
    (folder / "dags/collections/prices.yaml").write_text(SETTINGS.format(feed=folder / "feed", key=key) + columns)


def drop(folder: Path, day: int, rows: list[dict[str, Any]]) -> None:
    """The whole input of a day."""
    path = folder / "feed" / f"date=2026-01-0{day + 1}" / "part.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def rows_after(days: list[list[dict[str, Any]]], since: int, key: tuple[str, ...]) -> list[dict[str, Any]]:
    """The table in its newest schema: records of days before `since` were read without a column `color`."""
    found = {}
    for day, rows in enumerate(days):
        for row in rows:
            rest = {name: row[name] for name in sorted(row) if name not in ("id", "name", "price")}
            known = {"color": rest.pop("color", None)} if day >= since else {"color": None}
            more = json.dumps(rest, separators=(",", ":")) if rest else None
            shown = {"id": row["id"], "title": row["name"], "price": row["price"], **known, "more": more}
            found[tuple(row[name] for name in key)] = shown
    return [found[key] for key in sorted(found)]


def backfill(airflow: LocalAirflow, client: PersistClient, first: int, last: int) -> None:
    """Run days by Airflow's backfill, and let the view follow."""
    airflow.query("update backfill set completed_at = now() where completed_at is null returning id")
    days = ("--from-date", f"2026-01-0{first + 1}", "--to-date", f"2026-01-0{last + 1}")
    airflow.command("backfill", "create", "--dag-id", DAG_ID, *days)
    assert set(follow(airflow, DAG_ID)[DAG_ID]) == {"success"}
    wait_for_view(airflow, client, end_ms(last))


def wait_for_view(airflow: LocalAirflow, client: PersistClient, upper: int) -> None:
    """The view has come as far as its input, which has come to `upper` at least."""
    deadline_ms = airflow.clock.now_ms() + 600_000
    while not (
        "totals" in client.shards()
        and upper <= (client.state("prices").upper.time or 0) == client.state("totals").upper.time
    ):
        airflow.kept.check()
        assert airflow.clock.now_ms() < deadline_ms
        airflow.clock.sleep_ms(500)


def act(airflow: LocalAirflow, client: PersistClient, **conf: Any) -> None:
    """Trigger an action that commits; the view follows by itself."""
    before = client.state("prices").upper.time or 0
    asked = {"shard": "prices", "confirm": "prices", **conf}
    airflow.command("dags", "trigger", "persist_actions", "--conf", json.dumps(asked))
    assert set(follow(airflow, "persist_actions")["persist_actions"]) == {"success"}
    wait_for_view(airflow, client, before + 1)


def shown(client: PersistClient, days: list[list[dict[str, Any]]], since: int, key: tuple[str, ...] = ("id",)) -> None:
    """The table and its view are what the days say."""
    expected = rows_after(days, since, key)
    found = client.open_reader("prices").snapshot().sort_by([("id", "ascending"), ("title", "ascending")]).to_pylist()
    assert found == expected
    total = {"n": len(expected), "total": sum(row["price"] for row in expected)}
    assert client.open_reader("totals").snapshot().to_pylist() == [total]


@pytest.mark.skipif(not is_long(), reason="takes minutes (PERSIST_PROFILE=nightly)")
def test_columns_change_and_a_file_is_corrected(
    airflow: LocalAirflow, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for day, rows in enumerate(DAYS):
        drop(tmp_path, day, rows)
    there = ["--blob-uri", airflow.location.blob_uri, "--consensus-uri", airflow.location.consensus_uri]
    files = ["--collections", str(tmp_path / "dags/collections")]
    airflow.command("dags", "reserialize")
    with open_location(airflow.location) as opened, airflow.running():
        client = PersistClient(opened)
        backfill(airflow, client, 0, 2)
        assert client.open_reader("prices").snapshot().sort_by("id").to_pylist()[2] == {
            "id": 3, "name": "kiwi", "price": 5, "more": '{"color":"green"}',
        }  # fmt: skip

        define(tmp_path, AFTER)
        assert run_command(["plan", "--all", *files, *there]) == 0
        told = capsys.readouterr().out
        assert "prices: the next run evolves the schema in place" in told
        for line in ("id is widened", "name is renamed to title", "price is widened", "color (string) is added"):
            assert line in told
        airflow.command("dags", "reserialize")
        backfill(airflow, client, 3, 5)
        shown(client, DAYS[:6], since=3)
        assert run_command(["columns", "prices", *files, *there]) == 0
        assert "  size: decimal(18,1)" in capsys.readouterr().out
        old = client.open_reader("prices").snapshot(end_ms(2) - 1, schema=1).sort_by("id").to_pylist()
        assert [row["name"] for row in old] == ["fig", "plum", "kiwi"]

        drop(tmp_path, 2, CORRECTED)
        days = [*DAYS[:2], CORRECTED, *DAYS[3:]]
        act(airflow, client, action="reprocess", **{"from": "2026-01-03"})
        shown(client, days[:6], since=2)

        define(tmp_path, AFTER, key="[id, title]")
        act(airflow, client, action="rebuild")
        shown(client, days[:6], since=0, key=("id", "name"))
        airflow.command("dags", "reserialize")
        backfill(airflow, client, 6, 6)
        shown(client, days, since=0, key=("id", "name"))

        define(tmp_path, AFTER)
        act(airflow, client, action="rebuild", swap_back=True)
        shown(client, days, since=2)
        assert [each["generation"] for each in generations(client, "prices")] == [2, 1, 0]
        for shard in ("prices", "totals"):
            assert fsck(client, shard).is_clean
