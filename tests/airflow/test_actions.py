"""Actions by hand: the operators, what the DAG `persist_actions` does with a conf, and a real dag run of it."""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from persist_airflow import lineage, shard_actions
from persist_airflow.actions import (
    ACTIONS,
    ShardActionOperator,
    build_actions_dag,
    check_conf,
)
from persist_airflow.compat import AirflowFailException
from persist_airflow.failures import PersistStepFailed
from persist_core.checkpoint.publish import publish_missing
from persist_core.config.collection import CollectionConfig
from persist_core.contents.err_groups import pattern_of
from persist_core.errors import Determinate, InvalidInput
from persist_core.handles.client import PersistClient
from persist_core.location.settings import PersistLocation
from persist_core.maintenance.reprocess import Reprocessed, Request
from persist_core.protocol.delta import BEGINNING, MAX_UPDATES
from persist_core.protocol.difference import Differences
from persist_core.protocol.replay import Start
from persist_core.protocol.resolve import plan_resolve
from persist_core.time_text import parse_time
from tests.airflow.airflow_process import run
from tests.core.protocol.ordered_shard import OrderedCollection
from tests.core.protocol.test_resolve import with_unordered
from tests.core.world import SCHEMA
from tests.plain_commit import commit

pytestmark = pytest.mark.airflow_2_11

SHARD = "fruit"
DAG = "persist_upsert__fruit"


def fill(client: PersistClient, commits: int = 3) -> list[str]:
    """A shard with a row more in each commit; the ids of its checkpoints."""
    ids = []
    for number in range(commits):
        commit(client, SHARD, SCHEMA, number + 1, [((number, "x"), number, 1)])
        publish_missing(client, client.state(SHARD))
        newest = client.state(SHARD).newest_commit
        assert newest is not None
        ids.append(newest.checkpoint_id)
    return ids


def rows(client: PersistClient, shard: str = SHARD) -> list[int]:
    return sorted(client.open_reader(shard).snapshot()["id"].to_pylist())


FILE = "source: {path: 'in/*.json', format: json}\nkey: id\ncolumns: {id: bigint, name: string}\ndelete: none\n"


def context(user: str | None = "alice", **conf: Any) -> Any:
    """The context that an operator gets from a dag run that `user` has triggered with this conf."""
    dag: Any = build_actions_dag()
    pushed: dict[str, Any] = {}
    ti = SimpleNamespace(xcom_push=lambda key, value: pushed.update({key: value}))
    dag_run = SimpleNamespace(dag_id="persist_actions", conf=conf, triggering_user_name=user)
    params, events = {**dag.params.dump(), **conf}, defaultdict[Any, Any](SimpleNamespace)
    of_run = {"dag_run": dag_run, "run_id": "manual__1", "outlet_events": events}
    return {"params": params, **of_run, "ti": ti, "pushed": pushed}


def act(user: str | None = "alice", **conf: Any) -> Any:
    operator = ShardActionOperator(task_id="shard_action", shard=conf["shard"])
    done = operator.execute(context(user, **conf))
    return json.loads(json.dumps(done))


