"""A class-data archive for Spark's JVM: loading Spark's classes is a third of a small job's time.

    first job   -XX:ArchiveClassesAtExit=<folder>/<name>.<attempt>  --done--> <folder>/<name>.jsa
    next jobs   -XX:SharedArchiveFile=<folder>/<name>.jsa

About 155 MB, made once for each Spark version. The JVM checks whether an archive fits, and starts without it if not.
Off unless `PERSIST_CLASS_DATA_FOLDER` names a folder: it pays if many small jobs run on one machine. Also off if
Spark's configuration folder holds files: that folder is on the class path, and a JVM that makes an archive then ends
with an error after the job's work is done.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path

FOLDER_ENV = "PERSIST_CLASS_DATA_FOLDER"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"


@contextlib.contextmanager
def class_data(conf: Mapping[str, str], environment: Mapping[str, str], attempt: str) -> Iterator[dict[str, str]]:
    """`conf` with the JVM flags that use the archive, or else make it if the job in the body ends well."""
    folder = environment.get(FOLDER_ENV)
    if not folder or _has_configuration(environment):
        yield dict(conf)
        return
    archive = Path(folder) / f"spark-{importlib.metadata.version('pyspark')}.jsa"
    fresh = archive.with_suffix(f".{attempt}")
    known = archive.exists()
    archive.parent.mkdir(parents=True, exist_ok=True)
    flags = [f"-XX:SharedArchiveFile={archive}"] if known else [f"-XX:ArchiveClassesAtExit={fresh}"]
    flags += ["-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off"]
    try:
        yield {**conf, _JAVA_OPTIONS: " ".join(filter(None, [conf.get(_JAVA_OPTIONS), *flags]))}
        if fresh.exists():
            fresh.replace(archive)
    finally:
        fresh.unlink(missing_ok=True)


def _has_configuration(environment: Mapping[str, str]) -> bool:
    """True if Spark's configuration folder, which is on its class path, is not empty."""
    spark = importlib.util.find_spec("pyspark")
    beside = Path(spark.origin).parent if spark and spark.origin else Path()
    conf = Path(environment.get("SPARK_CONF_DIR") or Path(environment.get("SPARK_HOME") or beside) / "conf")
    return conf.is_dir() and any(conf.iterdir())
