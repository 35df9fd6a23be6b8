"""The write task: how it reports a Spark job that fails, and where the job runs."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from persist_airflow.compat import AirflowException, AirflowFailException
from persist_airflow.factory import build_upsert_dag
from persist_airflow.failures import PersistCasConflict, SparkJobFailed
from persist_airflow.spark import WriteBatchesOperator
from persist_core.contents.batch import BatchDescription
from persist_core.errors import (
    CheckFailed,
    Determinate,
    FeedChanged,
    OutdatedDescription,
    TooManyErrors,
    UnreadableFiles,
)
from persist_core.frontier import Frontier
from persist_core.handles.client import PersistClient
from persist_core.protocol.conflicts import list_conflicts
from persist_core.spark_job.answer import record_failure
from persist_core.spark_job.deaths import deaths_at_lower
from persist_core.spark_job.spec import JobSpec
from tests.airflow.fruit import NAME, Fruit, end_ms, end_of
from tests.airflow.task_driver import DagRunDriver

pytestmark = pytest.mark.airflow_2_11

MINT, WRITE, APPEND = "mint_batch_descriptions", "write_batches", "append_batches"


@pytest.fixture
def dag(fruit: Fruit, client: PersistClient) -> Any:
    """The collection's DAG; `client` is there so that the location is in the environment."""
    del client
    return build_upsert_dag(fruit.config())


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        *((each.kind, AirflowFailException) for each in (TooManyErrors, CheckFailed, FeedChanged, UnreadableFiles)),
        ("unexpected", SparkJobFailed),
    ],
)
def test_a_failed_job_says_why_and_retries_only_if_useful(
    fruit: Fruit, dag: Any, client: PersistClient, monkeypatch: pytest.MonkeyPatch, kind: str, wanted: type[Exception]
) -> None:
    fruit.write_days(range(1))
    _fail_submit(monkeypatch, client, kind)
    run = DagRunDriver(dag, end_of(0))
    run.run(MINT)
    with pytest.raises(wanted, match=f"{kind}.*the reason"):
        run.run(WRITE)


def test_each_task_leads_to_its_shard(dag: Any) -> None:
    assert [[link.name for link in task.operator_extra_links] for task in dag.tasks] == [["Shard"]] * 4


