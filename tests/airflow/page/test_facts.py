"""Facts that the page reads from Airflow's database, without a browser."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from persist_core.errors import Determinate
from persist_core.shard.state import ShardState
from persist_core.time_text import parse_time


@pytest.mark.parametrize(
    ("zone", "day"), [("UTC", "2026-01-05"), ("Asia/Kolkata", "2026-01-05"), ("Asia/Tokyo", "2026-01-06")]
)
def test_a_failed_run_is_of_the_day_in_which_its_interval_ends(zone: str, day: str) -> None:
    """The newest run of a day decides; the end of a daily run, midnight, is of the day before."""
    from persist_airflow.page.metadata import failed_days

    midnight_in_kolkata = datetime(2026, 1, 5, 18, 30, tzinfo=UTC)
    ended = [("dag", "again", "failed", midnight_in_kolkata), ("dag", "first", "success", midnight_in_kolkata)]
    session = SimpleNamespace(execute=lambda _: ended)
    found = failed_days(session, "orders", ["dag"], after_ms=0, zone=zone)
    assert found == {parse_time(day, zone=zone): ("dag", "again")}
    ended.reverse()
    assert failed_days(session, "orders", ["dag"], after_ms=0, zone=zone) == {}


@pytest.mark.parametrize("newer", ["success", "running", "failed"])
def test_a_run_of_one_dag_hides_no_failure_of_another(newer: str) -> None:
    from persist_airflow.page.metadata import failed_days

    end = datetime(2026, 1, 5, 12, tzinfo=UTC)
    ended = [("other", "newest", newer, end), ("dag", "again", "failed", end), ("dag", "first", "success", end)]
    session = SimpleNamespace(execute=lambda _: ended)
    expected = ("other", "newest") if newer == "failed" else ("dag", "again")
    found = failed_days(session, "orders", ["dag", "other"], after_ms=0, zone="UTC")
    assert found == {parse_time("2026-01-05"): expected}


def test_a_groups_failed_run_failed_for_what_it_did_not_commit() -> None:
    from persist_airflow.page.metadata import DagFacts, GroupResult, failed_days, group_results

    dag_id, end = "persist_group__crm", datetime(2026, 1, 5, 18, 30, tzinfo=UTC)
    minted = {name: {"seconds": 1.0, "is_done": name == "idle"} for name in ("orders", "bills", "idle")}
    appended = {"orders": {"seconds": 0.5, "is_done": True}, "bills": {"seconds": 0.5, "is_done": False}}
    tries = [(dag_id, "run", json.dumps(minted)), (dag_id, "run", appended), (dag_id, "run", 2.5)]
    found = group_results(SimpleNamespace(execute=lambda _: tries), [(dag_id, "run")])[dag_id, "run"]
    expected = {"orders": (True, 1.5), "bills": (False, 1.5), "idle": (True, 1.0)}
    assert found == {name: GroupResult(*each) for name, each in expected.items()}
    facts = DagFacts(dag_id, False, None, None, "run", "failed", "crm", found)
    states = {name: facts.of(name)["last_run_state"] for name in (*expected, "not come to")}
    assert states == {"orders": "success", "bills": "failed", "idle": "success", "not come to": "failed"}
    for name, days in {"orders": 0, "bills": 1}.items():
        answers = iter([[(dag_id, "run", "failed", end)], tries])
        session = SimpleNamespace(execute=lambda _, answers=answers: next(answers))
        assert len(failed_days(session, name, [dag_id], after_ms=0, zone="UTC")) == days


def test_a_connection_with_a_slash_is_found_by_its_assets() -> None:
    from persist_airflow.page.metadata import writers

    session = SimpleNamespace(execute=lambda _: [("persist://team%2Flake%231/fruit", False, "dag")])
    assert writers(session) == {"team/lake#1": {"fruit": ("dag",)}}


def test_assets_of_checkpoints_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards beyond the limit would be without the rights of their DAGs."""
    from airflow.models.asset import AssetModel, TaskOutletAssetReference
    from airflow.models.dag import DagModel

    from persist_airflow.page import metadata

    engine = create_engine("sqlite://")
    for model in (AssetModel, DagModel, TaskOutletAssetReference):
        model.__table__.create(engine)
    with Session(engine) as session:
        session.add(DagModel(dag_id="dag", bundle_name="dags"))  # type: ignore[no-untyped-call] # Airflow's has no types
        for number, name in enumerate(("apple", "apple/checkpoints", "pear", "pear/checkpoints")):
            uri = f"persist://lake%2F1/{name}"
            session.add(AssetModel(id=number, name=uri, uri=uri))
            session.add(TaskOutletAssetReference(asset_id=number, dag_id="dag", task_id="append"))
        session.commit()
        monkeypatch.setattr(metadata, "MAX_ASSETS", 2)
        assert metadata.writers(session) == {"lake/1": {"apple": ("dag",), "pear": ("dag",)}}


