"""Runs the write stage's Spark job from plain Python: find `spark-submit`, start the job, read its answer.

    JobSpec as a blob, its key on argv, the location by `handover` -> spark-submit persist_spark/__main__.py
        -> <attempt>/manifest.json (its key is returned) or <attempt>/failure.json (raised as the error that it names)

If the master is the URL of a Spark Connect server (`sc://host:port`), the same file runs in a plain Python, and the
plan runs in that server. No JVM is started, which is most of a small job's time.

The job only stages: whatever happens to it, nothing that a reader sees changes. Its output goes to a log file of its
own. What our own code says there is logged here too; the end of it is shown only if the job left no answer.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from persist_core.config.shard import ShardConfig
from persist_core.config.view import ViewConfig
from persist_core.errors import InvalidInput, RunFailed
from persist_core.handles.client import PersistClient
from persist_core.location.credentials import secrets_of
from persist_core.location.settings import PersistLocation
from persist_core.location.uri import redact_uri
from persist_core.shard.batch import BatchDescription
from persist_core.shard.keys import dry_run_key, manifest_key
from persist_core.shard.stats import DryRun
from persist_core.spark_job.answer import job_failure, take_dry_run
from persist_core.spark_job.causes import find_cause
from persist_core.spark_job.handover import hand_over, location_environment, properties_file, spark_defaults
from persist_core.spark_job.installation import find_spark_submit, job_path, spark_environment, spark_home
from persist_core.spark_job.jars import with_s3a_jars
from persist_core.spark_job.spec import JobSpec, stored

LOCAL_MASTER = "local[*]"
CONNECT_SCHEME = "sc://"
ENV_CONNECT_TIMEOUT = "PERSIST_SPARK_CONNECT_TIMEOUT"  # seconds, for the job: until a server that is silent is given up
FIXED_BY_SERVER = "ignored, because it is fixed when the Spark Connect server starts; set it there"  # ends a warning
LOG_FORMAT = "%(name)s %(levelname)s: %(message)s"  # of a job that has a process of its own
_OWN_LINE = re.compile(r"persist_spark\.\S+ (INFO|WARNING): (.*)\n")  # each is one write, so it is read whole
_LOOK_S = 1.0  # between two looks at the log of a job
SMALL_INPUT_BYTES = 64 << 20  # up to here the JVM's start-up costs more than its better compiler would win
JOB_TIMEOUT_MS = 24 * 3_600_000  # a bound, not an expectation
_STOP_SECONDS = 10  # between asking a job to stop and killing it
_TAIL_BYTES = 8_000  # of the job's log, shown if it left no failure record

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SparkSettings:
    """Where and how jobs run: in a Spark master, or in a Spark Connect server (`sc://host:port`).

    `conf` goes over the tuned defaults; `log_folder` keeps the logs (default: temporary).
    """

    master: str = field(default=LOCAL_MASTER, repr=False)  # the URL of a Connect server may hold a token
    conf: Mapping[str, str] = field(default_factory=dict)
    timeout_ms: int = JOB_TIMEOUT_MS
    log_folder: Path | None = None

    @property
    def shown_master(self) -> str:
        """The master as it may be printed."""
        return redact_uri(self.master)


def write_batch(
    client: PersistClient,
    location: PersistLocation,
    config: ShardConfig,
    settings: SparkSettings,
    description: BatchDescription,
) -> str:
    """Stage the batch of `description` with one Spark job and return its manifest's key.

    Raises the job's own error if it left a failure record (`OutdatedDescription`, `TooManyErrors` ...), `RunFailed`
    with the end of its log if it did not, `InvalidInput` if Spark is not installed.
    """
    spec = JobSpec(description, config, client.ids.uuid7())
    key = manifest_key(description.shard, spec.attempt)
    run_job(client, location, spec, key, settings)
    return key


def dry_run_view(
    client: PersistClient,
    location: PersistLocation,
    config: ViewConfig,
    settings: SparkSettings,
    description: BatchDescription,
    as_of: int,
) -> DryRun:
    """The updates of a refresh of the view at `as_of`. Mints and stages nothing; raises as `write_batch` does."""
    spec = JobSpec(description, config, client.ids.uuid7(), dry_run_as_of=as_of)
    key = dry_run_key(description.shard, spec.attempt)
    return take_dry_run(client, key, run_job(client, location, spec, key, settings))


def run_job(
    client: PersistClient, location: PersistLocation, spec: JobSpec, answer_key: str, settings: SparkSettings
) -> bytes:
    """One Spark job to its end; the answer that it left under `answer_key`. Raises as `write_batch` does."""
    folder = settings.log_folder
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="persist-") as scratch, stored(client.blob, spec) as arguments:
        log = (folder or Path(scratch)) / f"{spec.config.name}-{spec.attempt}.log"
        with _command(spec, arguments, settings, location, scratch) as (command, environment):
            exit_status = _run(command, {**os.environ, **spark_environment(os.environ), **environment}, log, settings)
        answer = client.blob.get(answer_key) if exit_status == 0 else None
        if answer is None:
            with log.open(encoding="utf-8", errors="replace") as lines:
                cause = find_cause(lines, exit_status)
            tail = log.read_bytes()[-_TAIL_BYTES:].decode("utf-8", "replace")
            for secret in secrets_of(settings.master):
                tail = tail.replace(secret, "***")
            seen = f"Its exit status is {exit_status}. The end of its log:\n{tail}"
            raise job_failure(client, spec, seen, cause, exit_status)
        return answer


@contextmanager
def _command(
    spec: JobSpec, arguments: Sequence[str], settings: SparkSettings, location: PersistLocation, scratch: str
) -> Iterator[tuple[list[str], Mapping[str, str]]]:
    """The whole command line of one job, and what goes over its starter's environment."""
    if settings.master.startswith(CONNECT_SCHEME):
        if settings.conf:
            raise InvalidInput(
                f"--conf {', '.join(settings.conf)}: a Spark Connect server takes its settings when it starts; leave"
                " --conf out, and set them there"
            )
        yield connect_command(arguments), {**location_environment(location), **connect_environment(settings.master)}
        return
    conf = {**tuned_conf(settings.master, spec.description.input_bytes, scratch), **spec.spark_conf, **settings.conf}
    home = spark_home(os.environ)
    conf = with_s3a_jars(conf, [location.blob_uri, *spec.input_uris], os.environ, home)
    given = hand_over(location_environment(location), master=settings.master, deploy_mode=None, conf=conf)
    name = f"persist {spec.description.shard} {spec.description.interval}"
    with properties_file(given.properties, spark_defaults(os.environ)) as file:
        options = [part for pair in {**conf, **given.conf}.items() for part in ("--conf", "=".join(pair))]
        if file is not None:
            options += ["--properties-file", str(file)]
        submit = [str(find_spark_submit(os.environ)), "--master", settings.master, "--name", name]
        yield [*submit, *options, str(job_path()), *arguments], given.environment


