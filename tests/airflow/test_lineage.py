"""Reports of tasks to OpenLineage: the objects that operators return, and the events that a server receives."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import jsonschema
import pyarrow as pa
import pytest
from openlineage.client.event_v2 import Job, Run, RunEvent, RunState
from openlineage.client.generated.schema_dataset import SchemaDatasetFacet
from openlineage.client.serde import Serde

from persist_airflow import lineage
from persist_airflow.actions import ShardActionOperator
from persist_airflow.factory import build_upsert_dag, build_view_dag
from persist_airflow.failures import SparkJobFailed, warn_once
from persist_airflow.lineage import name_of
from persist_airflow.spark import WriteBatchesOperator
from persist_core.config.collection import FILE_POSITION
from persist_core.contents.batch import BatchDescription
from persist_core.contents.parts import updates_schema
from persist_core.errors import PersistError
from persist_core.handles.client import PersistClient
from persist_core.location.settings import PersistLocation
from persist_core.schema import CollectionSchema, Column
from tests.airflow.airflow_process import run
from tests.airflow.fruit import NAME, Fruit, end_ms, end_of
from tests.airflow.openlineage_events import check_event, sink
from tests.airflow.task_driver import DagRunDriver
from tests.airflow.test_actions import context, fill
from tests.airflow.view_files import Views
from tests.core.sources.bucket import Bucket
from tests.servers.s3 import SECRET_KEY, S3Server

MINT, WRITE, APPEND = "mint_batch_descriptions", "write_batches", "append_batches"

DAG_FILE = """
# airflow DAG
from pathlib import Path
from persist_airflow.factory import build_dags
from persist_airflow.spark import WriteBatchesOperator
from tests.airflow.test_lineage import staging
WriteBatchesOperator.writer = staging()  # no Spark: everything else is real
globals().update(build_dags(Path(__file__).parent / "collections", default_args={"retries": 0}))
"""
DRIVER = """
import datetime, importlib, sys
sys.path.insert(0, sys.argv[1])
dag = importlib.import_module("fruit_dag").persist_upsert__fruit
for day in sys.argv[2:]:
    dag.test(logical_date=datetime.datetime.fromisoformat(day))
"""


def stage_rows(client: PersistClient, description: BatchDescription) -> str:
    """Act as the Spark job of fruit, with one row; a batch up to the end of the fourth day fails."""
    if description.upper == end_ms(3):
        raise SparkJobFailed("java.lang.OutOfMemoryError: Java heap space")
    key, values = (Column("id", "bigint", nullable=False),), (Column("name", "string"),)
    schema = CollectionSchema(key, values, position=FILE_POSITION)
    row = {"id": 1, "name": "apple", "_persist_time": description.lower, "_persist_diff": 1}
    oks = pa.Table.from_pylist([row] if description.input_files else [], schema=updates_schema(schema))
    return client.open_writer(description.shard).stage(description, schema, client.ids.uuid7(), oks)


def staging(stage: Callable[[PersistClient, BatchDescription], str] = stage_rows) -> Callable[..., Any]:
    """The method `writer` of a write task that has no Spark."""
    return lambda _self, client, _context: functools.partial(stage, client)


@pytest.fixture
def reporting(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenLineage is on, and no Spark runs."""
    monkeypatch.setattr(lineage, "is_on", lambda: True)
    monkeypatch.setattr(WriteBatchesOperator, "writer", staging())


def event_of(task: Any) -> dict[str, Any]:
    """The event that the provider would send when the task has succeeded, checked against the spec."""
    found = task.get_openlineage_facets_on_complete(None)
    event = RunEvent(
        eventType=RunState.COMPLETE,
        eventTime="2026-01-02T03:04:05Z",
        run=Run("01a2037d-a68f-70c1-a817-e27019d528e5"),
        job=Job("namespace", "job"),
        inputs=found.inputs,
        outputs=found.outputs,
        producer="https://example.org/producer",
    )
    sent: dict[str, Any] = json.loads(Serde.to_json(event))
    check_event(sent)
    return sent


@pytest.mark.usefixtures("reporting")
def test_a_commit_names_the_files_read_and_what_it_wrote(fruit: Fruit, client: PersistClient) -> None:
    fruit.write_days(range(2))
    dag_run = DagRunDriver(build_upsert_dag(fruit.config()), end_of(1))
    dag_run.run_all()
    (written,) = event_of(dag_run.executed[WRITE])["inputs"]
    event = event_of(dag_run.executed[APPEND])
    assert event["inputs"] == [written]
    assert (written["namespace"], written["name"]) == ("file", str(fruit.feed))
    files = sorted(fruit.feed.glob("*/part.json"))
    statistics = written["inputFacets"]["inputStatistics"]
    assert (statistics["fileCount"], statistics["size"]) == (2, sum(file.stat().st_size for file in files))
    assert written["inputFacets"]["subset"]["inputCondition"]["locations"] == [str(file) for file in files]
    (output,) = event["outputs"]
    manifest = client.manifest(client.state(NAME).batches[-1])
    assert f"{output['namespace']}://{output['name']}" == f"{client.blob.uri}/fruit"
    facets = output["facets"]
    assert [(each["name"], each["type"]) for each in facets["schema"]["fields"]] == [
        ("id", "bigint"),
        ("name", "string"),
    ]
    assert facets["version"]["datasetVersion"] == manifest.checkpoint_id
    assert facets["symlinks"]["identifiers"] == [
        {"namespace": "persist://persist_default", "name": "fruit", "type": "TABLE"}
    ]
    assert "columnLineage" not in facets
    statistics = output["outputFacets"]["outputStatistics"]
    assert (statistics["rowCount"], statistics["size"], statistics["fileCount"]) == (1, manifest.size_bytes, 1)


