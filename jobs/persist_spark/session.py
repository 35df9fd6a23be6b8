"""The Spark session of a job's own, and its settings.

    build_session ─> the session of a process that runs one job
    own_session   ─> beside any session: one for a job alone, with every setting that its results depend on
    stage_settings ─> what depends on a batch; `use` sets it there before the plan runs

Nothing is restored: the session ends with its job.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from pyspark.sql import SparkSession

from persist_core.location.blob import Blob
from persist_core.spark_job.installation import HUGE_METHODS, OF_MANY_JOBS
from persist_core.spark_job.spec import JobSpec
from persist_spark import progress, s3a
from persist_spark.compat import ANSI, HAS_TRY_CAST, SPARK_VERSION, is_connect, java_sessions
from persist_spark.connect import (
    apply_conf,
    connect_timeout_s,
    limit_retries,
    new_session,
    quiet_client,
    release,
    wait_for_server,
)
from persist_spark.messages import names_set, send_fewer

# What a platform or a file may set for a job: no result depends on it. Every other setting of Spark SQL is as the
# release has it, or as we say below, so that results do not depend on who set Spark up.
KEPT = (
    "spark.sql.adaptive.",
    "spark.sql.artifact.",
    "spark.sql.broadcastTimeout",
    "spark.sql.catalog.",
    "spark.sql.defaultCatalog",
    "spark.sql.files.maxPartitionBytes",
    "spark.sql.files.maxRecordsPerFile",
    "spark.sql.files.openCostInBytes",
    "spark.sql.hive.",
    "spark.sql.maxBroadcastTableSize",
    "spark.sql.parquet.output.committer.class",
    "spark.sql.redaction.",
    "spark.sql.shuffle.partitions",
    "spark.sql.sources.commitProtocolClass",
    "spark.sql.ui.",
)
# For correct results: canonical text is in UTC, Parquet holds microseconds in UTC, old dates are kept as they are.
REQUIRED = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.caseSensitive": "false",
    ANSI: str(HAS_TRY_CAST).lower(),  # its default is what SPARK_ANSI_SQL_MODE says
    "spark.sql.parquet.fieldId.write.enabled": "true",  # a file without ids is never staged
    # A user's SQL names no files, and no variables of the process.
    "spark.sql.runSQLOnFiles": "false",
    "spark.sql.variable.substitute": "false",
}
_LISTED_BY_A_JOB = "spark.sql.sources.parallelPartitionDiscovery.threshold"  # from so many paths on
# For lower fixed costs: a shard may have hundreds of small parts, and a job to list them costs more than listing them.
FASTER = {
    _LISTED_BY_A_JOB: "10000",
    # Tasks of that job. With as many as files, the default up to 10,000, it takes ten times the processor time.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "256",
    "spark.sql.maxConcurrentOutputFileWriters": "8",  # four kinds of parts: without it each task sorts by kind
    # No file is listed twice by one plan, and the cache belongs to all sessions: a server would keep every listing.
    "spark.sql.hive.filesourcePartitionFileCacheSize": "0",
    "spark.sql.autoBroadcastJoinThreshold": "-1",  # we decide what to broadcast, from the description
}
METHOD_LIMIT = "spark.sql.codegen.hugeMethodLimit"
# For a sample of a few records: to compile code for them takes as long as to plan them.
_INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
# For plans that are ours alone. Inferred filters skip nothing in them, and to search for them took a tenth of the time
# of all rules of the analyzer and the optimizer; the other rules took a tenth too. Queries of users keep the default.
# Partition pruning traces each key of a join through all projections below it: of the records of a Debezium feed with
# `rest`, after an erasure, until the driver's memory is full. Our files have no partition columns. Spark 4 examines the
# whole plan after each rule that changed it, to find defects of rules: 5 to 10 % of a small write's processor time.
OUR_PLANS = {
    "spark.sql.lightweightPlanChangeValidation": "false",
    "spark.sql.optimizer.dynamicPartitionPruning.enabled": "false",
    "spark.sql.constraintPropagation.enabled": "false",
    "spark.sql.optimizer.excludedRules": ",".join(
        f"org.apache.spark.sql.catalyst.optimizer.{name}"
        for name in (
            "FoldablePropagation",
            "RemoveRedundantAliases",
            "ReorderAssociativeOperator",
            "SimplifyBinaryComparison",
        )
    ),
}
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
    **OF_MANY_JOBS,
}


def build_session(app_name: str) -> SparkSession:
    """The session of a process for one job. Master and resources come from `spark-submit`, or the server that
    SPARK_REMOTE names."""
    remote = os.environ.get("SPARK_REMOTE")
    if remote is not None:
        timeout_s = connect_timeout_s(os.environ)
        quiet_client(os.environ)
        wait_for_server(remote, timeout_s)
        # Without a name, which would be the first call: if the server refused that, the session would stay open, and
        # the process would call again as it ends.
        session = SparkSession.builder.getOrCreate()
        limit_retries(session, timeout_s)
        return session
    builder = SparkSession.builder.appName(app_name)
    for name, value in STATIC.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


@contextmanager
def own_session(spark: SparkSession, spec: JobSpec) -> Iterator[SparkSession]:
    """A session for one job alone, in the context or the server of `spark`, with our settings.

    What is set, registered or run in `spark` changes nothing here, and nothing done here shows there. DataFrames of
    the two can't be joined. What of the file's `spark_conf` did not come with `spark-submit` is set here. Spark's UI
    names the shard: in the description of each job, or in a tag if a server runs them, which has no description. A
    long job says what it does (`progress`).
    """
    if is_connect(spark) and "SPARK_REMOTE" in os.environ:  # it may be starting again
        wait_for_server(os.environ["SPARK_REMOTE"], connect_timeout_s(os.environ))
    own = new_session(spark)
    try:
        if not is_connect(own):
            send_fewer(own)
        apply_conf(own, spec.spark_conf)
        _forget(own)
        use(own, {**FASTER, **REQUIRED, METHOD_LIMIT: method_limit(own), **(_INTERPRETED if spec.is_sample else {})})
        title = f"{spec.description.shard} {spec.description.interval}"
        if is_connect(own):
            own.addTag(f"persist {title}".replace(",", " "))
        with nullcontext() if is_connect(own) else _active(own, f"persist {title}"), progress.told(own, title):
            yield own
    finally:
        release(own)


def method_limit(session: SparkSession) -> str:
    """The bytes up to which a stage may be one method; the steps of a larger one are done one by one, and copy rows.

    Without `HUGE_METHODS` a JVM compiles no method of more than 8,000 bytes, but interprets it for each row: so were
    the decoders of text.
    """
    side = "driver" if (session.conf.get("spark.master", "") or "").startswith("local") else "executor"
    options = [session.conf.get(f"spark.{side}.{kind}JavaOptions", "") or "" for kind in ("default", "extra")]
    return "20000" if HUGE_METHODS in " ".join(options).split() else "8000"


@contextmanager
def _active(own: SparkSession, text: str) -> Iterator[None]:
    """The session that this thread makes expressions in, and the description of all jobs that it starts: of the types
    in casts, and on 3.5 of how expressions fail, Spark asks the active session. The user's come back.
    """
    context: Any = own.sparkContext  # its stubs refuse to set no description
    sessions = java_sessions(own)
    described, active = context.getLocalProperty("spark.job.description"), sessions.getActiveSession()
    context.setJobDescription(text)
    sessions.setActiveSession(own._jsparkSession)
    try:
        yield
    finally:
        with suppress(Exception):  # a driver that has died; the job's own error reports why
            context.setJobDescription(described)
            sessions.setActiveSession(active.get()) if active.isDefined() else sessions.clearActiveSession()


def _forget(own: SparkSession) -> None:
    """Put every setting that is not `KEPT` back to the release's default. A file can't set those."""
    if SPARK_VERSION < (4, 0):
        known = [row["key"] for row in own.sql("SET").collect()]
    else:
        known = list(own.conf.getAll) if is_connect(own) else names_set(own)
    for name in known:
        if name.startswith("spark.sql.") and not name.startswith(KEPT) and own.conf.isModifiable(name):
            own.conf.unset(name)


def use(session: SparkSession, wanted: Mapping[str, str]) -> None:
    """Set these in a session of our own, for good."""
    for name, value in wanted.items():
        session.conf.set(name, value)


def listing(blob: Blob) -> dict[str, str]:
    """For reads of a blob store: a job to list many files saves time if each is a request."""
    return {_LISTED_BY_A_JOB: FASTER[_LISTED_BY_A_JOB] if blob.uri.startswith("file:") else "32"}


def stage_settings(exchanged_bytes: int) -> dict[str, str]:
    """The settings of a stage that moves about this many bytes through its exchange."""
    several = min(max(2, exchanged_bytes // _BYTES_PER_PARTITION), _MAX_PARTITIONS)
    return {
        "spark.sql.shuffle.partitions": str(several if exchanged_bytes > ONE_TASK_BYTES else 1),
        "spark.sql.adaptive.enabled": str(exchanged_bytes > _ADAPTIVE_BYTES).lower(),
    }
