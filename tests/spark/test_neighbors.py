"""Users of one machine: its driver answers only who has its secret, and its files are for whom the umask says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE

import pytest

from persist_core.spark_job.installation import spark_environment
from persist_core.spark_job.process import tuned_conf

# The driver's port; then, for each port that is given, the driver there is asked for its block manager.
DRIVER = """
import json, sys
from pyspark.sql import SparkSession

def ask(port):
    java = spark._jvm.org.apache.spark
    conf = java.SparkConf(False).set("spark.rpc.askTimeout", "30s")
    entries = getattr(getattr(java.internal.config, "package$"), "MODULE$")
    security = java.SecurityManager(conf, spark._jvm.scala.Option.apply(None), entries.AUTH_SECRET_FILE())
    rpc = java.rpc.RpcEnv.create("stranger", "127.0.0.1", 0, conf, security, True)
    rpc.setupEndpointRef(java.rpc.RpcAddress("127.0.0.1", int(port)), "BlockManagerMaster")  # asks if there is one

builder = SparkSession.builder.master("local[1]")
for name, value in json.loads(sys.argv[1]).items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
print(spark.conf.get("spark.driver.port"), flush=True)
for port in sys.stdin:
    try:
        ask(port)
        print("answered", flush=True)
    except Exception as error:
        print("refused", type(error).__name__, flush=True)
"""

WRITER = """
import json, sys
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[1]")
for name, value in json.loads(sys.argv[1]).items():
    builder = builder.config(name, value)
builder.getOrCreate().range(1).write.parquet(sys.argv[2])
"""


@contextmanager
def a_driver(conf: dict[str, str], log: Path) -> Iterator[tuple[str, Callable[[str], str]]]:
    """A local Spark with these settings: its driver's port, and a function that asks the driver at a port."""
    environment = {**os.environ, **spark_environment(os.environ)}
    command = [sys.executable, "-c", DRIVER, json.dumps(conf)]
    with (
        log.open("wb") as errors,
        subprocess.Popen(command, env=environment, stdin=PIPE, stdout=PIPE, stderr=errors, text=True) as process,
    ):
        given, said = process.stdin, process.stdout
        assert given is not None
        assert said is not None

        def ask(port: str) -> str:
            given.write(f"{port}\n")
            given.flush()
            return said.readline().strip()

        try:
            yield said.readline().strip(), ask
        finally:
            process.kill()


@pytest.mark.family("Sparks")
def test_only_who_has_the_secret_talks_to_the_driver_of_a_job(tmp_path: Path) -> None:
    ours = tuned_conf("local[1]", ())
    theirs = {name: ours[name] for name in ("spark.driver.host", "spark.driver.bindAddress")}
    with a_driver(ours, tmp_path / "ours") as (port, _), a_driver(theirs, tmp_path / "theirs") as (open_port, ask):
        assert ask(open_port) == "answered", "the question is right"
        assert ask(port) == "refused Py4JJavaError", (tmp_path / "theirs").read_text()[-2000:]


@pytest.mark.family("Sparks")
def test_files_of_spark_have_the_modes_that_the_umask_says(tmp_path: Path) -> None:
    """Hadoop has an umask of its own, and then the second user of a location may not write below `batches/`."""
    before = os.umask(0o007)
    try:
        conf = tuned_conf("local[1]", ())
    finally:
        os.umask(before)
    command = [sys.executable, "-c", WRITER, json.dumps(conf), str(tmp_path / "table")]
    subprocess.run(command, env={**os.environ, **spark_environment(os.environ)}, check=True, timeout=300)
    folder, *files = (tmp_path / "table", *(tmp_path / "table").glob("part-*.parquet"))
    assert [path.stat().st_mode & 0o777 for path in (folder, *files)] == [0o770, 0o660]
