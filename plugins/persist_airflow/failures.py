"""From the core's errors to Airflow's: errors that a retry cannot correct fail the task without further tries.

The text of each begins with the kind, which is what the table in docs/operations.md names.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from persist_airflow.compat import AirflowException, AirflowFailException
from persist_core.errors import (
    CheckFailed,
    Corruption,
    FeedChanged,
    InvalidInput,
    PersistError,
    SourceChanged,
    TooManyErrors,
    TooManyUpdates,
    UnclearOrder,
    UnreadableFiles,
)
from persist_core.protocol.conflicts import ConflictRecord


@functools.lru_cache(maxsize=32)
def warn_once(log: logging.Logger, text: str) -> None:
    """Log a failure for which no task is to fail, once for each process."""
    log.warning("%s", text)


class PersistCasConflict(AirflowException):
    """The append lost to another writer. Nothing is lost or doubled; the next try mints again from the new upper.

    `record` has both sides: expected upper, found upper, who won.
    """

    def __init__(self, record: ConflictRecord) -> None:
        super().__init__(str(record))
        self.record = record


class PersistStepFailed(AirflowException):
    """A task could not do its step, and another try may succeed. The message starts with the kind of the error."""


class SparkJobFailed(PersistStepFailed):
    """The write stage failed, and another try may succeed. Nothing that a reader sees was changed."""


HOPELESS = (
    InvalidInput,
    Corruption,
    TooManyErrors,
    TooManyUpdates,
    SourceChanged,
    UnclearOrder,
    CheckFailed,
    FeedChanged,
    UnreadableFiles,
)  # the next try would fail in the same way


@contextmanager
def fail_without_retry() -> Iterator[None]:
    """Turn our errors into Airflow's, with the kind before the message: if no retry can help, into
    `AirflowFailException`, others into `PersistStepFailed`, after which Airflow tries again."""
    try:
        yield
    except PersistError as error:
        raise airflow_error(error) from error


def result_before(operator: Any, result: Any) -> Any:
    """The result of the task before, as `operator` got it. Raises `AirflowFailException` if that task left none."""
    if result is None:
        before = ", ".join(sorted(operator.upstream_task_ids))
        raise AirflowFailException(
            f"{before} left no result: it was marked as success, or its XCom was deleted, or do_xcom_push is off. "
            f"Clear {before} of this dag run together with the tasks after it"
        )
    return result


def failed_together(what: str, failed: Mapping[str, Mapping[str, Any]], of: int) -> AirflowException:
    """The exception of a task for errors of several shards, by name. It has them as `failed`, for alerts."""
    listed = "; ".join(f"{name}: {each['error']}" for name, each in failed.items())
    others = ", the others are done" if len(failed) < of else ""
    message = f"{len(failed)} of {of} {what} failed{others}: {listed}"
    may_retry = any(each["may_retry"] for each in failed.values())
    error = PersistStepFailed(message) if may_retry else AirflowFailException(message)
    vars(error)["failed"] = {name: each["error"] for name, each in failed.items()}
    return error


def airflow_error(error: PersistError, passing: type[AirflowException] = PersistStepFailed) -> AirflowException:
    """The exception of a task for an error: `AirflowFailException` (no retry) or `passing` (another try)."""
    message = f"{error.kind}: {error}"
    return AirflowFailException(message) if isinstance(error, HOPELESS) else passing(message)
