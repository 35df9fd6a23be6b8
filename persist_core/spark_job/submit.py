"""Runs the write stage's Spark job from plain Python: find `spark-submit`, hand over the job, read its answer.

    JobSpec on argv, location in the environment -> spark-submit persist_spark/__main__.py
        -> <attempt>/manifest.json (its key is returned) or <attempt>/failure.json (raised as the error that it names)

Where the master is the URL of a Spark Connect server (`sc://host:port`), the same file runs in a plain Python, and the
plan in that server: no JVM is started, which is most of a small job's time.

The job only stages: whatever happens to it, nothing that a reader sees has changed. Its output goes to a log file of
its own and is shown only where the job died without saying why.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from persist_core.config.shard import ShardConfig
from persist_core.config.view import ViewConfig
from persist_core.errors import InvalidInput, PersistError, RunFailed
from persist_core.handles.client import PersistClient
from persist_core.location.open import s3_settings
from persist_core.location.settings import PersistLocation
from persist_core.shard.batch import BatchDescription
from persist_core.shard.keys import failure_key, manifest_key, trial_key
from persist_core.shard.stats import Trial
from persist_core.spark_job.jars import with_s3a_jars
from persist_core.spark_job.spec import JobSpec

LOCAL_MASTER = "local[*]"
CONNECT_SCHEME = "sc://"
SMALL_INPUT_BYTES = 64 << 20  # up to here the JVM's start-up costs more than its better compiler would win
JOB_TIMEOUT_MS = 24 * 3_600_000  # a bound, not an expectation
_STOP_SECONDS = 10  # between asking a job to stop and killing it
_TAIL_BYTES = 8_000  # of the job's log, shown where it died without a failure record


@dataclass(frozen=True)
class SparkSettings:
    """Where and how jobs run: in a Spark master, or in a Spark Connect server (`sc://host:port`).

    `conf` goes over the tuned defaults; `log_folder` keeps the logs (default: temporary).
    """

    master: str = LOCAL_MASTER
    conf: Mapping[str, str] = field(default_factory=dict)
    timeout_ms: int = JOB_TIMEOUT_MS
    log_folder: Path | None = None


def write_batch(
    client: PersistClient,
    location: PersistLocation,
    config: ShardConfig,
    description: BatchDescription,
    settings: SparkSettings | None = None,
) -> str:
    """Stage the batch of `description` with one `spark-submit` run and return its manifest's key.

    Raises the job's own error where it left a failure record (`OutdatedDescription`, `TooManyErrors` ...), `RunFailed`
    with the end of its log where it died in silence, `InvalidInput` where Spark is not installed.
    """
    spec = JobSpec(description, config, client.ids.uuid7())
    key = manifest_key(description.shard, spec.attempt)
    _run_job(client, location, spec, key, settings or SparkSettings())
    return key


def try_view(
    client: PersistClient,
    location: PersistLocation,
    config: ViewConfig,
    description: BatchDescription,
    as_of: int,
    settings: SparkSettings | None = None,
) -> Trial:
    """What a refresh of the view at `as_of` would write. Mints and stages nothing; raises as `write_batch` does."""
    spec = JobSpec(description, config, client.ids.uuid7(), trial_as_of=as_of)
    key = trial_key(description.shard, spec.attempt)
    return take_trial(client, key, _run_job(client, location, spec, key, settings or SparkSettings()))


def take_trial(client: PersistClient, key: str, data: bytes) -> Trial:
    """A trial's report, which is then no longer stored."""
    client.blob.delete(key)
    return Trial.decode(data)


def _run_job(
    client: PersistClient, location: PersistLocation, spec: JobSpec, answer_key: str, settings: SparkSettings
) -> bytes:
    """One `spark-submit` run to its end; the bytes of the answer that it left."""
    environment = {**os.environ, **spark_environment(os.environ), **location_environment(location)}
    if settings.master.startswith(CONNECT_SCHEME):
        if settings.conf:
            raise InvalidInput(
                f"Spark settings {', '.join(settings.conf)} for a Spark Connect server: it has its own, from where it"
                " was started; leave --conf out"
            )
        command = connect_command(spec)
        environment |= connect_environment(settings.master)
    else:
        command = submit_command(spec, settings, location)
    folder = settings.log_folder
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="persist-") as scratch:
        log = (folder or Path(scratch)) / f"{spec.config.name}-{spec.attempt}.log"
        exit_status = _run(command, environment, log, settings.timeout_ms)
        answer = client.blob.get(answer_key) if exit_status == 0 else None
        if answer is None:
            raise _failure(client, spec.description, spec.attempt, exit_status, log)
        return answer


def submit_command(spec: JobSpec, settings: SparkSettings, location: PersistLocation) -> list[str]:
    """The whole command line of one job."""
    conf = {**tuned_conf(settings.master, spec.description.input_bytes), **settings.conf}
    conf = with_s3a_jars(conf, location.blob_uri, os.environ, spark_home(os.environ))
    options = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
    name = f"persist {spec.description.shard} {spec.description.interval}"
    return [
        *(str(find_spark_submit(os.environ)), "--master", settings.master, "--name", name),
        *options,
        str(job_path()),
        *spec.to_argv(),
    ]


def connect_command(spec: JobSpec) -> list[str]:
    """The command line of one job whose plan runs in a Spark Connect server."""
    return [sys.executable, str(job_path()), *spec.to_argv()]


def connect_environment(url: str) -> dict[str, str]:
    """What leads a job to the Spark Connect server at `url`. Not on argv, since a URL may hold a token."""
    return {"SPARK_REMOTE": url}


