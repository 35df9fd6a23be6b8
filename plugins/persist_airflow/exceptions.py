"""Exceptions of persist tasks for Airflow. Everything else is the core's `PersistError`."""

from __future__ import annotations

from persist_airflow.compat import AirflowException
from persist_core.protocol.conflicts import ConflictRecord


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