@pytest.mark.usefixtures("reporting", "client")
def test_a_commit_names_the_bucket_that_it_read(versitygw: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = Bucket(versitygw)
    bucket.put("2026/01/01/a.jsonl")
    ((variable, uri),) = bucket.connections.items()
    monkeypatch.setenv(variable, uri)
    dag_run = DagRunDriver(build_upsert_dag(bucket.collection("{date:%Y/%m/%d}/*.jsonl", time="path")), end_of(0))
    dag_run.run_all()
    event = event_of(dag_run.executed[APPEND])
    (read,) = event["inputs"]
    assert (read["namespace"], read["name"]) == (f"s3://{bucket.name}", "feed")
    locations = read["inputFacets"]["subset"]["inputCondition"]["locations"]
    assert locations == [f"s3://{bucket.name}/feed/2026/01/01/a.jsonl"]
    assert SECRET_KEY not in json.dumps(event)


@pytest.mark.usefixtures("reporting")
def test_a_view_names_the_columns_that_its_own_are_made_of(
    fruit: Fruit, views: Views, client: PersistClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    del client  # it opened the location
    fruit.write_days(range(1))
    DagRunDriver(build_upsert_dag(fruit.config()), end_of(0)).run_all()
    view = views.write("names", "query: SELECT upper(name) AS loud, count(*) AS n FROM fruit GROUP BY name\n")

    def stage(client: PersistClient, description: BatchDescription) -> str:
        schema = CollectionSchema((), (Column("LOUD", "string"), Column("n", "bigint")))
        return client.open_writer("names").stage(description, schema, client.ids.uuid7())

    monkeypatch.setattr(WriteBatchesOperator, "writer", staging(stage))
    dag_run = DagRunDriver(build_view_dag(view), None)
    dag_run.run_all()
    event = event_of(dag_run.executed[APPEND])
    (read,), (output,) = event["inputs"], event["outputs"]
    assert read["name"].endswith("/blob/fruit")
    assert read["facets"]["version"]["datasetVersion"] == str(end_ms(0) - 1)
    assert [each["name"] for each in read["facets"]["schema"]["fields"]] == ["id", "name"]
    ((column, made_of),) = output["facets"]["columnLineage"]["fields"].items()
    (source,) = made_of["inputFields"]
    assert (column, source["namespace"], source["name"], source["field"]) == ("LOUD", "file", read["name"], "name")


@pytest.mark.usefixtures("reporting")
def test_a_try_that_fails_reports_what_it_has_read(fruit: Fruit, client: PersistClient) -> None:
    del client
    fruit.write_days(range(4))
    dag_run = DagRunDriver(build_upsert_dag(fruit.config()), end_of(3))
    dag_run.run(MINT)
    with pytest.raises(SparkJobFailed):
        dag_run.run(WRITE)
    found = dag_run.executed[WRITE].get_openlineage_facets_on_failure(None)
    assert ([each.name for each in found.inputs], found.outputs) == ([str(fruit.feed)], [])


@pytest.mark.usefixtures("reporting")
def test_a_restore_and_a_fork_report_their_shards(client: PersistClient) -> None:
    first, *_ = fill(client)
    restore = ShardActionOperator(task_id="t", shard=NAME, action="restore", fields={"checkpoint_id": first})
    restore.execute(context())
    event = event_of(restore)
    assert event["inputs"] == []
    assert [each["outputFacets"]["outputStatistics"]["rowCount"] for each in event["outputs"]] == [2]
    fields = {"checkpoint_id": first, "new_shard": "fruit_2"}
    fork = ShardActionOperator(task_id="t", shard=NAME, action="restore", fields=fields)
    fork.execute(context())
    event = event_of(fork)
    names = [each["name"].rpartition("/")[2] for each in (*event["inputs"], *event["outputs"])]
    assert names == ["fruit", "fruit_2"]


def test_lineage_that_cannot_be_read_fails_no_task(
    fruit: Fruit, client: PersistClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lineage, "is_on", lambda: True)
    monkeypatch.setattr(WriteBatchesOperator, "writer", staging())
    fruit.write_days(range(1))
    dag_run = DagRunDriver(build_upsert_dag(fruit.config()), end_of(0))
    dag_run.run(MINT)
    dag_run.run(WRITE)
    client.blob.delete(dag_run.xcoms[MINT]["input_key"])
    with caplog.at_level("WARNING"), suppress(PersistError):
        dag_run.run(APPEND)
    assert any(line.startswith("no lineage is reported: CorruptArtifact") for line in caplog.messages)


@pytest.mark.parametrize("setting", ["TRANSPORT=[]", "TRANSPORT={", "DISABLED=perhaps"])
def test_a_wrong_setting_of_openlineage_fails_no_task(
    setting: str, fruit: Fruit, client: PersistClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    del client  # it opened the location
    lineage.is_on.cache_clear()
    warn_once.cache_clear()
    name, _, value = setting.partition("=")
    monkeypatch.setenv(f"AIRFLOW__OPENLINEAGE__{name}", value)
    monkeypatch.setattr(WriteBatchesOperator, "writer", staging())
    fruit.write_days(range(1))
    with caplog.at_level("WARNING"):
        DagRunDriver(build_upsert_dag(fruit.config()), end_of(0)).run_all()
    assert len([line for line in caplog.messages if line.startswith("no lineage is reported: ")]) == 1


def test_nothing_is_read_unless_the_provider_is_configured(
    fruit: Fruit, client: PersistClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    del client  # it opened the location
    monkeypatch.setattr(WriteBatchesOperator, "writer", staging())
    fruit.write_days(range(1))
    dag_run = DagRunDriver(build_upsert_dag(fruit.config()), end_of(0))
    dag_run.run_all()
    assert not lineage.is_on()
    assert dag_run.executed[APPEND].lineage == lineage.Lineage()


@pytest.mark.parametrize(
    ("blob_uri", "expected"),
    [
        ("file:///var/lib/my%20blobs", ("file", "/var/lib/my blobs/fruit")),
        ("s3://bucket/a/b?endpoint=http://127.0.0.1:1&region=x", ("s3://bucket", "a/b/fruit")),
        ("s3://bucket", ("s3://bucket", "fruit")),
        ("mem:tests", ("mem", "tests/fruit")),
    ],
)
def test_names_follow_openlineages_naming(blob_uri: str, expected: tuple[str, str]) -> None:
    assert name_of(blob_uri, "fruit") == expected


def test_the_check_of_events_finds_what_the_spec_does_not_allow() -> None:
    event = {
        "eventTime": "2026-01-02T03:04:05Z",
        "eventType": "COMPLETE",
        "producer": "https://example.org",
        "schemaURL": "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent",
        "run": {"runId": "01a2037d-a68f-70c1-a817-e27019d528e5"},
        "job": {"namespace": "n", "name": "j"},
    }
    base = {"_producer": "https://example.org", "_schemaURL": SchemaDatasetFacet._get_schema()}
    good = {**base, "fields": [{"name": "id", "type": "bigint"}]}

    def with_facet(facet: dict[str, Any]) -> dict[str, Any]:
        return {**event, "outputs": [{"namespace": "file", "name": "/x", "facets": {"schema": facet}}]}

    assert check_event(with_facet(good)) == ["schema"]
    wrong: tuple[dict[str, Any], ...] = (
        {**good, "fields": [{"type": "bigint"}]},
        {**good, "fields": "id"},
        {**good, "other": 1},
        {"fields": []},
    )
    for facet in wrong:
        with pytest.raises(jsonschema.ValidationError):
            check_event(with_facet(facet))
    with pytest.raises(jsonschema.ValidationError):
        check_event({**event, "outputs": [{"name": "/x"}]})


@pytest.mark.family("tasks")
def test_a_server_receives_the_events_of_real_task_runs(
    fruit: Fruit, migrated: Path, location: PersistLocation, client: PersistClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    (fruit.dags / "fruit_dag.py").write_text(DAG_FILE)
    fruit.write_days(range(4))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__NAMESPACE", "shop")
    with sink() as (url, received):
        transport = {"type": "http", "url": url, "endpoint": "lineage"}
        monkeypatch.setenv("AIRFLOW__OPENLINEAGE__TRANSPORT", json.dumps(transport))
        days = [f"{end_of(day):%Y-%m-%d}T00:00:00+00:00" for day in (0, 3)]
        run(fruit.dags, migrated, location, "-c", DRIVER, str(fruit.dags), *days)
    ended = {event["job"]["name"].rpartition(".")[2]: event for event in received if event["eventType"] != "START"}
    for event in received:
        check_event(event)
    failed = ended[WRITE]
    assert (failed["eventType"], [each["name"] for each in failed["inputs"]]) == ("FAIL", [str(fruit.feed)])
    assert "java.lang.OutOfMemoryError" in failed["run"]["facets"]["errorMessage"]["message"]
    append = ended[APPEND]
    assert (append["eventType"], append["job"]["namespace"]) == ("COMPLETE", "shop")
    assert [each["name"] for each in append["inputs"]] == [str(fruit.feed)]
    (output,) = [each for each in append["outputs"] if each.get("outputFacets")]
    assert output["outputFacets"]["outputStatistics"]["rowCount"] == 1
    assert client.state(NAME).newest_commit is not None
