"""Stands in for `spark-submit` in tests of what surrounds it: takes its arguments, does what the environment says.

STAND_IN=stage    stage one insertion for each line of the input, as the job would, and write the manifest
STAND_IN=fail     leave a failure record of the kind STAND_IN_KIND
STAND_IN=die      print something and end with status 3
STAND_IN=long     say what it does, as a long job does, then stage
STAND_IN=quiet    end well, but without a manifest
STAND_IN=hang     never end, and hold a child that never ends
STAND_IN=race     let another writer win the shard (once: a file marks it), then stage
STAND_IN=beaten   the same each time
STAND_IN_OF       JSON: what else to do for shards, by name
STAND_IN_NOTES    a file that each call appends its arguments and Spark's variables to
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))


def main() -> int:
    """Do what the environment says; only what stages needs the project's own code, which takes a while to load."""
    with Path(os.environ["STAND_IN_NOTES"]).open("a") as notes:
        spark = {name: value for name, value in os.environ.items() if name.startswith("SPARK_")}
        notes.write(json.dumps({"argv": sys.argv[1:], "pid": os.getpid(), "environment": spark}) + "\n")
    from persist_core.spark_job.calls import answer_calls

    return answer_calls(sys.argv[-4:], os.environ, do_all)


def do_all(arguments: Sequence[str]) -> int:
    """Do all items of a job: 0 if each went well."""
    special = json.loads(os.environ.get("STAND_IN_OF", "{}"))
    items = [arguments[first : first + 4] for first in range(0, len(arguments), 4)]
    return max(do(special.get(item[1].partition("/")[0], os.environ["STAND_IN"]), item) for item in items)


def do(what: str, arguments: Sequence[str]) -> int:
    """Do one item, or die."""
    if what == "hang":
        subprocess.run(["sleep", "600"], check=False)
    if what == "die":
        sys.stderr.write("java.lang.OutOfMemoryError: Java heap space\n")
        sys.stderr.flush()
        os._exit(3)
    if what == "long":
        from persist_core.spark_job.process import LogFields

        sys.stderr.write("26/01/01 00:00:00 INFO SparkContext: not ours\n")
        handler = logging.StreamHandler()
        handler.setFormatter(LogFields())
        logging.basicConfig(handlers=[handler], level=logging.INFO)
        logging.getLogger("persist_spark.progress").info("orders: 10 s, \x1b[31mwrite; 1 of 4 tasks")
    if what == "quiet":
        return 0
    from tests.core.cli import stand_in_job

    return stand_in_job.main(what, arguments)


if __name__ == "__main__":
    sys.exit(main())
