"""A group: one DAG for many collections, each with a commit, an asset event and a failure of its own.

Jobs stage an empty batch here, and no Spark starts; `tests/e2e/test_groups.py` has Spark and a scheduler.
"""

from __future__ import annotations

import importlib.metadata
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from persist_airflow import shard_actions, turns
from persist_airflow.actions import ShardActionOperator, build_actions_dag
from persist_airflow.announce import AnnounceFailure
from persist_airflow.compat import AirflowException, AirflowFailException, AirflowSkipException
from persist_airflow.factory import build_dags
from persist_airflow.failures import PersistStepFailed
from persist_airflow.group_stages import RetryFailedOperator, WriteGroupOperator
from persist_airflow.notifications import CONTEXT_NAME
from persist_airflow.spark import RETRIES
from persist_core.errors import RunFailed, TooManyErrors
from persist_core.frontier import Frontier
from persist_core.handles.client import PersistClient
from persist_core.location.settings import PersistLocation
from persist_core.maintenance.drop import drop
from persist_core.protocol import stages
from persist_core.protocol.conflicts import list_conflicts
from persist_core.spark_job.answer import record_failure
from persist_core.spark_job.spec import JobSpec
from tests.airflow import airflow_process
from tests.airflow.fruit import end_ms, end_of
from tests.airflow.task_driver import DagRunDriver
from tests.airflow.test_parse import dag_bag

pytestmark = pytest.mark.airflow_2_11

MINT, WRITE, APPEND, CHECKPOINT, RETRY = TASKS = tuple(
    f"batch_1.{task}"
    for task in ("mint_batch_descriptions", "write_batches", "append_batches", "checkpoint_manifest", "retry_failed")
)
IS_AIRFLOW_3 = importlib.metadata.version("apache-airflow").startswith("3")
NAMES = ("apples", "figs", "kiwis")
COLLECTION = """
source:
  path: {feed}/{name}/date={{date:%Y-%m-%d}}/*.json
  format: json
key: id
columns: {{id: bigint, name: string}}
time: path
delete: {{null_value: true}}
start_date: 2026-01-01
group: orchard
"""
DAG_FILE = """
# airflow DAG
from pathlib import Path
from persist_airflow.factory import build_dags
globals().update(build_dags(Path(__file__).parent / "collections"))
"""


