"""Jobs whose plan runs in a Spark Connect server: which server, by Airflow's connection, and the job in this process.

connection of type `spark_connect` -> sc://host:port/;token=... in the environment -> persist_spark.__main__.main(...)

The job has no process of its own. A new Python would import pyspark's client, pandas and our packages again, which is
about 1.5 s of processor time. A worker that imports them before it forks its tasks pays that once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook

from persist_airflow.hook import connection_of
from persist_core.spark_job.process import ENV_CONNECT_TIMEOUT, connect_environment

DEFAULT_SPARK = "spark_default"  # without this connection Spark runs in the task's own machine
TIMEOUT_FIELD = "connect_timeout_s"  # an extra field: seconds until a server that does not answer is given up


def connect_environment_of(conn_id: str) -> dict[str, str] | None:
    """The environment that leads a job to the server, token included; `None` for a connection of another type.

    Raises `Determinate` if it is not found, and not the default one.
    """
    connection = connection_of(conn_id, DEFAULT_SPARK)
    if connection is None or connection.conn_type != SparkConnectHook.conn_type:
        return None
    timeout_s = connection.extra_dejson.get(TIMEOUT_FIELD)
    given = {} if timeout_s in (None, "") else {ENV_CONNECT_TIMEOUT: str(timeout_s)}
    return {**connect_environment(SparkConnectHook(conn_id).get_connection_url()), **given}


@contextmanager
def in_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Run the body with `variables` in the environment of this process, which is afterwards as it was.

    Not thread-safe: a process has one environment.
    """
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


def run_connected(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run one job to its end in this process, in `environment`; its exit status.

    A signal that ends the task ends the job too: the session's release stops what the server still does for it.
    """
    from persist_spark.__main__ import main  # imports Spark, which only a task with such a job needs

    with in_environment(environment):
        return main(arguments, os.environ)
