"""Airflow inside the test process: its own home, made before Airflow is first imported, and a location per test.

Tests marked `airflow_2_11` hold on both lines; `make test-airflow-2.11` runs them in the second environment.
"""

from __future__ import annotations

import atexit
import importlib
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from persist_core.handles.client import PersistClient
from persist_core.location.open import open_location
from persist_core.location.settings import ENV_BLOB_URI, ENV_CONSENSUS_URI, PersistLocation
from tests.servers.backends import blob_uri_beside
from tests.spark.s3_store import s3_server

_HOME = Path(tempfile.mkdtemp(prefix="persist-airflow-home-"))
atexit.register(shutil.rmtree, _HOME, ignore_errors=True)
os.environ.update(
    {
        "AIRFLOW_HOME": str(_HOME),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__LOAD_DEFAULT_CONNECTIONS": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{_HOME}/airflow.db",
    }
)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Airflow's own, at its import
    importlib.import_module("persist_airflow.factory")

from persist_airflow.spark import WriteBatchesOperator  # noqa: E402 - it goes with the others
from tests.airflow.airflow_process import migrate  # noqa: E402 - it goes with the others
from tests.airflow.amazon import install  # noqa: E402 - it goes with the others
from tests.airflow.fruit import NAME, Fruit  # noqa: E402 - it imports Airflow
from tests.airflow.view_files import Views  # noqa: E402 - the same


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """We cannot correct the warnings that Airflow gives about itself."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning:airflow"))


@pytest.fixture
def location(
    request: pytest.FixtureRequest, tmp_path: Path, consensus_uri: str, monkeypatch: pytest.MonkeyPatch
) -> PersistLocation:
    """A fresh location, also in the environment, where hooks without a connection find it. On S3 it is there whole."""
    location = PersistLocation(blob_uri_beside(consensus_uri, tmp_path / "blob"), consensus_uri)
    if location.blob_uri.startswith("s3:"):
        s3_server(request)  # skips if Spark lacks the jars
    monkeypatch.setenv(ENV_BLOB_URI, location.blob_uri)
    monkeypatch.setenv(ENV_CONSENSUS_URI, location.consensus_uri)
    return location


@pytest.fixture
def client(location: PersistLocation) -> Iterator[PersistClient]:
    """A client on `location`."""
    with open_location(location) as opened:
        yield PersistClient(opened)


@pytest.fixture
def amazon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the Amazon provider: see `tests.airflow.amazon`."""
    install(monkeypatch)


@pytest.fixture
def without_spark(client: PersistClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs stage an empty batch, and no Spark starts."""

    def submit(_self: Any, _context: Any, items: Any, _arguments: Any) -> int:
        (spec,) = items
        client.open_writer(NAME).stage(spec.description, spec.collection.collection_schema(), spec.attempt)
        return 0

    monkeypatch.setattr(WriteBatchesOperator, "_submit", submit)


@pytest.fixture
def fruit(tmp_path: Path) -> Fruit:
    """A DAG folder with one collection, `fruit`, and an empty feed for it."""
    return Fruit.create(tmp_path)


@pytest.fixture
def views(fruit: Fruit) -> Views:
    """A folder for view files beside the collection, and a DAG file that reads it."""
    return Views(fruit)


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home whose database is migrated; copied for each test."""
    home = tmp_path_factory.mktemp("migrated")
    migrate(home)
    return home


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Reports of the DAGs that are started. Airflow has each DAG, and none is paused."""
    reports: list[Any] = []
    start = "persist_airflow.actions.ShardActionOperator.start"
    monkeypatch.setattr(start, lambda _self, _context, report: reports.append(report))
    monkeypatch.setattr("persist_airflow.shard_actions.is_dag_paused", lambda *_: False)
    return reports
