"""A Spark job in a process of its own: finds `spark-submit`, starts the job, follows its log.

    JobSpecs as blobs, their keys on argv, the location by `handover` -> spark-submit persist_spark/__main__.py

If the master is the URL of a Spark Connect server (`sc://host:port`), the same file runs in a plain Python, and the
plan runs in that server. No JVM is started, which is most of a small job's time.

The job's output goes to a log file of its own. What our own code says there, a line of JSON each (`LogFields`), is
logged here too; the end of it is shown only if the job left no answer.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from persist_core.errors import InvalidInput, RunFailed
from persist_core.location.settings import PersistLocation
from persist_core.location.uri import redact_uri, secrets_of
from persist_core.spark_job.causes import find_cause
from persist_core.spark_job.handover import hand_over, location_environment, properties_file, spark_defaults
from persist_core.spark_job.installation import find_spark_submit, job_path, spark_environment, spark_home
from persist_core.spark_job.jars import with_s3a_jars
from persist_core.spark_job.launch import Ended
from persist_core.spark_job.spec import JobSpec

LOCAL_MASTER = "local[*]"
CONNECT_SCHEME = "sc://"
ENV_CONNECT_TIMEOUT = "PERSIST_SPARK_CONNECT_TIMEOUT"  # seconds, for the job: until a server that is silent is given up
ENV_LOG_FIELDS = "PERSIST_JOB_LOG_FIELDS"  # set: a job logs in lines of JSON
_LOOK_S = 1.0  # between two looks at the log of a job
SMALL_INPUT_BYTES = 64 << 20  # up to here the JVM's start-up costs more than its better compiler would win
JOB_TIMEOUT_MS = 24 * 3_600_000  # a bound, not an expectation
_STOP_SECONDS = 10  # between asking a job to stop and killing it
_TAIL_BYTES = 8_000  # of the job's log, shown if it left no failure record

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SparkProcess:
    """Starts jobs in processes, which run in a Spark master, or in a Spark Connect server (`sc://host:port`).

    `conf` goes over the tuned defaults; `log_folder` keeps the logs (default: temporary).
    """

    location: PersistLocation
    master: str = field(default=LOCAL_MASTER, repr=False)  # the URL of a Connect server may hold a token
    conf: Mapping[str, str] = field(default_factory=dict)
    timeout_ms: int = JOB_TIMEOUT_MS
    log_folder: Path | None = None

    @property
    def shown_master(self) -> str:
        """The master as it may be printed."""
        return redact_uri(self.master)

    def __call__(self, items: Sequence[JobSpec], arguments: Sequence[str]) -> Ended:
        """A `Start`. Raises `InvalidInput` if Spark is not installed, `RunFailed` after `timeout_ms`."""
        if self.log_folder is not None:
            self.log_folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="persist-") as scratch:
            log = (self.log_folder or Path(scratch)) / f"{items[0].config.name}-{items[0].attempt}.log"
            with self._command(items, arguments, scratch) as (command, environment):
                given = {**os.environ, **spark_environment(os.environ), ENV_LOG_FIELDS: "1", **environment}
                exit_status = _run(command, given, log, self.timeout_ms)
            with log.open(encoding="utf-8", errors="replace") as lines:
                cause = find_cause(lines, exit_status) if exit_status else None
            tail = log.read_bytes()[-_TAIL_BYTES:].decode("utf-8", "replace")
        for secret in secrets_of(self.master):
            tail = tail.replace(secret, "***")
        return Ended(f"Its exit status is {exit_status}. The end of its log:\n{tail}", cause, exit_status)

    @contextmanager
    def _command(
        self, items: Sequence[JobSpec], arguments: Sequence[str], scratch: str
    ) -> Iterator[tuple[list[str], Mapping[str, str]]]:
        """The whole command line of one job, and what goes over its starter's environment."""
        location = location_environment(self.location)
        if self.master.startswith(CONNECT_SCHEME):
            if self.conf:
                raise InvalidInput(
                    f"--conf {', '.join(self.conf)}: a Spark Connect server takes its settings when it starts; leave"
                    " --conf out, and set them there"
                )
            command = [sys.executable, str(job_path()), *arguments]
            yield command, {**location, **connect_environment(self.master)}
            return
        conf = {**tuned_conf(self.master, items, scratch), **self.conf}
        home = spark_home(os.environ)
        conf = with_s3a_jars(
            conf, [self.location.blob_uri, *(uri for item in items for uri in item.input_uris)], os.environ, home
        )
        given = hand_over(location, master=self.master, deploy_mode=None, conf=conf)
        with properties_file(given.properties, spark_defaults(os.environ)) as file:
            options = [part for pair in {**conf, **given.conf}.items() for part in ("--conf", "=".join(pair))]
            if file is not None:
                options += ["--properties-file", str(file)]
            submit = [str(find_spark_submit(os.environ)), "--master", self.master, "--name", name_of(items)]
            yield [*submit, *options, str(job_path()), *arguments], given.environment


