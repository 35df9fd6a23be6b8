"""Spark jobs in a process of ours: finds `spark-submit`, starts it, hands it one job after another, follows its log.

    JobSpecs as blobs, their keys by `calls`, the location by `handover` -> spark-submit persist_spark/__main__.py

If the master is the URL of a Spark Connect server (`sc://host:port`), the same file runs in a plain Python, and the
plan runs in that server. No JVM is started, which is most of a small job's time.

The process's output goes to a log file of its own. What our own code says there, a line of JSON each (`LogFields`), is
logged here too; the end of it is shown only if a job left no answer.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

from persist_core.clock import SystemClock
from persist_core.errors import InvalidInput, RunFailed
from persist_core.location.settings import PersistLocation
from persist_core.location.uri import redact_uri, secrets_of
from persist_core.spark_job.calls import Calls
from persist_core.spark_job.causes import CauseFinder
from persist_core.spark_job.handover import (
    SCRATCH_PREFIX,
    hand_over,
    location_environment,
    properties_file,
    remove_leftovers,
    spark_default,
    spark_defaults,
)
from persist_core.spark_job.installation import (
    HUGE_METHODS,
    archive_flags,
    find_spark_submit,
    job_path,
    spark_environment,
    spark_home,
)
from persist_core.spark_job.jars import with_s3a_jars
from persist_core.spark_job.launch import Ended, Start
from persist_core.spark_job.spec import SMALL_INPUT_BYTES, JobSpec

LOCAL_MASTER = "local[*]"
CONNECT_SCHEME = "sc://"
ENV_CONNECT_TIMEOUT = "PERSIST_SPARK_CONNECT_TIMEOUT"  # seconds, for the job: until a server that is silent is given up
ENV_REMOTE = "SPARK_REMOTE"  # Spark's own: the Connect server of a process
ENV_LOG_FIELDS = "PERSIST_JOB_LOG_FIELDS"  # set: a job logs in lines of JSON
_LOOK_S = 1.0  # between two looks at the log of a job
# With one compiler the JVM keeps 48 MB for code: full after 80 commits, from where on nothing more was compiled.
SMALL_JVM = (HUGE_METHODS, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=240m")
JOB_TIMEOUT_MS = 24 * 3_600_000  # a bound, not an expectation
_STOP_SECONDS = 10  # between asking a job to stop and killing it
_TAIL_LINES, _TAIL_CHARS = 200, 8_000  # of the job's log, shown if it left no failure record

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SparkProcess:
    """Starts jobs in processes, which run in a Spark master, or in a Spark Connect server (`sc://host:port`).

    `conf` goes over the tuned defaults; `log_folder` keeps the logs (default: temporary); `end_s`: how long a process
    may take to end after its last job.
    """

    location: PersistLocation
    master: str = field(default=LOCAL_MASTER, repr=False)  # the URL of a Connect server may hold a token
    conf: Mapping[str, str] = field(default_factory=dict)
    timeout_ms: int = JOB_TIMEOUT_MS
    log_folder: Path | None = None
    end_s: float = _STOP_SECONDS

    @property
    def shown_master(self) -> str:
        """The master as it may be printed."""
        return redact_uri(self.master)

    def __call__(self, items: Sequence[JobSpec], arguments: Sequence[str]) -> Ended:
        """A `Start` with a process for each job. Raises what a job of `kept` does."""
        with self.kept() as start:
            return start(items, arguments)

    @contextmanager
    def kept(self) -> Iterator[Start]:
        """A `Start` whose process lives on, for all jobs of the body.

        A job gets another one if the process has died, if its items ask for other settings, or if it is large and the
        process is tuned for small ones. Raises `InvalidInput` if Spark is not installed, `RunFailed` after
        `timeout_ms`.
        """
        with ExitStack() as stack:
            running: _Running | None = None

            def start(items: Sequence[JobSpec], arguments: Sequence[str]) -> Ended:
                nonlocal running
                if running is None or not running.can_do(items):
                    stack.close()
                    running = stack.enter_context(self._started(items))
                ended = running.do(arguments, self.timeout_ms)
                return replace(ended, seen=_without(secrets_of(self.master), ended.seen))

            yield start

    @contextmanager
    def _started(self, items: Sequence[JobSpec]) -> Iterator[_Running]:
        if self.log_folder is not None:
            self.log_folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=SCRATCH_PREFIX) as scratch, closing(Calls()) as calls:
            path = (self.log_folder or Path(scratch)) / f"{items[0].config.name}-{items[0].attempt}.log"
            with self._command(items) as (command, environment), path.open("wb") as log:
                given = {**os.environ, **spark_environment(os.environ), ENV_LOG_FIELDS: "1"}
                given.pop(ENV_REMOTE, None)  # of the shell: the master says where the job runs
                process = _start(command, {**given, **environment, **calls.environment}, log)
                with path.open(encoding="utf-8", errors="replace") as lines:
                    running = _Running(process, calls, lines, items)
                    end_s = 0.0
                    try:
                        yield running
                        end_s = self.end_s  # it is idle, and ends by itself
                    finally:
                        calls.close()
                        try:
                            with contextlib.suppress(subprocess.TimeoutExpired):
                                process.wait(end_s)
                        finally:
                            stop_process_group(process)

    @contextmanager
    def _command(self, items: Sequence[JobSpec]) -> Iterator[tuple[list[str], Mapping[str, str]]]:
        location = location_environment(self.location)
        if self.master.startswith(CONNECT_SCHEME):
            if self.conf:
                raise InvalidInput(
                    f"--conf {', '.join(self.conf)}: a Spark Connect server takes its settings when it starts; leave"
                    " --conf out, and set them there"
                )
            yield [sys.executable, str(job_path())], {**location, **connect_environment(self.master)}
            return
        conf = {**tuned_conf(self.master, items), **self.conf}
        home = spark_home(os.environ)
        conf = with_s3a_jars(
            conf, [self.location.blob_uri, *(uri for item in items for uri in item.input_uris)], os.environ, home
        )
        given = hand_over(location, master=self.master, deploy_mode=None, conf=conf)
        with (
            properties_file(given.properties, spark_defaults(os.environ)) as file,
            scratch_folders(self.master, conf) as folders,
        ):
            options = [part for pair in {**conf, **given.conf}.items() for part in ("--conf", "=".join(pair))]
            if file is not None:
                options += ["--properties-file", str(file)]
            submit = [str(find_spark_submit(os.environ)), "--master", self.master, "--name", name_of(items)]
            yield [*submit, *options, str(job_path())], {**given.environment, **folders}


def is_local(master: str) -> bool:
    """True if Spark runs on this machine: "localhost" is a host."""
    return master == "local" or master.startswith(("local[", "local-cluster["))


@contextmanager
def scratch_folders(master: str, conf: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """The variable that leads a local Spark to folders of mode 0700 for its own files, which are for all to read: one
    on each disk that the environment, `conf` or Spark's defaults name. The folders go with the body. On a cluster its
    administrators say.

    Raises `InvalidInput` if none can be made.
    """
    if not is_local(master):
        yield {}
        return
    name = "spark.local.dir"
    told = os.environ.get("SPARK_LOCAL_DIRS") or conf.get(name) or spark_default(os.environ, name)
    disks = [Path(name.strip()).absolute() for name in (told or tempfile.gettempdir()).split(",") if name.strip()]
    remove_leftovers(SystemClock(), disks)
    made, failed = [], ""
    with ExitStack() as stack:
        for disk in disks:
            try:  # what is left of a job that was killed may still write there, and ends by itself
                disk.mkdir(parents=True, exist_ok=True)
                folder = tempfile.TemporaryDirectory(prefix=SCRATCH_PREFIX, dir=disk, ignore_cleanup_errors=True)
                made.append(stack.enter_context(folder))
            except OSError as error:  # as Spark does, go on with the others
                failed = str(error)
        if not made:
            raise InvalidInput(
                f"no folder for Spark's own files can be made: {failed}; correct SPARK_LOCAL_DIRS, else spark.local.dir"
            )
        yield {"SPARK_LOCAL_DIRS": ",".join(made)}


def name_of(items: Sequence[JobSpec]) -> str:
    """The name of a job, for Spark's own pages."""
    first = items[0].description
    more = f" and {len(items) - 1} more" if len(items) > 1 else ""
    return f"persist {first.shard} {first.interval}{more}"


