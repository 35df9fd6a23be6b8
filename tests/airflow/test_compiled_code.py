"""Jobs in a Spark Connect server share the code that it compiles, and have it analyze a plan once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from persist_core.contents.batch import BatchDescription
from persist_core.handles.client import PersistClient
from persist_core.keys import manifest_key
from persist_core.location.settings import PersistLocation
from persist_core.spark_job.launch import write_batch
from persist_core.spark_job.process import SparkProcess, connect_environment
from persist_core.spark_job.spec import JobSpec, stored
from tests.airflow.fruit import Fruit, end_ms
from tests.one_run import run_one
from tests.processes import live_objects
from tests.servers.spark_connect import ConnectServer

CODE = "org.apache.spark.sql.catalyst.expressions.codegen.CodeAndComment"


@pytest.mark.family("tasks")
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


COUNTED_JOB = """
import os, sys
from pyspark.sql.connect.client import SparkConnectClient
from persist_spark.__main__ import main
asked, analyze = [], SparkConnectClient._analyze
def counted(client, method, **given):
    asked.append(method)
    return analyze(client, method, **given)
SparkConnectClient._analyze = counted
code = main(sys.argv[1:], os.environ)
print(*asked)
sys.exit(code)
"""


@pytest.mark.family("tasks")
def test_a_server_analyzes_a_plan_once_before_it_runs(
    fruit: Fruit, client: PersistClient, location: PersistLocation, connect_server: ConnectServer
) -> None:
    """A frame that is asked for its columns, or observed, is sent to the server, which analyzes all below it."""
    fruit.write_days(range(2))
    config, asked = fruit.config(), list[str]()
    environment = {**os.environ, **location.to_env(), **connect_environment(connect_server.url)}

    def write(description: BatchDescription) -> str:
        spec = JobSpec(description, config, client.ids.uuid7())
        with stored(client.blob, spec) as arguments:
            job = [sys.executable, "-c", COUNTED_JOB, *arguments]
            asked.append(subprocess.run(job, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout)
        return manifest_key(description.shard, spec.attempt)

    for day in range(2):
        run_one(client, config, until=end_ms(day), write=write)
    assert asked == ["schema\n"] * 2
