"""One batch staged on a cluster, cleanly and under faults, as a separate driver for `spark-submit`.

    fault_job.py FOLDER FAULT...    ->  the last line of output: by fault, what was staged and what can be read

The faults are as in `cluster_job`, and two more:

    none        several tasks, no adaptive execution: what the others must equal
    replanned   Spark plans again after each exchange, and makes fewer partitions

The batch may be special: `truncate`; `few keys`, which are looked up by pages; a `hot key`, of which most records are
left out; or `steps`, a merge of all batches.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from pyspark.sql import SparkSession

from persist_core.compaction.merge import Merge, replace_inputs
from persist_core.contents.batch import BatchCounts
from persist_core.keys import manifest_key
from persist_core.maintenance.fsck import fsck
from persist_core.shard.replace import Replaced
from persist_spark import merge as merging
from persist_spark import stage as staging
from persist_spark.merge import plan_merge
from persist_spark.session import stage_settings
from persist_spark.upsert import batch as upsert_batch
from persist_spark.upsert import few_keys
from persist_spark.upsert.few_keys import filter_of
from persist_spark.upsert.hot_keys import LARGE_INPUT_BYTES, find_beaten
from persist_spark.upsert.plan import persistent_upsert
from tests.oracle.upsert import SKIP, TOMBSTONE, TRUNCATE, Err, Record
from tests.spark.cluster_job import faulty
from tests.spark.staged_shard import SHARD, StagedShard
from tests.spark.upsert_cases import ONE_KEY

ROWS = 600
PARTITIONS = 6  # three a core: what the first tasks break, later ones meet
FEW_KEYS = 10
MAX_STAGES = 2000  # of all cases
MAX_STEPS = 50


def _place(row: int) -> tuple[Any, ...]:
    return (None, "f", 0, row)


def _base() -> list[Record]:
    return [Record((key,), (f"name {key}", key, None), None, _place(key)) for key in range(ROWS)]


def _batch(kind: str) -> list[Record]:
    """Some of each kind of record: updates, the same again, deletes, errs, repeated keys, future times, control."""
    if kind == "few keys":
        return [Record((key,), ("new", key, None), 15, _place(key)) for key in range(0, ROWS, ROWS // FEW_KEYS)]
    found = [Record((key,), (f"new {key % 7}", key, 0.5), 15 + key % 3, _place(key)) for key in range(0, 2 * ROWS, 3)]
    found += [Record((key,), (f"name {key}", key, None), 16, _place(3000 + key)) for key in range(1, ROWS, 6)]
    found += [Record((key,), TOMBSTONE, 17, _place(5000 + key)) for key in range(2, ROWS, 6)]
    found += [Record((key,), Err("value", b"k", b"raw"), 18, _place(7000 + key)) for key in range(4, ROWS, 60)]
    found += [Record((key,), ("later", key, None), 25, _place(9000 + key)) for key in range(0, ROWS, 50)]
    found += [Record(None, SKIP, None, _place(11_000 + number)) for number in range(9)]
    if kind == "hot key":
        found += [Record((7,), (f"hot {number}", None, None), 16, _place(13_000 + number)) for number in range(ROWS)]
    return [*found, Record(None, TRUNCATE, 16, _place(12_000))] if kind == "truncate" else found


def _settings(fault: str, _: int) -> dict[str, str]:
    return {
        **stage_settings(0),
        "spark.sql.shuffle.partitions": str(PARTITIONS),
        "spark.sql.adaptive.enabled": str(fault != "none").lower(),
        "spark.sql.adaptive.coalescePartitions.enabled": str(fault == "replanned").lower(),
    }


def stage(spark: SparkSession, folder: Path, fault: str, marks: str, kind: str) -> dict[str, Any]:
    """Stage and commit the batch under the fault, after a clean one; if `kind` is `steps`, merge the two under it."""
    faulty_here, used = fault if kind != "steps" else "none", list[Any]()

    def upsert(*arguments: Any, **options: Any) -> Any:
        drained = persistent_upsert(*arguments, **{**options, "in_one_task": False})
        return dataclasses.replace(drained, updates=faulty(drained.updates, faulty_here, marks))

    def seen(work: Callable[..., Any]) -> Callable[..., Any]:
        def found(*arguments: Any) -> Any:
            used.append(work(*arguments))
            return used[-1]

        return found

    shard, small = StagedShard(spark, folder, ONE_KEY), ROWS // (2 * FEW_KEYS)
    patches: dict[str, Any] = {
        "stage_settings": functools.partial(_settings, faulty_here),
        "persistent_upsert": upsert,
        "SMALL_STATE_BYTES": 0,
        "LARGE_INPUT_BYTES": 0 if kind == "hot key" else LARGE_INPUT_BYTES,
        "filter_of": seen(filter_of),
        "find_beaten": seen(find_beaten),
    }
    with (
        mock.patch.dict(staging._WRITE_OPTIONS, {"parquet.page.row.count.limit": str(small)}),
        mock.patch.object(few_keys, "PAGE_ROWS", small),
    ):
        shard.commit(_base(), 10)
        with mock.patch.multiple(upsert_batch, **patches):
            manifest = shard.commit(_batch(kind), 20, is_columnar=kind == "hot key")
    # A speculative task that is killed late may write into the committer's folder when the job has removed it: garbage.
    listed = [key for key in shard.staged_keys() if not key.startswith("_temporary/")]
    is_whole = len(listed) == 1 + len(manifest.parts) + len(shard.stash)
    counts = merged(spark, shard, fault, marks) if kind == "steps" else manifest.counts
    return {
        "digest": manifest.contents_digest,
        "stats": dict(manifest.stats),
        "counts": dataclasses.asdict(counts),
        "rows": [json.dumps(row, sort_keys=True) for row in shard.snapshot()],
        "is_whole": is_whole,
        "used": len([each for each in used if each is not None]),
        "findings": [finding.message for finding in fsck(shard.client, SHARD).violations],
    }


def merged(spark: SparkSession, shard: StagedShard, fault: str, marks: str) -> BatchCounts:
    """Merge all batches in steps by Spark, the first of them under the fault; the counts of the whole run."""
    client = shard.client

    def plan(*arguments: Any, **options: Any) -> Any:
        planned = plan_merge(*arguments, **options)
        assert planned is not None
        return dataclasses.replace(planned, updates=faulty(planned.updates, fault, marks))

    patches: dict[str, Any] = {"stage_settings": functools.partial(_settings, fault), "plan_merge": plan}
    for number in range(MAX_STEPS):
        state = client.state(SHARD)
        budget = sum(batch.size_bytes for batch in state.batches) // 3
        merge = Merge.of(client, state, state.batches, budget_bytes=budget)
        merge, attempt = dataclasses.replace(merge, min_file_bytes=1), client.ids.uuid7()
        with mock.patch.multiple(merging, **patches):
            manifest = merging.stage_merge(spark, client, merge, attempt)
        assert isinstance(replace_inputs(client, manifest, manifest_key(SHARD, attempt)), Replaced)
        if merge.until is None:
            assert number > 0, "the merge had one step only"
            return manifest.counts
    raise AssertionError(f"the merge did not end in {MAX_STEPS} steps")


def _stages_again(spark: SparkSession) -> int:
    """How many stages had more than one attempt so far."""
    tracker = spark.sparkContext.statusTracker()
    infos = [tracker.getStageInfo(number) for number in range(MAX_STAGES)]
    return sum(info is not None and info.currentAttemptId > 0 for info in infos)


def main(folder: str, *cases: str) -> None:
    """One session; a location below the folder for each case: a fault, and after a comma the kind of batch."""
    spark = SparkSession.builder.appName("faults").getOrCreate()
    found = {}
    for name in cases:
        fault, _, kind = name.partition(", ")
        marks = Path(os.environ["SPARK_FAULTS"], name)
        marks.mkdir()
        before = _stages_again(spark)
        staged = stage(spark, Path(folder, name), fault, str(marks), kind)
        found[name] = {
            "staged": staged,
            "marks": sorted(mark.name for mark in marks.iterdir()),
            "stages_again": _stages_again(spark) - before,
        }
    spark.stop()
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