class Orchard:
    """A project with the collections of one group, and the jobs that its tasks started: the names of their items."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.folder = folder
        self.jobs: list[list[str]] = []
        self.failing: dict[str, Any] = {}
        self.dies_after: str | None = None
        self.items: Sequence[JobSpec] = ()
        (folder / "collections").mkdir(parents=True)
        for name in names:
            self.write(name)
            self.drop(name, 0)

    def write(self, name: str, more: str = "") -> Path:
        path = self.folder / "collections" / f"{name}.yaml"
        path.write_text(COLLECTION.format(feed=self.folder / "feed", name=name) + more)
        return path

    def drop(self, name: str, day: int) -> None:
        folder = self.folder / "feed" / name / f"date=2026-01-0{day + 1}"
        folder.mkdir(parents=True)
        (folder / "part.json").write_text(json.dumps({"id": 1, "name": name}) + "\n")

    def dag(self, **options: Any) -> Any:
        return build_dags(self.folder / "collections", **options)["persist_group__orchard"]

    def submit(self, client: PersistClient, items: Sequence[JobSpec]) -> int:
        """Stage an empty batch for each item, or record its failure."""
        self.jobs.append([item.config.name for item in items])
        for item in items:
            name = item.config.name
            if name in self.failing:
                record_failure(client.blob, item, self.failing[name].kind, "as the test wants", ())
            else:
                schema = item.collection.collection_schema()
                client.open_writer(name).stage(item.description, schema, item.attempt)
            if name == self.dies_after:
                self.items = items
                raise KeyboardInterrupt
        return 1 if self.failing else 0


@pytest.fixture
def orchard(tmp_path: Path, client: PersistClient, monkeypatch: pytest.MonkeyPatch) -> Orchard:
    """Three collections with input of one day."""
    made = Orchard(tmp_path / "project", NAMES)
    for operator in (WriteGroupOperator, RetryFailedOperator):
        monkeypatch.setattr(operator, "_submit", lambda _self, _context, items, _arguments: made.submit(client, items))
    return made


def run_all(run: DagRunDriver, *tasks: str) -> Any:
    return [run.run(task) for task in tasks][-1]


def uppers(client: PersistClient) -> dict[str, Any]:
    return {name: client.state(name).upper.time for name in NAMES}


def test_a_group_is_one_dag_and_its_members_have_none(orchard: Orchard) -> None:
    (orchard.folder / "persist.yaml").write_text("groups: {orchard: {batch_of: 2}}\n")
    orchard.write("pears", "")
    (orchard.folder / "collections" / "pears.yaml").write_text(
        COLLECTION.format(feed=orchard.folder, name="pears").replace("group: orchard", "group: null")
    )
    (orchard.folder / "dag.py").write_text(DAG_FILE)
    bag = dag_bag(orchard.folder)
    assert not bag.import_errors
    assert sorted(bag.dags) == ["persist_group__orchard", "persist_upsert__pears"]
    tasks = bag.dags["persist_group__orchard"].task_dict
    assert set(tasks) == {*TASKS, *(task.replace("_1.", "_2.") for task in TASKS), "complete"}
    assert {asset.uri.rpartition("/")[2] for asset in tasks[APPEND].outlets} == {"apples", "figs"}
    assert tasks[APPEND].downstream_task_ids == {CHECKPOINT, RETRY}
    last = {task for task in tasks if task.endswith(("checkpoint_manifest", "retry_failed"))}
    assert tasks["complete"].upstream_task_ids == last


@pytest.mark.skipif(IS_AIRFLOW_3, reason="Airflow 2.11's own command; 3.x has another, see tests/e2e")
@pytest.mark.family("own backfills")
def test_airflow_2s_own_backfill(
    orchard: Orchard, migrated: Path, location: PersistLocation, client: PersistClient
) -> None:
    """Two days without input, so that no Spark starts."""
    shutil.rmtree(orchard.folder / "feed")
    for name in NAMES:
        (orchard.folder / "feed" / name).mkdir(parents=True)
    (orchard.folder / "dag.py").write_text(DAG_FILE)
    command = ("-m", "airflow", "dags", "backfill", "persist_group__orchard")
    airflow_process.run(orchard.folder, migrated, location, *command,
        "-s", "2026-01-01", "-e", "2026-01-02", "--disable-retry")  # fmt: skip
    assert uppers(client) == dict.fromkeys(NAMES, end_ms(1))
    assert {len(client.state(name).commits) for name in NAMES} == {2}


def test_all_commit_by_one_job_and_each_has_its_event(orchard: Orchard, client: PersistClient) -> None:
    run = DagRunDriver(orchard.dag(), end_of(0))
    results = run_all(run, MINT, WRITE, APPEND)["results"]
    run.run(CHECKPOINT)
    with pytest.raises(AirflowSkipException, match="no collection failed"):
        run.run(RETRY)
    assert orchard.jobs == [list(NAMES)]
    assert uppers(client) == dict.fromkeys(NAMES, end_ms(0))
    assert {name: each["result"] for name, each in results.items()} == dict.fromkeys(NAMES, "committed")
    assert run.events[APPEND].keys() == {f"persist://persist_default/{name}" for name in NAMES}
    assert {extra["shard"] for extra in run.events[APPEND].values()} == set(NAMES)
    assert len({commit.checkpoint_id for name in NAMES for commit in client.state(name).commits}) == 3
    assert run.events[CHECKPOINT].keys() == {f"persist://persist_default/{name}/checkpoints" for name in NAMES}


def test_without_input_there_is_no_spark_and_later_nothing_to_do(orchard: Orchard, client: PersistClient) -> None:
    run_all(DagRunDriver(orchard.dag(), end_of(0)), MINT, WRITE, APPEND, CHECKPOINT)
    orchard.drop("figs", 1)
    run_all(DagRunDriver(orchard.dag(), end_of(1), "next"), MINT, WRITE, APPEND, CHECKPOINT)
    assert orchard.jobs == [list(NAMES), ["figs"]]
    assert uppers(client) == dict.fromkeys(NAMES, end_ms(1))
    with pytest.raises(AirflowSkipException, match="none of 3 collections"):
        DagRunDriver(orchard.dag(), end_of(1), "again").run(MINT)


def test_one_that_fails_leaves_the_others_and_alone_is_retried(orchard: Orchard, client: PersistClient) -> None:
    orchard.failing["figs"] = RunFailed
    run = DagRunDriver(orchard.dag(), end_of(0))
    run_all(run, MINT, WRITE, APPEND, CHECKPOINT)
    assert run.events[APPEND].keys() == {"persist://persist_default/apples", "persist://persist_default/kiwis"}
    assert [asset.uri for asset in run.executed[APPEND].outlets] == list(run.events[APPEND])
    assert uppers(client) == {"apples": end_ms(0), "figs": 0, "kiwis": end_ms(0)}
    with pytest.raises(PersistStepFailed, match=r"1 of 3 collections of group orchard .*figs: run_failed") as tried:
        run.run(RETRY)
    assert vars(tried.value)["failed"].keys() == {"figs"}
    assert orchard.jobs[1:] in ([["apples"], ["figs"], ["kiwis"], ["figs"]], [["figs"]]), orchard.jobs
    del orchard.failing["figs"]
    jobs = len(orchard.jobs)
    assert run.run(RETRY)["results"]["figs"]["result"] == "healed"
    assert orchard.jobs[jobs:] == [["figs"]], "no Spark for those that are done"
    assert uppers(client) == dict.fromkeys(NAMES, end_ms(0))
    assert list(run.events[RETRY]) == ["persist://persist_default/figs"]
    cleared = DagRunDriver(orchard.dag(), end_of(0))
    with pytest.raises(AirflowSkipException):
        cleared.run(MINT)
    for task in (WRITE, APPEND):
        run.run(task)
    assert orchard.jobs[jobs:] == [["figs"]], "nor if a task is cleared"


def test_a_write_task_that_was_killed_stages_only_the_rest_again(orchard: Orchard, client: PersistClient) -> None:
    run = DagRunDriver(orchard.dag(), end_of(0))
    run.run(MINT)
    orchard.dies_after = "apples"
    with pytest.raises(KeyboardInterrupt):
        run.run(WRITE)
    for item in orchard.items:  # as a killed process leaves them
        client.blob.set(item.key, item.encode())
    orchard.dies_after, run.try_number = None, 2
    run_all(run, WRITE, APPEND)
    assert orchard.jobs == [list(NAMES), ["figs", "kiwis"]]
    assert uppers(client) == dict.fromkeys(NAMES, end_ms(0))


@pytest.mark.parametrize(("lost", "tasks"), [(MINT, [WRITE]), (WRITE, [APPEND]), (APPEND, [CHECKPOINT, RETRY])])
def test_a_task_that_was_marked_as_success_is_named(orchard: Orchard, lost: str, tasks: list[str]) -> None:
    run = DagRunDriver(orchard.dag(), end_of(0))
    run_all(run, MINT, WRITE, APPEND)
    run.xcoms[lost] = None
    for task in tasks:
        with pytest.raises(AirflowFailException, match=f"{lost} left no result"):
            run.run(task)


def test_an_error_that_no_retry_corrects_is_not_tried_again(orchard: Orchard) -> None:
    orchard.failing["figs"] = TooManyErrors
    run = DagRunDriver(orchard.dag(), end_of(0))
    run_all(run, MINT, WRITE, APPEND)
    with pytest.raises(AirflowFailException, match="figs: too_many_errors: as the test wants"):
        run.run(RETRY)
    run.try_number = 2
    with pytest.raises(AirflowFailException, match="figs: too_many_errors: as the test wants"):
        run.run(RETRY)
    assert len(orchard.jobs) == 1, "nor in a later try, which Airflow makes for another collection"
    run.try_number, run.max_tries, orchard.failing = 3, 2 + RETRIES, {}
    assert run.run(RETRY)["results"].keys() == {"figs"}, "someone has corrected it, and cleared the task"


def test_a_bug_in_one_leaves_the_others_of_the_retry_alone(
    orchard: Orchard, client: PersistClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    orchard.failing = dict.fromkeys(("apples", "figs"), RunFailed)
    run = DagRunDriver(orchard.dag(), end_of(0))
    run_all(run, MINT, WRITE, APPEND)
    orchard.failing = {}
    mint = stages.mint

    def broken(client: PersistClient, config: Any, **given: Any) -> Any:
        if config.name == "apples":
            raise KeyError("x")
        return mint(client, config, **given)

    monkeypatch.setattr(stages, "mint", broken)
    with pytest.raises(PersistStepFailed, match=r"1 of 3 collections .* failed.*apples: KeyError"):
        run.run(RETRY)
    assert uppers(client) == {"apples": 0, "figs": end_ms(0), "kiwis": end_ms(0)}


@pytest.mark.usefixtures("amazon")
def test_a_connection_that_is_missing_fails_its_own_collection(orchard: Orchard, client: PersistClient) -> None:
    path = orchard.folder / "collections" / "figs.yaml"
    text = path.read_text().replace(f"{orchard.folder}/feed/", "s3://vendor/")
    path.write_text(text.replace("  format:", "  connection: broken\n  format:"))
    run = DagRunDriver(orchard.dag(), end_of(0))
    failed = run_all(run, MINT, WRITE, APPEND)["failed"]
    assert "source.connection 'broken' is not known" in failed["figs"]["error"]
    assert [client.state(name).upper.time for name in ("apples", "kiwis")] == [end_ms(0)] * 2


@pytest.mark.skipif(not IS_AIRFLOW_3, reason="2.11 starts no more dag runs than the DAG allows")
def test_the_turn_of_a_run_ends_with_its_retry(orchard: Orchard, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr(turns, "run_ahead", lambda _context, **given: asked.update(given))
    DagRunDriver(orchard.dag(), end_of(0)).run(MINT)
    assert asked == {"append": RETRY, "staging": [WRITE, APPEND, RETRY]}


def test_a_member_of_another_batch_has_its_notifiers(orchard: Orchard) -> None:
    """It has moved since the dag run began. Without a list, the members of the batch have failed."""
    (orchard.folder / "persist.yaml").write_text("groups: {orchard: {batch_of: 2}}\n")
    announce = next(
        each
        for each in orchard.dag(notify=print).get_task(RETRY).on_failure_callback
        if isinstance(each, AnnounceFailure)
    )
    assert set(announce.notify) == set(NAMES)
    assert announce.notify["kiwis"]
    assert announce.shards == ("apples", "figs")


def test_a_lost_append_is_healed_and_alerted(orchard: Orchard, client: PersistClient) -> None:
    loser = DagRunDriver(orchard.dag(), end_of(1), "loser")
    run_all(loser, MINT, WRITE)
    run_all(DagRunDriver(orchard.dag(), end_of(0), "winner"), MINT, WRITE, APPEND)
    assert loser.run(APPEND)["failed"].keys() == set(NAMES)
    results = loser.run(RETRY)["results"]
    assert {name: each["result"] for name, each in results.items()} == dict.fromkeys(NAMES, "healed")
    assert uppers(client) == dict.fromkeys(NAMES, end_ms(1))
    assert all(list_conflicts(client.blob, name) for name in NAMES)


@pytest.mark.parametrize("before", [WRITE, APPEND])
def test_a_shard_that_is_dropped_meanwhile_is_named(orchard: Orchard, client: PersistClient, before: str) -> None:
    """No text says that its batch is minted again: there is no new upper."""
    run = DagRunDriver(orchard.dag(), end_of(0))
    run_all(run, *TASKS[: TASKS.index(before)])
    drop(client, "figs")
    appended = run_all(run, *TASKS[TASKS.index(before) : TASKS.index(CHECKPOINT)])
    assert (appended["results"].keys(), appended["failed"].keys()) == ({"apples", "kiwis"}, {"figs"})
    said = appended["failed"]["figs"]["error"]
    assert said.endswith("was refused: the shard was dropped or closed meanwhile, and accepts no commits"), said
    with pytest.raises(AirflowFailException, match="shard figs was dropped"):
        run.run(RETRY)


def test_a_wrong_source_of_one_is_its_own_failure(orchard: Orchard, client: PersistClient) -> None:
    text = orchard.write("figs").read_text().replace("/feed/figs/", "/nowhere/")
    (orchard.folder / "collections" / "figs.yaml").write_text(text)
    run = DagRunDriver(orchard.dag(), end_of(0))
    run_all(run, MINT, WRITE, APPEND)
    assert orchard.jobs == [["apples", "kiwis"]]
    with pytest.raises(AirflowException, match="figs: "):
        run.run(RETRY)
    assert client.state("kiwis").upper == Frontier(end_ms(0))


def test_the_action_run_starts_the_groups_dag(
    orchard: Orchard, client: PersistClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_all(DagRunDriver(orchard.dag(), end_of(0)), MINT, WRITE, APPEND)
    started: list[str] = []
    monkeypatch.setattr(ShardActionOperator, "start", lambda _self, _context, report: started.append(report["dag_id"]))
    monkeypatch.setattr(shard_actions, "is_dag_paused", lambda *_: False)
    task: Any = build_actions_dag(collections=orchard.folder / "collections").get_task("shard_action")
    task.shard = "figs"  # as rendered
    params = {**dict.fromkeys(task.dag.params), "action": "run", "shard": "figs"}
    task.execute({**DagRunDriver(task.dag, end_of(0)).context(), "params": params})
    assert started == ["persist_group__orchard"]
    assert client.state("figs").commits


def test_a_member_with_another_schedule_is_an_import_error(orchard: Orchard) -> None:
    orchard.write("kiwis", "schedule: '@hourly'\n")
    dags = build_dags(orchard.folder / "collections")
    wrong: Any = dags.pop(next(dag_id for dag_id in dags if dag_id.startswith("persist_upsert___wrong_file_")))
    message = wrong.wrong_message
    assert "kiwis.yaml: schedule: found '@hourly', expected '@daily' as in " in message
    assert "apples.yaml" in message
    assert list(dags) == ["persist_group__orchard"]
    mint: Any = dags["persist_group__orchard"].get_task(MINT)
    assert mint.batch.names == ("apples", "figs")


def test_a_task_opens_the_files_of_its_group_alone(orchard: Orchard, monkeypatch: pytest.MonkeyPatch) -> None:
    (orchard.folder / "collections" / "broken.yaml").write_text("columns: [")
    monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", "persist_group__orchard")
    assert list(build_dags(orchard.folder / "collections")) == ["persist_group__orchard"]
    monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", "persist_upsert__figs")
    assert not build_dags(orchard.folder / "collections"), "a member has no DAG of its own"


def test_alerts_name_the_collection_that_failed(orchard: Orchard, client: PersistClient) -> None:
    sent: list[tuple[str, str]] = []

    def tell(context: Any) -> None:
        sent.append((context[CONTEXT_NAME]["shard"], context[CONTEXT_NAME]["text"]))

    orchard.failing["figs"] = TooManyErrors
    run = DagRunDriver(orchard.dag(notify=tell), end_of(0))
    run_all(run, MINT, WRITE, APPEND)
    with pytest.raises(AirflowFailException) as failed:
        run.run(RETRY)
    task = run.executed[RETRY]
    context = {**run.context(), "task": task, "exception": failed.value}
    vars(context["ti"]).update(run_id="test", task_id=RETRY, start_date=end_of(0))
    for callback in task.on_failure_callback:
        callback(context)
    ((shard, text),) = sent
    assert shard == "figs"
    assert "as the test wants" in text
    assert client.state("apples").upper == Frontier(end_ms(0))
