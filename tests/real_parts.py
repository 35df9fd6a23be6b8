"""The real parts that a test session used or missed. They are printed when the session ends.

A fixture that starts a server, or cannot start it, reports it here: `used("Airflow scheduler", "3.3.2, SQLite")` or
`missing("real samples", "no folder ...")`. So the output of a passing run shows what was skipped. Spark, Java,
Airflow and SQLite are found without a report.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

_USED: dict[str, str] = {}
_MISSING: dict[str, str] = {}


def used(part: str, detail: str) -> None:
    """Note a real part (server, runtime, backend) that this session's tests ran against."""
    _USED[part] = detail


def missing(part: str, why: str) -> None:
    """Note a part that tests need and that is missing; these tests are skipped."""
    _MISSING[part] = why


def facts() -> dict[str, dict[str, str]]:
    """The parts that this process used and missed, for `take` in another process."""
    return {"used": _found() | _USED, "missing": dict(_MISSING)}


def take(facts: Mapping[str, Mapping[str, str]]) -> None:
    """Add what another process used and missed."""
    _USED.update(facts["used"])
    _MISSING.update(facts["missing"])


def lines() -> Iterator[str]:
    """The closing lines: parts used, then parts missed."""
    for part, detail in facts()["used"].items():
        yield f"used     {part}: {detail}"
    for part, why in _MISSING.items():
        yield f"missing  {part}: {why}"


def _found() -> dict[str, str]:
    """The parts that need no report."""
    found = {"Python": f"{sys.version.split()[0]}, SQLite {sqlite3.sqlite_version}"}
    for module, distribution, part in (("pyspark", "pyspark", "Spark"), ("airflow", "apache-airflow", "Airflow")):
        if module in sys.modules:
            found[part] = importlib.metadata.version(distribution)
    if "pyspark" in sys.modules:
        found["Java"] = java() or "none"
    return found


def java() -> str | None:
    """The Java that Spark starts: as `make install` wrote it beside Spark, else `JAVA_HOME`, else the one on PATH."""
    home = _java_home_beside_spark() or os.environ.get("JAVA_HOME")
    command = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if not command:
        return None
    try:
        done = subprocess.run([command, "-version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = re.search(r'version "([^"]+)"', done.stderr + done.stdout)
    return f"{version[1]} at {command}" if version else None


def _java_home_beside_spark() -> str | None:
    spark = sys.modules.get("pyspark")
    settings = Path(str(spark.__file__)).parent / "conf" / "spark-env.sh" if spark else None
    if settings is None or not settings.is_file():
        return None
    found = re.search(r"^export JAVA_HOME=(.+)$", settings.read_text(), re.MULTILINE)
    return found[1] if found else None
