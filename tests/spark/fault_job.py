"""One batch staged on a cluster, cleanly and under faults, as a separate driver for `spark-submit`.

    fault_job.py FOLDER FAULT...    ->  the last line of output: by fault, what was staged and what can be read

The faults are as in `cluster_job`, and two more:

    none        several tasks, no adaptive execution: what the others must equal
    replanned   Spark plans again after each exchange, and makes fewer partitions
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any
from unittest import mock

from pyspark.sql import SparkSession

from persist_core.maintenance.fsck import fsck
from persist_spark.session import stage_settings
from persist_spark.upsert import batch as upsert_batch
from persist_spark.upsert.plan import persistent_upsert
from tests.oracle.upsert import SKIP, TOMBSTONE, TRUNCATE, Err, Record
from tests.spark.cluster_job import faulty
from tests.spark.staged_shard import SHARD, StagedShard
from tests.spark.upsert_cases import ONE_KEY

ROWS = 600
PARTITIONS = 6  # three a core: what the first tasks break, later ones meet
MAX_STAGES = 400  # of all cases


def _place(row: int) -> tuple[Any, ...]:
    return (None, "f", 0, row)


def _base() -> list[Record]:
    return [Record((key,), (f"name {key}", key, None), None, _place(key)) for key in range(ROWS)]


def _batch(*, has_truncate: bool) -> list[Record]:
    """Some of each kind of record: updates, the same again, deletes, errs, repeated keys, future times, control."""
    found = [Record((key,), (f"new {key % 7}", key, 0.5), 15 + key % 3, _place(key)) for key in range(0, 2 * ROWS, 3)]
    found += [Record((key,), (f"name {key}", key, None), 16, _place(3000 + key)) for key in range(1, ROWS, 6)]
    found += [Record((key,), TOMBSTONE, 17, _place(5000 + key)) for key in range(2, ROWS, 6)]
    found += [Record((key,), Err("value", b"k", b"raw"), 18, _place(7000 + key)) for key in range(4, ROWS, 60)]
    found += [Record((key,), ("later", key, None), 25, _place(9000 + key)) for key in range(0, ROWS, 50)]
    found += [Record(None, SKIP, None, _place(11_000 + number)) for number in range(9)]
    return [*found, Record(None, TRUNCATE, 16, _place(12_000))] if has_truncate else found


def stage(spark: SparkSession, folder: Path, fault: str, marks: str, *, has_truncate: bool) -> dict[str, Any]:
    """Stage and commit the batch under the fault, after a clean one."""

    def settings(_: int) -> dict[str, str]:
        return {
            **stage_settings(0),
            "spark.sql.shuffle.partitions": str(PARTITIONS),
            "spark.sql.adaptive.enabled": str(fault != "none").lower(),
            "spark.sql.adaptive.coalescePartitions.enabled": str(fault == "replanned").lower(),
        }

    def upsert(*arguments: Any, **options: Any) -> Any:
        drained = persistent_upsert(*arguments, **{**options, "in_one_task": False})
        return dataclasses.replace(drained, updates=faulty(drained.updates, fault, marks))

    shard = StagedShard(spark, folder, ONE_KEY)
    shard.commit(_base(), 10)
    patches: dict[str, Any] = {"stage_settings": settings, "persistent_upsert": upsert, "SMALL_STATE_BYTES": 0}
    with mock.patch.multiple(upsert_batch, **patches):
        manifest = shard.commit(_batch(has_truncate=has_truncate), 20)
    return {
        "digest": manifest.contents_digest,
        "stats": dict(manifest.stats),
        "counts": dataclasses.asdict(manifest.counts),
        "rows": [json.dumps(row, sort_keys=True) for row in shard.snapshot()],
        "is_whole": len(shard.staged_keys()) == 1 + len(manifest.parts) + len(shard.stash),
        "findings": [finding.message for finding in fsck(shard.client, SHARD).violations],
    }


def _stages_again(spark: SparkSession) -> int:
    """How many stages had more than one attempt so far."""
    tracker = spark.sparkContext.statusTracker()
    infos = [tracker.getStageInfo(number) for number in range(MAX_STAGES)]
    return sum(info is not None and info.currentAttemptId > 0 for info in infos)


def main(folder: str, *cases: str) -> None:
    """One session; a location below the folder for each case: a fault, with `, truncate` if the batch has one."""
    spark = SparkSession.builder.appName("faults").getOrCreate()
    found = {}
    for name in cases:
        fault, _, truncate = name.partition(", ")
        marks = Path(os.environ["SPARK_FAULTS"], name)
        marks.mkdir()
        before = _stages_again(spark)
        staged = stage(spark, Path(folder, name), fault, str(marks), has_truncate=bool(truncate))
        found[name] = {
            "staged": staged,
            "marks": sorted(mark.name for mark in marks.iterdir()),
            "stages_again": _stages_again(spark) - before,
        }
    spark.stop()
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
