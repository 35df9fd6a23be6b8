"""From the core's errors to Airflow's: what a retry can mend is retried, what it can't fails at once, both clearly."""

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

HOPELESS = (InvalidInput, Corruption, TooManyErrors, TooManyUpdates, SourceChanged)  # the same again on the next try


@contextmanager
def hopeless_fails_at_once() -> Iterator[None]:
    """Turn errors that no retry can mend into `AirflowFailException`; others pass, and Airflow tries again."""
    try:
        yield
    except HOPELESS as error:
        raise airflow_error(error) from error


def airflow_error(error: PersistError) -> AirflowException:
    """What a task raises for it: `AirflowFailException` (no retry) or `SparkJobFailed` (another try)."""
    message = f"{error.kind}: {error}"
    return AirflowFailException(message) if isinstance(error, HOPELESS) else SparkJobFailed(message)
