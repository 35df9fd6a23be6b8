"""A long job says every 10 s what it does: one line in its log.

    shard [lower, upper): 20 s, write; 31 files, 512.0 MB; 1200000 updates before; 12 of 40 tasks

Stages are our code's, in this order: look up files, decode, plan, write, check. Tasks are Spark's own: of the
jobs that run now, in a context with other jobs theirs too; of a Connect session its own, with the bytes that they read.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from pyspark.sql import SparkSession

from persist_core.clock import SystemClock
from persist_core.contents.stats import show_bytes
from persist_spark.compat import SPARK_VERSION, is_connect

INTERVAL_S = 10.0

log = logging.getLogger(__name__)


class _Progress:
    """The progress of one job. One thread works and another one tells, so each change is a single assignment."""

    known: tuple[str, ...]

    def __init__(self) -> None:
        self.stage, self.known, self.tasks = "look up files", (), ""

    def __call__(self, stages: Iterable[Any] | None, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        """Take the report of a Spark Connect server on the plan that it runs."""
        del inflight_tasks, operation_id
        found = [] if done else list(stages or ())
        self.tasks = _tasks((each.num_completed_tasks, each.num_tasks) for each in found)
        if self.tasks:
            self.tasks += f", {show_bytes(sum(each.num_bytes_read for each in found))} read"


_current: ContextVar[_Progress | None] = ContextVar("_current", default=None)


def enter(stage: str, *known: str) -> None:
    """The job of this thread is in `stage` from now on, and so much more is known of its input or output."""
    progress = _current.get()
    if progress is not None:
        progress.stage, progress.known = stage, (*progress.known, *known)


@contextmanager
def told(own: SparkSession, title: str) -> Iterator[None]:
    """Log a line each `INTERVAL_S` about the job of this thread, which runs in the session `own`, until it ends."""
    progress, over, start_ms = _Progress(), threading.Event(), SystemClock().now_ms()
    handlers: list[Any] = [progress] if is_connect(own) and SPARK_VERSION >= (4, 0) else []
    for handler in handlers:
        own.registerProgressHandler(handler)

    def tell() -> None:
        while not over.wait(INTERVAL_S):
            tasks = progress.tasks if is_connect(own) else _running(own)
            passed_s = (SystemClock().now_ms() - start_ms) // 1000
            said = (f"{passed_s} s, {progress.stage}", *progress.known, tasks)
            log.info("%s: %s", title, "; ".join(filter(None, said)))

    token = _current.set(progress)
    teller = threading.Thread(target=tell, name="persist-progress", daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join(INTERVAL_S)  # it may just be asking a JVM that is busy
        _current.reset(token)
        for handler in handlers:
            own.removeProgressHandler(handler)


def _running(own: SparkSession) -> str:
    """The tasks of the jobs that run in this session's context."""
    try:
        tracker = own.sparkContext.statusTracker()
        jobs = [job for number in tracker.getActiveJobsIds() if (job := tracker.getJobInfo(number)) is not None]
        stages = [tracker.getStageInfo(number) for job in jobs for number in job.stageIds]
    except Exception:  # noqa: BLE001 - a driver that is ending; the job itself reports why
        return ""
    return _tasks((stage.numCompletedTasks, stage.numTasks) for stage in stages if stage is not None)


def _tasks(counts: Iterable[tuple[int, int]]) -> str:
    done, total = map(sum, zip((0, 0), *counts, strict=True))
    return f"{done} of {total} tasks" if total else ""
