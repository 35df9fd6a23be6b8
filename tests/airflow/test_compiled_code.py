"""Jobs in a Spark Connect server share the code that it compiles, though each has a session of its own."""

from __future__ import annotations

import shutil

import pytest

from persist_core.contents.batch import BatchDescription
from persist_core.handles.client import PersistClient
from persist_core.location.settings import PersistLocation
from persist_core.spark_job.launch import write_batch
from persist_core.spark_job.process import SparkProcess
from tests.airflow.fruit import Fruit, end_ms
from tests.one_run import run_one
from tests.processes import live_objects
from tests.servers.spark_connect import ConnectServer

CODE = "org.apache.spark.sql.catalyst.expressions.codegen.CodeAndComment"


@pytest.mark.skipif(shutil.which("jcmd") is None, reason="jcmd is not on PATH: it comes with a JDK")
def test_a_server_compiles_code_once_for_all_jobs(
    fruit: Fruit, client: PersistClient, location: PersistLocation, connect_server: ConnectServer
) -> None:
    fruit.write_days(range(1))
    config, spark, compiled = fruit.config(), SparkProcess(location, connect_server.url), list[int]()

    def write(description: BatchDescription) -> str:
        key = write_batch(client, spark, config, description)
        compiled.append(live_objects(connect_server.jvm())[0][CODE])
        return key

    run_one(client, config, until=end_ms(0), write=lambda description: [write(description) for _ in range(2)][-1])
    assert compiled[1] - compiled[0] < 10, "a job has 44 pieces, of which other tests may have compiled some"
