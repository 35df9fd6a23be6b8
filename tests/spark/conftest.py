"""One small Spark session for all Spark tests: starting one costs seconds, so nothing here is per test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session: two cores, no UI, UTC, two shuffle partitions, a JVM tuned for a quick start.

    ANSI mode stays at the release's default (on in Spark 4), as users have it.
    """
    from pyspark.sql import SparkSession

    scratch = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[2]")
        .appName("persist-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.local.dir", str(scratch / "local"))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def samples() -> Path:
    """The folder of real change events; the test is skipped, with a message, where it is absent."""
    beside_repo = Path(__file__).resolve().parents[2].parent / "shared" / "samples"
    folder = Path(os.environ.get("PERSIST_SAMPLES", str(beside_repo))) / "cdc"
    if not folder.is_dir():
        pytest.skip(f"no real samples at {folder}: set PERSIST_SAMPLES to the folder that holds cdc/")
    return folder
