"""A job that takes long says what it does: its stage, its input, and Spark's tasks."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from persist_core.config.collection import CollectionConfig
from persist_core.handles.client import PersistClient
from persist_core.location.open import open_location
from persist_core.location.settings import PersistLocation
from persist_core.protocol import stages
from persist_core.protocol.stages import Minted
from persist_core.spark_job.launch import write_batch
from persist_core.spark_job.process import SparkProcess
from persist_core.spark_job.spec import JobSpec
from persist_spark import progress
from persist_spark.decode.formats import decode
from persist_spark.upsert import job
from persist_spark.upsert.job import run_write_job
from tests.sampling import is_long

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DAY_MS = 86_400_000
LINES = 600_000  # in each file of the long job


class Job:
    """The first batch of a collection of two files, each of so many records."""

    def __init__(self, folder: Path, records: int) -> None:
        uris = PersistLocation(f"file://{folder}/blobs", f"sqlite:///{folder}/consensus.db")
        self.uris, self.location = uris, open_location(uris)
        self.client = PersistClient(self.location)
        (folder / "in").mkdir()
        for file in range(2):
            lines = (f'{{"id": {2 * record + file}, "name": "{record:0100}"}}\n' for record in range(records))
            (folder / "in" / f"{file}.jsonl").write_text("".join(lines))
        self.config = CollectionConfig.model_validate(
            {
                "name": "slow",
                "source": {"path": "in/*.jsonl", "format": "json"},
                "key": "id",
                "columns": {"id": "bigint", "name": "string"},
                "time": "description",
                "delete": "none",
                "base_dir": str(folder),
            }
        )
        minted = stages.mint(self.client, self.config, until=DAY_MS, writer="test")
        assert isinstance(minted, Minted)
        self.description = minted.description
        self.of_job = re.escape(f"slow {self.description.interval}")

    def run(self, spark: SparkSession) -> None:
        spec = JobSpec(self.description, self.config, self.client.ids.uuid7())
        run_write_job(spark, spec, self.location)


def slowly(*arguments: Any, **named: Any) -> DataFrame:
    """Decode, and make the tasks wait for 0.3 s at each record: the method's result is 'null'."""
    wait = "reflect('java.lang.Thread', 'sleep', 300L)"
    return decode(*arguments, **named).where(f"{wait} != ''")


def test_a_long_job_reports_stage_input_and_tasks(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(progress, "INTERVAL_S", 0.1)
    monkeypatch.setattr(job, "decode", slowly)
    long = Job(tmp_path, records=2)
    with caplog.at_level(logging.INFO, "persist_spark"):
        long.run(spark)
    said = caplog.messages
    write = rf"{long.of_job}: \d+ s, write; 2 files, 488 B; 0 updates before; \d of \d tasks"
    assert [line for line in said if re.fullmatch(write, line)], said
    assert {line.split("; ")[0].split(", ")[-1] for line in said} <= {"decode", "plan", "write", "check"}


def test_a_job_that_is_shorter_than_the_interval_says_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(progress, "INTERVAL_S", 600.0)
    with caplog.at_level(logging.INFO, "persist_spark"):
        Job(tmp_path, records=2).run(spark)
    assert caplog.messages == []


def test_what_a_job_has_written_is_told_while_it_is_checked(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A store that takes long to make the files durable."""
    monkeypatch.setattr(progress, "INTERVAL_S", 0.1)
    long = Job(tmp_path, records=3)
    blob = type(long.location.blob)
    make_durable = blob.make_durable

    def slow(*arguments: Any) -> None:
        long.client.clock.sleep_ms(1_000)
        make_durable(*arguments)

    monkeypatch.setattr(blob, "make_durable", slow)
    with caplog.at_level(logging.INFO, "persist_spark"):
        long.run(spark)
    last = caplog.messages[-1]
    assert re.search(r" s, check; 2 files, \d+ B; 0 updates before; 6 updates in \d files written$", last), last


def test_persist_run_repeats_what_its_job_says(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A Spark of its own, and a write that takes long because of its data."""
    if not is_long():
        pytest.skip("takes half a minute: at night")
    long = Job(tmp_path, LINES)
    with caplog.at_level(logging.INFO, "persist_core.spark_job"):
        write_batch(long.client, SparkProcess(long.uris, "local[1]"), long.config, long.description)
    write = rf"{long.of_job}: \d0 s, write; 2 files, 1\d\d\.\d MiB; 0 updates before; \d of \d tasks"
    assert [line for line in caplog.messages if re.fullmatch(write, line)], caplog.messages
