"""The shared parts of the benchmarks: a local Spark session, a stopwatch, a sink for rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from pyspark.sql import DataFrame, SparkSession

from persist_core.spark_job.installation import HUGE_METHODS
from persist_spark.messages import send_fewer
from persist_spark.session import FASTER, METHOD_LIMIT, OUR_PLANS, REQUIRED, STATIC, method_limit, use

_Result = TypeVar("_Result")


def plain_session(cores: int, memory: str = "6g", conf: Mapping[str, str] | None = None) -> SparkSession:
    """A local session as a user of Spark has it, without what takes time and does no work. `memory`: the JVM's heap."""
    builder = SparkSession.builder.master(f"local[{cores}]").appName("benchmark")
    given = {
        **STATIC,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": HUGE_METHODS,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        **(conf or {}),
    }
    for name, value in given.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def as_of_jobs(spark: SparkSession) -> SparkSession:
    """This session with the settings of our jobs (`persist_spark.session.own_session`)."""
    send_fewer(spark)
    use(spark, {**FASTER, **REQUIRED, METHOD_LIMIT: method_limit(spark), **OUR_PLANS})
    return spark


def session(cores: int, memory: str = "6g", conf: Mapping[str, str] | None = None) -> SparkSession:
    """A local session with the settings of our jobs. `memory` is the JVM's heap."""
    return as_of_jobs(plain_session(cores, memory, conf))


def timed(work: Callable[[], _Result]) -> tuple[float, _Result]:
    """Seconds, and what `work` returned."""
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def consume(rows: DataFrame) -> None:
    """Decode and drop every row."""
    rows.write.format("noop").mode("overwrite").save()
