"""`SparkJobOperator` runs one of our Spark jobs to its end; `WriteBatchesOperator` the job for one description.

    description + collection -> JobSpec, stored as a blob -> spark-submit persist_spark --spec-key ... --spec-sha256 ...
        -> <attempt>/manifest.json (its key is the result) or <attempt>/failure.json (raised as a clear error)

With a connection of type `spark_connect` the job runs in the task's own process, and its plan in that server.
The location and its credentials reach the job as `persist_core.spark_job.handover` says, never on a command line.

Staging changes nothing that a reader sees, so this task may run any number of times, concurrently, and die anywhere.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

from persist_airflow.compat import AirflowException, Context, submit_once
from persist_airflow.failures import SparkJobFailed, airflow_error, result_before
from persist_airflow.hook import PersistHook, connection_of, task_client
from persist_airflow.lineage import ReportsLineage, of_inputs
from persist_airflow.links import ShardLink
from persist_airflow.metrics import measured
from persist_core.config.shard import ShardConfig
from persist_core.config.view import ViewConfig
from persist_core.contents.batch import BatchDescription
from persist_core.errors import OutdatedDescription, PersistError
from persist_core.handles.client import PersistClient
from persist_core.protocol import run
from persist_core.row_text import show_row
from persist_core.spark_job.causes import STOPPED, CauseFinder, find_cause
from persist_core.spark_job.handover import (
    hand_over,
    location_environment,
    properties_file,
    spark_defaults,
)
from persist_core.spark_job.installation import job_path, local_environment, spark_home
from persist_core.spark_job.jars import with_s3a_jars
from persist_core.spark_job.launch import Ended, Start, dry_run_view, write_batch
from persist_core.spark_job.process import (
    ENV_CONNECT_TIMEOUT,
    ENV_REMOTE,
    LOCAL_MASTER,
    connect_environment,
    is_local,
    scratch_folders,
    tuned_conf,
)
from persist_core.spark_job.spec import JobSpec
from persist_core.time_text import show_time

_Result = TypeVar("_Result")
DEFAULT_SPARK = "spark_default"  # without this connection Spark runs in the task's own machine
TIMEOUT_FIELD = "connect_timeout_s"  # an extra field: seconds until a server that does not answer is given up
RETRIES = 3
RETRY_DELAY = timedelta(seconds=10)
BEGUN_FIRST = "upstream"  # of few slots, a dag run that goes on gets one before the mints that wait for it to end


class SparkJobOperator(SparkSubmitOperator):
    """Runs jobs for one shard, where and as the Spark connection says.

    All arguments of the provider's SparkSubmitOperator may be given; `conf` goes over what the shard's file says, and
    that over the tuned defaults. Without a Spark connection of that id jobs run in `local[*]`. A Spark Connect server
    has its own settings: there `conf` and similar arguments are ignored, with a warning.

    :param shard: its name (templated)
    :param persist_conn_id: the location (templated)
    :param spark_conn_id: the Spark connection (templated)
    """

    template_fields: Sequence[str] = (*SparkSubmitOperator.template_fields, "persist_conn_id", "spark_conn_id", "shard")

    def __init__(
        self,
        *,
        shard: str,
        persist_conn_id: str = PersistHook.default_conn_name,
        spark_conn_id: str = DEFAULT_SPARK,
        retries: int = RETRIES,
        retry_delay: timedelta = RETRY_DELAY,
        weight_rule: str = BEGUN_FIRST,
        **kwargs: Any,
    ) -> None:
        arguments: dict[str, Any] = {"name": f"persist_{shard}", **submit_once(SparkSubmitOperator), **kwargs}
        super().__init__(**arguments, retries=retries, retry_delay=retry_delay, weight_rule=weight_rule)
        self._brings_jars = bool(kwargs.keys() & {"jars", "packages"})
        self._submit_arguments = sorted(
            kwargs.keys() & inspect.signature(SparkSubmitOperator.__init__).parameters.keys()
        )
        self.persist_conn_id = persist_conn_id
        self.spark_conn_id = spark_conn_id
        self.shard = shard
        self._causes = CauseFinder()
        self._is_stopped = False

    def run_jobs(self, context: Context, run: Callable[[Start], _Result]) -> _Result:
        """The result of `run`, which gets how this task starts jobs (`persist_core.spark_job.launch`).

        Raises `OutdatedDescription`, and for other failures what Airflow is to see.
        """
        try:
            return run(functools.partial(self._start, context))
        except OutdatedDescription:
            raise
        except PersistError as failure:  # a long command line must not come after the cause
            raise airflow_error(failure, SparkJobFailed) from None

    def _start(self, context: Context, items: Sequence[JobSpec], arguments: Sequence[str]) -> Ended:
        """Run one job to its end in the Spark that the connection names."""
        self._causes = CauseFinder()
        exit_status: int | None
        try:
            exit_status = self._submit(context, items, arguments)
            seen = "Its output is above." if exit_status else "It ended with success, but left no answer."
        except AirflowException as error:
            seen, exit_status = str(error), getattr(getattr(self._hook, "_submit_sp", None), "returncode", None)
        if self._is_stopped:
            exit_status = STOPPED[0]  # whichever way the provider ends it
        cause = self._causes.cause(exit_status) or find_cause(seen.splitlines())
        return Ended(seen if cause is None else "Its log is above.", cause, exit_status)

    def _submit(self, context: Context, items: Sequence[JobSpec], arguments: Sequence[str]) -> int:
        """Run the job in this process, and its plan in a Spark Connect server; or by the provider. Its exit status.

        Raises `AirflowException` if the provider says that it failed.
        """
        remote = connect_environment_of(self.spark_conn_id)
        if remote is None:
            self._submit_to_master(context, items, arguments)
            return 0
        ignored = [name for name in self._submit_arguments if name != "env_vars"]
        if ignored:
            self.log.warning("%s: for spark-submit only, ignored with Spark Connect", ", ".join(ignored))
        variables = self._variables(items)
        timeout = {name: text for name, text in (self.env_vars or {}).items() if name == ENV_CONNECT_TIMEOUT}
        return run_connected(arguments, {**variables, **remote, **timeout})  # of a task's own, before the connection's

    def _variables(self, items: Sequence[JobSpec]) -> dict[str, str]:
        """The location, its and the sources' credentials, and the user's own environment variables, for the driver."""
        hook = PersistHook(self.persist_conn_id, [item.config for item in items])
        found = {**hook.get_environment(), **location_environment(hook.get_location())}
        return {**found, **(self.env_vars or {})}

    def on_kill(self) -> None:
        """End what `spark-submit` started; what it has staged so far is garbage that no reader sees.

        A job in a Spark Connect server ends with this process's own session.
        """
        self._is_stopped = True
        if self._hook is not None:
            super().on_kill()

    def _submit_to_master(self, context: Context, items: Sequence[JobSpec], arguments: Sequence[str]) -> None:
        """Run the provider's operator for one job; the operator's own attributes stay as the user gave them."""
        given = (self.conf, self.env_vars, self.properties_file)
        master, deploy_mode = self._master_of_connection()
        quiet = {"spark.log.level": "WARN"} if is_local(master) else {}  # on a cluster the provider reads ids there
        conf = {**quiet, **tuned_conf(master, items), **(self.conf or {})}
        if not self._brings_jars:
            home = spark_home(os.environ) if is_local(master) else None
            blob_uri = PersistHook(self.persist_conn_id).get_location().blob_uri
            conf = with_s3a_jars(
                conf, [blob_uri, *(uri for item in items for uri in item.input_uris)], os.environ, home
            )
        handed = hand_over(self._variables(items), master=master, deploy_mode=deploy_mode, conf=conf)
        local = local_environment(os.environ) if is_local(master) else {}
        try:
            self._hook = None
            self.application, self.application_args = str(job_path()), list(arguments)
            self.env_vars = None  # the provider would put them on the command line
            base = None
            if handed.properties:  # the job's own file repeats the ones of the user's file, else Spark's defaults
                base = Path(self.properties_file) if self.properties_file else spark_defaults(os.environ)
            self.conf = {**conf, **handed.conf}
            with (
                properties_file(handed.properties, base) as file,
                scratch_folders(master, conf) as folders,
            ):
                if file is not None:
                    self.properties_file = str(file)
                # The provider gives `spark-submit` the environment of this process.
                with in_environment({**local, **folders, **handed.environment}, without=ENV_REMOTE):
                    # The undecorated method: Airflow warns if `execute` is called by anything but its task runner, and
                    # takes `super().execute()` (2.11) and a call by another task (3.x) for that.
                    inspect.unwrap(SparkSubmitOperator.execute)(self, context)
        finally:
            self.conf, self.env_vars, self.properties_file = given
            process = getattr(self._hook, "_submit_sp", None)
            if process is not None and process.stdout is not None:
                process.stdout.close()

    def _get_hook(self) -> SparkSubmitHook:
        """The provider's hook, with its log watched: it has no public means for that."""
        self._conn_id = self.spark_conn_id  # the provider reads it under this name, and renders no template in it
        hook = super()._get_hook()
        process_log = hook._process_spark_submit_log
        vars(hook)["_process_spark_submit_log"] = lambda lines: process_log(self._watched(lines))
        return hook

    def _watched(self, lines: Iterable[str]) -> Iterator[str]:
        for line in lines:
            self._causes.see(line)
            yield line

    def _master_of_connection(self) -> tuple[str, str | None]:
        """The Spark connection's master and deploy mode (`None`: not given).

        If the default one is missing, one for `local[*]` is made as an environment variable, Airflow's documented way
        for a process to bring a connection of its own: the Spark hook would take a missing one for YARN.
        """
        connection = connection_of(self.spark_conn_id, DEFAULT_SPARK)
        if connection is None:
            os.environ[f"AIRFLOW_CONN_{self.spark_conn_id.upper()}"] = (
                f'{{"conn_type": "spark", "host": "{LOCAL_MASTER}"}}'
            )
            self.log.info("no Spark connection %r: running in %s", self.spark_conn_id, LOCAL_MASTER)
            return LOCAL_MASTER, self._deploy_mode
        host, port = connection.host or "", connection.port
        is_url = connection.conn_type == SparkSubmitHook.conn_type and host and ("://" in host or not port)  # its rule
        master = host if is_url else f"{connection.conn_type}://{host}"
        deploy_mode = self._deploy_mode or connection.extra_dejson.get("deploy-mode")
        return (f"{master}:{port}" if port else master), deploy_mode


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
def in_environment(variables: Mapping[str, str], *, without: str | None = None) -> Iterator[None]:
    """Run the body with `variables` in the environment of this process, and `without` one, which is then as it was.

    Not thread-safe: a process has one environment.
    """
    before = dict(os.environ)
    os.environ.update(variables)
    if without is not None:
        os.environ.pop(without, None)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


