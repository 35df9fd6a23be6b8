"""S3 on a real Spark cluster: executors are other processes, which fail, are lost, or are slower than others.

Checked each time: every row is there exactly once, and there is nothing else that a reader could read as data.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from persist_core.spark_job.installation import find_spark_submit, spark_environment, spark_home
from persist_core.spark_job.jars import with_s3a_jars
from tests.servers.s3 import S3Server
from tests.servers.spark_cluster import CONF, SparkCluster
from tests.spark.cluster_job import ROWS
from tests.spark.s3_store import s3_server

pytestmark = [pytest.mark.spark_cluster, pytest.mark.family("Sparks")]
ROOT = Path(__file__).resolve().parents[2]
FAULTS = ("task_dies", "executor_dies", "straggler")
JOB_TIMEOUT_S = 450
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "500ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.3",
    "spark.log.level": "WARN",
}


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> S3Server:
    return s3_server(request)


@pytest.fixture(scope="module")
def bucket(server: S3Server) -> str:
    return server.make_bucket()


@pytest.fixture(scope="module")
def found(
    server: S3Server, bucket: str, spark_cluster: SparkCluster, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    """The results of cluster_job.py, by fault. One driver for all: it takes longer to start than to run."""
    uri = server.uri(bucket)
    conf = with_s3a_jars({**CONF, **SPECULATION}, [uri], os.environ, spark_home(os.environ))
    options = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
    job = ROOT / "tests" / "spark" / "cluster_job.py"
    path = os.pathsep.join(str(ROOT / name) for name in (".", "jobs", "plugins"))
    marks = str(tmp_path_factory.mktemp("marks"))
    done = subprocess.run(
        [str(find_spark_submit(os.environ)), "--master", spark_cluster.master, *options, str(job), uri, *FAULTS],
        env={**os.environ, **spark_environment(os.environ), "PYTHONPATH": path, "SPARK_FAULTS": marks},
        capture_output=True,
        text=True,
        timeout=JOB_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    by_fault: dict[str, dict[str, Any]] = json.loads(done.stdout.strip().splitlines()[-1])
    return by_fault


@pytest.mark.parametrize("fault", FAULTS)
def test_only_files_of_winning_attempts_are_ever_there(
    found: dict[str, dict[str, Any]], server: S3Server, bucket: str, fault: str
) -> None:
    here = found[fault]
    assert f"{fault} first of 0" in here["marks"]
    assert f"{fault} again of 0" in here["marks"], "the fault did not happen"
    assert here["rows"] == here["read"] == list(range(ROWS))
    assert here["counted"] == ROWS
    assert sorted(here["staged"]) == sorted([*here["parts"], "manifest.json"])
    assert here["findings"] == []
    unfinished = server.raw.list_multipart_uploads(Bucket=bucket).get("Uploads", [])
    assert [upload["Key"] for upload in unfinished if upload["Key"].startswith(f"{fault}/")] == []
