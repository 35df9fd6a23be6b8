"""The command of the write task for spark-submit if the location is on S3: jars as files, secrets by environment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

from persist_airflow.spark import WriteBatchesOperator
from persist_core.contents.batch import BatchDescription
from persist_core.location.settings import ENV_BLOB_URI, ENV_CONSENSUS_URI
from persist_core.spark_job.jars import JARS_CONF, JARS_ENV
from persist_core.spark_job.spec import JobSpec
from tests.airflow.fruit import NAME, Fruit

pytestmark = pytest.mark.airflow_2_11
URI = "s3://bucket/prefix?access_key_id=me&secret_access_key=hush"
DESCRIPTION = BatchDescription(NAME, 0, 1, "token", "checkpoint", 1, None, "test")


def submitted(fruit: Fruit, monkeypatch: pytest.MonkeyPatch, **arguments: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Configuration and environment of a job that is not run."""
    found: list[tuple[dict[str, Any], dict[str, Any]]] = []
    monkeypatch.setattr(SparkSubmitOperator, "execute", lambda self, _: found.append((self.conf, dict(os.environ))))
    operator = WriteBatchesOperator(task_id="write", config=fruit.config(), description=None, **arguments)
    operator._master_of_connection()
    before = dict(os.environ)
    operator._submit({}, [JobSpec(DESCRIPTION, fruit.config(), "attempt")], [])
    assert dict(os.environ) == before, "what one job was told stays in the task"
    ((conf, environment),) = found
    return conf, environment


@pytest.fixture(autouse=True)
def on_s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "hadoop-aws-1.jar").touch()
    monkeypatch.setenv(JARS_ENV, str(tmp_path / "jars"))
    monkeypatch.setenv(ENV_BLOB_URI, URI)
    monkeypatch.setenv(ENV_CONSENSUS_URI, f"sqlite:///{tmp_path}/consensus.db")


def test_a_job_on_s3_gets_the_jars_and_its_keys_by_environment(
    fruit: Fruit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf, environment = submitted(fruit, monkeypatch, conf={"spark.executor.memory": "2g"})
    assert conf[JARS_CONF] == f"{tmp_path}/jars/hadoop-aws-1.jar"
    assert conf["spark.executor.memory"] == "2g"
    assert (environment["AWS_ACCESS_KEY_ID"], environment["AWS_SECRET_ACCESS_KEY"]) == ("me", "hush")
    assert environment[ENV_BLOB_URI] == URI
    assert "hush" not in str(conf)


def test_who_brings_packages_brings_hadoop_aws(fruit: Fruit, monkeypatch: pytest.MonkeyPatch) -> None:
    conf, _ = submitted(fruit, monkeypatch, packages="org.apache.hadoop:hadoop-aws:3.5.0")
    assert JARS_CONF not in conf


def test_a_job_in_a_folder_gets_neither(fruit: Fruit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_BLOB_URI, f"file://{tmp_path}/blobs")
    conf, environment = submitted(fruit, monkeypatch)
    assert JARS_CONF not in conf
    assert not any(name.startswith("AWS_") for name in environment.keys() - os.environ.keys())
