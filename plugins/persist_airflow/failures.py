"""From the core's errors to Airflow's: errors that a retry cannot correct fail the task without further tries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from persist_airflow.compat import AirflowException, AirflowFailException
from persist_airflow.exceptions import SparkJobFailed
from persist_core.errors import (
    Corruption,
    InvalidInput,
    PersistError,
    SourceChanged,
    TooManyErrors,
    TooManyUpdates,
)

HOPELESS = (
    InvalidInput,
    Corruption,
    TooManyErrors,
    TooManyUpdates,
    SourceChanged,
)  # the next try would fail in the same way


@contextmanager
def fail_without_retry() -> Iterator[None]:
    """Turn errors that no retry can correct into `AirflowFailException`; others pass, and Airflow tries again."""
    try:
        yield
    except HOPELESS as error:
        raise airflow_error(error) from error


def airflow_error(error: PersistError) -> AirflowException:
    """What a task raises for an error: `AirflowFailException` (no retry) or `SparkJobFailed` (another try)."""
    message = f"{error.kind}: {error}"
    return AirflowFailException(message) if isinstance(error, HOPELESS) else SparkJobFailed(message)
