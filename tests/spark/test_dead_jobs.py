"""Jobs that die for reasons of their surroundings, with a real Spark: the cause is the first and the last line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from persist_core.config.collection import load_collection
from persist_core.errors import RunFailed
from persist_core.handles.client import PersistClient
from persist_core.location.open import open_location
from persist_core.location.settings import PersistLocation
from persist_core.protocol import stages
from persist_core.protocol.stages import Minted
from persist_core.spark_job.causes import find_cause
from persist_core.spark_job.installation import spark_home
from persist_core.spark_job.launch import write_batch
from persist_core.spark_job.process import SparkProcess
from tests.sampling import is_long

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 2_000  # of random text: their Parquet file is larger than a process under `ulimit` may write
IS_LONG = is_long()


def death(folder: Path, master: str = "local[1]", **conf: str) -> str:
    """The message of a job that fails: the settings are Spark's, with `_` for `.`."""
    (folder / "in").mkdir()
    rows = ({"id": number, "text": os.urandom(60).hex()} for number in range(ROWS))
    (folder / "in" / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    body = {
        "source": {"path": "in/*.jsonl", "format": "json"},
        "key": "id",
        "columns": {"id": "bigint", "text": "string"},
        "delete": "none",
    }
    (folder / "things.yaml").write_text(json.dumps(body))
    config = load_collection(folder / "things.yaml")
    uris = PersistLocation(f"file://{folder}/blobs", f"sqlite:///{folder}/consensus.db")
    with open_location(uris) as location:
        client = PersistClient(location)
        minted = stages.mint(client, config, until=1_000, writer="test")
        assert isinstance(minted, Minted)
        start = SparkProcess(uris, master, {name.replace("_", "."): value for name, value in conf.items()})
        with pytest.raises(RunFailed) as failed:
            write_batch(client, start, config, minted.description)
    return str(failed.value)


def check(message: str, cause: str) -> None:
    """The cause stands first and last, and the text between them is short."""
    lines = message.splitlines()
    assert lines[0].startswith(cause)
    assert lines[-1].startswith(f"The cause: {cause}")
    assert "nothing was committed" in message
    assert len(message) < 12_000


def test_without_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "no" / "java"))
    check(death(tmp_path), "there is no Java")


@pytest.mark.family("sizes")
def test_with_too_little_memory(tmp_path: Path) -> None:
    check(death(tmp_path, spark_driver_memory="20m"), "Spark has too little memory")


@pytest.mark.skipif(not IS_LONG, reason="a Spark of its own (PERSIST_PROFILE=nightly)")
def test_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit on the size of files stands for the disk: it needs no rights, and fails in the same call."""
    home = spark_home(os.environ)
    script = tmp_path / "limited" / "bin" / "spark-submit"
    script.parent.mkdir(parents=True)
    script.write_text(f'#!/bin/bash\nulimit -f 64\nexport SPARK_HOME={home}\nexec {home}/bin/spark-submit "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("SPARK_HOME", str(script.parent.parent))
    check(death(tmp_path), "the disk is full")


def test_without_python_for_the_tasks(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "/no/such/python3")
    with pytest.raises(Exception, match="no/such/python3") as failed:
        spark.sparkContext.parallelize([1], 1).map(lambda number: number + 1).collect()
    found = find_cause(str(failed.value).splitlines())
    assert found is not None
    assert found.what == "Python is missing where Spark runs its tasks"


@pytest.mark.skipif(not IS_LONG, reason="Spark tries for a minute (PERSIST_PROFILE=nightly)")
def test_without_a_master(tmp_path: Path) -> None:
    check(death(tmp_path, master="spark://127.0.0.1:1"), "there is no such Spark master")