def tuned_conf(master: str, input_bytes: int) -> dict[str, str]:
    """Spark settings that shorten start-up. JVM flags only for local masters: elsewhere the driver is not ours to tune.

    Measured for a trivial job on 2 cores: 10-13 s untuned, 8.5-9 s with these (docs/benchmarks.md, "Starting Spark").
    """
    conf = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    if master.startswith("local"):
        flags = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"] if input_bytes <= SMALL_INPUT_BYTES else []
        conf["spark.driver.extraJavaOptions"] = " ".join([*flags, "-Xshare:auto"])
        conf["spark.driver.host"] = "127.0.0.1"
        conf["spark.driver.bindAddress"] = "127.0.0.1"
    return conf


def find_spark_submit(environment: Mapping[str, str]) -> Path:
    """`$SPARK_HOME/bin/spark-submit`, else the one beside this Python, else the one on PATH. Raises `InvalidInput`."""
    home = environment.get("SPARK_HOME")
    if home:
        found = Path(home) / "bin" / "spark-submit"
        if not found.is_file():
            raise InvalidInput(f"SPARK_HOME is {home!r}, but there is no {found}; correct SPARK_HOME or unset it")
        return found
    beside = Path(sys.executable).with_name("spark-submit")
    if beside.is_file():
        return beside
    on_path = shutil.which("spark-submit", path=environment.get("PATH"))
    if on_path is None:
        raise InvalidInput(
            "no spark-submit: SPARK_HOME is not set, and there is none beside this Python or on PATH; install"
            " airflow-persist[spark] or set SPARK_HOME"
        )
    return Path(on_path)


def spark_home(environment: Mapping[str, str]) -> Path | None:
    """The folder of the Spark that `find_spark_submit` finds; `None` where that is a script that stands alone."""
    script = find_spark_submit(environment)
    packaged = importlib.util.find_spec("pyspark")
    if script.parent == Path(sys.executable).parent and packaged is not None and packaged.origin is not None:
        return Path(packaged.origin).parent
    home = script.resolve().parent.parent
    return home if (home / "jars").is_dir() else None


def job_path() -> Path:
    """The job's entry point, found without importing it (that would import Spark). Raises `InvalidInput`."""
    spec = importlib.util.find_spec("persist_spark")
    if spec is None or not spec.submodule_search_locations:
        raise InvalidInput("package persist_spark is not installed; it comes with airflow-persist")
    return Path(next(iter(spec.submodule_search_locations))) / "__main__.py"


def spark_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What Spark needs to run the job with this very Python, unless the user said otherwise."""
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    return {name: value for name, value in python.items() if name not in environment}


def local_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """For Spark on this machine: this very Python, and the `spark-submit` that belongs to it first on PATH."""
    folder = str(find_spark_submit(environment).parent)
    path = os.pathsep.join([folder, environment.get("PATH", os.defpath)])
    return {**spark_environment(environment), "PATH": path}


def location_environment(location: PersistLocation) -> dict[str, str]:
    """What hands the location to a job: its URIs, and credentials of an `s3:` URI as the JVM looks for them.

    Environment variables, as argv and Spark's configuration are for many to see.
    """
    settings = s3_settings(location.blob_uri)
    if settings is None:
        return location.to_env()
    credentials: dict[str, str] = {}
    if settings.access_key_id is not None:
        credentials = {
            "AWS_ACCESS_KEY_ID": settings.access_key_id,
            "AWS_SECRET_ACCESS_KEY": settings.secret_access_key or "",
            "AWS_SESSION_TOKEN": settings.session_token or "",  # said even so: one of our own belongs to other keys
        }
    if settings.profile is not None:
        credentials["AWS_PROFILE"] = settings.profile
    return {**location.to_env(), **credentials}


def _run(command: Sequence[str], environment: Mapping[str, str], log: Path, timeout_ms: int) -> int:
    """Run to the end in a process group of its own, which never outlives us. Raises `RunFailed` on time-out."""
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise RunFailed(f"{command[0]} can't be started: {error.strerror}; nothing was committed") from error
        try:
            return process.wait(timeout_ms / 1000)
        except subprocess.TimeoutExpired:
            raise RunFailed(
                f"the Spark job took more than {timeout_ms} ms and was stopped; nothing was committed. Give it less"
                " input (limits.max_files, limits.max_bytes) or more time"
            ) from None
        finally:
            stop_process_group(process)


def stop_process_group(process: subprocess.Popen[bytes]) -> None:
    """End a process that leads a group, and all of that, if it has not ended by itself: politely, then for good."""
    if process.poll() is not None:
        return
    for how in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):  # all of the group have ended meanwhile
            os.killpg(process.pid, how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_SECONDS)


def _failure(
    client: PersistClient, description: BatchDescription, attempt: str, exit_status: int, log: Path
) -> PersistError:
    """The error that the job's failure record names, else `RunFailed` with the end of its log."""
    data = client.blob.get(failure_key(description.shard, attempt))
    if data is not None:
        record = json.loads(data)
        return error_of_kind(str(record["kind"]), str(record["message"]))
    tail = log.read_bytes()[-_TAIL_BYTES:].decode("utf-8", "replace")
    return RunFailed(
        f"the Spark job for {description.interval} of shard {description.shard} ended with status {exit_status} and"
        f" without a manifest; nothing was committed. The end of its log:\n{tail}"
    )


def error_of_kind(kind: str, message: str) -> PersistError:
    """The error class whose `kind` this is, with that message; `RunFailed` for a kind from elsewhere."""
    pending: list[type[PersistError]] = [PersistError]
    while pending:  # bounded: a tree of classes
        candidate = pending.pop()
        if candidate.kind == kind:
            return candidate(message)
        pending += candidate.__subclasses__()
    return RunFailed(f"{kind}: {message}")