def test_a_job_that_finds_its_description_outdated_is_no_failure(
    fruit: Fruit, dag: Any, client: PersistClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    fruit.write_days(range(1))
    _fail_submit(monkeypatch, client, OutdatedDescription.kind)
    run = DagRunDriver(dag, end_of(0))
    run.run(MINT)
    assert run.run(WRITE)["manifest_key"] is None


def test_a_cleared_write_without_its_input_finds_its_commit(
    fruit: Fruit, dag: Any, client: PersistClient, without_spark: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task asks the shard before it starts a job."""
    del without_spark
    fruit.write_days(range(1))
    run = DagRunDriver(dag, end_of(0))
    assert run.run_all()["result"] == "committed"
    shutil.rmtree(fruit.feed)
    client.blob.delete(run.xcoms[MINT]["input_key"])
    before = client.state(NAME)
    monkeypatch.setattr(WriteBatchesOperator, "_submit", lambda *_: pytest.fail("a job was started"))
    assert run.run(WRITE)["manifest_key"] is None
    assert run.run(APPEND)["result"] == "already committed"
    assert client.state(NAME) == before
    assert not list_conflicts(client.blob, NAME)


def test_a_job_that_dies_in_silence_is_tried_again(
    fruit: Fruit, dag: Any, client: PersistClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    fruit.write_days(range(1))
    _fail_submit(monkeypatch, client, None)
    run = DagRunDriver(dag, end_of(0))
    run.run(MINT)
    with pytest.raises(SparkJobFailed, match=r"ended without an answer.*exit code 137"):
        run.run(WRITE)


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_dead_job_is_recorded_unless_airflow_ended_it(
    fruit: Fruit, dag: Any, client: PersistClient, monkeypatch: pytest.MonkeyPatch, is_stopped: bool
) -> None:
    fruit.write_days(range(1))
    run = DagRunDriver(dag, end_of(0))
    description = BatchDescription.from_json(run.run(MINT))

    def submit(self: Any, *_: Any) -> None:
        if is_stopped:  # what Airflow calls when it ends a task
            self.on_kill()
        raise AirflowException("exit code 137")

    monkeypatch.setattr(WriteBatchesOperator, "_submit", submit)
    with pytest.raises(SparkJobFailed):
        run.run(WRITE)
    spec = JobSpec(description, fruit.config(), client.ids.uuid7())
    assert len(deaths_at_lower(client.blob, spec, client.clock.now_ms())) == (not is_stopped)


def test_an_append_that_airflow_ends_stops_the_job_that_heals(
    fruit: Fruit, dag: Any, client: PersistClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    loser = DagRunDriver(dag, end_of(1), "loser")
    loser.run(MINT)
    loser.run(WRITE)
    DagRunDriver(dag, end_of(0), "winner").run_all()
    with pytest.raises(PersistCasConflict):
        loser.run(APPEND)
    fruit.write_days(range(2))
    stopped = []

    def submit(self: Any, *_: Any) -> None:
        loser.executed[APPEND].on_kill()  # what Airflow calls when it ends a task
        stopped.append(self._is_stopped)
        raise AirflowException("exit code 143")

    monkeypatch.setattr(WriteBatchesOperator, "_submit", submit)
    with pytest.raises(SparkJobFailed):
        loser.run(APPEND)
    assert stopped == [True]
    assert client.state(NAME).upper == Frontier(end_ms(0))


def test_a_job_that_fails_after_it_has_staged_is_no_failure(
    fruit: Fruit, dag: Any, client: PersistClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    fruit.write_days(range(1))

    def submit(_self: Any, _context: Any, items: Any, _arguments: Any) -> int:
        (spec,) = items
        client.open_writer(NAME).stage(spec.description, spec.collection.collection_schema(), spec.attempt)
        raise AirflowException("exit code 134")

    monkeypatch.setattr(WriteBatchesOperator, "_submit", submit)
    assert DagRunDriver(dag, end_of(0)).run_all()["result"] == "committed"


@pytest.mark.parametrize(
    ("connection", "master"),
    [
        (None, "local[*]"),
        ('{"conn_type": "spark", "host": "local[2]"}', "local[2]"),
        ('{"conn_type": "spark", "host": "localhost", "port": 7077}', "spark://localhost:7077"),
        ('{"conn_type": "spark", "host": "yarn"}', "yarn"),
    ],
)
def test_without_a_spark_connection_jobs_run_on_this_machine(
    dag: Any, monkeypatch: pytest.MonkeyPatch, connection: str | None, master: str
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", connection or "")
    if connection is None:
        monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT")
    write = dag.get_task(WRITE)
    assert write._master_of_connection() == (master, None)
    if connection is None:
        assert write._get_hook()._connection["master"] == "local[*]", "the provider's hook would take YARN"


def test_a_spark_connection_that_is_named_must_be_there(fruit: Fruit, client: PersistClient) -> None:
    fruit.write_days(range(1))
    run = DagRunDriver(build_upsert_dag(fruit.config(), spark_conn_id="cluster"), end_of(0))
    run.run(MINT)
    with pytest.raises(SparkJobFailed, match="storage_determinate: Airflow connection 'cluster'"):
        run.run(WRITE)
    with pytest.raises(Determinate, match="'cluster'"):
        run.executed[WRITE]._master_of_connection()
    assert not client.state(NAME).commits


def _fail_submit(monkeypatch: pytest.MonkeyPatch, client: PersistClient, kind: str | None) -> None:
    """Let spark-submit fail, with a failure record of `kind` or none."""

    def submit(_self: Any, _context: Any, items: Any, _arguments: Any) -> int:
        (spec,) = items
        if kind is not None:
            record_failure(client.blob, spec, kind, "the reason")
        raise AirflowException("exit code 137")

    monkeypatch.setattr(WriteBatchesOperator, "_submit", submit)