def test_a_restore_goes_back_as_a_commit_and_says_who_asked(
    client: PersistClient, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    first, *_ = fill(client)
    with caplog.at_level("INFO"):
        done = act(action="restore", shard=SHARD, checkpoint_id=first)
    assert rows(client) == [0]
    assert (done["action"], done["status"], done["by"]) == ("restore", "restored", "alice (persist_actions/manual__1)")
    newest = client.state(SHARD).newest_commit
    assert newest is not None
    assert (newest.writer, newest.checkpoint_id) == ("persist_actions/manual__1", done["checkpoint_id"])
    logged = caplog.text + capsys.readouterr().out  # 2.11 logs by `logging`, 3.x by structlog
    assert "restore of shard fruit, by alice (persist_actions/manual__1)" in logged
    assert f"fruit is as it was at checkpoint {first}" in logged
    assert act(action="restore", shard=SHARD, checkpoint_id=first)["status"] == "up_to_date"


def test_forks_and_dry_runs_leave_the_shard_alone(client: PersistClient) -> None:
    first, second, _ = fill(client)
    before = client.state(SHARD)
    with pytest.raises(AirflowFailException, match=r"limit is 1 .*in Airflow: max_updates"):
        act(action="restore", shard=SHARD, checkpoint_id=first, max_updates=1)
    done = act(action="restore", shard=SHARD, checkpoint_id=second, dry_run=True)
    assert (done["status"], done["counts"]["retractions"], client.state(SHARD)) == ("dry_run", 1, before)
    fields: dict[str, Any] = {"checkpoint_id": second, "new_shard": "fruit_2"}
    forking = ShardActionOperator(task_id="t", shard=SHARD, action="restore", fields=fields)
    assert forking.execute(context())["status"] == "forked"
    assert [asset.uri.rsplit("/", 1)[-1] for asset in forking.outlets] == ["fruit_2"]
    assert (rows(client), rows(client, "fruit_2")) == ([0, 1, 2], [0, 1])
    fields |= {"new_shard": "fruit_3", "dry_run": True}
    operator = ShardActionOperator(task_id="t", shard=SHARD, action="restore", fields=fields)
    with pytest.raises(AirflowFailException, match=r"a fork .* changes nothing"):
        operator.execute(context())


def test_pins_and_holds(client: PersistClient) -> None:
    first, *_ = fill(client)
    assert act(action="pin", shard=SHARD, checkpoint_id=first)["is_pinned"]
    assert f"pin/{first}" in client.state(SHARD).holds
    assert not act(action="unpin", shard=SHARD, checkpoint_id=first)["is_pinned"]
    assert client.state(SHARD).holds == {}
    client.open_since(SHARD, "report")
    done = act(None, action="release", shard=SHARD, holder="report", reason="its program is gone")
    assert (done["by"], done["reason"]) == ("persist_actions/manual__1", "its program is gone")
    assert client.state(SHARD).released[-1].by == "persist_actions/manual__1"
    with pytest.raises(PersistStepFailed, match="checkpoint_not_found: shard fruit has no checkpoint"):
        act(action="pin", shard=SHARD, checkpoint_id="01234567-89ab-7def-8123-456789abcdef")


def test_fsck_fails_with_the_damage_and_does_not_try_again(client: PersistClient) -> None:
    fill(client)
    done = ShardActionOperator(task_id="fsck", shard=SHARD, action="fsck").execute(context())
    assert (done["is_clean"], done["batches"], done["violations"]) == (True, 3, ())
    client.blob.delete(client.manifest(client.state(SHARD).batches[1]).parts[0].key)
    with pytest.raises(AirflowFailException, match=r"corruption: fruit: [0-9]+ violations .*part: "):
        act(action="fsck", shard=SHARD)


def test_fsck_is_tried_again_if_the_store_fails(client: PersistClient, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(client)

    def fail(*_: object) -> bytes | None:
        raise Determinate("no answer")

    monkeypatch.setattr(type(client.blob), "get", fail)
    with pytest.raises(PersistStepFailed, match=r"storage: fruit: [0-9]+ could not be checked .*no answer"):
        act(action="fsck", shard=SHARD)


def test_maintenance_merges(client: PersistClient) -> None:
    fill(client, 12)
    assert act(action="maintain", shard=SHARD)["merges"] == 1
    assert len(client.state(SHARD).batches) == 1


def test_maintenance_goes_by_the_projects_file(client: PersistClient, tmp_path: Path) -> None:
    """GC with fewer hours than the DAG `persist_maintenance` would refuse runs that the DAG lets commit."""
    fill(client, 12)
    (tmp_path / "persist.yaml").write_text("maintenance: {max_merges: 0, grace_hours: 100, intent_hours: 200}")
    operator = ShardActionOperator(task_id="shard_action", shard=SHARD, collections=tmp_path / "collections")
    assert operator.execute(context(action="maintain", shard=SHARD))["merges"] == 0
    assert (operator.grace_ms, operator.intent_ms) == (360_000_000, 720_000_000)


def test_a_recreation_empties_the_shard_and_starts_its_dag(client: PersistClient, started: list[Any]) -> None:
    fill(client)
    with pytest.raises(AirflowFailException, match="confirm is 'fruits'; expected the shard's name, 'fruit'"):
        act(action="recreate", shard=SHARD, confirm="fruits", dag_id=DAG)
    with pytest.raises(AirflowFailException, match="its DAG is not known; give `dag_id`"):
        act(action="recreate", shard=SHARD, confirm=SHARD)
    assert rows(client) == [0, 1, 2]
    with pytest.raises(
        AirflowFailException, match="dag_id is 'persist_maintenance'; expected persist_upsert__fruit or"
    ):
        act(action="recreate", shard=SHARD, confirm=SHARD, dag_id="persist_maintenance")
    assert rows(client) == [0, 1, 2]
    act(action="recreate", shard=SHARD, confirm=SHARD, dag_id=DAG)
    state = client.state(SHARD)
    assert (state.upper.time, state.batches, state.is_dropped) == (0, (), False)
    assert [(report["dag_id"], report["status"]) for report in started] == [(DAG, "emptied")]
    assert act(action="recreate", shard=SHARD, confirm=SHARD, dag_id=DAG)["status"] == "up_to_date"
    assert client.state(SHARD) == state


@pytest.mark.usefixtures("started")
def test_a_shard_that_others_need_is_not_emptied(client: PersistClient) -> None:
    fill(client)
    client.open_since(SHARD, "report")
    with pytest.raises(AirflowFailException, match="is needed by hold report"):
        act(action="recreate", shard=SHARD, confirm=SHARD, dag_id=DAG)
    assert rows(client) == [0, 1, 2]
    fields = {"confirm": SHARD, "dag_id": DAG, "force": True}
    ShardActionOperator(task_id="t", shard=SHARD, action="recreate", fields=fields).execute(context())
    assert client.state(SHARD).batches == ()


def test_errors_without_an_order_are_removed_by_position(
    tmp_path: Path, client: PersistClient, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "feed").mkdir()
    feed = OrderedCollection(tmp_path / "feed", client.location)
    feed.client.part_format = client.part_format
    shard = with_unordered(feed).shard
    before = client.state(shard)
    with caplog.at_level("INFO"):
        done = act(action="resolve", shard=shard, at="day=2/*", dry_run=True)
    logged = caplog.text + capsys.readouterr().out
    assert "day=2/2.txt, line 10: " in logged
    assert not [record for record in plan_resolve(client, shard).records if record.payload.decode() in logged]
    assert (done["status"], [record["position"] for record in done["records"]]) == (
        "dry_run",
        ["day=2/2.txt, line 10", "day=2/2.txt, line 11"],
    )
    assert client.state(shard) == before
    done = act(action="resolve", shard=shard, at="day=2/*")
    assert (done["status"], done["by"]) == ("resolved", "alice (persist_actions/manual__1)")
    assert all("payload" not in record for record in done["records"])
    messages = {record["message"] for record in done["records"]}
    assert messages == {pattern_of(message) for message in messages}, "a message may name a cell"
    newest = client.state(shard).newest_commit
    assert newest is not None
    assert (newest.writer, newest.checkpoint_id) == ("persist_actions/manual__1", done["checkpoint_id"])
    assert [record.position for record in plan_resolve(client, shard).records] == ["day=1/1.txt, line 3"]
    assert act(action="resolve", shard=shard, at="day=2/*")["status"] == "up_to_date"


@pytest.mark.parametrize(
    ("conf", "message"),
    [
        ({"action": "explode"}, "action is 'explode'; expected one of run, maintain"),
        ({"action": "fsck", "shards": "x"}, "unknown fields shards; action fsck takes repair"),
        ({"action": "pin"}, "action pin needs checkpoint_id"),
        ({"action": "resolve"}, "action resolve needs at; action resolve needs at and takes dry_run"),
        ({"action": "maintain", "holder": "x"}, "action maintain does not take holder; .* takes no field but shard"),
        ({"action": "release", "holder": "x"}, "action release needs reason; action release needs holder, reason and"),
    ],
)
def test_a_conf_that_does_not_fit_is_refused(conf: dict[str, Any], message: str) -> None:
    given = context(shard=SHARD, **conf)
    with pytest.raises(InvalidInput, match=message):
        check_conf(given["params"], given["dag_run"].conf, allowed=tuple(ACTIONS))


def test_a_dag_with_fewer_actions_has_fewer_fields() -> None:
    dag: Any = build_actions_dag(actions=("fsck", "maintain"), dag_args={"dag_id": "persist_checks"})
    assert dag.dag_id == "persist_checks"
    assert list(dag.params) == ["action", "shard", "repair"]
    assert "| `release` |" not in dag.doc_md
    task = dag.get_task("shard_action")
    with pytest.raises(AirflowFailException, match="action is 'pin'; expected one of fsck, maintain"):
        task.execute(context(action="pin", shard=SHARD, checkpoint_id="x"))
    with pytest.raises(InvalidInput, match="actions: found explode"):
        build_actions_dag(actions=("explode",))


def test_a_teams_dag_opens_no_other_shard(client: PersistClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the shard of an action nor the one that a restore makes."""
    first, *_ = fill(client)
    task: Any = build_actions_dag(shards=["fruit", "veg_*"], dag_args={"dag_id": "team"}).get_task("shard_action")
    task.shard = SHARD  # as rendered
    said = "shard is '{}'; this DAG acts on fruit, veg_"
    with pytest.raises(AirflowFailException, match=said.format("meat")):
        task.execute(context(action="restore", shard=SHARD, checkpoint_id=first, new_shard="meat"))
    assert client.machine.fetch("meat") is None
    fork = context(action="restore", shard=SHARD, checkpoint_id=first, new_shard="veg_2")
    assert task.execute(fork)["status"] == "forked"
    task.shard = "fruits"
    monkeypatch.setenv("PERSIST_BLOB_URI", "nonsense://x")  # opened, it would fail with another error
    with pytest.raises(AirflowFailException, match=said.format("fruits")):
        task.execute(context(action="fsck", shard="fruits"))


def test_a_text_in_place_of_a_list_of_shards_is_refused() -> None:
    """Its characters would be the names, and the last one here allows all shards."""
    with pytest.raises(InvalidInput, match=r"shards: found the text 'veg_\*', expected a list"):
        build_actions_dag(shards="veg_*", dag_args={"dag_id": "team"})


FEEDS = """
# airflow DAG
from airflow.providers.common.compat.sdk import DAG, BaseOperator
class Feed(BaseOperator):
    def execute(self, context):
        return None
with DAG("feeds", schedule=None) as dag:
    Feed(task_id="feed")
"""
DRIVER = """
import importlib, json, sys
sys.path.insert(0, sys.argv[1])
feeds = importlib.import_module("feeds").dag
if hasattr(feeds, "sync_to_db"):  # 2.11: there, a test of a DAG does not store it
    from airflow.models.serialized_dag import SerializedDagModel
    feeds.sync_to_db()
    SerializedDagModel.write_dag(feeds)
feeds.test()
module = importlib.import_module("persist_actions")
found = []
for conf in json.loads(sys.argv[2]):
    dag = importlib.reload(module).dag  # dag.test() keeps a conf in the DAG's params
    try:
        run = dag.test(run_conf=conf)
        (ti,) = run.get_task_instances()
        found.append([str(ti.state), ti.xcom_pull(task_ids="shard_action")])
    except Exception as error:
        found.append([type(error).__name__, str(error)])
print(json.dumps(found))
"""


@pytest.mark.family("tasks")
def test_dag_runs_with_a_conf(tmp_path: Path, migrated: Path, location: PersistLocation, client: PersistClient) -> None:
    first, *_ = fill(client)
    dags = tmp_path / "dags"
    dags.mkdir()
    bundled = (Path(__file__).parents[2] / "dags" / "persist_actions.py").read_text()
    (dags / "persist_actions.py").write_text(
        bundled.replace("build_actions_dag(", "build_actions_dag(dags=['feeds'], ")
    )
    confs = [
        {"action": "fsck", "shard": SHARD},
        {"action": "restore", "shard": SHARD, "checkpoint_id": first},
        {"action": "restore", "shard": SHARD},
        {"action": "explode", "shard": SHARD},
        {"action": "run", "shard": SHARD, "dag_id": "feeds"},
        {"action": "run", "shard": SHARD, "dag_id": "persist_maintenance"},
        {"action": "recreate", "shard": SHARD, "confirm": SHARD, "dag_id": DAG},
    ]
    (dags / "feeds.py").write_text(FEEDS)
    (dags / "collections").mkdir()
    out = run(dags, migrated, location, "-c", DRIVER, str(dags), json.dumps(confs))
    fsck, restore, missing, unknown, started, refused, no_dag = json.loads(out.splitlines()[-1])
    assert (fsck[0], fsck[1]["is_clean"], "persist_actions/" in fsck[1]["by"]) == ("success", True, True)
    assert (restore[0], restore[1]["status"]) == ("success", "restored")
    assert missing == ["failed", None]
    assert "invalid_input: action restore needs checkpoint_id; action restore needs checkpoint_id and takes" in out
    assert unknown[0] == "ParamValidationError", unknown
    assert rows(client) == [0]
    assert (started[0], started[1]["status"], started[1]["dag_id"]) == ("success", "started", "feeds"), out[-4000:]
    assert refused == ["failed", None]
    assert "dag_id is 'persist_maintenance'; expected persist_upsert__fruit or" in out
    assert no_dag[0] != "success", no_dag
    assert rows(client) == [0], "refused before anything is changed"
    with closing(sqlite3.connect(tmp_path / "home" / "airflow.db")) as database:
        runs = database.execute("select run_id from dag_run where dag_id = 'feeds'").fetchall()
    assert len([run_id for (run_id,) in runs if run_id.startswith("persist_actions__")]) == 1, runs


def test_a_correction_gets_what_the_conf_asks(
    client: PersistClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(lineage, "is_on", lambda: True)
    fill(client)
    (tmp_path / "fruit.yaml").write_text(FILE)
    asked: list[Request] = []

    def reprocess(client: PersistClient, config: CollectionConfig, request: Request, **rest: Any) -> Reprocessed:
        asked.append(request)
        assert (config.name, rest["writer"]) == (SHARD, "persist_actions/manual__1")
        nothing = SCHEMA.arrow().empty_table()
        one_row = Differences(1, 0, 0, 0, 0, {}, nothing)
        found = Reprocessed(SHARD, Start(None, BEGINNING, None), ("a",), (), (), one_row, 3, is_needed=True)
        rest["report"](found)
        return replace(found, commit=client.state(SHARD).newest_commit)

    monkeypatch.setattr(shard_actions, "reprocess", reprocess)
    operator = ShardActionOperator(task_id="shard_action", shard=SHARD, collections=tmp_path)
    conf = {"action": "reprocess", "shard": SHARD, "from": "2026-11-22", "through": "2026-11-23", "reason": "cents"}
    with caplog.at_level("INFO"):
        done: Any = operator.execute(context("alice", **conf))
    logged = caplog.text, capsys.readouterr().out  # 2.11 logs by `logging`, 3.x by structlog
    assert [max(each.count(text) for each in logged) for text in ("1 rows added", "corrected from")] == [1, 1]
    assert "samples" not in json.dumps(done), "they are whole rows"
    (read,), (written,) = operator.lineage.inputs, operator.lineage.outputs
    facets: Any = written.facets
    assert (read.name, facets["version"].datasetVersion) == (str(tmp_path / "in"), done["checkpoint_id"])
    assert (done["status"], done["replaced"], done["added"]) == ("corrected", ["a"], 1)
    (request,) = asked
    assert (request.from_ms, request.end_ms) == (parse_time("2026-11-22"), parse_time("2026-11-24"))
    assert (request.is_confirmed, request.reason, request.max_updates) == (False, "cents", MAX_UPDATES)
    operator.execute(context("alice", **conf, confirm=SHARD, take_back_gone=True, max_updates=7))
    assert (asked[1].is_confirmed, asked[1].takes_back_gone, asked[1].max_updates) == (True, True, 7)
    for wrong, message in (({"confirm": "x"}, "confirm is 'x'"), ({"shard": "other"}, "no collection file of")):
        one = ShardActionOperator(task_id="shard_action", shard=wrong.get("shard", SHARD), collections=tmp_path)
        with pytest.raises(AirflowFailException, match=message):
            one.execute(context("alice", **{**conf, **wrong}))
