"""The write task's own retries meet a file that kills Spark's driver: they set it aside, and the run ends well."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from persist_airflow.factory import build_upsert_dag
from persist_airflow.failures import SparkJobFailed
from persist_airflow.spark import RETRIES
from persist_core.config.collection import load_collection
from persist_core.handles.client import PersistClient
from persist_core.maintenance.fsck import fsck
from persist_core.schema import ERR_KIND
from tests.airflow.fruit import NAME, Fruit, contents, end_of, expected
from tests.airflow.task_driver import DagRunDriver
from tests.sampling import is_long
from tests.servers.spark_connect import running

pytestmark = pytest.mark.skipif(not is_long(), reason="starts Spark four times (PERSIST_PROFILE=nightly)")

LINE_MIB = 600  # that one driver with 1 GB cannot hold


@contextmanager
def spark_of(kind: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A connection that starts a driver for each job, or to a server: a new one, as the last one may be dead."""
    if kind == "spark":
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "local[1]"}')
        yield
        return
    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", None)
    monkeypatch.setattr("pyspark.sql.SparkSession._instantiatedSession", None)
    monkeypatch.setenv("PERSIST_SPARK_CONNECT_TIMEOUT", "60")
    for server in running():
        connection = {"conn_type": kind, "host": "localhost", "port": server.port, "password": server.token}
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
        yield


@pytest.mark.parametrize("kind", ["spark", "spark_connect"])
def test_the_tries_of_one_task_are_enough(
    fruit: Fruit, client: PersistClient, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    path = fruit.dags / "collections" / f"{NAME}.yaml"
    more: dict[str, Any] = {"limits": {"max_record_bytes": 1 << 30}}
    if kind == "spark":
        more["spark_conf"] = {"spark.driver.memory": "500m"}
    text = path.read_text().replace("/*.json", "/*.json*")
    path.write_text(text + "".join(f"{name}: {json.dumps(value)}\n" for name, value in more.items()))
    fruit.write_days(range(1))
    (folder,) = fruit.feed.iterdir()
    with gzip.open(folder / "bomb.json.gz", "wb", compresslevel=1) as bomb:
        bomb.write(b'{"id": 7, "name": "')
        for _ in range(LINE_MIB):
            bomb.write(b"x" * (1 << 20))
        bomb.write(b'"}\n')
    run = DagRunDriver(build_upsert_dag(load_collection(path)), end_of(0))
    run.run("mint_batch_descriptions")
    for _ in range(RETRIES):
        with spark_of(kind, monkeypatch), pytest.raises(SparkJobFailed, match="The next try reads the files apart"):
            run.run("write_batches")
    with spark_of(kind, monkeypatch):
        run.run("write_batches")
    assert run.run("append_batches")["result"] == "committed"
    assert contents(client, 1) == expected(1)
    (err,) = client.open_reader(NAME).errors().to_pylist()
    assert err[ERR_KIND] == "file"
    assert fsck(client, NAME).is_clean
