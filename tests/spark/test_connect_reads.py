"""Reads from a Spark Connect server, which looks for files when a plan runs, and not when it is made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from persist_core.contents.parts import PARQUET, part_schema
from persist_core.errors import ReadTooSlow
from persist_core.location.file.blob import FileBlob
from persist_spark.frame import part_type
from persist_spark.read.damage import named_damage
from persist_spark.read.parts import scan
from tests.servers.spark_connect import ConnectServer
from tests.spark.upsert_cases import ONE_KEY


@pytest.fixture
def remote(connect_server: ConnectServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkSession]:
    """A session of the server, in a process that may have a session of its own."""
    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", None)
    monkeypatch.setattr("pyspark.sql.SparkSession._instantiatedSession", None)
    session = SparkSession.builder.remote(connect_server.url).create()
    yield session
    session.stop()


def test_files_that_went_before_a_plan_ran_are_missed(remote: SparkSession, tmp_path: Path) -> None:
    """Also of a folder with so many that elsewhere the folder is one path."""
    blob = FileBlob(tmp_path)
    rows = pa.Table.from_pylist([{"id": 1, "name": "a"}], schema=part_schema(ONE_KEY))
    files = [f"things/batches/a/_persist_part=insertions/part-{number}.parquet" for number in range(9)]
    for file in files:
        blob.set(file, PARQUET.encode(rows))
    found = scan(remote, blob, [(file, ONE_KEY) for file in files], part_type(ONE_KEY))
    blob.delete(files[3])
    with pytest.raises(ReadTooSlow, match=rf"shard things was merged.*{files[3]} is gone"), named_damage(blob):
        found.count()
    blob.set(files[3], PARQUET.encode(rows))
    assert found.count() == 9
