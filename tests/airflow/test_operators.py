"""The tasks' logic, each run alone: skip, idempotence, conflicts, healing, alerts, asset events.

If a day has no input, the write stage needs no Spark, so these run in milliseconds; what the batches hold is tested
in `test_dag_runs.py`.
"""

from __future__ import annotations

import itertools
import json
import logging
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from persist_airflow.compat import AirflowFailException, AirflowSkipException
from persist_airflow.factory import build_upsert_dag
from persist_airflow.failures import PersistCasConflict
from persist_airflow.operators import report_of
from persist_core.contents.stats import BatchWarning
from persist_core.frontier import Frontier
from persist_core.handles.client import PersistClient
from persist_core.protocol import run, stages
from persist_core.protocol.conflicts import list_conflicts
from persist_core.time_text import show_time
from tests.airflow.fruit import NAME, START_MS, Fruit, end_ms, end_of
from tests.airflow.task_driver import DagRunDriver
from tests.core.world import SCHEMA
from tests.plain_commit import commit

pytestmark = pytest.mark.airflow_2_11

MINT, WRITE, APPEND, CHECKPOINT = "mint_batch_descriptions", "write_batches", "append_batches", "checkpoint_manifest"


@pytest.fixture
def dag(fruit: Fruit, client: PersistClient) -> Any:
    """The collection's DAG; `client` is there so that the location is in the environment."""
    del client
    return build_upsert_dag(fruit.config())


def test_a_report_has_no_sample_of_a_warning(client: PersistClient) -> None:
    warning = BatchWarning("check price", 2, ('{"id":7}',))
    commit(client, NAME, SCHEMA, 1, stats={"warnings": 2}, warnings=(warning,))
    assert report_of(client, "committed", client.state(NAME).newest_commit)["warnings"] == ["check price: 2"]


def staged(dag: Any, day: int, run_id: str) -> DagRunDriver:
    """A dag run that has minted and written."""
    run = DagRunDriver(dag, end_of(day), run_id)
    run.run(MINT)
    run.run(WRITE)
    return run


def test_a_dag_run_advances_the_upper_to_the_end_of_its_interval(dag: Any, client: PersistClient) -> None:
    run = DagRunDriver(dag, end_of(0))
    report = run.run_all()
    assert report["result"] == "committed"
    assert client.state(NAME).upper == Frontier(end_ms(0))
    assert run.xcoms[MINT]["upper"] == end_ms(0)
    assert run.xcoms[MINT]["writer"] == "persist_upsert__fruit/test"


def test_the_asset_events_carry_upper_since_and_stats(dag: Any, client: PersistClient) -> None:
    run = DagRunDriver(dag, end_of(0))
    run.run_all()
    (extra,) = run.events[APPEND].values()
    assert list(run.events[APPEND]) == ["persist://persist_default/fruit"]
    assert (extra["upper"], extra["since"], extra["lower"]) == (end_ms(0), 0, 0)
    manifest = client.manifest(client.state(NAME).batches[-1])
    assert extra["stats"] == dict(manifest.stats)
    (published,) = run.events[CHECKPOINT].values()
    assert published["checkpoint_id"] == run.xcoms[MINT]["checkpoint_id"]


@pytest.mark.parametrize(("lost", "task"), [(MINT, WRITE), (WRITE, APPEND), (APPEND, CHECKPOINT)])
def test_a_task_that_was_marked_as_success_is_named(dag: Any, client: PersistClient, lost: str, task: str) -> None:
    run = staged(dag, 0, "marked")
    run.xcoms[lost] = None  # Airflow's value of a result that is not there
    with pytest.raises(AirflowFailException, match=rf"^{lost} left no result: .* Clear {lost} "):
        run.run(task)
    assert client.state(NAME).newest_commit is None
    reports = [run.run(lost), run.run(APPEND)]
    assert "committed" in [report.get("result") for report in reports]


def test_a_collection_is_not_written_by_a_read_only_run(dag: Any, client: PersistClient) -> None:
    with pytest.raises(AirflowFailException, match="read_only is true, which only a view has"):
        DagRunDriver(dag, end_of(0), conf={"read_only": True}).run(MINT)
    assert client.machine.fetch(NAME) is None


