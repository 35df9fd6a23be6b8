"""Jobs whose plan runs in a Spark Connect server: real ones, of DAGs and of `persist run`, and what goes wrong."""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import socket
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from persist_airflow.compat import AirflowFailException
from persist_airflow.embedded.spark_connect import LocalSpark
from persist_airflow.factory import build_upsert_dag
from persist_airflow.failures import SparkJobFailed
from persist_airflow.spark import TIMEOUT_FIELD, connect_environment_of, run_connected
from persist_core.config.view import load_view
from persist_core.errors import InvalidInput
from persist_core.handles.client import PersistClient
from persist_core.location.settings import PersistLocation
from persist_core.maintenance.fsck import fsck
from persist_core.protocol.run import describe_dry_run
from persist_core.spark_job.launch import dry_run_view, write_batch
from persist_core.spark_job.process import ENV_CONNECT_TIMEOUT, SparkProcess
from persist_spark import progress
from persist_spark.connect import connect_timeout_s, limit_retries
from persist_spark.decode.formats import decode
from persist_spark.upsert import job
from tests.airflow.fruit import HISTORY, NAME, Fruit, check_history, end_ms, end_of
from tests.airflow.task_driver import DagRunDriver
from tests.one_run import run_one
from tests.servers.spark_connect import ConnectServer

MINT, WRITE = "mint_batch_descriptions", "write_batches"
BAD_LINE = '{"id": 1, "name": 7'


@pytest.fixture
def server(connect_server: ConnectServer) -> ConnectServer:
    return connect_server


@pytest.fixture(autouse=True)
def no_classic_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task has a process of its own. This one may have a session of other tests, and Spark allows one kind."""
    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", None)
    monkeypatch.setattr("pyspark.sql.SparkSession._instantiatedSession", None)


def connect(monkeypatch: pytest.MonkeyPatch, server: ConnectServer, token: str | None = None) -> None:
    """Let Airflow's Spark connection be that server."""
    connection = {"conn_type": "spark_connect", "host": "localhost", "port": server.port, "password": server.token}
    if token is not None:
        connection["password"] = token
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


@pytest.mark.airflow_2_11
@pytest.mark.family("tasks")
def test_dag_runs_in_a_server_end_in_the_same_history(
    fruit: Fruit, client: PersistClient, server: ConnectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch, server)
    dag = build_upsert_dag(fruit.config())
    fruit.write_days(range(len(HISTORY)))
    for day in range(len(HISTORY)):
        assert DagRunDriver(dag, end_of(day), run_id=f"day {day}").run_all()["result"] == "committed"
    check_history(client)
    assert fsck(client, NAME).is_clean


@pytest.mark.family("tasks")
def test_persist_run_of_a_collection_and_a_view_in_a_server(
    fruit: Fruit, client: PersistClient, location: PersistLocation, server: ConnectServer
) -> None:
    fruit.write_days(range(2))
    spark = SparkProcess(location, server.url)

    def up_to(config: Any, day: int) -> None:
        write = functools.partial(write_batch, client, spark, config)
        run_one(client, config, until=end_ms(day), write=write, say=print)

    path = fruit.dags / "names.yaml"
    path.write_text(f"query: SELECT name, count(*) AS n FROM {NAME} GROUP BY name\n")
    view = load_view(path, collections=fruit.dags / "collections")
    up_to(fruit.config(), 1)
    as_of, description = describe_dry_run(client, view, end_ms(1))
    dry_run = dry_run_view(client, spark, view, description, as_of)
    assert dry_run.stats["inserted"] == 3
    up_to(view, 1)
    rows = client.open_reader("names").snapshot().to_pylist()
    assert sorted((row["name"], row["n"]) for row in rows) == [("fig", 1), ("kiwi", 1), ("red apple", 1)]
    fruit.write_days(range(2, 3))
    spark = SparkProcess(location, server.url, {"spark.executor.memory": "2g"})
    with pytest.raises(
        InvalidInput, match=r"--conf spark\.executor\.memory: a Spark Connect server takes its settings"
    ):
        up_to(fruit.config(), 2)


