"""The Spark on this machine, the Python that its jobs run with, and an archive of the classes that Spark loads.

    persist warm-up ─> a job, at whose end its JVM writes <cache>/airflow-persist/<Java and Spark>.jsa
    tuned_conf      ─> later jobs map it, if it is there: they start in half the processor time

Java compares the archive with its own release and with all jars, and loads classes as usual if one of them differs.
"""

from __future__ import annotations

import hashlib
import importlib.util
import locale
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from persist_core.errors import InvalidInput

# Settings of a Spark that does many jobs. The first five are for its pages, which keep 1,000 of each by default, even
# without pages, with the text of the plans: some 100 KB for each of our jobs. The last one: Spark keeps 100 of the
# classes that it generates: with a few collections of different columns, each commit would compile its own again.
OF_MANY_JOBS = {
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.sql.ui.retainedExecutions": "50",
    "spark.sql.connect.ui.retainedSessions": "50",
    "spark.sql.connect.ui.retainedStatements": "50",
    "spark.sql.codegen.cache.maxEntries": "2000",
}
# A JVM compiles methods of more than 8,000 bytes too. Spark writes such methods for the steps of a stage.
HUGE_METHODS = "-XX:-DontCompileHugeMethods"


def find_spark_submit(environment: Mapping[str, str]) -> Path:
    """`$SPARK_HOME/bin/spark-submit`, else the one of this Python's Spark, else the one on PATH.

    Not the one beside this Python: it finds its Spark only in a folder without blanks in its name. Raises
    `InvalidInput`.
    """
    home = environment.get("SPARK_HOME")
    if home:
        found = Path(home) / "bin" / "spark-submit"
        if not found.is_file():
            raise InvalidInput(f"SPARK_HOME is {home!r}, and there is no {found}; correct SPARK_HOME or unset it")
        return found
    packaged = importlib.util.find_spec("pyspark")
    if packaged is not None and packaged.origin is not None:
        found = Path(packaged.origin).with_name("bin") / "spark-submit"
        if found.is_file():
            return found
    on_path = shutil.which("spark-submit", path=environment.get("PATH"))
    if on_path is None:
        raise InvalidInput(
            "no spark-submit: SPARK_HOME is not set, this Python has no Spark, and PATH has no spark-submit; install"
            " airflow-persist[spark] or set SPARK_HOME"
        )
    return Path(on_path)


def spark_home(environment: Mapping[str, str]) -> Path | None:
    """The folder of the Spark that `find_spark_submit` finds; `None` if that script stands alone."""
    home = find_spark_submit(environment).resolve().parent.parent
    return home if (home / "jars").is_dir() else None


def job_path() -> Path:
    """The job's entry point, found without importing it (that would import Spark). Raises `InvalidInput`."""
    spec = importlib.util.find_spec("persist_spark")
    if spec is None or not spec.submodule_search_locations:
        raise InvalidInput("package persist_spark is not installed; it comes with airflow-persist")
    return Path(next(iter(spec.submodule_search_locations))) / "__main__.py"


def spark_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment in which Spark runs the job with this same Python, unless the user chose another one. For its
    shell a user may have chosen another program, such as jupyter."""
    python = {} if "PYSPARK_PYTHON" in environment else {"PYSPARK_PYTHON": sys.executable}
    if not Path(environment.get("PYSPARK_DRIVER_PYTHON", "")).name.startswith(("python", "pypy")):
        python["PYSPARK_DRIVER_PYTHON"] = sys.executable
    return {**python, **locale_of_java()}


def locale_of_java() -> dict[str, str]:
    """The locale of a Java that starts here, if it needs another one.

    With `LC_ALL=C`, or a locale that is not installed, it finds no file whose name is not ASCII.
    """
    return {} if locale.getencoding().upper() == "UTF-8" else {"LC_ALL": "C.UTF-8"}


def local_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """For Spark on this machine: this same Python, and the `spark-submit` that belongs to it first on PATH."""
    folder = str(find_spark_submit(environment).parent)
    path = os.pathsep.join([folder, environment.get("PATH", os.defpath)])
    return {**spark_environment(environment), "PATH": path}


def archive_of(environment: Mapping[str, str]) -> Path | None:
    """The place of the archive for this user's Java and Spark; `None` if it has no place."""
    home = environment.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java", path=environment.get("PATH"))
    cache = environment.get("XDG_CACHE_HOME") or (environment.get("HOME") and f"{environment['HOME']}/.cache")
    if not java or not cache or len(cache.split()) > 1:  # Spark splits options at blanks
        return None
    spark = spark_home(environment) or find_spark_submit(environment)
    digest = hashlib.sha256(f"{os.path.realpath(java)}\n{spark}".encode()).hexdigest()[:16]
    return Path(cache, "airflow-persist", f"{digest}.jsa")


def archive_flags(environment: Mapping[str, str]) -> list[str]:
    """The JVM's flags to use the archive; none unless it is there, and this user has made it."""
    path = archive_of(environment)
    try:
        is_ours = path is not None and path.stat().st_uid == os.getuid()
    except OSError:
        is_ours = False
    return [f"-XX:SharedArchiveFile={path}"] if is_ours else []


@contextmanager
def archive_made(environment: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    """The place of the archive, and the flag with which one JVM must run meanwhile. Raises `InvalidInput`."""
    path = archive_of(environment)
    if path is None:
        raise InvalidInput("found no java, or no HOME without blanks in its name; expected both. Set JAVA_HOME or HOME")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    made = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        yield path, f"-XX:ArchiveClassesAtExit={made}"
        if not made.exists():
            raise InvalidInput("Java has written no archive of its classes; expected Java 13 or newer. Set JAVA_HOME")
        made.replace(path)
    finally:
        made.unlink(missing_ok=True)
