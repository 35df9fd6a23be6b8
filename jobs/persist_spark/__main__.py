"""The spark-submit entry point: `--spec-key KEY --spec-sha256 HEX` for each item, the location in the environment.

    item -> a session of its own -> manifest.json (of a dry run its report), or failure.json, which says why

Items come as arguments, or by calls, one job after another (`persist_core.spark_job.calls`). They run side by side. One
that fails leaves the others alone. Exit status 0: all are staged. Anything else: some are not.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from persist_core.config.collection import CollectionConfig
from persist_core.config.view import ViewConfig
from persist_core.errors import PersistError, ServerLost, StorageError, TooManyErrors
from persist_core.handles.side_by_side import side_by_side
from persist_core.location.open import OpenLocation, open_location
from persist_core.location.settings import location_from
from persist_core.spark_job.answer import record_failure
from persist_core.spark_job.calls import BROKEN, answer_calls
from persist_core.spark_job.process import ENV_LOG_FIELDS, LogFields, name_of
from persist_core.spark_job.spec import JobSpec, MergeInputs, load_spec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SIDE_BY_SIDE = 4  # items, small if there are several: 8 threads gained 8 % more on 2 cores, and take twice the memory


def main(argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Run the items that `argv` or the calls name in the location that `env` names; the process's exit status."""
    with open_location(location_from(env=env)) as location, ExitStack() as stack:
        started: list[SparkSession] = []

        def do(arguments: Sequence[str]) -> int:
            named = [arguments[first : first + 4] for first in range(0, len(arguments) or 1, 4)]
            items = [item for each in named if (item := _loaded(location, each)) is not None]
            missing = 0 if len(items) == len(named) else 1
            return max(missing, *_run_all(location, items, started, stack)) if items else missing

        return answer_calls(argv, env, do)


def _loaded(location: OpenLocation, argv: Sequence[str]) -> JobSpec | None:
    try:
        return load_spec(location.blob, argv)
    except Exception as error:  # noqa: BLE001 - the others are done
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return None


def _run_all(
    location: OpenLocation, items: Sequence[JobSpec], started: list[SparkSession], stack: ExitStack
) -> list[int]:
    """Run the items in one Spark, which is started if it is not: their statuses, see `run_item`."""
    from persist_spark.session import build_session

    try:
        if not started:
            started.append(build_session(name_of(items)))
            stack.callback(started[0].stop)
    except Exception as error:  # noqa: BLE001 - each item records it
        return [_failed(location, item, error) for item in items]
    return side_by_side(lambda item: run_item(started[0], item, location), items, threads=SIDE_BY_SIDE)


def run_item(spark: SparkSession, item: JobSpec, location: OpenLocation) -> int:
    """Run one item beside others in the context or the server of `spark`: 0, or the status of its failure, which it
    records: 1, or `BROKEN` for an error from elsewhere."""
    from persist_spark.compat import is_connect
    from persist_spark.connect import is_lost
    from persist_spark.fill import run_fill_job
    from persist_spark.merge import run_merge_job
    from persist_spark.upsert.job import run_write_job
    from persist_spark.view.refresh import run_view_job

    jobs: dict[type, Callable[[SparkSession, JobSpec, OpenLocation], object]] = {
        CollectionConfig: run_fill_job if item.description.is_change else run_write_job,
        ViewConfig: run_view_job,
        MergeInputs: run_merge_job,
    }
    try:
        jobs[type(item.config)](spark, item, location)
    except Exception as error:  # noqa: BLE001 - its starter raises it
        if not (is_connect(spark) and is_lost(error)):
            return _failed(location, item, error)
        lost = f"the Spark Connect server ended while it ran the job; nothing was committed. {error}"
        return _failed(location, item, ServerLost(lost))
    return 0


def _failed(location: OpenLocation, item: JobSpec, error: Exception) -> int:
    """Record why an item failed, best effort, since the store itself may have failed; its status."""
    samples = error.samples if isinstance(error, TooManyErrors) else ()
    if isinstance(error, PersistError):
        kind, message = error.kind, str(error)
        sys.stderr.write(f"{kind}: {message}\n")
    else:
        kind, message = "unexpected", f"{type(error).__name__}: {error}"
        traceback.print_exception(error)
    try:
        record_failure(location.blob, item, kind, message, samples)
    except StorageError as unreachable:
        sys.stderr.write(f"the failure could not be recorded: {unreachable}\n")
    return 1 if isinstance(error, PersistError) else BROKEN


if __name__ == "__main__":
    handler = logging.StreamHandler()  # on stderr
    handler.setFormatter(LogFields() if ENV_LOG_FIELDS in os.environ else logging.Formatter(logging.BASIC_FORMAT))
    logging.basicConfig(handlers=[handler])
    logging.getLogger("persist_spark").setLevel(logging.INFO)
    sys.exit(main(sys.argv[1:], os.environ))
