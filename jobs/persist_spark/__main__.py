"""The spark-submit entry point: `--spec-key KEY --spec-sha256 HEX`, the location in the environment.

Exit code 0: the manifest is staged. Anything else: it is not, and `failure.json` of the attempt says why, if the
location could still be reached.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from persist_core.config.collection import CollectionConfig
from persist_core.config.view import ViewConfig
from persist_core.errors import PersistError, RejectedRecord, StorageError, TooManyErrors
from persist_core.location.open import OpenLocation, open_location
from persist_core.location.settings import location_from
from persist_core.shard.keys import dry_run_key, manifest_key
from persist_core.spark_job.answer import record_failure
from persist_core.spark_job.spec import JobSpec, MergeInputs, load_spec
from persist_core.spark_job.submit import LOG_FORMAT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from persist_core.shard.batch import BatchManifest


def main(argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Run the write job that `argv` describes in the location that `env` names; the process's exit code."""
    with open_location(location_from(env=env)) as location:
        spec = load_spec(location.blob, argv)
        try:
            _run(spec, location)
        except PersistError as error:
            samples = error.samples if isinstance(error, TooManyErrors) else ()
            _record_failure(location, spec, error.kind, str(error), samples)
            sys.stderr.write(f"{error.kind}: {error}\n")
            return 1
        except Exception as error:
            _record_failure(location, spec, "unexpected", f"{type(error).__name__}: {error}")
            raise
    return 0


def _run(spec: JobSpec, location: OpenLocation) -> None:
    from persist_spark.merge.job import run_merge_job
    from persist_spark.session import build_session
    from persist_spark.upsert.job import run_write_job
    from persist_spark.view.job import run_view_job

    description = spec.description
    spark = build_session(f"persist {description.shard} {description.interval}")
    try:
        jobs: dict[type, Callable[[SparkSession, JobSpec, OpenLocation], BatchManifest | None]] = {
            CollectionConfig: run_write_job,
            ViewConfig: run_view_job,
            MergeInputs: run_merge_job,
        }
        manifest = jobs[type(spec.config)](spark, spec, location)
    finally:
        spark.stop()
    if manifest is None:
        summary: dict[str, object] = {"dry_run": dry_run_key(description.shard, spec.attempt)}
    else:
        summary = {"manifest": manifest_key(description.shard, spec.attempt), "stats": dict(manifest.stats)}
    sys.stdout.write(json.dumps(summary) + "\n")


def _record_failure(
    location: OpenLocation, spec: JobSpec, kind: str, message: str, samples: Sequence[RejectedRecord] = ()
) -> None:
    """Best effort: the store itself may have failed, and the first error is the one to report."""
    try:
        record_failure(location.blob, spec, kind, message, samples)
    except StorageError as error:
        sys.stderr.write(f"the failure could not be recorded: {error}\n")


if __name__ == "__main__":
    logging.basicConfig(format=LOG_FORMAT)  # on stderr, as the log of the process that waits for this one expects it
    logging.getLogger("persist_spark").setLevel(logging.INFO)
    sys.exit(main(sys.argv[1:], os.environ))