def run_connected(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run one job to its end in this process, in `environment`; its exit status.

    A new Python would import pyspark's client, pandas and our packages again, which is about 1.5 s of processor time. A
    worker that imports them before it forks its tasks pays that once.

    A signal that ends the task ends the job too: the session's release stops what the server still does for it.
    """
    from persist_spark.__main__ import main  # imports Spark, which only a task with such a job needs

    with in_environment(environment):
        return main(arguments, os.environ)


class WriteBatchesOperator(ReportsLineage, SparkJobOperator):
    """Stage the batch of `description` with Spark.

    Returns `{"description": ..., "manifest_key": ...}`. The key is `None` if the description was outdated or
    already committed, and nothing was staged: the append task then finds the commit, or records the conflict and heals.
    For a read-only view it stages nothing, and adds `"dry_run"`: what a refresh would write, counted and sampled.

    A description with neither input nor stash needs no Spark. Further arguments: as for `SparkJobOperator`.

    :param config: the collection or view
    :param description: `BatchDescription.to_json()`, as mint returns it (templated)
    """

    template_fields: Sequence[str] = (*SparkJobOperator.template_fields, "description")
    template_fields_renderers = {"description": "json"}  # noqa: RUF012 - Airflow's way to say it
    operator_extra_links = (ShardLink(),)
    ui_color = "#f7d7a8"

    def __init__(self, *, config: ShardConfig, description: Any, **kwargs: Any) -> None:
        super().__init__(shard=config.name, **kwargs)
        self.config = config
        self.description = description

    @measured("write")
    def execute(self, context: Context) -> Any:
        """Stage once. Raises `AirflowFailException` if another try would fail as well, else `SparkJobFailed`."""
        with task_client(self.persist_conn_id, self.config) as client:
            if "dry_run_as_of" in result_before(self, self.description):
                return self._dry_run(client, context)
            description = BatchDescription.from_json(self.description)
            self.lineage = of_inputs(client, self.config, description, self.persist_conn_id)
            key = run.write_staged(client, self.config, description, self.writer(client, context))
        if key is None:
            self.log.warning(
                "description %s is outdated or already committed. Nothing was staged; the append task finds the commit,"
                " or says what prevents it",
                description.interval,
            )
        else:
            self.log.info("staged %s: %s", description.interval, key)
        return {"description": self.description, "manifest_key": key}

    def writer(self, client: PersistClient, context: Context) -> run.Write:
        """The function that runs this task's Spark job for a description. The append task uses it after a conflict."""
        return lambda description: self.run_jobs(
            context, lambda start: write_batch(client, start, self.config, description)
        )

    def _dry_run(self, client: PersistClient, context: Context) -> dict[str, Any]:
        asked, config = self.description, self.config
        assert isinstance(config, ViewConfig)
        description = BatchDescription.from_json(asked["description"])
        dry_run = self.run_jobs(
            context, lambda start: dry_run_view(client, start, config, description, asked["dry_run_as_of"])
        )
        counts = {name: count for name, count in dry_run.stats.items() if not name.startswith("contents_")}
        self.log.info(
            "read-only: a refresh of %s as of %s would write: %s",
            self.shard,
            show_time(dry_run.as_of),
            show_row(counts),
        )
        for update in dry_run.sample:
            self.log.info("  %s", show_row(update))
        report = {
            "as_of": dry_run.as_of,
            "stats": dict(dry_run.stats),
            "sample": [dict(each) for each in dry_run.sample],
        }
        return {"description": asked["description"], "manifest_key": None, "dry_run": report}
