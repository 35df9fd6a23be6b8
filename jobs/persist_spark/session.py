"""The Spark session of a job, and the settings that a stage needs in any session.

Settings that correct results depend on are set around each stage and restored (`settings`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from pyspark.sql import SparkSession

from persist_spark import s3a
from persist_spark.connect import apply_conf, connect_timeout_s, limit_retries, wait_for_server

# For correct results: canonical text is in UTC, Parquet holds microseconds in UTC, old dates are kept as they are.
REQUIRED = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.caseSensitive": "false",
    # A user's SQL names no files, and no variables of the process.
    "spark.sql.runSQLOnFiles": "false",
    "spark.sql.variable.substitute": "false",
}
LISTED_BY_A_JOB = "spark.sql.sources.parallelPartitionDiscovery.threshold"  # from so many paths on
# For lower fixed costs: a shard may have hundreds of small parts, and a job to list them costs more than listing them.
FASTER = {
    LISTED_BY_A_JOB: "10000",
    "spark.sql.maxConcurrentOutputFileWriters": "8",  # four kinds of parts: without it each task sorts by kind
    "spark.sql.autoBroadcastJoinThreshold": "-1",  # we decide what to broadcast, from the description
}
# For plans that are ours alone, in which inferred filters skip nothing. To search for them took a tenth of the time of
# all rules of the analyzer and the optimizer. Queries of users keep the default.
OUR_PLANS = {"spark.sql.constraintPropagation.enabled": "false"}
# Adaptive execution plans again after each exchange. Below this size that costs more than it can gain.
_ADAPTIVE_BYTES = 64 << 20
_BYTES_PER_PARTITION = 8 << 20  # of input, which is mostly compressed
# Up to here one task does the work in less time than it takes to share it out.
ONE_TASK_BYTES = 2 << 20
_MAX_PARTITIONS = 8192


# Settings that are fixed once Spark runs; a Spark Connect server has its own.
STATIC = {
    # The line of our code that made an expression rarely helps with an error, and costs five more messages to the JVM
    # for each expression: more than half of the time to plan a small batch.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    **s3a.SESSION,
}


def build_session(app_name: str, conf: Mapping[str, str] | None = None) -> SparkSession:
    """The session of a job. Master and resources come from `spark-submit`, or the server that SPARK_REMOTE names.

    `conf` is the file's `spark_conf`. `spark-submit` has it on its command line; a server's session gets it here.
    """
    builder = SparkSession.builder.appName(app_name)
    remote = os.environ.get("SPARK_REMOTE")
    if remote is not None:
        timeout_s = connect_timeout_s(os.environ)
        wait_for_server(remote, timeout_s)
        session = builder.getOrCreate()
        limit_retries(session, timeout_s)
        apply_conf(session, conf or {})
        return session
    for name, value in STATIC.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


# The session, and what the blocks of `settings` around us have set in it.
_known: ContextVar[tuple[SparkSession | None, Mapping[str, str]]] = ContextVar("known settings", default=(None, {}))


@contextmanager
def settings(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Set these runtime settings, and restore what was there before.

    Each question and each change is a call of the server in a Spark Connect session. So a block within another one of
    the same session asks only for what that one did not set, and a setting that needs no change costs no call.
    """
    session, outer = _known.get()
    known = outer if session is spark else {}
    before = {name: known[name] if name in known else spark.conf.get(name, None) for name in wanted}
    changed = {name: value for name, value in wanted.items() if before[name] != value}
    for name, value in changed.items():
        spark.conf.set(name, value)
    token = _known.set((spark, {**known, **wanted}))
    try:
        yield
    finally:
        _known.reset(token)
        for name in changed:
            old = before[name]
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


def stage_settings(exchanged_bytes: int) -> dict[str, str]:
    """The settings of a write stage that moves about this many bytes through its exchange."""
    several = min(max(2, exchanged_bytes // _BYTES_PER_PARTITION), _MAX_PARTITIONS)
    sized = {
        "spark.sql.shuffle.partitions": str(several if exchanged_bytes > ONE_TASK_BYTES else 1),
        "spark.sql.adaptive.enabled": str(exchanged_bytes > _ADAPTIVE_BYTES).lower(),
    }
    return {**FASTER, **REQUIRED, **sized}
