"""Write stages whose tasks fail, hang or lose their process, as a separate driver for `spark-submit`.

    cluster_job.py BLOB_URI FAULT...    ->  the last line of output: by fault, what was staged and what is left

    task_dies      the first attempt of each task writes all of its rows, closes files, and then throws
    executor_dies  the first attempt of one task kills its executor after having written
    worker_dies    the same, and its worker dies with it, as a machine that is lost; what it had exchanged is gone, and
                   the worker comes back
    straggler      the first attempt of one task has written everything and then does not end: Spark speculates, and a
                   second attempt wins
    shuffle_lost   the first task that ends deletes what all executors have exchanged: later tasks, of which there are
                   more than cores, cannot fetch it, so Spark makes it again, and the stage has another attempt

`SPARK_FAULTS` is a folder where attempts leave a mark, since they share nothing else.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import mock

from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from persist_core.keys import attempt_prefix
from persist_core.location.open import open_blob
from persist_core.maintenance.fsck import fsck
from persist_spark import session, snapshot
from persist_spark.session import FASTER, REQUIRED, use
from persist_spark.upsert import batch as upsert_batch
from persist_spark.upsert.plan import persistent_upsert
from tests.oracle.upsert import Record
from tests.spark.staged_shard import SHARD, StagedShard
from tests.spark.upsert_cases import ONE_KEY

ROWS = 400
ROWS_PER_FILE = 40  # so that a task has closed, and uploaded, several files before its fault
LINGER_S = 500  # far longer than the test waits: only Spark ends it


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _is_first(mark: Path) -> bool:
    """True if no other task has left this mark."""
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _delete_exchanged() -> None:
    """Delete the shuffle files of all executors. The workers share a root: ROOT/WORKER/EXECUTOR."""
    for file in Path(os.environ["SPARK_LOCAL_DIRS"]).parents[1].rglob("shuffle_*"):
        file.unlink(missing_ok=True)


def faulty(updates: DataFrame, fault: str, marks: str) -> DataFrame:
    """The rows, by tasks that fail in the given way after their last row."""

    def rows_then_fault(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches
        context = TaskContext.get()
        assert context is not None
        partition = context.partitionId()
        # Not by the attempt's number: it starts at 0 again if a lost executor ends a whole stage.
        if not _is_first(Path(marks, f"{fault} first of {partition}")):
            Path(marks, f"{fault} again of {partition}").touch()
            return
        if fault == "task_dies":
            raise RuntimeError("this attempt was told to fail after it had written")
        if fault in ("executor_dies", "worker_dies") and partition == 0:
            executor = _parent(os.getppid())  # of the daemon that forked this worker of Python
            if fault == "worker_dies":
                os.kill(_parent(executor), signal.SIGKILL)
            os.kill(executor, signal.SIGKILL)
        if fault == "shuffle_lost" and _is_first(Path(marks, fault)):
            _delete_exchanged()
        if fault == "straggler" and partition == 0:
            time.sleep(LINGER_S)  # noqa: TID251 - in a worker of Spark's, where no clock can be handed in

    return updates.mapInArrow(rows_then_fault, updates.schema)


def stage(spark: SparkSession, uri: str, fault: str, marks: str) -> dict[str, Any]:
    """Stage one batch under the fault, then commit and read it, and report what is there."""

    def upsert(*arguments: Any, **options: Any) -> Any:
        drained = persistent_upsert(*arguments, **options)
        return dataclasses.replace(drained, updates=faulty(drained.updates, fault, marks))

    with closing(open_blob(uri)) as blob:
        shard = StagedShard(spark, blob, ONE_KEY)
        records = [Record((key,), (f"name {key}", key, None), None, (None, "f", 0, key)) for key in range(ROWS)]
        several_tasks = [mock.patch.object(module, "ONE_TASK_BYTES", -1) for module in (session, upsert_batch)]
        with several_tasks[0], several_tasks[1], mock.patch.object(upsert_batch, "persistent_upsert", upsert):
            manifest = shard.commit(records, 10)
        prefix = f"{attempt_prefix(SHARD, shard.attempt)}/"
        return {
            "rows": sorted(row["id"] for row in shard.snapshot()),
            "read": sorted(row["id"] for row in snapshot(spark, shard.location, SHARD).collect()),
            "counted": sum(part.rows or 0 for part in manifest.parts),
            "parts": sorted(part.key.removeprefix(prefix) for part in manifest.parts),
            "staged": shard.staged_keys(),
            "findings": [finding.message for finding in fsck(shard.client, SHARD).violations],
            "marks": sorted(path.name for path in Path(marks).glob(f"{fault} *")),
        }


def main(uri: str, *faults: str) -> None:
    """One session, one location below `uri` for each fault."""
    spark = SparkSession.builder.appName("faults").getOrCreate()
    # Several tasks, as a large batch has.
    several = {"spark.sql.adaptive.coalescePartitions.enabled": "false"}
    use(spark, {**FASTER, **REQUIRED, **several, "spark.sql.files.maxRecordsPerFile": str(ROWS_PER_FILE)})
    head, _, query = uri.partition("?")
    found = {fault: stage(spark, f"{head}/{fault}?{query}", fault, os.environ["SPARK_FAULTS"]) for fault in faults}
    spark.stop()
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