def test_a_committed_interval_is_skipped_with_the_reason(dag: Any, client: PersistClient) -> None:
    DagRunDriver(dag, end_of(2)).run_all()
    before = client.state(NAME)
    with pytest.raises(AirflowSkipException, match="already in shard fruit"):
        DagRunDriver(dag, end_of(1), "late").run(MINT)
    assert client.state(NAME) == before


@pytest.mark.parametrize("run_after", [None, datetime(2026, 2, 3, 4, 5, 6, 789000, tzinfo=UTC)])
def test_a_manual_run_goes_up_to_run_after_or_now(dag: Any, client: PersistClient, run_after: datetime | None) -> None:
    run = DagRunDriver(dag, None, run_after=run_after)
    before_ms = client.clock.now_ms()
    upper = run.run(MINT)["upper"]
    if run_after is None:
        assert before_ms <= upper <= client.clock.now_ms()
    else:
        assert upper == START_MS + (33 * 24 * 3600 + 4 * 3600 + 5 * 60 + 6) * 1000 + 789


def test_an_end_in_the_future_needs_force_in_the_runs_conf(dag: Any, client: PersistClient) -> None:
    end = datetime(2099, 1, 1, tzinfo=UTC)
    with pytest.raises(AirflowFailException, match="an hour from now"):
        DagRunDriver(dag, end).run(MINT)
    with pytest.raises(AirflowFailException, match="force is 'yes'; expected true or false"):
        DagRunDriver(dag, end, conf={"force": "yes"}).run(MINT)
    assert NAME not in client.shards()
    assert DagRunDriver(dag, end, "forced", conf={"force": True}).run_all()["result"] == "committed"
    assert client.state(NAME).upper.time == int(end.timestamp()) * 1000


def test_a_forced_run_that_lost_its_append_heals_to_its_own_end(dag: Any, client: PersistClient) -> None:
    end = datetime(2099, 1, 1, tzinfo=UTC)
    loser = DagRunDriver(dag, end, "loser", conf={"force": True})
    loser.run(MINT)
    loser.run(WRITE)
    DagRunDriver(dag, end_of(0), "winner").run_all()
    with pytest.raises(PersistCasConflict):
        loser.run(APPEND)
    assert loser.run(APPEND)["result"] == "healed"
    assert client.state(NAME).upper.time == int(end.timestamp()) * 1000