def test_a_session_takes_settings_and_warns_of_fixed_ones(
    fruit: Fruit,
    client: PersistClient,
    location: PersistLocation,
    server: ConnectServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """In a DAG and in `persist run`: each row is in a file of its own, as the setting of the session says."""
    fixed = {"spark.executor.memory": "2g", "spark.driver.memory": "1g"}
    config = fruit.config().model_copy(update={"spark_conf": {**fixed, "spark.sql.files.maxRecordsPerFile": "1"}})
    warning = f"spark_conf: {', '.join(fixed)} ignored, because it is fixed when Spark"
    connect(monkeypatch, server)
    fruit.write_days(range(2))
    with caplog.at_level(logging.WARNING):
        assert DagRunDriver(build_upsert_dag(config), end_of(0)).run_all()["result"] == "committed"
    assert [text.startswith(warning) for text in messages(caplog) if "spark_conf" in text] == [True]
    caplog.clear()
    write = functools.partial(write_batch, client, SparkProcess(location, server.url), config)
    with caplog.at_level(logging.WARNING):
        run_one(client, config, until=end_ms(1), write=write, say=print)
    assert [text.startswith(warning) for text in messages(caplog) if "spark_conf" in text] == [True]
    for batch in client.state(NAME).batches:
        assert {part.rows for part in client.manifest(batch).parts} == {1}


def test_a_long_write_says_what_the_server_has_done(
    fruit: Fruit,
    client: PersistClient,
    server: ConnectServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The log of the task, which runs the job itself. The server reports every 2 s."""
    del client

    def slowly(*arguments: Any, **named: Any) -> Any:
        wait = "reflect('java.lang.Thread', 'sleep', 1000L)"  # gives 'null'
        return decode(*arguments, **named).where(f"{wait} != ''")

    monkeypatch.setattr(job, "decode", slowly)
    monkeypatch.setattr(progress, "INTERVAL_S", 1.0)
    connect(monkeypatch, server)
    fruit.write_days(range(1))
    with caplog.at_level(logging.INFO):
        assert DagRunDriver(build_upsert_dag(fruit.config()), end_of(0)).run_all()["result"] == "committed"
    said = [record.getMessage() for record in caplog.records if record.name == progress.__name__]
    write = rf"{NAME} .* s, write; 1 files, \d+ B; 0 updates before; \d of \d tasks, \d+ B read"
    assert [line for line in said if re.fullmatch(write, line)], said


@pytest.mark.airflow_2_11
def test_a_jobs_own_error_is_told_as_with_spark_submit(
    fruit: Fruit, client: PersistClient, server: ConnectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    del client
    connect(monkeypatch, server)
    fruit.write_days(range(1))
    (path,) = fruit.feed.glob("*/part.json")
    path.write_text(f"{BAD_LINE}\n{BAD_LINE}\n")
    config = fruit.config()
    config = config.model_copy(update={"limits": config.limits.model_copy(update={"max_errors": (0,)})})
    run = DagRunDriver(build_upsert_dag(config), end_of(0))
    run.run(MINT)
    with pytest.raises(AirflowFailException, match=r"too_many_errors.*at most 0 are allowed"):
        run.run(WRITE)


def test_a_wrong_token_and_arguments_of_spark_submit_are_named(
    fruit: Fruit,
    client: PersistClient,
    server: ConnectServer,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    del client
    connect(monkeypatch, server, token="guessed")
    fruit.write_days(range(1))
    dag = build_upsert_dag(fruit.config(), spark={"executor_memory": "2g", "env_vars": {"A": "b"}})
    run = DagRunDriver(dag, end_of(0))
    run.run(MINT)
    with pytest.raises(SparkJobFailed, match="Invalid authentication token") as refused:
        run.run(WRITE)
    log = capfd.readouterr().out
    assert "executor_memory: for spark-submit only" in log
    assert "guessed" not in f"{log}{refused.value}"
    from pyspark.sql.connect.session import SparkSession

    left = SparkSession.getActiveSession()
    assert left is None, "the process would call its server again as it ends, for minutes if that is gone"


@pytest.mark.airflow_2_11
@pytest.mark.parametrize(
    ("connection", "url"),
    [
        (None, None),
        ({"conn_type": "spark", "host": "local[2]"}, None),
        ({"conn_type": "spark_connect", "host": "spark.example", "port": 15002}, "sc://spark.example:15002/"),
        (
            {"conn_type": "spark_connect", "host": "h", "password": "p/q", "extra": '{"use_ssl": true}'},
            "sc://h/;token=p/q;use_ssl=True",
        ),
    ],
)
def test_the_connections_type_says_where_jobs_run(
    monkeypatch: pytest.MonkeyPatch, connection: dict[str, Any] | None, url: str | None
) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT", raising=False)
    if connection is not None:
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    assert (connect_environment_of("spark_default") or {}).get("SPARK_REMOTE") == url


@pytest.mark.parametrize("accepts", [False, True], ids=["dead port", "silent server"])
def test_a_server_that_does_not_answer_fails_the_task_in_time(
    fruit: Fruit,
    client: PersistClient,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    accepts: bool,
) -> None:
    """The second one accepts connections, by its kernel, and never says a word."""
    del client
    fruit.write_days(range(1))
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        if accepts:
            silent.listen(16)
        port = silent.getsockname()[1]
        connection = {"conn_type": "spark_connect", "host": "127.0.0.1", "port": port, "extra": {TIMEOUT_FIELD: 2}}
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
        run = DagRunDriver(build_upsert_dag(fruit.config()), end_of(0))
        run.run(MINT)
        with caplog.at_level(logging.WARNING), pytest.raises(SparkJobFailed) as failed:
            run.run(WRITE)
    server = f"127.0.0.1:{port}"
    expected = rf"run_failed: the Spark Connect server {server} did not answer for 2 s; nothing was committed\. .* TLS:"
    assert re.match(expected, str(failed.value))
    assert f"{server} does not answer (try 1, 2 s of 2 s)" in caplog.text


@pytest.mark.parametrize(
    ("field", "env_vars", "expected"),
    [(None, {}, None), (30, {}, "30"), (30, {ENV_CONNECT_TIMEOUT: "5"}, "5"), (None, {ENV_CONNECT_TIMEOUT: "5"}, "5")],
)
def test_a_tasks_own_time_to_wait_goes_before_the_connections(
    fruit: Fruit,
    client: PersistClient,
    monkeypatch: pytest.MonkeyPatch,
    field: int | None,
    env_vars: dict[str, str],
    expected: str | None,
) -> None:
    """The value in the job's environment; without it the worker's own environment counts."""
    connection = {"conn_type": "spark_connect", "host": "h", "extra": {} if field is None else {TIMEOUT_FIELD: field}}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    given: list[Mapping[str, str]] = []

    def job(_arguments: Sequence[str], environment: Mapping[str, str]) -> int:
        given.append(environment)
        return 0

    monkeypatch.setattr("persist_airflow.spark.run_connected", job)
    fruit.write_days(range(1))
    run = DagRunDriver(build_upsert_dag(fruit.config(), spark={"env_vars": env_vars}), end_of(0))
    run.run(MINT)
    with pytest.raises(SparkJobFailed, match="It ended with success, but left no answer"):
        run.run(WRITE)
    assert [each.get(ENV_CONNECT_TIMEOUT) for each in given] == [expected]
    assert client.state(NAME).newest_commit is None


@pytest.mark.parametrize("text", ["soon", "0", "nan", "-1", "1e9"])
def test_a_time_to_wait_must_be_seconds(text: str) -> None:
    assert connect_timeout_s({}) == 60
    assert connect_timeout_s({ENV_CONNECT_TIMEOUT: "2.5"}) == 2.5
    with pytest.raises(InvalidInput, match=ENV_CONNECT_TIMEOUT):
        connect_timeout_s({ENV_CONNECT_TIMEOUT: text})


def test_a_session_gives_up_a_server_that_is_gone() -> None:
    set_: list[Any] = []
    session = SimpleNamespace(client=SimpleNamespace(set_retry_policies=set_.extend))
    limit_retries(cast(Any, session), 60)
    (policy,) = set_
    waits_ms = [50 * 4**retry for retry in range(policy.max_retries)]
    assert 15_000 < sum(waits_ms) <= 60_000


def test_a_job_in_the_tasks_process_keeps_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job sees the location's secrets and Spark's mode; the tasks and hooks after it do not."""
    seen: list[tuple[Sequence[str], dict[str, str]]] = []

    def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
        seen.append((arguments, dict(environment)))
        os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"  # as pyspark does
        if len(seen) == 3:
            raise ValueError("no such host")
        return len(seen) - 1

    monkeypatch.setitem(sys.modules, "persist_spark.__main__", cast(Any, SimpleNamespace(main=main)))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "the worker's")
    before = dict(os.environ)
    given = {"SPARK_REMOTE": "sc://h", "AWS_SECRET_ACCESS_KEY": "the connection's"}
    assert [run_connected(["--spec-key", "k"], given), run_connected([], given)] == [0, 1]
    with pytest.raises(ValueError, match="no such host"):
        run_connected([], given)
    assert seen[0] == (["--spec-key", "k"], {**before, **given})
    assert dict(os.environ) == before


@pytest.mark.family("tasks")
def test_a_task_that_is_stopped_stops_its_job_in_the_server_too(server: ConnectServer) -> None:
    """As Airflow stops one: SIGTERM, whose handler raises in the main thread, while the server computes."""
    script = """
import os, signal, sys
from types import SimpleNamespace
from persist_airflow.spark import run_connected
from pyspark.sql import functions as F

def stop(number, frame):
    raise KeyboardInterrupt

def main(arguments, environment):
    from persist_spark.session import build_session
    spark = build_session("counts")
    said = []
    def watch(stages, inflight_tasks, *args, **kwargs):
        if inflight_tasks and not said:
            said.append(print("computes", flush=True))
    try:
        spark.range(1).count()
        print("has answered", flush=True)
        spark.registerProgressHandler(watch)
        spark.range(int(arguments[0])).select(F.max(F.hash("id"))).collect()
    finally:
        spark.stop()

signal.signal(signal.SIGTERM, stop)
sys.modules["persist_spark.__main__"] = SimpleNamespace(main=main)
try:
    run_connected(sys.argv[2:], {"SPARK_REMOTE": sys.argv[1]})
except KeyboardInterrupt:
    # As Airflow ends the process of a task, which waits for no thread. A thread of Spark's client may wait for ever:
    # an exception that is raised while this thread takes a lock of gRPC's leaves that lock taken.
    os._exit(1)
"""
    for rows, ends_by_itself in ((10**15, False), (10, True)):  # the first takes all cores, for days
        command = [sys.executable, "-c", script, server.url, str(rows)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as task:
            assert task.stdout is not None
            try:
                assert task.stdout.readline() == "has answered\n"
                if not ends_by_itself:
                    # A signal before that can come between Spark's start of a job and its list of jobs to cancel.
                    assert task.stdout.readline() == "computes\n"
                    task.terminate()
                assert (task.wait(120) == 0) is ends_by_itself
            finally:
                task.kill()  # else a failure would wait for its end


def test_the_token_of_a_local_server_is_its_owners_alone(tmp_path: Path) -> None:
    local = LocalSpark(tmp_path / "home", 1234)
    token = json.loads(local.connection())["password"]
    (path,) = local.home.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text() == token
    assert len(token) > 40
    assert local.environment()["SPARK_CONNECT_AUTHENTICATE_TOKEN"] == token
    assert token not in " ".join(local.command()), "argv is for all to see"
    assert json.loads(LocalSpark(tmp_path / "other", 1234).connection())["password"] != token
    assert subprocess.list2cmdline(local.command()).count("127.0.0.1") >= 1


def test_other_users_cannot_reach_a_local_server_or_its_files(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    local = LocalSpark(tmp_path / "home", 1234)
    for _ in range(2):
        command = local.command()
        (folder,) = (part.partition("=")[2] for part in command if part.startswith("spark.local.dir="))
        assert stat.S_IMODE(Path(folder).stat().st_mode) == 0o700
    assert Path(folder).is_relative_to(local.home)
    assert "spark.authenticate=true" in command
    assert not any("authenticate.secret" in part for part in command)
