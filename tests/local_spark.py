"""One small Spark session for the tests and their tools. Starting a session takes seconds."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from persist_core.spark_job.installation import spark_home
from persist_core.spark_job.jars import s3a_jars
from persist_core.spark_job.process import SMALL_JVM

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def local_spark(app_name: str, scratch: Path, master: str = "local[2]") -> SparkSession:
    """A local session with the settings of our jobs: two cores, no UI, a JVM tuned for a quick start.

    `scratch` takes what Spark spills. ANSI mode stays at the release's default (on in Spark 4), as for users. The jars
    for S3 are on its class path if `make spark-jars` has fetched them.
    """
    from pyspark.sql import SparkSession

    from persist_spark.session import FASTER, METHOD_LIMIT, REQUIRED, STATIC, method_limit, use

    logging.getLogger("py4j").setLevel(logging.WARNING)  # it logs while it is collected, after the log has closed
    session = (
        SparkSession.builder.master(master)
        .appName(app_name)
        .config(map=dict(STATIC))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", " ".join(SMALL_JVM))
        .config("spark.driver.extraClassPath", ":".join(map(str, s3a_jars(os.environ, spark_home(os.environ)))))
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.local.dir", str(scratch / "local"))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    use(session, {**FASTER, **REQUIRED, METHOD_LIMIT: method_limit(session)})
    return session
