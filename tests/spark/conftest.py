"""The shared fixtures of the Spark tests; their session is the fixture `spark` of tests/conftest.py."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from persist_core.cli import reprocess as cli_reprocess
from persist_core.cli import run as cli_run
from persist_core.config.shard import ShardConfig
from persist_core.contents.batch import BatchDescription
from persist_core.handles.client import PersistClient
from persist_core.location.settings import PersistLocation
from persist_core.spark_job.spec import JobSpec
from persist_spark.__main__ import run_item
from tests.spark.decode_feed import Feed


@pytest.fixture
def feed(spark: SparkSession, tmp_path: Path) -> Feed:
    """An empty folder of input files, and what is decoded from it."""
    (tmp_path / "in").mkdir()
    return Feed(spark, tmp_path / "in")


@pytest.fixture(scope="session")
def samples() -> Path:
    """The folder of real change events; the test is skipped, with a message, if it is absent."""
    beside_repo = Path(__file__).resolve().parents[2].parent / "shared" / "samples"
    folder = Path(os.environ.get("PERSIST_SAMPLES", str(beside_repo))) / "cdc"
    if not folder.is_dir():
        pytest.skip(f"no real samples at {folder}: set PERSIST_SAMPLES to the folder that holds cdc/")
    return folder


@pytest.fixture
def there(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The options of the location. The write stage runs in the session of the tests."""
    where = PersistLocation(f"file://{tmp_path}/blobs", f"sqlite:///{tmp_path}/consensus.db")

    def write(client: PersistClient, _start: object, config: ShardConfig, description: BatchDescription) -> str:
        item = JobSpec(description, config, client.ids.uuid7())
        assert run_item(spark, item, client.location) == 0
        return item.answer_key

    def write_all(client: PersistClient, start: object, asked: list[tuple[ShardConfig, BatchDescription]]) -> Any:
        return [write(client, start, *each) for each in asked]

    monkeypatch.setattr(cli_run, "write_batches", write_all)
    monkeypatch.setattr(cli_reprocess, "write_batch", write)
    return ["--blob-uri", where.blob_uri, "--consensus-uri", where.consensus_uri]
