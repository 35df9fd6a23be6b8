"""An archive of the classes that Spark loads: with it, a job on this machine starts in half the processor time.

    persist warm-up ─> a job, at whose end its JVM writes <cache>/airflow-persist/<Java and Spark>.jsa
    tuned_conf      ─> later jobs map it, if it is there

Java compares it with its own release and with all jars, and loads classes as usual if one of them differs.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from persist_core.errors import InvalidInput
from persist_core.spark_job.installation import find_spark_submit, spark_home


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
