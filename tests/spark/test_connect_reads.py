"""Reads from a Spark Connect server, which looks for files when a plan runs, and not when it is made, and which someone
may stop meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa

from persist_core.contents.parts import PARQUET, part_schema
from persist_core.location.file.blob import FileBlob
from persist_core.spark_job.process import connect_environment
from tests.servers.spark_connect import ConnectServer
from tests.spark.upsert_cases import ONE_KEY

# A session of a server changes the whole process, so the reader is a process of its own. The folder; then the files.
READER = """
import sys
from pathlib import Path
from persist_core.errors import ReadTooSlow
from persist_core.location.file.blob import FileBlob
from persist_spark.frame import part_type
from persist_spark.read.damage import named_damage
from persist_spark.read.parts import scan
from persist_spark.session import build_session
from tests.spark.upsert_cases import ONE_KEY

folder, *files = sys.argv[1:]
blob = FileBlob(Path(folder))
found = scan(build_session("reads"), blob, [(file, ONE_KEY) for file in files], part_type(ONE_KEY))
whole = blob.get(files[3])
blob.delete(files[3])
try:
    with named_damage(blob):
        print(found.count())
except ReadTooSlow as error:
    print(error)
blob.set(files[3], whole)
print(found.count())
"""

STOPPED = """
from persist_spark.compat import ENGINE_ERRORS
from persist_spark.connect import is_lost
from persist_spark.session import build_session

rows = build_session("stopped").sql("SELECT reflect('java.lang.Thread', 'sleep', 500L) FROM range(0, 60, 1, 30)")
print("runs", flush=True)
try:
    rows.collect()
except ENGINE_ERRORS as error:
    print("lost" if is_lost(error) else error)
"""


def test_files_that_went_before_a_plan_ran_are_missed(connect_server: ConnectServer, tmp_path: Path) -> None:
    """Also of a folder with so many that elsewhere the folder is one path."""
    blob = FileBlob(tmp_path)
    rows = pa.Table.from_pylist([{"id": 1, "name": "a"}], schema=part_schema(ONE_KEY))
    files = [f"things/batches/a/_persist_part=insertions/part-{number}.parquet" for number in range(9)]
    for file in files:
        blob.set(file, PARQUET.encode(rows))
    environment = {**os.environ, **connect_environment(connect_server.url)}
    command = [sys.executable, "-c", READER, str(tmp_path), *files]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    first, last = done.stdout.strip().splitlines()
    assert first.startswith("shard things was merged")
    assert f"{files[3]} is gone" in first
    assert last == "9"


def test_a_server_that_is_stopped_has_lost_its_job(connect_server: ConnectServer) -> None:
    """Such a server answers for some seconds more, with errors of its own."""
    command = [sys.executable, "-c", STOPPED]
    environment = {**os.environ, **connect_environment(connect_server.url)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "runs\n"
        timer = threading.Timer(4.0, connect_server.stop)
        timer.start()
        found, _ = client.communicate(timeout=120)
        timer.join()
    assert found == "lost\n"
