"""View DAGs: what appears, what they wait for, how far a run goes, and what a read-only run does. No Spark here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from persist_airflow.compat import AirflowSkipException
from persist_airflow.factory import build_upsert_dag, build_view_dag, build_view_dags, view_task_group
from persist_airflow.operators import MintBatchDescriptionsOperator
from persist_airflow.spark import WriteBatchesOperator
from persist_core.contents.stats import DryRun
from persist_core.handles.client import PersistClient
from persist_core.schema import CollectionSchema, Column
from tests.airflow.fruit import NAME, Fruit, end_ms, end_of
from tests.airflow.task_driver import DagRunDriver
from tests.airflow.test_parse import CHAIN, dag_bag
from tests.airflow.view_files import Views
from tests.servers.backends import on_each_consensus, on_servers

pytestmark = pytest.mark.airflow_2_11

MINT, WRITE, APPEND = CHAIN[:3]
ROWS = CollectionSchema(key=(), values=(Column("name", "string"),))


def waits_for(dag: Any) -> set[str]:
    """The URIs of the assets, each of which starts the DAG."""
    timetable: Any = dag.timetable
    condition: Any = getattr(timetable, "asset_condition", None) or timetable.dataset_condition
    assert len(condition.objects) == 1 or type(condition).__name__.endswith("Any")
    return {asset.uri for asset in condition.objects}


def staged(self: Any, _context: Any, items: Any, _arguments: Any) -> int:
    """Stands for the Spark job: stages an empty batch, or leaves a dry run's report."""
    client, (spec,) = self.test_client, items
    if spec.dry_run_as_of is not None:
        dry_run = DryRun(spec.dry_run_as_of, {"inserted": 3, "updates": 3}, ({"_persist_diff": 1, "name": "fig"},))
        client.blob.set(spec.answer_key, dry_run.encode())
    else:
        client.open_writer(spec.config.name).stage(spec.description, ROWS, spec.attempt)
    return 0


@pytest.fixture
def spark(client: PersistClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WriteBatchesOperator, "_submit", staged)
    monkeypatch.setattr(WriteBatchesOperator, "test_client", client, raising=False)


def test_each_view_is_a_dag_that_waits_for_its_inputs(fruit: Fruit, views: Views) -> None:
    views.write("names", "query: SELECT name FROM fruit")
    views.write("pairs", "query: SELECT f.id, n.name FROM fruit f JOIN names n USING (name)")
    views.write("daily", "query: SELECT name FROM fruit\nschedule: '@daily'\nstart_date: 2026-01-01\n")
    bag = dag_bag(fruit.dags)
    assert not bag.import_errors
    assert {"persist_view__names", "persist_view__pairs", "persist_view__daily"} <= set(bag.dags)
    dag = bag.dags["persist_view__pairs"]
    assert [task.task_id for task in dag.topological_sort()] == CHAIN
    assert waits_for(dag) == {"persist://persist_default/fruit", "persist://persist_default/names"}
    assert waits_for(bag.dags["persist_view__names"]) == {"persist://persist_default/fruit"}
    assert "```sql\nSELECT f.id" in dag.doc_md
    append: Any = bag.dags["persist_view__names"].get_task(APPEND)
    assert [asset.uri for asset in append.outlets] == ["persist://persist_default/names"]


def test_a_wrong_view_is_an_import_error_of_its_own(fruit: Fruit, views: Views) -> None:
    views.write("names", "query: SELECT name FROM fruit")
    (views.folder / "wrong.yaml").write_text("query: SELECT nam FROM fruit\n")
    (views.folder / "lost.yaml").write_text("query: SELECT name FROM friut\n")
    bag = dag_bag(fruit.dags)
    assert set(bag.dags) == {"persist_upsert__fruit", "persist_view__names"}
    errors = {Path(path).name: message for path, message in bag.import_errors.items()}
    assert set(errors) == {"wrong.yaml", "lost.yaml"}
    assert "column nam (line 1, column 8)" in errors["wrong.yaml"]
    assert "did you mean 'fruit'" in errors["lost.yaml"]


