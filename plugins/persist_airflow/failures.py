"""From the core's errors to Airflow's: what a retry can mend is retried, what it can't fails at once, both clearly."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from persist_airflow.compat import AirflowException, AirflowFailException
from persist_airflow.exceptions import SparkJobFailed
from persist_core.errors import (
    Corruption,
    InvalidInput,
    PersistError,
    RunFailed,
    SourceChanged,
    TooManyErrors,
    TooManyUpdates,
)
from persist_core.handles.client import PersistClient
from persist_core.shard.batch import BatchDescription
from persist_core.shard.keys import failure_key
from persist_core.spark_job.submit import error_of_kind

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


def spark_failure(client: PersistClient, description: BatchDescription, attempt: str, cause: str) -> PersistError:
    """Why a spark-submit job failed: the error that its failure record names, else `RunFailed` with `cause`."""
    data = client.blob.get(failure_key(description.shard, attempt))
    if data is not None:
        record = json.loads(data)
        return error_of_kind(str(record["kind"]), str(record["message"]))
    return RunFailed(
        f"the Spark job for {description.interval} of shard {description.shard} (attempt {attempt}) died before it"
        f" could say why; nothing was changed. {cause}"
    )