def connect_command(arguments: Sequence[str]) -> list[str]:
    """The command line of one job whose plan runs in a Spark Connect server."""
    return [sys.executable, str(job_path()), *arguments]


def connect_environment(url: str) -> dict[str, str]:
    """The environment that leads a job to the Connect server at `url`. Not on argv: a URL may hold a token."""
    return {"SPARK_REMOTE": url}


def tuned_conf(master: str, input_bytes: int, scratch: str | Path) -> dict[str, str]:
    """Spark settings that shorten start-up, and for local masters keep other users of the machine out.

    Local masters get JVM flags and `scratch`, a folder of mode 0700: elsewhere driver and disks are not ours to tune.
    Measured for a trivial job on 2 cores: 10-13 s untuned, 8.5-9 s with these (docs/benchmarks.md, "Starting Spark").
    """
    conf = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    if master.startswith("local"):
        flags = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"] if input_bytes <= SMALL_INPUT_BYTES else []
        conf["spark.driver.extraJavaOptions"] = " ".join([*flags, "-Xshare:auto"])
        conf["spark.authenticate"] = "true"  # other users of the machine reach 127.0.0.1 too; Spark makes the secret
        conf["spark.local.dir"] = str(scratch)  # shuffle files are for all to read: mode 0644
        conf["spark.driver.host"] = "127.0.0.1"
        conf["spark.driver.bindAddress"] = "127.0.0.1"
    return conf


def _run(command: Sequence[str], environment: Mapping[str, str], log: Path, settings: SparkSettings) -> int:
    """Run to the end in a process group of its own, which ends with this call. Raises `RunFailed` on time-out."""
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
            exit_status = _follow(process, log, settings.timeout_ms / 1000)
        finally:
            stop_process_group(process)
    if exit_status is None:
        raise RunFailed(
            f"the Spark job took more than {settings.timeout_ms} ms and was stopped; nothing was committed. Give it"
            " less input (limits.max_files, limits.max_bytes) or more time"
        )
    return exit_status


def _follow(process: subprocess.Popen[bytes], log: Path, timeout_s: float) -> int | None:
    """Wait for a job's end, and log meanwhile what our code says there: its exit status, `None` after `timeout_s`."""
    with log.open(encoding="utf-8", errors="replace") as lines:
        for number in range(math.ceil(timeout_s / _LOOK_S)):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(min(_LOOK_S, timeout_s - number * _LOOK_S))
            exit_status = process.poll()
            for said in filter(None, map(_OWN_LINE.fullmatch, lines)):
                _log.log(logging.getLevelNamesMapping()[said[1]], "%s", said[2])
            if exit_status is not None:
                return exit_status
    return None


def stop_process_group(process: subprocess.Popen[bytes]) -> None:
    """End a process that leads a group, and all of that, if it has not ended by itself: politely, then for good."""
    if process.poll() is not None:
        return
    for how in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):  # all of the group have ended meanwhile
            os.killpg(process.pid, how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_SECONDS)