def test_a_skip_that_leaves_input_pending_warns(
    fruit: Fruit, dag: Any, client: PersistClient, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    DagRunDriver(dag, end_of(2)).run_all()
    fruit.write_days(range(1))
    with caplog.at_level(logging.WARNING), pytest.raises(AirflowSkipException, match="1 inputs are pending"):
        DagRunDriver(dag, end_of(1), "late").run(MINT)
    assert "1 inputs are pending" in caplog.text + capsys.readouterr().out
    assert client.state(NAME).upper == Frontier(end_ms(2))


def test_every_task_may_run_again(dag: Any, client: PersistClient) -> None:
    run = DagRunDriver(dag, end_of(0))
    for task in (MINT, MINT, WRITE, WRITE, APPEND):
        run.run(task)
    assert run.run(APPEND)["result"] == "already committed"
    run.run(WRITE)
    assert run.run(APPEND)["result"] == "already committed"
    run.run(CHECKPOINT)
    run.run(CHECKPOINT)
    assert len(client.state(NAME).commits) == 1
    assert not list_conflicts(client.blob, NAME)


def test_a_damaged_checkpoint_is_repaired_and_logged(
    dag: Any, client: PersistClient, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    run = DagRunDriver(dag, end_of(0))
    run.run_all()
    key = f"{NAME}/checkpoints/{run.xcoms[MINT]['checkpoint_id']}/manifest.json"
    client.blob.set(key, b"rotten")
    with caplog.at_level(logging.WARNING):
        run.run(CHECKPOINT)
    assert f"{key} was damaged or missing" in caplog.text + capsys.readouterr().out


def test_a_conflict_names_both_sides_and_fails_the_first_try(
    dag: Any, client: PersistClient, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    loser = staged(dag, 1, "loser")
    DagRunDriver(dag, end_of(0), "winner").run_all()
    with caplog.at_level(logging.ERROR), pytest.raises(PersistCasConflict) as caught:
        loser.run(APPEND)
    record = caught.value.record
    assert (record.expected_upper, record.found_upper) == (0, end_ms(0))
    assert record.winner == "persist_upsert__fruit/winner"
    assert record.loser == "persist_upsert__fruit/loser"
    assert list_conflicts(client.blob, NAME) == [record]
    logged = caplog.text + capsys.readouterr().out  # Airflow 3 logs by other means
    for part in ("expected upper 0", f"found {show_time(end_ms(0))}", "persist_upsert__fruit/winner"):
        assert part in logged
        assert part in str(caught.value)


def test_the_next_try_heals(dag: Any, client: PersistClient) -> None:
    loser = staged(dag, 2, "loser")
    DagRunDriver(dag, end_of(0), "winner").run_all()
    with pytest.raises(PersistCasConflict):
        loser.run(APPEND)
    report = loser.run(APPEND)
    assert (report["result"], report["lower"], report["upper"]) == ("healed", end_ms(0), end_ms(2))
    assert client.state(NAME).upper == Frontier(end_ms(2))
    assert loser.run(APPEND)["result"] == "covered", "a try after a heal whose result was lost"


def test_a_try_whose_interval_others_have_committed_ends_well(dag: Any, client: PersistClient) -> None:
    loser = staged(dag, 0, "loser")
    DagRunDriver(dag, end_of(2), "winner").run_all()
    with pytest.raises(PersistCasConflict):
        loser.run(APPEND)
    assert loser.run(APPEND)["result"] == "covered"
    assert len(client.state(NAME).commits) == 1


def test_without_retries_the_next_dag_run_heals(dag: Any, client: PersistClient) -> None:
    loser = staged(dag, 1, "loser")
    DagRunDriver(dag, end_of(0), "winner").run_all()
    with pytest.raises(PersistCasConflict):
        loser.run(APPEND)
    assert DagRunDriver(dag, end_of(2), "next").run_all()["lower"] == end_ms(0)
    assert client.state(NAME).upper == Frontier(end_ms(2))


def test_an_outdated_write_leaves_healing_to_append(dag: Any, client: PersistClient) -> None:
    loser = DagRunDriver(dag, end_of(1), "loser")
    loser.run(MINT)
    DagRunDriver(dag, end_of(0), "winner").run_all()
    assert loser.run(WRITE)["manifest_key"] is None
    with pytest.raises(PersistCasConflict):
        loser.run(APPEND)
    assert loser.run(APPEND)["result"] == "healed"
    assert client.state(NAME).upper == Frontier(end_ms(1))


def test_a_cleared_outdated_run_finds_its_own_commit(dag: Any, client: PersistClient) -> None:
    run = DagRunDriver(dag, end_of(0))
    run.run_all()
    DagRunDriver(dag, end_of(1), "next").run_all()
    assert run.run(APPEND, staged={"description": run.xcoms[MINT], "manifest_key": None})["result"] == (
        "already committed"
    )
    assert not list_conflicts(client.blob, NAME)


def test_runs_that_all_start_from_the_same_upper_all_end_green(dag: Any, client: PersistClient) -> None:
    for order in itertools.islice(itertools.permutations(range(4)), 0, 24, 5):
        first = client.state(NAME).upper.time or 0 if NAME in client.shards() else 0
        base = (first - START_MS) // (end_ms(1) - end_ms(0)) if first else 0
        runs = {day: staged(dag, base + day, f"run{order}{day}") for day in range(4)}
        lost = [day for day in order if not _try(runs[day])]
        assert lost, "all were minted from one upper, so all but the first lose"
        for day in lost:
            assert runs[day].run(APPEND)["result"] in ("healed", "covered")
        assert client.state(NAME).upper == Frontier(end_ms(base + 3))


def _try(run: DagRunDriver) -> bool:
    try:
        run.run(APPEND)
    except PersistCasConflict:
        return False
    return True


def test_a_heal_that_keeps_losing_gives_up_with_the_conflict(
    dag: Any, client: PersistClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    loser = staged(dag, 9, "loser")
    DagRunDriver(dag, end_of(0), "winner").run_all()
    with pytest.raises(PersistCasConflict):
        loser.run(APPEND)
    days = itertools.count(1)
    write = run._staged

    def beaten(*arguments: Any) -> Any:
        key = yield from write(*arguments)
        with monkeypatch.context() as undisturbed:
            undisturbed.setattr(run, "_staged", write)
            DagRunDriver(dag, end_of(next(days)), "winner").run_all()
        return key

    with monkeypatch.context() as disturbed:
        disturbed.setattr(run, "_staged", beaten)
        with pytest.raises(PersistCasConflict):
            loser.run(APPEND)
    assert len(list_conflicts(client.blob, NAME)) == 1 + 5
    assert loser.run(APPEND)["result"] == "healed"
    assert client.state(NAME).upper == Frontier(end_ms(9))


def test_a_location_that_is_not_configured_fails_at_once(
    dag: Any, client: PersistClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    del client
    monkeypatch.delenv("PERSIST_CONSENSUS_URI")
    with pytest.raises(AirflowFailException, match=r"persist_default.*PERSIST_CONSENSUS_URI"):
        DagRunDriver(dag, end_of(0)).run(MINT)


def test_a_wrong_schema_fails_and_stages_nothing(fruit: Fruit, dag: Any, client: PersistClient) -> None:
    DagRunDriver(dag, end_of(0)).run_all()
    text = (fruit.dags / "collections" / "fruit.yaml").read_text()
    fruit.write_collection(NAME, text.replace("name: string", "name: date"))
    before = [entry.key for entry in client.blob.list_keys_and_metadata("")]
    with pytest.raises(AirflowFailException, match="schema_mismatch"):
        DagRunDriver(build_upsert_dag(fruit.config()), end_of(1)).run(MINT)
    assert [entry.key for entry in client.blob.list_keys_and_metadata("")] == before


def test_the_mint_is_the_protocols(fruit: Fruit, dag: Any, client: PersistClient) -> None:
    """The task returns what `stages.mint` describes, so the command line and Airflow agree."""
    fruit.write_days(range(2))
    minted = stages.mint(client, fruit.config(), until=end_ms(1), writer="persist_upsert__fruit/test")
    assert isinstance(minted, stages.Minted)
    description = DagRunDriver(dag, end_of(1)).run(MINT)
    other = minted.description.to_json()
    assert {**description, "checkpoint_id": None} == {**other, "checkpoint_id": None}
    assert description["input_files"] == 2


PROBE = """
import importlib, json, sys, time
sys.path.insert(0, sys.argv[1])
dag = importlib.import_module("fruit_dag").persist_upsert__fruit
from tests.airflow.fruit import end_of
from tests.airflow.task_driver import DagRunDriver
spent, heavy = {}, {}
for day in range(2):
    run = DagRunDriver(dag, end_of(day))
    for task in ("mint_batch_descriptions", "write_batches", "append_batches", "checkpoint_manifest"):
        start = time.process_time()
        run.run(task)
        spent[task] = time.process_time() - start
        heavy[task] = [name for name in ("pyspark", "pandas") if name in sys.modules]
print(json.dumps({"spent": spent, "heavy": heavy}))
"""


def test_the_tasks_import_no_spark_and_no_pandas_and_are_quick(fruit: Fruit, client: PersistClient) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROBE, str(fruit.dags)],
        cwd=Path(__file__).resolve().parents[2],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=400,
    )
    report = json.loads(done.stdout.splitlines()[-1])
    assert set(map(tuple, report["heavy"].values())) == {()}
    assert max(report["spent"].values()) < 1, report["spent"]  # seconds of processor time; about 0.03 each
    assert client.state(NAME).upper == Frontier(end_ms(1))
