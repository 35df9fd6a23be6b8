"""DAG files: what appears, in which shape, what a wrong collection file does, and what parsing does not do."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from persist_airflow.compat import AIRFLOW_V_3_0_PLUS, DAG
from persist_airflow.factory import (
    build_dags,
    build_group_dag,
    build_upsert_dag,
    build_view_dags,
    shard_task_group,
    tasks_of,
    upsert_task_group,
)
from persist_core.config.collection import load_collection
from persist_core.errors import ConfigError
from tests.airflow.fruit import DAY, START, Fruit

pytestmark = pytest.mark.airflow_2_11

CHAIN = ["mint_batch_descriptions", "write_batches", "append_batches", "checkpoint_manifest"]
ROOT = Path(__file__).resolve().parents[2]


def dag_bag(folder: Path) -> Any:
    """Airflow's own reader of DAG files."""
    try:
        module = importlib.import_module("airflow.dag_processing.dagbag")
    except ImportError:
        module = importlib.import_module("airflow.models.dagbag")
    return module.DagBag(str(folder))


def test_each_collection_is_a_dag_of_four_tasks(fruit: Fruit) -> None:
    bag = dag_bag(fruit.dags)
    assert not bag.import_errors
    dag = bag.dags["persist_upsert__fruit"]
    assert [task.task_id for task in dag.topological_sort()] == CHAIN
    for above, below in zip(CHAIN, [*CHAIN[1:], None], strict=True):
        assert dag.get_task(above).downstream_task_ids == ({below} if below else set())
    assert not dag.catchup
    assert dag.max_active_runs == 1
    assert dag.start_date.isoformat() == "2026-01-01T00:00:00+00:00"
    assert all(task.retries >= 3 for task in dag.tasks)


def test_the_bundled_dags_have_no_errors() -> None:
    bag = dag_bag(ROOT / "dags")
    assert not bag.import_errors
    assert "persist_upsert__customers" in bag.dags


def test_a_dag_run_goes_by_the_newest_files() -> None:
    """Also in a versioned bundle, where a run keeps the version it began with: that one would drop new columns."""
    dags = dag_bag(ROOT / "dags").dags
    found = {name: getattr(dag, "disable_bundle_versioning", None) for name, dag in dags.items()}
    assert found == dict.fromkeys(dags, AIRFLOW_V_3_0_PLUS or None)


def test_a_task_opens_the_file_of_its_own_dag_alone(fruit: Fruit, monkeypatch: pytest.MonkeyPatch) -> None:
    (fruit.dags / "collections" / "broken.yaml").write_text("columns: [")
    folder = fruit.dags / "collections"
    monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", "persist_upsert__fruit")
    assert list(build_dags(folder)) == ["persist_upsert__fruit"]
    assert build_view_dags(folder) == {}
    monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", "somebody_elses")
    assert build_dags(folder) == {}
    monkeypatch.delenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID")
    assert len(build_dags(folder)) == 2, "the stand-in of the broken file too"


def test_runs_have_real_data_intervals(fruit: Fruit) -> None:
    dag = dag_bag(fruit.dags).dags["persist_upsert__fruit"]
    timetable: Any = dag.timetable
    if not hasattr(timetable, "infer_manual_data_interval"):
        timetable = importlib.import_module("airflow.serialization.encoders").coerce_to_core_timetable(timetable)
    interval = timetable.infer_manual_data_interval(run_after=importlib.import_module("pendulum").instance(START + DAY))
    assert (interval.start, interval.end) == (START, START + DAY)


def test_a_wrong_file_is_an_import_error_of_its_own(fruit: Fruit) -> None:
    text = (fruit.dags / "collections" / "fruit.yaml").read_text()
    wrong = fruit.write_collection("wrong", text.replace("format: json", "format: jsn"))
    bag = dag_bag(fruit.dags)
    assert list(bag.dags) == ["persist_upsert__fruit"]
    assert list(bag.import_errors) == [str(wrong)]
    message = bag.import_errors[str(wrong)]
    assert str(wrong) in message
    assert "source.format" in message
    assert "'jsn'" in message
    assert "'debezium-json'" in message


def test_wrong_files_of_like_or_long_names_are_each_an_error(fruit: Fruit) -> None:
    wrong = [fruit.write_collection(name, "key: id\n") for name in ("a b", "a%b", "x" * 240)]
    bag = dag_bag(fruit.dags)
    assert list(bag.dags) == ["persist_upsert__fruit"]
    assert sorted(bag.import_errors) == sorted(map(str, wrong))
    other = fruit.dags / "others" / "collections"
    other.mkdir(parents=True)
    (other / "a b.yaml").write_text("key: id\n")
    both = {*build_dags(fruit.dags / "collections"), *build_dags(other)}
    assert len(both) == 5, "one DAG file may read several folders"


