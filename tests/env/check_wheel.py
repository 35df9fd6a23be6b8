"""The wheel, installed by plain pip into new environments. `make test-package` runs this; `make test` does not.

    dist/*.whl --pip install "...[airflow,spark,embedded]"-->  pyspark alone: `persist init`, `run`, `demo`
               --pip install "...[airflow-connect]"-->  pyspark-client alone: the bundled DAGs parse

It takes several minutes: pip resolves and downloads all of Airflow and Spark, without the locked files.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Sequence
from email import message_from_bytes
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
CLEAN = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("PERSIST_", "AIRFLOW", "PYTHON", "SPARK_", "VIRTUAL_ENV"))
}


def run(command: Sequence[str | Path], folder: Path, timeout_s: float = 600) -> str:
    """Run to success and return stdout."""
    path = f"{Path(command[0]).parent}:{CLEAN['PATH']}"
    done = subprocess.run(
        list(map(str, command)), cwd=folder, env={**CLEAN, "PATH": path}, capture_output=True, text=True,
        timeout=timeout_s, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    bare = bare_environment(tmp_path_factory.mktemp("builder"))
    run([bare / "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT], folder)
    (built,) = folder.glob("*.whl")
    return built


def bare_environment(folder: Path) -> Path:
    """The `bin` of a virtual environment that has only pip."""
    run([sys.executable, "-m", "venv", folder / "venv"], folder)
    return folder / "venv" / "bin"


def installed(wheel: Path, extras: str, folder: Path) -> Path:
    """The `bin` of an environment into which pip alone has installed the wheel with these extras."""
    environment = bare_environment(folder)
    run([environment / "pip", "install", "--quiet", f"{wheel}[{extras}]"], folder, timeout_s=1800)
    run([environment / "pip", "check"], folder)
    return environment


def versions(environment: Path) -> dict[str, str]:
    lines = run([environment / "pip", "list", "--format=freeze"], environment).splitlines()
    return {name: version for name, _, version in (line.partition("==") for line in lines)}


def test_the_wheel_has_what_it_needs(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        described = message_from_bytes(archive.read(metadata))
    assert set(described.get_all("Provides-Extra", [])) == EXTRAS
    assert "Typing :: Typed" in described.get_all("Classifier", [])
    assert {f"{package}/py.typed" for package in ("persist_core", "persist_spark", "persist_airflow")} <= names
    for folder, packed in (("dags", "example_dags"), ("docker/metrics", "example_metrics")):
        listed = subprocess.run(["git", "ls-files", folder], cwd=ROOT, capture_output=True, text=True, check=True)
        bundled = {f"persist_airflow/{packed}{name.removeprefix(folder)}" for name in listed.stdout.splitlines()}
        assert bundled
        assert bundled == {name for name in names if name.startswith(f"persist_airflow/{packed}/")}


def test_airflow_and_spark_run_a_project_and_the_demo(wheel: Path, tmp_path: Path) -> None:
    environment = installed(wheel, "airflow,spark,embedded", tmp_path)
    found = versions(environment)
    assert "pyspark" in found
    assert "pyspark-client" not in found
    persist = environment / "persist"
    run([persist, "init", "shop"], tmp_path)
    shop = tmp_path / "shop"
    run([persist, "run", "orders", "--until", "2026-01-03"], shop)
    run([persist, "run", "orders_by_status"], shop)
    rows = run([persist, "snapshot", "orders", "--json"], shop).splitlines()
    assert len(rows) == 2
    results = run([persist, "demo", "demo"], tmp_path, timeout_s=1500)
    assert "$ persist snapshot customers --as-of 2026-01-03" in results
    assert "python -m persist_airflow.embedded.run up" in results


def test_airflow_connect_has_no_jvm(wheel: Path, tmp_path: Path) -> None:
    environment = installed(wheel, "airflow-connect", tmp_path)
    found = versions(environment)
    assert "pyspark-client" in found
    assert "pyspark" not in found
    parse = (
        "import pathlib, persist_airflow as package; from pyspark.sql import SparkSession;"
        "from persist_airflow.factory import build_dags, build_view_dags;"
        "dags = pathlib.Path(package.__file__).parent / 'example_dags';"
        "print(*sorted([*build_dags(dags / 'collections'), *build_view_dags(dags / 'views')]))"
    )
    built = run([environment / "python", "-c", parse], tmp_path).split()
    assert [name for name in built if name.startswith("persist_")] == [
        "persist_upsert__cities", "persist_upsert__customers", "persist_view__regions",
    ]  # fmt: skip


def test_the_two_extras_of_airflow_exclude_each_other(wheel: Path, tmp_path: Path) -> None:
    """pip refuses them together, instead of mixing the files of pyspark and pyspark-client."""
    environment = bare_environment(tmp_path)
    command = [str(environment / "pip"), "install", "--dry-run", f"{wheel}[airflow,airflow-connect]"]
    done = subprocess.run(command, env=CLEAN, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode != 0
    assert "apache-airflow-providers-apache-spark" in done.stdout + done.stderr
