"""The shared start of all tests with a real scheduler."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from persist_airflow.embedded.home import LocalAirflow
from persist_core.location.settings import PersistLocation

_OF_THE_DATABASE = ("postgres", "postgres-password")


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An Airflow home whose database is migrated, which takes seconds."""
    folder = tmp_path_factory.mktemp("migrated")
    LocalAirflow(folder, folder / "dags", PersistLocation("mem://", "mem://")).migrate()
    return folder


@pytest.fixture
def home(migrated: Path, tmp_path: Path) -> Path:
    """A new Airflow home with a copy of that database."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    for name in _OF_THE_DATABASE:
        subprocess.run(["cp", "-a", str(migrated / name), str(home)], check=True)  # owners too
    return home