@pytest.mark.parametrize("cron", ["61 25 * * *", "0 0 31 2 *"])
def test_a_refused_schedule_is_an_import_error_of_its_file(cron: str, fruit: Fruit) -> None:
    """Airflow takes the second one, which names no date, and never makes a run."""
    text = (fruit.dags / "collections" / "fruit.yaml").read_text()
    wrong = fruit.write_collection("wrong", f'schedule: "{cron}"\n{text}')
    bag = dag_bag(fruit.dags)
    assert list(bag.dags) == ["persist_upsert__fruit"]
    assert list(bag.import_errors) == [str(wrong)]
    message = bag.import_errors[str(wrong)]
    assert message.startswith(f"{wrong}: schedule: found ")
    assert cron in message


def test_a_missing_folder_is_an_import_error(fruit: Fruit) -> None:
    for file in (fruit.dags / "collections").iterdir():
        file.unlink()
    (fruit.dags / "collections").rmdir()
    bag = dag_bag(fruit.dags)
    assert not bag.dags
    (message,) = bag.import_errors.values()
    assert "collections" in message


def test_two_yaml_files_of_a_shard_do_not_hide_each_other(fruit: Fruit) -> None:
    text = (fruit.dags / "collections" / "fruit.yaml").read_text()
    (fruit.dags / "collections" / "fruit.yml").write_text(text)
    bag = dag_bag(fruit.dags)
    assert list(bag.dags) == ["persist_upsert__fruit"]
    assert list(bag.import_errors) == [str(fruit.dags / "collections" / "fruit.yml")]


def test_options_reach_the_tasks(fruit: Fruit) -> None:
    def told(context: Any) -> None:
        del context

    (dag,) = build_dags(
        fruit.dags / "collections",
        persist_conn_id="lake",
        spark_conn_id="cluster",
        notify=told,
        spark={"conf": {"spark.x": "1"}, "executor_memory": "2g"},
        default_args={"retries": 0, "owner": "data"},
        dag_args={"max_active_runs": 4},
    ).values()
    write: Any = dag.get_task("write_batches")
    append: Any = dag.get_task("append_batches")
    assert (write.persist_conn_id, write.spark_conn_id, write.conf) == ("lake", "cluster", {"spark.x": "1"})
    assert append.notify == (told,)
    assert (write.retries, write.owner, dag.max_active_runs) == (0, "data", 4)
    assert [asset.uri for asset in append.outlets] == ["persist://lake/fruit"]


def test_options_of_tasks_come_from_the_file_and_the_factory(fruit: Fruit) -> None:
    text = (fruit.dags / "collections" / "fruit.yaml").read_text()
    fruit.write_collection(
        "fruit",
        text
        + """
airflow:
  owner: orchard
  tags: [food]
  max_active_runs: 3
  all: {queue: slow, retries: 8}
  write: {pool: spark, timeout_s: 3600, retries: 1, executor_config: {KubernetesExecutor: {image: big}}}
  checkpoint: {priority: 5, retry_delay_s: 60}
spark_conf: {spark.sql.shuffle.partitions: 8, spark.sql.adaptive.enabled: false}
""",
    )
    (dag,) = build_dags(
        fruit.dags / "collections",
        default_args={"owner": "data", "retries": 2},
        tasks={"all": {"queue": "fast"}, "append": {"retries": 4}},
    ).values()
    tasks = tasks_of(dag)
    each = (tasks.mint, tasks.write, tasks.append, tasks.checkpoint)
    assert [task.task_id for task in each] == CHAIN
    assert [task.owner for task in each] == ["orchard"] * 4
    assert ({"persist", "upsert", "food"}, 3) == (set(dag.tags), dag.max_active_runs)
    assert [task.retries for task in each] == [8, 1, 4, 8], "the factory, then the file, then default_args"
    assert [task.queue for task in each] == ["fast"] * 4
    assert [task.pool for task in each] == ["default_pool", "spark", "spark", "default_pool"]
    assert [task.priority_weight for task in each] == [1, 1, 1, 5]
    assert tasks.write.execution_timeout == timedelta(hours=1)
    assert tasks.write.executor_config == {"KubernetesExecutor": {"image": "big"}}
    assert tasks.write.config.spark_conf == {"spark.sql.shuffle.partitions": "8", "spark.sql.adaptive.enabled": "false"}
    assert tasks.checkpoint.retry_delay == timedelta(minutes=1)


