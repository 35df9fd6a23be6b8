"""Jobs whose plan runs in a Spark Connect server: which one, by Airflow's connection, and the process beside it.

connection of type `spark_connect` -> sc://host:port/;token=... in the environment -> python persist_spark/__main__.py
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence

from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook

from persist_airflow.compat import AirflowException, AirflowNotFoundException, BaseHook
from persist_core.spark_job.submit import stop_process_group


def connect_url(conn_id: str) -> str | None:
    """The server's URL, with its token, if `conn_id` is a connection of type `spark_connect`; else `None`."""
    try:
        connection = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException:
        return None
    if connection.conn_type != SparkConnectHook.conn_type:
        return None
    url: str = SparkConnectHook(conn_id).get_connection_url()
    return url


class ConnectedJob:
    """One job's process. It leads a process group of its own, so that `stop` leaves nothing of it behind."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command = list(command)
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, say: Callable[[str], None]) -> None:
        """Run it to its end and `say` each line of its output. Raises `AirflowException` unless it ends with 0."""
        with subprocess.Popen(
            self._command,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process:
            self._process = process
            try:
                assert process.stdout is not None
                for line in process.stdout:
                    say(line.decode("utf-8", "replace").rstrip())
                exit_status = process.wait()
            finally:
                self.stop()
        if exit_status:
            raise AirflowException(f"the job's process ended with exit status {exit_status}; its output is above")

    def stop(self) -> None:
        """End the process if it still runs. May be called twice, and from another thread."""
        if self._process is not None:
            stop_process_group(self._process)
