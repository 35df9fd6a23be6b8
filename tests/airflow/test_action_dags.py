"""Which DAG an action starts, and which collection file it needs: what is missing is refused before any change."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from persist_airflow import shard_actions
from persist_airflow.actions import ShardActionOperator, build_actions_dag
from persist_airflow.compat import AIRFLOW_V_3_0_PLUS, AirflowFailException, is_dag_paused
from persist_core.handles.client import PersistClient
from tests.airflow.test_actions import DAG, FILE, SHARD, act, context, fill
from tests.core.protocol.ordered_shard import OrderedCollection
from tests.core.protocol.test_resolve import with_unordered

pytestmark = pytest.mark.airflow_2_11


def act_in(collections: Path, **conf: Any) -> Any:
    """The DAG knows this folder of collection files."""
    operator = ShardActionOperator(task_id="shard_action", shard=conf["shard"], collections=collections)
    return operator.execute(context(**conf))


@pytest.mark.parametrize(
    ("dag_id", "is_started"),
    [(DAG, True), ("persist_view__fruit", True), ("feeds", True), ("persist_upsert__other", False), ("payroll", False)],
)
def test_only_dags_that_write_the_shard_are_started(
    client: PersistClient, started: list[Any], dag_id: str, is_started: bool
) -> None:
    fill(client)
    task: Any = build_actions_dag(dags=["feeds"]).get_task("shard_action")
    task.shard = SHARD  # as rendered
    if is_started:
        task.execute(context(action="run", shard=SHARD, dag_id=dag_id))
    else:
        with pytest.raises(AirflowFailException, match=rf"{dag_id}'; expected persist_upsert__fruit or .* or feeds\."):
            task.execute(context(action="run", shard=SHARD, dag_id=dag_id))
    assert [report["dag_id"] for report in started] == [dag_id] * is_started


@pytest.fixture
def feed_shard(tmp_path: Path, client: PersistClient) -> str:
    """A shard that is a collection's, as its state says."""
    (tmp_path / "feed").mkdir()
    feed = OrderedCollection(tmp_path / "feed", client.location)
    feed.client.part_format = client.part_format
    return with_unordered(feed).shard


def test_a_shard_of_a_known_kind_has_one_dag(feed_shard: str, started: list[Any]) -> None:
    act(action="run", shard=feed_shard)
    with pytest.raises(AirflowFailException, match=rf"expected persist_upsert__{feed_shard}\. This DAG"):
        act(action="run", shard=feed_shard, dag_id=f"persist_view__{feed_shard}")
    assert [report["dag_id"] for report in started] == [f"persist_upsert__{feed_shard}"]


@pytest.mark.parametrize("dag_id", [None, "persist_upsert__{}"])
@pytest.mark.parametrize("action", ["run", "recreate"])
def test_a_dag_that_is_not_there_is_refused_first(
    tmp_path: Path,
    client: PersistClient,
    feed_shard: str,
    started: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    action: str,
    dag_id: str | None,
) -> None:
    """Before anything is changed: the file of the shard is invalid or gone, or Airflow has no such DAG."""
    conf = {"action": action, "shard": feed_shard, "confirm": feed_shard if action == "recreate" else None}
    conf |= {"dag_id": dag_id.format(feed_shard)} if dag_id else {}
    before, path = client.state(feed_shard), tmp_path / f"{feed_shard}.yaml"
    path.write_text("group: g\nkey: id\ncolumn: {}\n")
    with pytest.raises(AirflowFailException, match=rf"^config: {path}"):
        act_in(tmp_path, **conf)
    path.write_text(f"group: g\n{FILE}")
    monkeypatch.setattr(shard_actions, "is_dag_paused", lambda *_: None)
    if dag_id is None:
        with pytest.raises(AirflowFailException, match=r"^invalid_input: Airflow has no DAG persist_group__g: no DAG"):
            act_in(tmp_path, **conf)
    path.unlink()
    said = "no collection file of" if action == "recreate" and not dag_id else "Airflow has no DAG persist_upsert__"
    with pytest.raises(AirflowFailException, match=rf"^invalid_input: {said}.*Nothing was changed"):
        act_in(tmp_path, **conf)
    assert (client.state(feed_shard), started) == (before, [])


def test_a_paused_dag_is_named(client: PersistClient, started: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    fill(client)
    for is_paused in (True, False):
        monkeypatch.setattr(shard_actions, "is_dag_paused", lambda *_, is_paused=is_paused: is_paused)
        act(action="run", shard=SHARD, dag_id=DAG)
    assert [report["dag_is_paused"] for report in started] == [True, False]


@pytest.mark.skipif(not AIRFLOW_V_3_0_PLUS, reason="2.11 tells it in another way")
def test_airflow_knows_whether_a_dag_is_paused() -> None:
    errors: Any = importlib.import_module("airflow.sdk.exceptions")

    def get_dag(dag_id: str) -> Any:
        if dag_id in ("404", "500"):
            detail = {"status_code": int(dag_id), "message": "", "detail": None}
            raise errors.AirflowRuntimeError(SimpleNamespace(error=errors.ErrorType.API_SERVER_ERROR, detail=detail))
        return SimpleNamespace(is_paused=dag_id == "paused")

    given: Any = {"ti": SimpleNamespace(get_dag=get_dag)}
    assert [is_dag_paused(given, dag_id) for dag_id in ("paused", "active", "404")] == [True, False, None]
    with pytest.raises(errors.AirflowRuntimeError):
        is_dag_paused(given, "500")


@pytest.mark.parametrize("action", ["reprocess", "fill", "rebuild"])
def test_what_needs_a_file_fails_without_one(client: PersistClient, tmp_path: Path, action: str) -> None:
    """It is not tried again, and the kind comes first."""
    fill(client)
    conf = {"action": action, "shard": SHARD, **({"from": "2026-01-05"} if action == "reprocess" else {})}
    with pytest.raises(AirflowFailException, match=r"^invalid_input: no folder of collection files is named"):
        act(**conf)
    with pytest.raises(AirflowFailException, match=rf"^invalid_input: no collection file of {SHARD} in .* A view has"):
        act_in(tmp_path, **conf)
    (tmp_path / f"{SHARD}.yaml").write_text("key: id\n")
    with pytest.raises(AirflowFailException, match=r"^config: "):
        act_in(tmp_path, **conf)