def test_all_four_tasks_honor_default_args(fruit: Fruit) -> None:
    (plain,) = build_dags(fruit.dags / "collections").values()
    assert [plain.get_task(task_id).retries for task_id in CHAIN] == [3, 3, 6, 3]
    (given,) = build_dags(fruit.dags / "collections", default_args={"retries": 1}).values()
    assert [given.get_task(task_id).retries for task_id in CHAIN] == [1, 1, 1, 1]


def test_the_task_group_stands_in_any_dag(fruit: Fruit) -> None:
    from persist_airflow.compat import DAG

    with DAG("mine", schedule=None) as dag:
        upsert_task_group(fruit.config())
        tasks = upsert_task_group(fruit.config(), group_id="again", persist_conn_id="other")
    assert {task.task_id for task in dag.tasks} == {f"{group}.{task}" for group in ("fruit", "again") for task in CHAIN}
    append: Any = dag.get_task("again.append_batches")
    assert append.write_task_id == "again.write_batches"
    assert append.persist_conn_id == "other"
    assert tasks.append is append
    assert tasks == tasks_of(dag, "again")


PROBE = """
import json, socket, sys, time
def refuse(*a, **k): raise AssertionError("network at parse time")
socket.socket.connect = refuse
import airflow.providers.common.compat.sdk as sdk
sdk.DAG, sdk.BaseOperator
import airflow.providers.apache.spark.operators.spark_submit
start = time.process_time()
sys.path.insert(0, sys.argv[1])
import fruit_dag
own_s = time.process_time() - start
dag = fruit_dag.persist_upsert__fruit
print(json.dumps({"dag": dag.dag_id, "own_s": own_s, "heavy": [m for m in ("pyspark", "pandas") if m in sys.modules]}))
"""


def test_parsing_imports_no_spark_no_pandas_and_touches_no_store(fruit: Fruit) -> None:
    environment = {"PERSIST_BLOB_URI": "file:///nowhere/blob", "PERSIST_CONSENSUS_URI": "sqlite:////nowhere/c.db"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROBE, str(fruit.dags)],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=400,
    )
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["heavy"] == []
    assert not Path("/nowhere").exists()
    assert report["own_s"] < 5  # 0.9 s on an idle machine; the bound is for busy machines


@pytest.mark.parametrize("by", ["tasks", "spark", "both"])
def test_append_runs_where_write_does_without_its_own(fruit: Fruit, by: str) -> None:
    place: dict[str, Any] = {"pool": "spark", "pool_slots": 4, "queue": "large", "executor_config": {"pod": "big"}}
    given: Any = {"write": place if by != "spark" else {}}
    dag = build_upsert_dag(fruit.config(), tasks=given, spark=place if by != "tasks" else {})
    append = tasks_of(dag).append
    assert {name: getattr(append, name) for name in place} == place
    own: Any = {**given, "append": {"pool": "small", "queue": "fast"}}
    append = tasks_of(build_upsert_dag(fruit.config(), tasks=own, spark=place if by != "tasks" else {})).append
    assert (append.pool, append.pool_slots, append.queue) == ("small", 1, "fast")
    assert append.executor_config == {"pod": "big"}


@pytest.mark.parametrize("conn_id", ["{{ var.value.location }}", "{% if x %}a{% endif %}"])
def test_a_template_as_the_location_of_assets_is_refused(fruit: Fruit, conn_id: str) -> None:
    config = fruit.config()
    with pytest.raises(ConfigError, match=r"persist_conn_id.*cannot be a template"):
        build_upsert_dag(config, persist_conn_id=conn_id)
    with pytest.raises(ConfigError, match=r"persist_conn_id.*cannot be a template"):
        build_group_dag("crm", [config], persist_conn_id=conn_id)


def test_each_shard_of_a_connection_has_an_asset(fruit: Fruit) -> None:
    """Whatever Airflow allows in the id of a connection."""
    append = tasks_of(build_upsert_dag(fruit.config(), persist_conn_id="team/lake#1")).append
    assert [asset.uri for asset in append.outlets] == ["persist://team%2Flake%231/fruit"]


def test_a_shard_with_a_dot_has_a_task_group(fruit: Fruit) -> None:
    file = fruit.dags / "collections" / "fruit.yaml"
    other = file.with_name("sales.eu.yaml")
    other.write_text(file.read_text())
    with DAG("of_ones_own", schedule=None):
        tasks = shard_task_group(load_collection(other))
    assert (tasks.mint.shard, tasks.mint.task_id) == ("sales.eu", f"sales_eu.{CHAIN[0]}")
