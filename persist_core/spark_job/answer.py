"""The answer of a Spark job: a manifest or a dry run's report (exit code 0), or a failure record (any other exit code).

the job: record_failure -> <attempt>/failure.json -> the starter: named_failure -> the error to raise
        died                                      ->              job_failure   -> `spark_job.deaths` for the next try
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from persist_core.errors import (
    Corruption,
    PersistError,
    RejectedRecord,
    RunFailed,
    ServerLost,
    StorageError,
    TooManyErrors,
)
from persist_core.handles.client import PersistClient
from persist_core.ids import time_of_uuid7
from persist_core.keys import attempt_of, batches_prefix, check_key_name, failure_key
from persist_core.location.blob import Blob
from persist_core.sealed import Sealed
from persist_core.spark_job.causes import KILLED, STOPPED, Cause, find_cause
from persist_core.spark_job.deaths import record_death
from persist_core.spark_job.spec import JobSpec

MAX_FAILURES = 1_000  # records that are read to find the newest refused batch
_MAX_MESSAGE_CHARS = 20_000  # Spark's messages may hold whole plans
_MAX_SHOWN_CHARS = 600  # of such a message in an error


@dataclass(frozen=True)
class Failure(Sealed):
    """Why an attempt failed. `error` is the kind of a `PersistError`, or any word for other errors."""

    KIND = "failure"

    error: str
    message: str
    samples: tuple[RejectedRecord, ...] = ()


@dataclass(frozen=True)
class RejectedBatch:
    """The newest batch of a shard that was refused because too many of its records were errors, with samples of them.

    `refused_ms` is when its attempt started.
    """

    shard: str
    attempt: str
    refused_ms: int
    message: str
    samples: tuple[RejectedRecord, ...]


def record_failure(blob: Blob, spec: JobSpec, kind: str, message: str, samples: Sequence[RejectedRecord] = ()) -> None:
    """Store why the attempt failed: see `Failure`."""
    failure = Failure(kind, message[:_MAX_MESSAGE_CHARS], tuple(samples))
    blob.set(failure_key(spec.description.shard, spec.attempt), failure.encode())


def named_failure(client: PersistClient, spec: JobSpec) -> PersistError | None:
    """The error of ours that the attempt's failure record names; `None` without a record, or for another error."""
    found = _failure(client, spec)
    error = error_of_kind(found.error, found.message)
    return error if error.kind == found.error else None


def _failure(client: PersistClient, spec: JobSpec) -> Failure:
    """The failure record; of empty texts without one, and the damage of one that can't be read."""
    key = failure_key(spec.description.shard, spec.attempt)
    data = client.blob.get(key)
    try:
        return Failure("", "") if data is None else Failure.decode(data, what=key)
    except Corruption as error:
        return Failure(error.kind, str(error))


def job_failure(
    client: PersistClient,
    spec: JobSpec,
    seen: str,
    cause: Cause | None = None,
    exit_status: int | None = None,
    *,
    is_alone: bool = True,
) -> RunFailed:
    """The error of an attempt that neither answered nor named an error of ours (`named_failure`).

    If the cause is known, the first and last lines state it. `cause` is from the job's log, `seen` is what the starter
    saw. The job has died. That is recorded, unless its `exit_status` says that it was asked to end, no file can be the
    cause, or the job had other items too (not `is_alone`).
    """
    description = spec.description
    what = f"The Spark job for {description.interval} of shard {description.shard} (attempt {spec.attempt})"
    told = f"{what} ended without an answer; nothing was committed. {seen}"
    found = _failure(client, spec)
    if found.error:
        # Its message has the client's error, which looks like a wrong host or port.
        cause = None if found.error == ServerLost.kind else find_cause(found.message.splitlines()) or cause
        told = f"{what} failed; nothing was committed. {found.error}: {_cut(found.message)}"
    is_no_files_fault = cause is not None and cause.is_no_files_fault() and exit_status not in KILLED
    if is_alone and not is_no_files_fault and exit_status not in STOPPED and spec.input_uris:
        with suppress(StorageError):  # the failure counts
            record_death(client.blob, spec)
            told = f"{told.rstrip()}\nThe next try reads the files apart, to find out if one of them is the cause"
    failure = ServerLost if found.error == ServerLost.kind else RunFailed
    return failure(told if cause is None else f"{cause}.\n{told.rstrip()}\nThe cause: {cause}")


def _cut(message: str) -> str:
    """The start of a message: after it come Spark's plans and stack traces, which the job's log has in full."""
    if len(message) <= _MAX_SHOWN_CHARS:
        return message
    return f"{message[:_MAX_SHOWN_CHARS]}... ({len(message)} characters; the job's log has all)"


def newest_rejected(client: PersistClient, shard: str) -> RejectedBatch | None:
    """Facts about the newest refused batch; `None` without one, or if GC has deleted its record.

    Raises `InvalidName`, and `CorruptArtifact` for a damaged record.
    """
    check_key_name(shard)
    listed = client.blob.list_keys_and_metadata(batches_prefix(shard))
    found = ((attempt_of(file.key, failure_key), file.key) for file in listed)
    failures = sorted(((attempt, key) for attempt, key in found if attempt is not None), reverse=True)
    for attempt, key in failures[:MAX_FAILURES]:  # newest first: attempts are UUIDv7s
        data = client.blob.get(key)
        failure = None if data is None else Failure.decode(data, what=key)
        if failure is not None and failure.error == TooManyErrors.kind:
            return RejectedBatch(shard, attempt, time_of_uuid7(attempt) or 0, failure.message, failure.samples)
    return None


def error_of_kind(kind: str, message: str) -> PersistError:
    """An error of the class with this `kind` and message; `RunFailed` for an unknown kind."""
    pending: list[type[PersistError]] = [PersistError]
    while pending:  # bounded: a tree of classes
        candidate = pending.pop()
        if candidate.kind == kind:
            return candidate(message)
        pending += candidate.__subclasses__()
    return RunFailed(f"{kind}: {message}")
