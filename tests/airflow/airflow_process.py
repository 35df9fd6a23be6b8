"""Python processes in an Airflow home of their own: `dag.test()` and Airflow's commands, without a scheduler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from persist_core.location.settings import PersistLocation


def migrate(home: Path) -> None:
    """Make a home with a database; it is copied for each test."""
    subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "airflow", "db", "migrate"],
        env=environment(home, home / "dags"),
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=900,
    )


def environment(home: Path, dags: Path, location: PersistLocation | None = None) -> dict[str, str]:
    """For an Airflow process in that home."""
    return {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),  # 2.11 starts `airflow`
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        **(location.to_env() if location else {}),
    }


def run(dags: Path, migrated: Path, location: PersistLocation, *arguments: str) -> str:
    """A Python process in a copy of the home beside `dags`, the same one for each call; its output."""
    home = dags.parent / "home"
    if not home.exists():
        shutil.copytree(migrated, home)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *arguments],
        env=environment(home, dags, location),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    return done.stdout
