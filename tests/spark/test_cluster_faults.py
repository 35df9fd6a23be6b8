"""A write stage counts and writes the same on a cluster that fails as on a healthy one.

One fault and one kind of batch by the seed; all at night. `test_s3_cluster` has the same for what is left on S3.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from persist_core.spark_job.installation import find_spark_submit, spark_environment
from tests.sampling import sample
from tests.servers.spark_cluster import CONF, HOSTS, REGISTERED, SparkCluster
from tests.spark.fault_job import PARTITIONS
from tests.spark.test_s3_cluster import ROOT, SPECULATION

pytestmark = [pytest.mark.spark_cluster, pytest.mark.family("Sparks")]
FAULTS = ("task_dies", "executor_dies", "worker_dies", "straggler", "shuffle_lost", "replanned")
TIMEOUT_S = 1800  # of all cases
KINDS = ("", "truncate", "few keys", "hot key", "steps")
# Each leaves a mark, but for what Spark does of itself.
_MARKS = {"shuffle_lost": "shuffle_lost first of 0", "replanned": "replanned first of 0"}


def test_faults_change_no_byte_and_no_count(spark_cluster: SparkCluster, tmp_path: Path) -> None:
    # A merge has the partitions that it asks for.
    possible = [(fault, kind) for fault in FAULTS for kind in KINDS if (fault, kind) != ("replanned", "steps")]
    cases = sample(possible, 1, "cluster faults")
    marks = tmp_path / "marks"
    marks.mkdir()
    names = dict.fromkeys(_name(each, kind) for fault, kind in cases for each in ("none", fault))
    found = _found(spark_cluster, tmp_path / "locations", marks, list(names))
    registered = (spark_cluster.folder / "master.log").read_text().count(REGISTERED)
    assert registered >= len(HOSTS) + sum(fault == "worker_dies" for fault, _ in cases), "the worker did not come back"
    for fault, kind in cases:
        clean, here = found[_name("none", kind)], found[_name(fault, kind)]
        assert here["staged"] == clean["staged"], (fault, kind)
        assert clean["staged"]["is_whole"]
        assert clean["staged"]["findings"] == []
        assert clean["staged"]["used"] == (1 if kind in ("few keys", "hot key") else 0)
        assert _MARKS.get(fault, f"{fault} again of 0") in here["marks"], "the fault did not happen"
        assert here["stages_again"] > 0 or fault != "shuffle_lost"
        partitions = {mark for mark in here["marks"] if " first of " in mark}
        assert len(partitions) == (1 if fault == "replanned" else PARTITIONS) or kind == "steps"


def _name(fault: str, kind: str) -> str:
    return f"{fault}, {kind}" if kind else fault


def _found(cluster: SparkCluster, locations: Path, marks: Path, names: list[str]) -> dict[str, dict[str, Any]]:
    """The results of fault_job.py. One driver for all: it takes longer to start than to run."""
    options = [part for name, value in {**CONF, **SPECULATION}.items() for part in ("--conf", f"{name}={value}")]
    path = os.pathsep.join(str(ROOT / name) for name in (".", "jobs", "plugins"))
    job = ROOT / "tests" / "spark" / "fault_job.py"
    done = subprocess.run(
        [str(find_spark_submit(os.environ)), "--master", cluster.master, *options, str(job), str(locations), *names],
        env={**os.environ, **spark_environment(os.environ), "PYTHONPATH": path, "SPARK_FAULTS": str(marks)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    by_fault: dict[str, dict[str, Any]] = json.loads(done.stdout.strip().splitlines()[-1])
    return by_fault