@pytest.mark.parametrize("kept", ["file:///xcom/seconds", '"s3://xcom/seconds"', {"at": "s3://xcom/seconds"}, None])
def test_seconds_that_an_xcom_backend_keeps_are_unknown(kept: object) -> None:
    """The database then has only what the backend made of them."""
    from persist_airflow.page.metadata import group_results, stage_seconds

    rows = [("dag", "run", kept), ("dag", "run", {"orders": {"seconds": 0.5, "is_done": True}})]
    found = group_results(SimpleNamespace(execute=lambda _: rows), [("dag", "run")])
    assert {shard: each.seconds for shard, each in found["dag", "run"].items()} == {"orders": 0.5}
    rows = [("run", "mint", kept), ("run", "append", 2.5), ("elsewhere", "mint", kept)]
    seconds = stage_seconds(SimpleNamespace(execute=lambda _: rows), "orders", ["dag/run", "dag/elsewhere"])
    assert seconds == {"dag/run": {"append": 2.5}}


def test_a_slow_store_holds_no_connection_of_airflows_database(monkeypatch: pytest.MonkeyPatch) -> None:
    from persist_airflow.page import metadata, site

    held: list[object] = []

    @contextmanager
    def create_session() -> Iterator[object]:
        held.append(object())
        yield held[-1]
        held.pop()

    class Reads:
        def state(self, shard: str) -> ShardState:
            assert not held
            return ShardState(shard)

        def loads(self, *_: Any, **__: Any) -> list[Any]:
            assert not held
            return []

    access: Any = SimpleNamespace(readable_dags=lambda: frozenset({"dag"}), reads_values=lambda _: True)
    monkeypatch.setattr(site, "create_session", create_session)
    monkeypatch.setattr(metadata, "writers", lambda _: {"location": {"fruit": ("dag",)}})
    for name in ("dags", "failed_days"):
        monkeypatch.setattr(metadata, name, lambda session, *_, **__: {} if session else None)
    monkeypatch.setattr(site.Site, "_place", lambda *_: SimpleNamespace(inspector=Reads()))
    found = site.Site().days(access, "location", "fruit", limit=3, check=lambda: None)
    assert found["airflow"] == {"failed_runs": {}}


def test_a_connection_that_hangs_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    from persist_airflow.page import site

    begun, released = threading.Event(), threading.Event()

    class Hook:
        def __init__(self, conn_id: str) -> None:
            self.conn_id = conn_id

        def get_conn(self) -> Any:
            if self.conn_id == "slow":
                begun.set()
                assert released.wait(60)
            return MagicMock()

    monkeypatch.setattr(site, "PersistHook", Hook)
    of_all = site.Site()
    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(of_all._place, "slow")
        try:
            assert begun.wait(60)
            assert pool.submit(of_all._place, "fast").result(20) is of_all._place("fast")
            assert not slow.done()
        finally:
            released.set()
        assert slow.result(20) is of_all._place("slow")


def test_the_list_waits_for_all_stores_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each store that does not answer would add its time, and the answer comes too late for all."""
    from persist_airflow.page import metadata, site

    together = threading.Barrier(3, timeout=20)

    class Hook:
        def __init__(self, conn_id: str) -> None:
            self.conn_id = conn_id

        def get_conn(self) -> Any:
            together.wait()
            raise Determinate(f"{self.conn_id} does not answer")

    names = ("a", "b", "c")
    access: Any = SimpleNamespace(readable_dags=lambda: frozenset({"dag"}), reads_connection=lambda _: True)
    monkeypatch.setattr(site, "create_session", lambda: MagicMock())
    monkeypatch.setattr(metadata, "writers", lambda _: {name: {"fruit": ("dag",)} for name in names})
    for name, found in (("dags", {}), ("connections", [])):
        monkeypatch.setattr(metadata, name, lambda *_, found=found: found)
    monkeypatch.setattr(site, "PersistHook", Hook)
    listed = site.Site().shards(access)["locations"]
    assert [each["error"]["message"] for each in listed] == [f"{name} does not answer" for name in names]


@pytest.mark.parametrize("level", ["off", "no", "n", "'off'"])
def test_a_level_of_a_document_that_is_off_hides_no_other(level: str) -> None:
    from persist_airflow.page.metadata import limits

    found = limits(f"Mine:\n```yaml\nfreshness: {{warn: {level}, fail: 6h}}\n```")
    assert found == ({"freshness": {"warn": None, "fail": 21_600_000}} if "off" in level else {})


@pytest.mark.parametrize("freshness", ["soon", "{warn_after: 10 foo}", "'{{ x }}'", "[1]", "{warn: 1 x}"])
def test_another_freshness_in_a_document_has_no_limits(freshness: str) -> None:
    from persist_airflow.page.metadata import limits

    assert limits(f"Example:\n```yaml\nfreshness: {freshness}\n```") == {}


def test_a_list_of_shards_that_airflow_cuts_hides_no_button(monkeypatch: pytest.MonkeyPatch) -> None:
    from persist_airflow.page import metadata

    given = {"shards": "Truncated: ['a', 'b', ...", "persist_conn_id": "c", "actions": ["run"]}
    monkeypatch.setattr(metadata, "_serialized", lambda *_: {"tasks": [{"__var": given}]})
    session = SimpleNamespace(scalars=lambda _: ["team"])
    assert metadata.action_dags(session, {"team"}, "c", "orders") == [{"dag_id": "team", "actions": ["run"]}]
