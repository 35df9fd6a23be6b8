"""The Spark on this machine, and the Python that its jobs run with."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from persist_core.errors import InvalidInput


def find_spark_submit(environment: Mapping[str, str]) -> Path:
    """`$SPARK_HOME/bin/spark-submit`, else the one beside this Python, else the one on PATH. Raises `InvalidInput`."""
    home = environment.get("SPARK_HOME")
    if home:
        found = Path(home) / "bin" / "spark-submit"
        if not found.is_file():
            raise InvalidInput(f"SPARK_HOME is {home!r}, and there is no {found}; correct SPARK_HOME or unset it")
        return found
    beside = Path(sys.executable).with_name("spark-submit")
    if beside.is_file():
        return beside
    on_path = shutil.which("spark-submit", path=environment.get("PATH"))
    if on_path is None:
        raise InvalidInput(
            "no spark-submit: SPARK_HOME is not set, and neither the folder of this Python nor PATH has one; install"
            " airflow-persist[spark] or set SPARK_HOME"
        )
    return Path(on_path)


def spark_home(environment: Mapping[str, str]) -> Path | None:
    """The folder of the Spark that `find_spark_submit` finds; `None` if that script stands alone."""
    script = find_spark_submit(environment)
    packaged = importlib.util.find_spec("pyspark")
    if script.parent == Path(sys.executable).parent and packaged is not None and packaged.origin is not None:
        return Path(packaged.origin).parent
    home = script.resolve().parent.parent
    return home if (home / "jars").is_dir() else None


def job_path() -> Path:
    """The job's entry point, found without importing it (that would import Spark). Raises `InvalidInput`."""
    spec = importlib.util.find_spec("persist_spark")
    if spec is None or not spec.submodule_search_locations:
        raise InvalidInput("package persist_spark is not installed; it comes with airflow-persist")
    return Path(next(iter(spec.submodule_search_locations))) / "__main__.py"


def spark_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment in which Spark runs the job with this same Python, unless the user chose another."""
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    return {name: value for name, value in python.items() if name not in environment}


def local_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """For Spark on this machine: this same Python, and the `spark-submit` that belongs to it first on PATH."""
    folder = str(find_spark_submit(environment).parent)
    path = os.pathsep.join([folder, environment.get("PATH", os.defpath)])
    return {**spark_environment(environment), "PATH": path}
