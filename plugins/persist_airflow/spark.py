"""`WriteBatchesOperator`: hands one description to `spark-submit`, and comes back with the staged batch's manifest.

    description + collection -> JobSpec on argv, location in the environment -> spark-submit persist_spark
        -> <attempt>/manifest.json (its key is the result) or <attempt>/failure.json (raised as a clear error)

With a connection of type `spark_connect` the job is a Python process without a JVM, and its plan runs in that server.

Staging changes nothing that a reader sees, so this task may run any number of times, at once, and die anywhere.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from typing import Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

from persist_airflow.class_data import class_data
from persist_airflow.compat import AirflowException, AirflowNotFoundException, BaseHook, Context, submit_once
from persist_airflow.failures import airflow_error, hopeless_fails_at_once, spark_failure
from persist_airflow.hook import PersistHook
from persist_airflow.spark_connect import ConnectedJob, connect_url
from persist_core.config.shard import ShardConfig
from persist_core.errors import OutdatedDescription
from persist_core.handles.client import PersistClient
from persist_core.protocol import stages
from persist_core.shard.batch import BatchDescription
from persist_core.shard.keys import manifest_key, trial_key
from persist_core.spark_job.jars import with_s3a_jars
from persist_core.spark_job.spec import JobSpec
from persist_core.spark_job.submit import (
    LOCAL_MASTER,
    connect_command,
    connect_environment,
    job_path,
    local_environment,
    location_environment,
    spark_environment,
    spark_home,
    take_trial,
    tuned_conf,
)


class WriteBatchesOperator(SparkSubmitOperator):
    """Stage the batch of `description` with Spark.

    Returns `{"description": ..., "manifest_key": ...}`; the key is `None` where the description was outdated, so that
    nothing was staged: the append task then finds out by whom, and heals. Of a read-only view it stages nothing, and
    adds `"trial"`: what a refresh would write, counted and sampled.

    All arguments of the provider's SparkSubmitOperator may be given, `conf` goes over the tuned defaults. Without a
    Spark connection of that id the job runs in `local[*]`. A description with neither input nor stash needs no Spark.
    A Spark Connect server has its settings already: there `conf` and the like are left aside, with a warning.

    :param config: the collection or view
    :param description: `BatchDescription.to_json()`, as mint returns it (templated)
    :param persist_conn_id: the location (templated)
    :param spark_conn_id: the Spark connection
    """

    template_fields: Sequence[str] = (
        *SparkSubmitOperator.template_fields,
        "description",
        "persist_conn_id",
        "shard",
    )
    template_fields_renderers = {"description": "json"}  # noqa: RUF012 - Airflow's way to say it
    ui_color = "#f7d7a8"

    def __init__(
        self,
        *,
        config: ShardConfig,
        description: Any,
        persist_conn_id: str = PersistHook.default_conn_name,
        spark_conn_id: str = "spark_default",
        **kwargs: Any,
    ) -> None:
        arguments: dict[str, Any] = {"name": f"persist_{config.name}", "conn_id": spark_conn_id, **submit_once()}
        super().__init__(**{**arguments, **kwargs})
        self._brings_jars = bool(kwargs.keys() & {"jars", "packages"})
        self._submit_arguments = sorted(
            kwargs.keys() & inspect.signature(SparkSubmitOperator.__init__).parameters.keys()
        )
        self._connected_job: ConnectedJob | None = None
        self.config = config
        self.description = description
        self.persist_conn_id = persist_conn_id
        self.shard = config.name

    def execute(self, context: Context) -> Any:
        """Stage once. Raises `AirflowFailException` where a retry is useless, else `SparkJobFailed`."""
        with hopeless_fails_at_once():
            client = PersistHook(self.persist_conn_id).get_conn()
        try:
            if "trial_as_of" in self.description:
                return self._try(client, context)
            key = self.write(client, BatchDescription.from_json(self.description), context)
        finally:
            client.location.close()
        return {"description": self.description, "manifest_key": key}

    def _try(self, client: PersistClient, context: Context) -> dict[str, Any]:
        """A read-only view: say what its refresh would write. Nothing is staged."""
        asked = self.description
        description = BatchDescription.from_json(asked["description"])
        spec = JobSpec(description, self.config, client.ids.uuid7(), trial_as_of=asked["trial_as_of"])
        key = trial_key(description.shard, spec.attempt)
        try:
            self._submit(spec, context)
        except AirflowException as error:
            raise airflow_error(spark_failure(client, description, spec.attempt, str(error))) from error
        data = client.blob.get(key)
        if data is None:
            cause = f"It ended well, but there is no report {key}."
            raise airflow_error(spark_failure(client, description, spec.attempt, cause))
        trial = take_trial(client, key, data)
        counts = {name: count for name, count in trial.stats.items() if not name.startswith("contents_")}
        self.log.info("read-only: a refresh of %s as of %d would come to %s", self.shard, trial.as_of, counts)
        for update in trial.sample:
            self.log.info("  %s", update)
        report = {"as_of": trial.as_of, "stats": dict(trial.stats), "sample": [dict(each) for each in trial.sample]}
        return {"description": asked["description"], "manifest_key": None, "trial": report}

    def write(self, client: PersistClient, description: BatchDescription, context: Context) -> str | None:
        """Stage `description`, and return the manifest's key, `None` where it is outdated. Heals call this too."""
        try:
            with hopeless_fails_at_once():
                key = stages.write_without_input(client, self.config, description)
        except OutdatedDescription as outdated:
            self.log.warning("%s", outdated)
            return None
        if key is not None:
            self.log.info("no input: staged an empty batch for %s without Spark: %s", description.interval, key)
            return key
        attempt = client.ids.uuid7()
        key = manifest_key(description.shard, attempt)
        try:
            self._submit(JobSpec(description, self.config, attempt), context)
        except AirflowException as error:
            if client.blob.get(key) is not None:  # the manifest is written last, so the batch is whole
                self.log.warning("the job staged %s and failed only while it ended: %s", key, error)
                return key
            failure = spark_failure(client, description, attempt, str(error))
            if isinstance(failure, OutdatedDescription):
                self.log.warning("%s", failure)
                return None
            raise airflow_error(failure) from error
        if client.blob.get(key) is None:
            cause = f"It ended well, but there is no manifest {key}."
            raise airflow_error(spark_failure(client, description, attempt, cause))
        self.log.info("staged %s: %s", description.interval, key)
        return key

    def _submit(self, spec: JobSpec, context: Context) -> None:
        """Run the job to its end, where the Spark connection says. Raises `AirflowException` where it fails."""
        remote = connect_url(self._conn_id)
        if remote is None:
            self._submit_to_master(spec, context)
        else:
            self._run_connected(spec, remote)

    def _run_connected(self, spec: JobSpec, remote: str) -> None:
        """Run the job's Python here, and its plan in the Spark Connect server `remote`."""
        ignored = [name for name in self._submit_arguments if name != "env_vars"]
        if ignored:
            self.log.warning("%s: for spark-submit only, and left aside with Spark Connect", ", ".join(ignored))
        hook = PersistHook(self.persist_conn_id)
        environment = {
            **os.environ,
            **spark_environment(os.environ),
            **hook.get_environment(),
            **location_environment(hook.get_location()),
            **(self.env_vars or {}),
            **connect_environment(remote),
        }
        self._connected_job = ConnectedJob(connect_command(spec), environment)
        self._connected_job.run(self.log.info)

    def on_kill(self) -> None:
        """End the job's process; what it has staged so far is garbage that nobody sees."""
        if self._connected_job is not None:
            self._connected_job.stop()
        else:
            super().on_kill()

    def _submit_to_master(self, spec: JobSpec, context: Context) -> None:
        """Run the provider's operator for one job; what the user gave as `conf` and `env_vars` stays as it was."""
        master = self._master_of_connection()
        conf, env_vars = self.conf or {}, self.env_vars or {}
        self._hook = None
        self.application = str(job_path())
        self.application_args = spec.to_argv()
        hook = PersistHook(self.persist_conn_id)
        location = hook.get_location()
        local = local_environment(os.environ) if master.startswith("local") else {}
        quiet = {"spark.log.level": "WARN"} if local else {}  # on a cluster the provider reads ids out of the log
        tuned = {**quiet, **tuned_conf(master, spec.description.input_bytes), **conf}
        if not self._brings_jars:
            tuned = with_s3a_jars(tuned, location.blob_uri, os.environ, spark_home(os.environ) if local else None)
        self.env_vars = {**local, **hook.get_environment(), **location_environment(location), **env_vars}
        try:
            with class_data(tuned, os.environ if local else {}, spec.attempt) as self.conf:
                # The undecorated method: Airflow warns where `execute` is called by anything but its task runner, and
                # takes `super().execute()` (2.11) and a call by another task (3.x) for that.
                inspect.unwrap(SparkSubmitOperator.execute)(self, context)
        finally:
            self.conf, self.env_vars = conf, env_vars

    def _master_of_connection(self) -> str:
        """The Spark connection's master; where there is no such connection, one for `local[*]` is made.

        Made as an environment variable, Airflow's documented way for a process to bring a connection of its own: the
        Spark hook would take a missing one for YARN.
        """
        try:
            connection = BaseHook.get_connection(self._conn_id)
        except AirflowNotFoundException:
            os.environ[f"AIRFLOW_CONN_{self._conn_id.upper()}"] = f'{{"conn_type": "spark", "host": "{LOCAL_MASTER}"}}'
            self.log.info("no Spark connection %r: running in %s", self._conn_id, LOCAL_MASTER)
            return LOCAL_MASTER
        host = connection.host or ""
        # "localhost" is a host; "local", "local[2]" are masters
        return host if host == "local" or host.startswith("local[") else f"{connection.conn_type}://{host}"
