"""The Spark on this machine: how it is found, and that it starts."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from persist_core.errors import InvalidInput
from persist_core.spark_job.installation import find_spark_submit, spark_environment


def test_spark_submit_is_found_or_its_absence_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput, match=r"SPARK_HOME is .*correct SPARK_HOME or unset it"):
        find_spark_submit({"SPARK_HOME": str(tmp_path)})
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    python = {"PYSPARK_DRIVER_PYTHON": str(tmp_path / "python")}
    assert spark_environment({"PYSPARK_PYTHON": "mine"}) == python
    for_shells = {"PYSPARK_PYTHON": "mine", "PYSPARK_DRIVER_PYTHON": "/opt/bin/jupyter"}
    assert spark_environment(for_shells) == python, "a job does not run in jupyter"
    assert spark_environment({**for_shells, "PYSPARK_DRIVER_PYTHON": "/opt/bin/python3.12"}) == {}
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(InvalidInput, match=r"install airflow-persist\[spark\] or set SPARK_HOME"):
        find_spark_submit({"PATH": str(tmp_path)})
    script = tmp_path / "spark-submit"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    assert find_spark_submit({"PATH": str(tmp_path)}) == script


def test_spark_runs_from_a_folder_with_blanks_in_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    packages = tmp_path / "my clones" / "packages"
    packages.mkdir(parents=True)
    (packages / "pyspark").symlink_to(Path(spec.origin).parent)
    monkeypatch.setattr(sys, "path", [str(packages), *sys.path])
    monkeypatch.setattr(sys, "executable", f"{packages}/python")
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)  # else it is found where it was
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    submit = find_spark_submit(environment)
    assert submit == packages / "pyspark" / "bin" / "spark-submit"
    ran = subprocess.run(
        [submit, "--version"], env={**environment, **spark_environment({})}, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, "version" in ran.stderr) == (0, True), ran.stderr