class LogFields(logging.Formatter):
    """A line of JSON for each record, for `SparkProcess`."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps({"level": record.levelno, "logger": record.name, "message": record.getMessage()})


def connect_environment(url: str) -> dict[str, str]:
    """The environment that leads a job to the Connect server at `url`. Not on argv: a URL may hold a token."""
    return {ENV_REMOTE: url}


def tuned_conf(master: str, items: Sequence[JobSpec]) -> dict[str, str]:
    """Spark settings of a process: what all items ask for, over ours, which shorten start-up.

    Local masters get JVM flags, before the ones of Spark's own defaults, and other users of the machine are kept out:
    elsewhere the driver is not ours to tune. Their files get modes by our umask, which Hadoop ignores.
    Measured for a trivial job on 2 cores: 10-13 s untuned, 8.5-9 s with these (docs/benchmarks.md, "Starting Spark").
    """
    conf = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    if is_local(master):
        flags: Sequence[str] = SMALL_JVM if _is_small(items) else (HUGE_METHODS,)
        given = spark_default(os.environ, "spark.driver.extraJavaOptions") or ""
        if re.search(r"-XX:\+Use\w+GC", given):  # a JVM with two collectors does not start
            flags = [flag for flag in flags if not flag.endswith("GC")]
        conf["spark.driver.extraJavaOptions"] = " ".join(
            [*flags, *archive_flags(os.environ), "-Xshare:auto", given]
        ).rstrip()
        conf["spark.authenticate"] = "true"  # other users of the machine reach 127.0.0.1 too; Spark makes the secret
        conf["spark.driver.host"] = "127.0.0.1"
        conf["spark.driver.bindAddress"] = "127.0.0.1"
        conf |= _umask()
    return {**conf, **_asked(items)}


def _umask() -> dict[str, str]:
    """Hadoop's setting for the umask of this process, if the system shows it: to ask for it is to change it."""
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="utf-8").splitlines() if status.exists() else ()
    umask = next((line.split()[1] for line in lines if line.startswith("Umask:")), None)
    return {} if umask is None else {"spark.hadoop.fs.permissions.umask-mode": umask}