def test_views_stand_in_task_groups_and_take_options(views: Views) -> None:
    from persist_airflow.compat import DAG

    config = views.write("names", "query: SELECT name FROM fruit")
    with DAG("mine", schedule=None) as dag:
        view_task_group(config)
    assert {task.task_id for task in dag.tasks} == {f"names.{task}" for task in CHAIN}
    (other,) = build_view_dags(views.folder, persist_conn_id="lake", dag_args={"max_active_runs": 2}).values()
    assert waits_for(other) == {"persist://lake/fruit"}
    assert other.max_active_runs == 2


@on_each_consensus
@pytest.mark.usefixtures("spark")
def test_a_run_on_input_goes_as_far_as_its_inputs(fruit: Fruit, views: Views, client: PersistClient) -> None:
    dag = build_view_dag(views.write("names", "query: SELECT name FROM fruit"))
    with pytest.raises(AirflowSkipException, match="its input fruit does not exist yet"):
        DagRunDriver(dag, None).run(MINT)
    DagRunDriver(build_upsert_dag(fruit.config()), end_of(1)).run_all()
    report = DagRunDriver(dag, end_of(0)).run_all()
    assert (report["result"], report["upper"]) == ("committed", end_ms(1))
    with pytest.raises(AirflowSkipException, match="up to date with its inputs"):
        DagRunDriver(dag, end_of(3), "again").run(MINT)
    assert client.state(NAME).holds["view/names"].since.time == 0


@pytest.mark.usefixtures("spark")
def test_a_scheduled_run_refreshes_at_the_end_of_its_interval(
    fruit: Fruit, views: Views, client: PersistClient
) -> None:
    dag = build_view_dag(views.write("names", "query: SELECT name FROM fruit\nschedule: '@daily'\n"))
    DagRunDriver(build_upsert_dag(fruit.config()), end_of(3)).run_all()
    for day in (0, 1):
        assert DagRunDriver(dag, end_of(day), str(day)).run_all()["upper"] == end_ms(day)
    with pytest.raises(AirflowSkipException, match="already in shard names"):
        DagRunDriver(dag, end_of(0), "late").run(MINT)
    assert DagRunDriver(dag, end_of(9), "far").run_all()["upper"] == end_ms(3), "no further than its input"
    assert [commit.upper for commit in client.state("names").commits] == [end_ms(0), end_ms(1), end_ms(3)]


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("asked", ["file", "conf"])
def test_a_read_only_run_reports_its_changes_and_is_skipped(
    fruit: Fruit, views: Views, client: PersistClient, asked: str
) -> None:
    DagRunDriver(build_upsert_dag(fruit.config()), end_of(1)).run_all()
    text = "query: SELECT name FROM fruit\n" + ("read_only: true\n" if asked == "file" else "")
    dag = build_view_dag(views.write("names", text))
    run = DagRunDriver(dag, None, conf={"read_only": True} if asked == "conf" else {})
    keys = {entry.key for entry in client.blob.list_keys_and_metadata("")}
    assert run.run(MINT)["dry_run_as_of"] == end_ms(1) - 1
    written = run.run(WRITE)
    assert written["manifest_key"] is None
    assert written["dry_run"]["stats"]["inserted"] == 3
    with pytest.raises(AirflowSkipException, match="read-only: nothing was written"):
        run.run(APPEND)
    assert {entry.key for entry in client.blob.list_keys_and_metadata("")} == keys
    assert client.shards() == [NAME]
    assert not client.state(NAME).holds


@on_servers
@pytest.mark.usefixtures("spark")
def test_a_lost_append_of_a_view_heals(fruit: Fruit, views: Views, client: PersistClient) -> None:
    dag = build_view_dag(views.write("names", "query: SELECT name FROM fruit\nschedule: '@daily'\n"))
    DagRunDriver(build_upsert_dag(fruit.config()), end_of(3)).run_all()
    loser = DagRunDriver(dag, end_of(2), "loser")
    loser.run(MINT)
    loser.run(WRITE)
    DagRunDriver(dag, end_of(0), "winner").run_all()
    with pytest.raises(Exception, match="winner"):
        loser.run(APPEND)
    assert loser.run(APPEND)["result"] == "healed"
    assert client.state("names").upper.time == end_ms(2)


def test_the_operators_take_views(views: Views) -> None:
    config = views.write("names", "query: SELECT name FROM fruit")
    assert MintBatchDescriptionsOperator(task_id="mint", config=config).shard == "names"