def is_local(master: str) -> bool:
    """True if Spark runs on this machine: "localhost" is a host."""
    return master == "local" or master.startswith(("local[", "local-cluster["))


def name_of(items: Sequence[JobSpec]) -> str:
    """The name of a job, for Spark's own pages."""
    first = items[0].description
    more = f" and {len(items) - 1} more" if len(items) > 1 else ""
    return f"persist {first.shard} {first.interval}{more}"


class LogFields(logging.Formatter):
    """A line of JSON for each record, for `SparkProcess`."""

    def format(self, record: logging.LogRecord) -> str:
        """Level, logger and message."""
        return json.dumps({"level": record.levelno, "logger": record.name, "message": record.getMessage()})


def connect_environment(url: str) -> dict[str, str]:
    """The environment that leads a job to the Connect server at `url`. Not on argv: a URL may hold a token."""
    return {"SPARK_REMOTE": url}


def tuned_conf(master: str, items: Sequence[JobSpec], scratch: str | Path) -> dict[str, str]:
    """Spark settings of a process: what all items ask for, over ours, which shorten start-up.

    Local masters get JVM flags and `scratch`, a folder of mode 0700, and other users of the machine are kept out:
    elsewhere driver and disks are not ours to tune.
    Measured for a trivial job on 2 cores: 10-13 s untuned, 8.5-9 s with these (docs/benchmarks.md, "Starting Spark").
    """
    conf = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    if is_local(master):
        input_bytes = sum(item.description.input_bytes for item in items)
        flags = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"] if input_bytes <= SMALL_INPUT_BYTES else []
        conf["spark.driver.extraJavaOptions"] = " ".join([*flags, "-Xshare:auto"])
        conf["spark.authenticate"] = "true"  # other users of the machine reach 127.0.0.1 too; Spark makes the secret
        conf["spark.local.dir"] = str(scratch)  # shuffle files are for all to read: mode 0644
        conf["spark.driver.host"] = "127.0.0.1"
        conf["spark.driver.bindAddress"] = "127.0.0.1"
    asked = [set(item.spark_conf.items()) for item in items]
    return {**conf, **(dict(set.intersection(*asked)) if asked else {})}


def _run(command: Sequence[str], environment: Mapping[str, str], log: Path, timeout_ms: int) -> int:
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
            exit_status = _follow(process, log, timeout_ms / 1000)
        finally:
            stop_process_group(process)
    if exit_status is None:
        raise RunFailed(
            f"the Spark job took more than {timeout_ms} ms and was stopped; nothing was committed. Give it"
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
            for line in lines:  # each of ours is one write, so it is read whole
                with contextlib.suppress(ValueError, TypeError, KeyError):  # not one of ours
                    said = json.loads(line)
                    if str(said["logger"]).startswith("persist_spark."):
                        _log.log(said["level"], "%s", said["message"])
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