def _is_small(items: Sequence[JobSpec]) -> bool:
    return sum(item.description.input_bytes for item in items) <= SMALL_INPUT_BYTES


def _asked(items: Sequence[JobSpec]) -> dict[str, str]:
    asked = [set(item.spark_conf.items()) for item in items]
    return dict(set.intersection(*asked)) if asked else {}


def _start(command: Sequence[str], environment: Mapping[str, str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise RunFailed(f"{command[0]} can't be started: {error.strerror}; nothing was committed") from error


class _Running:
    def __init__(self, process: subprocess.Popen[bytes], calls: Calls, log: IO[str], items: Sequence[JobSpec]) -> None:
        self._process, self._calls, self._log = process, calls, log
        self._is_small, self._asked = _is_small(items), _asked(items)

    def can_do(self, items: Sequence[JobSpec]) -> bool:
        """True if it runs, with the settings that these items need."""
        fits = self._asked == _asked(items) and (_is_small(items) or not self._is_small)
        return fits and self._process.poll() is None

    def do(self, arguments: Sequence[str], timeout_ms: int) -> Ended:
        """Do one call to its end, and log meanwhile what our code says. Raises `RunFailed` after `timeout_ms`."""
        self._calls.begin(arguments)
        causes, tail = CauseFinder(), deque[str](maxlen=_TAIL_LINES)
        for number in range(math.ceil(timeout_ms / 1000 / _LOOK_S)):
            status = self._look(min(_LOOK_S, timeout_ms / 1000 - number * _LOOK_S))
            for line in self._log:
                _say(line)
                causes.see(line)
                tail.append(line)
            if status is not None:
                cause = causes.cause(status) if status else None
                shown = "".join(tail)[-_TAIL_CHARS:]
                return Ended(f"Its exit status is {status}. The end of its log:\n{shown}", cause, status)
        stop_process_group(self._process)
        raise RunFailed(
            f"the Spark job took more than {timeout_ms} ms and was stopped; nothing was committed. Give it"
            " less input (limits.max_files, limits.max_bytes) or more time"
        )

    def _look(self, timeout_s: float) -> int | None:
        """The status of the call, or of the process if that has ended; `None` if the call goes on."""
        try:
            status = self._calls.status(timeout_s)
        except EOFError:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_SECONDS)
            stop_process_group(self._process)
            status = None
        if status is None and self._process.poll() is not None:
            stop_process_group(self._process)  # if the JVM has died, the driver's Python lives on
            status = self._process.returncode
        return status


def _say(line: str) -> None:
    """Log what our own code says in a line of a job's log. Each of ours is one write, so it is read whole."""
    with contextlib.suppress(ValueError, TypeError, KeyError):  # not one of ours
        said = json.loads(line)
        if str(said["logger"]).startswith("persist_spark."):
            _log.log(said["level"], "%s", said["message"])


def _without(secrets: Iterable[str], text: str) -> str:
    for secret in secrets:
        text = text.replace(secret, "***")
    return text


def stop_process_group(process: subprocess.Popen[bytes]) -> None:
    """End a process that leads a group, and all of that: politely, then for good."""
    if process.poll() is not None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        return
    for how in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):  # all of the group have ended meanwhile
            os.killpg(process.pid, how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_SECONDS)
